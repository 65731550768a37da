"""Tests the charging loop on a scripted Slurm: what it asks when, and what waits for what."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders.ledger_world import SimulatedRun, run_record
from builders.runs import a_run_record
from builders.tenants import policy_of, tenant
from stand_ins.scripted import DOWN, ETC, ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.billing import BillingUnit
from slicewise.cluster.language.errors import OutsideError, SlicewiseError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView, RunRecord
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.daemon.charging_loop import HELD_BACK_S, ChargingLoop, rates_of
from slicewise.slurm_plugin.rules.accounting.charging import ACCOUNTING_DELAY_S
from slicewise.slurm_plugin.rules.accounting.lost_runs import LOST_AFTER_S
from slicewise.slurm_plugin.rules.accounting.types import Charge, RunKey
from slicewise.slurm_plugin.rules.common.clock import SETTLED_S
from slicewise.slurm_plugin.rules.quota.types import Budget
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

RUNNING = job(0, JobState.RUNNING)


async def seen(slurm: ScriptedSlurm) -> ClusterState:
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return cluster_state


def ledger_view_of(
    slurm: ScriptedSlurm, ledger: ScriptedLedger, cluster_state: ClusterState
) -> ChargingLoop:
    return ChargingLoop(settings(), slurm, ledger, cluster_state)  # type: ignore[arg-type]


def asked(slurm: ScriptedSlurm) -> int:
    return len([one for one in slurm.done if one[0] == "runs"])


async def test_beside_a_daemon_that_books_tokens_what_was_left_of_them_is_forgotten() -> None:
    """Once it leads again, it would say for a moment what was left hours ago."""
    slurm = ScriptedSlurm(RUNNING)
    cluster_state = await seen(slurm)
    cluster_state.quotas.left_tokens = {"vision": 0}
    await ledger_view_of(slurm, ScriptedLedger(), cluster_state).stand_by()
    assert cluster_state.quotas.left_tokens == {}


@pytest.mark.parametrize("failure", [DOWN, OutsideError("SW-SLURM-FAILED", "sacct: error")])
async def test_without_accounting_runs_are_reserved_and_the_watermark_stays(
    failure: SlicewiseError,
) -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), ScriptedLedger(watermark_s=500)
    cluster_state = await seen(slurm)
    slurm.failure = failure
    await ledger_view_of(slurm, ledger, cluster_state).turn()
    assert [held.key.job_id for held in ledger.charges.open_reservations()] == [900]
    assert ledger.watermark_s == 500


async def test_that_accounting_is_away_is_told_at_its_beginning_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twice a second it was a line of the log."""
    caplog.set_level("INFO", "slicewise.daemon")
    slurm = ScriptedSlurm()
    books = ledger_view_of(slurm, ScriptedLedger(watermark_s=500), await seen(slurm))
    for failure in (None, DOWN, None, DOWN):
        slurm.failure = failure
        for _ in range(3):
            books._settle_due_s = 0.0
            await books.turn()
    told = [one.getMessage().split()[0] for one in caplog.records]
    away, back = "accounting_unreachable", "accounting_answers"
    assert [event for event in told if "accounting" in event] == [away, back, away]


async def test_accounting_is_asked_at_once_when_a_run_is_gone() -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), ScriptedLedger()
    cluster_state = await seen(slurm)
    books = ledger_view_of(slurm, ledger, cluster_state)
    for _ in range(3):
        await books.turn()
    assert asked(slurm) == 1
    slurm.shown = (job(0),)
    await cluster_state.turn()
    await books.turn()
    assert asked(slurm) == 2


async def test_the_watermark_waits_until_accounting_has_answered_for_a_while() -> None:
    slurm, ledger = ScriptedSlurm(), ScriptedLedger(watermark_s=500)
    books = ledger_view_of(slurm, ledger, await seen(slurm))
    await books.turn()
    # slurmctld may still have ends of an outage to hand over.
    assert ledger.watermark_s == 500
    assert books._answering_since_s is not None
    books._answering_since_s -= ACCOUNTING_DELAY_S
    books._settle_due_s = 0.0
    await books.turn()
    assert ledger.watermark_s > 500


