"""What was used before the beginning, as fair share and Slicewise's priorities count it."""

from dataclasses import replace

import pytest
from builders.site_world import BEGIN_S, COSTS, GPU, SETTINGS, cluster, past, slicewise, tenants

from slicewise.simulation.rules.cluster import PriorityWeights, Scheduling
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.past_use import EarlierRun, earlier_runs, used_billing_s
from slicewise.simulation.rules.site.plans import SitePlan, SlurmPlan
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding

HOUR_S = 3600.0
TIMES = SiteTimes(BEGIN_S, BEGIN_S + HOUR_S, BEGIN_S + HOUR_S)


def ran(
    account: str, gpus: int, since_s: float, run_s: float, partition: str = "gpu"
) -> HistoryJob:
    """A job that started at once, so many seconds before the beginning."""
    job = past(account, gpus, -since_s, run_s, partition=partition)
    return replace(job, started_s=job.submit_s)


def earlier(*jobs: HistoryJob) -> tuple[EarlierRun, ...]:
    return earlier_runs(enumerate(jobs), Replayable(cluster(), COSTS), BEGIN_S)


def test_what_ran_before_the_beginning_counts_up_to_it() -> None:
    found = earlier(
        ran("A", 1, 3000, 600),
        ran("b", 2, 1000, 5000),
        replace(ran("b", 1, 1000, 5000), started_s=None),
        replace(ran("b", 1, 1000, 5000), started_s=BEGIN_S),
        ran("b", 1, 1000, 500, partition="old"),
    )
    assert found == (
        EarlierRun("user_A", "gpu", Holding("a", GPU, BEGIN_S - 3000, BEGIN_S - 2400)),
        EarlierRun("user_b", "gpu", Holding("b", 2 * GPU, BEGIN_S - 1000, BEGIN_S)),
    )


@pytest.mark.parametrize(("half_life_s", "kept"), [(0.0, 1.0), (HOUR_S, 0.5)])
def test_use_is_forgotten_by_half_lives(half_life_s: float, kept: float) -> None:
    found = used_billing_s(earlier(ran("a", 1, HOUR_S, 1)), BEGIN_S, half_life_s)
    assert found == {("a", "user_a"): pytest.approx(kept * GPU, rel=1e-3)}


def site(plan: SitePlan, *before: HistoryJob, fair_share: int = 0) -> Site:
    """Of four GPUs, for which two jobs come at once; the first is b's."""
    weights = PriorityWeights(fair_share=fair_share)
    scheduling = Scheduling(weights, interval_s=0.0, start_s=0.0, complete_s=0.0)
    accounts = {"a": "root", "b": "root"}
    on = cluster(nodes=1, scheduling=scheduling, accounts=accounts)
    can = Replayable(on, COSTS)
    jobs = (past("a", 4, 0, 60), past("b", 4, 10, 600), past("a", 4, 20, 600))
    found = replays(enumerate(jobs), can, begin_s=TIMES.begin_s, end_s=TIMES.last_s)
    return Site(on, plan, COSTS, found, TIMES, earlier=earlier(*before))


def test_fair_share_knows_who_used_much() -> None:
    """Of two jobs that wait, that of the user goes first who used less."""

    def first(*before: HistoryJob) -> str:
        record = site(SlurmPlan("Slurm alone"), *before, fair_share=1000).run()
        return min(record.jobs[1:], key=lambda job: job.runs[0].start_s).tenant

    few, much = 9000.0, 90_000.0
    assert first(ran("a", 1, 90_000, few), ran("b", 1, 90_000, much)) == "a"
    assert first(ran("a", 1, 90_000, much), ran("b", 1, 90_000, few)) == "b"


def test_slicewise_knows_who_used_much_in_its_partitions() -> None:
    plan = slicewise(tenants(a=2, b=2), settings=SETTINGS)

    def shares(*before: HistoryJob) -> dict[str, float]:
        one = site(plan, *before)
        one.run()
        return dict(one.shares)

    assert shares()["b"] > shares(ran("b", 4, 90 * HOUR_S, 80 * HOUR_S))["b"]
