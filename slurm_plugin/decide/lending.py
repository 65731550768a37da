"""Lending: what some leave idle, in the hands of those who want more than their own.

Each tenant's own part of the nominal (``tenants.own_part``) stands against the demand of its own
account: what is not needed lies idle, what is missing is wanted. At every tenant, from the bottom
of the tree up, these take part: its own account, and each tenant right below it with what its
subtree has left over, idle or wanted, as far as that one's limits let it through. What is idle is
matched with what is wanted there, the rest goes up; so loans stay as near as they can, and no
other way would lend more. From the top down it is then settled who gets and gives how much:

- Borrowers share by weight, weighted max-min fair: nobody gets more at the cost of one who has less
  for its weight. A subtree counts as one, with its top's weight; inside, weights count anew. So do
  Kueue (https://kueue.sigs.k8s.io/docs/concepts/fair_sharing/) and KAI
  (https://github.com/NVIDIA/KAI-Scheduler/blob/main/docs/fairness/README.md). The filling is
  Bertsekas & Gallager's (Data Networks, 2nd ed., 6.5.2).
- What a borrower has held lately beyond its own part, on average, counts as if it had that already
  (``lately``): so over a half-life shares come out by weight, too. In whole slices, which seldom
  change.
- Current loans go on as far as that allows; of too many, those of who has least left idle end.
- What is lent beyond is drawn from who has most idle: what stays idle gets as equal as it can.

Nothing changes without a reason: the same demand leaves the loans as they are.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cluster.units import Millislices
from slurm_plugin.decide.policy import (
    MAX_NOMINAL_MILLISLICES,
    MAX_WEIGHT,
    Loan,
    Policy,
    Quota,
    Recall,
)
from slurm_plugin.decide.tenants import (
    ancestors,
    by_parent,
    downward,
    effective_nominal,
    own_part,
    parent,
)

_SLICE_MILLISLICES = 1000

_Gate = tuple[Literal["lends", "borrows", "out", "in"], str]
"""Where loans pass: from or to a tenant's own account, out of or into its subtree."""

_Flow = Counter[_Gate]
"""Millislices by gate."""


def lend(
    policy: Policy,
    demand: Mapping[str, int],
    current: Sequence[Loan],
    capacity: int | None,
    lately: Mapping[str, int] | None = None,
) -> tuple[Loan, ...]:
    """The loans there should be, by lender and borrower.

    ``demand`` is what each tenant's own jobs hold or wait for, ``lately`` what they have held on
    average, in millislices. While the nominals
    at the top are more than ``capacity`` together, or that is not known (None), there are only
    current loans, as far as they are still idle and wanted.
    """
    own = own_part(policy)
    idle = {name: max(0, own[name] - demand.get(name, 0)) for name in policy}
    want = {name: max(0, demand.get(name, 0) - own[name]) for name in policy}
    current = _known(policy, current)
    if not lends_anew(policy, capacity):
        return _cut(policy, current, idle, want)
    parts = _parts(policy, idle, want, borrowed_lately(policy, lately or {}))
    got = _got(policy, parts)
    kept = _kept(policy, current, idle, _supplies(parts) | got)
    passing = _flow(policy, kept)
    return _paired(policy, kept, (_given(policy, parts, passing) | got) - passing)


def lends_anew(policy: Policy, capacity: int | None) -> bool:
    """Whether the nominals at the top are all there is or less; None is not known."""
    nominal = effective_nominal(policy)
    top = sum(nominal[name] for name in by_parent(policy).get("", ()))
    return capacity is not None and top <= capacity


def within_limits(
    policy: Policy, loans: Iterable[Loan], lends: Mapping[str, int] | None = None
) -> tuple[Loan, ...]:
    """Loans as far as the policy allows them, by lender and borrower.

    ``lends`` is what each own account may lend at most, its own part if not given. Small ones
    stay first, so large ones are cut; none is larger than it was, and none is cut without need.
    Loans of and to those who are no tenants are left out.
    """
    known = _known(policy, loans)
    total = sum(loan.amount_millislices for loan in known)
    lends = own_part(policy) if lends is None else lends
    return _cut(policy, known, lends, dict.fromkeys(policy, total))


def called_back(before: Iterable[Loan], after: Iterable[Loan], now_s: int) -> Iterator[Recall]:
    """What loans have lost, as recalls of now (Unix seconds)."""
    now = {(loan.lender, loan.borrower): loan.amount_millislices for loan in after}
    for loan in before:
        lost = loan.amount_millislices - now.get((loan.lender, loan.borrower), 0)
        if lost > 0:
            yield Recall(loan.lender, loan.borrower, Millislices(lost), now_s)


