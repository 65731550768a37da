"""Types for what admission knows: ledger and cluster, and what it has admitted since."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.job_class import JobClass
from slicewise.cluster.language.service_places import ServicePlaces
from slicewise.cluster.language.units import Millislices, slices_text
from slicewise.slurm_plugin.rules.admission.priority import Formula


@dataclass(frozen=True)
class GpuType:
    """A GRES type that nodes have.

    Attributes:
        memory_mib: memory of one instance; None where no source gives it.
        total, free: instances in the cluster.
        partitions: partitions with nodes that have it.
        beside: other types that nodes with this type have.
        waiting: instances for which jobs wait until others end.
        on_nodes: instances on each node that has it; () if that is not known.
    """

    name: str
    cost_millislices: Millislices
    memory_mib: int | None
    total: int
    free: int
    partitions: frozenset[str]
    beside: frozenset[str] = frozenset()
    waiting: int = 0
    on_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class AdmissionRules:
    """A site's choices.

    Attributes:
        untyped: how requests for GPUs without a type are treated: ``refuse``, ``auto``, or the GRES
            type that they get.
        high_class_for: tenants with jobs that may be of class high.
        class_of_qos: class of jobs whose users name that QOS of the site.
        places: number of services that the gateway carries; None means no limit.
    """

    untyped: str = "refuse"
    high_class_for: frozenset[str] = frozenset()
    class_of_qos: Mapping[str, JobClass] = field(default_factory=dict, hash=False)
    places: ServicePlaces | None = None


@dataclass(frozen=True)
class Living:
    """A living service: one of its arrays, the user who submitted it, the number of arrays."""

    array_job_id: int
    uid: int
    arrays: int = 1


@dataclass(frozen=True)
class Snapshot:
    """What admission knows of ledger and cluster.

    Attributes:
        partitions: the managed partitions.
        quotas: each tenant's guaranteed part of the nominal, in millislices: what its own QOS
            allows.
        borrowing_limits: most millislices that a tenant may borrow beyond its guaranteed quota at
            any hour of the calendar.
        highest_limits: most millislices that a tenant's jobs could ever hold, including borrowed
            quota.
        type_limits: most instances of a type that a tenant may have, where there is a limit.
        budgets: most millislice-seconds that a tenant's payer gets in a period.
        used: millislices that a tenant's jobs hold now.
        guaranteed_used: millislices that its jobs in its own QOS hold or wait for.
        shares: ``priority.share`` of tenants that used something lately; 1 for others.
        gpu_types: GPU types by name.
        node_costs: cost of all GPUs of a managed node, each amount once; 0 if it has none.
        shared: cost of one part of shared GPUs, by name (shard, mps), of those that managed nodes
            have and that have a price.
        services: living services by tenant and name.
        accounts_by_uid: accounts that a user may submit to, each with the QOS of
            ``rules.class_of_qos`` that the user may name there. Absent users are unknown.
        newest: tokens of jobs that were submitted just now, and that the snapshot counts.
        highest_quotas: the most that ``quotas`` are at any hour of the calendar, where it is more.
        guaranteed_types: most instances by type that the guaranteed part covers, of named types.
        guaranteed_instances: instances by type that its jobs in its own QOS hold or wait for.
        is_uninstalled: whether Slicewise was removed from Slurm: none of its QOS exists there.
    """

    partitions: frozenset[str]
    quotas: Mapping[str, int] = field(hash=False)
    borrowing_limits: Mapping[str, int] = field(hash=False)
    highest_limits: Mapping[str, int] = field(hash=False)
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
    rules: AdmissionRules
    newest: frozenset[str] = frozenset()
    highest_quotas: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_uninstalled: bool = False
    shared: Mapping[str, Millislices] = field(default_factory=dict, hash=False)
    guaranteed_types: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    guaranteed_instances: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Recent:
    """What was admitted since the snapshot's look at Slurm.

    Attributes:
        used: millislices by tenant, in any QOS.
        guaranteed: millislices by tenant, in its own QOS.
        guaranteed_instances: instances by tenant and type, in its own QOS.
        services: number of arrays by tenant, name and uid.
    """

    used: Mapping[str, int] = field(default_factory=dict, hash=False)
    guaranteed: Mapping[str, int] = field(default_factory=dict, hash=False)
    services: Mapping[tuple[str, str, int], int] = field(default_factory=dict, hash=False)
    guaranteed_instances: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)


def types_text(types: Iterable[GpuType]) -> str:
    """Text of a hint: ``types (slices each): 1g.10gb (1), 3g.40gb (3.5)``."""
    ordered = sorted(types, key=lambda gpu_type: (gpu_type.cost_millislices, gpu_type.name))
    costs = (f"{gpu_type.name} ({slices_text(gpu_type.cost_millislices)})" for gpu_type in ordered)
    return f"types (slices each): {', '.join(costs)}"
