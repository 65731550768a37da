"""Whatever the tree: loans are fair and within limits, limits within capacity.

What is promised is checked by code of its own: limits by walking up from both ends of each loan,
fairness and the most that can be lent by trying every way there is on tiny trees.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.attainable import highest_limits
from slicewise.slurm_plugin.rules.quota.lending import (
    borrowed_lately,
    fair_shares,
    lend,
    within_limits,
)
from slicewise.slurm_plugin.rules.quota.standings import Standing, standings
from slicewise.slurm_plugin.rules.quota.tenants import (
    changed,
    changed_together,
    effective_nominal,
    guaranteed_quota,
    payers,
)
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Quota, Tenant, TenantUpdate

PLENTY = 10**9


@dataclass(frozen=True)
class Case:
    policy: Policy
    demand: Mapping[str, int]

    def lend(self, current: Sequence[Loan] = (), capacity: int | None = PLENTY) -> tuple[Loan, ...]:
        return lend(self.policy, self.demand, current, capacity)

    def idle(self, name: str) -> int:
        return max(0, guaranteed_quota(self.policy)[name] - self.demand[name])

    def want(self, name: str) -> int:
        return max(0, self.demand[name] - guaranteed_quota(self.policy)[name])


@cache
def limits_to(amount: int) -> st.SearchStrategy[int]:
    return st.one_of(st.just(PLENTY), st.just(PLENTY), st.integers(0, amount))


@cache
def demands_to(amount: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, amount), st.integers(amount, 2 * amount))


def drawn_policy(draw: st.DrawFn, size: int, amount: int, *, flat: bool = False) -> Policy:
    """Trees whose nominals are as they must be; about every second parent is a group."""
    parents = [draw(st.integers(-1, -1 if flat else i - 1)) for i in range(size)]
    amounts, limits = st.integers(0, amount), limits_to(amount)
    below = [0] * size
    tenants: list[Tenant] = []
    for i in reversed(range(size)):
        own = draw(amounts)
        group = below[i] and draw(st.booleans())
        nominal = 0 if group else below[i] + own
        if parents[i] >= 0:
            below[parents[i]] += below[i] if group else nominal
        quota = Quota(
            Millislices(nominal),
            Millislices(draw(limits)),
            Millislices(draw(limits)),
            draw(st.integers(1, 3)),
        )
        tenants.append(Tenant(f"t{i}", f"t{parents[i]}" if parents[i] >= 0 else "", quota))
    return {tenant.name: tenant for tenant in tenants}


policies = st.composite(drawn_policy)


@st.composite
def cases(draw: st.DrawFn, sizes: range, amount: int, *, flat: bool = False) -> Case:
    size = draw(st.integers(sizes[0], sizes[-1]))
    policy = drawn_policy(draw, size, amount, flat=flat)
    return Case(policy, {name: draw(demands_to(amount)) for name in policy})


TINY = cases(range(3, 5), 6)
TINY_FLAT = cases(range(3, 5), 6, flat=True)
SOME = cases(range(1, 15), 5000)
SOME_FLAT = cases(range(1, 15), 5000, flat=True)


# The rules, written again independently.


def up_from(policy: Policy, name: str) -> list[str]:
    chain = []
    while name:
        chain.append(name)
        name = policy[name].parent
    return chain


def leaving(policy: Policy, loans: Sequence[Loan], name: str) -> int:
    return sum(
        loan.amount_millislices
        for loan in loans
        if name in up_from(policy, loan.lender) and name not in up_from(policy, loan.borrower)
    )


def entering(policy: Policy, loans: Sequence[Loan], name: str) -> int:
    return sum(
        loan.amount_millislices
        for loan in loans
        if name in up_from(policy, loan.borrower) and name not in up_from(policy, loan.lender)
    )


def inside(policy: Policy, loans: Sequence[Loan], name: str) -> int:
    return sum(
        loan.amount_millislices
        for loan in loans
        if name in up_from(policy, loan.borrower) and name in up_from(policy, loan.lender)
    )


def lent(loans: Sequence[Loan], name: str) -> int:
    return sum(loan.amount_millislices for loan in loans if loan.lender == name)


def borrowed(loans: Sequence[Loan], name: str) -> int:
    return sum(loan.amount_millislices for loan in loans if loan.borrower == name)


def is_allowed(policy: Policy, loans: Sequence[Loan]) -> bool:
    own = guaranteed_quota(policy)
    return all(
        leaving(policy, loans, name) <= tenant.quota.lending_limit_millislices
        and entering(policy, loans, name) <= tenant.quota.borrowing_limit_millislices
        and lent(loans, name) <= own[name]
        for name, tenant in policy.items()
    )


def is_feasible(case: Case, loans: Sequence[Loan]) -> bool:
    return is_allowed(case.policy, loans) and all(
        lent(loans, name) <= case.idle(name) and borrowed(loans, name) <= case.want(name)
        for name in case.policy
    )


def every_way(case: Case) -> Iterator[tuple[Loan, ...]]:
    """All feasible sets of loans."""
    pairs = [
        (lender, borrower, min(case.idle(lender), case.want(borrower)))
        for lender in case.policy
        for borrower in case.policy
        if case.idle(lender) and case.want(borrower)
    ]
    for amounts in product(*(range(most + 1) for _, _, most in pairs)):
        loans = tuple(
            Loan(lender, borrower, Millislices(amount))
            for (lender, borrower, _), amount in zip(pairs, amounts, strict=True)
            if amount
        )
        if is_feasible(case, loans):
            yield loans


@given(SOME)
@settings(max_examples=examples(60, nightly=4000))
def test_loans_are_within_every_limit(case: Case) -> None:
    assert is_feasible(case, case.lend())


@given(TINY)
@settings(max_examples=examples(120, nightly=8000))
def test_no_other_way_lends_more_in_any_subtree_or_in_all(case: Case) -> None:
    ours, ways = case.lend(), list(every_way(case))
    assert total(ours) == max(map(total, ways))
    for name in case.policy:
        assert inside(case.policy, ours, name) == max(inside(case.policy, w, name) for w in ways)


@given(TINY_FLAT)
@settings(max_examples=examples(120, nightly=8000))
def test_borrowers_of_equal_weight_get_what_is_max_min_fair(case: Case) -> None:
    equal = {name: with_quota(tenant, weight=1) for name, tenant in case.policy.items()}
    case = replace(case, policy=equal)

    def poorest_first(loans: Sequence[Loan]) -> list[int]:
        return sorted(borrowed(loans, name) for name in case.policy if case.want(name))

    assert poorest_first(case.lend()) == max(map(poorest_first, every_way(case)))


@given(SOME, st.data())
@settings(max_examples=examples(100, nightly=4000))
def test_shares_are_what_loans_add_up_to_whatever_is_lent_already(
    case: Case, data: st.DataObject
) -> None:
    names = list(case.policy)
    lately = data.draw(st.dictionaries(st.sampled_from(names), st.integers(0, 9000)))
    before = other_demand(case, data).lend()
    loans = lend(case.policy, case.demand, before, PLENTY, lately)
    shares = fair_shares(case.policy, case.demand, borrowed_lately(case.policy, lately))
    assert shares == {name: borrowed(loans, name) for name in names}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9000), st.integers(0, 9000)), min_size=2),
    st.integers(0, 20_000),
)
@settings(max_examples=examples(60, nightly=4000))
def test_with_what_they_had_lately_borrowers_come_to_one_level(
    borrowers: list[tuple[int, int, int]], idle: int
) -> None:
    """Each one's weight, what it wants, and what it has borrowed lately."""
    names = [f"b{i}" for i in range(len(borrowers))]
    limits = {"lending_limit_millislices": Millislices(PLENTY)}
    tenants = {"lender": Tenant("lender", "", Quota(Millislices(idle), **limits))}
    for name, (weight, _, _) in zip(names, borrowers, strict=True):
        quota = Quota(Millislices(0), borrowing_limit_millislices=Millislices(PLENTY))
        tenants[name] = Tenant(name, "", replace(quota, weight=weight))
    wants = {name: want for name, (_, want, _) in zip(names, borrowers, strict=True)}
    lately = {name: past for name, (_, _, past) in zip(names, borrowers, strict=True)}
    loans = lend(tenants, wants, (), PLENTY, lately)
    got = [borrowed(loans, name) for name in names]
    assert sum(got) == min(idle, sum(wants.values()))
    levels = [
        (share + past // 1000 * 1000, weight)
        for share, (weight, _, past) in zip(got, borrowers, strict=True)
    ]
    hungry = [level for level, n, share in zip(levels, names, got, strict=True) if share < wants[n]]
    fed = [level for level, share in zip(levels, got, strict=True) if share]
    for (has, weight), (more, other) in product(hungry, fed):
        assert (more - 1) * weight <= (has + 1) * other, "who has less for its weight goes first"


@given(TINY)
@settings(max_examples=examples(120, nightly=8000))
def test_nobody_gets_a_unit_that_somebody_poorer_for_its_weight_could_have(case: Case) -> None:
    """Level by level from the top, between the siblings and the account of the tenant above."""
    ours, policy = case.lend(), case.policy
    ways = [way for way in every_way(case) if is_as_near(policy, way, ours)]
    waiting = [""]
    while waiting:
        name = waiting.pop()
        own = [name] if name else []
        below = [child for child in policy if policy[child].parent == name]

        def got(loans: Sequence[Loan]) -> list[int]:
            entered = [entering(policy, loans, child) for child in below]  # noqa: B023
            return [borrowed(loans, one) for one in own] + entered  # noqa: B023

        mine = got(ours)
        weights = [policy[one].quota.weight for one in (*own, *below)]
        for theirs in map(got, ways):
            assert not is_fairer_by_one(theirs, mine, weights)
        ways = [way for way in ways if got(way) == mine]
        waiting += below


def is_as_near(policy: Policy, way: Sequence[Loan], ours: Sequence[Loan]) -> bool:
    return total(way) == total(ours) and all(
        inside(policy, way, name) == inside(policy, ours, name) for name in policy
    )


def is_fairer_by_one(theirs: Sequence[int], mine: Sequence[int], weights: Sequence[int]) -> bool:
    """Whether it is mine but for one unit, which makes a poorer one no richer than its giver."""
    moved = [their - my for their, my in zip(theirs, mine, strict=True)]
    if sorted(moved) != [-1, *[0] * (len(moved) - 2), 1]:
        return False
    giver, taker = moved.index(-1), moved.index(1)
    return theirs[giver] * weights[taker] >= theirs[taker] * weights[giver]


@given(SOME, st.data())
@settings(max_examples=examples(50, nightly=3000))
def test_unchanged_demand_leaves_the_loans_as_they_are(case: Case, data: st.DataObject) -> None:
    loans = other_demand(case, data).lend()
    loans = case.lend(loans)
    assert case.lend(loans) == loans


@given(SOME, st.data())
@settings(max_examples=examples(50, nightly=3000))
def test_what_a_borrower_gets_does_not_depend_on_what_it_had(
    case: Case, data: st.DataObject
) -> None:
    anew, on = case.lend(), case.lend(other_demand(case, data).lend())
    assert is_feasible(case, on)
    for name in case.policy:
        assert borrowed(on, name) == borrowed(anew, name)


@given(cases(range(2, 6), 5000, flat=True), st.data())
@settings(max_examples=examples(50, nightly=3000))
def test_no_loan_changes_without_need(case: Case, data: st.DataObject) -> None:
    """Unless the lender needs its own, a borrower's loans all grow or all shrink with its share."""
    before = other_demand(case, data).lend()
    after = case.lend(before)
    assume(all(lent(before, name) <= case.idle(name) for name in case.policy))
    now = {(loan.lender, loan.borrower): loan.amount_millislices for loan in after}
    for name in case.policy:
        grows = borrowed(after, name) - borrowed(before, name)
        for loan in before:
            change = now.get((loan.lender, loan.borrower), 0) - loan.amount_millislices
            if loan.borrower == name:
                assert change * grows >= 0
                assert grows or not change


@given(SOME_FLAT)
@settings(max_examples=examples(50, nightly=3000))
def test_what_stays_idle_is_as_equal_as_it_can_be(case: Case) -> None:
    loans = case.lend()
    left = {name: case.idle(name) - lent(loans, name) for name in case.policy}
    for name, tenant in case.policy.items():
        most = min(case.idle(name), tenant.quota.lending_limit_millislices)
        if lent(loans, name) < most:
            assert all(left[name] <= left[one] + 1 for one in left if lent(loans, one))


@given(SOME, st.data())
@settings(max_examples=examples(50, nightly=3000))
def test_a_lender_that_needs_more_never_makes_a_borrower_richer(
    case: Case, data: st.DataObject
) -> None:
    loans = case.lend()
    lenders = sorted({loan.lender for loan in loans})
    assume(lenders)
    lender = data.draw(st.sampled_from(lenders))
    needs = data.draw(st.integers(case.demand[lender], guaranteed_quota(case.policy)[lender]))
    after = replace(case, demand={**case.demand, lender: needs}).lend(loans)
    assert total(after) <= total(loans)
    if not any(parents(case.policy)):
        for name in case.policy:  # rounding may move one millislice
            assert borrowed(after, name) <= borrowed(loans, name) + 1


@given(SOME, st.data())
@settings(max_examples=examples(50, nightly=3000))
def test_while_nominals_exceed_the_capacity_no_loan_is_new_or_larger(
    case: Case, data: st.DataObject
) -> None:
    top = sum(nominal_of(case.policy, name) for name in top_level(case.policy))
    capacity = data.draw(st.one_of(st.none(), st.integers(0, max(0, top - 1))))
    assume(capacity is None or capacity < top)
    before = other_demand(case, data).lend()
    had = {(loan.lender, loan.borrower): loan.amount_millislices for loan in before}
    after = case.lend(before, capacity)
    assert is_feasible(case, after)
    for loan in after:
        assert loan.amount_millislices <= had[loan.lender, loan.borrower]
    assert case.lend(after, capacity) == after


@given(cases(range(1, 7), 6), st.data())
@settings(max_examples=examples(100, nightly=6000))
def test_loans_are_cut_to_the_limits_and_no_further(case: Case, data: st.DataObject) -> None:
    names = sorted(case.policy)
    loans = drawn_loans(data, [*names, "gone"])
    known = [loan for loan in loans if {loan.lender, loan.borrower} <= set(names)]
    cut = within_limits(case.policy, loans)
    assert is_allowed(case.policy, cut)
    left = {(loan.lender, loan.borrower): loan for loan in cut}
    for loan in known:
        now = left.get((loan.lender, loan.borrower), replace(loan, amount_millislices=0))
        assert now.amount_millislices <= loan.amount_millislices
        if now != loan:
            more = replace(now, amount_millislices=now.amount_millislices + 1)
            assert not is_allowed(case.policy, [*(one for one in cut if one != now), more])
    assert within_limits(case.policy, cut) == cut


@given(SOME)
@settings(max_examples=examples(60, nightly=4000))
def test_limits_never_exceed_what_is_above_them(case: Case) -> None:
    policy, loans = case.policy, case.lend()
    found = standings(policy, loans)
    nominal, own = effective_nominal(policy), guaranteed_quota(policy)
    raw = {
        name: nominal[name] - leaving(policy, loans, name) + entering(policy, loans, name)
        for name in policy
    }
    for above in ("", *policy):
        below = [name for name in policy if policy[name].parent == above]
        for_itself = (
            (own[above] - given_away(loans, above), taken(loans, above)) if above else (0, 0)
        )
        limits = limits_of(found, above) if above else (0, 0)
        have = sum(limits) + sum(found[name].limit_millislices for name in below)
        assert all(found[name].limit_millislices == raw[name] for name in below)
        assert limits == for_itself
        assert not above or have <= found[above].limit_millislices
    for name in policy:
        assert found[name].lent_millislices == leaving(policy, loans, name)
        assert found[name].borrowed_millislices == entering(policy, loans, name)
        guarantee = min(own[name], found[name].limit_millislices)
        assert found[name].guaranteed_millislices == guarantee


def given_away(loans: Sequence[Loan], name: str) -> int:
    return sum(loan.amount_millislices for loan in loans if loan.lender == name)


def taken(loans: Sequence[Loan], name: str) -> int:
    return sum(loan.amount_millislices for loan in loans if loan.borrower == name)


def limits_of(found: Mapping[str, Standing], name: str) -> tuple[int, int]:
    return found[name].own_qos_limit_millislices, found[name].borrowed_qos_limit_millislices


@given(SOME)
@settings(max_examples=examples(50))
def test_loans_move_limits_but_never_their_sum(case: Case) -> None:
    found = standings(case.policy, case.lend())
    top = top_level(case.policy)
    raised = sum(found[name].limit_millislices for name in top)
    assert raised == sum(nominal_of(case.policy, name) for name in top)


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
UPDATES = st.builds(
    TenantUpdate,
    NAMES,
    parent=st.one_of(st.none(), st.just(""), NAMES),
    removed=st.sampled_from([None, None, None, True]),
    nominal_millislices=st.one_of(st.none(), st.integers(0, 20).map(Millislices)),
)


@given(st.lists(UPDATES, max_size=30))
@settings(max_examples=examples(60, nightly=4000))
def test_whatever_is_changed_the_policy_stays_a_tree_that_covers_itself(
    updates: list[TenantUpdate],
) -> None:
    policy: Policy = {}
    for update in updates:
        before = dict(policy)
        try:
            policy = changed(policy, update)
        except InvalidInputError:
            assert policy == before
        for name, tenant in policy.items():
            assert tenant.parent in {"", *policy}
            assert name not in up_from(policy, tenant.parent)
            below = sum(nominal_of(policy, c) for c in policy if policy[c].parent == name)
            assert tenant.quota.nominal_millislices in {0, nominal_of(policy, name)}
            assert guaranteed_quota(policy)[name] == nominal_of(policy, name) - below >= 0
            assert payers(policy)[name] == name


@given(st.data(), st.integers(1, 5), st.integers(1, 5))
def test_one_tree_becomes_another_in_any_order(
    data: st.DataObject, times: int, others: int
) -> None:
    policy = data.draw(policies(data.draw(st.integers(1, 8)), 20))
    names = data.draw(st.permutations(sorted(policy)))
    updates = [
        TenantUpdate(name, nominal_millislices=Millislices(scaled(policy, others)[name]))
        for name in names
    ]
    before = {
        name: with_quota(policy[name], nominal_millislices=amount)
        for name, amount in scaled(policy, times).items()
    }
    after, refused = changed_together(before, updates)
    assert refused == {}
    assert {n: t.quota.nominal_millislices for n, t in after.items()} == scaled(policy, others)


def scaled(policy: Policy, times: int) -> Mapping[str, int]:
    return {name: one.quota.nominal_millislices * times for name, one in policy.items()}


def nominal_of(policy: Policy, name: str) -> int:
    own = policy[name].quota.nominal_millislices
    return own or sum(nominal_of(policy, one) for one in policy if policy[one].parent == name)


def total(loans: Sequence[Loan]) -> int:
    return sum(loan.amount_millislices for loan in loans)


def top_level(policy: Policy) -> list[str]:
    return [name for name, tenant in policy.items() if not tenant.parent]


def parents(policy: Policy) -> list[str]:
    return [tenant.parent for tenant in policy.values()]


def with_quota(tenant: Tenant, **changes: int) -> Tenant:
    return replace(tenant, quota=replace(tenant.quota, **changes))


def other_demand(case: Case, data: st.DataObject) -> Case:
    """The same tenants at another time."""
    moves = st.integers(-3000, 3000)
    return replace(
        case, demand={name: max(0, d + data.draw(moves)) for name, d in case.demand.items()}
    )


def drawn_loans(data: st.DataObject, names: Sequence[str]) -> list[Loan]:
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
    found = data.draw(st.lists(pairs.filter(lambda pair: pair[0] != pair[1]), unique=True))
    return [Loan(*pair, Millislices(data.draw(st.integers(1, 9)))) for pair in found]


@given(st.data())
def test_a_tenant_could_hold_what_it_gets_while_nobody_else_wants_anything(
    data: st.DataObject,
) -> None:
    policy = drawn_policy(data.draw, data.draw(st.integers(1, 6)), 10_000)
    highest, own = highest_limits(policy, None), guaranteed_quota(policy)
    for name in policy:
        alone = {one: PLENTY if one == name else 0 for one in policy}
        lent = sum(loan.amount_millislices for loan in lend(policy, alone, (), PLENTY))
        assert highest[name] == own[name] + lent
