"""Tests which tenants lend how much to which."""

from collections.abc import Mapping

import pytest
from builders.tenants import free_tenant, policy_of

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.lending import crossing, lend, within_limits
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy

CAPACITY = 100_000


Loans = dict[tuple[str, str], int]


def loans_of(amounts: Loans) -> list[Loan]:
    return [Loan(*ends, Millislices(amount)) for ends, amount in amounts.items()]


def lent(
    tenants: Policy,
    demand: Mapping[str, int],
    current: Loans | None = None,
    capacity: int | None = CAPACITY,
) -> Loans:
    found = lend(tenants, demand, loans_of(current or {}), capacity)
    assert list(found) == sorted(found)
    return {(loan.lender, loan.borrower): loan.amount_millislices for loan in found}


def test_who_wants_more_gets_what_is_idle():
    two = policy_of(free_tenant("a", 6000), free_tenant("b", 2000))
    assert lent(two, {"a": 1000, "b": 5000}) == {("a", "b"): 3000}
    assert lent(two, {"a": 1000, "b": 9000}) == {("a", "b"): 5000}
    assert lent(two, {"a": 6000, "b": 9000}) == {}
    assert lent(two, {}) == {}


def test_lending_is_opt_in_on_both_sides():
    closed = {"lending_limit_millislices": 0, "borrowing_limit_millislices": 0}
    demand = {"b": 9000}
    assert lent(policy_of(free_tenant("a", 6000, **closed), free_tenant("b")), demand) == {}
    assert lent(policy_of(free_tenant("a", 6000), free_tenant("b", **closed)), demand) == {}
    bounded = policy_of(
        free_tenant("a", 6000, lending_limit_millislices=2000),
        free_tenant("b", borrowing_limit_millislices=1500),
    )
    assert lent(bounded, demand) == {("a", "b"): 1500}


def test_what_is_scarce_is_shared_by_weight():
    three = policy_of(free_tenant("a", 6000), free_tenant("b", weight=2), free_tenant("c"))
    assert lent(three, {"b": 9000, "c": 9000}) == {("a", "b"): 4000, ("a", "c"): 2000}


def test_who_wants_less_than_its_share_leaves_it_to_the_others():
    four = policy_of(
        free_tenant("a", 7000), free_tenant("b", weight=5), free_tenant("c"), free_tenant("d")
    )
    demand = {"b": 1000, "c": 9000, "d": 9000}
    assert lent(four, demand) == {("a", "b"): 1000, ("a", "c"): 3000, ("a", "d"): 3000}


def test_a_share_that_is_not_whole_loses_nothing():
    four = policy_of(free_tenant("a", 1000), free_tenant("b"), free_tenant("c"), free_tenant("d"))
    shares = lent(four, {"b": 9000, "c": 9000, "d": 9000})
    assert sorted(shares.values()) == [333, 333, 334]


def test_it_is_drawn_from_who_has_most_idle():
    three = policy_of(free_tenant("a", 6000), free_tenant("b", 4000), free_tenant("c"))
    assert lent(three, {"c": 1500}) == {("a", "c"): 1500}
    assert lent(three, {"c": 4000}) == {("a", "c"): 3000, ("b", "c"): 1000}


def test_what_counts_is_what_lies_idle_not_what_may_be_lent():
    three = policy_of(
        free_tenant("a", 10_000, lending_limit_millislices=4000),
        free_tenant("b", 6000),
        free_tenant("c"),
    )
    assert lent(three, {"c": 4000}) == {("a", "c"): 4000}


def test_of_a_subtree_what_it_does_not_lend_inside_lies_idle():
    tree = policy_of(
        free_tenant("lab"),
        free_tenant("a", 8000, "lab"),
        free_tenant("b", 0, "lab"),
        free_tenant("c", 5000),
        free_tenant("d"),
    )
    # 3000 of lab's 8000 are idle once b has its 5000, so c gives first.
    assert lent(tree, {"b": 5000, "d": 2000}) == {("a", "b"): 5000, ("c", "d"): 2000}


def test_siblings_come_first():
    tree = policy_of(
        free_tenant("lab"),
        free_tenant("a", 4000, "lab"),
        free_tenant("b", 0, "lab"),
        free_tenant("c", 0),
        free_tenant("d", 4000),
    )
    assert lent(tree, {"b": 4000, "c": 4000}) == {("a", "b"): 4000, ("d", "c"): 4000}