async def test_a_type_without_a_cost_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each second, for each run, it was a line of the log."""
    whole = {"gres/gpu:a100": "1"}
    slurm = ScriptedSlurm(job(0, JobState.RUNNING, tres=whole))
    cluster_state = await seen(slurm)
    books = ledger_view_of(slurm, ScriptedLedger(), cluster_state)
    await books.turn()
    await books.turn()
    slurm.shown = (job(1, JobState.RUNNING, tres=whole),)
    await cluster_state.turn()
    await books.turn()
    told = [one.getMessage() for one in caplog.records if "cost" in one.getMessage()]
    assert told == ["gpu_type_without_cost type=a100"]


def with_budget(name: str, amount: int) -> ScriptedLedger:
    budget = Budget(Period.DAY, MillisliceSeconds(amount))
    above = replace(tenant(name, 2000), budget=budget)
    return ScriptedLedger(shown=policy_of(above, tenant("vision", 1000, name)))


async def test_the_nearest_tenant_with_a_budget_pays_and_its_period_begins() -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), with_budget("physics", 10**9)
    await ledger_view_of(slurm, ledger, await seen(slurm)).turn()
    (held,) = ledger.charges.open_reservations()
    assert (held.tenant, held.payer) == ("vision", "physics")
    (roll,) = ledger.entered
    assert (roll.tenant, roll.kind, roll.author) == ("physics", "roll", "slicewise")
    assert roll.reason.startswith("day from 20")
    # The run began in 1970: what it used before today is no burden of today's budget.
    balance = ledger.budgets.balances()["physics"]
    assert balance.available + balance.reserved == 10**9


async def test_a_budget_begins_though_accounting_is_away() -> None:
    slurm, ledger = ScriptedSlurm(), with_budget("physics", 5)
    cluster_state = await seen(slurm)
    slurm.failure = DOWN
    books = ledger_view_of(slurm, ledger, cluster_state)
    for _ in range(2):
        await books.turn()
    assert [entry.amount for entry in ledger.entered] == [5]


async def test_the_policy_is_read_again_when_it_changes() -> None:
    slurm, ledger = ScriptedSlurm(RUNNING), ScriptedLedger()
    books = ledger_view_of(slurm, ledger, await seen(slurm))
    ledger.failures["policy"] = [UnreachableError("SW-DATABASE-DOWN", "down")]
    with pytest.raises(UnreachableError):
        await books.turn()
    await books.turn()
    ledger.shown = with_budget("physics", 5).shown
    await books.turn()
    assert ledger.entered == []
    ledger.newest += 1
    await books.turn()
    assert [entry.tenant for entry in ledger.entered] == ["physics"]


async def test_a_period_begins_with_the_budget_that_is_set_while_accounting_is_asked() -> None:
    """It began with the budget before, and stayed so."""
    ledger = with_budget("physics", 5)

    class SlowAccounting(ScriptedSlurm):
        async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
            ledger.shown, ledger.newest = with_budget("physics", 7).shown, ledger.newest + 1
            return await super().runs(since_s)

    slurm = SlowAccounting()
    await ledger_view_of(slurm, ledger, await seen(slurm)).turn()
    assert [entry.amount for entry in ledger.entered] == [7]


class Books:
    """Turns on a clock of their own, with one run that runs at first.

    ``ahead_s``: how far ahead somebody has set the host's clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000_000.0
        self.ahead_s = 0.0
        wall = SimpleNamespace(time=lambda: self.now_s + self.ahead_s, monotonic=lambda: self.now_s)
        for module in (
            "slicewise.cluster.runtime.wall_clock",
            "slicewise.slurm_plugin.common.steady_clock",
            "slicewise.slurm_plugin.daemon.charging_loop",
            "slicewise.slurm_plugin.state.cluster_state",
            "slicewise.slurm_plugin.state.observer",
            "stand_ins.scripted",
        ):
            monkeypatch.setattr(f"{module}.time", wall)
        self.slurm, self.ledger = ScriptedSlurm(RUNNING), ScriptedLedger(watermark_s=500)
        self.cluster_state = sync_of(self.slurm)
        self.books = ledger_view_of(self.slurm, self.ledger, self.cluster_state)

    def restart(self) -> None:
        """Another daemon goes on, which knows what Slurm and the ledger show."""
        self.cluster_state = sync_of(self.slurm)
        self.books = ledger_view_of(self.slurm, self.ledger, self.cluster_state)

    async def turn(self, later_s: float = 0.0, *, accounting: bool = True) -> None:
        self.now_s += later_s
        self.slurm.failure = None
        await self.cluster_state.turn()
        self.slurm.failure = None if accounting else DOWN
        await self.books.turn()


