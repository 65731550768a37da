"""What a lender takes back and a borrower still holds: loans on their way home.

What a loan loses is the lender's again, but its borrower's jobs may run on it. Were the lender's
ceiling raised at once, Slurm would preempt them at once. So that part is recalled first: it is in
nobody's ceiling, until the borrower gives it up, or free instances do for what the lender wants,
or the grace is over.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from cluster.units import Millislices
from slurm_plugin.decide.policy import Loan, Policy, Recall
from slurm_plugin.decide.tenants import own_part


def recalled(
    policy: Policy,
    before: Iterable[Loan],
    after: Iterable[Loan],
    recalls: Iterable[Recall],
    held: Mapping[str, int],
    *,
    ready: Mapping[str, int],
    now_s: int,
    grace_s: int,
) -> tuple[Recall, ...]:
    """The recalls there should be once the loans ``before`` have become those ``after``.

    What a loan loses now joins the recalls that there were. Of all of them, the oldest first,
    those stay that

    - are within their grace, by whatever the clock says: one of the future was made before it was
      set back, and is as one of now;
    - their borrower's own account holds (``held``, millislices) beyond its own part, less what it
      lends, with what it borrows;
    - their lender has of its own part beyond its loans, what its own jobs hold and those of them
      that find free what they want (``ready``, millislices).

    A lender that wants no more lends anew, and its recalls end by the second rule.
    """
    own, after = own_part(policy), tuple(after)
    lent, _ = _sums(after)
    over = Counter(over_entitlement(policy, after, held))
    missing = Counter(own) - lent - Counter(held) - Counter(ready)
    found: Counter[tuple[int, str, str]] = Counter()
    for one in sorted((*_known(recalls, now_s), *_cut(before, after, now_s)), key=_age):
        if now_s >= one.called_s + grace_s:
            continue
        amount = min(one.amount_millislices, over[one.borrower], missing[one.lender])
        over[one.borrower] -= amount
        missing[one.lender] -= amount
        found[_age(one)] += amount
    return tuple(
        sorted(
            Recall(lender, borrower, Millislices(amount), called_s)
            for (called_s, lender, borrower), amount in found.items()
            if amount
        )
    )


def for_who_waits(
    recalls: Iterable[Recall], waiting_since_s: Mapping[str, int], now_s: float
) -> tuple[Recall, ...]:
    """As called no earlier than the lender's oldest waiting job came, by Unix seconds.

    What was called for jobs that have started is back: what is left of it is for later ones, and
    the grace counts from them. A job still waits no longer than that. One that came in the future
    came before the clock was set back, nobody knows when.
    """
    since_s = {name: at_s for name, at_s in waiting_since_s.items() if at_s <= now_s}
    return tuple(
        replace(one, called_s=max(one.called_s, since_s.get(one.lender, one.called_s)))
        for one in recalls
    )


def meanwhile(
    policy: Policy, wanted: Mapping[str, int], loans: Iterable[Loan], recalls: Iterable[Recall]
) -> Mapping[str, int]:
    """What each wants as long as something is taken back, of what it ``wanted`` altogether.

    Who takes back borrows nothing more meanwhile: its own jobs would start on it, and preempt.
    """
    own, loans = own_part(policy), tuple(loans)
    _, borrowed = _sums(loans)
    back = short_lenders(policy, loans, wanted) | {one.lender for one in recalls}
    return {
        name: min(amount, own.get(name, 0) + borrowed[name]) if name in back else amount
        for name, amount in wanted.items()
    }


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


def over_entitlement(
    policy: Policy, loans: Iterable[Loan], held: Mapping[str, int]
) -> Mapping[str, int]:
    """Millislices that each tenant's own jobs hold beyond what is theirs and lent to them."""
    own = own_part(policy)
    lent, borrowed = _sums(loans)
    over = {name: held.get(name, 0) - own[name] + lent[name] - borrowed[name] for name in policy}
    return {name: amount for name, amount in over.items() if amount > 0}


def _sums(loans: Iterable[Loan]) -> tuple[Counter[str], Counter[str]]:
    """Millislices that each lends, and that each borrows."""
    lent: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    for loan in loans:
        lent[loan.lender] += loan.amount_millislices
        borrowed[loan.borrower] += loan.amount_millislices
    return lent, borrowed


def _known(recalls: Iterable[Recall], now_s: int) -> Iterator[Recall]:
    for one in recalls:
        called_s = min(one.called_s, now_s)
        yield Recall(one.lender, one.borrower, one.amount_millislices, called_s)


def _cut(before: Iterable[Loan], after: Iterable[Loan], now_s: int) -> Iterator[Recall]:
    now = {(loan.lender, loan.borrower): loan.amount_millislices for loan in after}
    for loan in before:
        lost = loan.amount_millislices - now.get((loan.lender, loan.borrower), 0)
        if lost > 0:
            yield Recall(loan.lender, loan.borrower, Millislices(lost), now_s)


def _age(recall: Recall) -> tuple[int, str, str]:
    return recall.called_s, recall.lender, recall.borrower
