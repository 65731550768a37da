"""The sync loop on a scripted Slurm: what it does, and what it leaves alone when it can't see."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import InvalidInputError, OutsideError, SlicewiseError, UnreachableError
from cluster.jobs import JobState, JobView, NodeView, RunRecord, StepView
from cluster.settings import DaemonSettings, Settings, load_settings
from cluster.slurm.interface import Association, Qos, Tasks
from cluster.units import Millislices
from slurm_plugin.admit import Admission
from slurm_plugin.bookkeeping import Bookkeeping
from slurm_plugin.decide.charging import ACCOUNTING_DELAY_S
from slurm_plugin.decide.model import Charge, Quota, Reservation
from slurm_plugin.sync import Sync

ETC = Path(__file__).resolve().parents[3] / "etc" / "slicewise.toml"
SCRIPT = "#!/bin/bash\n#SLICEWISE name=bert\n#SLICEWISE tenant=vision\n#SLICEWISE max_replicas=3\n"
DOWN = UnreachableError("SW-SLURM-DOWN", "down")


def settings(mode: str = "enforce") -> Settings:
    daemon = DaemonSettings.model_validate({"mode": mode})
    return load_settings(ETC).model_copy(update={"daemon": daemon})


def job(index: int, state: JobState = JobState.PENDING, **changes: Any) -> JobView:
    view = JobView(
        job_id=900 + index,
        array_job_id=814,
        task_index=index,
        untouched=frozenset(),
        name="bert",
        user="alice",
        uid=61001,
        account="vision",
        partition="gpu",
        qos="slicewise_vision",
        state=state,
        reason="JobHeldAdmin" if state is JobState.PENDING else "None",
        held=state is JobState.PENDING,
        priority=0,
        admin_comment="slicewise:1 token=ab12 tenant=vision service=bert",
        comment="",
        tres={"gres/gpu:1g.10gb": "1"},
        nodes=(),
        submit_s=1,
        start_s=1000 if state is JobState.RUNNING else None,
        end_s=None,
        eligible_s=None,
        time_limit_s=600,
        restarts=0,
    )
    return replace(view, **changes)


LOOSE = job(1, held=False, reason="Priority")
UNTAGGED = job(2, held=False, reason="JobHeldUser", admin_comment="", array_job_id=815)


class ScriptedSlurm:
    """Shows what it is told to show and remembers what was asked of it."""

    def __init__(self, *jobs: JobView) -> None:
        self.shown: tuple[JobView, ...] = jobs
        self.failure: SlicewiseError | None = None
        self.done: list[tuple[str, Any]] = []
        self.records: tuple[RunRecord, ...] = ()
        self.script = SCRIPT
        self.unreadable: SlicewiseError | None = None

    def _see(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def version(self) -> tuple[int, ...]:
        return (22, 5, 8)

    async def jobs(self) -> tuple[JobView, ...]:
        self._see()
        return self.shown

    async def nodes(self) -> tuple[NodeView, ...]:
        return ()

    async def steps(self) -> tuple[StepView, ...]:
        return ()

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        self.done.append(("runs", since_s))
        self._see()
        return self.records

    async def batch_script(self, job_id: int) -> str:
        self.done.append(("script", job_id))
        if self.unreadable is not None:
            raise self.unreadable
        return self.script

    async def associations(self) -> tuple[Association, ...]:
        return ()

    async def qos(self) -> tuple[Qos, ...]:
        return ()

    async def hold(self, tasks: Tasks) -> None:
        self._act("hold", tasks)

    async def release(self, target: int | Tasks) -> None:
        self._act("release", target)

    async def requeue_hold(self, target: int | Tasks) -> None:
        self._act("requeue_hold", target)

    async def cancel(self, target: int | Tasks) -> None:
        self._act("cancel", target)

    async def sacctmgr(self, changes: Sequence[Sequence[str]]) -> None:
        self.done.extend(("sacctmgr", tuple(change)) for change in changes)

    def _act(self, name: str, target: int | Tasks) -> None:
        self._see()
        shown = target if isinstance(target, int) else sorted(target.indices)
        self.done.append((name, shown))

    @property
    def actions(self) -> list[tuple[str, Any]]:
        return [one for one in self.done if one[0] not in {"script", "runs"}]


def sync_of(slurm: ScriptedSlurm, mode: str = "enforce") -> Sync:
    sync = Sync(settings(mode), slurm, Admission(settings(mode).daemon.mode))
    sync.set_policy({"vision": Millislices(2000)}, {})
    return sync


async def test_the_script_of_an_array_is_read_once() -> None:
    slurm = ScriptedSlurm(job(0), UNTAGGED)
    sync = sync_of(slurm)
    for _ in range(3):
        await sync.turn()
    assert slurm.done == [("script", 814)]
    assert [service.name for service in sync.view.services] == ["bert"]


async def test_a_script_that_slurm_does_not_hand_out_is_asked_for_again() -> None:
    slurm = ScriptedSlurm(job(0))
    slurm.unreadable = OutsideError("SW-SLURM-FAILED", "scontrol write: error")
    sync = sync_of(slurm)
    with pytest.raises(OutsideError):
        await sync.turn()
    assert not sync.view.complete
    slurm.unreadable = None
    await sync.turn()
    assert sync.view.complete
    assert [service.name for service in sync.view.services] == ["bert"]


async def test_the_script_of_an_array_that_is_gone_is_not_missed() -> None:
    slurm = ScriptedSlurm(job(0))
    slurm.unreadable = OutsideError("SW-SLURM-FAILED", "Invalid job id specified")
    sync = sync_of(slurm)
    with pytest.raises(OutsideError):
        await sync.turn()
    slurm.shown = ()
    await sync.turn()
    assert sync.view.complete
    assert slurm.done == [("script", 814)]


async def test_one_script_that_fails_costs_the_others_nothing() -> None:
    slurm = ScriptedSlurm(job(0), job(0, array_job_id=813))
    sync = sync_of(slurm)
    await sync.turn()
    slurm.shown += (job(0, array_job_id=815),)
    slurm.unreadable = OutsideError("SW-SLURM-FAILED", "no")
    with pytest.raises(OutsideError):
        await sync.turn()
    assert [one for one in slurm.done if one == ("script", 814)] == [("script", 814)]
    assert len(sync.view.services) == 2


async def test_a_script_that_is_no_services_is_read_once() -> None:
    slurm = ScriptedSlurm(job(0))
    slurm.script = "#SLICEWISE name\n"
    sync = sync_of(slurm)
    for _ in range(2):
        await sync.turn()
    assert (sync.view.complete, sync.view.services) == (True, ())
    assert slurm.done == [("script", 814)]


async def test_what_is_loose_is_held_on_sight() -> None:
    slurm = ScriptedSlurm(job(0))
    sync = sync_of(slurm)
    await sync.turn()
    slurm.shown = (job(0, reason="JobHeldUser"), LOOSE, UNTAGGED)
    await sync.turn()
    assert slurm.actions == [("hold", [0, 1])]


async def test_after_a_start_what_is_under_way_is_left_alone() -> None:
    slurm = ScriptedSlurm(LOOSE, job(2, JobState.RUNNING))
    sync = sync_of(slurm)
    for _ in range(2):
        await sync.turn()
    assert slurm.actions == []


async def test_a_wish_is_done_and_lasts() -> None:
    slurm = ScriptedSlurm(job(0), job(1), job(2))
    sync = sync_of(slurm)
    await sync.turn()
    answer = await sync.wish(814, frozenset({0, 1, 2}))
    assert (answer.released, answer.kept_back) == ((0, 1), (2,))
    assert [slot.state for slot in sync.view.services[0].slots] == ["released", "released", "held"]
    assert sync.view.services[0].note == answer.note
    slurm.shown = (replace(LOOSE, task_index=0), LOOSE, job(2))
    await sync.turn()
    assert slurm.actions == [("release", [0, 1])]
    assert sync.view.services[0].note == answer.note
    assert (await sync.wish(814, frozenset({0}))).held == (1,)
    assert slurm.actions[1:] == [("hold", [1])]


async def test_the_launchers_note_is_shown_unless_quota_has_one() -> None:
    sync = sync_of(ScriptedSlurm(job(0), job(1), job(2)))
    await sync.turn()
    await sync.wish(814, frozenset({0}), "failed twice")
    assert sync.view.services[0].note == "failed twice"
    answer = await sync.wish(814, frozenset({0, 1, 2}), "failed twice")
    assert sync.view.services[0].note == answer.note != ""


async def test_released_slots_count_before_slurm_shows_them() -> None:
    slurm = ScriptedSlurm(job(0), job(1), job(2))
    sync = sync_of(slurm)
    await sync.turn()
    await sync.wish(814, frozenset({0, 1}))
    assert (await sync.wish(814, frozenset({0, 1, 2}))).kept_back == (2,)


async def test_blind_it_does_nothing() -> None:
    slurm = ScriptedSlurm(job(0))
    sync = sync_of(slurm)
    await sync.turn()
    slurm.failure, slurm.shown = DOWN, (LOOSE,)
    with pytest.raises(UnreachableError):
        await sync.turn()
    assert not sync.view.complete
    assert len(sync.view.services) == 1
    for request in (sync.wish(814, frozenset({0})), sync.delete(814)):
        with pytest.raises(UnreachableError):
            await request
    assert slurm.actions == []


async def test_a_failed_action_does_not_blind_it() -> None:
    slurm = ScriptedSlurm(LOOSE)
    sync = sync_of(slurm)
    await sync.turn()
    slurm.shown = (LOOSE, job(0, held=False, reason="Priority"))

    def refuse(_name: str, _target: object) -> None:
        raise OutsideError("SW-SLURM-FAILED", "scontrol: no")

    slurm._act = refuse  # type: ignore[method-assign]
    await sync.turn()
    assert sync.view.complete


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_only_in_mode_enforce_something_is_changed(mode: str) -> None:
    slurm = ScriptedSlurm(job(0, reason="JobHeldUser"))
    sync = sync_of(slurm, mode)
    await sync.turn()
    answer = await sync.wish(814, frozenset({0}))
    assert (answer.kept_back, answer.note.startswith(f"mode {mode}")) == ((0,), True)
    with pytest.raises(InvalidInputError, match=r"scancel 814 \[SW-SERVICE-MODE\]"):
        await sync.delete(814)
    assert slurm.actions == []


async def test_a_deleted_service_is_cancelled_whole() -> None:
    slurm = ScriptedSlurm(job(0))
    sync = sync_of(slurm)
    await sync.turn()
    await sync.delete(814)
    assert slurm.actions == [("cancel", 814)]
    with pytest.raises(SlicewiseError, match="no living service"):
        await sync.delete(815)


class ScriptedLedger:
    def __init__(self) -> None:
        self.open: tuple[Reservation, ...] = ()
        self.applied: list[Charge] = []
        self.marked: list[int] = []
        self.until_s = 500

    def require_current(self) -> None: ...

    def change_id(self) -> int:
        return 7

    def quotas(self) -> dict[str, Quota]:
        return {"vision": Quota("vision", Millislices(2000))}

    def mark_compiled(self, change_id: int) -> None:
        self.marked.append(change_id)

    def open_reservations(self) -> tuple[Reservation, ...]:
        return self.open

    def apply(self, charges: Sequence[Charge]) -> frozenset[Any]:
        self.applied.extend(charges)
        self.open += tuple(
            Reservation(**vars(charge.run), reserved_millislice_s=600_000, transfers=1)
            for charge in charges
        )
        return frozenset(charge.run.key for charge in charges)

    def accounted_until_s(self) -> int:
        return self.until_s

    def set_accounted_until_s(self, second: int) -> None:
        self.until_s = second


def books_of(slurm: ScriptedSlurm, ledger: ScriptedLedger, sync: Sync) -> Bookkeeping:
    return Bookkeeping(settings(), slurm, ledger, sync)  # type: ignore[arg-type]


async def test_quotas_are_in_force_once_compiled() -> None:
    slurm, ledger = ScriptedSlurm(), ScriptedLedger()
    sync = sync_of(slurm)
    await books_of(slurm, ledger, sync).compile()
    assert ledger.marked == [7]
    assert [t.nominal_millislices for t in sync.view.tenants] == [2000]


async def test_without_accounting_runs_are_reserved_and_the_watermark_stays() -> None:
    slurm, ledger = ScriptedSlurm(job(0, JobState.RUNNING)), ScriptedLedger()
    sync = sync_of(slurm)
    await sync.turn()
    slurm.failure = DOWN
    await books_of(slurm, ledger, sync).turn()
    assert [charge.run.key.job_id for charge in ledger.applied] == [900]
    assert ledger.until_s == 500


async def test_accounting_is_asked_at_once_when_a_run_is_gone() -> None:
    slurm, ledger = ScriptedSlurm(job(0, JobState.RUNNING)), ScriptedLedger()
    sync = sync_of(slurm)
    await sync.turn()
    books = books_of(slurm, ledger, sync)
    for _ in range(3):
        await books.turn()
    asked = [one for one in slurm.done if one[0] == "runs"]
    assert len(asked) == 1
    slurm.shown = (job(0),)
    await sync.turn()
    await books.turn()
    assert len([one for one in slurm.done if one[0] == "runs"]) == 2


async def test_the_watermark_waits_until_accounting_has_answered_for_a_while() -> None:
    slurm, ledger = ScriptedSlurm(), ScriptedLedger()
    sync = sync_of(slurm)
    await sync.turn()
    books = books_of(slurm, ledger, sync)
    await books.turn()
    # slurmctld may still have ends of an outage to hand over.
    assert ledger.until_s == 500
    assert books._answering_since_s is not None
    books._answering_since_s -= ACCOUNTING_DELAY_S
    books._settle_due_s = 0.0
    await books.turn()
    assert ledger.until_s > 500
