"""Recalls, windows and the journal of ``slicewise rebalance`` in PostgreSQL."""

import time
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from waiting import until

from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.rebalances import RunOutcome, StepName, StepOutcome
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.ledger.rebalances import KEPT_DAYS
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.quota.calendar import ALL, Window, WindowKind
from slicewise.slurm_plugin.rules.quota.types import Loan, Recall, TenantUpdate

pytestmark = pytest.mark.integration

UTC = "UTC"
NIGHT = Window(0, "nlp", WindowKind.NOMINAL, Millislices(2000), frozenset(), 20 * 60, 6 * 60)
MONDAY_NOON_S = 1_795_435_200
"""2026-11-23, 12:00 in UTC."""


def set_quota(
    ledger: Ledger, name: str, nominal: int, *, lending: int = 0, borrowing: int = 0
) -> None:
    update = TenantUpdate(
        name,
        nominal_millislices=Millislices(nominal),
        lending_limit_millislices=Millislices(lending),
        borrowing_limit_millislices=Millislices(borrowing),
    )
    ledger.tenants.change(update, "olga", "")


@pytest.fixture
def lending(ledger: Ledger) -> Ledger:
    """``vision`` may lend 3 slices, ``nlp`` and ``audio`` may borrow 3."""
    set_quota(ledger, "vision", 6000, lending=3000)
    set_quota(ledger, "nlp", 1000, borrowing=3000)
    set_quota(ledger, "audio", 1000, borrowing=3000)
    return ledger


def loan(amount: int, borrower: str = "nlp") -> Loan:
    return Loan("vision", borrower, Millislices(amount))


def recall(amount: int, borrower: str = "nlp", called_s: int = 100) -> Recall:
    return Recall("vision", borrower, Millislices(amount), called_s)


# Recalls and terms


def test_recalls_are_replaced_with_the_loans_or_left(lending: Ledger) -> None:
    both = (recall(500), recall(700, called_s=130), recall(1, "audio"))
    lending.loans.replace([loan(1000)], "cut", both)
    assert lending.loans.recalls() == tuple(sorted(both))
    lending.loans.replace([loan(900)], "only loans")
    assert (lending.loans.outstanding(), len(lending.loans.recalls())) == ((loan(900),), 3)
    lending.loans.replace([loan(900)], "back", [recall(500)])
    assert lending.loans.recalls() == (recall(500),)
    lending.loans.replace([], "over", [])
    assert lending.loans.recalls() == ()


def test_loans_and_recalls_change_together_or_not_at_all(lending: Ledger) -> None:
    lending.loans.replace([loan(1000)], "idle", [recall(500)])
    with pytest.raises(OutsideError, match="SW-LEDGER-REFUSED"):
        lending.loans.replace([], "wrong", [recall(0)])
    assert (lending.loans.outstanding(), lending.loans.recalls()) == ((loan(1000),), (recall(500),))


def test_what_a_change_cuts_off_a_loan_is_recalled_with_it(lending: Ledger) -> None:
    lending.loans.replace([loan(1000), loan(500, "audio")], "idle", [recall(200)])
    began_s = int(time.time())
    set_quota(lending, "vision", 6000, lending=800)
    assert lending.loans.outstanding() == (loan(500, "audio"), loan(300))
    old, new = lending.loans.recalls()
    assert (old, new) == (recall(200), recall(700, called_s=new.called_s))
    assert began_s <= new.called_s <= time.time()
    set_quota(lending, "vision", 5000, lending=800)
    assert lending.loans.recalls() == (old, new)
    for left in (600, 500):
        set_quota(lending, "vision", 5000, lending=left)
    lost = [one.amount_millislices for one in lending.loans.recalls() if one.called_s >= began_s]
    assert sum(lost) == 1000, "two of one second are one"


