"""Tests windows of the calendar: when they hold, which one counts, how they scale a tree."""

from dataclasses import replace

import pytest
from builders.tenants import policy_of, tenant

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.calendar import (
    ALL,
    Moment,
    Window,
    WindowKind,
    capped,
    check_window,
    holds,
    in_force,
    loosely_within,
)
from slicewise.slurm_plugin.rules.quota.calendar_times import moment, moments
from slicewise.slurm_plugin.rules.quota.tenants import effective_nominal
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Quota, Tenant

BERLIN = "Europe/Berlin"
MONDAY_S = 1_795_388_400
"""2026-11-23, midnight in Berlin."""
HOUR_S = 3600
DAY_S = 24 * HOUR_S

WORKDAYS = frozenset(range(5))


def window(kind: str = "nominal", amount: int = 12000, tenant: str = "vision") -> Window:
    return Window(1, tenant, WindowKind(kind), Millislices(amount))


OFFICE = replace(window(), days=WORKDAYS, begin_min=8 * 60, end_min=18 * 60)
NIGHT = replace(window(), days=frozenset({4}), begin_min=20 * 60, end_min=6 * 60)
EVENT = replace(window(amount=3000), window_id=2, first_s=MONDAY_S, last_s=MONDAY_S + DAY_S)


FLAT = policy_of(tenant("vision", 6000, borrowing_limit_millislices=2000), tenant("nlp", 14000))


def at(day: int, hour: float) -> Moment:
    """By the clocks of a plain week."""
    return Moment(MONDAY_S + day * DAY_S + hour * HOUR_S, day, int(hour * 60))


def nominals(policy: Policy) -> dict[str, int]:
    return {name: one.quota.nominal_millislices for name, one in policy.items()}


# When a window holds


@pytest.mark.parametrize(
    ("one", "day", "hour", "does"),
    [
        (window(), 6, 23.9, True),
        (OFFICE, 0, 7.9, False),
        (OFFICE, 0, 8, True),
        (OFFICE, 4, 17.9, True),
        (OFFICE, 4, 18, False),
        (OFFICE, 5, 12, False),
        (NIGHT, 4, 19.9, False),
        (NIGHT, 4, 20, True),
        (NIGHT, 5, 5.9, True),
        (NIGHT, 5, 6, False),
        (NIGHT, 4, 3, False),
        (NIGHT, 5, 20, False),
        (replace(NIGHT, days=frozenset({6})), 0, 5, True),
        (replace(NIGHT, days=frozenset({6}), begin_min=0, end_min=0), 0, 0, False),
        (replace(NIGHT, days=frozenset({6}), begin_min=0, end_min=0), 6, 23.9, True),
    ],
)
def test_a_window_holds_from_its_days_and_over_midnight(
    one: Window, day: int, hour: float, does: bool
) -> None:
    assert holds(one, at(day, hour)) == does


def test_an_event_holds_from_its_first_second_and_not_in_its_last() -> None:
    for second, does in ((-1, False), (0, True), (DAY_S - 1, True), (DAY_S, False)):
        assert holds(EVENT, replace(at(0, 0), at_s=MONDAY_S + second)) == does


def test_one_bound_is_enough() -> None:
    assert not holds(replace(OFFICE, first_s=MONDAY_S + DAY_S), at(0, 12))
    assert holds(replace(OFFICE, first_s=MONDAY_S + DAY_S), at(1, 12))
    assert not holds(replace(OFFICE, last_s=MONDAY_S + DAY_S), at(1, 12))


# Which window counts


def test_without_a_window_that_holds_the_policy_is_as_it_is() -> None:
    unknown = replace(EVENT, tenant="nobody")
    assert in_force(FLAT, [OFFICE, unknown], at(0, 2)) is FLAT


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("nominal", Quota(Millislices(500), Millislices(2000))),
        ("borrowing", Quota(Millislices(6000), Millislices(500))),
        ("lending", Quota(Millislices(6000), Millislices(2000), Millislices(500))),
    ],
)
def test_a_window_sets_its_one_value(kind: str, expected: Quota) -> None:
    found = in_force(FLAT, [window(kind, 500)], at(0, 2))
    assert found == {**FLAT, "vision": Tenant("vision", "", expected)}


def test_an_event_wins_and_then_the_newest() -> None:
    newest = replace(OFFICE, window_id=9, amount_millislices=Millislices(9000))
    for windows, expected in (
        ([OFFICE, EVENT, newest], 3000),
        ([newest, OFFICE], 9000),
        ([OFFICE], 12000),
    ):
        assert nominals(in_force(FLAT, windows, at(0, 12)))["vision"] == expected


