"""Tests late decisions: jobs that got no answer are decided as if they were submitted now."""

import time
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_node
from builders.tenants import policy_of, tenant
from fault_world.virtual_time import WorldClock
from log_lines import lines
from stand_ins.scripted import ScriptedSlurm, sync_of
from stand_ins.scripted import settings as site

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.slurm.interface import JobChange, JobRequest, Target, Tasks
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.common.log import warn
from slicewise.slurm_plugin.daemon.deferred_loop import DeferredLoop

pytestmark = pytest.mark.usefixtures("clock")

UNDECIDED = JobTag("ab12", "vision", is_undecided=True)
AUTO = replace(UNDECIDED, was_auto=True)
DECIDED = "slicewise:1 token=ab12 tenant=vision flexible"
CLEAR = JobChange(gres="", tres_per_job="", tres_per_task="")
NODE = a_node("gpu01", gpus={"1g.10gb": 4, "3g.40gb": 1})


def job(tag: JobTag = UNDECIDED, **changes: Any) -> JobView:
    """A job of ten minutes whose GPU has no type yet."""
    fields: dict[str, Any] = {
        "admin_comment": f"site {tag.text()}",
        "reason": "JobHeldUser",
        "held": True,
        "priority": 0,
        "tres": {"gres/gpu": "1"},
        "time_limit_s": 600,
    }
    return a_job(**(fields | changes))


class Changing(ScriptedSlurm):
    """Remembers changes as they are, and refuses those that it is told to."""

    def __init__(self, *jobs: JobView, refuses: str = "") -> None:
        super().__init__(*jobs)
        self.script = "#!/bin/sh\n"
        self.known_nodes = (NODE,)
        self.changes: list[tuple[Any, JobChange]] = []
        self.refuses = refuses

    async def update(self, changes: Any) -> Any:
        self.changes.extend(changes.items())
        return dict.fromkeys(changes, self.refuses) if self.refuses else {}


async def decided(slurm: Changing, turns: int = 1) -> DeferredLoop:
    cluster_state = sync_of(slurm)
    borrows = {"borrowing_limit_millislices": Millislices(1000)}
    lender = tenant("lab", 1000, lending_limit_millislices=Millislices(1000))
    cluster_state.set_policy(policy_of(tenant("vision", 2000, **borrows), lender), {})
    loop = DeferredLoop(site(), slurm, cluster_state)
    for _ in range(turns):
        await cluster_state.turn()
        await loop.turn()
    return loop


DECIDED_MARK = JobChange(admin_comment=f"site {DECIDED}")


def change(**values: Any) -> JobChange:
    return JobChange(qos="slicewise_vision", site_factor=7666, **values)


OPEN = [
    # what Slurm has, what it gets
    (JobRequest(gres="gres:gpu:2"), {"gres": "gpu:1g.10gb:2"}),
    (JobRequest(gres="gres/nic:1,gres/gpu"), {"gres": "nic:1,gpu:1g.10gb:1"}),
    (JobRequest(tres_per_job="gres:gpu:2"), {"tres_per_job": "gres:gpu:1g.10gb:2"}),
    (
        JobRequest(gres="gres:nic:1", tres_per_task="gres/gpu:1"),
        {"gres": "nic:1", "tres_per_task": "gres/gpu:1g.10gb:1"},
    ),
]


@pytest.mark.parametrize(("asked", "texts"), OPEN)
async def test_gpus_of_type_auto_get_one_and_the_job_goes_on(
    asked: JobRequest, texts: dict[str, str]
) -> None:
    slurm = Changing(job(AUTO))
    slurm.requested = asked
    await decided(slurm)
    assert slurm.changes == [(7, CLEAR), (7, change(**texts)), (7, DECIDED_MARK)]
    assert slurm.actions == [("release", 7)]


async def test_its_script_has_a_say() -> None:
    """It may not be requeued, so it is not flexible."""
    slurm = Changing(job())
    slurm.script = "#!/bin/sh\n#SLICEWISE need=9GiB\n#SLICEWISE class=low\n"
    slurm.requested = JobRequest(gres="gres:gpu:1", requeue=False)
    await decided(slurm, turns=2)
    comment = "site slicewise:1 token=ab12 tenant=vision class=low"
    typed = JobChange("slicewise_vision", 6666, "gpu:1g.10gb:1")
    held = replace(typed, admin_comment=f"site {AUTO.text()}")
    mark = JobChange(admin_comment=comment)
    assert slurm.changes[:3] == [(7, CLEAR), (7, held), (7, mark)]
    assert slurm.done.count(("script", 7)) == 1


