"""Tests the sync loop on a scripted Slurm: what it does, and what it leaves alone when blind."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from builders.nodes import a_node
from builders.service_views import a_report
from builders.tenants import policy_of, tenant
from stand_ins.scripted import DOWN, ScriptedSlurm, desire, job, sync_of

from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.language.jobs import JobState, JobView, NodeView, StepView
from slicewise.cluster.language.slurm.interface import JobChange, Target
from slicewise.cluster.language.starts import StartTrace, Weights
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceReportRequest, SlotView
from slicewise.slurm_plugin.rules.admission.snapshot import Living
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.round.barred import Barred, BarredJob
from slicewise.slurm_plugin.state.cluster_state import ClusterState
from slicewise.slurm_plugin.state.observer import SlurmObserver

pytestmark = pytest.mark.usefixtures("clock")

MODULE = "slicewise.slurm_plugin.state.cluster_state"
LENDER = tenant("lab", 9000, lending_limit_millislices=Millislices(9000))
LOOSE = job(1, held=False, reason="Priority")
UNTAGGED = job(2, held=False, reason="JobHeldUser", admin_comment="", array_job_id=815)


async def test_the_scripts_of_all_arrays_are_read_at_once_and_once() -> None:
    slurm = ScriptedSlurm(job(0), UNTAGGED, job(0, array_job_id=816))
    cluster_state = sync_of(slurm)
    for _ in range(3):
        await cluster_state.turn()
    assert slurm.done == [("scripts", [814, 816])]
    services = cluster_state.view.services
    assert [(one.name, one.directory) for one in services] == [("bert", "/home/alice")] * 2


async def test_a_script_that_slurm_does_not_hand_out_is_asked_for_again() -> None:
    slurm = ScriptedSlurm(job(0))
    slurm.scriptless = {814}
    cluster_state = sync_of(slurm)
    with pytest.raises(OutsideError, match=r"script of job 814\. \[SW-SLURM-FAILED\]"):
        await cluster_state.turn()
    assert not cluster_state.view.complete
    slurm.scriptless = set()
    await cluster_state.turn()
    assert cluster_state.view.complete
    assert [service.name for service in cluster_state.view.services] == ["bert"]


async def test_the_script_of_an_array_that_is_gone_is_not_missed() -> None:
    slurm = ScriptedSlurm(job(0))
    slurm.scriptless = {814}
    cluster_state = sync_of(slurm)
    with pytest.raises(OutsideError):
        await cluster_state.turn()
    slurm.shown = ()
    await cluster_state.turn()
    assert cluster_state.view.complete
    assert slurm.done == [("scripts", [814])]


async def test_one_script_that_fails_costs_the_others_nothing() -> None:
    slurm = ScriptedSlurm(job(0), job(0, array_job_id=813))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.shown += (job(0, array_job_id=815), job(0, array_job_id=816))
    slurm.scriptless = {815}
    for _ in range(2):
        with pytest.raises(OutsideError):
            await cluster_state.turn()
    assert slurm.done == [("scripts", each) for each in ([813, 814], [815, 816], [815])]
    assert len(cluster_state.view.services) == 2


async def test_a_script_that_slurm_has_lost_costs_its_own_service_only() -> None:
    slurm = ScriptedSlurm(job(0), job(0, array_job_id=815, job_id=950))
    slurm.scriptless = {815}
    cluster_state = sync_of(slurm)
    for _ in range(4):
        with pytest.raises(OutsideError, match="script of job 815"):
            await cluster_state.turn()
        assert not cluster_state.view.complete
    for _ in range(3):
        await cluster_state.turn()
        assert cluster_state.view.complete
        assert [service.array_job_id for service in cluster_state.view.services] == [814]
    slurm.scriptless = set()
    await cluster_state.turn()
    assert [service.array_job_id for service in cluster_state.view.services] == [814, 815]


async def test_a_script_that_is_no_services_is_read_once() -> None:
    slurm = ScriptedSlurm(job(0))
    slurm.script = "#SLICEWISE name\n"
    cluster_state = sync_of(slurm)
    for _ in range(2):
        await cluster_state.turn()
    assert (cluster_state.view.complete, cluster_state.view.services) == (True, ())
    assert slurm.done == [("scripts", [814])]


async def test_what_is_loose_is_held_on_sight() -> None:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.shown = (job(0, reason="JobHeldUser"), LOOSE, UNTAGGED)
    await cluster_state.turn()
    assert slurm.actions == [("hold", [0, 1])]


async def test_after_a_start_what_is_under_way_is_left_alone() -> None:
    slurm = ScriptedSlurm(LOOSE, job(2, JobState.RUNNING))
    cluster_state = sync_of(slurm)
    for _ in range(2):
        await cluster_state.turn()
    assert slurm.actions == []


async def test_a_release_says_when_the_last_run_ended_as_the_look_has_it() -> None:
    """So that Slurm need not be asked again; other slots' runs do not matter."""
    slurm = ScriptedSlurm(
        job(0, restarts=2, submit_s=500), job(1, restarts=1, submit_s=900), job(2)
    )
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    for slots, ended_s in ((frozenset({0}), 500), (frozenset({0, 2}), 0)):
        await desire(cluster_state, 814, slots)
        assert slurm.ended_s == ended_s


class CountedTasks(ScriptedSlurm):
    """Counts looks at some arrays alone."""

    looks = 0

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        self.looks += 1
        return await super().tasks(array_job_ids)


