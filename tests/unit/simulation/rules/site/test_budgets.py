"""Budgets on a simulated site: what is used up, what waits for it, when a period begins."""

from dataclasses import replace

import pytest
from builders.site_world import (
    BEGIN_S,
    DAY_S,
    GPU,
    cluster,
    past,
    simulated,
    slicewise,
    starts,
    tenants,
)

from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.spending import spent_before
from slicewise.simulation.rules.site.past_requests import Replayable
from slicewise.simulation.rules.site.plans import KnownSpending, SlicewisePlan
from slicewise.slurm_plugin.rules.quota.types import Budget

HOUR_S = 3600.0
NEXT_DAY_S = period_start_s(Period.DAY, int(BEGIN_S), "UTC") + DAY_S - BEGIN_S
"""Seconds after the beginning at which the next day begins: some two hours."""


def limited(gpu_hours: float, **more: int) -> SlicewisePlan:
    """Tenant a with four GPUs and so many GPU-hours a day."""
    amount = MillisliceSeconds(int(gpu_hours * HOUR_S * GPU))
    budget = Budget(Period.DAY, amount, *map(MillisliceSeconds, more.values()))
    return slicewise({name: replace(one, budget=budget) for name, one in tenants(a=4).items()})


def hours(gpus: int, at_s: float, ran: float, asked: float = 1.0) -> HistoryJob:
    return past("a", gpus, at_s, ran * HOUR_S, time_limit_s=int(asked * HOUR_S))


def test_a_job_waits_for_the_next_period_once_the_budget_is_used_up() -> None:
    jobs = hours(1, 0, 1), hours(1, HOUR_S + 600, 1)
    found = starts(simulated(limited(1.5), *jobs))
    assert found[0] == 0
    assert found[1] is not None
    assert NEXT_DAY_S <= found[1] <= NEXT_DAY_S + 320


def test_a_budget_that_is_enough_keeps_nothing_from_its_start() -> None:
    jobs = hours(1, 0, 1), hours(1, HOUR_S + 600, 1)
    assert starts(simulated(limited(2.1), *jobs)) == {0: 0, 1: HOUR_S + 600}


@pytest.mark.parametrize(("gpu_hours", "more"), [(100.0, 0), (1.5, 4)])
def test_a_round_comes_before_a_submission_only_where_a_budget_may_bind(
    gpu_hours: float, more: int
) -> None:
    jobs = [hours(1, 600 * nth, 0.15, 0.2) for nth in range(5)]
    plenty = simulated(limited(1000.0), *jobs)
    found = simulated(limited(gpu_hours), *jobs)
    assert starts(found) == starts(plenty)
    assert found.rounds == plenty.rounds + more


def test_what_a_job_did_not_use_of_its_limit_comes_back() -> None:
    jobs = hours(1, 0, 0.1), hours(1, 600, 0.1)
    assert starts(simulated(limited(1.2), *jobs)) == {0: 0, 1: 600}


def test_limits_of_running_jobs_are_set_aside() -> None:
    jobs = hours(1, 0, 0.9), hours(1, 600, 0.9)
    found = starts(simulated(limited(1.9), *jobs))
    assert found[1] is not None
    assert 0.9 * HOUR_S <= found[1] <= 0.9 * HOUR_S + 320


def test_a_job_that_no_period_s_budget_is_enough_for_is_refused() -> None:
    record = simulated(limited(0.5), hours(1, 0, 1))
    assert record.refused == ((0, "SW-BUDGET-EXCEEDED"),)


def test_what_was_spent_before_the_beginning_is_gone() -> None:
    plan = replace(limited(1.5), spent={"a": int(HOUR_S) * GPU})
    found = starts(simulated(plan, hours(1, 0, 1)))
    assert found[0] is not None
    assert found[0] >= NEXT_DAY_S


def test_what_runs_over_a_period_s_end_is_charged_to_both() -> None:
    long = past("a", 1, NEXT_DAY_S - HOUR_S, 2 * HOUR_S, time_limit_s=2 * 3600)
    late = past("a", 1, NEXT_DAY_S + HOUR_S + 60, HOUR_S, time_limit_s=3600)
    record = simulated(limited(2.1), long, late, last_s=2 * DAY_S)
    assert starts(record)[1] == round(NEXT_DAY_S + HOUR_S + 60)
    record = simulated(limited(2.0), long, late, replace(late, submit_s=late.submit_s + 600))
    assert (starts(record)[2] or 10 * DAY_S) > NEXT_DAY_S + 2 * HOUR_S


@pytest.mark.parametrize(("at_s", "spent_s"), [(6000.0, 5400), (1800.0, 1800)])
def test_the_history_says_what_was_spent_before(at_s: float, spent_s: int) -> None:
    plan, can = limited(9), Replayable(cluster(), {"a100": Millislices(GPU)})
    jobs = [past("a", 1, 0, 5400.0, started_s=BEGIN_S), past("b", 1, 0, 90.0, started_s=BEGIN_S)]
    assert spent_before(plan, jobs, can, BEGIN_S + at_s) == {"a": spent_s * GPU}
    start_s = period_start_s(Period.DAY, int(BEGIN_S), "UTC")
    known = KnownSpending(BEGIN_S + 6200, {"a": 6000 * GPU}, {"a": start_s})
    found = spent_before(replace(plan, known_spending=known), jobs, can, BEGIN_S + at_s)
    assert found == {"a": (6000 - 5400 + spent_s) * GPU}


def test_a_job_that_named_several_partitions_has_spent_in_the_one_it_is_replayed_in() -> None:
    can = Replayable(cluster(), {"a100": Millislices(GPU)})
    job = replace(past("a", 1, 0, 5400.0, started_s=BEGIN_S), partition="elsewhere,gpu")
    assert spent_before(limited(9), [job], can, BEGIN_S + 6000) == {"a": 5400 * GPU}
