"""Repartitions on a simulated site: GPUs follow the shapes that jobs wait for."""

from collections import Counter
from dataclasses import replace

import pytest
from builders.settings import site_settings
from builders.simulated_services import a_service
from builders.site_world import BEGIN_S, MUCH, past, slicewise, tenants
from builders.tenants import policy_of, tenant

from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.history.fitting import fitted
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.node_figures import joined_repartitions, repartition_figures
from slicewise.simulation.rules.services.request_figures import outcome
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.simulation.rules.site.failures import Outage
from slicewise.simulation.rules.site.node_capacity import capacity_millislices
from slicewise.simulation.rules.site.past_requests import NO_NODES, Replayable, replays
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.site.repartitions import EVERY_S
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.simulation.rules.snapshot.boards import boards_of, with_pads
from slicewise.slurm_plugin.rules.quota.types import Policy

SMALL, LARGE = "1g.10gb", "3g.40gb"
CUTTING = site_settings(
    types=[SMALL, "2g.20gb", LARGE],
    whole=["a100"],
    name="test",
    repartition={"allowed": True, "move_s": 120},
)
KEEPING = CUTTING.model_copy(
    update={"repartition": CUTTING.repartition.model_copy(update={"allowed": False})}
)
COSTS = CUTTING.costs
HOUR_S = 3600.0


def site(gpus: dict[str, int], nodes: int = 1, settings: Settings = CUTTING) -> SimulatedCluster:
    boards = boards_of(gpus, settings)
    found = dict(gpus) if boards is None else with_pads(gpus, boards)
    each = SimulatedNode("", frozenset({"gpu"}), found, boards=boards)
    return SimulatedCluster(
        "test", tuple(replace(each, name=f"n{number}") for number in range(nodes))
    )


def ran(
    on: SimulatedCluster,
    *jobs: HistoryJob,
    settings: Settings = CUTTING,
    hours: float = 6,
    down: tuple[Outage, ...] | None = None,
    policy: Policy | None = None,
    services: tuple[SimulatedService, ...] = (),
) -> SiteRecord:
    end_s = BEGIN_S + hours * HOUR_S
    times, can = SiteTimes(BEGIN_S, end_s, end_s), Replayable(on, COSTS)
    found = replays(enumerate(jobs), can, begin_s=BEGIN_S, end_s=end_s)
    plan = replace(slicewise(policy or tenants(a=4, b=4), settings=settings), services=services)
    return Site(on, plan, COSTS, found, times, down=down).run()


def test_a_job_of_a_type_that_is_cut_nowhere_gets_it():
    record = ran(site({SMALL: 7}), past("a", {LARGE: 1}))
    (repartition,) = record.repartitions or ()
    assert repartition.is_done
    # Cron runs at whole multiples; a repartition takes a minute, in which nothing holds the board.
    assert repartition.begin_s % EVERY_S == 0
    assert repartition.end_s - repartition.begin_s == 60
    assert repartition.lost_millislice_s == 60 * 7000
    (run,) = record.jobs[0].runs
    assert 0 <= run.start_s - repartition.end_s <= 5


def test_what_runs_on_the_board_stays_and_the_rest_is_cut():
    small = [past("a", {SMALL: 1}, 0, 5000.0) for _ in range(2)]
    record = ran(site({SMALL: 7}), *small, past("b", {LARGE: 1}, 10, 500.0))
    (repartition,) = record.repartitions or ()
    assert repartition.is_done
    assert repartition.lost_millislice_s == 60 * 5000
    assert [job.runs[0].end_s - job.runs[0].start_s for job in record.jobs[:2]] == [5000.0] * 2
    assert all(len(job.runs) == 1 for job in record.jobs)


def test_nothing_is_cut_where_the_settings_do_not_allow_it():
    record = ran(site({SMALL: 7}, settings=KEEPING), past("a", {SMALL: 1}), settings=KEEPING)
    assert record.repartitions is None
    found = Replayable(site({SMALL: 7}, settings=KEEPING), COSTS)
    assert found.of(0, past("a", {LARGE: 1}), BEGIN_S) == NO_NODES


