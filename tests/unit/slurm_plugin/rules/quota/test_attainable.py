"""Tests the most that a tenant could ever hold."""

from dataclasses import replace
from typing import Any

from builders.tenants import policy_of, tenant

from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.quota.attainable import (
    Attainable,
    attainable,
    highest_limits,
    period_budgets,
)
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy, Tenant


def borrows(amount: int) -> dict[str, Any]:
    return {"borrowing_limit_millislices": Millislices(amount)}


def lends(amount: int) -> dict[str, Any]:
    return {"lending_limit_millislices": Millislices(amount)}


def test_the_nominal_with_what_may_be_borrowed() -> None:
    policy = policy_of(tenant("a", 2000, **borrows(1000)), tenant("b", 1500, **lends(9000)))
    assert highest_limits(policy, None) == {"a": 3000, "b": 1500}


def test_no_more_than_others_may_ever_lend() -> None:
    policy = policy_of(
        tenant("a", 2000, **borrows(9000)),
        tenant("lab", 5000, **lends(1500)),
        tenant("vision", 4000, "lab", **lends(300), **borrows(700)),
        tenant("nlp", 500, "lab", **lends(9000), **borrows(9000)),
        tenant("c", 800),
    )
    # The lab's own 500, and of its children no more than they lend; a gets no more than 1500.
    assert highest_limits(policy, None) == {
        "a": 2000 + 300 + 500 + 500,
        "lab": 500 + 300 + 500,
        "vision": 4000 + 700,
        "nlp": 500 + 500 + 300,
        "c": 800,
    }
    less = policy_of(policy["a"], tenant("lab", 5000, **lends(100)))
    assert highest_limits(less, None)["a"] == 2100


def test_by_the_calendar_the_most_of_any_hour_counts() -> None:
    now = policy_of(tenant("lab", 3000), tenant("a", 2000, "lab"))
    assert attainable(now, None, None) == Attainable(
        {"lab": 1000, "a": 2000}, {"lab": 0, "a": 0}, {"lab": 1000, "a": 2000}
    )
    highest = policy_of(tenant("lab", 5000), tenant("a", 4000, "lab", **borrows(500)))
    assert attainable(now, highest, None) == Attainable(
        {"lab": 5000, "a": 4000}, {"lab": 0, "a": 500}, {"lab": 5000, "a": 4500}
    )


def test_no_more_than_those_above_and_the_cluster_have() -> None:
    policy = policy_of(
        tenant("org", 0, **borrows(1000)),
        tenant("lab", 2000, "org", **borrows(9000)),
        tenant("vision", 2000, "lab", **borrows(9000), **lends(9000)),
        tenant("other", 5000, **lends(9000)),
    )
    # The lab's quota is the group's only by what the lab lends, which is nothing.
    most = {"org": 1000, "lab": 3000, "vision": 3000, "other": 5000}
    assert highest_limits(policy, 9000) == most
    assert highest_limits(policy, 2500) == {name: min(one, 2500) for name, one in most.items()}


def paid(policy: Policy, name: str, period: Period) -> Tenant:
    amounts = (MillisliceSeconds(amount) for amount in (100, 20, 3))
    return replace(policy[name], budget=Budget(period, *amounts))


def test_a_periods_budget_is_its_payers() -> None:
    policy = dict(policy_of(tenant("lab", 9), tenant("vision", 9, "lab"), tenant("nlp", 9)))
    policy["lab"] = paid(policy, "lab", Period.WEEK)
    assert period_budgets(policy) == {"lab": 123, "vision": 123}
    policy["vision"] = paid(policy, "vision", Period.NONE)
    assert period_budgets(policy) == {"lab": 123}
