"""Failures of nodes on a simulated site: drawn by the seed, the same for every plan."""

from dataclasses import replace

import pytest
from builders.site_world import (
    ALONE,
    BEGIN_S,
    DAY_S,
    GPU,
    cluster,
    experiment,
    past,
    slicewise,
    tenants,
)

from slicewise.simulation.rules.cluster import NodeFailures, SimulatedCluster
from slicewise.simulation.rules.runs.node_figures import failure_figures
from slicewise.simulation.rules.runs.run_figures import FailureFigures
from slicewise.simulation.rules.site.failures import Outage
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.plans import SitePlan
from slicewise.simulation.rules.site.records import BrokenRun, DownNode, SiteRecord
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.simulation.runs.outages import outages
from slicewise.simulation.runs.part_run import part_run
from slicewise.simulation.runs.simulate import simulate

pytestmark = pytest.mark.usefixtures("clock")

COSTS = {"a100": GPU}
FAILING = NodeFailures(mean_s=DAY_S, repair_s=3600.0)
OFTEN = replace(cluster(nodes=4), failures=FAILING)


def drawn(on: SimulatedCluster = OFTEN, *, seed: int = 1, **times: float) -> tuple[Outage, ...]:
    given = {"first_s": BEGIN_S, "begin_s": BEGIN_S, "end_s": BEGIN_S + 100 * DAY_S} | times
    return outages(on, seed, **given)


def ran(plan: SitePlan, down: tuple[Outage, ...], *gpus: int) -> SiteRecord:
    jobs = [past("a", count, 10.0 * nth, 1000.0) for nth, count in enumerate(gpus)]
    times, on = SiteTimes(BEGIN_S, BEGIN_S + DAY_S, BEGIN_S + DAY_S), cluster()
    found = replays(enumerate(jobs), Replayable(on, COSTS), begin_s=BEGIN_S, end_s=times.last_s)
    return Site(on, plan, COSTS, found, times, down=down).run()


def test_nodes_fail_as_often_as_is_said():
    found = drawn()
    assert 330 < len(found) < 440
    assert {one.node for one in found} == {"n0", "n1", "n2", "n3"}
    assert len({one.down_s for one in found}) == len(found)
    assert all(one.up_s - one.down_s == 3600 for one in found)
    ends: dict[str, float] = {}
    for one in found:
        assert one.down_s > ends.get(one.node, BEGIN_S)
        ends[one.node] = one.up_s


def test_the_same_seed_gives_the_same_failures_in_every_part_of_the_time():
    whole = drawn()
    assert whole == drawn()
    assert whole != drawn(seed=2)
    begin_s, end_s = whole[9].down_s + 60, whole[60].down_s - 1
    part = drawn(begin_s=begin_s, end_s=end_s)
    assert part == tuple(one for one in whole if one.up_s > begin_s and one.down_s < end_s)
    assert part[0].down_s < begin_s
    more = replace(OFTEN, nodes=cluster(nodes=5).nodes)
    assert [one for one in drawn(more) if one.node != "n4"] == list(whole)


def test_without_failures_none_is_drawn():
    assert drawn(cluster()) == ()


def test_jobs_of_a_node_that_fails_run_again_elsewhere_or_once_it_is_back():
    down = (Outage(BEGIN_S + 500, BEGIN_S + 5000, "n0"),)
    for plan in (ALONE, slicewise(tenants(a=8))):
        record = ran(plan, down, 4, 4, 1)
        first, second, third = record.jobs
        assert [round(run.start_s - BEGIN_S) for run in second.runs] == [10]
        assert first.runs[0].end_s == BEGIN_S + 500
        # Slurm lets a requeued job wait for two minutes; the other node is full until then.
        assert first.runs[1].start_s - BEGIN_S >= 1010
        assert third.runs[0].start_s - BEGIN_S >= 1010
        assert record.down is not None
        assert [(one.down_s, one.cost_millislices) for one in record.down] == [
            (BEGIN_S + 500, 4 * GPU)
        ]
        assert [one.lost_millislice_s for one in record.broken] == [500 * 4 * GPU]


def test_a_node_that_is_down_at_the_beginning_takes_no_job():
    down = tuple(Outage(BEGIN_S - 60, BEGIN_S + 700, name) for name in ("n0", "n1"))
    (job,) = ran(ALONE, down, 4).jobs
    assert job.runs[0].start_s - BEGIN_S >= 700


def test_figures_count_what_lies_in_the_counted_time():
    jobs = [past("a", 4, nth * 1200.0, 5000.0) for nth in range(150)]
    asked = experiment(
        *jobs,
        cluster=replace(cluster(), failures=FAILING),
        seed=5,
        start_s=BEGIN_S + DAY_S,
        end_s=BEGIN_S + 2 * DAY_S,
        tail_s=0.0,
    )
    found = part_run(asked, 0, is_changed=False).figures.failures
    those = outages(
        asked.cluster, 5, first_s=BEGIN_S + DAY_S, begin_s=BEGIN_S, end_s=BEGIN_S + 2 * DAY_S
    )
    assert found is not None
    assert found.failures == len(those) > 0
    assert found.runs_broken == found.failures
    down_s = sum(min(one.up_s, BEGIN_S + 2 * DAY_S) - one.down_s for one in those)
    assert abs(found.down_slice_s - down_s * 4 * GPU / 1000) < 1
    assert 0 < found.broken_slice_s <= found.runs_broken * 5000 * 4 * GPU / 1000


def test_an_outage_counts_for_the_time_in_which_figures_are_counted():
    down = (DownNode(0.0, 100.0, 1000), DownNode(90.0, 200.0, 2000), DownNode(160.0, 170.0, 1000))
    broken = (BrokenRun(10.0, 7000.0), BrokenRun(60.0, 3000.0))
    record = SiteRecord(0.0, 140.0, (), down=down, broken=broken)
    found = failure_figures(record, 50.0, 150.0)
    assert found == FailureFigures(1, 1, broken_slice_s=3.0, down_slice_s=50.0 + 2 * 50.0)


def test_both_plans_get_the_same_failures_and_parts_are_summed():
    jobs = [past("a", 2, nth * 6000.0, 4000.0) for nth in range(70)]
    asked = experiment(
        *jobs,
        cluster=replace(cluster(), failures=FAILING),
        changed=slicewise(tenants(a=8)),
        offsets=2,
        seed=3,
    )
    found = simulate(asked, processes=1)
    assert found.changed is not None
    first, second = found.present.failures, found.changed.failures
    assert first is not None
    assert second is not None
    assert (first.failures, first.down_slice_s) == (second.failures, second.down_slice_s)
    parts = [part_run(asked, number, is_changed=False).figures.failures for number in range(2)]
    assert first.failures == sum(one.failures for one in parts if one is not None)
    assert simulate(replace(asked, cluster=cluster()), processes=1).present.failures is None