@pytest.mark.parametrize("gres", ["gres:gpu:1g.10gb:1", "gres/gpu:1g.10gb", "gpu:1g.10gb,nic:1"])
async def test_typed_gpus_stay_and_only_the_rest_is_set(gres: str) -> None:
    """Slurm would keep the type beside one that is set, be it the same."""
    slurm = Changing(job(held=False, reason="Priority"))
    slurm.requested = JobRequest(gres=gres)
    await decided(slurm)
    assert slurm.changes == [(7, change(admin_comment=DECIDED_MARK.admin_comment))]
    assert slurm.actions == []


async def test_what_its_user_holds_stays_held() -> None:
    slurm = Changing(job())
    slurm.requested = JobRequest(gres="gres:gpu:1g.10gb:1")
    await decided(slurm)
    assert slurm.actions == []


async def test_what_was_held_for_its_need_goes_on_with_the_type_that_it_names() -> None:
    slurm = Changing(job())
    slurm.script = "#!/bin/sh\n#SLICEWISE need=9GiB\n"
    slurm.requested = JobRequest(gres="gres:gpu:1g.10gb:1")
    await decided(slurm)
    assert slurm.changes == [(7, change()), (7, DECIDED_MARK)]
    assert slurm.actions == [("release", 7)]


async def test_what_got_its_type_and_was_not_released_is_released_by_the_next() -> None:
    """A daemon may die in between: until the release the tag says undecided."""
    slurm = Changing(job(AUTO))
    slurm.requested = JobRequest(gres="gres:gpu:1g.10gb:1")
    await decided(slurm)
    assert slurm.changes == [(7, change()), (7, DECIDED_MARK)]
    assert slurm.actions == [("release", 7)]


async def test_a_look_from_before_it_was_marked_changes_nothing_more() -> None:
    slurm = Changing(job(AUTO))
    slurm.requested = JobRequest(gres="gres:gpu:1")
    cluster_state = sync_of(slurm)
    loop = DeferredLoop(site(), slurm, cluster_state)
    await cluster_state.turn()
    await loop.turn()
    done = list(slurm.changes)
    at_s = cluster_state.looked_monotonic_s
    slurm.shown = (job(AUTO, state=JobState.RUNNING, held=False),)
    await cluster_state.turn()
    cluster_state.looked_monotonic_s = at_s + 1e-6
    await loop.turn()
    assert slurm.changes == done


async def test_a_clock_that_is_set_back_keeps_no_job_waiting(
    monkeypatch: pytest.MonkeyPatch, clock: WorldClock
) -> None:
    slurm = Changing()
    slurm.requested = JobRequest(gres="gres:gpu:1")
    cluster_state = sync_of(slurm)
    loop = DeferredLoop(site(), slurm, cluster_state)
    ahead_s = time.time() + 3600
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: ahead_s)
        await cluster_state.turn()
        await loop.turn()
    clock.passed_s += 1
    slurm.shown = (job(AUTO),)
    await cluster_state.turn()
    await loop.turn()
    assert slurm.changes != []


async def test_an_array_is_addressed_by_its_tasks() -> None:
    tasks = frozenset({0, 1, 4})
    slurm = Changing(job(AUTO, array_job_id=7, untouched=tasks))
    slurm.requested = JobRequest(gres="gres:gpu:1")
    await decided(slurm)
    assert [target for target, _ in slurm.changes] == [Tasks(7, tasks)] * 3
    assert slurm.actions == [("release", [0, 1, 4])]


