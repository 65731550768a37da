"""Tests how services' arrays get their tag where no slicewise.lua gives it."""

from collections.abc import Mapping
from typing import Any

import pytest
from builders.jobs import a_job
from builders.nodes import a_node
from builders.tenants import policy_of, tenant
from fault_world.virtual_time import WorldClock
from stand_ins.scripted import ScriptedSlurm, sync_of
from stand_ins.scripted import settings as site

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.service import COMMENT
from slicewise.cluster.language.slurm.interface import JobChange, JobRequest, Target
from slicewise.slurm_plugin.daemon.service_tag_loop import ServiceTagLoop
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

SCRIPT = """#!/bin/bash
#SLICEWISE name={name}
#SLICEWISE tenant={tenant}
#SLICEWISE model_repository=/models
#SLICEWISE model=bert
#SLICEWISE {gpus}
#SLICEWISE max_replicas=3
"""
TYPED = SCRIPT.format(name="bert", tenant="vision", gpus="profile=1g.10gb")
NODE = a_node("gpu01", gpus={"1g.10gb": 4, "3g.40gb": 1})
ASKED = JobRequest(gres="gres:gpu:1g.10gb:1", min_nodes=1, tasks=1)


def array(job_id: int = 7, **changes: Any) -> JobView:
    """A service's array of three slots, as its user has submitted it."""
    fields: dict[str, Any] = {
        "job_id": job_id,
        "array_job_id": job_id,
        "task_index": None,
        "untouched": frozenset(range(3)),
        "state": JobState.PENDING,
        "reason": "JobHeldUser",
        "held": True,
        "priority": 0,
        "qos": "normal",
        "admin_comment": "",
        "comment": COMMENT,
        "tres": {"gres/gpu:1g.10gb": "1"},
        "time_limit_s": 900,
    }
    return a_job(**(fields | changes))


class Tagging(ScriptedSlurm):
    """Takes changes over into what it shows, and refuses them if it is told to."""

    def __init__(self, *jobs: JobView, script: str = TYPED) -> None:
        super().__init__(*jobs)
        self.script = script
        self.requested = ASKED
        self.known_nodes = (NODE,)
        self.changes: list[tuple[Target, JobChange]] = []
        self.refuses = ""

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        self.changes.extend(changes.items())
        return dict.fromkeys(changes, self.refuses) if self.refuses else {}


class World:
    def __init__(self, slurm: Tagging, clock: WorldClock, mode: str = "observe") -> None:
        self.slurm, self.clock = slurm, clock
        self.state: ClusterState = sync_of(slurm, mode)
        self.state.set_policy(policy_of(tenant("vision", 2000)), {})
        self.loop = ServiceTagLoop(site(mode), slurm, self.state)

    async def turn(self) -> None:
        self.clock.passed_s += 1
        await self.state.turn()
        await self.loop.turn()

    def refusal(self, array_job_id: int = 7) -> str:
        why = self.state.refusals.get(array_job_id)
        return "" if why is None else str(why.code.value)


def tag_of(change: JobChange) -> JobTag:
    tag = JobTag.find(change.admin_comment or "")
    assert tag is not None
    return tag


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_a_service_gets_its_tag_and_nothing_else(mode: str, clock: WorldClock) -> None:
    """QOS, priority and GPUs stay its own."""
    slurm = Tagging(array(admin_comment="site=7"))
    await World(slurm, clock, mode).turn()
    ((target, change),) = slurm.changes
    assert target == 7
    assert change == JobChange(admin_comment=change.admin_comment)
    assert str(change.admin_comment).startswith("site=7 slicewise:1 token=")
    assert (tag_of(change).tenant, tag_of(change).service) == ("vision", "bert")
    assert slurm.actions == []


async def test_limits_that_an_uninstall_has_removed_are_not_needed(clock: WorldClock) -> None:
    slurm = Tagging(array())
    world = World(slurm, clock)
    world.state.is_uninstalled = True
    await world.turn()
    assert tag_of(slurm.changes[0][1]).service == "bert"


async def test_in_enforce_slicewise_lua_decides(clock: WorldClock) -> None:
    slurm = Tagging(array())
    await World(slurm, clock, "enforce").turn()
    assert slurm.changes == []


OTHERS = [
    # A plain array, one that runs, one that its user has begun, one elsewhere, one that is tagged.
    array(comment=""),
    array(held=False, reason="Priority"),
    array(state=JobState.RUNNING),
    array(partition="cpu"),
    # The site holds it, which is not the user's to end.
    array(reason="JobHeldAdmin"),
    array(admin_comment="slicewise:1 token=ab12 tenant=vision service=other"),
    array(task_index=0, untouched=frozenset()),
    a_job(comment=COMMENT, held=True, admin_comment=""),
]


