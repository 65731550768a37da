"""Services on a simulated site: beside jobs, within quota, and on what others lend."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from builders.simulated_services import a_service
from builders.site_world import ALONE, BEGIN_S, GPU, past, simulated, slicewise, tenants
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.jobs import JobView
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.measure import Guarantee, Yardstick, measured
from slicewise.simulation.rules.services.request_figures import ServiceOutcome, outcome
from slicewise.simulation.rules.services.service import SimulatedService
from slicewise.simulation.rules.site.plans import SlicewisePlan
from slicewise.simulation.rules.site.priorities import SitePriorities
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.services.eviction import REST_S

LAST_S = 600.0
GRACE_S = 60
BUSY = [60 + number / 4 for number in range(480)]
"""Four requests in a second for two minutes: what two replicas can work on."""


def chat(arrivals_s: Iterable[float], **spec: Any) -> SimulatedService:
    """a/chat, each replica on a GPU of its own."""
    return a_service(arrivals_s, spec={"tenant": "a", "profile": "a100"} | spec)


def serving(policy: Policy, *services: SimulatedService) -> SlicewisePlan:
    return replace(slicewise(policy), services=services)


def run(plan: SlicewisePlan, *jobs: HistoryJob, last_s: float = LAST_S) -> SiteRecord:
    return simulated(plan, *jobs, last_s=last_s)


def became(record: SiteRecord, last_s: float = LAST_S) -> ServiceOutcome:
    (found,) = record.services
    return outcome(found, since_s=BEGIN_S, until_s=BEGIN_S + last_s)


def most_held(record: SiteRecord, tenant: str) -> int:
    """The most millislices that the tenant held at any moment."""
    runs = [
        (run.start_s, run.end_s or record.stopped_s, job.cost_millislices)
        for job in (*record.jobs, *record.replicas)
        if job.tenant == tenant
        for run in job.runs
    ]
    return max(
        (sum(cost for begin, end, cost in runs if begin <= at_s < end) for at_s, _, _ in runs),
        default=0,
    )


def test_a_service_follows_its_requests_within_its_tenant_s_quota() -> None:
    record = run(serving(tenants(a=4), chat(BUSY)))
    found = became(record)
    assert (found.requests, found.judged, found.lost) == (480, 480, 0)
    assert found.attainment > 0.9
    assert 2 * GPU <= most_held(record, "a") <= 4 * GPU
    assert not any(job.runs[0].is_on_loan for job in record.replicas)
    assert all(job.runs[0].end_s is not None for job in record.replicas)


def test_jobs_of_its_tenant_leave_a_service_less() -> None:
    plan = serving(tenants(a=3), chat(BUSY))
    record = run(plan, past("a", 2, 0, 5000.0))
    assert most_held(record, "a") == 3 * GPU
    assert became(record).wait_p99_s > became(run(plan)).wait_p99_s


def test_replicas_start_on_what_others_lend_once_a_round_has_lent_it() -> None:
    record = run(serving(tenants(a=1, b=7), chat(BUSY)))
    assert {job.runs[0].is_on_loan for job in record.replicas} == {False, True}
    first = min(job.runs[0].start_s for job in record.replicas if job.runs[0].is_on_loan)
    assert first - BEGIN_S < 90
    assert became(record).attainment > 0.8


def test_nothing_lent_no_replica_beyond_its_tenant_s_own() -> None:
    keeps = {
        name: replace(one, quota=replace(one.quota, lending_limit_millislices=0))
        for name, one in tenants(a=1, b=7).items()
    }
    record = run(serving(keeps, chat(BUSY)))
    assert most_held(record, "a") == GPU
    assert not any(job.runs[0].is_on_loan for job in record.replicas)


def test_replicas_leave_in_order_for_a_lender_that_needs_its_own() -> None:
    steady = [60 + number / 2 for number in range(1000)]
    service = chat(steady, max_queue_s=None, max_replicas=6, min_replicas=6)
    record = run(serving(tenants(a=1, b=7), service), past("b", 6, 200, 150.0, nodes=2))
    (job,) = record.jobs
    assert job.runs[0].start_s - BEGIN_S <= 200 + GRACE_S
    left = [one for one in record.replicas if one.runs[0].end_s is not None]
    assert len(left) >= 4
    # None ended while it worked, and all came back once the lender had done.
    assert became(record).lost == 0
    assert most_held(record, "a") == 6 * GPU
    again = [one for one in record.replicas if one.runs[0].start_s > BEGIN_S + 350]
    assert len(again) >= 4


@pytest.mark.parametrize(("before", "rest_s"), [((), 0), ((past("b", 2, 120, 20.0),), REST_S)])
def test_a_lender_starts_at_once_and_slots_wait_for_one_that_comes_and_goes(
    before: tuple[HistoryJob, ...], rest_s: float
) -> None:
    busy = chat([60 + number / 2 for number in range(800)], max_replicas=8, min_replicas=8)
    record = run(serving(tenants(a=1, b=7), busy), *before, past("b", 2, 200, 300.0))
    start_s = record.jobs[-1].runs[0].start_s - BEGIN_S
    assert start_s <= 200 + 10
    (found,) = record.services
    again_s = min(at_s - BEGIN_S for at_s in found.changes_s if at_s - BEGIN_S > start_s)
    # The distance of two rounds.
    assert start_s + rest_s <= again_s <= start_s + rest_s + 18 < 200 + GRACE_S


def test_a_slot_gets_back_what_its_tenant_has_lent_however_lately_a_round_was() -> None:
    """The daemon sees at each turn that a lender is short; its rounds are 15 s apart else."""
    lent = [past("b", 1, 0, 5000.0) for _ in range(8)]
    for after_s in range(0, 15, 3):
        service = chat([305.0 + after_s])
        record = run(serving(tenants(a=2, b=6), service), *lent, past("b", 1, 300, 5000.0))
        first = min(one.runs[0].start_s for one in record.replicas) - BEGIN_S
        assert first <= 305 + after_s + 8


def test_slots_have_the_urgency_of_their_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, bool]] = []

    class Spied(SitePriorities):
        def due(self, jobs: Iterable[JobView], now_s: float, *more: Any) -> Any:
            jobs = tuple(jobs)
            told.append((max(more[1].values(), default=0.0), any(one.task for one in jobs)))
            return super().due(jobs, now_s, *more)

    monkeypatch.setattr("slicewise.simulation.rules.site.deciding.SitePriorities", Spied)
    full = [past("b", 1, 0, 300.0) for _ in range(8)]
    run(serving(tenants(a=1, b=7), chat([60 + nth / 8 for nth in range(400)])), *full)
    assert max(told) > (0.0, True)


def test_by_slurm_alone_there_are_no_services() -> None:
    record = simulated(ALONE, past("a", 4))
    assert (record.services, record.replicas) == ((), ())


def test_what_replicas_hold_counts_for_their_tenant_and_waits_for_nothing() -> None:
    record = run(serving(tenants(a=1, b=7), chat(BUSY)), past("b", 4, 0, 100.0))
    by = Yardstick(
        BEGIN_S, BEGIN_S + LAST_S, 8 * GPU, (Guarantee(BEGIN_S, {"a": GPU, "b": 7 * GPU}),), GRACE_S
    )
    found = measured(record, by)
    sums = found.tenants["a"]
    held = sum(job.runs[0].end_s - job.runs[0].start_s for job in record.replicas)  # type: ignore[operator]
    assert sums.held_millislice_s == held * GPU
    assert 0 < sums.borrowed_millislice_s < sums.held_millislice_s
    assert found.tenants["b"].lent_millislice_s == sums.borrowed_millislice_s
    assert (sums.waits_s, sums.started, sums.late_jobs, sums.own_waited_s) == ((), 0, 0, 0.0)
    assert not any(step.waiting_jobs for step in found.steps)
    assert found.services == (became(record),)
    # Slurm counts a run until it ends it. Each replica goes on for some 5 s after that.
    longest = held + 5.5 * len(record.replicas)
    assert held * GPU <= found.services[0].slice_s * 1000 <= longest * GPU


def test_requests_that_came_before_a_site_begins_are_left_out() -> None:
    record = simulated(serving(tenants(a=4), chat([10.0, 500.0])), begin_s=100.0, last_s=LAST_S)
    (found,) = record.services
    assert found.service.arrivals_s == (BEGIN_S + 500,)
    assert found.service.applied_s == BEGIN_S + 100


LOADS = st.lists(st.floats(0, 200), max_size=30).map(sorted)
JOBS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.floats(0, 300), st.floats(1, 200)),
    max_size=6,
)


@settings(max_examples=examples(10), deadline=None)
@given(LOADS, JOBS, st.integers(1, 4))
def test_whatever_comes_no_request_is_lost_and_nobody_is_above_quota(
    arrivals_s: list[float], jobs: list[tuple[str, int, float, float]], own: int
) -> None:
    plan = serving(tenants(a=own, b=8 - own), chat(arrivals_s, max_queue_s=None))
    history = [past(tenant, gpus, at_s, run_s) for tenant, gpus, at_s, run_s in jobs]
    record = run(plan, *history, last_s=2000.0)
    found = became(record, 2000.0)
    assert (found.requests, found.judged, found.lost) == (len(arrivals_s), len(arrivals_s), 0)
    assert most_held(record, "a") <= 8 * GPU
    if not any(job.runs and any(run.is_on_loan for run in job.runs) for job in record.jobs):
        own_runs = [one for one in record.replicas if not one.runs[0].is_on_loan]
        assert most_held(replace(record, jobs=(), replicas=tuple(own_runs)), "a") <= own * GPU
    assert run(plan, *history, last_s=2000.0) == record