def test_what_was_decided_before_a_change_is_cut_to_it_and_recalled(lending: Ledger) -> None:
    set_quota(lending, "vision", 6000, lending=400)
    now_s = int(time.time())
    lending.loans.replace([loan(1000)], "by demand", [recall(100), recall(50, called_s=now_s)])
    assert lending.loans.outstanding() == (loan(400),)
    assert lending.loans.recalls()[0] == recall(100)
    assert sum(one.amount_millislices for one in lending.loans.recalls()) == 100 + 50 + 600


def test_removing_a_tenant_forgets_its_recalls_and_windows_alone(lending: Ledger) -> None:
    lending.loans.replace([], "called", [recall(500), recall(600, "audio"), recall(7, "nobody")])
    lending.windows.add(NIGHT, "olga", "", UTC)
    kept = lending.windows.add(replace(NIGHT, tenant="audio"), "olga", "", UTC)
    set_quota(lending, "vision", 5000, lending=3000)
    assert len(lending.loans.recalls()) == 2
    lending.tenants.change(TenantUpdate("nlp", removed=True), "olga", "")
    assert lending.loans.recalls() == (recall(600, "audio"),)
    assert lending.windows.not_over() == (kept,)
    ended = lending.windows.history()[1]
    assert (ended.ended_by, ended.ended_why.endswith(": nlp")) == ("olga", True)


def test_a_loan_has_a_term_from_when_it_began_and_from_when_it_grew(
    lending: Ledger, database: str
) -> None:
    with psycopg.connect(database) as connection:
        for at_s, amount in ((10, 900), (20, 0), (30, 500), (40, 800), (50, 600)):
            connection.execute(
                "INSERT INTO slicewise.loan_changes"
                " (cluster, lender, borrower, amount_millislices, reason, recorded_at)"
                " VALUES ('testing', 'vision', 'nlp', %s, '', to_timestamp(%s))",
                (amount, at_s),
            )
    began_s = int(time.time())
    lending.loans.replace([loan(600), loan(5, "audio")], "more")
    new, old = lending.loans.terms()
    assert (old.loan, old.since_s, old.grown_s) == (loan(600), 30, 40)
    assert new.loan == loan(5, "audio")
    assert began_s - 1 <= new.since_s == new.grown_s <= time.time()


# Windows


def test_a_window_holds_by_the_clocks_of_its_zone(lending: Ledger) -> None:
    window = lending.windows.add(NIGHT, "olga", "cheap power", UTC)
    assert window == replace(NIGHT, window_id=window.window_id, reason="cheap power")
    assert lending.windows.not_over() == (window,)
    assert lending.tenants.policy_in_force(MONDAY_NOON_S, UTC) == lending.tenants.policy()
    ledger_view = lending.view(MONDAY_NOON_S, UTC)
    assert ledger_view.policy == ledger_view.tenants == lending.tenants.policy()
    assert ledger_view.highest is not None
    assert ledger_view.highest["nlp"].quota.nominal_millislices == 2000
    in_tokyo = lending.tenants.policy_in_force(MONDAY_NOON_S, "Asia/Tokyo")
    assert in_tokyo["nlp"].quota.nominal_millislices == 2000
    assert lending.view(MONDAY_NOON_S, "Asia/Tokyo").policy == in_tokyo


def test_the_newest_window_is_not_added_twice(lending: Ledger) -> None:
    """A command that got no answer asks another daemon."""
    window = lending.windows.add(NIGHT, "olga", "cheap power", UTC)
    assert lending.windows.add(NIGHT, "olga", "cheap power", UTC) == window
    other = lending.windows.add(NIGHT, "olga", "still cheap", UTC)
    # An older one that is added again is the newest, which counts.
    newest = lending.windows.add(NIGHT, "olga", "cheap power", UTC)
    assert window.window_id < other.window_id < newest.window_id


def test_who_set_and_removed_a_window_is_kept(lending: Ledger) -> None:
    window = lending.windows.add(NIGHT, "olga", "cheap power", UTC)
    lending.windows.end(window.window_id, "otto", "power is dear again")
    assert (lending.windows.not_over(), lending.view(MONDAY_NOON_S, UTC).highest) == ((), None)
    (record,) = lending.windows.history()
    assert (record.window, record.author) == (window, "olga")
    assert (record.ended_by, record.ended_why) == ("otto", "power is dear again")
    with pytest.raises(InvalidInputError, match="SW-NAME-UNKNOWN"):
        lending.windows.end(window.window_id, "otto", "")