def test_subtrees_share_as_one_and_inside_weights_count_anew():
    tree = policy_of(
        free_tenant("idle", 8000),
        free_tenant("lab", weight=3),
        free_tenant("a", 0, "lab", weight=2),
        free_tenant("b", 0, "lab"),
        free_tenant("lone", weight=1),
    )
    demand = {"a": 9000, "b": 9000, "lone": 9000}
    assert lent(tree, demand) == {("idle", "a"): 4000, ("idle", "b"): 2000, ("idle", "lone"): 2000}


def test_a_tenant_s_own_jobs_take_part_beside_its_children():
    tree = policy_of(
        free_tenant("idle", 6000), free_tenant("lab", weight=2), free_tenant("a", 0, "lab")
    )
    assert lent(tree, {"lab": 9000, "a": 9000}) == {("idle", "a"): 2000, ("idle", "lab"): 4000}


def test_a_parent_lends_its_own_part_to_its_children_whatever_its_own_limits():
    tree = policy_of(
        free_tenant("lab", 6000, lending_limit_millislices=0, borrowing_limit_millislices=0),
        free_tenant("a", 2000, "lab"),
    )
    assert lent(tree, {"a": 5000}) == {("lab", "a"): 3000}
    assert lent(tree, {"lab": 5000}) == {("a", "lab"): 1000}


def test_limits_above_bind_what_leaves_and_enters_their_subtrees():
    tree = policy_of(
        free_tenant("north", lending_limit_millislices=1000),
        free_tenant("a", 4000, "north"),
        free_tenant("south", borrowing_limit_millislices=2500),
        free_tenant("b", 0, "south"),
        free_tenant("c", 0, "south"),
        free_tenant("d", 9000),
    )
    demand = {"b": 9000, "c": 9000, "d": 9000}
    assert lent(tree, demand) == {("a", "b"): 500, ("a", "c"): 500}
    assert sum(lent(tree, {**demand, "d": 0}).values()) == 2500


def test_loans_stay_with_who_has_them():
    five = policy_of(
        *(free_tenant(name, 4000) for name in "abc"), free_tenant("d"), free_tenant("e")
    )
    before: Loans = {("a", "d"): 1000, ("b", "e"): 1000, ("c", "e"): 500}
    assert lent(five, {"d": 1000, "e": 1500}, before) == before
    # a has more idle than c, but nothing is gained by moving the loan.
    assert lent(five, {"d": 0, "e": 1500}, before) == {("b", "e"): 1000, ("c", "e"): 500}
    # What d wants more is taken where most is idle, along no new pair than needed.
    more = lent(five, {"d": 1500, "e": 1500}, before)
    assert more == {("a", "d"): 1000, ("b", "e"): 1000, ("c", "d"): 500, ("c", "e"): 500}


def test_a_loan_grows_before_a_new_one_is_made():
    four = policy_of(
        free_tenant("a", 4000), free_tenant("b", 4000), free_tenant("c"), free_tenant("d")
    )
    before: Loans = {("a", "c"): 1000, ("b", "d"): 1000}
    after = lent(four, {"c": 2000, "d": 3000}, before)
    assert after == {("a", "c"): 2000, ("a", "d"): 500, ("b", "d"): 2500}


def test_a_lender_that_needs_its_own_gets_it_back():
    three = policy_of(free_tenant("a", 4000), free_tenant("b", 4000), free_tenant("c"))
    before: Loans = {("a", "c"): 2000, ("b", "c"): 2000}
    after = lent(three, {"a": 3000, "c": 4000}, before)
    assert after == {("a", "c"): 1000, ("b", "c"): 3000}


def test_of_too_many_loans_those_of_who_has_least_left_end():
    three = policy_of(free_tenant("a", 4000), free_tenant("b", 3000), free_tenant("c"))
    before: Loans = {("a", "c"): 3000, ("b", "c"): 500}
    assert lent(three, {"c": 3000}, before) == {("a", "c"): 2500, ("b", "c"): 500}
    assert lent(three, {"b": 2500, "c": 3000}, before) == {("a", "c"): 3000}


def test_what_is_lent_beyond_the_loans_is_drawn_from_who_has_most_left():
    five = policy_of(
        free_tenant("a", 4000),
        free_tenant("b", 4000),
        free_tenant("c", 3500),
        free_tenant("d"),
        free_tenant("e"),
    )
    after = lent(five, {"d": 3000, "e": 1000}, {("a", "d"): 3000})
    assert after == {("a", "d"): 3000, ("b", "e"): 750, ("c", "e"): 250}


