"""Tests the model of Slurm by the contract of the real doors."""

import asyncio
from inspect import iscoroutinefunction, signature

import pytest
from fault_world.virtual_time import VirtualLoop, WorldClock
from model_slurm import PARTITION, ModelSite, ModelSlurm
from slurm_contract import (
    ABOVE,
    BELOW,
    CANCELLED_UNTOUCHED,
    INDICES,
    LYING_COMMENT,
    LYING_NAME,
    MEMBER,
    NOT_UTF8,
    SLEEP,
    SLOTS,
    STUBBORN,
    TAG,
    LimitsContract,
    LimitsLook,
    Look,
    SlurmContract,
    check_requeues,
    limits_on,
    look,
)
from stand_ins.slurm_database import CLUSTER, Row

from slicewise.cluster.language.slurm.interface import (
    JobChange,
    SlurmAccounting,
    SlurmActor,
    SlurmReader,
    Tasks,
)
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest

ENDING_S = 5.0
"""Seconds after which the slot from 20 on has ended by itself."""


async def scene(slurm: ModelSlurm, site: ModelSite) -> frozenset[int]:
    """The scene of ``scene_on``, by the same calls."""

    def submit(name: str, script: str, run_s: float = 300.0, **more: object) -> int:
        wanted = {"time_limit_s": 600, "comment": "", **more}
        # Slurm keeps bytes, and its readers replace those that are not UTF-8.
        shown = str(wanted.pop("comment")).encode(errors="surrogateescape").decode(errors="replace")
        request = ModelRequest(
            *("alice", 61001, "vision", PARTITION, "slicewise_vision", {"1g.10gb": 1}),
            run_s=run_s,
            cpus=1,
            memory_mib=20,
            name=name,
            comment=shown,
            **wanted,  # type: ignore[arg-type]
        )
        return site.submit(request, script)

    slots = submit(
        *(LYING_NAME, SLOTS, ENDING_S),
        indices=tuple(sorted(INDICES)),
        held=True,
        comment=LYING_COMMENT,
        exits_held=True,
    )
    await slurm.update({slots: JobChange(admin_comment=TAG.text())})
    pair = submit("pair", SLEEP, tasks=2)
    single = submit("single", SLEEP, indices=(3,), held=True)
    plain = submit("plain", SLEEP, held=True, time_limit_s=None, comment=NOT_UTF8)
    ending = submit("ending", STUBBORN, finishes=True)
    await slurm.release(Tasks(slots, frozenset({20})))
    await slurm.hold(Tasks(slots, frozenset({6})))
    await slurm.cancel(Tasks(slots, frozenset({CANCELLED_UNTOUCHED})))
    await asyncio.sleep(2 * ENDING_S)
    await slurm.release(Tasks(slots, frozenset({0, 2, 4, 8})))
    await asyncio.sleep(ENDING_S / 2)
    await slurm.cancel(Tasks(slots, frozenset({8})))
    await slurm.requeue_hold(Tasks(slots, frozenset({4})))
    await asyncio.sleep(1.5)
    await slurm.cancel(ending)
    return frozenset({slots, pair, single, plain, ending})


def a_site(clock: WorldClock, *rows: Row) -> ModelSite:
    node = SimulatedNode("gpu01", frozenset({PARTITION}), {"1g.10gb": 7}, 16, 16_000)
    return ModelSite(SimulatedCluster("test", (node,)), clock, rows)


@pytest.fixture(scope="module")
def seen() -> Look:
    clock = WorldClock()
    site = a_site(clock, Row("vision", parent="root"))
    slurm = ModelSlurm(site)

    async def looked() -> Look:
        await slurm.sacctmgr([("add", "qos", "slicewise_vision", "grptres=billing=9000")])
        return await look(slurm, await scene(slurm, site))

    loop = VirtualLoop(clock)
    try:
        return loop.run_until_complete(looked())
    finally:
        loop.close()


def test_the_door_has_every_question_and_change_of_the_interface() -> None:
    """With the same parameters: whoever asks it can't tell it from another one."""
    wanted = {
        name: list(signature(method).parameters)
        for door in (SlurmReader, SlurmActor, SlurmAccounting)
        for name, method in vars(door).items()
        if iscoroutinefunction(method)
    }
    assert len(wanted) > 25
    found = {name: list(signature(getattr(ModelSlurm, name)).parameters) for name in wanted}
    assert found == wanted
    assert all(iscoroutinefunction(getattr(ModelSlurm, name)) for name in wanted)


def test_only_the_runs_that_are_meant_are_requeued() -> None:
    clock = WorldClock()
    site = a_site(clock, Row("vision", parent="root"))
    slurm = ModelSlurm(site)

    def submit(*, tasks: int = 0, requeues: bool = True) -> int:
        who = ("alice", 61001, "vision", PARTITION, "slicewise_vision", {})
        request = ModelRequest(*who, run_s=3000.0, cpus=1, tasks=tasks, requeues=requeues)
        return site.submit(request, SLEEP)

    async def checked() -> None:
        await slurm.sacctmgr([("add", "qos", "slicewise_vision", "grptres=billing=9000")])
        await check_requeues(slurm, submit)

    loop = VirtualLoop(clock)
    try:
        loop.run_until_complete(checked())
    finally:
        loop.close()


class TestOnTheModel(SlurmContract):
    def test_gpus_are_those_of_the_request_and_of_the_allocation(self, seen: Look) -> None:
        for job in seen.slots.values():
            gpus = {name: count for name, count in job.tres.items() if name.startswith("gres/")}
            assert gpus == {"gres/gpu": "1", "gres/gpu:1g.10gb": "1"}
        assert seen.slots[0].tres["billing"] == "1000"


@pytest.fixture(scope="module")
def limits() -> list[LimitsLook]:
    rows = Row(ABOVE, parent="root"), Row(BELOW, parent=ABOVE), Row(BELOW, user=MEMBER)
    slurm = ModelSlurm(a_site(WorldClock(), *rows))
    return asyncio.run(limits_on(slurm, CLUSTER, MEMBER))


class TestLimitsOnTheModel(LimitsContract):
    """All tests are the contract's."""