def test_windows_of_another_cluster_are_not_there(lending: Ledger, database: str) -> None:
    window = lending.windows.add(NIGHT, "olga", "", UTC)
    with Ledger(database, "elsewhere") as other:
        assert (other.windows.not_over(), other.windows.history(), other.loans.recalls()) == (
            (),
            (),
            (),
        )
        with pytest.raises(InvalidInputError, match="SW-NAME-UNKNOWN"):
            other.windows.end(window.window_id, "otto", "")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (replace(NIGHT, tenant="nobody"), "SW-TENANT-UNKNOWN"),
        (replace(NIGHT, tenant=ALL), "SW-TENANT-UNKNOWN"),
        (replace(NIGHT, amount_millislices=Millislices(-1)), "SW-VALUE"),
        (replace(NIGHT, begin_min=1440), "SW-VALUE"),
        (replace(NIGHT, first_s=5, last_s=5), "SW-VALUE"),
        (replace(NIGHT, last_s=5), "SW-VALUE"),
        (replace(NIGHT, tenant="lab"), "SW-QUOTA-TREE"),
    ],
)
def test_a_wrong_window_writes_nothing(lending: Ledger, wrong: Window, code: str) -> None:
    set_quota(lending, "lab", 0)
    lending.tenants.change(TenantUpdate("vision", parent="lab"), "olga", "")
    with pytest.raises(InvalidInputError, match=code):
        lending.windows.add(wrong, "olga", "", UTC)
    assert lending.windows.history() == ()


@pytest.mark.promise("Quotas change by the calendar.")
def test_what_a_window_allows_may_be_lent(lending: Ledger, database: str) -> None:
    more = replace(NIGHT, tenant="vision", amount_millislices=Millislices(8000))
    window = lending.windows.add(more, "olga", "", UTC)
    wider = replace(more, kind=WindowKind.LENDING)
    lending.windows.add(wider, "olga", "", UTC)
    lending.windows.add(replace(wider, tenant="nlp", kind=WindowKind.BORROWING), "olga", "", UTC)
    lending.loans.replace([loan(9000)], "idle")
    assert lending.loans.outstanding() == (loan(8000),)
    lending.windows.end(window.window_id, "olga", "")
    set_quota(lending, "audio", 900)
    assert lending.loans.outstanding() == (loan(6000),)


@pytest.mark.parametrize("table", ["quota_windows", "quota_window_ends"])
def test_the_history_of_windows_can_not_be_altered(
    lending: Ledger, database: str, table: str
) -> None:
    window = lending.windows.add(NIGHT, "olga", "", UTC)
    lending.windows.end(window.window_id, "olga", "")
    for statement in ("UPDATE {} SET reason = ''", "DELETE FROM {}", "TRUNCATE {} CASCADE"):
        with (
            psycopg.connect(database) as connection,
            pytest.raises(psycopg.errors.RestrictViolation, match="append-only"),
        ):
            connection.execute(statement.format(f"slicewise.{table}"))


# The journal


def test_a_run_is_read_as_it_was_written(ledger: Ledger) -> None:
    run_id = ledger.rebalances.open("olga", "head1")
    record_id = ledger.rebalances.begin_step(run_id, StepName.LEND)
    begun = ledger.rebalances.find(run_id)
    assert (begun.author, begun.host, begun.outcome) == ("olga", "head1", RunOutcome.RUNNING)
    assert (begun.steps[0].outcome, begun.steps[0].ended_s) == (StepOutcome.RUNNING, None)
    saw = {"idle": {"vision": 3000}, "waiting": [12, 13]}
    ledger.rebalances.end_step(
        record_id, StepOutcome.DONE, saw, ["vision lends nlp 3"], "it is idle"
    )
    ledger.rebalances.finish(run_id, RunOutcome.DONE)
    done = ledger.rebalances.find(run_id)
    (record,) = done.steps
    assert (record.step, record.outcome, record.saw) == (StepName.LEND, StepOutcome.DONE, saw)
    assert (record.did, record.why) == (("vision lends nlp 3",), "it is idle")
    assert done.ended_s is not None
    assert done.ended_s >= record.started_s >= done.started_s


