"""Tests replicas that are told to leave: which, how the launcher learns of it, when it is over."""

import time
from dataclasses import replace

import pytest
from stand_ins.scripted import ScriptedSlurm, job, sync_of

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import WHEN_REPLACED_S, EvictRequest, SlotView
from slicewise.slurm_plugin.rules.quota.types import Recall
from slicewise.slurm_plugin.rules.services.eviction import AGAIN_S, EVICTION_S, REST_S, Evictions
from slicewise.slurm_plugin.rules.services.state import to_be_replaced
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

WHY = "its GPU is cut anew"
RUNS = job(0, JobState.RUNNING, nodes=("gpu01",))
ASKED = EvictRequest(runs=((RUNS.job_id, RUNS.start_s), (4711, RUNS.start_s)), why=WHY)


async def looked(*jobs: JobView) -> tuple[ClusterState, ScriptedSlurm]:
    slurm = ScriptedSlurm(*jobs)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return cluster_state, slurm


def ends(cluster_state: ClusterState) -> list[tuple[int | None, str]]:
    (service,) = cluster_state.view.services
    return [(slot.ends_in_s, slot.ends_why) for slot in service.slots]


STAYS = (None, "")
GOES = (WHEN_REPLACED_S, WHY)


async def test_who_is_told_leaves_once_another_serves_and_nobody_else_does() -> None:
    cluster_state, _ = await looked(RUNS, job(1, JobState.RUNNING, nodes=("gpu01",)), job(2))
    cluster_state.evictions.take(ASKED, cluster_state.view.services)
    await cluster_state.turn()
    assert ends(cluster_state) == [GOES, STAYS, STAYS]


async def test_what_nobody_repeats_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_state, _ = await looked(RUNS, job(1), job(2))
    cluster_state.evictions.take(ASKED, cluster_state.view.services)
    told_s = time.monotonic()
    for later_s, now in ((EVICTION_S - 1, GOES), (EVICTION_S + 1, STAYS)):
        monkeypatch.setattr(cluster_state.evictions, "_clock", lambda s=later_s: told_s + s)
        await cluster_state.turn()
        assert ends(cluster_state)[0] == now


async def test_a_run_that_began_since_the_request_was_decided_stays() -> None:
    again = replace(RUNS, start_s=2000, nodes=("gpu02",))
    cluster_state, _ = await looked(again, job(1), job(2))
    cluster_state.evictions.take(ASKED, cluster_state.view.services)
    await cluster_state.turn()
    assert ends(cluster_state)[0] == STAYS


async def test_it_does_not_hold_for_the_next_run_of_the_slot() -> None:
    cluster_state, slurm = await looked(RUNS, job(1), job(2))
    cluster_state.evictions.take(ASKED, cluster_state.view.services)
    slurm.shown = (replace(RUNS, start_s=2000, nodes=("gpu02",)), job(1), job(2))
    await cluster_state.turn()
    assert ends(cluster_state)[0] == STAYS


BACK = "its slice goes back to vision, job 12 waits"
ENDS = (0, BACK)


def told(cluster_state: ClusterState, *job_ids: int, over: int = 9000) -> list[int]:
    runs = {slot.job_id: slot.start_s for one in cluster_state.view.services for slot in one.slots}
    victims = {(job_id, runs.get(job_id)): BACK for job_id in job_ids}
    much = {"vision": over}
    return [
        one.job_id
        for one in cluster_state.evictions.end(victims, much, cluster_state.view.services, 60.0)
    ]


async def test_who_is_told_to_end_now_is_named_once_and_told_on() -> None:
    starts = job(1, JobState.CONFIGURING, nodes=("gpu01",), start_s=None)
    cluster_state, _ = await looked(RUNS, starts, job(2))
    assert told(cluster_state, RUNS.job_id, starts.job_id, 902, 4711) == [
        RUNS.job_id,
        starts.job_id,
    ]
    assert told(cluster_state, RUNS.job_id, starts.job_id) == []
    await cluster_state.turn()
    assert ends(cluster_state) == [ENDS, ENDS, STAYS]


async def test_who_is_told_stays_told_while_its_tenant_holds_too_much() -> None:
    """It drains already: to take another one in its place would cost two."""
    cluster_state, _ = await looked(RUNS, job(1, JobState.RUNNING, nodes=("gpu01",)), job(2))
    told(cluster_state, RUNS.job_id)
    for over, now in ((1, ENDS), (0, STAYS)):
        told(cluster_state, over=over)
        await cluster_state.turn()
        assert ends(cluster_state)[0] == now


async def test_who_is_needed_no_more_stays_if_the_others_suffice() -> None:
    """One of the jobs that waited was cancelled."""
    second = job(1, JobState.RUNNING, nodes=("gpu01",))
    cluster_state, _ = await looked(RUNS, second, job(2))
    told(cluster_state, RUNS.job_id, second.job_id)
    for over, first in ((2000, ENDS), (1000, STAYS)):
        assert told(cluster_state, second.job_id, over=over) == []
        await cluster_state.turn()
        assert ends(cluster_state) == [first, ENDS, STAYS]


async def test_its_end_is_its_run_s_and_goes_before_a_successor() -> None:
    cluster_state, slurm = await looked(RUNS, job(1), job(2))
    cluster_state.evictions.take(ASKED, cluster_state.view.services)
    told(cluster_state, RUNS.job_id)
    await cluster_state.turn()
    assert ends(cluster_state)[0] == ENDS
    slurm.shown = (replace(RUNS, start_s=2000), job(1), job(2))
    await cluster_state.turn()
    assert told(cluster_state) == []
    assert ends(cluster_state)[0] == STAYS