def test_while_instances_are_free_for_all_nothing_is_cut():
    jobs = [past("a", {SMALL: 1}, 100.0 * nth) for nth in range(7)]
    assert ran(site({SMALL: 7}), *jobs).repartitions == ()


def test_jobs_in_the_way_are_not_ended_for_a_cut():
    """What runs does so until the end, and what else is there others wait for: nothing to gain."""
    small = [past("a", {SMALL: 1}, 0, 6 * HOUR_S) for _ in range(7)]
    record = ran(site({SMALL: 7}), *small, past("b", {LARGE: 1}, 10, 500.0))
    assert [len(job.runs) for job in record.jobs] == [1, 1, 1, 1, 1, 1, 1, 0]
    assert record.repartitions == ()


def test_who_is_owed_a_type_gets_it_from_jobs_on_loan_within_the_grace():
    """b's quota names a large instance. Its board is cut, and lent to a."""
    small = [past("a", {SMALL: 1}, 0, 3 * HOUR_S) for _ in range(7)]
    large = past("b", {LARGE: 1}, 1000, 500.0)
    limits = {"borrowing_limit_millislices": MUCH, "lending_limit_millislices": MUCH}
    for types in ({LARGE: 1}, {}):
        owner = tenant("b", 4000, type_nominals=types, **limits)
        policy = policy_of(tenant("a", 3000, **limits), owner)
        record = ran(site({SMALL: 7}), *small, large, policy=policy)
        started_s = record.jobs[7].runs[0].start_s - BEGIN_S
        again = [job for job in record.jobs[:7] if len(job.runs) > 1]
        if types:
            assert started_s <= 1000 + 120
            # Three or four of a's end, all on loan, and begin anew.
            assert 3 <= len(again) <= 4
            assert all(job.runs[0].is_on_loan for job in again)
        else:
            # A quota in slices alone promises no type.
            assert started_s >= 3 * HOUR_S
            assert not again


def test_a_replica_in_the_way_moves_to_another_node_and_loses_no_request():
    """Jobs on n0 end, where a replica on n1 finds a place. Its half of a board is cut then."""
    runs_s = [300.0 if nth in {0, 1, 5, 6} else 9000.0 for nth in range(11)]
    jobs = [past("a", {SMALL: 1}, 0, run_s, time_limit_s=9060) for run_s in runs_s]
    spec = {"tenant": "b", "profile": SMALL, "min_replicas": 1, "max_replicas": 3}
    chat = a_service(range(30, 3000, 2), spec=spec, applied_s=BEGIN_S + 20)
    large = past("b", {LARGE: 1}, 310, 500.0)
    limits = {"borrowing_limit_millislices": MUCH, "lending_limit_millislices": MUCH}
    policy = policy_of(tenant("a", 8000, **limits), tenant("b", 6000, **limits))
    on = site({SMALL: 7}, nodes=2)
    record = ran(on, *jobs, large, policy=policy, services=(chat,), hours=0.8)
    (repartition,) = record.repartitions or ()
    assert (repartition.node, repartition.is_done) == ("n1", True)
    assert repartition.begin_s >= BEGIN_S + 300
    assert all(len(job.runs) == 1 for job in record.jobs)
    (served,) = record.services
    found = outcome(served, since_s=BEGIN_S + 60, until_s=BEGIN_S + 2800)
    assert (found.requests, found.lost) == (1370, 0)
    # The successor has begun before the one in the way has ended.
    first, second = sorted(served.runs)
    assert repartition.begin_s <= second[0] < first[1] <= repartition.end_s - 60


def test_a_gpu_is_chosen_for_which_slurm_has_an_order_of_devices():
    """Jobs hold the first and the last of 28 instances on n0: nothing can be between them."""
    runs_s = [9000.0 if nth in {0, 27} else 100.0 for nth in range(28)]
    small = [past("a", {SMALL: 1}, 0, run_s, time_limit_s=9060) for run_s in runs_s]
    record = ran(site({SMALL: 28}, nodes=2), *small, past("b", {LARGE: 1}, 200, 500.0))
    assert {(one.node, one.is_done) for one in record.repartitions or ()} == {("n1", True)}
    # It begins when cron runs next, and once small jobs have left a board.
    assert record.jobs[28].runs[0].start_s <= BEGIN_S + 200 + 2 * EVERY_S + 60


