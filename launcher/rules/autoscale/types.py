"""Data of autoscaling: what a service asks for, what was seen of it, what was decided."""

from dataclasses import dataclass, field

from slicewise.cluster.language.starts import StartClass
from slicewise.launcher.rules.autoscale.keep_warm import KeptWarm
from slicewise.launcher.rules.engines.engine import TokenCounts
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load


@dataclass(frozen=True)
class Scaling:
    """What a service's owner asks of the autoscaler.

    Attributes:
        concurrency: requests that one replica works on at the same time; if ``learns``, at most.
        max_queue_s: seconds that a request may wait for a place in a replica; None if that is not
            the objective.
        p95_s: seconds within which 95 % of the requests shall be answered, waiting included; None
            if that is not the objective.
        keep_alive_s: idle seconds before a replica that is not needed is given back, at least;
            None: the cost of keeping it is weighed against that of a start.
        aim: share of the requests that shall meet the objective, below 1.
        ttft_s: seconds within which requests shall have their first token, waiting included; None
            if that is not an objective.
        tpot_s: seconds from one token to the next; None if that is not an objective.
        learns: whether it is learnt how many requests a replica works on.
        refill_s: seconds of loads that replicas have behind them besides their starts: what one
            has loaded is lost with it, and costs as much again in its successor.
    """

    min_replicas: int
    max_replicas: int
    concurrency: int
    max_queue_s: float | None = None
    p95_s: float | None = None
    keep_alive_s: float | None = None
    aim: float = 0.99
    learns: bool = False
    ttft_s: float | None = None
    tpot_s: float | None = None
    refill_s: float = 0.0


@dataclass(frozen=True)
class Supply:
    """Replicas by what they do now, without those that are being replaced.

    Replicas of older generations count while the newest one fails to start.

    Attributes:
        pending: released, but not started by Slurm yet.
        starting: allotted a slice, but not ready yet.
        ready: get requests.
        draining: finish the requests that they have; may be taken back.
        borrowed: how many of all these run on borrowed quota.
        booting: how many of ``starting`` wait for their node.
    """

    pending: int = 0
    starting: int = 0
    ready: int = 0
    draining: int = 0
    borrowed: int = 0
    booting: int = 0

    @property
    def coming(self) -> int:
        """Number of replicas that serve or will."""
        return self.pending + self.starting + self.ready


@dataclass(frozen=True)
class ReplicaStart:
    """A start that has come to its end: a replica has become ready.

    Attributes:
        queue_s: seconds from release to the allotment of a slice.
        load_s: seconds from the allotment, or the boot, until its model answered.
        start_class: where its weights were.
        boot_s: seconds from the allotment until its node had booted; 0 if that was awake.
    """

    queue_s: float
    load_s: float
    start_class: StartClass = "remote"
    boot_s: float = 0.0


@dataclass(frozen=True)
class ServiceLook:
    """One look at a service.

    Attributes:
        at_s: Unix seconds.
        starts: starts that have ended since the last look.
        room: replicas beyond ``supply.coming`` that quota and loans would let run now; None if that
            is not known.
        is_known: whether the gateway could be seen; if not, ``load`` says nothing.
        tokens: what replicas have counted since the launcher's start; None if not known.
        servers: what replicas' servers say that they work on; None if not known.
        serving: replicas of all generations that get requests; 0 if others finish requests, too.
        wakes_node: whether the next replica has to wait for a node's boot.
    """

    at_s: float
    load: Load
    supply: Supply
    starts: tuple[ReplicaStart, ...] = ()
    room: int | None = None
    is_known: bool = True
    serving: int = 0
    tokens: TokenCounts | None = None
    servers: ServersLoad | None = None
    wakes_node: bool = False


@dataclass(frozen=True)
class ScalingDecision:
    """How many replicas are wanted, and why, in one line for users.

    Attributes:
        ready_in_s: estimated seconds until a request that waits now is served; None: no estimate.
        in_time: how many requests may wait so that the last of them still begins within its
            objective; None: no objective is stated, or no replica is ready.
        kept_warm: what was kept since the last look only for requests that may come.
    """

    wanted: int
    reason: str
    ready_in_s: float | None = None
    in_time: int | None = None
    kept_warm: KeptWarm = field(default_factory=KeptWarm)
