"""Shows one reader the tree of tenants, and loans as flows between those that the reader sees."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from slicewise.cluster.language.meters import TOKENS
from slicewise.slurm_plugin.rules.accounting.overview import TenantInTree
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader
from slicewise.slurm_plugin.rules.overview.slices import held_by_tenant, tenants_now
from slicewise.slurm_plugin.rules.overview.types_in_use import types_in_use
from slicewise.slurm_plugin.rules.quota.loan_lines import LoanLine
from slicewise.slurm_plugin.rules.quota.tenants import ancestors, budget_payers

HIDDEN = ""
"""Stands for all tenants together that the reader may not read."""


def tenant_tree(facts: OverviewFacts, reader: Reader) -> tuple[TenantInTree, ...]:
    """Return the tenants that the reader may read, each followed by those below it."""
    now, policy, held = tenants_now(facts, reader), facts.policy, held_by_tenant(facts)
    types = types_in_use(
        policy, facts.jobs, facts.nodes, facts.partitions, costs=facts.costs, models=facts.models
    )
    parents = {
        tenant_now.name: next(filter(reader.may_read, ancestors(policy, tenant_now.name)), "")
        for tenant_now in now
    }
    children = defaultdict[str, list[str]](list)
    for tenant in now:
        children[parents[tenant.name]].append(tenant.name)
    token_payers = budget_payers(policy, TOKENS.name)
    return tuple(
        TenantInTree(
            **dict(tenant_now),
            parent=parents[tenant_now.name],
            children=tuple(children[tenant_now.name]),
            quota=policy[tenant_now.name].quota,
            own_in_use_millislices=held[tenant_now.name],
            types=types.get(tenant_now.name, ()),
            token_payer=token_payers.get(tenant_now.name, ""),
        )
        for tenant_now in now
    )


def loan_flows(
    lines: Iterable[LoanLine], reader: Reader, page: Collection[str]
) -> tuple[LoanLine, ...]:
    """Return the loans that belong to a page of tenants, by lender and borrower.

    A loan belongs to its borrower, or to its lender if the reader may not read the borrower. Of
    loans with tenants that the reader may not read, those of one kind are one sum.
    """
    sums = defaultdict[tuple[str, str, bool], list[LoanLine]](list)
    for line in lines:
        lender, borrower = (
            name if reader.may_read(name) else HIDDEN for name in (line.lender, line.borrower)
        )
        if (borrower or lender) in page:
            sums[lender, borrower, line.is_recalled].append(line)
    return tuple(_flow(*ends, lines) for ends, lines in sorted(sums.items()))


def _flow(lender: str, borrower: str, is_recalled: bool, lines: Sequence[LoanLine]) -> LoanLine:
    ends_s = [loan_line.until_s for loan_line in lines if loan_line.until_s is not None]
    first, last = min(ends_s, default=None), max(ends_s, default=None)
    return LoanLine(
        lender=lender,
        borrower=borrower,
        amount_millislices=sum(loan_line.amount_millislices for loan_line in lines),
        is_recalled=is_recalled,
        since_s=min(loan_line.since_s for loan_line in lines),
        until_s=last if is_recalled else first if len(ends_s) == len(lines) else None,
    )