async def test_while_a_replica_starts_only_its_array_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of Slurm is looked at again once the replica has published its certificate."""
    monkeypatch.setattr(f"{MODULE}._AGAIN_S", 0.005)
    starting = job(0, JobState.RUNNING, start_s=int(time.time()))
    slurm = CountedTasks(starting)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    async with asyncio.timeout(20):
        while slurm.looks < 5:  # noqa: ASYNC110 -- a look sets no event
            await asyncio.sleep(0.005)
        assert not cluster_state.acted.is_set()
        slurm.meanwhile = (replace(starting, comment=f"slicewise:certificate=0 {'M' * 64}"),)
        await cluster_state.acted.wait()


async def test_while_a_lender_waits_the_end_of_a_replica_is_seen_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It showed in the next look at all of Slurm, a second later."""
    monkeypatch.setattr(f"{MODULE}._AGAIN_S", 0.005)
    slurm, cluster_state = await _ending_for_a_lender(grace_s=60.0)
    cluster_state.acted.clear()
    async with asyncio.timeout(20):
        while slurm.looks < 5:  # noqa: ASYNC110 -- a look sets no event
            await asyncio.sleep(0.005)
        assert not cluster_state.acted.is_set()
        slurm.meanwhile = (job(0),)
        await cluster_state.acted.wait()


async def test_an_end_that_takes_longer_than_the_grace_is_left_to_the_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a node that hangs it takes hours, and slurmctld was asked seven times a second."""
    monkeypatch.setattr(f"{MODULE}._AGAIN_S", 0.0)
    slurm, _ending = await _ending_for_a_lender(grace_s=0.0)
    asked = slurm.looks
    for _ in range(20):
        await asyncio.sleep(0)
    assert slurm.looks == asked


async def _ending_for_a_lender(grace_s: float) -> tuple[CountedTasks, ClusterState]:
    """A look at a borrowed replica that was told to go and ends now."""
    runs = job(0, JobState.RUNNING, start_s=1000, qos=borrowed_qos("vision"))
    slurm = CountedTasks(runs)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    victims = {(slot.job_id, slot.start_s): "for a lender" for slot in _slots(cluster_state)}
    cluster_state.evictions.end(victims, {}, cluster_state.view.services, grace_s)
    slurm.shown = (replace(runs, state=JobState.COMPLETING),)
    await cluster_state.turn()
    return slurm, cluster_state


def _slots(cluster_state: ClusterState) -> Iterable[SlotView]:
    return (slot for service in cluster_state.view.services for slot in service.slots)


async def test_ports_that_come_after_the_certificate_are_looked_for_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}._AGAIN_S", 0.005)
    comment = f"slicewise:certificate=0 {'M' * 64}"
    slurm = CountedTasks(job(0, JobState.RUNNING, start_s=int(time.time()), comment=comment))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    async with asyncio.timeout(20):
        await cluster_state.acted.wait()
    assert slurm.looks == 0


class Counted(CountedTasks):
    """Counts the other looks, too."""

    def __init__(self, *jobs: JobView) -> None:
        super().__init__(*jobs)
        self.asked: Counter[str] = Counter()
        self.ports: Mapping[int, tuple[int, ...]] = {}

    async def jobs(self) -> tuple[JobView, ...]:
        self.asked["jobs"] += 1
        return await super().jobs()

    async def nodes(self) -> tuple[NodeView, ...]:
        self.asked["nodes"] += 1
        return await super().nodes()

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        self.asked["steps"] += 1
        asked = {job.job_id for job in jobs}
        return tuple(
            StepView(job_id, "0", ("gpu01",), ports)
            for job_id, ports in self.ports.items()
            if job_id in asked
        )


COMMENT = f"slicewise:certificate=0 {'M' * 64}"


async def looks(cluster_state: ClusterState, slurm: Counted, count: int) -> Mapping[str, int]:
    """What that many looks ask."""
    slurm.asked.clear()
    for _ in range(count):
        await cluster_state.turn()
    return dict(slurm.asked)


async def test_ports_are_read_once_a_run() -> None:
    """As each look did, 500 replicas were a thousand requests a second."""
    slurm = Counted(job(0, JobState.RUNNING, comment=COMMENT), job(1))
    cluster_state = sync_of(slurm)
    assert await looks(cluster_state, slurm, 2) == {"jobs": 2, "nodes": 2, "steps": 2}
    slurm.ports = {900: (7001, 7002)}
    # The second of these finds the same again.
    assert (await looks(cluster_state, slurm, 2))["steps"] == 2
    assert "steps" not in await looks(cluster_state, slurm, 3)
    assert cluster_state.view.services[0].slots[0].ports == (7001, 7002)
    # Another run of the same task has ports of its own, and one that ended has none.
    slurm.shown = (job(0, JobState.RUNNING, comment=COMMENT, restarts=1), job(1))
    slurm.ports = {900: (7003, 7004)}
    assert (await looks(cluster_state, slurm, 5))["steps"] == 2
    assert cluster_state.view.services[0].slots[0].ports == (7003, 7004)
    slurm.shown = (job(0), job(1))
    assert "steps" not in await looks(cluster_state, slurm, 1)
    assert cluster_state.view.services[0].slots[0].ports == ()


async def test_another_replica_costs_no_request_more_once_its_ports_are_known() -> None:
    lasts = {"comment": COMMENT, "end_s": int(time.time()) + 3600}
    running = [job(index, JobState.RUNNING, **lasts) for index in range(3)]
    slurm = Counted(*running)
    slurm.ports = {900 + index: (7000 + index, 8000 + index) for index in range(3)}
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 3)
    assert await looks(cluster_state, slurm, 4) == {"jobs": 4}


class Slow(Counted):
    """A Slurm with so many jobs that a look at all takes two seconds."""

    async def jobs(self) -> tuple[JobView, ...]:
        await asyncio.sleep(2)
        return await super().jobs()


async def test_where_looks_are_slow_what_was_released_is_looked_at_alone() -> None:
    """What it lacks was seen after five seconds, by a look at 20,000 jobs."""
    others = [job(n, array_job_id=None, admin_comment="", job_id=n, held=False) for n in (1, 2)]
    slurm = Slow(job(0), *others)
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    jobs, looked_s = cluster_state.jobs, cluster_state.looked_monotonic_s
    heard = cluster_state.after_looks()
    await desire(cluster_state, 814, frozenset({0}))
    slurm.shown = (job(0, held=False, reason="QOSGrpBilling"), replace(others[0], reason="None"))
    assert await looks(cluster_state, slurm, 1) == {"nodes": 1}
    assert heard.is_set()
    assert [slot.state for slot in _slots(cluster_state)][:1] == ["released"]
    assert cluster_state.jobs[1:] == jobs[1:], "all else is as it was"
    assert cluster_state.looked_monotonic_s == looked_s, "and as old"
    assert (await looks(cluster_state, slurm, 1))["jobs"] == 1
    assert cluster_state.jobs == slurm.shown


async def test_a_task_that_is_not_shown_alone_is_looked_for_among_all_jobs() -> None:
    slurm = Slow(job(0), job(1))
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    await desire(cluster_state, 814, frozenset({0}))
    slurm.meanwhile = (job(0, held=False),)
    assert "jobs" not in await looks(cluster_state, slurm, 1), "slurmctld has its pause first"
    assert cluster_state.acted.is_set()
    assert (await looks(cluster_state, slurm, 1))["jobs"] == 1
    assert [slot.state for slot in _slots(cluster_state)][:2] == ["held", "held"]


async def test_a_look_at_some_that_fails_leaves_no_complete_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slow(job(0))
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    await desire(cluster_state, 814, frozenset({0}))
    with monkeypatch.context() as patch:
        patch.setattr(slurm, "nodes", AsyncMock(side_effect=DOWN))
        with pytest.raises(UnreachableError):
            await cluster_state.turn()
    assert not cluster_state.view.complete
    assert (await looks(cluster_state, slurm, 1))["jobs"] == 1
    assert cluster_state.view.complete


async def test_an_array_that_slurm_has_forgotten_leaves_the_view_of_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one that is gone squeue says "Invalid job id specified", which was taken for a failure."""
    slurm = Slow(job(0), job(0, array_job_id=815, job_id=950))
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    slurm.shown = slurm.shown[1:]
    gone = AsyncMock(side_effect=OutsideError("SW-SLURM-FAILED", "Invalid job id specified"))
    monkeypatch.setattr(slurm, "tasks", gone)
    cluster_state.pacing.change({814})
    assert "jobs" not in await looks(cluster_state, slurm, 1)
    assert cluster_state.view.complete
    assert (await looks(cluster_state, slurm, 1))["jobs"] == 1
    assert [service.array_job_id for service in cluster_state.view.services] == [815]


