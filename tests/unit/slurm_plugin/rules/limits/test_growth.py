"""Tests what keeps a limit of a QOS from growing."""

from fractions import Fraction

import pytest
from builders.tenants import tenant

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.limits.desired import (
    BILLING,
    RUN_MINUTES,
    DesiredLimits,
    Difference,
    InUse,
    Setting,
    SlurmLimits,
)
from slicewise.slurm_plugin.rules.limits.growth import (
    growing,
    overdrawn,
    overtaken,
    shrinking,
    unfunded,
)
from slicewise.slurm_plugin.rules.quota.standings import QosUse
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Loan

POLICY = {
    name: tenant(name, 1000, parent)
    for name, parent in (("a", ""), ("b", ""), ("c", ""), ("sub", "a"))
}
EACH = {name: f"slicewise_{name}" for name in ("a", "a_borrowed", "b", "b_borrowed", "c", "sub")}


def limit(qos: str, now: int, wanted: int) -> Difference:
    return Difference(LimitKey("qos", qos, BILLING), str(now), str(wanted), "")


@pytest.mark.parametrize(
    ("planned", "now", "waits"),
    [
        ({}, {}, set()),
        ({}, {"slicewise_a": 1000}, set()),
        ({}, {"slicewise_a": 1500}, {"slicewise_a_borrowed"}),
        # What it held before the limits were planned is no surprise.
        ({"slicewise_a": 1500}, {"slicewise_a": 1500}, set()),
        ({}, {"slicewise_a_borrowed": 1}, {"slicewise_a"}),
    ],
)
def test_what_the_other_qos_took_meanwhile(
    planned: dict[str, int], now: dict[str, int], waits: set[str]
):
    wanted = DesiredLimits({LimitKey("qos", "slicewise_a", BILLING): Setting("1000", "")}, {})
    assert overtaken(POLICY, wanted, QosUse(planned), QosUse(now), MILLISLICES) == waits


@pytest.mark.parametrize(("held", "waits"), [(1000, set()), (1500, {"slicewise_a_borrowed"})])
def test_what_it_took_is_counted_as_slurm_bills_it(held: int, waits: set[str]):
    wanted = DesiredLimits({LimitKey("qos", "slicewise_a", BILLING): Setting("8", "")}, {})
    now, eight = QosUse({"slicewise_a": held}), BillingUnit(Fraction(8))
    assert overtaken(POLICY, wanted, QosUse({}), now, eight) == waits


@pytest.mark.parametrize(
    ("stuck", "free", "waits"),
    [
        ((), 0, set()),
        (("a",), None, {"a_borrowed", "b_borrowed", "sub"}),
        (("a_borrowed",), None, {"a"}),
        # What is free of the cluster is for the others, as far as it goes.
        (("a",), 1999, {"a_borrowed", "b_borrowed", "sub", "c"}),
        (("a",), 2000, {"a_borrowed", "b_borrowed", "sub"}),
    ],
)
def test_who_waits_for_what_slurm_refuses_to_shrink(
    stuck: tuple[str, ...], free: int | None, waits: set[str]
):
    kept = [limit(EACH[name], 1000, 0) for name in stuck]
    grow = [limit(qos, 0, 1000) for name, qos in EACH.items() if name not in stuck]
    loans = (Loan("a", "b", Millislices(1000)),)
    found = unfunded(kept, grow, POLICY, loans, free)
    assert found & set(EACH.values()) == {EACH[name] for name in waits}


def part(qos: str, now: int, wanted: int) -> Difference:
    return Difference(LimitKey("qos", qos, RUN_MINUTES), str(now), str(wanted), "")


def test_no_part_of_a_budget_grows_while_another_one_can_not_be_made_less():
    draws = {"own": ("b", "a"), "sub": ("a",), "other": ("c",)}
    assert overdrawn((part("own", 5, 1),), draws) == {"own", "sub"}
    assert overdrawn((part("other", 5, 1), limit("own", 5, 1)), draws) == {"other"}
    assert overdrawn((), draws) == frozenset()


def test_a_part_of_a_budget_that_slurm_refuses_to_make_less_keeps_no_slices():
    stuck, grow = [part(EACH["a"], 9000, 1)], [limit(EACH["b"], 0, 1000), part(EACH["b"], 0, 9999)]
    assert unfunded(stuck, grow, POLICY, (), 0) == frozenset()
    stuck.append(limit(EACH["c"], 1000, 0))
    assert EACH["b"] not in unfunded(stuck, grow, POLICY, (), 1000)


def test_parts_of_budgets_shrink_and_grow_like_slices():
    less, more = part("own", 5, 1), part("sub", 1, 5)
    found = SlurmLimits(
        "c",
        {},
        (),
        {name: Qos(name, {}, frozenset()) for name in ("own", "sub")},
        frozenset(),
        InUse(),
    )
    assert shrinking((less, more), found) == (less,)
    assert growing((less, more), found) == (more,)
    # A part grows from nothing, too: no job can hold anything in a QOS that does not exist yet.
    new = part("new", 0, 5)
    assert growing((new,), found) == (new,)