class TestRefusals:
    async def test_the_job_is_held_once_as_administrator(self) -> None:
        slurm = Changing(job())
        slurm.requested = JobRequest(gres="gres:gpu:1")
        loop = await decided(slurm)
        assert slurm.actions == [("hold", 7)]
        assert loop.refusals[7].code == "SW-GRES"
        slurm.shown = (job(reason="JobHeldAdmin"),)
        await decided(slurm, turns=2)
        assert slurm.actions == [("hold", 7)]
        assert slurm.changes == []

    async def test_it_is_logged_with_the_job_as_is_all_that_is_done_for_it(self) -> None:
        class Talking(Changing):
            async def hold(self, target: Target) -> None:
                await super().hold(target)
                warn("slurmrestd_failed", call="hold")

        slurm = Talking(job())
        slurm.requested = JobRequest(gres="gres:gpu:1")
        with lines() as caught:
            await decided(slurm)
        told = [(one["event"], one["job_id"]) for one in caught.events()]
        assert told == [("slurmrestd_failed", 7), ("refused_late", 7)]

    async def test_slurm_is_not_asked_about_it_at_every_look(self) -> None:
        slurm = Changing(job(reason="JobHeldAdmin"))
        slurm.requested = JobRequest(gres="gres:gpu:1")
        await decided(slurm, turns=4)
        assert [what for what, _ in slurm.done].count("requests") == 1

    async def test_it_goes_on_when_the_decision_is_another_one(self) -> None:
        slurm = Changing(job(reason="JobHeldAdmin"))
        slurm.requested = JobRequest(gres="gres:gpu:1g.10gb:1")
        loop = await decided(slurm)
        assert slurm.changes == [(7, change()), (7, DECIDED_MARK)]
        assert slurm.actions == [("release", 7)]
        assert loop.refusals == {}

    @pytest.mark.parametrize(
        ("reason", "after_s", "service", "released"),
        [
            pytest.param("JobHeldAdmin", 1.0, None, [("release", 7)], id="the hold was late"),
            pytest.param("JobHeldAdmin", 61.0, None, [], id="an administrator, much later"),
            pytest.param("JobHeldUser", 1.0, None, [], id="its user"),
            pytest.param("JobHeldAdmin", 1.0, "bert", [], id="a slot that nobody wants"),
        ],
    )
    async def test_a_hold_that_slurm_makes_after_the_job_was_admitted_is_undone(
        self,
        monkeypatch: pytest.MonkeyPatch,
        reason: str,
        after_s: float,
        service: str | None,
        released: list[tuple[str, int]],
    ) -> None:
        class Late(Changing):
            async def hold(self, target: Target) -> None:
                raise UnreachableError("SW-SLURM-DOWN", "timed out")

        slurm = Late(job(held=False, reason="Priority"))
        slurm.requested = JobRequest(gres="gres:gpu:1")
        cluster_state = sync_of(slurm)
        loop = DeferredLoop(site(), slurm, cluster_state)
        await cluster_state.turn()
        with pytest.raises(UnreachableError, match="timed out"):
            await loop.turn()
        ahead_s = time.monotonic() + after_s
        monkeypatch.setattr(time, "monotonic", lambda: ahead_s)
        slurm.shown = (job(JobTag("ab12", "vision", service), reason=reason),)
        await cluster_state.turn()
        await loop.turn()
        assert slurm.actions == released

    @pytest.mark.parametrize(
        ("tag", "asked"),
        [
            (UNDECIDED, JobRequest(gres="gres:gpu:auto:1")),
            (AUTO, JobRequest(tres_per_socket="gres:gpu:1")),
            (UNDECIDED, JobRequest()),
        ],
    )
    async def test_what_slurm_can_not_change_is_held(self, tag: JobTag, asked: JobRequest) -> None:
        slurm = Changing(job(tag))
        slurm.requested = asked
        loop = await decided(slurm)
        assert loop.refusals[7].code == "SW-RESUBMIT"
        assert (slurm.changes, slurm.actions) == ([], [("hold", 7)])

    async def test_what_is_gone_is_forgotten(self, clock: WorldClock) -> None:
        slurm = Changing(job())
        slurm.requested = JobRequest(gres="gres:gpu:1")
        cluster_state = sync_of(slurm)
        loop = DeferredLoop(site(), slurm, cluster_state)
        await cluster_state.turn()
        await loop.turn()
        assert set(loop.refusals) == {7}
        clock.passed_s += 1
        slurm.shown = ()
        await cluster_state.turn()
        await loop.turn()
        assert loop.refusals == {}


async def test_a_job_that_slurm_started_is_only_marked() -> None:
    slurm = Changing(job(state=JobState.RUNNING, held=False))
    await decided(slurm)
    assert slurm.changes == [
        (7, JobChange(admin_comment="site slicewise:1 token=ab12 tenant=vision"))
    ]
    assert slurm.actions == []


async def test_a_change_that_slurm_refuses_releases_nothing() -> None:
    slurm = Changing(job(AUTO), refuses="Job is no longer pending execution")
    slurm.requested = JobRequest(gres="gres:gpu:1")
    await decided(slurm)
    assert slurm.changes == [(7, CLEAR)]
    assert slurm.actions == []


async def test_a_job_of_srun_has_no_script_so_it_can_not_be_requeued() -> None:
    slurm = Changing(job(AUTO))
    slurm.unreadable = OutsideError("SW-SLURM-FAILED", "no script")
    slurm.requested = JobRequest(gres="gres:gpu:1")
    await decided(slurm)
    assert slurm.actions == [("release", 7)]
    assert slurm.changes[-1][1].admin_comment == "site slicewise:1 token=ab12 tenant=vision"


async def test_one_takes_what_the_next_does_not_have() -> None:
    jobs = (replace(job(AUTO), job_id=number) for number in (3, 2, 1))
    slurm = Changing(*jobs)
    slurm.requested = JobRequest(gres="gres:gpu:1")
    await decided(slurm)
    qos = {target: change.qos for target, change in slurm.changes if change.qos}
    assert qos == {1: "slicewise_vision", 2: "slicewise_vision", 3: "slicewise_vision_borrowed"}


@pytest.mark.parametrize(
    "other",
    [
        job(JobTag("ab12", "vision")),
        job(state=JobState.ENDED),
        job(partition="cpu"),
        job(admin_comment=""),
    ],
)
async def test_left_alone(other: JobView) -> None:
    slurm = Changing(other)
    await decided(slurm)
    assert (slurm.changes, slurm.actions) == ([], [])
