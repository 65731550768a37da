"""Jobs of a site's past: what was asked of Slurm and when, not what Slurm did with it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HistoryJob:
    """One job, or one task of an array.

    Attributes:
        submit_s: Unix seconds at which the job was eligible: submitted, begun, its dependency met.
        run_s: seconds that it ran in all, if nothing had ended it earlier.
        time_limit_s: seconds that were asked for; None is unlimited.
        gpus: GPUs or instances by GRES type, on all nodes together; "" is the type of GPUs that
            were asked for without one. Empty for a job without GPUs.
        nodes: nodes over which they are spread evenly; 0 if the history does not say.
        cpus, memory_mib: on all nodes together; 0 if the history does not say.
        started_s: when Slurm really started it; None if never. Only the comparison with the past
            reads this: a replay takes ``submit_s``, since waits follow from the policy of then.
        array_job_id: of a task, its array's id, where the history says it.
        is_cancelled_waiting: whether it was cancelled before it started, ``run_s`` seconds after
            ``submit_s``.
    """

    job_id: int
    user: str
    account: str
    partition: str
    qos: str
    submit_s: float
    run_s: float
    time_limit_s: int | None
    gpus: Mapping[str, int] = field(hash=False)
    nodes: int = 1
    cpus: int = 0
    memory_mib: int = 0
    started_s: float | None = None
    is_cancelled_waiting: bool = False
    array_job_id: int | None = None


ENDS_FIRST = "by their times they end before they start"
"""Why jobs are left out of which nothing else says how long they ran."""


@dataclass(frozen=True)
class JobHistory:
    """What was read of a file, or of several.

    Attributes:
        jobs: ascending by ``submit_s``.
        unread: lines that could not be read.
        first_unread: file, line and why, of the first of them; "" if there is none.
        open_ended: jobs that still ran or waited when the history was taken: how long they would
            have run is not known. A running one has the seconds that it had run, a waiting one its
            time limit.
        left_out: lines that were read and are no job, by why.
        assumed: what the readers had to assume since the files do not say it, as sentences.
        whole_from_s: from when on all jobs are there that came, in Unix seconds; of those that came
            earlier only such as were not over then. None if all are there.
    """

    jobs: tuple[HistoryJob, ...]
    unread: int = 0
    first_unread: str = ""
    open_ended: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict, hash=False)
    assumed: tuple[str, ...] = ()
    whole_from_s: float | None = None


def in_order(jobs: Iterable[HistoryJob]) -> tuple[HistoryJob, ...]:
    """Return the jobs in the order of their submission."""
    return tuple(sorted(jobs, key=lambda job: (job.submit_s, job.job_id)))


def even_nodes(gpus: int, most_on_a_node: int) -> int:
    """Return the fewest nodes over which GPUs can be spread evenly, with so many on each at most.

    For histories that don't say how many nodes a job had.
    """
    if gpus <= most_on_a_node:
        return 1
    sizes = range(min(most_on_a_node, gpus), 0, -1)
    return next(gpus // each for each in sizes if gpus % each == 0)