async def test_a_run_that_began_since_it_was_chosen_is_not_told() -> None:
    """Its job was requeued, and runs in its tenant's own QOS by now."""
    cluster_state, slurm = await looked(RUNS, job(1), job(2))
    chosen = {(RUNS.job_id, RUNS.start_s): BACK}
    slurm.shown = (replace(RUNS, start_s=2000), job(1), job(2))
    await cluster_state.turn()
    services = cluster_state.view.services
    assert cluster_state.evictions.end(chosen, {"vision": 9000}, services, 60.0) == ()
    await cluster_state.turn()
    assert ends(cluster_state)[0] == STAYS


CALLED = (Recall("lab", "vision", Millislices(1000), 5),)


class Clock:
    """In seconds from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        began_s, self.now_s = time.monotonic(), 0.0
        monkeypatch.setattr("time.monotonic", lambda: began_s + self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_its_slots_wait_until_the_lender_has_started_its_job(clock: Clock) -> None:
    cluster_state, _ = await looked(RUNS, job(1), job(2))
    evictions = cluster_state.evictions
    assert not evictions.waits("vision")
    told(cluster_state, RUNS.job_id)
    for now_s, recalls, starting, waits in (
        (1.0, CALLED, (), True),
        (2.0, CALLED, ("lab",), True),
        (3.0, (), ("lab",), True),
        (4.0, (), ("hpc",), False),
        (5.0, CALLED, ("lab",), False),
    ):
        clock.now_s = now_s
        evictions.wait_on(recalls, starting)
        assert (evictions.has_waiting, evictions.waits("vision")) == (waits, waits)
        told(cluster_state, over=0)


@pytest.mark.parametrize(("after_s", "rest_s"), [(AGAIN_S - 1, REST_S), (AGAIN_S, 0.0)])
async def test_they_wait_some_more_where_the_lender_was_back_soon(
    clock: Clock, after_s: float, rest_s: float
) -> None:
    cluster_state, _ = await looked(RUNS, job(1), job(2))
    evictions = cluster_state.evictions
    for over_s in (0.0, after_s):
        clock.now_s = over_s
        told(cluster_state, RUNS.job_id)
        told(cluster_state, over=0)
        evictions.wait_on((), ())
    for more_s, waits in ((0.9 * rest_s, rest_s > 0), (rest_s, False)):
        clock.now_s = after_s + more_s
        assert (evictions.has_waiting, evictions.waits("vision")) == (False, waits)


async def test_a_wait_that_the_grace_has_ended_is_over_too(clock: Clock) -> None:
    cluster_state, _ = await looked(RUNS, job(1), job(2))
    evictions = cluster_state.evictions
    for over_s in (60.0, 100.0):
        told(cluster_state, RUNS.job_id)
        told(cluster_state, over=0)
        clock.now_s = over_s
        evictions.wait_on(CALLED if over_s == 60 else (), ())
    assert (evictions.has_waiting, evictions.waits("vision")) == (False, True)
    clock.now_s += 20.0
    assert not evictions.waits("vision"), "the grace is its bound"


async def test_its_slots_wait_while_it_goes_whatever_is_called(clock: Clock) -> None:
    cluster_state, _ = await looked(RUNS, job(1), job(2))
    told(cluster_state, RUNS.job_id)
    for now_s, over, waits in ((0.0, 9000, True), (59.0, 9000, True), (59.5, 0, False)):
        clock.now_s = now_s
        told(cluster_state, over=over)
        cluster_state.evictions.wait_on((), ())
        assert cluster_state.evictions.has_waiting is waits


async def test_its_slots_wait_no_longer_than_the_grace(clock: Clock) -> None:
    cluster_state, _ = await looked(RUNS, job(1), job(2))
    told(cluster_state, RUNS.job_id)
    for now_s, waits in ((59.0, True), (60.0, False)):
        clock.now_s = now_s
        cluster_state.evictions.wait_on(CALLED, ("lab",))
        assert (cluster_state.evictions.waits("vision"), cluster_state.evictions.has_waiting) == (
            waits,
            waits,
        )


async def test_once_another_is_told_they_wait_anew(clock: Clock) -> None:
    second = job(1, JobState.RUNNING, nodes=("gpu01",))
    cluster_state, _ = await looked(RUNS, second, job(2))
    told(cluster_state, RUNS.job_id)
    told(cluster_state, over=0)
    cluster_state.evictions.wait_on((), ())
    told(cluster_state, second.job_id)
    cluster_state.evictions.wait_on(CALLED, ())
    clock.now_s = 59.0
    assert cluster_state.evictions.waits("vision")


class Standby:
    def leads(self) -> bool:
        return False

    def require(self) -> None:
        raise UnreachableError("SW-DAEMON-STANDBY", "another one leads")


async def test_a_daemon_that_stands_by_takes_none() -> None:
    cluster_state, _ = await looked(RUNS)
    with pytest.raises(UnreachableError, match="SW-DAEMON-STANDBY"):
        Evictions(Standby(), lambda: 0.0).take(ASKED, cluster_state.view.services)


RUNNING = SlotView(index=0, state="running")


@pytest.mark.parametrize(
    ("slot", "ends_in_s"),
    [
        (RUNNING, WHEN_REPLACED_S),
        (RUNNING.model_copy(update={"state": "starting"}), WHEN_REPLACED_S),
        (RUNNING.model_copy(update={"state": "ending"}), None),
        (RUNNING.model_copy(update={"ends_in_s": 239}), 239),
        (RUNNING.model_copy(update={"ends_in_s": 240}), WHEN_REPLACED_S),
    ],
)
def test_what_must_end_sooner_or_ends_already_is_left_as_it_is(
    slot: SlotView, ends_in_s: int | None
) -> None:
    assert to_be_replaced(slot, WHY).ends_in_s == ends_in_s