def _known(policy: Policy, loans: Iterable[Loan]) -> list[Loan]:
    return [loan for loan in loans if loan.lender in policy and loan.borrower in policy]


def crossing(policy: Policy, loans: Iterable[Loan]) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Millislices on loans that leave each tenant's subtree, and on those that enter it."""
    flow = _flow(policy, loans)
    return {name: flow["out", name] for name in policy}, {name: flow["in", name] for name in policy}


def _flow(policy: Policy, loans: Iterable[Loan]) -> _Flow:
    """What passes each gate on these loans."""
    flow: _Flow = Counter()
    for loan in loans:
        for gate in _gates(policy, loan):
            flow[gate] += loan.amount_millislices
    return flow


def _gates(policy: Policy, loan: Loan) -> list[_Gate]:
    """Every gate on a loan's way: out as far as the first tenant that the borrower is below."""
    up = (loan.lender, *ancestors(policy, loan.lender))
    down = (loan.borrower, *ancestors(policy, loan.borrower))
    gates: list[_Gate] = [("lends", loan.lender), ("borrows", loan.borrower)]
    gates += [("out", name) for name in up if name not in down]
    gates += [("in", name) for name in down if name not in up]
    return gates


def _cut(
    policy: Policy, loans: Iterable[Loan], lends: Mapping[str, int], borrows: Mapping[str, int]
) -> tuple[Loan, ...]:
    """Loans within the limits and what each own account may lend and borrow."""
    room: _Flow = Counter()
    for name, tenant in policy.items():
        room["lends", name], room["borrows", name] = lends[name], borrows[name]
        room["out", name] = tenant.quota.lending_limit_millislices
        room["in", name] = tenant.quota.borrowing_limit_millislices
    smallest = sorted(loans, key=lambda loan: (loan.amount_millislices, *_ends(loan)))
    return tuple(sorted(_passing(policy, smallest, room), key=_ends))


def _ends(loan: Loan) -> tuple[str, str]:
    return loan.lender, loan.borrower


def _passing(policy: Policy, loans: Iterable[Loan], room: _Flow) -> Iterator[Loan]:
    """Each loan in turn, as large as the room at its gates allows; it takes that room."""
    for loan in loans:
        gates = _gates(policy, loan)
        amount = min(loan.amount_millislices, *(room[gate] for gate in gates))
        for gate in gates:
            room[gate] -= amount
        if amount:
            yield Loan(loan.lender, loan.borrower, Millislices(amount))


@dataclass(frozen=True)
class _Part:
    """An own account or a subtree, among those that lend to each other at one tenant.

    Attributes:
        out, into: the gates of what it gives and gets.
        supply, want: what may leave it, what may enter it; one of them is 0.
        idle: what lies idle in it, whether it may leave or not.
        past: what it has borrowed lately, on average.
    """

    out: _Gate
    into: _Gate
    weight: int
    supply: int
    want: int
    idle: int
    past: int


_Parts = Mapping[str, Sequence[_Part]]
"""Those who take part at each tenant, and at "" above them all."""


def borrowed_lately(policy: Policy, lately: Mapping[str, int]) -> _Flow:
    """What has passed the gates into own accounts and subtrees, in whole slices."""
    nominal, own = effective_nominal(policy), own_part(policy)
    sums = Counter({name: lately.get(name, 0) for name in policy})
    past: _Flow = Counter()
    for name in reversed(downward(policy)):
        past["borrows", name] = _whole(lately.get(name, 0) - own[name])
        past["in", name] = _whole(sums[name] - nominal[name])
        sums[parent(policy, name)] += sums[name]
    return past


def _whole(amount: int) -> int:
    return max(0, amount) // _SLICE_MILLISLICES * _SLICE_MILLISLICES


def _parts(policy: Policy, idle: Mapping[str, int], want: Mapping[str, int], past: _Flow) -> _Parts:
    parts: dict[str, list[_Part]] = {"": []}
    for name, tenant in policy.items():
        own = _Part(
            out=("lends", name),
            into=("borrows", name),
            weight=tenant.quota.weight,
            supply=idle[name],
            want=want[name],
            idle=idle[name],
            past=past["borrows", name],
        )
        parts[name] = [own]
    for name in reversed(downward(policy)):
        one = _subtree(name, policy[name].quota, parts[name], past["in", name])
        parts[parent(policy, name)].append(one)
    return parts


