"""Says of each loan how far it has come: what its lender waits for, and what runs on it."""

from collections import Counter
from collections.abc import Iterator

from slicewise.cluster.rpc.overview_messages import LoanNow
from slicewise.slurm_plugin.rules.accounting.overview import with_those_below
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader
from slicewise.slurm_plugin.rules.overview.slices import waiting_by_tenant

MOST_LOANS = 200
"""Loans that are listed one by one."""
_Ends = tuple[str, str, int]
"""Lender, borrower, and when it was recalled; 0 if it is not."""


def loans_now(facts: OverviewFacts, reader: Reader) -> tuple[LoanNow, ...]:
    """Return the loans of tenants that the reader may read, those first that come back.

    The other end is "" where the reader may not read it; all loans with such ends are one.
    """
    sums: Counter[_Ends] = Counter()
    for lender, borrower, recalled_s, amount in _all(facts):
        ends = [name if reader.may_read(name) else "" for name in (lender, borrower)]
        if any(ends):
            sums[ends[0], ends[1], recalled_s] += amount
    waits = with_those_below(facts.policy, waiting_by_tenant(facts)[0])
    replicas = _replicas_on_loan(facts)
    largest = sorted(sums.items(), key=lambda pair: (not pair[0][2], pair[0]))
    return tuple(
        LoanNow(
            lender=lender,
            borrower=borrower,
            amount_millislices=amount,
            back_s=recalled_s + facts.grace_s if recalled_s else None,
            lender_waits_millislices=waits.get(lender, 0),
            released=replicas[borrower, "released"],
            starting=replicas[borrower, "starting"],
            running=replicas[borrower, "running"],
            ending=replicas[borrower, "ending"],
        )
        for (lender, borrower, recalled_s), amount in largest[:MOST_LOANS]
    )


def _all(facts: OverviewFacts) -> Iterator[tuple[str, str, int, int]]:
    for loan in facts.loans:
        yield loan.lender, loan.borrower, 0, loan.amount_millislices
    for recall in facts.recalls:
        yield recall.lender, recall.borrower, recall.called_s, recall.amount_millislices


def _replicas_on_loan(facts: OverviewFacts) -> Counter[tuple[str, str]]:
    return Counter(
        (service.tenant, slot.state)
        for service in facts.services
        for slot in service.slots
        if slot.is_borrowed
    )