@pytest.fixture
def books(monkeypatch: pytest.MonkeyPatch) -> Books:
    return Books(monkeypatch)


async def test_no_run_is_given_up_for_lost_while_accounting_does_not_answer(books: Books) -> None:
    await books.turn()
    books.slurm.shown = (job(0),)
    await books.turn(10, accounting=False)
    await books.turn(LOST_AFTER_S, accounting=False)
    assert len(books.ledger.charges.open_reservations()) == 1
    # slurmctld has the ends of that time to hand over.
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S - 1)
    assert len(books.ledger.charges.open_reservations()) == 1
    await books.turn(6)
    assert books.ledger.charges.open_reservations() == ()


async def test_a_lost_run_is_settled_though_the_daemon_starts_anew_each_hour(books: Books) -> None:
    """It is charged up to the look that no longer showed it."""
    books.slurm.shown = (replace(RUNNING, start_s=int(books.now_s)),)
    await books.turn()
    books.slurm.shown = ()
    await books.turn(10)
    ended_s = int(books.now_s)
    for _ in range(3):
        assert len(books.ledger.charges.open_reservations()) == 1
        for _ in range(50):
            await books.turn(60)
        books.restart()
    assert books.ledger.charges.open_reservations() == ()
    (charge,) = books.ledger.booked.values()
    assert charge.transfers[-1].until_s == ended_s
    await books.turn(60)
    assert books.ledger.lost == {}


