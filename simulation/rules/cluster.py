"""The hardware of a simulated cluster, and how its Slurm schedules: values that nothing changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.gpus.layouts import Placement


@dataclass(frozen=True)
class BoardsOfNode:
    """The boards of a node that are cut into MIG instances, and can be cut again.

    Attributes:
        model: their GPU model, as the settings name it.
        layouts: the instances of each board at the beginning.
        most: by GRES type, how many GPUs of it the node could have; no other cut has more.
        cost_millislices: of one board as a whole.
    """

    model: str
    layouts: tuple[tuple[Placement, ...], ...]
    most: Mapping[str, int] = field(hash=False)
    cost_millislices: int


@dataclass(frozen=True)
class SimulatedNode:
    """One node.

    Attributes:
        gpus: GPUs or MIG instances by GRES type, for example ``{"a100": 8}`` or
            ``{"1g.10gb": 7}``. Pads of a node whose boards are cut again are among them.
        cpus, memory_mib: for jobs; 0 if they bound nothing.
        weight: Slurm's weight; jobs get the nodes with the lowest weight first.
        boards: the boards that may be cut again during a simulation; None if none may.
    """

    name: str
    partitions: frozenset[str]
    gpus: Mapping[str, int] = field(hash=False)
    cpus: int = 0
    memory_mib: int = 0
    weight: int = 1
    boards: BoardsOfNode | None = None


@dataclass(frozen=True)
class PriorityWeights:
    """slurm.conf's priority/multifactor: weights of factors between 0 and 1.

    Attributes:
        age, fair_share, job_size, qos: PriorityWeightAge and so on; all 0 is first in, first out.
        max_age_s: PriorityMaxAge.
        half_life_s: PriorityDecayHalfLife; 0 is no decay.
    """

    age: int = 0
    fair_share: int = 0
    job_size: int = 0
    qos: int = 0
    max_age_s: int = 7 * 86_400
    half_life_s: int = 7 * 86_400


@dataclass(frozen=True)
class Scheduling:
    """How slurmctld schedules: what of SchedulerParameters matters here, in seconds.

    Attributes:
        interval_s: seconds at least between two runs of the main scheduler (sched_min_interval).
        batch_delay_s: seconds at least between two runs of it for what is submitted or released
            (batch_sched_delay); what ends is followed at once.
        depth: waiting jobs that the main scheduler tries after a job came or ended
            (default_queue_depth).
        backfills: whether SchedulerType is sched/backfill.
        backfill_s: bf_interval.
        backfill_jobs: bf_max_job_test.
        backfill_window_s: bf_window.
        backfill_resolution_s: bf_resolution: reservations begin and end at multiples of it.
        reserve_age_s: bf_min_age_reserve: a job that could start for less long keeps no nodes.
        reserve_priority: bf_min_prio_reserve: nor does one below this priority.
        full_run_s: seconds between two runs of the main scheduler through the whole queue
            (sched_interval).
        requeue_wait_s: seconds that a requeued job waits until the credential of its last run has
            expired (AuthInfo's cred_expire).
        preempts_youngest_first: preempt_youngest_first, or youngest_first in PreemptParameters.
        start_s: seconds from a start until the job's script runs; counted as the job's own time.
        complete_s: seconds in COMPLETING, in which GPUs are held and nothing runs.
        kill_wait_s: KillWait: for so many seconds after it is told to end, a run may finish what it
            has begun. Only replicas of services do (``ModelRequest.finishes``).
    """

    weights: PriorityWeights = PriorityWeights()
    interval_s: float = 2.0
    batch_delay_s: float = 0.0
    depth: int = 100
    backfills: bool = True
    backfill_s: float = 30.0
    backfill_jobs: int = 500
    backfill_window_s: float = 86_400.0
    backfill_resolution_s: float = 60.0
    reserve_age_s: float = 0.0
    reserve_priority: int = 0
    full_run_s: float = 60.0
    requeue_wait_s: float = 120.0
    preempts_youngest_first: bool = False
    start_s: float = 1.0
    complete_s: float = 1.0
    kill_wait_s: float = 30.0


@dataclass(frozen=True)
class NodeFailures:
    """How often nodes fail, and for how long.

    Attributes:
        mean_s: mean seconds from a node's return to its next failure.
        repair_s: seconds until it is back.
    """

    mean_s: float
    repair_s: float


REPAIR_HOURS = 12.0
"""Hours until a node is back, where nobody says."""


@dataclass(frozen=True)
class SimulatedCluster:
    """A whole cluster.

    Attributes:
        accounts: parent of each Slurm account; the top ones have "root".
        shares: raw fair shares of accounts; 1 for those that are not here.
        max_time_s: MaxTime of partitions that have one.
        default_time_s: DefaultTime of partitions that have one.
        failures: None if no node ever fails.
    """

    name: str
    nodes: tuple[SimulatedNode, ...]
    scheduling: Scheduling = Scheduling()
    accounts: Mapping[str, str] = field(default_factory=dict, hash=False)
    shares: Mapping[str, int] = field(default_factory=dict, hash=False)
    max_time_s: Mapping[str, int] = field(default_factory=dict, hash=False)
    default_time_s: Mapping[str, int] = field(default_factory=dict, hash=False)
    failures: NodeFailures | None = None
