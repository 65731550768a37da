"""Tests that a repartition ends as planned or as before, whichever call is killed or fails."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from stand_ins.repartition_world import (
    AFTER,
    BEFORE,
    GPU,
    MOVING_JOB,
    NODE,
    STAYING_JOB,
    Crashes,
    Killed,
    MemoryJournal,
    RepartitionWorld,
    planned,
    run,
)

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.inventory import Gpu
from slicewise.cluster.language.gpus.repartitions import (
    Direction,
    Repartition,
    RepartitionState,
    RepartitionStep,
    RepartitionStepOutcome,
)
from slicewise.cluster.language.jobs import NodeView
from slicewise.slurm_plugin.repartition.actions import LostLockError, RepartitionActions
from slicewise.slurm_plugin.repartition.executor import Executor
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    is_due,
)

FORWARD = list(RepartitionStep)
CALLS_AFTER_THE_CUT = ("write gres.conf", "write slurm.conf", "restart_controller", "restart_node")


def world_with(crashes: Crashes) -> tuple[RepartitionWorld, MemoryJournal]:
    journal = MemoryJournal(crashes)
    journal.open(planned(), "root")
    return RepartitionWorld(crashes), journal


def steps(repartition: Repartition, direction: Direction) -> list[RepartitionStep]:
    return [one.step for one in repartition.steps if one.direction is direction]


async def test_it_goes_through_its_steps_and_the_node_is_as_planned() -> None:
    world, journal = world_with(Crashes())
    done = await run(world, journal, taken_up=False)
    assert (done.state, done.error) == (RepartitionState.DONE, "")
    assert steps(done, Direction.FORWARD) == FORWARD
    assert world.is_after()
    assert not world.reserved


async def test_who_holds_what_goes_is_told_until_it_has_left_and_who_stays_is_not() -> None:
    world, journal = world_with(Crashes())
    done = await run(world, journal, taken_up=False)
    assert world.running.keys() == {STAYING_JOB}
    assert done.steps[1].words == f"left: jobs {MOVING_JOB}"
    assert world.crashes.calls.count("leave") == 2


async def test_a_replica_has_left_when_its_processes_have_ended() -> None:
    world, journal = world_with(Crashes())
    world.ends_in_s = 7
    done = await run(world, journal, taken_up=False)
    assert done.state is RepartitionState.DONE
    assert world.time_s >= 7


async def test_a_job_that_does_not_leave_in_time_keeps_its_instance() -> None:
    world, journal = world_with(Crashes())
    world.leaves_after = 1000
    ended = await run(world, journal, taken_up=False)
    assert ended.state is RepartitionState.ROLLED_BACK
    assert f"jobs {MOVING_JOB} still hold" in ended.error
    assert steps(ended, Direction.BACK) == [RepartitionStep.RESUME]
    assert world.is_before()
    assert "cut" not in world.crashes.calls


async def test_a_job_on_loan_that_the_plan_names_is_ended_and_waited_for() -> None:
    for ends, state in (
        ((f"job {MOVING_JOB}",), RepartitionState.DONE),
        (("job 99",), RepartitionState.ROLLED_BACK),
    ):
        journal = MemoryJournal(Crashes())
        journal.open(replace(planned(), ends=ends), "root")
        world = RepartitionWorld(journal.crashes)
        world.leaves_after, world.ends_in_s = 1000, 7
        done = await run(world, journal, taken_up=False)
        assert done.state is state
        assert STAYING_JOB in world.running


async def test_a_slurm_that_ends_no_job_now_is_asked_again() -> None:
    journal = MemoryJournal(Crashes(fail={"end_loans": 1}))
    journal.open(replace(planned(), ends=(f"job {MOVING_JOB}",)), "root")
    world = RepartitionWorld(journal.crashes)
    world.leaves_after = 1000
    done = await run(world, journal, taken_up=False)
    assert done.state is RepartitionState.DONE
    assert journal.crashes.calls.count("end_loans") == 2


async def test_a_gpu_that_is_cut_otherwise_than_the_plan_saw_is_not_touched() -> None:
    world, journal = world_with(Crashes())
    world.foreign_layout = set(BEFORE[:3])
    ended = await run(world, journal, taken_up=False)
    assert ended.state is RepartitionState.ROLLED_BACK
    assert "[SW-MIG-CHANGED]" in ended.error
    assert "leave" not in world.crashes.calls
    assert not world.reserved


async def test_a_node_that_an_operator_has_drained_is_left_alone() -> None:
    world, journal = world_with(Crashes())
    world.drained = "bad fan"
    ended = await run(world, journal, taken_up=False)
    assert "Nothing can be done on gpu01: DRAIN." in ended.error
    assert world.drained == "bad fan"


@pytest.mark.parametrize(
    ("call", "undone"),
    [
        ("undrain", ["cut", "verify"]),
        ("node", []),
        ("inventory", []),
        ("holders", []),
        ("leave", []),
        ("cut", ["cut", "verify"]),
        *((call, ["cut", "tell", "verify"]) for call in CALLS_AFTER_THE_CUT),
    ],
)
async def test_whatever_fails_the_node_is_as_before(call: str, undone: list[str]) -> None:
    world, journal = world_with(Crashes(fail={call: 1}))
    ended = await run(world, journal, taken_up=False)
    assert ended.state is RepartitionState.ROLLED_BACK
    assert ended.error == f"{call} failed [SW-SLURM-FAILED]"
    assert steps(ended, Direction.BACK) == [*undone, RepartitionStep.RESUME]
    assert world.is_before()
    assert not world.reserved


async def test_files_are_as_before_after_going_back() -> None:
    world, journal = world_with(Crashes(fail={"restart_node": 1}))
    texts = world.texts()
    await run(world, journal, taken_up=False)
    assert world.texts() == texts


async def test_where_going_back_fails_the_node_is_drained_and_the_next_run_mends_it() -> None:
    crashes = Crashes(fail={"restart_node": 3})
    world, journal = world_with(crashes)
    stuck = await run(world, journal, taken_up=False)
    assert stuck.state is RepartitionState.STUCK
    assert stuck.ended_s is None
    assert world.drained.startswith("slicewise repartition 1: restart_node failed")
    again = await run(world, journal, taken_up=True)
    assert again.state is RepartitionState.STUCK
    mended = await run(world, journal, taken_up=True)
    assert mended.state is RepartitionState.ROLLED_BACK
    assert world.is_before()
    assert not world.drained
    assert not world.reserved


class NoWayBack(RepartitionWorld):
    """The node does not cut the GPU back, as long as it is said so."""

    refuses = True

    async def cut(self, repartition: Repartition, direction: Direction) -> Gpu:
        if self.refuses and direction is Direction.BACK:
            raise OutsideError("SW-DRIVER", "no way back")
        return await super().cut(repartition, direction)


@pytest.mark.parametrize("call", CALLS_AFTER_THE_CUT)
async def test_while_it_is_stuck_the_files_are_as_they_were_before(call: str) -> None:
    """Whatever a node's GPUs have made of slurm.conf, no restart of slurmctld reads it."""
    _, journal = world_with(Crashes())
    world = NoWayBack(Crashes(fail={call: 1}))
    before = world.texts()
    for taken_up in (False, True):
        stuck = await run(world, journal, taken_up=taken_up)
        assert stuck.state is RepartitionState.STUCK
        assert world.texts() == before
    world.refuses = False
    assert (await run(world, journal, taken_up=True)).state is RepartitionState.ROLLED_BACK
    assert world.texts() == before
    assert world.is_before()