async def test_after_hours_without_accounting_a_run_is_charged_what_accounting_then_says(
    books: Books,
) -> None:
    """And slurmctld has forgotten it long ago."""
    start_s = int(books.now_s)
    running = job(0, JobState.RUNNING, start_s=start_s)
    books.slurm.shown = (running,)
    await books.turn()
    (held,) = books.ledger.charges.open_reservations()
    books.slurm.shown = ()
    for _ in range(8):
        await books.turn(3600, accounting=False)
    # slurmdbd is back, and has not heard everything from slurmctld yet.
    await books.turn(5)
    await books.turn(ACCOUNTING_DELAY_S // 2)
    assert books.ledger.charges.open_reservations() == (held,)
    books.slurm.records = (
        a_run_record(start_s, start_s + 37, job_id=running.job_id, task="814_0", state="CANCELLED"),
    )
    await books.turn(5)
    assert books.ledger.charges.open_reservations() == ()
    assert books.ledger.balances()["vision"].used == 37 * held.cost_millislices


async def test_a_cancelled_slot_that_came_back_meanwhile_is_charged_to_its_cancellation(
    books: Books,
) -> None:
    """Accounting tells of the run only after the requeue, which has moved its end."""
    start_s = int(books.now_s)
    run = SimulatedRun(900, start_s, {"1g.10gb": 1}, "gpu", 600, end_s=start_s + 15)
    running = job(0, JobState.RUNNING, start_s=start_s)
    books.slurm.shown = (running,)
    await books.turn()
    (held,) = books.ledger.charges.open_reservations()
    ending = replace(running, state=JobState.COMPLETING, end_s=start_s + 4)
    books.slurm.shown = (ending,)
    await books.turn(5)
    books.slurm.shown = (job(0, submit_s=start_s + 15),)
    await books.turn(11)
    assert books.ledger.charges.open_reservations() == (held,)
    books.slurm.records = (replace(run_record(run, start_s + 15), account="vision"),)
    await books.turn(5)
    assert books.ledger.charges.open_reservations() == ()
    assert books.ledger.balances()["vision"].used == 4 * held.cost_millislices


async def test_before_a_run_is_given_up_for_lost_accounting_is_asked_once_more(
    books: Books,
) -> None:
    await books.turn()
    books.slurm.shown = (job(0),)
    for later_s in (10, LOST_AFTER_S - 1):
        await books.turn(later_s)
    times = asked(books.slurm)
    await books.turn(1)
    assert (len(books.ledger.charges.open_reservations()), asked(books.slurm)) == (1, times)
    await books.turn(4)
    assert (books.ledger.charges.open_reservations(), asked(books.slurm)) == ((), times + 1)


async def test_the_watermark_moves_only_with_an_answer_of_accounting(books: Books) -> None:
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    reached_s = books.ledger.watermark_s
    assert reached_s == books.now_s - ACCOUNTING_DELAY_S
    await books.turn(1)
    assert (asked(books.slurm), books.ledger.watermark_s) == (2, reached_s)
    await books.turn(4)
    assert (asked(books.slurm), books.ledger.watermark_s) == (3, reached_s + 5)


async def test_after_an_outage_of_accounting_the_watermark_waits_as_at_the_start(
    books: Books,
) -> None:
    """slurmctld has the ends of that time to hand over, as late as ever."""
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    reached_s = books.ledger.watermark_s
    await books.turn(100, accounting=False)
    for later_s in (100, ACCOUNTING_DELAY_S - 1):
        await books.turn(later_s)
        assert books.ledger.watermark_s == reached_s
    await books.turn(6)
    assert books.ledger.watermark_s == books.now_s - ACCOUNTING_DELAY_S


YEAR_S = 365 * 86_400


@pytest.mark.parametrize("ahead_s", [7200, YEAR_S])
async def test_a_clock_that_is_ahead_for_a_turn_moves_neither_watermark_nor_period(
    books: Books, ahead_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    books.ledger.shown = with_budget("physics", 5).shown
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    before = books.ledger.watermark_s, list(books.ledger.entered)
    books.ahead_s = ahead_s
    await books.turn(5)
    after = books.ledger.watermark_s, list(books.ledger.entered)
    assert after == (before[0] + 5, before[1])
    assert books.cluster_state.clock.stepped_s == ahead_s
    books.ahead_s = 0.0
    await books.turn(5)
    assert books.ledger.watermark_s == before[0] + 10
    assert books.cluster_state.clock.stepped_s == 0.0
    events = [one.message.split()[0] for one in caplog.records]
    assert [one for one in events if one.startswith("clock")] == ["clock_stepped", "clock_settled"]


async def test_a_clock_that_is_ahead_for_a_turn_takes_no_run_for_lost(books: Books) -> None:
    await books.turn()
    books.slurm.shown = (job(0),)
    await books.turn(10)
    books.ahead_s = YEAR_S
    await books.turn(5)
    assert len(books.ledger.charges.open_reservations()) == 1


async def test_a_clock_that_stays_where_it_was_set_is_believed_after_an_hour(books: Books) -> None:
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    books.ahead_s = 7200
    for _ in range(int(SETTLED_S) // 600):
        await books.turn(600)
        assert books.ledger.watermark_s <= books.now_s - ACCOUNTING_DELAY_S
    await books.turn(600)
    assert books.ledger.watermark_s == books.now_s + 7200 - ACCOUNTING_DELAY_S


async def test_a_clock_that_was_set_back_holds_the_watermark_back_at_once(books: Books) -> None:
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    reached_s = books.ledger.watermark_s
    books.ahead_s = -7200
    await books.turn(60)
    assert books.ledger.watermark_s == reached_s


async def test_a_watermark_in_the_future_does_not_stop_charging(books: Books) -> None:
    books.ledger.watermark_s = int(books.now_s) + YEAR_S
    await books.turn()
    assert ("runs", int(books.now_s) - ACCOUNTING_DELAY_S) in books.slurm.done


async def test_a_charge_that_can_not_be_booked_keeps_no_other_back(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And is told of once."""
    post = books.ledger.charges.post

    def refusing(charges: Sequence[Charge]) -> frozenset[RunKey]:
        if any(one.run.key.job_id == 903 for one in charges):
            raise OutsideError("SW-DATABASE-FAILED", "bigint out of range")
        return post(charges)

    monkeypatch.setattr(books.ledger, "post", refusing)
    books.slurm.shown = tuple(replace(RUNNING, job_id=900 + number) for number in range(7))
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    held = {one.key.job_id for one in books.ledger.charges.open_reservations()}
    assert held == {900, 901, 902, 904, 905, 906}
    assert books.ledger.watermark_s == books.now_s - ACCOUNTING_DELAY_S
    told = [one.message for one in caplog.records if one.message.startswith("charge_refused")]
    assert len(told) == 1
    assert "job_id=903" in told[0]


async def test_a_ledger_that_refuses_everything_is_not_asked_for_each_run(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refusing(charges: Sequence[Charge]) -> frozenset[RunKey]:
        asked.append(len(charges))
        raise OutsideError("SW-DATABASE-FAILED", "disk full")

    monkeypatch.setattr(books.ledger, "post", refusing)
    books.slurm.shown = tuple(
        replace(RUNNING, job_id=1000 + number, qos=f"slicewise_tenant{number % 20}")
        for number in range(1000)
    )
    with pytest.raises(OutsideError):
        await books.turn()
    assert len(asked) < 600


def refusing(
    books: Books, monkeypatch: pytest.MonkeyPatch, job_ids: Collection[int]
) -> list[frozenset[int]]:
    """A ledger that does not book these; returns the jobs of each statement."""
    post, asked = books.ledger.charges.post, list[frozenset[int]]()

    def posting(charges: Sequence[Charge]) -> frozenset[RunKey]:
        asked.append(frozenset(one.run.key.job_id for one in charges))
        if asked[-1] & set(job_ids):
            raise OutsideError("SW-DATABASE-FAILED", "bigint out of range")
        return post(charges)

    monkeypatch.setattr(books.ledger, "post", posting)
    return asked


async def test_very_many_refused_charges_of_one_owner_keep_no_other_owners_back(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = refusing(books, monkeypatch, range(1000, 1100))
    bad = [replace(RUNNING, job_id=1000 + number, account="nlp") for number in range(100)]
    good = [replace(RUNNING, job_id=2000 + number, account="vision") for number in range(50)]
    books.slurm.shown = (*bad, *good)
    await books.turn()
    held = {one.key.job_id for one in books.ledger.charges.open_reservations()}
    assert held == {one.job_id for one in good}
    assert len(asked) < 100
    await books.turn(5)
    told = [one.message for one in caplog.records if one.message.startswith("charge")]
    assert [one.startswith("charge_refused") for one in told] == [True] * 16 + [False]
    assert told[-1] == "charges_refused more=84"


def of_many_owners(bad: int, good: int) -> list[JobView]:
    """A run of each; those of the first ones are 1000, 1001, ..., of the last ones 2000, ..."""
    numbers = (*range(1000, 1000 + bad), *range(2000, 2000 + good))
    return [replace(RUNNING, job_id=one, account=f"tenant{one}") for one in numbers]


async def test_refused_charges_of_very_many_owners_keep_no_other_owners_back(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though those come first, and of the others the first one's is refused, too."""
    refusing(books, monkeypatch, (*range(1000, 1040), 2000))
    books.slurm.shown = tuple(of_many_owners(40, 3))
    await books.turn()
    held = {one.key.job_id for one in books.ledger.charges.open_reservations()}
    assert held == {2001, 2002}
    told = [one.message for one in caplog.records if one.message.startswith("charges_refused")]
    assert told == ["charges_refused more=25"]


async def test_one_budget_is_one_owner_whoever_runs_on_it(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that it pays for nothing can be booked: the ledger is not to blame."""
    jobs = of_many_owners(20, 0)
    below = [tenant(one.account, 0, "physics") for one in jobs]
    books.ledger.shown = {**with_budget("physics", 5).shown, **policy_of(*below)}
    refusing(books, monkeypatch, range(1000, 1020))
    books.slurm.shown = tuple(jobs)
    await books.turn()
    assert books.ledger.charges.open_reservations() == ()


def short_run(books: Books, job_id: int) -> RunRecord:
    """One that ended before anybody saw it run."""
    end_s = int(books.now_s)
    run = SimulatedRun(job_id, end_s - 20, {"1g.10gb": 1}, "gpu", 60, end_s=end_s, visible_s=end_s)
    return run_record(run, end_s)


async def test_the_watermark_waits_for_a_refused_charge_that_only_accounting_knows(
    books: Books, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a day at most."""
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    bad: set[int] = {7}
    refusing(books, monkeypatch, bad)
    record = short_run(books, 7)
    books.slurm.records = (record,)
    assert record.end_s is not None
    await books.turn(5)
    await books.turn(2 * ACCOUNTING_DELAY_S)
    assert books.ledger.watermark_s == record.end_s - 1
    # Neither when accounting is not asked nor when it does not answer.
    await books.turn(1)
    await books.turn(5, accounting=False)
    await books.turn(5)
    await books.turn(HELD_BACK_S - 2 * ACCOUNTING_DELAY_S - 12)
    assert books.ledger.watermark_s == record.end_s - 1
    await books.turn(5)
    assert books.ledger.watermark_s == books.now_s - ACCOUNTING_DELAY_S
    told = [one.message.split()[0] for one in caplog.records if "job_id=7" in one.message]
    assert told == ["charge_refused", "charge_given_up"]


async def test_the_watermark_waits_half_a_day_for_a_refused_charge_of_a_run_with_a_reservation(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_s = int(books.now_s)
    books.slurm.shown = (job(0, JobState.RUNNING, start_s=start_s),)
    await books.turn()
    await books.turn(2 * ACCOUNTING_DELAY_S)
    reached_s = books.ledger.watermark_s
    run = SimulatedRun(900, start_s, {"1g.10gb": 1}, "gpu", 600, end_s=int(books.now_s))
    books.slurm.shown = (job(0),)
    books.slurm.records = (replace(run_record(run, int(books.now_s)), account="vision"),)
    refusing(books, monkeypatch, {900})
    await books.turn(5)
    await books.turn(HELD_BACK_S - 1)
    assert books.ledger.watermark_s == reached_s
    await books.turn(5)
    assert len(books.ledger.charges.open_reservations()) == 1
    assert books.ledger.watermark_s == books.now_s - ACCOUNTING_DELAY_S


async def test_a_refused_charge_is_booked_as_soon_as_it_can_be(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    bad: set[int] = {7}
    refusing(books, monkeypatch, bad)
    books.slurm.records = (short_run(books, 7),)
    await books.turn(5)
    await books.turn(2 * ACCOUNTING_DELAY_S)
    bad.clear()
    await books.turn(5)
    assert {one.job_id for one in books.ledger.booked} == {900, 7}
    assert books.ledger.watermark_s == books.now_s - ACCOUNTING_DELAY_S


async def test_a_clock_that_is_believed_makes_no_run_older(books: Books) -> None:
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    books.ahead_s = YEAR_S
    for _ in range(int(SETTLED_S) // 600):
        await books.turn(600)
    books.slurm.shown = (job(0),)
    await books.turn(599)
    await books.turn(1)
    assert books.cluster_state.clock.stepped_s == 0.0
    assert len(books.ledger.charges.open_reservations()) == 1


async def test_a_clock_that_is_believed_makes_accountings_answers_no_older(books: Books) -> None:
    await books.turn()
    await books.turn(ACCOUNTING_DELAY_S)
    books.ahead_s = YEAR_S
    for _ in range(int(SETTLED_S) // 600):
        await books.turn(600, accounting=False)
    reached_s = books.ledger.watermark_s
    await books.turn(590)
    await books.turn(10)
    assert books.cluster_state.clock.stepped_s == 0.0
    assert books.ledger.watermark_s == reached_s


def test_runs_are_judged_by_what_the_site_bills(tmp_path: Path) -> None:
    file = tmp_path / "slicewise.toml"
    file.write_text(ETC.read_text().replace("# billing_per_slice = 1000", "billing_per_slice = 8"))
    assert rates_of(load_settings(file), {}).billing == BillingUnit(Fraction(8))