@pytest.mark.parametrize("capacity", [7999, 0, None])
def test_short_of_capacity_there_are_no_new_loans_and_what_is_not_needed_ends(capacity: int | None):
    three = policy_of(free_tenant("a", 4000), free_tenant("b", 4000), free_tenant("c"))
    assert lent(three, {"c": 4000}, {}, capacity) == {}
    before: Loans = {("a", "c"): 2000, ("b", "c"): 1000}
    assert lent(three, {"c": 4000}, before, capacity) == before
    demand = {"a": 3500, "c": 4000}
    assert lent(three, demand, before, capacity) == {("a", "c"): 500, ("b", "c"): 1000}
    assert lent(three, {"c": 1500}, before, capacity) == {("a", "c"): 500, ("b", "c"): 1000}


def test_capacity_that_just_suffices_is_enough():
    two = policy_of(free_tenant("a", 4000), free_tenant("c"))
    assert lent(two, {"c": 4000}, {}, 4000) == {("a", "c"): 4000}


def test_within_limits_cuts_the_largest():
    three = policy_of(
        free_tenant("a", 4000, lending_limit_millislices=3000), free_tenant("b"), free_tenant("c")
    )
    loans = loans_of({("a", "b"): 3500, ("a", "c"): 1000})
    assert within_limits(three, loans) == tuple(loans_of({("a", "b"): 2000, ("a", "c"): 1000}))


def test_within_limits_drops_what_has_no_tenant_or_no_room():
    two = policy_of(free_tenant("a", 1000), free_tenant("b", borrowing_limit_millislices=0))
    assert within_limits(two, loans_of({("a", "b"): 1, ("a", "gone"): 1, ("gone", "a"): 1})) == ()


def test_a_loan_crosses_the_subtrees_that_only_one_end_is_in():
    tree = policy_of(
        free_tenant("lab"),
        free_tenant("a", 1000, "lab"),
        free_tenant("b", 1000, "lab"),
        free_tenant("c", 1000),
    )
    loans = loans_of({("a", "b"): 10, ("a", "c"): 3, ("c", "b"): 5})
    assert crossing(tree, loans) == (
        {"lab": 3, "a": 13, "b": 0, "c": 5},
        {"lab": 5, "a": 0, "b": 15, "c": 3},
    )


def after(lately: Mapping[str, int], tenants: Policy, demand: Mapping[str, int]) -> Loans:
    found = lend(tenants, demand, (), CAPACITY, lately)
    return {(loan.lender, loan.borrower): loan.amount_millislices for loan in found}


def test_who_has_borrowed_lately_has_that_already():
    three = policy_of(free_tenant("a", 6000), free_tenant("b", 1000), free_tenant("c"))
    demand = {"b": 9000, "c": 9000}
    assert after({}, three, demand) == {("a", "b"): 3000, ("a", "c"): 3000}
    assert after({"b": 3000}, three, demand) == {("a", "b"): 2000, ("a", "c"): 4000}
    assert after({"b": 99_000}, three, demand) == {("a", "c"): 6000}
    assert after({"b": 99_000, "c": 97_000}, three, demand) == {("a", "b"): 2500, ("a", "c"): 3500}
    assert after({"b": 99_000}, three, {"b": 9000}) == {("a", "b"): 6000}, "nobody else wants it"


def test_what_was_held_on_its_own_part_or_less_than_a_slice_does_not_count():
    three = policy_of(free_tenant("a", 6000), free_tenant("b", 1000), free_tenant("c"))
    demand = {"b": 9000, "c": 9000}
    assert after({"b": 1999}, three, demand) == after({}, three, demand)


def test_the_past_counts_by_weight_too():
    three = policy_of(free_tenant("a", 6000), free_tenant("b", weight=2), free_tenant("c"))
    demand = {"b": 9000, "c": 9000}
    assert after({"b": 2000}, three, demand) == {("a", "b"): 3333, ("a", "c"): 2667}


@pytest.mark.parametrize("of", ["lab", "group", "x"])
def test_a_subtree_has_the_past_of_all_in_it_once_however_deep_they_are(of: str):
    tree = policy_of(
        free_tenant("a", 6000),
        free_tenant("lab"),
        free_tenant("group", parent="lab"),
        free_tenant("x", parent="group"),
        free_tenant("y"),
    )
    demand = {"x": 9000, "y": 9000}
    assert after({of: 2000}, tree, demand) == {("a", "x"): 2000, ("a", "y"): 4000}


def test_within_a_subtree_the_past_of_its_own_account_counts_as_that_of_those_below_it():
    tree = policy_of(free_tenant("a", 6000), free_tenant("lab"), free_tenant("x", parent="lab"))
    demand = {"lab": 9000, "x": 9000}
    assert after({"lab": 2000}, tree, demand) == {("a", "lab"): 2000, ("a", "x"): 4000}
    assert after({"x": 2000}, tree, demand) == {("a", "lab"): 4000, ("a", "x"): 2000}