class NeverValid(NoWayBack):
    """From some time on its slurmd registers with other GPUs, whatever is restarted."""

    is_invalid = False

    async def node(self, name: str) -> NodeView | None:
        found = await super().node(name)
        if found is None or not self.is_invalid:
            return found
        return replace(found, states=found.states | {"INVALID_REG"})


async def test_a_node_that_stays_invalid_has_slurmctld_restarted_once_a_run() -> None:
    """Its root could have all submitters wait every three minutes."""
    crashes = Crashes(fail={"restart_node": 1})
    _, journal = world_with(Crashes())
    world = NeverValid(crashes)
    await run(world, journal, taken_up=False)
    world.is_invalid = True
    for _ in range(3):
        before = crashes.calls.count("restart_controller")
        assert (await run(world, journal, taken_up=True)).state is RepartitionState.STUCK
        assert crashes.calls.count("restart_controller") - before == 1


async def test_what_is_stuck_is_tried_less_and_less_often() -> None:
    _, journal = world_with(Crashes())
    world, waits_s = NoWayBack(Crashes(fail={"restart_node": 1})), []
    stuck = await run(world, journal, taken_up=False)
    for _ in range(9):
        (*before, last) = stuck.steps
        assert last.ended_s is not None
        # The pause begins when the try ends, however long it took.
        slow = replace(stuck, steps=(*before, replace(last, started_s=last.ended_s - 86_400)))
        waits_s.append(next(s for s in range(0, 86_400, 60) if is_due(slow, last.ended_s + s)))
        stuck = await run(world, journal, taken_up=True)
    assert waits_s == [300, 600, 1200, 2400, 4800, 9600, 19_200, 21_600, 21_600]
    assert is_due(replace(stuck, state=RepartitionState.RUNNING), 0)