async def test_what_a_look_at_some_shows_as_lost_is_brought_back_five_seconds_later() -> None:
    """Its owner may be cancelling the service task by task: the age of all other jobs is no sign.

    The look at all jobs begins two seconds before.
    """
    slurm = Slow(job(0, JobState.RUNNING), job(1))
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    slurm.shown = (job(0, JobState.ENDED, ended="FAILED"), job(1))
    cluster_state.pacing.change({814})
    assert await looks(cluster_state, slurm, 1) == {"nodes": 1}
    for pause_s, revived in ((3.5, []), (0.0, [("requeue_hold", [0])])):
        await asyncio.sleep(pause_s)
        assert (await looks(cluster_state, slurm, 1))["jobs"] == 1
        assert [done for done in slurm.actions if done[0] == "requeue_hold"] == revived


async def test_what_the_guard_changed_is_looked_at_again_beside_other_arrays() -> None:
    """The last look at it is from before: it hid that its owner had cancelled it meanwhile."""
    other, lost = job(0), job(0, JobState.ENDED, ended="FAILED", array_job_id=815, job_id=950)
    beside = job(1, JobState.RUNNING, array_job_id=815, job_id=951)
    slurm = Slow(other, lost, beside)
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    await asyncio.sleep(5)
    await looks(cluster_state, slurm, 1)
    assert slurm.actions == [("requeue_hold", [0])]
    # Slurm brings the slot back all the same.
    back = job(0, array_job_id=815, job_id=950)
    slurm.shown = (other, back, replace(beside, state=JobState.ENDED, ended="CANCELLED"))
    cluster_state.pacing.change({814})
    await looks(cluster_state, slurm, 2)
    assert slurm.actions[1:2] == [("cancel", 815)]


async def test_a_job_that_is_as_it_was_is_the_same_record_at_each_look() -> None:
    """Else all that wait in its QOS are classified anew: 0.14 s for 20,000."""
    away = "ReqNodeNotAvail, UnavailableNodes:n1"
    waits = {"array_job_id": None, "admin_comment": "", "held": False, "job_id": 7}
    slurm = ScriptedSlurm(job(0))
    slurm.known_nodes = (a_node("n1", "ALLOCATED"),)
    cluster_state = sync_of(slurm)
    seen = []
    for reason in (away, away, "Priority"):
        slurm.shown = (replace(job(0), name="bert"), job(7, reason=reason, **waits))
        await cluster_state.turn()
        seen.append(cluster_state.jobs)
    first, second, third = seen
    assert first[0] is second[0] is third[0]
    assert first[1] is second[1]
    assert (second[1].reason, third[1].reason) == ("Resources", "Priority")


