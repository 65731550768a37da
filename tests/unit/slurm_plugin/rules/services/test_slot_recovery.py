"""Tests when lost slots come back, and what the sync loop does with slots on borrowed quota."""

from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedSlurm, desire, job, sync_of

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import JobChange, Target
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.slurm_plugin.rules.services.slot_recovery import SlotRecovery
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

HELD, GONE = job(0), job(1, JobState.ENDED)


class Loop:
    """A service whose slot 1 is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slurm = ScriptedSlurm(HELD, GONE)
        self.cluster_state = sync_of(self.slurm)
        self._patch = monkeypatch

    async def turn(self, at_s: float) -> list[tuple[str, Any]]:
        self._patch.setattr(
            "slicewise.slurm_plugin.state.cluster_state.time.monotonic", lambda: at_s
        )
        await self.cluster_state.turn()
        return self.slurm.actions


async def test_a_lost_slot_comes_back_when_the_dust_has_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    assert await loop.turn(100.0) == []
    assert await loop.turn(104.0) == []
    assert await loop.turn(105.0) == [("requeue_hold", [1])]


async def test_what_slurm_refused_is_tried_again_a_minute_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    for at_s in (100.0, 105.0, 106.0, 164.0):
        assert len(await loop.turn(at_s)) == (at_s > 100.0)
    assert len(await loop.turn(165.0)) == 2


async def test_a_slot_that_is_lost_again_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    for at_s in (100.0, 105.0):
        await loop.turn(at_s)
    loop.slurm.shown = (HELD, job(1))
    await loop.turn(106.0)
    loop.slurm.shown = (HELD, GONE)
    for at_s, count in ((107.0, 1), (111.0, 1), (112.0, 2)):
        assert len(await loop.turn(at_s)) == count


async def test_a_cancelled_service_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    loop.slurm.shown = (job(0, JobState.COMPLETING), GONE)
    for at_s in (100.0, 105.0, 200.0):
        assert await loop.turn(at_s) == []


def cancelled(index: int, **changes: Any) -> JobView:
    return job(index, JobState.ENDED, ended="CANCELLED", **changes)


async def test_what_was_cancelled_whole_since_the_look_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    await loop.turn(100.0)
    loop.slurm.meanwhile = (cancelled(0), GONE)
    assert await loop.turn(105.0) == []


async def test_a_slot_comes_back_while_another_lives_right_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    await loop.turn(100.0)
    loop.slurm.meanwhile = (job(0, JobState.RUNNING), GONE)
    assert await loop.turn(105.0) == [("requeue_hold", [1])]


REVIVED = ("requeue_hold", [1])


@pytest.mark.parametrize(
    "others",
    [
        pytest.param((cancelled(0),), id="held or running"),
        pytest.param((), id="never started: Slurm keeps no record"),
    ],
)
async def test_an_array_that_was_cancelled_while_a_slot_came_back_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, others: tuple[JobView, ...]
) -> None:
    loop = Loop(monkeypatch)
    for at_s in (100.0, 105.0):
        await loop.turn(at_s)
    loop.slurm.shown = (*others, job(1))
    assert await loop.turn(106.0) == [REVIVED, ("cancel", 814)]


async def test_an_array_that_was_cancelled_while_a_replica_was_given_up_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    loop.slurm.shown = tuple(job(index, JobState.RUNNING) for index in range(3))
    await loop.turn(100.0)
    await desire(loop.cluster_state, 814, frozenset({0, 1}))
    assert loop.slurm.actions == [("requeue_hold", [2])]
    loop.slurm.shown = (cancelled(0), job(1, JobState.COMPLETING), job(2))
    assert await loop.turn(101.0) == [("requeue_hold", [2])]
    loop.slurm.shown = (cancelled(0), cancelled(1), job(2))
    assert await loop.turn(120.0) == [("requeue_hold", [2]), ("cancel", 814)]


async def test_a_replica_that_is_given_up_cancels_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    loop.slurm.shown = tuple(job(index, JobState.RUNNING) for index in range(3))
    await loop.turn(100.0)
    await desire(loop.cluster_state, 814, frozenset())
    loop.slurm.shown = tuple(job(index) for index in range(3))
    assert await loop.turn(101.0) == [("requeue_hold", [0, 1, 2])]


async def test_a_cancel_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    for at_s in (100.0, 105.0):
        await loop.turn(at_s)
    loop.slurm.shown = (cancelled(0), job(1))
    with monkeypatch.context() as busy:
        busy.setattr(loop.slurm, "cancel", refused)
        assert await loop.turn(106.0) == [REVIVED]
    assert await loop.turn(107.0) == [REVIVED, ("cancel", 814)]
    loop.slurm.shown = (cancelled(0), cancelled(1))
    assert await loop.turn(108.0) == [REVIVED, ("cancel", 814)]


async def refused(_target: Target) -> None:
    raise UnreachableError("SW-SLURM-DOWN", "scancel: connect failure")


async def test_while_what_lived_beside_it_still_ends_nothing_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    loop.slurm.shown = (job(0, JobState.RUNNING), GONE, job(2))
    for at_s in (100.0, 105.0):
        await loop.turn(at_s)
    loop.slurm.shown = (job(0, JobState.COMPLETING), job(1), cancelled(2))
    for at_s in (106.0, 120.0):
        assert await loop.turn(at_s) == [REVIVED]
    loop.slurm.shown = (cancelled(0), job(1), cancelled(2))
    assert await loop.turn(121.0) == [REVIVED, ("cancel", 814)]


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param((HELD, job(2)), id="it lives"),
        pytest.param((cancelled(0), job(2)), id="one of two was cancelled"),
        pytest.param((cancelled(0), job(2, JobState.ENDED, ended="TIMEOUT")), id="a limit"),
    ],
)
async def test_what_ended_otherwise_while_a_slot_came_back_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch, beside: tuple[JobView, ...]
) -> None:
    loop = Loop(monkeypatch)
    loop.slurm.shown = (HELD, GONE, job(2))
    for at_s in (100.0, 105.0):
        await loop.turn(at_s)
    loop.slurm.shown = (*beside, job(1))
    for at_s in (106.0, 110.0):
        assert await loop.turn(at_s) == [REVIVED]


async def test_a_whole_cancel_long_after_is_slurms_own_affair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch)
    for at_s in (100.0, 105.0):
        await loop.turn(at_s)
    loop.slurm.shown = (HELD, job(1))
    await loop.turn(106.0)
    loop.slurm.shown = (cancelled(0), job(1))
    assert await loop.turn(107.0) == [REVIVED]


@pytest.mark.parametrize(
    ("then", "asked"),
    [
        pytest.param((job(0, JobState.RUNNING),), [("requeue_hold", [0])], id="it runs on"),
        pytest.param((job(0, JobState.COMPLETING),), [], id="it was cancelled and still ends"),
        pytest.param((cancelled(0),), [], id="it was cancelled"),
        pytest.param((), [], id="Slurm knows it no more"),
    ],
)
async def test_a_service_that_is_cancelled_as_its_last_slot_scales_down_stays_so(
    then: tuple[JobView, ...], asked: list[tuple[str, Any]]
) -> None:
    slurm = ScriptedSlurm(job(0, JobState.RUNNING))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.shown = then
    answer = await desire(cluster_state, 814, frozenset())
    assert slurm.actions == asked
    assert answer.held == ((0,) if asked else ())


class Unanswered(ScriptedSlurm):
    """Gives no answer to a requeue, and makes it when it is shown."""

    async def requeue_hold(self, target: Target) -> None:
        await super().requeue_hold(target)
        raise UnreachableError("SW-SLURM-DOWN", "timed out")


async def after_a_requeue_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop(monkeypatch)
    loop.slurm = Unanswered(job(0, JobState.RUNNING))
    loop.cluster_state = sync_of(loop.slurm)
    await loop.turn(100.0)
    with pytest.raises(UnreachableError, match="timed out"):
        await desire(loop.cluster_state, 814, frozenset())
    return loop


@pytest.mark.parametrize(
    ("ended", "back_s", "is_cancelled"),
    [
        pytest.param((cancelled(0),), 103.0, True, id="its owner cancelled it"),
        pytest.param((), 103.0, True, id="Slurm keeps no record of it"),
        pytest.param((job(0, JobState.ENDED, ended="TIMEOUT"),), 103.0, False, id="a limit"),
        pytest.param((cancelled(0),), 161.0, False, id="somebody brings it back much later"),
    ],
)
async def test_a_requeue_that_slurm_makes_long_after_brings_no_cancelled_service_back(
    monkeypatch: pytest.MonkeyPatch,
    ended: tuple[JobView, ...],
    back_s: float,
    is_cancelled: bool,
) -> None:
    loop = await after_a_requeue_without_an_answer(monkeypatch)
    asked = [("requeue_hold", [0])]
    loop.slurm.shown = ended
    assert await loop.turn(102.0) == asked
    if back_s > 110.0:
        await loop.turn(back_s - 0.5)
    loop.slurm.shown = (job(0),)
    expected = [*asked, ("cancel", 814)] if is_cancelled else asked
    assert await loop.turn(back_s) == expected
    loop.slurm.shown = ended
    assert await loop.turn(back_s + 1.0) == expected


async def test_a_requeue_without_an_answer_cancels_nothing_that_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = await after_a_requeue_without_an_answer(monkeypatch)
    for at_s, shown in ((101.0, job(0, JobState.COMPLETING)), (102.0, job(0)), (103.0, job(0))):
        loop.slurm.shown = (shown,)
        assert await loop.turn(at_s) == [("requeue_hold", [0])]


async def test_a_service_whose_script_can_not_be_read_was_not_cancelled() -> None:
    """Though one of its tasks was: it is not among the services then, and lives on."""
    slurm = ScriptedSlurm(job(0, JobState.RUNNING), cancelled(1))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    recovery = SlotRecovery()
    recovery.unanswered(814, 100.0)
    recovery.follow_unanswered((), slurm.shown, 101.0)
    assert recovery.cancelled(cluster_state.view.services) == frozenset()
    recovery.follow_unanswered((), (cancelled(0), cancelled(1)), 102.0)
    assert recovery.cancelled(cluster_state.view.services) == {814}


async def borrowing(*jobs: Any) -> tuple[ScriptedSlurm, ClusterState]:
    slurm = ScriptedSlurm(*jobs)
    cluster_state = sync_of(slurm)
    limit = Millislices(1000)
    borrower = tenant("vision", 1000, borrowing_limit_millislices=limit)
    lender = tenant("lab", 1000, lending_limit_millislices=limit)
    cluster_state.set_policy(policy_of(borrower, lender), {})
    await cluster_state.turn()
    return slurm, cluster_state


async def test_beyond_the_guarantee_a_slot_runs_on_borrowed_quota() -> None:
    slurm, cluster_state = await borrowing(job(0), job(1), job(2))
    answer = await desire(cluster_state, 814, frozenset({0, 1, 2}))
    assert (answer.released, answer.kept_back) == ((0, 1), (2,))
    assert slurm.actions == [
        (f"update {JobChange(qos='slicewise_vision_borrowed')}", [1]),
        ("release", [0, 1]),
    ]
    assert [slot.is_borrowed for slot in cluster_state.view.services[0].slots] == [
        False,
        True,
        False,
    ]
    assert (await desire(cluster_state, 814, frozenset({0, 1, 2}))).released == ()


async def test_what_waits_on_borrowed_quota_takes_a_guarantee_that_comes_free() -> None:
    waiting = job(1, held=False, reason="QOSGrpBilling", qos="slicewise_vision_borrowed")
    slurm, cluster_state = await borrowing(job(0), waiting)
    await desire(cluster_state, 814, frozenset({1}))
    assert slurm.actions == [(f"update {JobChange(qos='slicewise_vision')}", [1])]


async def test_what_is_preempted_is_held_and_released_anew() -> None:
    slurm, cluster_state = await borrowing(
        job(0, JobState.RUNNING, qos="slicewise_vision_borrowed")
    )
    await desire(cluster_state, 814, frozenset({0}))
    slurm.shown = (job(0, held=False, reason="BeginTime", qos="slicewise_vision_borrowed"),)
    await cluster_state.turn()
    assert slurm.actions == [("hold", [0])]
    assert (await desire(cluster_state, 814, frozenset({0}))).released == (0,)


async def test_a_generation_is_retired_when_nothing_needs_it() -> None:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
        await cluster_state.retire(814)
    cluster_state.set_orders({("vision", "bert"): ServiceOrder(delete_s=1.0)})
    await cluster_state.retire(814)
    assert slurm.actions == [("cancel", 814)]