# Caps


def test_a_cap_bounds_nominal_and_borrowing() -> None:
    for cap, expected in ((7000, (6000, 1000)), (5000, (5000, 0)), (0, (0, 0))):
        quota = in_force(FLAT, [window("cap", cap)], at(0, 2))["vision"].quota
        assert (quota.nominal_millislices, quota.borrowing_limit_millislices) == expected


def test_the_lowest_cap_counts_and_after_nominals() -> None:
    found = in_force(FLAT, [window("cap", 9000), window("cap", 7000), window()], at(0, 2))
    assert nominals(found)["vision"] == 7000


def test_a_cap_on_all_together_takes_from_each_in_proportion() -> None:
    found = in_force(FLAT, [window("cap", 10000, ALL)], at(0, 2))
    assert nominals(found) == {"vision": 3000, "nlp": 7000}


def test_a_cap_takes_the_same_share_from_a_tenants_own_part_and_from_those_below() -> None:
    policy = policy_of(tenant("lab", 20000), tenant("a", 10000, "lab"), tenant("b", 4000, "lab"))
    found = in_force(policy, [window("cap", 10000, "lab")], at(0, 2))
    assert nominals(found) == {"lab": 10000, "a": 5000, "b": 2000}


def test_a_cap_leaves_no_parts_of_slices() -> None:
    found = in_force(FLAT, [window("cap", 9000, ALL)], at(0, 2))
    assert nominals(found) == {"vision": 3000, "nlp": 6000}
    thirds = policy_of(*(tenant(name, 4000) for name in "abc"))
    found = in_force(thirds, [window("cap", 10000, ALL)], at(0, 2))
    assert nominals(found) == {"a": 4000, "b": 3000, "c": 3000}
    lab = policy_of(tenant("lab", 9000), tenant("a", 4000, "lab"), tenant("b", 500, "lab"))
    found = in_force(lab, [window("cap", 7500, "lab")], at(0, 2))
    assert nominals(found) == {"lab": 7500, "a": 3000, "b": 500}


def test_a_capped_group_stays_a_group() -> None:
    policy = policy_of(
        tenant("lab", 0),
        tenant("a", 6000, "lab", borrowing_limit_millislices=9000),
        tenant("b", 3000, "lab"),
    )
    found = in_force(policy, [window("cap", 3000, "lab")], at(0, 2))
    assert nominals(found) == {"lab": 0, "a": 2000, "b": 1000}
    assert effective_nominal(found)["lab"] == 3000
    assert found["a"].quota.borrowing_limit_millislices == 1000


# The tree


LAB = policy_of(tenant("lab", 14000), tenant("a", 7000, "lab"), tenant("b", 7000, "lab"))
LESS = replace(OFFICE, tenant="lab", amount_millislices=Millislices(10000))


def test_children_that_were_given_more_since_are_scaled_down() -> None:
    found = in_force(LAB, [LESS], at(0, 12))
    assert nominals(found) == {"lab": 10000, "a": 5000, "b": 5000}


@pytest.mark.parametrize("one", [LESS, replace(OFFICE, tenant="a")])
def test_a_window_that_breaks_the_tree_is_refused(one: Window) -> None:
    with pytest.raises(InvalidInputError, match=r"From Mon 08:00 on, lab .*SW-QUOTA-TREE"):
        check_window(LAB, [], one, moments([one], MONDAY_S, BERLIN))


def test_windows_may_make_room_for_each_other() -> None:
    half = Millislices(5000)
    small = [replace(OFFICE, tenant=name, amount_millislices=half) for name in ("a", "b")]
    check_window(LAB, small, LESS, moments([*small, LESS], MONDAY_S, BERLIN))
    later = [replace(one, begin_min=9 * 60) for one in small]
    with pytest.raises(InvalidInputError, match=r"Mon 08:00"):
        check_window(LAB, later, LESS, moments([*later, LESS], MONDAY_S, BERLIN))
    earlier = [replace(one, begin_min=7 * 60, end_min=17 * 60) for one in small]
    with pytest.raises(InvalidInputError, match=r"Mon 17:00"):
        check_window(LAB, earlier, LESS, moments([*earlier, LESS], MONDAY_S, BERLIN))


