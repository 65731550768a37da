"""Lends the quota that tenants leave idle to tenants that want more than their own.

Each tenant's guaranteed quota (``tenants.guaranteed_quota``: its nominal less what its children are
due) is compared with the demand of its own account: the surplus is idle, a shortage is wanted. Then
idle and wanted amounts are matched at every tenant, from the bottom of the tree up. There the
tenant's own account and the subtree of each child take part; a subtree has what is left over inside
it, idle or wanted, within the child's lending or borrowing limit. What remains unmatched goes up.
So loans stay as near in the tree as possible, and no other way would lend more. Then it is settled
from the top down how much each part gets and gives:

- Borrowers share by weighted max-min fairness: no borrower gets more at the cost of one that has
  less for its weight. A subtree counts as one borrower with its top tenant's weight; inside it the
  weights apply again. Kueue (https://kueue.sigs.k8s.io/docs/concepts/fair_sharing/) and KAI
  (https://github.com/NVIDIA/KAI-Scheduler/blob/main/docs/fairness/README.md) do the same. The
  progressive filling is Bertsekas & Gallager's (Data Networks, 2nd ed., 6.5.2).
- What a borrower has lately held beyond its guaranteed quota, on average (``lately``), counts as if
  it had that already, so that shares also match the weights over a half-life. It counts in whole
  slices, which seldom change.
- Existing loans are kept where possible. If they exceed what may be lent, loans from the lender
  with the least idle quota end first.
- Further loans are drawn from the lenders with the most idle quota, so that what stays idle becomes
  as equal as possible.

Loans never change without a reason: the same demand leaves them as they are.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.tenants import (
    ancestors,
    by_parent,
    downward,
    effective_nominal,
    guaranteed_quota,
    parent,
)
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    MAX_WEIGHT,
    Loan,
    Policy,
    Quota,
    Recall,
)

_SLICE_MILLISLICES = 1000
NANOSLICES = 10**6
"""Of past use in a millislice: one of a day counts what a job of seconds has used, too."""
_BILLION = 10**9

_Gate = tuple[Literal["lends", "borrows", "out", "in"], str]
"""A point that loans pass: from or to a tenant's own account, out of or into its subtree."""

Flow = Counter[_Gate]
"""Millislices that pass each gate."""


def lend(
    policy: Policy,
    demand: Mapping[str, int],
    current: Sequence[Loan],
    capacity: int | None,
    lately: Mapping[str, float] | None = None,
) -> tuple[Loan, ...]:
    """Decide the loans that should exist, sorted by lender and borrower.

    ``demand`` is what each tenant's own jobs hold or wait for, and ``lately`` what they have held
    on average, both in millislices. While the nominals at the top add up to more than ``capacity``,
    or the capacity is not known (None), nothing new is lent. Current loans are then cut to what
    is still idle at the lender and wanted by the borrower.
    """
    idle, want = _idle_and_wanted(policy, demand)
    if not any(want.values()):
        return ()
    current = _known(policy, current)
    if not lends_anew(policy, capacity):
        return _cut(policy, current, idle, want)
    parts = _parts(policy, idle, want, borrowed_lately(policy, lately or {}))
    got = _got(policy, parts)
    kept = _kept(policy, current, idle, _supplies(parts) | got)
    passing = _flow(policy, kept)
    return _paired(policy, kept, (_given(policy, parts, passing) | got) - passing)


def fair_shares(policy: Policy, demand: Mapping[str, int], past: Flow) -> Mapping[str, int]:
    """Compute the millislices that each tenant borrows in all by ``lend``, where that lends anew.

    ``past`` is what ``borrowed_lately`` says. What is lent already makes no difference: it decides
    from whom a tenant borrows.
    """
    idle, want = _idle_and_wanted(policy, demand)
    if not any(want.values()):
        return dict.fromkeys(policy, 0)
    got = _got(policy, _parts(policy, idle, want, past))
    return {name: got["borrows", name] for name in policy}