def test_the_next_run_marks_what_a_killed_one_left(ledger: Ledger) -> None:
    killed = ledger.rebalances.open("cron", "head1")
    done = ledger.rebalances.begin_step(killed, StepName.RECONCILE)
    ledger.rebalances.end_step(done, StepOutcome.DONE, {}, [], "")
    under_way = ledger.rebalances.begin_step(killed, StepName.ROLL)
    newer = ledger.rebalances.open("cron", "head2")
    assert [one.run_id for one in ledger.rebalances.history(9)] == [newer, killed]
    assert [one.run_id for one in ledger.rebalances.history(9, newer)] == [killed]
    ledger.rebalances.end_step(under_way, StepOutcome.DONE, {}, [], "late")
    ledger.rebalances.finish(killed, RunOutcome.DONE)
    abandoned = ledger.rebalances.find(killed)
    assert abandoned.outcome == RunOutcome.ABANDONED
    assert [one.outcome for one in abandoned.steps] == [StepOutcome.DONE, StepOutcome.FAILED]
    assert "middle" in abandoned.steps[1].why
    assert ledger.rebalances.find(newer).outcome == RunOutcome.RUNNING


def test_what_is_old_is_forgotten(ledger: Ledger, database: str) -> None:
    old, newer = (ledger.rebalances.open("cron", "head1") for _ in range(2))
    ledger.rebalances.begin_step(old, StepName.ROLL)
    with psycopg.connect(database) as connection:
        aged = "UPDATE slicewise.rebalance_runs SET started_at = started_at - %s WHERE id = %s"
        for run_id, days in ((old, KEPT_DAYS + 1), (newer, KEPT_DAYS - 1)):
            connection.execute(aged, (timedelta(days=days), run_id))
    newest = ledger.rebalances.open("cron", "head1")
    assert [one.run_id for one in ledger.rebalances.history(9)] == [newest, newer]


def test_the_newest_run_before_a_clock_was_set_is_known_however_long_ago_that_seems(
    ledger: Ledger, database: str
) -> None:
    run_id = ledger.rebalances.open("cron", "head1")
    with psycopg.connect(database) as connection:
        aged = "UPDATE slicewise.rebalance_runs SET started_at = started_at - interval '365 days'"
        connection.execute(aged)
    now_s = ledger.rebalances.now_s()
    for _ in range(2):
        ledger.rebalances.open("cron", "head1")
        before_s = ledger.rebalances.begun_before_s(now_s - 3600)
        assert before_s is not None
        assert abs(now_s - before_s - 365 * 86_400) < 60
    assert ledger.rebalances.find(run_id).run_id == run_id
    assert ledger.rebalances.begun_before_s(before_s - 1) is None


def test_runs_of_another_cluster_are_left_alone(ledger: Ledger, database: str) -> None:
    run_id = ledger.rebalances.open("cron", "head1")
    with Ledger(database, "elsewhere") as other:
        other.rebalances.open("cron", "head1")
        with pytest.raises(InvalidInputError, match="SW-NAME-UNKNOWN"):
            other.rebalances.find(run_id)
    assert ledger.rebalances.find(run_id).outcome == RunOutcome.RUNNING
    assert len(ledger.rebalances.history(9)) == 1


def test_one_process_rebalances(ledger: Ledger) -> None:
    first, second = ledger.locks.rebalancing("head1"), ledger.locks.rebalancing("head2")
    try:
        assert first.hold()
        assert not second.hold()
        assert second.holder() == "head1"
        first.give_up()
        # Its session ends in the server a moment later.
        until(second.hold)
    finally:
        first.give_up()
        second.give_up()
