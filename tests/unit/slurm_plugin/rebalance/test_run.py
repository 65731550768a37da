"""Tests one run of rebalancing: steps left to a daemon, failures of one step, the record."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.tenants import tenant
from stand_ins.rebalance_world import (
    BEGAN_S,
    GRACE_S,
    STAGES,
    Calls,
    NothingCut,
    Story,
    TakenLock,
    changed,
    leading,
    plain,
    record,
    settings,
    step,
)
from stand_ins.repartition_world import planned
from stand_ins.scripted import DOWN, job

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.repartitions import (
    Repartition,
    RepartitionState,
)
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.rebalances import RunOutcome, StepName, StepOutcome
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.slurm_plugin.quota_cycle.compile import Compiled
from slicewise.slurm_plugin.rebalance import compile_limits as rebalance_limits
from slicewise.slurm_plugin.rebalance import repartition as cut_step
from slicewise.slurm_plugin.rebalance.run import dry_run
from slicewise.slurm_plugin.rebalance.site_look import looked
from slicewise.slurm_plugin.repartition import cluster_run
from slicewise.slurm_plugin.rules.accounting.types import Charge, RunKey
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding
from slicewise.slurm_plugin.rules.limits.desired import BILLING, Difference
from slicewise.slurm_plugin.rules.mig.cuts_due import DueRepartitions, barred_lines
from slicewise.slurm_plugin.rules.mig.problem import SitePlanInput
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Recall

pytestmark = pytest.mark.usefixtures("clock")

DATABASE = UnreachableError("SW-DATABASE-DOWN", "gone")
REFUSED = OutsideError("SW-SLURM-FAILED", "sacctmgr: error")
RECALL = Recall("vision", "nlp", 2000, int(BEGAN_S + 60))


def at(stage: int, **known: object) -> Story:
    """With all runs before it."""
    story = Story(**known)  # type: ignore[arg-type]
    for earlier in (0, 60, 200, 700):
        story.world.at(earlier)
        if earlier == stage:
            break
        story.run()
    return story


def test_every_step_is_written_down_in_order_with_what_it_saw_and_did() -> None:
    ended = Story().run()
    assert [one.step for one in ended.steps] == list(StepName)
    assert ended.outcome is RunOutcome.DONE
    assert step(ended, StepName.RECONCILE).did == ("runs of nlp booked: 3",)
    assert step(ended, StepName.RECONCILE).saw == {"jobs": 7, "records": 3, "open": 0}
    assert step(ended, StepName.LEND).did == ("vision lends nlp 4 slices, 0 before",)
    assert len(step(ended, StepName.COMPILE).did) == 7


@pytest.mark.parametrize(("past_use", "to_audio"), [(True, 7), (False, 4)])
def test_who_has_borrowed_lately_gives_way_without_a_daemon_too(
    *, past_use: bool, to_audio: int
) -> None:
    story = Story(configured=settings(lending={"grace_s": GRACE_S, "past_use": past_use}))
    story.ledger.shown["audio"] = tenant("audio", 0, borrowing_limit_millislices=7000)
    since_s = int(BEGAN_S) - 100 * 86_400
    story.ledger.held_lately = (Holding("nlp", 10_000, since_s, None),)
    on_loan = {"account": "audio", "qos": "slicewise_audio_borrowed"}
    story.world.shown += tuple(replace(plain(40 + n, "audio"), **on_loan) for n in range(7))
    (lent,) = (one for one in step(story.run(), StepName.LEND).did if "lends audio" in one)
    assert lent == f"vision lends audio {to_audio} slices, 0 before"


def test_a_second_run_finds_nothing_to_do() -> None:
    story = at(700)
    story.run()
    state = story.state()
    assert changed(story.run()) == {}
    assert story.state() == state


def test_a_dry_run_does_not_tell_of_what_is_settled_already() -> None:
    """Accounting goes on to show it."""
    story = at(700)
    with story.clock():
        _, before = asyncio.run(dry_run(story.site()))
        story.run()
        _, after = asyncio.run(dry_run(story.site()))
    reconciled = [
        next(one for one in records if one.step is StepName.RECONCILE)
        for records in (before, after)
    ]
    assert reconciled[0].did
    assert reconciled[1].did == ()


def test_what_is_lent_goes_back_when_the_lenders_jobs_come_and_the_grace_is_over() -> None:
    story = at(60)
    ended = story.run()
    limit = story.world.held_at_most
    assert story.ledger.loans.recalls() == (RECALL,)
    assert step(ended, StepName.LEND).did[1] == "nlp owes vision 2 slices, 0 before"
    assert (limit("nlp"), limit("vision")) == (5000, 3000), "nothing is preempted yet"
    reclaim = step(ended, StepName.RECLAIM)
    assert (reclaim.outcome, reclaim.saw["recalls"]) == (StepOutcome.SKIPPED, 1)
    story.world.now_s += GRACE_S
    story.run()
    assert story.ledger.loans.recalls() == ()
    assert (limit("nlp"), limit("vision")) == (5000, 5000)


def test_a_clock_that_is_set_back_gives_a_recall_no_second_hour() -> None:
    story = at(60)
    story.run()
    story.world.now_s -= 3600
    story.run()
    story.world.now_s += GRACE_S
    story.run()
    assert story.ledger.loans.recalls() == ()


def test_beside_a_daemon_that_leads_loans_and_priorities_are_left_to_it() -> None:
    story = at(60, daemon=leading())
    ended = story.run()
    skipped = [one.step for one in ended.steps if one.outcome is StepOutcome.SKIPPED]
    assert skipped == [StepName.LEND, StepName.RECLAIM, StepName.PRIORITISE, StepName.CUT]
    assert (
        step(ended, StepName.PRIORITISE).why == "The daemon on head sets priorities every second."
    )
    assert ended.outcome is RunOutcome.DONE


@pytest.mark.parametrize(
    "daemon", [leading(complete=False), leading(mode="observe"), leading(leads=False)]
)
def test_a_daemon_that_does_nothing_is_none(daemon: object) -> None:
    ended = at(60, daemon=daemon).run()
    assert step(ended, StepName.PRIORITISE).outcome is StepOutcome.DONE


def test_of_a_pair_the_other_one_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    story = at(60, daemon=leading(leads=False))
    monkeypatch.setattr(story.ledger, "leader", lambda host: TakenLock())
    why = step(story.run(), StepName.PRIORITISE).why
    assert why.startswith("The daemon on head, process 4711")


def test_without_a_daemon_waiting_jobs_get_their_site_factor() -> None:
    story = at(60)
    story.world.site_factors = dict.fromkeys((21, 22), 0)
    ended = story.run()
    assert step(ended, StepName.PRIORITISE).did == ("jobs with a new site_factor: 2",)
    assert [target for name, target in story.world.actions if "update" in name] == [21, 22]


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_in_no_mode_but_enforce_is_more_than_the_ledger_kept(mode: str) -> None:
    story = Story(configured=settings(mode))
    slurm = story.world.database.state()
    ended = story.run()
    assert set(changed(ended)) == {StepName.RECONCILE, StepName.ROLL}
    lend = step(ended, StepName.LEND)
    assert lend.saw["planned"] == ["vision lends nlp 4 slices, 0 before"]
    assert mode in lend.why
    assert story.world.database.state() == slurm
    assert story.ledger.loans.outstanding() == ()


def test_without_slurm_nothing_that_needs_it_is_begun() -> None:
    story = at(700)
    state = story.state()
    ended = story.run(Calls(fail={"nodes": DOWN}))
    assert ended.outcome is RunOutcome.FAILED
    assert {one.outcome for one in ended.steps} == {StepOutcome.SKIPPED}
    assert all("SW-SLURM-DOWN" in one.why for one in ended.steps)
    assert story.state() == state


def test_without_accounting_what_runs_is_reserved_and_the_rest_follows() -> None:
    story = at(200)
    ended = story.run(Calls(fail={"runs": REFUSED}))
    reconcile = step(ended, StepName.RECONCILE)
    assert reconcile.did == ("runs of vision booked: 5",)
    assert "SW-SLURM-FAILED" in reconcile.why
    assert step(story.run(), StepName.RECONCILE).did == ("runs of nlp booked: 2",)


def test_two_that_book_at_once_charge_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    story, alone = at(700), at(700)
    alone.run()
    book, booked_by_the_daemon = story.ledger.charges.post, list[RunKey]()

    def post(charges: Sequence[Charge]) -> frozenset[RunKey]:
        booked_by_the_daemon.extend(book(charges))
        return book(charges)

    monkeypatch.setattr(story.ledger, "post", post)
    ended = story.run()
    assert step(ended, StepName.RECONCILE).did == ()
    assert {key.job_id for key in booked_by_the_daemon} >= {1, 2, 3, 24, 25}
    assert story.state() == alone.state()


def test_limits_of_the_old_loans_are_compiled_where_lending_fails() -> None:
    story = Story()
    ended = story.run(Calls(fail={"replace": REFUSED}))
    outcomes = {one.step: one.outcome for one in ended.steps}
    assert outcomes[StepName.LEND] is StepOutcome.FAILED
    assert outcomes[StepName.RECLAIM] is StepOutcome.SKIPPED
    assert outcomes[StepName.COMPILE] is StepOutcome.DONE
    assert story.world.held_at_most("vision") == 7000
    assert ended.outcome is RunOutcome.FAILED


def test_a_policy_of_which_a_limit_waits_is_not_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    story, compiled = Story(), rebalance_limits.compile_limits

    async def all_but_one(*given: Any) -> Compiled:
        left = Difference(LimitKey("qos", "slicewise_nlp", BILLING), "0", "1000", "")
        return replace(await compiled(*given), waits=(left,))

    with monkeypatch.context() as patched:
        patched.setattr(rebalance_limits, "compile_limits", all_but_one)
        told = step(story.run(), StepName.COMPILE).why
    assert "waits for the next compilation: qos slicewise_nlp grptres=billing: 0 to 1000" in told
    assert story.ledger.marked == []
    story.run()
    assert story.ledger.marked


def test_no_period_begins_on_books_that_are_not_up_to_date() -> None:
    story = at(700)
    ended = story.run(Calls(fail={"post": REFUSED}))
    assert step(ended, StepName.RECONCILE).outcome is StepOutcome.FAILED
    assert step(ended, StepName.ROLL).why == "Step reconcile was not done."


@pytest.mark.parametrize("call", ["open", "begin_step", "end_step", "finish"])
def test_a_journal_that_can_not_be_written_ends_the_run(call: str) -> None:
    story = Story()
    with pytest.raises(UnreachableError, match="SW-DATABASE-DOWN"):
        story.run(Calls(fail={call: DATABASE}))
    assert story.run().outcome is RunOutcome.DONE


def test_a_run_whose_lock_another_has_stops_where_it_is() -> None:
    story = Story()
    before = story.state()
    with pytest.raises(OutsideError, match="SW-LOCK"):
        story.run(is_ours=False)
    assert story.state() == before


def test_a_fault_of_ours_in_one_step_keeps_no_other_from_being_done() -> None:
    ended = Story().run(Calls(fail={"holdings": ZeroDivisionError("by zero")}))
    prioritise = step(ended, StepName.PRIORITISE)
    assert (prioritise.outcome, prioritise.why) == (
        StepOutcome.FAILED,
        "ZeroDivisionError: by zero",
    )
    assert step(ended, StepName.COMPILE).outcome is StepOutcome.DONE


def test_where_nothing_may_be_cut_files_that_are_not_there_are_no_failure() -> None:
    cut = step(Story().run(), StepName.CUT)
    assert cut.outcome is StepOutcome.SKIPPED
    assert "repartition.allowed is false" in cut.why
    assert "SW-REPARTITION-CONF" in cut.why


def test_another_run_that_cuts_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(configured=settings(repartition={"allowed": True}))
    monkeypatch.setattr(story.ledger, "repartitioning", lambda host: TakenLock())
    cut = step(story.run(), StepName.CUT)
    assert cut.outcome is StepOutcome.SKIPPED
    assert "head, process 4711" in cut.why


CUTTING = {"repartition": {"allowed": True}}


def in_state(state: RepartitionState) -> Repartition:
    begun = Repartition(
        **vars(planned()),
        repartition_id=1,
        author="root",
        state=RepartitionState.RUNNING,
        started_s=0,
        ended_s=1,
    )
    return replace(begun, state=state, error="" if state is RepartitionState.DONE else "it failed")


def cut_so_far(
    monkeypatch: pytest.MonkeyPatch,
    *states: RepartitionState,
    left: RepartitionState | None = None,
    due: DueRepartitions | None = None,
) -> Story:
    """A run of repartitioning ends with repartitions in these states, and takes up none that is
    ``left``; one GPU is planned.
    """

    async def cut(*_: object, **__: object) -> cluster_run.RepartitionRun:
        return cluster_run.RepartitionRun(tuple(map(in_state, states)), due or DueRepartitions(()))

    unfinished = [in_state(one) for one in (*states, left) if one is RepartitionState.STUCK]
    monkeypatch.setattr(NothingCut, "unfinished", lambda _: unfinished)

    async def gathered(*_: object) -> SitePlanInput:
        return SitePlanInput(boards={}, left_out={}, looks={})

    monkeypatch.setattr(cluster_run, "cut", cut)
    monkeypatch.setattr(cut_step, "cuts_due", lambda _: DueRepartitions((planned(),)))
    monkeypatch.setattr(cut_step, "gathered", gathered)
    return Story(configured=settings(**CUTTING))


def test_gpus_are_cut_by_root_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = cut_so_far(monkeypatch, RepartitionState.DONE).run()
    assert step(ended, StepName.CUT).did == ("repartition 1 on gpu01: done",)
    assert ended.outcome is RunOutcome.DONE


def test_a_run_that_cuts_names_what_slurm_has_no_order_of_devices_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    due = DueRepartitions((), {"3g.40gb": ("gpu02",)})
    ended = cut_so_far(monkeypatch, RepartitionState.DONE, due=due).run()
    _, line = step(ended, StepName.CUT).did
    assert line == barred_lines(due)[0]
    assert ended.outcome is RunOutcome.DONE


@pytest.mark.parametrize(
    ("state", "why"),
    [(RepartitionState.STUCK, "SW-REPARTITION-STUCK"), (RepartitionState.ROLLED_BACK, "it failed")],
)
def test_a_gpu_that_was_not_cut_as_planned_is_told(
    monkeypatch: pytest.MonkeyPatch, state: RepartitionState, why: str
) -> None:
    ended = cut_so_far(monkeypatch, state).run()
    assert why in step(ended, StepName.CUT).why
    assert ended.outcome is RunOutcome.FAILED


def test_one_that_is_stuck_is_told_of_also_in_runs_that_do_not_try_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = cut_so_far(monkeypatch, RepartitionState.DONE, left=RepartitionState.STUCK).run()
    assert "repartition 1 (gpu01). The node is drained" in step(ended, StepName.CUT).why
    assert ended.outcome is RunOutcome.DONE


def test_who_is_not_root_only_plans_what_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    story = cut_so_far(monkeypatch)
    story.is_root = False
    cut = step(story.run(), StepName.CUT)
    assert (cut.outcome, cut.did) == (StepOutcome.SKIPPED, ())
    assert "gpu01 GPU-a" in cut.saw["planned"][0]  # type: ignore[index]


def test_an_array_that_ends_between_two_questions_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = at(60)
    story.world.scriptless = {900}
    tried: list[object] = []

    async def submissions(ids: object) -> object:
        tried.append(ids)
        story.world.shown = STAGES[0][:3]
        return {}

    monkeypatch.setattr(story.world, "submissions", submissions)
    look = asyncio.run(looked(story.site()))
    assert (look.trouble, len(look.jobs), len(tried)) == (None, 3, 1)


def test_after_an_uninstall_a_forgotten_timer_changes_nothing_in_slurm() -> None:
    story = at(60)
    story.ledger.mark_uninstalled()
    story.world.database.partition_qos = ""
    finished = story.run()
    assert "slicewise_gate" not in story.world.database.known
    assert step(finished, StepName.COMPILE).did
    before, done = story.world.database.state(), list(story.world.done)
    story.world.at(200)
    ended = story.run()
    assert story.world.database.state() == before
    told = {one.step: one.why for one in ended.steps if "SW-UNINSTALLED" in one.why}
    assert told.keys() == set(StepName) - {StepName.RECONCILE, StepName.ROLL}
    assert step(ended, StepName.RECONCILE).did, "what ran is charged"
    acted = [one for one in story.world.actions if one not in done]
    assert acted == []


def test_an_uninstall_without_the_ledger_is_finished_by_the_next_run() -> None:
    story = at(0)
    story.run()
    story.world.database.partition_qos = ""
    mark = Qos("slicewise_uninstalled_c", {}, frozenset())
    story.world.database.known[mark.name] = mark
    avoids = job(90, admin_comment="slicewise:1 token=ab12 tenant=vision service=bert avoids=gpu01")
    story.world.shown = (*story.world.shown, avoids)
    with story.clock():
        _, records = asyncio.run(dry_run(story.site()))
    assert "SW-UNINSTALLED" in records[-3].why
    assert "slicewise_gate" in story.world.database.known
    assert [line for line in records[-3].did if line.endswith(" ExcNodeList=")]
    ended = story.run()
    assert [line for line in step(ended, StepName.COMPILE).did if line.endswith(" ExcNodeList=")]
    assert story.ledger.is_uninstalled()
    assert not [name for name in story.world.database.known if name.startswith("slicewise_uni")]


YEAR_S, DAY_S = 365 * 86_400, 86_400


@pytest.mark.parametrize("ahead_s", [YEAR_S, 120.0, -120.0])
def test_no_period_begins_by_a_host_whose_clock_was_set(ahead_s: float) -> None:
    story = at(200)
    story.world.at(700)
    before = story.ledger.rollovers()
    story.host_ahead_s = ahead_s
    ended = story.run()
    assert ended.outcome is RunOutcome.FAILED
    assert "ahead of PostgreSQL's" in step(ended, StepName.ROLL).why
    assert story.ledger.rollovers() == before
    story.host_ahead_s = 30.0
    assert step(story.run(), StepName.ROLL).did


def test_a_year_ahead_on_all_hosts_nothing_rolls_until_the_clock_has_settled() -> None:
    story = at(200)
    before = story.ledger.rollovers()
    story.world.now_s += YEAR_S
    for _ in range(12):
        ended = story.run()
        assert ended.outcome is RunOutcome.FAILED
        assert "the ledger's newest row is 365 days old" in step(ended, StepName.ROLL).why
        assert story.ledger.rollovers() == before
        story.world.now_s += 300
    story.world.now_s += 1
    assert step(story.run(), StepName.ROLL).did


def test_after_a_month_in_which_nothing_ran_periods_begin() -> None:
    story = at(700)
    over = {"state": JobState.ENDED, "end_s": BEGAN_S + 650}
    started = [one for one in story.world.shown if one.start_s is not None]
    story.world.shown = tuple(replace(one, **over) for one in started)
    story.world.records = tuple(map(record, story.world.shown))
    story.run()
    story.world.now_s += 31 * DAY_S
    ended = story.run()
    assert ended.outcome is RunOutcome.DONE
    assert step(ended, StepName.ROLL).did
