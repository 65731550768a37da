"""Tracks reserved runs that no longer run: when they ended, which ends accounting lost or moved."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.jobs import JobState, JobView, RunOfJob, RunRecord
from slicewise.slurm_plugin.rules.accounting.types import Reservation, RunKey

LIVE = (JobState.RUNNING, JobState.SUSPENDED)
"""States of a run in progress. CONFIGURING is left out because the start may still move then, and
COMPLETING because accounting has the end."""

LOST_AFTER_S = 7200
"""Seconds after which the end of a reserved run counts as lost if accounting does not show it."""


@dataclass(frozen=True)
class LostRun:
    """A run that is not settled, and that Slurm no longer shows.

    Attributes:
        since_s: when Slurm was first seen without the run, in seconds of the monotonic clock.
        end_s: the earliest known Unix second by which the run had ended.
        shown_s: the run's own end as slurmctld showed it; None if no look saw it.
    """

    since_s: float
    end_s: int
    shown_s: int | None = None


def lost_runs(
    before: Mapping[RunKey, LostRun],
    looked_s: int,
    monotonic_s: float,
    jobs: Iterable[JobView],
    reservations: Iterable[Reservation],
) -> Mapping[RunKey, LostRun]:
    """Return the reserved runs that are gone now, given those that were gone ``before``.

    ``looked_s`` is when ``jobs`` were read. ``monotonic_s`` is the same moment by the monotonic
    clock, so that the time for which a run is gone does not jump when the host's clock is set.

    A run may still go on, and is not gone, if its job's state is unknown or its record unreadable.
    """
    by_id = {job.job_id: job for job in jobs}
    live = live_runs(by_id.values())
    return {
        held.key: _gone(
            held.key,
            before.get(held.key, LostRun(monotonic_s, looked_s)),
            by_id.get(held.key.job_id),
        )
        for held in reservations
        if (held.key.job_id, held.key.start_s) not in live
        and not _may_run(by_id.get(held.key.job_id))
    }


def _may_run(job: JobView | None) -> bool:
    return job is not None and (job.state is JobState.OTHER or job.is_doubtful)


def live_runs(jobs: Iterable[JobView]) -> frozenset[RunOfJob]:
    """Return job id and start of every run in progress (see ``LIVE``)."""
    return frozenset((job.job_id, job.start_s) for job in jobs if job.state in LIVE)


def lost_ends(gone: Mapping[RunKey, LostRun], monotonic_s: float) -> Mapping[RunKey, int]:
    """Return the ends of the runs that have been gone for ``LOST_AFTER_S``.

    The caller must ask accounting once more: an end that it shows after all is the right one.
    """
    return {
        key: lost.end_s for key, lost in gone.items() if monotonic_s - lost.since_s >= LOST_AFTER_S
    }


def unmoved(
    records: Iterable[RunRecord], cluster: str, gone: Mapping[RunKey, LostRun]
) -> tuple[RunRecord, ...]:
    """Return accounting's runs, each with an end no later than slurmctld showed it at first.

    A requeue of a job that has ended moves the end of its last run to that moment. Accounting may
    tell of the run only afterwards.
    """
    return tuple(
        replace(record, end_s=min(record.end_s, lost.shown_s))
        if record.end_s is not None
        and (lost := gone.get(RunKey(cluster, record.job_id, record.start_s))) is not None
        and lost.shown_s is not None
        else record
        for record in records
    )


def _gone(key: RunKey, lost_run: LostRun, job: JobView | None) -> LostRun:
    shown_s = lost_run.shown_s if lost_run.shown_s is not None else _shown_s(key, job)
    return LostRun(
        lost_run.since_s, max(key.start_s, min((lost_run.end_s, *_ends(key, job)))), shown_s
    )


def _shown_s(key: RunKey, job: JobView | None) -> int | None:
    """Return the end that slurmctld shows for the run, by the clock that accounting's end has.

    While a requeued run ends, Slurm already shows the planned start and end of the next one.
    """
    over = (JobState.ENDED, JobState.COMPLETING)
    is_its_own = job is not None and job.state in over and job.start_s == key.start_s
    return job.end_s if job is not None and is_its_own else None


def _ends(key: RunKey, job: JobView | None) -> Iterable[int]:
    """Yield what slurmctld knows of the run's end: its time, or the later time of a requeue."""
    if job is None:
        return
    if job.state is JobState.ENDED and job.start_s == key.start_s and job.end_s is not None:
        yield job.end_s
    if job.submit_s is not None and job.submit_s > key.start_s:
        yield job.submit_s
