"""When a lender needs its own again."""

from collections.abc import Iterable, Mapping

from slurm_plugin.decide.policy import Loan, Policy
from slurm_plugin.decide.tenants import own_part


def short_lenders(
    policy: Policy, loans: Iterable[Loan], demand: Mapping[str, int]
) -> frozenset[str]:
    """Those whose own jobs hold or wait for more than what their loans leave them."""
    lent: dict[str, int] = {}
    for loan in loans:
        lent[loan.lender] = lent.get(loan.lender, 0) + loan.amount_millislices
    own = own_part(policy) if lent else {}
    return frozenset(
        lender
        for lender, amount in lent.items()
        if own.get(lender, 0) - amount < demand.get(lender, 0)
    )