@pytest.mark.parametrize("other", OTHERS)
async def test_no_other_job_is_changed_and_no_script_of_one_is_read(
    other: JobView, clock: WorldClock
) -> None:
    slurm = Tagging(other)
    world = World(slurm, clock)
    await world.turn()
    assert (slurm.changes, world.state.refusals) == ([], {})
    assert not any(name == "requests" for name, _ in slurm.done)


async def test_the_type_of_its_gpus_is_chosen_where_its_script_leaves_it_open(
    clock: WorldClock,
) -> None:
    slurm = Tagging(array(tres={}), script=TYPED.replace("profile=1g.10gb", "need_gib=9"))
    slurm.requested = JobRequest(min_nodes=1, tasks=1)
    await World(slurm, clock).turn()
    clear, change = (change for _, change in slurm.changes)
    assert clear == JobChange(gres="", tres_per_job="", tres_per_task="")
    assert change == JobChange(gres="gpu:1g.10gb:1", admin_comment=change.admin_comment)


REFUSED = [
    ({}, {"script": TYPED.replace("tenant=vision", "tenant=lab")}, "SW-SERVICE"),
    ({"account": "lab"}, {}, "SW-SERVICE"),
    ({"partition": "gpu,cpu"}, {}, "SW-SERVICE"),
    # The daemon would lengthen it as an operator, beyond what Slurm lets the user have.
    ({"time_limit_s": 600}, {}, "SW-SERVICE"),
    (
        {"account": "lab"},
        {"script": TYPED.replace("tenant=vision", "tenant=lab")},
        "SW-QUOTA-NONE",
    ),
    ({"untouched": frozenset({0, 2})}, {}, "SW-SERVICE"),
    ({}, {"script": "#!/bin/bash\nsleep 1\n"}, "SW-SERVICE"),
    ({}, {"requested": JobRequest(gres="gres:gpu:1g.10gb:4")}, "SW-SERVICE"),
    ({}, {"requested": JobRequest(gres="gres:gpu:1g.10gb:1", requeue=False)}, "SW-SERVICE"),
    ({}, {"requested": JobRequest(gres="gres:gpu:1g.10gb:1", exclusive=True)}, "SW-SERVICE"),
    ({}, {"script": TYPED.replace("1g.10gb", "7g.80gb")}, "SW-PROFILE-UNKNOWN"),
    ({}, {"refuses": "Invalid user id"}, "SW-SLURM-FAILED"),
]


@pytest.mark.parametrize(("changes", "told", "code"), REFUSED)
async def test_what_enforce_would_refuse_stays_a_plain_job_that_its_user_holds(
    changes: dict[str, Any], told: dict[str, Any], code: str, clock: WorldClock
) -> None:
    slurm = Tagging(array(**changes))
    for name, value in told.items():
        setattr(slurm, name, value)
    world = World(slurm, clock)
    for _ in range(3):
        await world.turn()
    assert world.refusal() == code
    assert (slurm.actions, len(slurm.changes)) == ([], 1 if code == "SW-SLURM-FAILED" else 0)
    assert [name for name, _ in slurm.done].count("requests") == 1


async def test_what_was_refused_is_decided_again(clock: WorldClock) -> None:
    script = TYPED.replace("tenant=vision", "tenant=lab")
    slurm = Tagging(array(account="lab"), script=script)
    world = World(slurm, clock)
    await world.turn()
    assert world.refusal() == "SW-QUOTA-NONE"
    world.state.set_policy(policy_of(tenant("lab", 2000)), {})
    clock.passed_s += 20
    await world.turn()
    assert tag_of(slurm.changes[0][1]).tenant == "lab"
    assert world.refusal() == ""


async def test_a_name_that_another_users_service_has_is_not_given_twice(clock: WorldClock) -> None:
    first, second = array(7), array(8, uid=4321, user="mallory")
    slurm = Tagging(first, second)
    world = World(slurm, clock)
    await world.turn()
    assert [target for target, _ in slurm.changes] == [7]
    assert world.refusal(8) == "SW-SERVICE-EXISTS"


async def test_an_account_of_which_the_user_is_no_member_is_no_tenant_of_his(
    clock: WorldClock,
) -> None:
    """Slurm would not have taken the job; a member may have been removed since."""
    job = array()
    slurm = Tagging(job)
    world = World(slurm, clock)
    accounts = {job.uid: {"lab": frozenset({"normal"})}}
    world.state.set_policy(policy_of(tenant("vision", 2000)), accounts)
    await world.turn()
    assert (world.refusal(), slurm.changes) == ("SW-TENANT-UNKNOWN", [])


async def test_who_submits_too_often_waits(clock: WorldClock) -> None:
    names = [f"bert{number}" for number in range(62)]
    slurm = Tagging(*(array(100 + number) for number in range(62)))
    slurm.scripts = {
        100 + number: SCRIPT.format(name=name, tenant="vision", gpus="profile=1g.10gb")
        for number, name in enumerate(names)
    }
    world = World(slurm, clock)
    await world.turn()
    assert len(slurm.changes) == 60
    assert world.refusal(161) == "SW-RATE"