def test_an_event_is_checked_when_it_comes() -> None:
    """In May, on a Saturday: the other windows hold on workdays only."""
    saturday_s = MONDAY_S + 23 * 7 * DAY_S + 5 * DAY_S
    event = replace(LESS, days=frozenset(), begin_min=0, end_min=0)
    event = replace(event, first_s=saturday_s, last_s=saturday_s + DAY_S)
    small = [replace(OFFICE, tenant=n, amount_millislices=Millislices(5000)) for n in ("a", "b")]
    with pytest.raises(InvalidInputError, match="SW-QUOTA-TREE"):
        check_window(LAB, small, event, moments([*small, event], MONDAY_S, BERLIN))
    always = [replace(one, days=frozenset(), begin_min=0, end_min=0) for one in small]
    check_window(LAB, always, event, moments([*always, event], MONDAY_S, BERLIN))


# Loans


def test_loans_may_be_what_any_window_allows() -> None:
    policy = {
        "vision": tenant("vision", 6000, lending_limit_millislices=6000),
        "nlp": tenant("nlp", 0, borrowing_limit_millislices=10000),
    }
    large = [Loan("vision", "nlp", Millislices(9000))]
    assert loosely_within(policy, [], large)[0].amount_millislices == 6000
    assert loosely_within(policy, [window()], large)[0].amount_millislices == 6000
    more = [window(), window("lending", 8000)]
    assert loosely_within(policy, more, large)[0].amount_millislices == 8000


# Clocks


def shown(one: Moment) -> tuple[int, str]:
    return one.weekday, f"{one.minute // 60:02}:{one.minute % 60:02}"


def test_moments_are_now_and_each_change_of_a_week() -> None:
    friday_s = MONDAY_S + 4 * DAY_S + 12 * HOUR_S
    found = [shown(one) for one in moments([OFFICE], friday_s, BERLIN)]
    assert found[:4] == [(4, "12:00"), (4, "18:00"), (5, "08:00"), (5, "18:00")]
    assert {day for day, _ in found} == set(range(7))


def test_moments_have_the_bounds_of_what_is_to_come() -> None:
    found = {one.at_s for one in moments([EVENT], MONDAY_S - 90 * DAY_S, BERLIN)}
    assert {MONDAY_S, MONDAY_S + DAY_S} <= found


@pytest.mark.parametrize(
    ("day", "changes"),
    [
        # At 2:00 it is 3:00.
        ("2027-03-28", [("00:00", False), ("03:00", True), ("04:00", False)]),
        # At 3:00 it is 2:00 again.
        (
            "2026-10-25",
            [
                ("00:00", False),
                ("02:30", True),
                ("02:00", False),
                ("02:30", True),
                ("04:00", False),
            ],
        ),
    ],
)
def test_windows_go_by_what_clocks_show_when_they_are_changed(
    day: str, changes: list[tuple[str, bool]]
) -> None:
    midnight_s = {"2027-03-28": 1_806_188_400, "2026-10-25": 1_792_879_200}[day]
    one = replace(window(), begin_min=150, end_min=240)
    found = [(shown(m)[1], holds(one, m)) for m in moments([one], midnight_s, BERLIN)][:5]
    assert found[: len(changes)] == changes


def test_a_moment_is_what_clocks_of_the_zone_show() -> None:
    assert shown(moment(MONDAY_S, BERLIN)) == (0, "00:00")
    assert shown(moment(MONDAY_S, "UTC")) == (6, "23:00")


@pytest.mark.parametrize(
    ("top", "amount", "expected"),
    [
        (ALL, 9000, {"lab", "vision", "nlp", "audio"}),
        (ALL, 10000, set()),
        ("lab", 6999, {"lab", "vision", "nlp"}),
        ("lab", 7000, set()),
        ("vision", 3000, {"vision"}),
        ("gone", 0, set()),
    ],
)
def test_a_cap_asks_nobody_to_go_while_all_together_hold_no_more(
    top: str, amount: int, expected: set[str]
) -> None:
    policy = policy_of(
        tenant("lab", 0),
        tenant("vision", 5000, "lab"),
        tenant("nlp", 5000, "lab"),
        tenant("audio", 5000),
    )
    held = {"vision": 4000, "nlp": 3000, "audio": 3000}
    night = replace(window("cap", amount, top), begin_min=22 * 60, end_min=6 * 60)
    assert capped(policy, [night], at(0, 23), held) == expected
    assert capped(policy, [night], at(0, 12), held) == frozenset()