def _idle_and_wanted(
    policy: Policy, demand: Mapping[str, int]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Millislices that each account leaves of its guaranteed quota, and that it wants beyond it."""
    own = guaranteed_quota(policy)
    beyond = {name: demand.get(name, 0) - own[name] for name in policy}
    idle = {name: max(0, -more) for name, more in beyond.items()}
    return idle, {name: max(0, more) for name, more in beyond.items()}


def lends_anew(policy: Policy, capacity: int | None) -> bool:
    """Whether the capacity covers the nominals at the top; False if it is not known (None)."""
    nominal = effective_nominal(policy)
    top = sum(nominal[name] for name in by_parent(policy).get("", ()))
    return capacity is not None and top <= capacity


def within_limits(
    policy: Policy, loans: Iterable[Loan], lends: Mapping[str, int] | None = None
) -> tuple[Loan, ...]:
    """Cut loans to what the policy allows; the result is sorted by lender and borrower.

    ``lends`` is the most that each own account may lend, by default its guaranteed quota. Small
    loans are kept first, so large ones are cut. No loan grows, and none is cut without need. Loans
    from or to accounts that are not tenants are left out.
    """
    valid = _known(policy, loans)
    total = sum(loan.amount_millislices for loan in valid)
    lends = guaranteed_quota(policy) if lends is None else lends
    return _cut(policy, valid, lends, dict.fromkeys(policy, total))


def called_back(before: Iterable[Loan], after: Iterable[Loan], now_s: int) -> Iterator[Recall]:
    """Yield what loans have lost, as recalls made at ``now_s`` (Unix seconds)."""
    now = {(loan.lender, loan.borrower): loan.amount_millislices for loan in after}
    for loan in before:
        lost = loan.amount_millislices - now.get((loan.lender, loan.borrower), 0)
        if lost > 0:
            yield Recall(loan.lender, loan.borrower, Millislices(lost), now_s)


def _known(policy: Policy, loans: Iterable[Loan]) -> list[Loan]:
    return [loan for loan in loans if loan.lender in policy and loan.borrower in policy]


def crossing(policy: Policy, loans: Iterable[Loan]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the millislices lent out of each tenant's subtree, and those lent into it."""
    flow = _flow(policy, loans)
    out = {name: flow.get(("out", name), 0) for name in policy}
    return out, {name: flow.get(("in", name), 0) for name in policy}


def _flow(policy: Policy, loans: Iterable[Loan]) -> Flow:
    """Sum up what the loans carry through each gate."""
    flow: defaultdict[_Gate, int] = defaultdict(int)
    for loan in loans:
        amount = loan.amount_millislices
        for gate in _gates(policy, loan):
            flow[gate] += amount
    return Counter(flow)


def _gates(policy: Policy, loan: Loan) -> list[_Gate]:
    """List every gate on a loan's way, up to the nearest tenant with both ends in its subtree."""
    lender, borrower = loan.lender, loan.borrower
    gates: list[_Gate] = [("lends", lender), ("borrows", borrower)]
    if lender != borrower and not parent(policy, lender) and not parent(policy, borrower):
        return [*gates, ("out", lender), ("in", borrower)]
    above, beside = ancestors(policy, lender), ancestors(policy, borrower)
    up, down = (lender, *above), (borrower, *beside)
    gates += [("out", name) for name in up if name not in down]
    gates += [("in", name) for name in down if name not in up]
    return gates


def _cut(
    policy: Policy, loans: Iterable[Loan], lends: Mapping[str, int], borrows: Mapping[str, int]
) -> tuple[Loan, ...]:
    """Cut loans to the quotas' limits and to what each own account may lend and borrow."""
    room: Flow = Counter()
    for name, tenant in policy.items():
        room["lends", name], room["borrows", name] = lends[name], borrows[name]
        room["out", name] = tenant.quota.lending_limit_millislices
        room["in", name] = tenant.quota.borrowing_limit_millislices
    smallest = sorted(loans, key=lambda loan: (loan.amount_millislices, *_ends(loan)))
    return tuple(sorted(_passing(policy, smallest, room), key=_ends))


def _ends(loan: Loan) -> tuple[str, str]:
    return loan.lender, loan.borrower


def _passing(policy: Policy, loans: Iterable[Loan], room: Flow) -> Iterator[Loan]:
    """Yield each loan in turn, cut to the room at its gates, and take that room."""
    for loan in loans:
        gates = _gates(policy, loan)
        amount = min(loan.amount_millislices, *map(room.__getitem__, gates))
        if amount:
            for gate in gates:
                room[gate] -= amount
            is_whole = amount == loan.amount_millislices
            yield loan if is_whole else Loan(loan.lender, loan.borrower, Millislices(amount))


class _Part(NamedTuple):
    """An own account or a subtree that lends and borrows among its siblings at one tenant.

    All amounts are in millislices.

    Attributes:
        out, into: the gates through which it gives and gets.
        supply, want: what may leave it, and what may enter it; one of them is 0.
        idle: what lies idle in it, whether it may leave or not.
        past: what it has lately borrowed on average, in whole slices.
    """

    out: _Gate
    into: _Gate
    weight: int
    supply: int
    want: int
    idle: int
    past: int


_Parts = Mapping[str, Sequence[_Part]]
"""The parts that lend to each other at each tenant, and at "" above the whole tree."""


def borrowed_lately(policy: Policy, lately: Mapping[str, float]) -> Flow:
    """Compute what own accounts and subtrees have lately borrowed, in nanoslices.

    ``lately`` is what each tenant's own jobs have held on average, in millislices.
    """
    past = _lately(policy, lately)
    return Counter({gate: held - own for gate, (held, own) in past if held > own})


def used_lately(policy: Policy, lately: Mapping[str, float]) -> Flow:
    """Compute what own accounts and subtrees have lately held, in billionths of their guaranteed
    quotas.
    """
    past = _lately(policy, lately)
    return Counter({gate: held * _BILLION // max(NANOSLICES, own) for gate, (held, own) in past})


def _lately(policy: Policy, lately: Mapping[str, float]) -> Iterator[tuple[_Gate, tuple[int, int]]]:
    """Yield what passes each gate, in nanoslices: what was held lately, and what is guaranteed."""
    nominal, own = effective_nominal(policy), guaranteed_quota(policy)
    # Whole numbers: sums of floats would tell equals apart.
    held = {name: round(lately.get(name, 0) * NANOSLICES) for name in policy}
    sums = Counter(held)
    for name in reversed(downward(policy)):
        yield ("borrows", name), (held[name], own[name] * NANOSLICES)
        yield ("in", name), (sums[name], nominal[name] * NANOSLICES)
        sums[parent(policy, name)] += sums[name]


def _whole(amount_nanoslices: int) -> int:
    """Whole slices of it, in millislices."""
    return amount_nanoslices // (_SLICE_MILLISLICES * NANOSLICES) * _SLICE_MILLISLICES


def _parts(policy: Policy, idle: Mapping[str, int], want: Mapping[str, int], past: Flow) -> _Parts:
    parts: dict[str, list[_Part]] = {"": []}
    for name, tenant in policy.items():
        own = _Part(
            out=("lends", name),
            into=("borrows", name),
            weight=tenant.quota.weight,
            supply=idle[name],
            want=want[name],
            idle=idle[name],
            past=_whole(past["borrows", name]),
        )
        parts[name] = [own]
    for name in reversed(downward(policy)):
        part = _subtree(name, policy[name].quota, parts[name], _whole(past["in", name]))
        parts[parent(policy, name)].append(part)
    return parts


def _subtree(name: str, quota: Quota, parts: Sequence[_Part], past: int) -> _Part:
    """Return what a subtree has left over once its parts have lent to each other."""
    supply, want = _sums(parts)
    return _Part(
        out=("out", name),
        into=("in", name),
        weight=quota.weight,
        supply=min(quota.lending_limit_millislices, max(0, supply - want)),
        want=min(quota.borrowing_limit_millislices, max(0, want - supply)),
        idle=sum(part.idle for part in parts) - min(supply, want),
        past=past,
    )


def _sums(parts: Sequence[_Part]) -> tuple[int, int]:
    return sum(part.supply for part in parts), sum(part.want for part in parts)


def _supplies(parts: _Parts) -> Flow:
    return Counter({part.out: part.supply for here in parts.values() for part in here})


def _got(policy: Policy, parts: _Parts) -> Flow:
    """Compute what each part gets, from the top down."""
    flow: Flow = Counter()
    for name in ("", *downward(policy)):
        supply, want = _sums(parts[name])
        shares = _shared(parts[name], min(want, supply + flow["in", name]))
        for part, amount in zip(parts[name], shares, strict=True):
            flow[part.into] = amount
    return flow


def _kept(
    policy: Policy, current: Iterable[Loan], idle: Mapping[str, int], room: Flow
) -> tuple[Loan, ...]:
    """Keep current loans within ``room``, first those of the lender with the most left idle."""
    left = Counter(idle)
    for loan in current:
        left[loan.lender] -= loan.amount_millislices
    most_left = sorted(current, key=lambda loan: (-left[loan.lender], *_ends(loan)))
    return tuple(_passing(policy, most_left, room))


def _given(policy: Policy, parts: _Parts, least: Flow) -> Flow:
    """Compute what each part gives, at least ``least``, from the top down."""
    flow: Flow = Counter()
    for name in ("", *downward(policy)):
        supply, want = _sums(parts[name])
        total = min(supply, want + flow["out", name])
        drawn = _drawn(parts[name], [least[part.out] for part in parts[name]], total)
        for part, amount in zip(parts[name], drawn, strict=True):
            flow[part.out] = amount
    return flow


def _shared(parts: Sequence[_Part], total: int) -> Sequence[int]:
    """Divide the total among the parts by weighted max-min fairness, to none more than it wants.

    The part that wants least for its weight gets all it wants, as long as that is no more than its
    fair share of what is left; then the next one. The others share the rest by weight. Shares are
    whole millislices, so each differs from the exact share by less than one.
    """
    shares = [part.want for part in parts]
    if total >= sum(shares):
        return shares
    if len(parts) == 1:
        return [total]
    if any(part.past for part in parts):
        return _shared_on_top(parts, total)
    # Multiplied by MAX_WEIGHT², different quotients stay different when rounded down.
    needs = [part.want * MAX_WEIGHT**2 // part.weight for part in parts]
    short = sorted(range(len(parts)), key=needs.__getitem__, reverse=True)
    weight = sum(part.weight for part in parts)
    while short and (least := parts[short[-1]]).want * weight <= total * least.weight:
        total -= least.want
        weight -= least.weight
        short.pop()
    filled = 0
    for i in short:
        before = total * filled // weight
        filled += parts[i].weight
        shares[i] = total * filled // weight - before
    return shares


def _shared_on_top(parts: Sequence[_Part], total: int) -> Sequence[int]:
    """Do as ``_shared`` where past borrowing counts: past plus share per weight has one level."""
    wanting = [(i, part.weight, part.past, part.want) for i, part in enumerate(parts) if part.want]

    def up_to(level: int) -> list[int]:
        return [
            min(want, max(0, level * weight // MAX_WEIGHT - past))
            for _, weight, past, want in wanting
        ]

    # At this level every part has all that it wants.
    most = max((want + past) * MAX_WEIGHT // weight for _, weight, past, want in wanting)
    levels = range(most + MAX_WEIGHT + 1)
    level = bisect_right(levels, total, key=lambda level: sum(up_to(level))) - 1
    left, shares = total, [0] * len(parts)
    now, higher = up_to(level), up_to(level + 1)
    for (i, *_), amount in zip(wanting, now, strict=True):
        shares[i] = amount
        left -= amount
    rising = [i for (i, *_), got, more in zip(wanting, now, higher, strict=True) if more > got]
    for i in rising[:left]:
        shares[i] += 1
    return shares


def _drawn(parts: Sequence[_Part], least: list[int], total: int) -> list[int]:
    """Draw the total from the parts' supplies, at least ``least`` from each.

    What stays idle ends at the same level for all parts. Exceptions are parts that may not lend
    enough to get down to it, and parts that give more anyway.
    """
    if sum(least) == total:
        return least
    if len(parts) == 1:
        return [max(least[0], total)]

    def down_to(level: int) -> list[int]:
        bounds = zip(parts, least, strict=True)
        return [max(low, min(part.supply, part.idle - level)) for part, low in bounds]

    levels = range(max(part.idle for part in parts) + 1)
    level = bisect_left(levels, -total, key=lambda level: -sum(down_to(level)))
    drawn, lower = down_to(level), down_to(level - 1)
    uneven = [i for i in range(len(parts)) if lower[i] > drawn[i]]
    for i in uneven[: total - sum(drawn)]:
        drawn[i] += 1
    return drawn


def _paired(policy: Policy, kept: Iterable[Loan], more: Flow) -> tuple[Loan, ...]:
    """Return the kept loans, grown and joined by new ones so that all ``more`` of the flow is used.

    The additional flow first enlarges kept loans within their gates.
    """
    if not more:
        return tuple(sorted(kept, key=_ends))
    amounts = Counter({_ends(loan): int(loan.amount_millislices) for loan in kept})
    larger = [Loan(*_ends(loan), MAX_NOMINAL_MILLISLICES) for loan in kept]
    for loan in (*_passing(policy, larger, more), *_matched(policy, more)):
        amounts[_ends(loan)] += loan.amount_millislices
    return tuple(Loan(*ends, Millislices(amounts[ends])) for ends in sorted(amounts))


_Ends = dict[str, list[tuple[int, str]]]
"""By place in the tree: amounts still to lend or borrow there, each with its tenant."""


def _matched(policy: Policy, flow: Flow) -> Iterator[Loan]:
    """Pair what own accounts still lend and borrow, as near in the tree as possible."""
    lenders: _Ends = {"": []}
    borrowers: _Ends = {"": []}
    for name in policy:
        lenders[name] = [(flow["lends", name], name)] if flow["lends", name] else []
        borrowers[name] = [(flow["borrows", name], name)] if flow["borrows", name] else []
    for name in reversed(("", *downward(policy))):
        yield from _match(lenders[name], borrowers[name])
        if name:
            lenders[parent(policy, name)] += lenders[name]
            borrowers[parent(policy, name)] += borrowers[name]


def _match(lenders: list[tuple[int, str]], borrowers: list[tuple[int, str]]) -> Iterator[Loan]:
    """Pair lenders and borrowers, the largest amounts first, until one side is used up."""
    lenders.sort()
    borrowers.sort()
    while lenders and borrowers:
        (offered, lender), (wanted, borrower) = lenders.pop(), borrowers.pop()
        amount = min(offered, wanted)
        yield Loan(lender, borrower, Millislices(amount))
        if offered > amount:
            lenders.append((offered - amount, lender))
        if wanted > amount:
            borrowers.append((wanted - amount, borrower))