async def test_who_takes_up_a_stuck_one_gives_slurm_the_files_that_it_was_told() -> None:
    """Else slurmctld, started again, would have other GPUs than the node's slurmd."""
    _, journal = world_with(Crashes())
    world = NoWayBack(Crashes(fail={"restart_controller": 1}))
    await run(world, journal, taken_up=False)
    told, seen, undrain = world.told, [], world.undrain

    async def told_of(name: str, reasons: tuple[str, ...]) -> None:
        seen.append(world.texts())
        await undrain(name, reasons)

    world.undrain = told_of  # type: ignore[method-assign, assignment]
    world.refuses = False
    await run(world, journal, taken_up=True)
    assert told is not None
    assert seen[0] == told


async def test_where_slurmctld_does_not_answer_it_is_started_with_the_files_from_before() -> None:
    _, journal = world_with(Crashes())
    world = NoWayBack(Crashes(fail={"restart_controller": 1}))
    before, seen = world.texts(), []
    world.restart_controller = restarts(world, seen)  # type: ignore[method-assign]
    stuck = await run(world, journal, taken_up=False)
    assert stuck.state is RepartitionState.STUCK
    assert seen[-1] == before
    assert world.drained


def restarts(
    world: RepartitionWorld, seen: list[tuple[str, str]]
) -> Callable[[str], Awaitable[None]]:
    """slurmctld, which is gone as soon as it reads other files than those from before."""
    before, node = world.texts(), world.node

    async def restart(_name: str) -> None:
        seen.append(world.texts())
        world.node = node if world.texts() == before else silent  # type: ignore[method-assign]
        if world.texts() != before:
            raise UnreachableError("SW-SLURM-DOWN", "it does not start")

    async def silent(_name: str) -> None:
        raise UnreachableError("SW-SLURM-DOWN", "no answer")

    return restart


async def test_an_operator_s_drain_keeps_its_reason_while_it_is_stuck() -> None:
    world, journal = world_with(Crashes(fail={"cut": 2}))
    await run(world, journal, taken_up=False)
    world.drained = "bad fan"
    again = await run(world, journal, taken_up=True)
    assert again.state is RepartitionState.STUCK
    assert "Nothing can be done on gpu01: DRAIN." in again.error
    assert world.drained == "bad fan"


async def test_a_slurm_that_does_not_answer_for_a_while_is_waited_for() -> None:
    world, journal = world_with(Crashes())
    world.unreachable_s = (2.0, 6.0)
    assert (await run(world, journal, taken_up=False)).state is RepartitionState.DONE


async def test_a_reservation_that_does_not_go_is_no_reason_to_go_back() -> None:
    world, journal = world_with(Crashes(fail={"release": 1}))
    ended = await run(world, journal, taken_up=False)
    assert ended.state is RepartitionState.RUNNING
    assert world.is_after()
    assert (await run(world, journal, taken_up=True)).state is RepartitionState.DONE
    assert not world.reserved


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fail", [None, "restart_node", "cut"])
async def test_killed_at_any_call_the_next_process_ends_it(fail: str | None, after: bool) -> None:
    failing = {fail: 1} if fail else {}
    world, journal = world_with(Crashes(fail=dict(failing)))
    expected = (await run(world, journal, taken_up=False)).state
    for kill_at in range(1, len(world.crashes.calls) + 1):
        killed_world, killed = world_with(Crashes(kill_at, after, fail=dict(failing)))
        with pytest.raises(Killed):
            await run(killed_world, killed, taken_up=False)
        ended = await run(killed_world, killed, taken_up=True)
        assert ended.state in {expected, RepartitionState.DONE}
        assert (
            killed_world.is_after()
            if ended.state is RepartitionState.DONE
            else killed_world.is_before()
        )
        assert not killed_world.reserved