def test_a_node_that_fails_while_it_is_cut_keeps_its_layout():
    at_s = BEGIN_S // EVERY_S * EVERY_S + EVERY_S
    down = (Outage(at_s + 30, at_s + 1000, "n0"),)
    record = ran(site({SMALL: 7}), past("a", {LARGE: 1}), down=down, policy=tenants(a=1))
    first, second = record.repartitions or ()
    assert (first.is_done, second.is_done) == (False, True)
    assert first.end_s == at_s + 30
    assert second.begin_s >= at_s + 1000
    assert record.jobs[0].runs


def test_after_a_cut_the_other_shape_comes_back_when_it_is_wanted():
    large = [past("a", {LARGE: 1}, 0, 1000.0) for _ in range(2)]
    small = [past("a", {SMALL: 1}, 3 * HOUR_S, 1000.0) for _ in range(6)]
    record = ran(site({SMALL: 7}), *large, *small, hours=12)
    assert sum(one.is_done for one in record.repartitions or ()) >= 2
    assert all(job.runs for job in record.jobs)


def test_figures_count_repartitions_that_begin_in_the_time():
    record = ran(site({SMALL: 7}), past("a", {LARGE: 1}))
    (repartition,) = record.repartitions or ()
    found = repartition_figures(record, BEGIN_S, BEGIN_S + HOUR_S)
    assert found is not None
    assert (found.done, found.in_vain, found.lost_slice_s) == (1, 0, 420.0)
    none = repartition_figures(record, repartition.begin_s + 1, BEGIN_S + HOUR_S)
    assert none is not None
    assert none.done == 0
    both = joined_repartitions((found, None, found))
    assert both is not None
    assert (both.done, both.lost_slice_s) == (2, 840.0)
    assert joined_repartitions((None,)) is None
    assert repartition_figures(replace(record, repartitions=None), 0.0, 1.0) is None


def test_the_capacity_is_that_of_whole_boards_however_they_are_cut():
    assert capacity_millislices(site({SMALL: 4, LARGE: 1, "a100": 1}), COSTS) == 7500 + 7000
    assert capacity_millislices(site({SMALL: 4, "pad4": 10}), COSTS) == 2 * 7000
    assert capacity_millislices(site({SMALL: 4}, settings=KEEPING), COSTS) == 4000


def test_jobs_may_ask_for_what_a_gpu_can_be_cut_into():
    jobs = (past("a", {LARGE: 1}), past("a", {"h100": 1}))
    fit = fitted(jobs, site({SMALL: 7}), {"a": 1}, COSTS)
    assert [dict(job.gpus) for job in fit.jobs] == [{LARGE: 1}, {SMALL: 1}]


@pytest.mark.parametrize(
    ("gpus", "count", "laid"),
    [
        ({SMALL: 28}, None, [{SMALL: 7}] * 4),
        ({SMALL: 28}, 8, [{SMALL: 7}] * 4 + [{}] * 4),
        ({SMALL: 8, LARGE: 8}, 8, [{SMALL: 1, LARGE: 1}] * 8),
        ({SMALL: 8, LARGE: 2}, None, [{SMALL: 4, LARGE: 1}] * 2),
        ({SMALL: 3, LARGE: 2}, None, [{LARGE: 2}, {SMALL: 3}]),
        ({SMALL: 4, LARGE: 1, "pad5": 9}, None, [{SMALL: 4, LARGE: 1}, {}]),
        ({SMALL: 29}, 4, None),
        ({SMALL: 4, "pad4": 2}, None, None),
        ({"a100": 8}, None, None),
    ],
)
def test_instances_are_laid_on_boards(gpus, count, laid):
    found = boards_of(gpus, CUTTING, count)
    if laid is None:
        assert found is None
        return
    assert found is not None
    assert [dict(Counter(one.profile for one in layout)) for layout in found.layouts] == laid
    assert found.most[LARGE] == 2 * len(laid)
