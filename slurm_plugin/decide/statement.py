"""What a tenant's runs cost: rows and totals of a statement."""

from collections.abc import Iterable

from cluster.units import MillisliceSeconds
from slurm_plugin.decide.model import Reservation, StatementRow, TenantTotal


def open_row(held: Reservation, now_s: int) -> StatementRow:
    """A run that is not settled: what it has used up to ``now_s``, and what is left reserved."""
    unposted = min(held.reserved_millislice_s, unposted_millislice_s(held, now_s))
    return StatementRow(
        held,
        end_s=None,
        used_millislice_s=MillisliceSeconds(held.posted_millislice_s + unposted),
        waived_millislice_s=MillisliceSeconds(0),
        reserved_millislice_s=MillisliceSeconds(held.reserved_millislice_s - unposted),
    )


def unposted_millislice_s(held: Reservation, at_s: int) -> int:
    """What a run has used up to ``at_s`` beyond what is posted; 0 if more is posted."""
    used = (at_s - held.key.start_s) * held.cost_millislices
    return max(0, used - held.posted_millislice_s)


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
        waived_millislice_s=MillisliceSeconds(sum(row.waived_millislice_s for row in rows)),
        reserved_millislice_s=MillisliceSeconds(sum(row.reserved_millislice_s for row in rows)),
    )