async def test_a_reservation_that_ended_before_the_next_process_came_is_made_again() -> None:
    world, journal = world_with(Crashes(fail={}))
    await run(world, journal, taken_up=False)
    at = world.crashes.calls.index("restart_controller") + 1
    world, journal = world_with(Crashes(at))
    with pytest.raises(Killed):
        await run(world, journal, taken_up=False)
    world.reserved.clear()
    assert (await run(world, journal, taken_up=True)).state is RepartitionState.DONE


async def test_what_is_done_but_for_the_reservation_is_not_undone() -> None:
    world, journal = world_with(Crashes(await calls_until(RepartitionStep.RESUME) + 1))
    with pytest.raises(Killed):
        await run(world, journal, taken_up=False)
    world.crashes.calls, world.crashes.kill_at = [], 0
    for call in ("reserve", "release"):
        world.crashes.fail = {call: 1}
        waits = await run(world, journal, taken_up=True)
        assert (waits.state, world.is_after()) == (RepartitionState.RUNNING, True)
    assert (await run(world, journal, taken_up=True)).state is RepartitionState.DONE


async def test_what_a_job_got_after_the_reservation_is_not_destroyed_on_the_way_back() -> None:
    world, journal = world_with(Crashes(await calls_until(RepartitionStep.VERIFY)))
    with pytest.raises(Killed):
        await run(world, journal, taken_up=False)
    world.reserved.clear()
    world.running[world.intruder] = world.found({AFTER[-1]})[0]
    crashes = world.crashes
    crashes.calls, crashes.kill_at, crashes.fail = [], 0, {"reserve": 1}
    stuck = await run(world, journal, taken_up=True)
    assert (stuck.state, "SW-REPARTITION-HELD" in stuck.error) == (RepartitionState.STUCK, True)
    assert "cut" not in crashes.calls
    assert world.is_after()
    world.running.pop(world.intruder)
    assert (await run(world, journal, taken_up=True)).state is RepartitionState.ROLLED_BACK


async def test_until_it_is_cut_the_next_process_waits_again_for_who_holds_it() -> None:
    world, journal = world_with(Crashes())
    at = (await calls_until(RepartitionStep.CUT)) + 1
    world, journal = world_with(Crashes(at))
    with pytest.raises(Killed):
        await run(world, journal, taken_up=False)
    world.running[MOVING_JOB] = world.found({BEFORE[6]})[0]
    ended = await run(world, journal, taken_up=True)
    assert ended.state is RepartitionState.DONE
    assert steps(ended, Direction.FORWARD).count(RepartitionStep.MOVE) == 2


async def calls_until(step: RepartitionStep) -> int:
    """How many calls come before that step is begun."""
    world, journal = world_with(Crashes())
    await run(world, journal, taken_up=False)
    begins = [n for n, call in enumerate(world.crashes.calls) if call == "begin_step"]
    return begins[FORWARD.index(step)]


@pytest.mark.parametrize("answer", [False, UnreachableError("SW-DATABASE-DOWN", "gone")])
async def test_who_has_lost_the_lock_stops_and_undoes_nothing(answer: object) -> None:
    def is_ours() -> bool:
        if isinstance(answer, Exception):
            raise answer
        return False

    world, journal = world_with(Crashes())
    executor = Executor(RepartitionActions(world, journal, 20, is_ours), journal, lambda *_: None)
    with pytest.raises(LostLockError):
        await executor.carry_out(journal.find(1), taken_up=False)
    (record,) = journal.find(1).steps
    assert record.outcome is RepartitionStepOutcome.RUNNING
    assert not world.reserved


async def test_each_step_is_told_when_it_begins_and_when_it_has_ended() -> None:
    world, journal = world_with(Crashes())
    seen: list[tuple[RepartitionStep, RepartitionStepOutcome]] = []
    executor = Executor(
        RepartitionActions(world, journal, 20, lambda: True),
        journal,
        lambda _, record: seen.append((record.step, record.outcome)),
    )
    await executor.carry_out(journal.find(1), taken_up=False)
    assert seen == [
        (step, o)
        for step in FORWARD
        for o in (RepartitionStepOutcome.RUNNING, RepartitionStepOutcome.DONE)
    ]


async def test_what_it_was_before_is_kept_before_slurm_is_told() -> None:
    world, journal = world_with(Crashes())
    texts = world.texts()
    done = await run(world, journal, taken_up=False)
    assert (done.slurm_conf, done.gres_conf) == texts
    calls = world.crashes.calls
    assert calls.index("keep_texts") < calls.index("write gres.conf")
    assert (done.gpu, done.node) == (GPU, NODE)
