"""What admission knows, made up."""

from cluster.settings import PrioritySettings
from slurm_plugin.decide.snapshot import Rules, Snapshot
from slurm_plugin.formula import formula_of


def snapshot(**quotas: int) -> Snapshot:
    """A cluster without nodes, with such quotas."""
    return Snapshot(
        partitions=frozenset({"gpu"}),
        quotas=quotas,
        borrowing_limits={},
        ceilings=quotas,
        type_limits={},
        budgets={},
        used={},
        guaranteed_used={},
        shares={},
        gpu_types={},
        node_costs=frozenset(),
        services={},
        accounts_by_uid={},
        formula=formula_of(PrioritySettings()),
        rules=Rules(),
    )
