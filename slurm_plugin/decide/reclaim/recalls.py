"""What a lender takes back and a borrower still holds: loans on their way home.

What a loan loses is the lender's again, but its borrower's jobs may run on it. Were the lender's
ceiling raised at once, Slurm would preempt them at once. So that part is recalled first: it is in
nobody's ceiling, until the borrower gives it up, or free instances do for what the lender wants,
or the grace is over.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cluster.units import Millislices
from slurm_plugin.decide.demand import Waiting
from slurm_plugin.decide.lending import called_back
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
    waiting: Mapping[str, Iterable[Waiting]],
    now_s: int,
    grace_s: int,
) -> tuple[Recall, ...]:
    """The recalls there should be once the loans ``before`` have become those ``after``.

    What a loan loses now joins the recalls that there were. Each part is as old as the first that
    was called for the same job, of those that are ``waiting`` for their lender's own part, the
    oldest first: Slurm starts nothing on a part. None is older than its job: what was called for
    one that has started is for the next. Of all parts, the oldest first, those stay that

    - are within their grace, by whatever the clock says: one of the future was made before it was
      set back, and is as one of now;
    - their borrower's own account holds (``held``, millislices) beyond its own part, less what it
      lends, with what it borrows;
    - their lender has of its own part beyond its loans, what its own jobs hold and those of them
      that may start (``ready``, millislices): they find free what they want, or ``have_room``.

    A lender that wants no more lends anew, and its recalls end by the second rule.
    """
    own, after = own_part(policy), tuple(after)
    lent, _ = _sums(after)
    over = Counter(over_entitlement(policy, after, held))
    room = Counter(own) - lent - Counter(held)
    missing = room - Counter(ready)
    parts: list[Recall] = []
    for one in sorted((*_known(recalls, now_s), *called_back(before, after, now_s)), key=_age):
        amount = min(one.amount_millislices, over[one.borrower], missing[one.lender])
        over[one.borrower] -= amount
        missing[one.lender] -= amount
        room[one.lender] -= amount
        if amount:
            parts.append(replace(one, amount_millislices=Millislices(amount)))
    found: Counter[tuple[int, str, str]] = Counter()
    for one in _for_who_waits(parts, waiting, room, now_s):
        if now_s < one.called_s + grace_s:
            found[_age(one)] += one.amount_millislices
    return tuple(
        sorted(
            Recall(lender, borrower, Millislices(amount), called_s)
            for (called_s, lender, borrower), amount in found.items()
        )
    )


def have_room(
    policy: Policy,
    loans: Iterable[Loan],
    recalls: Iterable[Recall],
    held: Mapping[str, int],
    waiting: Mapping[str, Iterable[Waiting]],
    *,
    now_s: int,
    grace_s: int,
) -> Mapping[str, int]:
    """Millislices for which each lender's waiting jobs have room in its ceiling already.

    Slurm may be about to start them. That room stays, whatever the lender's loans lose now: what
    borrowers share anew among themselves is not taken from it.
    """
    own = own_part(policy)
    lent, _ = _sums(loans)
    back: Counter[str] = Counter()
    for one in _known(recalls, now_s):
        if now_s < one.called_s + grace_s:
            back[one.lender] += one.amount_millislices
    room = Counter(own) - lent - Counter(held) - back
    wanted = Counter(
        {name: sum(job.total_millislices for job in waiting[name]) for name in waiting}
    )
    return room & wanted


def meanwhile(
    policy: Policy,
    wanted: Mapping[str, int],
    needs: Mapping[str, int],
    loans: Iterable[Loan],
    recalls: Iterable[Recall],
    *,
    guaranteed: Collection[str],
) -> Mapping[str, int]:
    """What each wants as long as something is taken back, of what it ``wanted`` altogether;
    ``needs`` is what it does not lend.

    Who takes back for ``guaranteed`` jobs borrows nothing more meanwhile: they would start on it,
    and preempt. Jobs that wait for a loan preempt nobody.
    """
    own, loans = own_part(policy), tuple(loans)
    _, borrowed = _sums(loans)
    back = short_lenders(policy, loans, needs) | {one.lender for one in recalls}
    back &= set(guaranteed)
    return {
        name: min(amount, own.get(name, 0) + borrowed[name]) if name in back else amount
        for name, amount in wanted.items()
    }


def short_lenders(
    policy: Policy, loans: Iterable[Loan], needs: Mapping[str, int]
) -> frozenset[str]:
    """Those whose own jobs need more than what their loans leave them."""
    lent, _ = _sums(loans)
    own = own_part(policy) if lent else {}
    return frozenset(
        lender
        for lender, amount in lent.items()
        if own.get(lender, 0) - amount < needs.get(lender, 0)
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


def _for_who_waits(
    parts: Iterable[Recall],
    waiting: Mapping[str, Iterable[Waiting]],
    room: Mapping[str, int],
    now_s: int,
) -> Iterator[Recall]:
    """Jobs of the future came before the clock was set back, nobody knows when: left out."""
    of: dict[str, list[Recall]] = defaultdict(list)
    for part in parts:
        of[part.lender].append(part)
    for lender, own in of.items():
        jobs = sorted(job for job in waiting.get(lender, ()) if job.since_s <= now_s)
        yield from _matched(own, jobs, room[lender])


def _matched(parts: Iterable[Recall], jobs: Sequence[Waiting], room: int) -> Iterator[Recall]:
    """The oldest part for the job that has waited longest and needs more than the ``room`` that its
    lender's ceiling has; where there are more than jobs want, the oldest of all stay as they were.
    """
    left = deque(parts)
    wanted = sum(job.total_millislices for job in jobs)
    first = min(room, wanted - sum(part.amount_millislices for part in left))
    yield from _taken(left, -first)
    covered = max(0, first)
    for job in (one for one in jobs for _ in range(one.tasks)):
        missing = max(0, job.cost_millislices - covered)
        covered = max(0, covered - job.cost_millislices)
        # Who has room may lose it to another job: then no part gets younger than who waits longest.
        since_s = jobs[0].since_s if first > 0 else job.since_s
        called_s = max(left[0].called_s, since_s) if left else 0
        for part in _taken(left, missing):
            yield replace(part, called_s=called_s)
        if not left:
            return


def _taken(left: deque[Recall], amount: int) -> Iterator[Recall]:
    """So many millislices from the front."""
    while left and amount > 0:
        part = left.popleft()
        taken = min(amount, part.amount_millislices)
        amount -= taken
        yield replace(part, amount_millislices=Millislices(taken))
        if rest := part.amount_millislices - taken:
            left.appendleft(replace(part, amount_millislices=Millislices(rest)))


def _known(recalls: Iterable[Recall], now_s: int) -> Iterator[Recall]:
    for one in recalls:
        called_s = min(one.called_s, now_s)
        yield Recall(one.lender, one.borrower, one.amount_millislices, called_s)


def _age(recall: Recall) -> tuple[int, str, str]:
    return recall.called_s, recall.lender, recall.borrower
