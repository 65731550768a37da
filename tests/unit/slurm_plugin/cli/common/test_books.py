"""Tests that commands read through the daemon what the ledger has."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.daemon_in_process import answer_from
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.api import reads as reads_module
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.cli.common.books import Books
from slicewise.slurm_plugin.common.explain_requests import HeadroomRequest
from slicewise.slurm_plugin.common.ledger_requests import BalanceRequest, BudgetsRequest
from slicewise.slurm_plugin.ledger.summaries import balance_lines, ledger_view_now
from slicewise.slurm_plugin.rules.accounting.statement import by_service, by_user, part, totals
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.usefixtures("clock")

OWN = frozenset({"vision"})


def runs(count: int) -> list[Charge]:
    """Settled ones, and the last one that runs."""
    found = []
    for number in range(count):
        key = RunKey("c", number, 1000)
        run = Run(key, "vision", "alice", str(number), {"1g.10gb": 1}, Millislices(1000), "vision")
        amount = MillisliceSeconds(5000)
        steps = [Transfer(TransferKind.RESERVE, amount, 1005)]
        if number < count - 1:
            steps.append(Transfer(TransferKind.POST, amount, 1005))
        found.append(Charge(run, 0, tuple(steps)))
    return found


@pytest.fixture
def ledger() -> ScriptedLedger:
    found = ScriptedLedger(shown=policy_of(tenant("vision", 2000)))
    found.charges.post(runs(5))
    return found


@pytest.fixture
def reads(ledger: ScriptedLedger, monkeypatch: pytest.MonkeyPatch) -> Reads:
    slurm = ScriptedSlurm(job(0, JobState.RUNNING, nodes=("n1",)))
    cluster_state = sync_of(slurm)
    asyncio.run(cluster_state.turn())
    monkeypatch.setattr(reads_module, "_PAGE_ROWS", 2)
    monkeypatch.setattr(time, "time", lambda: 1003.0)
    return Reads(settings(), slurm, ledger, cluster_state)  # type: ignore[arg-type]


@pytest.fixture
def books(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> Books:
    answer_from(monkeypatch, reads.handlers(), Principal(1, "alice", OWN))
    return Books(DaemonClient(settings().daemon))


@pytest.mark.usefixtures("books")
def test_the_books_are_the_ledgers(ledger: ScriptedLedger):
    view = ledger_view_now(ledger, settings())  # type: ignore[arg-type]
    daemon = DaemonClient(settings().daemon)
    balances = daemon.call(BalanceRequest(tenant="vision")).balances
    assert balances == balance_lines(ledger, view, {"vision"})  # type: ignore[arg-type]
    assert daemon.call(BudgetsRequest(tenant="vision")).budgets == ()
    assert daemon.call(HeadroomRequest(tenant="vision")).headroom.tenant == "vision"


def test_a_statement_of_several_pages_is_the_whole_one(books: Books, ledger: ScriptedLedger):
    whole = ledger.audit.statement("vision", 0, 1003)
    paged, then_s, below = books.statement("vision", 0)
    assert [row.run.key for row in paged.rows] == [row.run.key for row in whole.rows]
    assert (paged.totals, then_s, below) == (whole.totals, 1003, ())
    assert len(paged.rows) == 5


def test_a_month_that_has_ended_is_read_exactly_run_by_run(books: Books, ledger: ScriptedLedger):
    """Cut to it, what comes from the daemon has the sums that the command prints."""
    direct = part(ledger.audit.statement(None, 1001, 1003).rows, 1001, 1003)
    through = part(books.statement(None, 1001)[0].rows, 1001, 1003)
    assert [row.run.key for row in through] == [row.run.key for row in direct]
    assert (by_service(through), by_user(through)) == (by_service(direct), by_user(direct))
    (total,) = totals(through)
    assert (total.runs, total.used_millislice_s) == (5, 5 * 2000)
    assert {gres_type for row in through for gres_type in row.run.gres} == {"1g.10gb"}


def test_tenants_below_are_named_to_who_may_read_them(
    reads: Reads, ledger: ScriptedLedger, monkeypatch: pytest.MonkeyPatch
):
    ledger.shown = policy_of(tenant("lab", 6000), tenant("vision", 2000, "lab"))
    books = Books(DaemonClient(settings().daemon))
    answer_from(monkeypatch, reads.handlers())
    assert books.statement("lab", 0)[2] == ("vision",)
    answer_from(monkeypatch, reads.handlers(), Principal(1, "alice", frozenset({"lab"})))
    assert books.statement("lab", 0)[2] == ()


def test_without_a_daemon_it_says_so_though_the_database_could_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql:///ledger")
    nowhere = DaemonSettings(run_dir=tmp_path)
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        Books(DaemonClient(nowhere)).statement(None, 0)


def test_of_more_days_than_are_listed_at_once_the_daemon_is_not_asked() -> None:
    nobody: Any = None
    with pytest.raises(InvalidInputError, match="more than 400 days"):
        Books(nobody).charges(None, 0, 401 * 86_400)
