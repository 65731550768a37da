"""What a tenant's runs cost: rows and totals of a statement."""

from collections.abc import Iterable

from cluster.units import MillisliceSeconds
from slurm_plugin.decide.model import Run, StatementRow, TenantTotal


def open_row(run: Run, reserved: MillisliceSeconds, now_s: int) -> StatementRow:
    """A run that is not settled: what it has used up to ``now_s``, and what is left reserved."""
    used = min(reserved, max(0, now_s - run.key.start_s) * run.cost_millislices)
    return StatementRow(run, None, MillisliceSeconds(used), MillisliceSeconds(reserved - used))


def totals(rows: Iterable[StatementRow]) -> tuple[TenantTotal, ...]:
    """One per tenant, by name."""
    by_tenant: dict[str, list[StatementRow]] = {}
    for row in rows:
        by_tenant.setdefault(row.run.tenant, []).append(row)
    return tuple(_total(tenant, by_tenant[tenant]) for tenant in sorted(by_tenant))


def _total(tenant: str, rows: list[StatementRow]) -> TenantTotal:
    return TenantTotal(
        tenant,
        runs=len(rows),
        running=sum(row.end_s is None for row in rows),
        used_millislice_s=MillisliceSeconds(sum(row.used_millislice_s for row in rows)),
        reserved_millislice_s=MillisliceSeconds(sum(row.reserved_millislice_s for row in rows)),
    )
