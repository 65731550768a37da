"""Makes snapshots, which are what admission knows, for tests."""

from slicewise.cluster.settings.file import PrioritySettings
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.snapshot import AdmissionRules, Snapshot


def snapshot(**quotas: int) -> Snapshot:
    """A snapshot of a cluster without nodes, with these quotas in millislices."""
    return Snapshot(
        partitions=frozenset({"gpu"}),
        quotas=quotas,
        borrowing_limits={},
        highest_limits=quotas,
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
        rules=AdmissionRules(),
    )
