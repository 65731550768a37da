"""Tests the headline benchmark's mixed load: its rules, pods under the HPA, and the figures."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from builders.simulated_services import a_service

mpl.use("Agg")

from matplotlib import pyplot as plt

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.services.request_figures import ServiceRecord, outcome
from slicewise.simulation.rules.services.service import EngineModel, SimulatedService
from slicewise.simulation.rules.site.records import ReplayedJob, ReplayedRun, SiteRecord
from studies.headline.hpa_pods import GRACE_S, HpaPods
from studies.headline.mixed_bound import Bound, bound
from studies.headline.mixed_drawn import drawn
from studies.headline.mixed_figures import mixed_figures, over_seeds, saving
from studies.headline.mixed_load import (
    ALIKE,
    HALF,
    INSTANCES,
    MixedLoad,
    batch,
    demand_s,
    divided,
    kind_of,
)
from studies.headline.mixed_plot import save_mixed
from studies.headline.mixed_services import (
    BEGIN_S,
    PARTITION,
    SLICE,
    WHOLE,
    MixedService,
    always_on,
    busiest_rate,
    counts_from_s,
    fewest,
    fullest,
)
from studies.headline.mixed_shares import idle
from studies.headline.mixed_systems import (
    MIXED_SETS,
    SLICEWISE,
    SLICEWISE_REPARTITION,
    STATIC,
    MixedRecord,
    sets_on,
    shrunk,
)
from studies.headline.plot import bars

HOUR_S = 3600.0
TABLE = ((1, 1.0), (2, 1.5), (4, 2.5))


def service(arrivals_s: Sequence[float], kind: str = SLICE, **spec: Any) -> SimulatedService:
    """One request takes a second alone and 1.5 s beside another one, within 4.5 s."""
    made = a_service(
        [],
        service_s=(1.0, 1.5),
        loads_s=(10.0,),
        spec={"profile": kind, "max_queue_s": None, "p95_ms": 4_500, "keep_alive_s": None, **spec},
        applied_s=BEGIN_S,
        partition=PARTITION,
    )
    arrivals = tuple(BEGIN_S + at_s for at_s in arrivals_s)
    return replace(made, arrivals_s=arrivals, sizes=(1.0,) * len(arrivals))


def job(account: str, at_s: float, run_s: float, kind: str = SLICE) -> HistoryJob:
    return HistoryJob(
        job_id=1,
        user=account,
        account=account,
        partition=PARTITION,
        qos="",
        submit_s=BEGIN_S + at_s,
        run_s=run_s,
        time_limit_s=int(run_s) + 60,
        gpus={kind: 1},
        nodes=1,
    )


def load(*jobs: HistoryJob, hours: float = 0.5) -> MixedLoad:
    """A service with two requests a second, which two replicas keep up with, and two tenants."""
    arrivals = [number / 2 for number in range(int(2 * hours * HOUR_S))]
    found = MixedService("made up", "none", service(arrivals), service(arrivals, WHOLE), 2, 2)
    owned = divided(
        {**INSTANCES, SLICE: INSTANCES[SLICE] - 2},
        {kind: {"batch1": 1.0, "batch2": 1.0} for kind in INSTANCES},
    )
    end_s = BEGIN_S + hours * HOUR_S
    return MixedLoad(1, (found,), jobs, owned, BEGIN_S, counts_from_s(end_s), end_s)


def test_a_replica_s_places_are_those_that_answer_most_in_time() -> None:
    assert fullest(TABLE, 1.5) == 2
    assert fullest(TABLE, 9.0) == 4
    assert fullest(TABLE, 0.5) == 1


def test_the_fewest_replicas_keep_the_aim_and_one_less_does_not() -> None:
    busy = service([number / 4 for number in range(2400)])
    until_s = BEGIN_S + 600
    found = fewest(busy, until_s)

    def attained(replicas: int) -> float:
        record = always_on(busy, replicas, until_s)
        return outcome(record, since_s=counts_from_s(until_s), until_s=until_s).attainment

    assert attained(found) >= 0.99 > attained(found - 1)


def test_the_busiest_minute_counts() -> None:
    arrivals = load().services[0].slices.arrivals_s
    assert busiest_rate(_floats(arrivals)) == 2.0


def _floats(arrivals: Sequence[float]) -> Any:
    return np.array([at_s - BEGIN_S for at_s in arrivals])


def test_a_request_s_work_is_that_of_a_full_slice_whatever_answers_it() -> None:
    (one,) = load().services
    assert one.work_millislice_s == 1000 * 1.5 / 2


def test_gpus_of_philly_become_slices() -> None:
    assert [kind_of(gpus, INSTANCES) for gpus in (1, 2, 4, 8, 32)] == [
        SLICE, HALF, HALF, WHOLE, WHOLE,
    ]  # fmt: skip
    assert kind_of(8, ALIKE) == SLICE


def test_every_instance_has_an_owner_and_everyone_who_asks_has_one() -> None:
    asked = {SLICE: {"a": 98.0, "b": 1.0, "c": 1.0}, WHOLE: {"b": 5.0}}
    found = divided({SLICE: 10, WHOLE: 3}, asked)
    assert found == {"a": {SLICE: 8}, "b": {SLICE: 1, WHOLE: 3}, "c": {SLICE: 1}}


def test_what_rounding_leaves_becomes_slices() -> None:
    assert shrunk({SLICE: 10, HALF: 3, WHOLE: 1}, 0.5) == {SLICE: 10, HALF: 1, WHOLE: 0}


def philly() -> Sequence[HistoryJob]:
    """Two months of jobs, one every ten minutes, of half an hour each and of all sizes."""
    return [
        replace(job(f"vc{nth % 3}", 600.0 * nth, 1800.0), gpus={"": (1, 2, 8)[nth % 3]})
        for nth in range(144 * 75)
    ]


def test_jobs_ask_for_as_much_as_they_shall() -> None:
    asked = {SLICE: 20.0, HALF: 4.0, WHOLE: 2.0}
    found = batch(philly(), asked, 1, 6.0)
    end_s = BEGIN_S + 6 * HOUR_S
    assert {one.account for one in found} == {"batch1", "batch2", "batch3"}
    assert [one.submit_s for one in found] == sorted(one.submit_s for one in found)
    assert all(BEGIN_S <= one.submit_s < end_s for one in found)
    assert all(one.time_limit_s >= one.run_s for one in found if one.time_limit_s)
    for kind, by in demand_s(found, end_s).items():
        assert sum(by.values()) / (6 * HOUR_S) == pytest.approx(asked[kind], rel=0.15)


def test_the_same_seed_draws_the_same_jobs_and_another_one_others() -> None:
    asked = dict.fromkeys(INSTANCES, 4.0)
    assert batch(philly(), asked, 1, 2.0) == batch(philly(), asked, 1, 2.0)
    assert batch(philly(), asked, 1, 2.0) != batch(philly(), asked, 2, 2.0)


def followed(pods: HpaPods, seconds: range, running_s: dict[int, float]) -> None:
    """Let an HPA have what it wants, one job a pod, each second."""
    for second in seconds:
        now_s = BEGIN_S + second
        pods.follow(running_s, now_s)
        more = pods.more(now_s)
        for _ in range(more):
            number = len(running_s) + 1
            running_s[number] = now_s
            pods.came(number)
        for number in pods.leaving(max(0, -more)):
            pods.gone(number, now_s)


def test_pods_come_with_requests_load_serve_and_go_to_zero() -> None:
    pods = HpaPods(service([5.0 + number / 2 for number in range(120)]), 2)
    running_s: dict[int, float] = {}
    followed(pods, range(400), running_s)
    requests = pods.gateway.requests
    # The HPA looks each 15 s, and a pod loads for ten.
    assert requests.waits[0] == pytest.approx(20.0)
    assert (requests.answered, requests.lost) == (120, 0)
    assert pods.pods == {}
    assert len(pods.runs(BEGIN_S + 400)) == len(running_s)


def test_a_preempted_pod_may_finish_within_its_grace_and_waits_again() -> None:
    slow = replace(service([1.0, 2.0]), engine=EngineModel((0.0,), (10.0, 25.0)))
    pods = HpaPods(slow, 2)
    pods.came(1)
    pods.follow({1: BEGIN_S}, BEGIN_S + 3)
    assert pods.preempted(1, BEGIN_S + 3)
    pods.follow({}, BEGIN_S + 100)
    assert (pods.gateway.requests.answered, pods.gateway.requests.lost) == (2, 0)
    assert pods.pods[1].began_s == inf


def test_what_outlasts_the_grace_is_lost() -> None:
    slow = replace(service([1.0]), engine=EngineModel((0.0,), (GRACE_S + 5, GRACE_S + 5)))
    pods = HpaPods(slow, 2)
    pods.came(1)
    pods.follow({1: BEGIN_S}, BEGIN_S + 3)
    pods.preempted(1, BEGIN_S + 3)
    pods.follow({}, BEGIN_S + 100)
    assert pods.gateway.requests.lost == 1


@pytest.mark.parametrize("system", [*MIXED_SETS])
def test_every_system_serves_requests_and_runs_jobs(system: str) -> None:
    by = load(job("batch1", 700.0, 300.0), job("batch2", 800.0, 300.0, WHOLE))
    found = mixed_figures(system, MIXED_SETS[system](by), by)
    assert (found.jobs, found.unstarted, found.requests) == (2, 0, 2 * by.seconds)
    assert found.attainment > 0.9
    served = 2 * 0.75 / (sum(by.guarantees.values()) / 1000)
    assert found.utilisation_services == pytest.approx(served, rel=0.05)
    whole_s = (300.0 + 7 * 300.0) / (224 * by.seconds)
    assert found.utilisation_batch == pytest.approx(whole_s, rel=0.05)
    assert found.allocated >= found.utilisation


@pytest.mark.parametrize("system", ["kueue_hpa", SLICEWISE])
def test_batch_gets_the_slices_that_services_leave_idle(system: str) -> None:
    """The service rests after its first minutes; jobs fill all slices, its own ones as well."""
    by = load(*[job("batch1", 650.0, 900.0) for _ in range(INSTANCES[SLICE])])
    (one,) = by.services
    idle = replace(one, slices=service([1.0, 2.0]), whole=service([1.0, 2.0], WHOLE))
    by = replace(by, services=(idle,))
    assert mixed_figures(system, MIXED_SETS[system](by), by).unstarted == 0
    assert mixed_figures(STATIC, MIXED_SETS[STATIC](by), by).unstarted > 0


def waited(kind: str, count: int, *runs: ReplayedRun) -> tuple[ReplayedJob, ...]:
    """So many jobs from the beginning on."""
    one = ReplayedJob(1, "batch1", 1000, BEGIN_S, inf, runs, gpus={kind: 1})
    return (one,) * count


def test_idle_instances_could_serve_who_waits_for_their_type_and_cut_anew_others() -> None:
    """Of 112 slices two run; 120 jobs wait for slices, one for a half, for a third of the time."""
    by = load()
    run = ReplayedRun(BEGIN_S, None)
    later = ReplayedRun(by.warm_s + by.seconds / 3, None)
    jobs = (*waited(SLICE, 2, run), *waited(SLICE, 120), *waited(HALF, 1, later))
    record = MixedRecord(SiteRecord(BEGIN_S, by.end_s, jobs), ())
    found = idle(record, by)
    assert found.wanted_s == pytest.approx((110 + 3.5 / 3) * by.seconds)
    assert found.other_type_s == pytest.approx(10 * by.seconds)
    rest = 112 - 10 - 3.5
    assert found.unwanted_s == pytest.approx(rest * by.seconds)
    cut = replace(record, site=replace(record.site, repartitions=()))
    assert idle(cut, by).wanted_s == 0.0
    assert idle(cut, by).other_type_s == pytest.approx((120 + 3.5 / 3) * by.seconds)


def asked(run_s: float, kind: str = SLICE, after_s: float = 0.0) -> ReplayedJob:
    cost = {SLICE: 1000, HALF: 3500}[kind]
    return ReplayedJob(1, "batch1", cost, BEGIN_S + after_s, run_s, gpus={kind: 1})


def bound_of(by: MixedLoad, *jobs: ReplayedJob, services: Sequence[ServiceRecord] = ()) -> Bound:
    return bound(MixedRecord(SiteRecord(BEGIN_S, by.end_s, jobs), tuple(services)), by)


def test_no_rule_does_more_than_instances_hold_or_jobs_ask_for() -> None:
    by = load()
    found = bound_of(by, *[asked(inf)] * 120, asked(inf, HALF))
    assert found.as_cut_s == pytest.approx((112 + 3.5) * by.seconds)
    assert found.any_cut_s == pytest.approx((120 + 3.5) * by.seconds)
    small = replace(by, instances={SLICE: 1})
    both = bound_of(small, asked(by.end_s - by.begin_s - 61.0), asked(inf, after_s=5.0))
    assert both.as_cut_s == pytest.approx(by.seconds), "the second one begins as the first ends"
    gap = bound_of(small, asked(60.0), asked(inf, after_s=by.end_s - BEGIN_S - 90.0))
    assert gap.as_cut_s == pytest.approx(90.0), "nobody waits in between"


def test_what_replicas_hold_is_not_to_be_had_and_who_makes_room_goes_on_later() -> None:
    by = replace(load(), instances={SLICE: 1})
    times = by.warm_s + 100.0, by.warm_s + 400.0
    held = replace(always_on(service([1.0]), 1, by.end_s), runs=[times])
    before_s = by.warm_s - BEGIN_S - 1.0
    found = bound_of(by, asked(before_s + 300.0), services=[held])
    assert found.as_cut_s == pytest.approx(300.0)
    assert bound_of(by, asked(inf), services=[held]).as_cut_s == pytest.approx(by.seconds - 300.0)


@pytest.mark.parametrize("system", [STATIC, "kueue_hpa", SLICEWISE])
def test_no_system_does_more_than_the_bound(system: str) -> None:
    by = load(*[job("batch1", 650.0 + nth, 400.0) for nth in range(INSTANCES[SLICE] + 40)])
    found = mixed_figures(system, MIXED_SETS[system](by), by)
    assert 0.8 < found.of_bound <= 1.0
    assert found.utilisation <= found.bound <= found.bound_any_cut + 1e-9


def test_drawn_jobs_ask_for_what_they_shall_and_fit_their_limits() -> None:
    by_kind = {SLICE: 90.0, HALF: 16.0, WHOLE: 8.0}
    found = drawn(by_kind, 1)
    assert found == drawn(by_kind, 1) != drawn(by_kind, 2)
    end_s = BEGIN_S + 6 * HOUR_S
    for kind, count in by_kind.items():
        of = [one for one in found if kind in one.gpus]
        asked_s = sum(min(one.run_s, end_s - one.submit_s) for one in of)
        assert asked_s == pytest.approx(count * 6 * HOUR_S, rel=0.15)
    assert all(one.run_s <= (one.time_limit_s or 0) for one in found)


@pytest.mark.parametrize("system", ["static_gpus", SLICEWISE, SLICEWISE_REPARTITION])
def test_all_of_the_capacity_is_accounted_for(system: str) -> None:
    by = load(*[job("batch1", 650.0, 900.0) for _ in range(INSTANCES[SLICE])])
    found = mixed_figures(system, MIXED_SETS[system](by), by)
    used = (found.utilisation, found.headroom, found.loading, found.lost)
    idle_ = (found.idle_wanted, found.idle_other_type, found.idle_unwanted)
    assert sum((*used, *idle_)) == pytest.approx(1.0, abs=5e-3)
    assert found.headroom > 0.0


def test_where_gpus_are_cut_again_more_small_jobs_run() -> None:
    by = load(*[job("batch1", 650.0, 1500.0) for _ in range(INSTANCES[SLICE] + 20)])
    record = MIXED_SETS[SLICEWISE_REPARTITION](by)
    assert mixed_figures(SLICEWISE_REPARTITION, record, by).unstarted == 0
    assert record.site.repartitions
    assert SLICEWISE_REPARTITION in sets_on("mixed")
    assert SLICEWISE_REPARTITION not in sets_on("alike")


def test_figures_of_several_loads_are_means() -> None:
    by = load(job("batch1", 700.0, 300.0))
    one = mixed_figures(STATIC, MIXED_SETS[STATIC](by), by)
    other = replace(one, utilisation=one.utilisation + 0.2, worst_service="other")
    found = over_seeds([one, other])
    assert found["utilisation"] == pytest.approx(one.utilisation + 0.1)
    assert (found["system"], found["worst_service"]) == (STATIC, "several")
    assert saving({"per_million": 50.0}, {"per_million": 200.0}) == 0.75


def test_a_panel_without_any_amount_has_zero_on_its_axis() -> None:
    figure, axis = plt.subplots()
    bars(axis, [{"system": "static", "late": 0}], "late", "late", 1.0)
    assert [*axis.get_xticks()] == [0]
    plt.close(figure)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    by = load(job("batch1", 700.0, 300.0))
    row = over_seeds([mixed_figures(STATIC, MIXED_SETS[STATIC](by), by)])
    save_mixed(
        {"mixed": {STATIC: row}}, {"of_bound": 0.97, "attainment": 0.99}, tmp_path / "one.png"
    )
    assert (tmp_path / "one.png").stat().st_size > 1000
