"""What admission knows: of ledger and cluster, and of what it has admitted since."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.jobs import JobClass
from cluster.service_places import Places
from cluster.units import Millislices, slices_text
from slurm_plugin.decide.priority import Formula


@dataclass(frozen=True)
class GpuType:
    """A GRES type that nodes have.

    Attributes:
        memory_mib: of one instance; None where no source gives it.
        total, free: instances in the cluster.
        waiting: instances for which jobs wait until others end.
        partitions: in which nodes have it.
        beside: other types that a node with this one has.
    """

    name: str
    cost_millislices: Millislices
    memory_mib: int | None
    total: int
    free: int
    partitions: frozenset[str]
    beside: frozenset[str] = frozenset()
    waiting: int = 0


@dataclass(frozen=True)
class Rules:
    """What a site has chosen.

    Attributes:
        untyped: what becomes of GPUs without a type: ``refuse``, ``auto``, or a GRES type.
        high_class_for: tenants whose jobs may be of class high.
        class_of_qos: of the jobs whose users name that QOS of the site.
        places: services that the gateway carries; None: as many as come.
    """

    untyped: str = "refuse"
    high_class_for: frozenset[str] = frozenset()
    class_of_qos: Mapping[str, JobClass] = field(default_factory=dict, hash=False)
    places: Places | None = None


@dataclass(frozen=True)
class Living:
    """A service that lives: one of its arrays, who submitted it, and how many arrays it has."""

    array_job_id: int
    uid: int
    arrays: int = 1


@dataclass(frozen=True)
class Snapshot:
    """What admission knows of ledger and cluster.

    Attributes:
        partitions: the managed ones.
        quotas: each tenant's own part of the nominal, in millislices: what its own QOS allows.
        borrowing_limits: how much more it may borrow, at any hour of the calendar.
        ceilings: the most that its jobs could ever hold, borrowed quota with it.
        type_limits: instances of a type that it may have at most, where there is a limit.
        budgets: millislice-seconds that whoever pays for it gets in a period at most.
        used: millislices that a tenant's jobs hold now.
        guaranteed_used: what its jobs in its own QOS hold, or wait for.
        shares: of the tenants that used something lately, see ``priority.share``; 1 for others.
        gpu_types: by name.
        node_costs: what all GPUs of a managed node cost, each amount once; 0 if it has none.
        services: by tenant and name.
        accounts_by_uid: accounts that a user may submit to, each with the QOS of
            ``rules.class_of_qos`` that he may name there; who is not in it is not known.
        newest: tokens of jobs that were submitted just now: they are counted in it.
        highest_quotas: the most that ``quotas`` are at any hour of the calendar, where it is more.
        is_uninstalled: whether Slicewise was taken out of Slurm: no QOS of its own is there.
    """

    partitions: frozenset[str]
    quotas: Mapping[str, int] = field(hash=False)
    borrowing_limits: Mapping[str, int] = field(hash=False)
    ceilings: Mapping[str, int] = field(hash=False)
    type_limits: Mapping[str, Mapping[str, int]] = field(hash=False)
    budgets: Mapping[str, int] = field(hash=False)
    used: Mapping[str, int] = field(hash=False)
    guaranteed_used: Mapping[str, int] = field(hash=False)
    shares: Mapping[str, float] = field(hash=False)
    gpu_types: Mapping[str, GpuType] = field(hash=False)
    node_costs: frozenset[int]
    services: Mapping[tuple[str, str], Living] = field(hash=False)
    accounts_by_uid: Mapping[int, Mapping[str, frozenset[str]]] = field(hash=False)
    formula: Formula
    rules: Rules
    newest: frozenset[str] = frozenset()
    highest_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_uninstalled: bool = False


@dataclass(frozen=True)
class Recent:
    """What was admitted since the snapshot's look at Slurm.

    Attributes:
        guaranteed: millislices by tenant, in its own QOS; ``used`` in any.
        services: how many arrays, by tenant, name and uid.
    """

    used: Mapping[str, int] = field(default_factory=dict, hash=False)
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)
    services: Mapping[tuple[str, str, int], int] = field(default_factory=dict, hash=False)


def types_text(types: Iterable[GpuType]) -> str:
    """For a hint: ``types (slices each): 1g.10gb (1), 3g.40gb (3.5)``."""
    ordered = sorted(types, key=lambda one: (one.cost_millislices, one.name))
    costs = (f"{one.name} ({slices_text(one.cost_millislices)})" for one in ordered)
    return f"types (slices each): {', '.join(costs)}"