def _subtree(name: str, quota: Quota, parts: Sequence[_Part], past: int) -> _Part:
    """What a subtree has left over once its parts have lent to each other."""
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


def _supplies(parts: _Parts) -> _Flow:
    return Counter({part.out: part.supply for here in parts.values() for part in here})


def _got(policy: Policy, parts: _Parts) -> _Flow:
    """What each part gets, from the top down."""
    flow: _Flow = Counter()
    for name in ("", *downward(policy)):
        supply, want = _sums(parts[name])
        shares = _shared(parts[name], min(want, supply + flow["in", name]))
        for part, amount in zip(parts[name], shares, strict=True):
            flow[part.into] = amount
    return flow


def _kept(
    policy: Policy, current: Iterable[Loan], idle: Mapping[str, int], room: _Flow
) -> tuple[Loan, ...]:
    """Current loans as far as there is room, first those of who has most left idle."""
    left = Counter(idle)
    for loan in current:
        left[loan.lender] -= loan.amount_millislices
    most_left = sorted(current, key=lambda loan: (-left[loan.lender], *_ends(loan)))
    return tuple(_passing(policy, most_left, room))


def _given(policy: Policy, parts: _Parts, least: _Flow) -> _Flow:
    """What each part gives, from the top down; at least so much."""
    flow: _Flow = Counter()
    for name in ("", *downward(policy)):
        supply, want = _sums(parts[name])
        total = min(supply, want + flow["out", name])
        drawn = _drawn(parts[name], [least[part.out] for part in parts[name]], total)
        for part, amount in zip(parts[name], drawn, strict=True):
            flow[part.out] = amount
    return flow


def _shared(parts: Sequence[_Part], total: int) -> Sequence[int]:
    """The total among those who want it, weighted max-min fair; at most that is wanted.

    Who wants least for its weight gets all it wants, while that is no more than its fair share of
    what is left; the others share the rest by weight. Whole millislices: each gets less than one
    more or less than exactly.
    """
    if any(part.past for part in parts):
        return _shared_on_top(parts, total)
    shares = [part.want for part in parts]
    # Times MAX_WEIGHT², different quotients stay different when rounded down.
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
    """The same where each has its past already: one level for its weight of both together."""

    def up_to(level: int) -> list[int]:
        filled = (level * part.weight // MAX_WEIGHT - part.past for part in parts)
        bounds = zip(parts, filled, strict=True)
        return [min(part.want, max(0, amount)) for part, amount in bounds]

    # At this one everybody has all that it wants.
    most = max((part.want + part.past) * MAX_WEIGHT // part.weight for part in parts) + MAX_WEIGHT
    level = bisect_right(range(most + 1), total, key=lambda level: sum(up_to(level))) - 1
    shares, higher = up_to(level), up_to(level + 1)
    rising = [i for i in range(len(parts)) if higher[i] > shares[i]]
    for i in rising[: total - sum(shares)]:
        shares[i] += 1
    return shares


def _drawn(parts: Sequence[_Part], least: list[int], total: int) -> list[int]:
    """The total from those who have it, at least so much from each.

    They are drawn down to one level of what stays idle, which is the same for all but those whom
    it would carry beyond what they may lend, or who give more anyway.
    """
    if sum(least) == total:
        return least

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


def _paired(policy: Policy, kept: Iterable[Loan], more: _Flow) -> tuple[Loan, ...]:
    """The loans that are kept and those that make up the rest of the flow, which is used up.

    These join the kept ones between the same two as far as they can.
    """
    amounts = Counter({_ends(loan): int(loan.amount_millislices) for loan in kept})
    larger = [replace(loan, amount_millislices=MAX_NOMINAL_MILLISLICES) for loan in kept]
    for loan in (*_passing(policy, larger, more), *_matched(policy, more)):
        amounts[_ends(loan)] += loan.amount_millislices
    return tuple(Loan(*ends, Millislices(amounts[ends])) for ends in sorted(amounts))


_Ends = dict[str, list[tuple[int, str]]]
"""By place in the tree: who has how much to lend or borrow there yet."""


def _matched(policy: Policy, flow: _Flow) -> Iterator[Loan]:
    """Pair what own accounts still lend with what they still borrow, as near as possible."""
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
    """Pair both, the largest first, until only one side is left over."""
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