async def test_a_job_that_stays_barred_is_the_same_record_at_each_look() -> None:
    waits = {"array_job_id": None, "admin_comment": "", "held": False, "job_id": 7}
    slurm = ScriptedSlurm(job(7, reason="QOSGrpBilling", **waits))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    assert cluster_state.quota_jobs is cluster_state.jobs
    cluster_state.bar(Barred(jobs={7: BarredJob("QOSMaxJobsPerUserLimit", 0)}))
    (told,) = cluster_state.quota_jobs
    await cluster_state.turn()
    (again,) = cluster_state.quota_jobs
    assert again is told
    assert told.reason == "QOSMaxJobsPerUserLimit"
    assert cluster_state.jobs[0].reason == "QOSGrpBilling"


async def test_at_rest_nodes_are_read_where_a_job_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Counted(job(0))
    cluster_state = sync_of(slurm)
    await looks(cluster_state, slurm, 1)
    assert await looks(cluster_state, slurm, 2) == {"jobs": 2}
    batch = job(7, array_job_id=None, admin_comment="", state=JobState.RUNNING)
    slurm.shown += (batch,)
    assert await looks(cluster_state, slurm, 2) == {"jobs": 2, "nodes": 1}
    cluster_state.acted.set()
    assert await looks(cluster_state, slurm, 2) == {"jobs": 2, "nodes": 1}
    monkeypatch.setattr("slicewise.slurm_plugin.state.observer._NODES_S", 0.0)
    slurm.shown = (job(0),)
    await looks(cluster_state, slurm, 1)
    assert await looks(cluster_state, slurm, 2) == {"jobs": 2, "nodes": 2}


async def test_a_look_that_fails_leaves_no_old_nodes_beside_new_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Counted(job(0))
    observer = SlurmObserver(slurm)
    await observer.look()
    slurm.shown += (job(7, array_job_id=None, admin_comment="", state=JobState.RUNNING),)
    with monkeypatch.context() as patch:
        patch.setattr(slurm, "nodes", AsyncMock(side_effect=UnreachableError("SW-SLURM-DOWN", "")))
        with pytest.raises(UnreachableError):
            await observer.look(at_rest=True)
    slurm.asked.clear()
    await observer.look(at_rest=True)
    assert slurm.asked["nodes"] == 1


@pytest.mark.parametrize(
    ("reason", "seen"),
    [
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "Resources"),
        ("ReqNodeNotAvail,_UnavailableNodes:n1", "Resources"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-3]", ""),
        ("ReqNodeNotAvail, UnavailableNodes:n4", ""),
        ("ReqNodeNotAvail, UnavailableNodes:n5", ""),
        ("ReqNodeNotAvail, UnavailableNodes:n[1", ""),
        ("ReqNodeNotAvail, Reserved for maintenance", ""),
        ("ReqNodeNotAvail", ""),
        ("Priority", ""),
    ],
)
async def test_nodes_that_are_there_are_only_busy(reason: str, seen: str) -> None:
    """Slurm keeps them for a job that names them, and calls them unavailable to those behind it."""
    slurm = ScriptedSlurm(job(0, held=False, reason=reason))
    slurm.known_nodes = (
        *(a_node(name, "ALLOCATED") for name in ("n1", "n2")),
        a_node("n3", "IDLE", "DRAIN"),
        a_node("n4", "IDLE", "RESERVED"),
    )
    found = await SlurmObserver(slurm).look()
    assert [one.reason for one in found.jobs] == [seen or reason]


async def test_a_node_that_a_job_calls_away_is_looked_at_even_at_rest() -> None:
    """Else it would pass for busy as long as old nodes are used."""
    waits = job(0, held=False, reason="Resources")
    slurm = ScriptedSlurm(waits)
    slurm.known_nodes = (a_node("n1", "ALLOCATED"),)
    observer = SlurmObserver(slurm)
    await observer.look()
    away = "ReqNodeNotAvail, UnavailableNodes:n1"
    slurm.shown, slurm.known_nodes = (replace(waits, reason=away),), (a_node("n1", "DOWN"),)
    found = await observer.look(at_rest=True)
    assert [one.reason for one in found.jobs] == [away]


async def test_quota_that_came_free_since_the_last_look_keeps_no_slot_back() -> None:
    """At rest that look may be ten seconds old, and a request waits for the replica."""
    held = job(0), job(1)
    other = job(7, JobState.RUNNING, array_job_id=None, tres={"gres/gpu:1g.10gb": "2"})
    slurm = ScriptedSlurm(*held, other)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.shown = held
    assert (await desire(cluster_state, 814, frozenset({0}))).kept_back == (0,)
    cluster_state.looked_monotonic_s -= 3
    cluster_state.acted.clear()
    assert (await desire(cluster_state, 814, frozenset({0}))).released == (0,)
    assert cluster_state.acted.is_set()


async def test_a_request_that_comes_after_a_newer_one_is_not_carried_out() -> None:
    """The launcher gave it up long ago, and thinks that the newer one stands."""
    slurm = ScriptedSlurm(job(0), job(1))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    number = cluster_state.desired_slots_versions[814]
    await cluster_state.set_desired_slots(814, frozenset({0}), after=number)
    assert cluster_state.desired_slots_versions[814] > number
    done = list(slurm.actions)
    with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
        await cluster_state.set_desired_slots(814, frozenset({0, 1}), "", 0.5, after=number)
    assert (slurm.actions, cluster_state.desired_slots) == (done, {814: frozenset({0})})
    assert cluster_state.urgencies == {814: 0.0}


