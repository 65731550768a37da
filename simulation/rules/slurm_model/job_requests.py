"""What is handed to the model of Slurm: jobs, and the limits of QOS and accounts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelRequest:
    """A job or an array as it is submitted.

    Attributes:
        gpus: GPUs or instances by GRES type, on each node; "" is any type.
        cpus, memory_mib: on each node; 0 if they bound nothing.
        time_limit_s: None is the partition's DefaultTime, or its MaxTime, or unlimited. A job above
            MaxTime waits with PartitionTimeLimit, as where EnforcePartLimits is NO.
        run_s: seconds that each of its runs takes if nothing ends it; inf for a service. A run that
            is requeued begins anew.
        site_factor: is added to the priority.
        tasks: of an array, with the indices from 0; 0 for a job that is none.
        indices: of an array's tasks, in place of ``tasks`` from 0; rising.
        held: whether it is submitted held, as ``sbatch --hold`` does.
        requeues: whether Slurm may requeue it.
        finishes: whether its runs are a replica's: told to end they go on until
            ``SlurmModel.finish``, for KillWait at most, and those that their time limit ends come
            back held (RequeueExitHold). Others end at once, as a script without a trap does.
        exits_held: whether runs that end by themselves end with a code of RequeueExitHold, so that
            they come back held in SPECIAL_EXIT.
        begin_s: Unix seconds before which it is not eligible; None is at once.
    """

    user: str
    uid: int
    account: str
    partition: str
    qos: str
    gpus: Mapping[str, int] = field(hash=False)
    run_s: float
    nodes: int = 1
    cpus: int = 0
    memory_mib: int = 0
    time_limit_s: int | None = None
    name: str = ""
    comment: str = ""
    admin_comment: str = ""
    site_factor: int = 0
    tasks: int = 0
    indices: tuple[int, ...] = ()
    held: bool = False
    requeues: bool = True
    finishes: bool = False
    exits_held: bool = False
    begin_s: float | None = None


@dataclass(frozen=True)
class QosLimits:
    """One QOS: its limits, and whom it preempts.

    Attributes:
        grp_tres: GrpTRES by TRES, such as ``{"billing": 3000, "gres/gpu:1g.10gb": 4}``.
        grp_run_mins: GrpTRESRunMins: amount × minutes that are left of the running jobs' limits.
        max_tres_per_account: MaxTRESPerAccount.
        preempts: names of the QOS whose jobs it preempts.
        preempt_exempt_s: seconds that a job of this QOS runs before it may be preempted.
        preempt_requeues: whether its jobs are requeued by a preemption, else cancelled.
        priority: Priority of the QOS; the factor is its share of the largest one.
    """

    grp_tres: Mapping[str, int] = field(default_factory=dict, hash=False)
    grp_run_mins: Mapping[str, int] = field(default_factory=dict, hash=False)
    max_tres_per_account: Mapping[str, int] = field(default_factory=dict, hash=False)
    preempts: frozenset[str] = frozenset()
    preempt_exempt_s: int = 0
    preempt_requeues: bool = True
    priority: int = 0


@dataclass(frozen=True)
class AccountLimits:
    """One Slurm account: its place in the tree and its limits, as in ``QosLimits``.

    Attributes:
        parent: "" for the account root.
        share: raw fair shares.
        grp_tres_mins: GrpTRESMins by TRES.
    """

    parent: str = "root"
    grp_tres: Mapping[str, int] = field(default_factory=dict, hash=False)
    grp_run_mins: Mapping[str, int] = field(default_factory=dict, hash=False)
    share: int = 1
    grp_tres_mins: Mapping[str, int] = field(default_factory=dict, hash=False)
