"""The words of autoscaling: what a service asks for, what was seen of it, what was decided."""

from dataclasses import dataclass

from launcher.decide.gateway import Load


@dataclass(frozen=True)
class Scaling:
    """What a service's owner asks of the autoscaler.

    Attributes:
        concurrency: requests that one replica works on at once.
        max_queue_s: how long a request may wait for a place in a replica, where that is the
            objective.
        p95_s: in which 95 % of the requests shall be answered, waiting included, where that is it.
        keep_alive_s: idle seconds before a replica that is not needed is given back, at least;
            None: what keeping costs is weighed against a start.
        aim: share of the requests that shall meet the objective, below 1.
    """

    min_replicas: int
    max_replicas: int
    concurrency: int
    max_queue_s: float | None = None
    p95_s: float | None = None
    keep_alive_s: float | None = None
    aim: float = 0.99


@dataclass(frozen=True)
class Supply:
    """Replicas of the newest generation by what they do now; old ones are replaced besides.

    Attributes:
        pending: released, Slurm has not started them.
        starting: allotted a slice, not ready.
        ready: get requests.
        draining: finish what they have; may be taken back.
        borrowed: of all these, how many run on what others have lent.
    """

    pending: int = 0
    starting: int = 0
    ready: int = 0
    draining: int = 0
    borrowed: int = 0

    @property
    def coming(self) -> int:
        """Replicas that serve or will."""
        return self.pending + self.starting + self.ready


@dataclass(frozen=True)
class Start:
    """A start that has come to its end: a replica has become ready.

    Attributes:
        queue_s: released until allotted a slice.
        load_s: allotted until its model answered.
    """

    queue_s: float
    load_s: float


@dataclass(frozen=True)
class Look:
    """One look at a service.

    Attributes:
        at_s: Unix seconds.
        starts: those that have become ready since the last look.
        room: replicas beyond ``supply.coming`` that quota and loans would let run now; None is
            unknown.
        is_known: whether the gateway could be seen; else ``load`` says nothing.
    """

    at_s: float
    load: Load
    supply: Supply
    starts: tuple[Start, ...] = ()
    room: int | None = None
    is_known: bool = True


@dataclass(frozen=True)
class Decision:
    """How many replicas are wanted, and why, in one line for people.

    Attributes:
        ready_in_s: estimate of when a request that waits now is served; None: no estimate.
        in_time: how many may wait so that the last of them still begins within its objective;
            None: no objective is stated, or no replica is ready.
    """

    wanted: int
    reason: str
    ready_in_s: float | None = None
    in_time: int | None = None