async def test_a_request_whose_action_failed_was_taken_all_the_same() -> None:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    number, slurm.failure = cluster_state.desired_slots_versions[814], DOWN
    with pytest.raises(UnreachableError):
        await cluster_state.set_desired_slots(814, frozenset({0}), after=number)
    slurm.failure = None
    with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
        await cluster_state.set_desired_slots(814, frozenset(), after=number)


async def test_a_launcher_of_an_earlier_version_sends_no_number() -> None:
    cluster_state = sync_of(ScriptedSlurm(job(0), job(1)))
    await cluster_state.turn()
    for slot in (0, 1):
        await desire(cluster_state, 814, frozenset({slot}))
        await cluster_state.turn()
        assert cluster_state.desired_slots == {814: frozenset({slot})}


async def test_a_daemon_that_starts_anew_gives_no_number_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = set()
    for now_s in (1000.0, 1000.5, 1001.0):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        cluster_state = sync_of(ScriptedSlurm(job(0)))
        await cluster_state.turn()
        for _ in range(2):
            numbers.add(cluster_state.desired_slots_versions[814])
            await desire(cluster_state, 814, frozenset())
    assert len(numbers) == 6


async def test_a_look_for_a_wish_that_stays_kept_back_is_followed_by_a_whole_turn() -> None:
    other = job(7, JobState.RUNNING, array_job_id=None, tres={"gres/gpu:1g.10gb": "2"})
    cluster_state = sync_of(ScriptedSlurm(job(0), other))
    await cluster_state.turn()
    cluster_state.looked_monotonic_s -= 3
    assert (await desire(cluster_state, 814, frozenset({0}))).kept_back == (0,)
    assert cluster_state.acted.is_set()


async def test_a_wish_is_done_and_lasts() -> None:
    slurm = ScriptedSlurm(job(0), job(1), job(2))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0, 1, 2}))
    assert (answer.released, answer.kept_back) == ((0, 1), (2,))
    assert cluster_state.kept_back == {814: frozenset({2})}
    assert [slot.state for slot in cluster_state.view.services[0].slots] == [
        "released",
        "released",
        "held",
    ]
    assert cluster_state.view.services[0].note == answer.note
    slurm.shown = (replace(LOOSE, task_index=0), LOOSE, job(2))
    await cluster_state.turn()
    assert slurm.actions == [("release", [0, 1])]
    assert cluster_state.view.services[0].note == answer.note
    assert cluster_state.kept_back == {814: frozenset({2})}
    assert (await desire(cluster_state, 814, frozenset({0}))).held == (1,)
    assert slurm.actions[1:] == [("hold", [1])]
    assert cluster_state.kept_back == {814: frozenset()}
    slurm.shown = ()
    await cluster_state.turn()
    assert cluster_state.kept_back == {}


async def test_while_no_gpu_is_seen_admission_bounds_nobody_by_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slicewise.slurm_plugin.state.observer._NODES_S", 0.0)
    slurm = ScriptedSlurm()
    gpus, partitions = {"1g.10gb": 1}, frozenset({"gpu"})
    node = a_node(gpus=gpus, partitions=partitions)
    cluster_state = sync_of(slurm)
    for nodes, standing in (((node,), 1000), ((), 2000)):
        slurm.known_nodes = nodes
        await cluster_state.turn()
        assert cluster_state.snapshot is not None
        assert cluster_state.snapshot.highest_limits == {"vision": standing}


async def test_a_service_is_followed_from_its_first_wish_on() -> None:
    cluster_state = sync_of(ScriptedSlurm(job(0), job(1), job(2)))
    await cluster_state.turn()
    assert not cluster_state.view.services[0].is_followed
    await desire(cluster_state, 814, frozenset())
    await cluster_state.turn()
    assert cluster_state.view.services[0].is_followed


async def test_the_launchers_note_is_shown_unless_quota_has_one() -> None:
    cluster_state = sync_of(ScriptedSlurm(job(0), job(1), job(2)))
    await cluster_state.turn()
    await desire(cluster_state, 814, frozenset({0}), "failed twice")
    assert cluster_state.view.services[0].note == "failed twice"
    answer = await desire(cluster_state, 814, frozenset({0, 1, 2}), "failed twice")
    assert cluster_state.view.services[0].note == answer.note != ""


async def test_released_slots_count_before_slurm_shows_them() -> None:
    slurm = ScriptedSlurm(job(0), job(1), job(2))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    await desire(cluster_state, 814, frozenset({0, 1}))
    assert (await desire(cluster_state, 814, frozenset({0, 1, 2}))).kept_back == (2,)


