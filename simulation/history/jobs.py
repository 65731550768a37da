"""Jobs of a site's past: what was asked of Slurm and when, not what Slurm did with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class HistoryJob:
    """One job, or one task of an array.

    Attributes:
        submit_s: Unix seconds at which the job was eligible: submitted, begun, its dependency met.
        run_s: seconds that it ran in all, if nothing had ended it earlier.
        time_limit_s: seconds that were asked for; None is unlimited.
        gpus: GPUs or instances by GRES type, on all nodes together; "" is the type of GPUs that
            were asked for without one. Empty for a job without GPUs.
        nodes: nodes over which they are spread evenly.
        cpus, memory_mib: on all nodes together; 0 if the history does not say.
        started_s: when Slurm really started it; None if never. Only the comparison with the past
            reads this: a replay takes ``submit_s``, since waits follow from the policy of then.
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
