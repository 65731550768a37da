"""Tracks recalls: quota that a lender takes back while a borrower still holds it.

What a loan loses belongs to the lender again, but the borrower's jobs may still run on it. If the
lender's limit rose immediately, Slurm would preempt these jobs immediately. So that part is
recalled first: it counts in no tenant's limit until the borrower gives it up, or free instances
suffice for what the lender wants, or the grace is over.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.quota.lending import called_back
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall


def recalled(
    policy: Policy,
    before: Iterable[Loan],
    after: Iterable[Loan],
    recalls: Iterable[Recall],
    held: Mapping[str, int],
    *,
    ready: Mapping[str, int],
    waiting: Mapping[str, Iterable[WaitingJob]],
    now_s: int,
    grace_s: int,
) -> tuple[Recall, ...]:
    """The recalls that should exist once the loans ``before`` have become ``after``.

    What a loan loses now joins the existing recalls. Parts are matched with the jobs ``waiting``
    for their lender's guaranteed quota, both oldest first. All parts for one job are as old as the
    first of them, since Slurm can't start a job on only some of its parts. No part is older than
    its job: a part recalled for a job that has started serves the next one. Of all parts, oldest
    first, a part stays, in full or reduced, if

    - it is within its grace. A recall timestamped in the future (the clock was set back) counts as
      new;
    - its borrower's own account holds it (``held``, millislices) beyond its guaranteed quota, less
      what it lends, plus what it borrows;
    - its lender has it left of its guaranteed quota after its loans, what its own jobs hold, and
      what its jobs need that may start (``ready``, millislices): these find free instances, or
      ``have_room`` counts them.

    A lender that wants no more lends again, and its recalls end by the second rule.
    """
    own, after = guaranteed_quota(policy), tuple(after)
    lent, _ = _sums(after)
    over = Counter(over_entitlement(policy, after, held))
    room = Counter(own) - lent - Counter(held)
    missing = room - Counter(ready)
    parts: list[Recall] = []
    for recall in sorted((*_known(recalls, now_s), *called_back(before, after, now_s)), key=_age):
        amount = min(recall.amount_millislices, over[recall.borrower], missing[recall.lender])
        over[recall.borrower] -= amount
        missing[recall.lender] -= amount
        room[recall.lender] -= amount
        if amount:
            parts.append(replace(recall, amount_millislices=Millislices(amount)))
    amounts: Counter[tuple[int, str, str]] = Counter()
    for recall in _for_who_waits(parts, waiting, room, now_s):
        if now_s < recall.called_s + grace_s:
            amounts[_age(recall)] += recall.amount_millislices
    return tuple(
        sorted(
            Recall(lender, borrower, Millislices(amount), called_s)
            for (called_s, lender, borrower), amount in amounts.items()
        )
    )


def have_room(
    policy: Policy,
    loans: Iterable[Loan],
    recalls: Iterable[Recall],
    held: Mapping[str, int],
    waiting: Mapping[str, Iterable[WaitingJob]],
    *,
    now_s: int,
    grace_s: int,
) -> Mapping[str, int]:
    """Millislices for which each lender's waiting jobs have room in its limit already.

    Slurm may be about to start these jobs. So this room stays when the lender's loans shrink now:
    what borrowers redistribute among themselves is not taken from it.
    """
    own = guaranteed_quota(policy)
    lent, _ = _sums(loans)
    back: Counter[str] = Counter()
    for recall in _known(recalls, now_s):
        if now_s < recall.called_s + grace_s:
            back[recall.lender] += recall.amount_millislices
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
    """Millislices of what it ``wanted`` that each tenant may have while quota is taken back.

    ``needs`` is what each tenant does not lend. A tenant that takes back quota for ``guaranteed``
    jobs borrows nothing more meanwhile: these jobs would start on it, and preempt. Jobs that wait
    for a loan preempt no other job.
    """
    own, loans = guaranteed_quota(policy), tuple(loans)
    _, borrowed = _sums(loans)
    back = short_lenders(policy, loans, needs) | {recall.lender for recall in recalls}
    back &= set(guaranteed)
    return {
        name: min(amount, own.get(name, 0) + borrowed[name]) if name in back else amount
        for name, amount in wanted.items()
    }


def short_lenders(
    policy: Policy, loans: Iterable[Loan], needs: Mapping[str, int]
) -> frozenset[str]:
    """Lenders with jobs that need more of the guaranteed quota than their loans leave them."""
    lent, _ = _sums(loans)
    own = guaranteed_quota(policy) if lent else {}
    return frozenset(
        lender
        for lender, amount in lent.items()
        if own.get(lender, 0) - amount < needs.get(lender, 0)
    )


def over_entitlement(
    policy: Policy, loans: Iterable[Loan], held: Mapping[str, int]
) -> Mapping[str, int]:
    """Millislices that each tenant's own jobs hold beyond its guaranteed quota and what is lent to
    it.

    What the tenant lends is not counted as its own. Tenants that hold no more are left out.
    """
    own = guaranteed_quota(policy)
    lent, borrowed = _sums(loans)
    over = {name: held.get(name, 0) - own[name] + lent[name] - borrowed[name] for name in policy}
    return {name: amount for name, amount in over.items() if amount > 0}


def _sums(loans: Iterable[Loan]) -> tuple[Counter[str], Counter[str]]:
    """Millislices that each tenant lends, and that each tenant borrows."""
    lent: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    for loan in loans:
        lent[loan.lender] += loan.amount_millislices
        borrowed[loan.borrower] += loan.amount_millislices
    return lent, borrowed


def _for_who_waits(
    parts: Iterable[Recall],
    waiting: Mapping[str, Iterable[WaitingJob]],
    room: Mapping[str, int],
    now_s: int,
) -> Iterator[Recall]:
    """Match each lender's parts with its waiting jobs.

    Jobs with a time in the future came before the clock was set back; their real age is unknown, so
    they are left out.
    """
    of: dict[str, list[Recall]] = defaultdict(list)
    for part in parts:
        of[part.lender].append(part)
    for lender, own in of.items():
        jobs = sorted(
            (job for job in waiting.get(lender, ()) if (job.since_s or 0) <= now_s),
            key=lambda job: (job.since_s or 0, job.cost_millislices, job.tasks),
        )
        yield from _matched(own, jobs, room[lender])


def _matched(parts: Iterable[Recall], jobs: Sequence[WaitingJob], room: int) -> Iterator[Recall]:
    """Assign parts to jobs, the oldest part to the job that has waited longest.

    Jobs that the ``room`` in their lender's limit covers get no parts. If the parts are more than
    the jobs want, the oldest ones keep their times, up to the excess.
    """
    left = deque(parts)
    wanted = sum(job.total_millislices for job in jobs)
    first = min(room, wanted - sum(part.amount_millislices for part in left))
    yield from _taken(left, -first)
    covered = max(0, first)
    for job in (each for each in jobs for _ in range(each.tasks)):
        missing = max(0, job.cost_millislices - covered)
        covered = max(0, covered - job.cost_millislices)
        # A job with room may lose it to another job. So while there is room, the job that waits
        # longest sets the time, and no part gets younger than that job.
        since_s = jobs[0].since_s if first > 0 else job.since_s
        called_s = max(left[0].called_s, since_s or 0) if left else 0
        for part in _taken(left, missing):
            yield replace(part, called_s=called_s)
        if not left:
            return


def _taken(left: deque[Recall], amount: int) -> Iterator[Recall]:
    """Take ``amount`` millislices from the front, splitting the last part if needed."""
    while left and amount > 0:
        part = left.popleft()
        taken = min(amount, part.amount_millislices)
        amount -= taken
        yield replace(part, amount_millislices=Millislices(taken))
        if rest := part.amount_millislices - taken:
            left.appendleft(replace(part, amount_millislices=Millislices(rest)))


def _known(recalls: Iterable[Recall], now_s: int) -> Iterator[Recall]:
    for recall in recalls:
        called_s = min(recall.called_s, now_s)
        yield Recall(recall.lender, recall.borrower, recall.amount_millislices, called_s)


def _age(recall: Recall) -> tuple[int, str, str]:
    return recall.called_s, recall.lender, recall.borrower
