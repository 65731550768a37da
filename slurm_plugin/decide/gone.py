"""Reserved runs that run no more: by when they had ended, and which of them accounting lost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cluster.jobs import JobState, JobView
from slurm_plugin.decide.model import Reservation, RunKey

LIVE = (JobState.RUNNING, JobState.SUSPENDED)
"""Not CONFIGURING: its start may still move. Not COMPLETING: accounting has its end."""

LOST_AFTER_S = 7200
"""How long accounting may take to show the end of a reserved run, before that counts as lost."""


@dataclass(frozen=True)
class Gone:
    """A run that is not settled, and that Slurm shows no more.

    Attributes:
        since_s: when Slurm was first looked at without it, by the monotonic clock.
        end_s: Unix second by which it had ended.
    """

    since_s: float
    end_s: int


def gone_runs(
    before: Mapping[RunKey, Gone],
    looked_s: int,
    monotonic_s: float,
    jobs: Iterable[JobView],
    reservations: Iterable[Reservation],
) -> Mapping[RunKey, Gone]:
    """What is gone at this look, given what was ``before``; ``jobs`` are as of ``looked_s``.

    ``monotonic_s`` is the same moment by the monotonic clock: how long a run is gone must not jump
    where the other one is set.

    A run of a job of which Slurm says what nobody can read may go on.
    """
    by_id = {job.job_id: job for job in jobs}
    live = live_runs(by_id.values())
    return {
        held.key: _gone(
            held.key,
            before.get(held.key, Gone(monotonic_s, looked_s)),
            by_id.get(held.key.job_id),
        )
        for held in reservations
        if (held.key.job_id, held.key.start_s) not in live
        and not _may_run(by_id.get(held.key.job_id))
    }


def _may_run(job: JobView | None) -> bool:
    return job is not None and (job.state is JobState.OTHER or job.is_doubtful)


def live_runs(jobs: Iterable[JobView]) -> frozenset[tuple[int, int | None]]:
    """Job id and start of every run that holds its GPUs."""
    return frozenset((job.job_id, job.start_s) for job in jobs if job.state in LIVE)


def lost_ends(gone: Mapping[RunKey, Gone], monotonic_s: float) -> Mapping[RunKey, int]:
    """Ends of the runs for which accounting has had its time; ask it once more before."""
    return {
        key: one.end_s for key, one in gone.items() if monotonic_s - one.since_s >= LOST_AFTER_S
    }


def _gone(key: RunKey, known: Gone, job: JobView | None) -> Gone:
    return replace(known, end_s=max(key.start_s, min((known.end_s, *_ends(key, job)))))


def _ends(key: RunKey, job: JobView | None) -> Iterable[int]:
    """What slurmctld says of the end: the time itself, or the requeue that came after it."""
    if job is None:
        return
    if job.state is JobState.ENDED and job.start_s == key.start_s and job.end_s is not None:
        yield job.end_s
    if job.submit_s is not None and job.submit_s > key.start_s:
        yield job.submit_s
