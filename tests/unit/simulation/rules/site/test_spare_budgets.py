"""What budgets have to spare: which jobs start for sure, without a round of quotas before them."""

import pytest
from builders.site_world import tenants

from slicewise.simulation.rules.site.spare_budgets import SpareBudgets
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.limits.budget_parts import Runs, WaitingRun

POLICY = tenants(a=4, b=4)
NO_RUNS = Runs()


def spare(left: int, runs: Runs = NO_RUNS, capacity: int = 0) -> SpareBudgets:
    return SpareBudgets(POLICY, {"a": left}, runs, capacity)


def test_a_job_that_fits_into_the_part_of_one_qos_starts_for_sure() -> None:
    assert spare(1000).lets("a", 499)
    assert not spare(1000).lets("a", 500)


def test_a_job_without_a_limit_or_tenant_may_always_lack_budget() -> None:
    assert not spare(1000).lets("a", None)
    assert not spare(1000).lets("unknown", 1)


def test_no_job_lacks_a_budget_that_its_tenant_does_not_have() -> None:
    assert spare(0).lets("b", 10**9)


def test_each_job_makes_less_of_what_is_to_spare() -> None:
    found = spare(1000)
    assert found.lets("a", 300)
    assert not found.lets("a", 300)


@pytest.mark.parametrize(
    "runs",
    [
        Runs({("a", borrowed_qos("a")): 900}),
        Runs({("below", qos_name("a")): 900}),
        Runs(waiting=(WaitingRun(qos_name("a"), 1, 900),)),
    ],
)
def test_what_runs_and_waits_is_not_to_spare(runs: Runs) -> None:
    assert spare(1000).lets("a", 100)
    assert not spare(1000, runs).lets("a", 100)


def test_slurm_counts_what_runs_some_minutes_late() -> None:
    assert spare(1000, capacity=70).lets("a", 100)
    assert not spare(1000, capacity=90).lets("a", 100)