async def test_slots_of_a_tenant_that_gives_something_back_are_not_released_on_borrowed_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One would start on what a replica of its own has just left to a lender."""
    borrows = {"borrowing_limit_millislices": Millislices(4000)}
    for waits, released in ((True, (0,)), (False, (0, 1, 2))):
        slurm = ScriptedSlurm(job(0), job(1), job(2))
        cluster_state = sync_of(slurm)
        cluster_state.set_policy(policy_of(tenant("vision", 1000, **borrows), LENDER), {})
        await cluster_state.turn()
        monkeypatch.setattr(cluster_state.evictions, "waits", {"vision": waits}.__getitem__)
        answer = await desire(cluster_state, 814, frozenset({0, 1, 2}))
        assert answer.released == released


async def test_blind_it_does_nothing() -> None:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.failure, slurm.shown = DOWN, (LOOSE,)
    with pytest.raises(UnreachableError):
        await cluster_state.turn()
    assert not cluster_state.view.complete
    assert len(cluster_state.view.services) == 1
    for request in (
        desire(cluster_state, 814, frozenset({0})),
        cluster_state.delete(814),
    ):
        with pytest.raises(UnreachableError):
            await request
    assert slurm.actions == []


async def test_a_failed_action_does_not_blind_it() -> None:
    slurm = ScriptedSlurm(LOOSE)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.shown = (LOOSE, job(0, held=False, reason="Priority"))

    def refuse(_name: str, _target: object) -> None:
        raise OutsideError("SW-SLURM-FAILED", "scontrol: no")

    slurm._act = refuse  # type: ignore[method-assign]
    await cluster_state.turn()
    assert cluster_state.view.complete


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_services_run_in_each_mode_within_the_quota_and_borrow_nothing(mode: str) -> None:
    """All that the tenant runs counts, as in enforce; in whichever QOS of the site it is."""
    normal, gpus = {"qos": "normal", "time_limit_s": 900}, {"tres": {"gres/gpu:3g.40gb": "1"}}
    slots = [job(index, **normal, **gpus) for index in range(3)]
    slurm = ScriptedSlurm(*slots)
    cluster_state = sync_of(slurm, mode)
    borrows = {"borrowing_limit_millislices": Millislices(7000)}
    lender = tenant("lab", 9000, lending_limit_millislices=Millislices(9000))
    cluster_state.set_policy(policy_of(tenant("vision", 6000, **borrows), lender), {})
    # Nor does it matter whether limits were there before.
    cluster_state.is_uninstalled = True
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0, 1, 2}))
    assert (answer.released, answer.kept_back) == ((0,), (1, 2))
    assert answer.note == "quota: vision holds 3.5 of 6 slices; a replica needs 3.5"
    assert slurm.actions == [("release", [0])]
    await cluster_state.delete(814)
    assert slurm.actions[-1] == ("cancel", 814)


CHANGED = [
    {"account": "lab"},
    {"partition": "cpu"},
    # There no quota would count it.
    {"partition": "gpu,cpu"},
    {"tres": {"gres/gpu:1g.10gb": "4"}},
    # Of any type, as by scontrol update TresPerNode=gpu:4.
    {"tres": {"gres/gpu": "4"}},
    {"tres": {"gres/gpu:3g.40gb": "1"}},
    {"time_limit_s": 840},
]


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("changes", CHANGED)
async def test_without_slicewise_lua_a_slot_that_its_user_has_changed_stays_held(
    changes: dict[str, Any], mode: str
) -> None:
    """In enforce slicewise.lua lets nobody but operators change it."""
    as_admitted = {"tres": {"gres/gpu:1g.10gb": "1"}, "time_limit_s": 900}
    slurm = ScriptedSlurm(job(0, **as_admitted), job(1, **(as_admitted | changes)))
    cluster_state = sync_of(slurm, mode)
    cluster_state.set_policy(policy_of(tenant("vision", 9000)), {})
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0, 1}))
    if mode == "enforce":
        assert answer.released == (0, 1)
    else:
        assert (answer.released, answer.kept_back) == ((0,), (1,))
        assert "apply it again" in answer.note
        assert slurm.actions == [("release", [0])]


@pytest.mark.parametrize("mode", ["observe", "enforce"])
async def test_a_slot_that_is_changed_while_it_waits_for_gpus_is_held(mode: str) -> None:
    waiting = {"held": False, "reason": "Resources", "time_limit_s": 900}
    slurm = ScriptedSlurm(job(0, **waiting), job(1, **waiting, account="lab"))
    await sync_of(slurm, mode).turn()
    assert slurm.actions == ([] if mode == "enforce" else [("hold", [1])])


async def test_a_slot_that_was_made_cheap_does_not_make_the_others_so() -> None:
    """Each of the others is released within the quota by what it costs itself."""
    small, large = (
        {"tres": {f"gres/gpu:{kind}": "1"}, "time_limit_s": 900} for kind in ("1g.10gb", "3g.40gb")
    )
    slurm = ScriptedSlurm(job(0, **small), job(1, **large), job(2, **large))
    slurm.script += "#SLICEWISE profile=3g.40gb\n"
    cluster_state = sync_of(slurm, "observe")
    cluster_state.set_policy(policy_of(tenant("vision", 4000)), {})
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset(range(3)))
    assert (answer.released, answer.kept_back) == ((1,), (0, 2))


async def test_once_slicewise_is_taken_out_nothing_is_changed() -> None:
    slurm = ScriptedSlurm(job(0, reason="JobHeldUser"))
    cluster_state = sync_of(slurm)
    cluster_state.is_uninstalled = True
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0}))
    assert (answer.kept_back, "taken out of Slurm" in answer.note) == ((0,), True)
    with pytest.raises(InvalidInputError, match=r"scancel 814 \[SW-UNINSTALLED\]"):
        await cluster_state.delete(814)
    assert slurm.actions == []


async def test_a_deleted_service_is_cancelled_whole() -> None:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    await cluster_state.delete(814)
    assert slurm.actions == [("cancel", 814)]
    with pytest.raises(SlicewiseError, match="not a service in Slurm's queue"):
        await cluster_state.delete(815)


async def test_admission_decides_on_what_was_seen() -> None:
    waiting = job(1, held=False, reason="Priority", priority=7)
    slurm = ScriptedSlurm(job(0, JobState.RUNNING), waiting, job(2))
    node = {"1g.10gb": 4}
    slurm.known_nodes = (a_node("gpu01", gpus=node, gpus_allotted={"1g.10gb": 1}),)
    cluster_state = sync_of(slurm)
    borrows = {"borrowing_limit_millislices": Millislices(9000)}
    cluster_state.set_policy(policy_of(tenant("vision", 2000, **borrows), LENDER), {})
    cluster_state.set_shares({"vision": 0.25})
    await cluster_state.turn()
    seen = cluster_state.snapshot
    assert seen is not None
    assert seen.quotas == {"vision": 2000, "lab": 9000}
    assert seen.highest_limits == {"vision": 4000, "lab": 4000}
    assert (seen.used, seen.guaranteed_used) == ({"vision": 1000}, {"vision": 2000})
    assert (seen.gpu_types["1g.10gb"].free, seen.node_costs) == (3, {4000})
    assert seen.gpu_types["1g.10gb"].waiting == 1
    living = {("vision", "bert"): Living(814, 61001)}
    assert (seen.shares, seen.services) == ({"vision": 0.25}, living)
    cluster_state.set_policy(
        policy_of(tenant("vision", 1000)), {}, policy_of(tenant("vision", 3000))
    )
    by_calendar = cluster_state.snapshot
    assert by_calendar is not None
    assert (by_calendar.quotas, by_calendar.highest_limits) == ({"vision": 1000}, {"vision": 3000})
    assert by_calendar.highest_quotas == {"vision": 3000}


async def test_a_slot_that_waits_beyond_a_quota_that_has_shrunk_borrows() -> None:
    waits = job(1, held=False, reason="QOSGrpBilling", priority=7)
    slurm = ScriptedSlurm(job(0, JobState.RUNNING), waits, job(2))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    assert slurm.actions == []
    borrows = {"borrowing_limit_millislices": Millislices(9000)}
    cluster_state.set_policy(policy_of(tenant("vision", 1000, **borrows), LENDER), {})
    await cluster_state.turn()
    assert slurm.actions == [(f"update {JobChange(qos='slicewise_vision_borrowed')}", [1])]


async def test_what_the_launcher_says_of_backlogs_is_kept_while_the_service_lives() -> None:
    slurm = ScriptedSlurm(job(0))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    await desire(cluster_state, 814, frozenset(), "", 0.75)
    await cluster_state.turn()
    assert cluster_state.urgencies == {814: 0.75}
    slurm.shown = ()
    await cluster_state.turn()
    assert cluster_state.urgencies == {}


AVOIDS = "slicewise:1 token=ab12 tenant=vision service=bert avoids=gpu01"


def with_nodes(slurm: ScriptedSlurm) -> ScriptedSlurm:
    slurm.known_nodes = tuple(a_node(name) for name in ("gpu01", "gpu02"))
    return slurm


async def test_a_slot_is_kept_off_a_node_before_it_is_released() -> None:
    slurm = with_nodes(ScriptedSlurm(job(0), job(1)))
    slurm.excluded = {901: frozenset({"login"})}
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    answer = await desire(cluster_state, 814, frozenset({0, 1}), avoid=("gpu01",))
    assert answer.released == (0, 1)
    (one, one_slots), (other, other_slots), last = slurm.actions
    own = JobChange(excluded_nodes=frozenset({"gpu01"}), admin_comment=AVOIDS)
    assert (one, one_slots) == (f"update {own}", [0])
    # A set of two is printed in either order.
    more = [
        f"update {own}".replace("{'gpu01'}", both)
        for both in ("{'gpu01', 'login'}", "{'login', 'gpu01'}")
    ]
    assert other in more
    assert (other_slots, last) == ([1], ("release", [0, 1]))


def report_copied(cluster_state: ClusterState, node: str) -> None:
    """As the launcher reports a start on the node that copied its model there."""
    start = StartTrace(814, 0, {}, "ready", Weights("copied", 9), node)
    told = a_report(tenant="vision", name="bert", starts=(start,))
    cluster_state.service_reports.take(ServiceReportRequest(services=(told,)))


async def test_a_slot_is_released_to_a_node_with_its_weights_by_one_change_of_its_list() -> None:
    slurm = with_nodes(ScriptedSlurm(job(0)))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    report_copied(cluster_state, "gpu02")
    await desire(cluster_state, 814, frozenset({0}))
    own = JobChange(excluded_nodes=frozenset({"gpu01"}), admin_comment=AVOIDS)
    assert slurm.actions == [(f"update {own}", [0]), ("release", [0])]
    # At the next release nothing but that is asked of Slurm.
    slurm.shown, slurm.excluded = (job(0, admin_comment=AVOIDS),), {900: frozenset({"gpu01"})}
    await cluster_state.turn()
    slurm.done.clear()
    await desire(cluster_state, 814, frozenset({0}))
    assert [done[0] for done in slurm.done] == ["release"]


async def test_nodes_on_which_replicas_fail_are_avoided_rather_than_those_without_weights() -> None:
    slurm = with_nodes(ScriptedSlurm(job(0)))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    report_copied(cluster_state, "gpu01")
    await desire(cluster_state, 814, frozenset({0}), avoid=("gpu01",))
    own = JobChange(excluded_nodes=frozenset({"gpu01"}), admin_comment=AVOIDS)
    assert slurm.actions == [(f"update {own}", [0]), ("release", [0])]


@pytest.mark.parametrize("node", ["gpu02", "gpu03"])
async def test_a_slot_that_waits_for_its_weights_may_soon_start_anywhere(node: str) -> None:
    """gpu03 is gone: its list is as a minute's wait for another reason has left it."""
    slurm = with_nodes(ScriptedSlurm(job(0)))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    report_copied(cluster_state, node)
    await desire(cluster_state, 814, frozenset({0}))
    slurm.done.clear()
    since_s = int(cluster_state.slurm_s) - 6
    slurm.shown, slurm.excluded = (replace(WAITS, eligible_s=since_s),), {900: frozenset({"gpu01"})}
    await cluster_state.turn()
    assert bool(slurm.actions) is (node == "gpu02")


