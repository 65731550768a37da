"""Words of pools: services of one tenant whose replicas serve each other's models.

A pool has no replicas of its own. Each replica is a slot of one member's job array, always has that
member's model, and loads models of other members as they are asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from slicewise.cluster.rpc.messages import SlotPlace
from slicewise.launcher.rules.engines.statistics import Answered
from slicewise.launcher.rules.pools.server_memory import ServerMemory

PATIENCE_S = 10.0
"""Seconds of waiting after which a model's work counts twice, then three times, and so on."""


@dataclass(frozen=True)
class ReplicaModels:
    """What a replica has said of the models of its pool.

    Attributes:
        ready: models that answer inferences.
        refused: why it has not loaded a model, by model.
        loads: models that it has loaded since it began, its own included: servers leak some memory
            with each.
        load_s: seconds that its last load of a model took, by model.
        from_node: those of these models whose last load has read a copy on the node.
        answered: requests that each model has answered and failed, where its server does not notice
            that a model's process has ended.
        memory: what its server takes.
    """

    ready: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    loads: int = 0
    load_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    answered: Mapping[str, Answered] = field(default_factory=dict, compare=False)
    memory: ServerMemory = field(default=ServerMemory(), compare=False)
    from_node: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PoolModel:
    """A model of a pool, as its placement sees it.

    Attributes:
        work: how many replicas its requests keep busy, in progress and waiting, on average.
        is_asked: whether it has requests now.
        waited_s: seconds for which all its requests have waited.
        memory_mib: memory that it takes in a replica; 0 is not known and counts as none.
        load_s: seconds that loading it takes.
        requests_per_s: how often it is asked, lately.
        is_kept: whether its service wants it ready also while nobody asks.
    """

    model: str
    work: float = 0.0
    memory_mib: int = 0
    load_s: float = 1.0
    requests_per_s: float = 0.0
    is_kept: bool = False
    is_asked: bool = False
    waited_s: float = 0.0

    @property
    def urgency(self) -> float:
        """Its work, which counts the more the longer it waits: no model waits for ever."""
        return self.work * (1 + self.waited_s / PATIENCE_S)

    @property
    def is_needed(self) -> bool:
        """Whether a replica is to have it."""
        return self.is_asked or self.is_kept


@dataclass(frozen=True)
class PoolReplica:
    """A replica of a pool that is ready.

    Attributes:
        place: its array job id and slot index.
        own: the model of the service whose slot it is, which it always has.
        models: those that it has, or is to have, its own included.
        refused: those that it could not load.
        memory_mib: memory for models; None is not known and takes all.
        coming: those of ``models`` that it has not loaded yet.
    """

    place: SlotPlace
    own: str
    models: frozenset[str]
    refused: frozenset[str] = frozenset()
    memory_mib: int | None = None
    coming: frozenset[str] = frozenset()


Placement = Mapping[SlotPlace, frozenset[str]]
"""The models that each replica of a pool is to have."""


@dataclass(frozen=True)
class Told:
    """What a replica of a pool was told to have.

    Attributes:
        start_s: when its run began, in Unix seconds: another run knows nothing of it.
        models: models of other services, and for which job array of its service each was told:
            a newer generation has other files.
        refused_s: when it has refused a model last, in Unix seconds.
        refused: why it has refused models of the pool that it has not loaded since.
        silent_s: since when it has not said what it has, in Unix seconds; None: it has.
        loads: models that it has loaded since it began.
        first: memory that its server took when it first said so, or later in its first hour, the
            most beyond its models of other services.
        is_worn: whether it is to be replaced, and stays so.
    """

    start_s: int
    models: Mapping[str, int] = field(default_factory=dict, hash=False)
    refused_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    refused: Annotated[Mapping[str, str], Field(exclude=True)] = field(
        default_factory=dict, hash=False
    )
    silent_s: float | None = None
    loads: int = 0
    first: ServerMemory = field(default=ServerMemory())
    is_worn: bool = False


@dataclass(frozen=True)
class RefusedModel:
    """A replica that could not load a service's model, and has not since.

    Attributes:
        place: its array job id and slot index.
        service: the service whose slot it is, as ``tenant/service``.
        why: what its server said.
    """

    place: SlotPlace
    service: str
    why: str