async def test_a_slot_that_finds_no_other_node_soon_may_start_anywhere() -> None:
    slurm = with_nodes(ScriptedSlurm(job(0)))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    await desire(cluster_state, 814, frozenset({0}))
    slurm.done.clear()
    waits = job(0, held=False, reason="Resources", admin_comment=AVOIDS, eligible_s=1)
    slurm.shown, slurm.excluded = (waits,), {900: frozenset({"gpu01"})}
    await cluster_state.turn()
    change = JobChange(
        excluded_nodes=frozenset(), admin_comment=AVOIDS.removesuffix(" avoids=gpu01")
    )
    assert slurm.actions == [(f"update {change}", [0])]


async def test_the_tag_is_read_again_since_a_look_may_be_older_than_the_last_change() -> None:
    slurm = with_nodes(ScriptedSlurm(job(0)))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    slurm.meanwhile = (job(0, admin_comment=AVOIDS),)
    slurm.excluded = {900: frozenset({"gpu01"})}
    await desire(cluster_state, 814, frozenset({0}), avoid=("gpu01",))
    assert slurm.actions == [("release", [0])]


WAITS = job(0, held=False, reason="Resources", admin_comment=AVOIDS, eligible_s=1)


async def with_slot(
    slurm: ScriptedSlurm, now_s: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> ClusterState:
    """A state by the clock ``now_s`` that has looked once, and for which slot 0 is desired."""
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    await desire(cluster_state, 814, frozenset({0}))
    return cluster_state


async def test_what_slots_avoid_hinders_no_guard_and_is_not_tried_at_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Busy(ScriptedSlurm):
        async def excluded_nodes(self, array_job_id: int) -> Mapping[int, frozenset[str]]:
            await super().excluded_nodes(array_job_id)
            raise DOWN

    slurm, now_s = with_nodes(Busy(job(0), job(1))), [1000.0]
    cluster_state = await with_slot(slurm, now_s, monkeypatch)
    slurm.done.clear()
    slurm.shown = (WAITS, LOOSE)
    for passes_s, tries in ((0, 1), (9, 1), (1, 2)):
        now_s[0] += passes_s
        await cluster_state.turn()
        assert slurm.done.count(("excluded_nodes", 814)) == tries
    assert slurm.actions == [("hold", [1])] * 3


async def test_a_throttle_is_taken_off_a_services_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld sets it before it asks anybody; a slot that waits for it makes it urgent."""
    slurm, now_s = with_nodes(ScriptedSlurm(job(0), job(1))), [1000.0]
    cluster_state = await with_slot(slurm, now_s, monkeypatch)
    slurm.throttles = frozenset({814, 5})
    felt = job(0, held=False, reason="JobArrayTaskLimit", priority=1)
    for passes_s, shown, times in ((10, job(0), 0), (4, felt, 1), (4, felt, 1), (1, felt, 2)):
        now_s[0] += passes_s
        slurm.shown = (shown, job(1))
        await cluster_state.turn()
        off = [name for name, _ in slurm.actions if name == f"update {JobChange(throttle=0)}"]
        assert len(off) == times
    slurm.throttles, slurm.shown = frozenset(), (job(0), job(1))
    asked = slurm.throttles_asked
    for passes_s, more in ((299, 0), (1, 1)):
        now_s[0] += passes_s
        await cluster_state.turn()
        assert slurm.throttles_asked - asked == more


async def test_a_throttle_that_slurm_shows_nowhere_is_felt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows an array's throttle beside untouched tasks only."""
    slurm, now_s = with_nodes(ScriptedSlurm(job(0), job(1))), [1000.0]
    cluster_state = await with_slot(slurm, now_s, monkeypatch)
    felt = job(0, held=False, reason="JobArrayTaskLimit", priority=1)
    rest = job(1, task_index=None, untouched=frozenset({1, 2}))
    for others, is_off in ((rest, False), (job(1), True)):
        now_s[0] += 10
        slurm.shown = (felt, others)
        # A slot's reason is known from the look before.
        await cluster_state.turn()
        now_s[0] += 10
        await cluster_state.turn()
        off = [name for name, _ in slurm.actions if name == f"update {JobChange(throttle=0)}"]
        assert bool(off) is is_off


async def test_that_slurm_refused_all_changes_is_no_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Refuses(ScriptedSlurm):
        async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
            await super().update(changes)
            return dict.fromkeys(changes, "Job is being modified")

    caplog.set_level("INFO")
    slurm = with_nodes(Refuses(job(0)))
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    await desire(cluster_state, 814, frozenset({0}))
    slurm.done.clear()
    slurm.shown, slurm.excluded = (WAITS,), {900: frozenset({"gpu01"})}
    for _ in range(2):
        await cluster_state.turn()
    assert len(slurm.actions) == 1
    assert "nodes_avoided" not in caplog.text
    assert 'avoidance_failed array=814 slots=0 refused="Job is being modified"' in caplog.text
