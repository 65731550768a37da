"""Tests that commands read the same from the ledger and through the daemon."""

import asyncio
import time
from http import HTTPStatus
from pathlib import Path

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import Answered, Asks, Request, answer_of
from slicewise.cluster.settings.file import DatabaseSettings, Settings
from slicewise.slurm_plugin.api import reads as reads_module
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.routes import Asked, Routes
from slicewise.slurm_plugin.cli.common import read_backend, slurm_look
from slicewise.slurm_plugin.cli.common.daemon_backend import DaemonSource
from slicewise.slurm_plugin.cli.common.ledger_backend import LedgerSource
from slicewise.slurm_plugin.cli.common.read_backend import Source, opened_source
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


class Through(DaemonClient):
    """Asks ``Reads`` as the user socket does, with every message as its text."""

    def __init__(self, reads: Reads) -> None:
        super().__init__(settings().daemon)
        reader = Principal(1, "alice", OWN)
        self._routes = Routes(
            {
                kind: lambda request, _uid, handle=handle: handle(request, reader)
                for kind, handle in reads.handlers().items()
            },
            lambda _asker, _uid: True,
        )

    def call(self, request: Asks[Answered]) -> Answered:
        assert isinstance(request, Request)
        target, body = request.sent()
        asked = asyncio.run(self._routes.reply(Asked(request.method, target, body, 1)))
        assert asked.status == HTTPStatus.OK
        kind: type[Answered] = answer_of(type(request))
        return kind.model_validate_json(asked.body)


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
def sources(monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Source]:
    ledger = ScriptedLedger(shown=policy_of(tenant("vision", 2000)))
    ledger.charges.post(runs(5))
    slurm = ScriptedSlurm(job(0, JobState.RUNNING, nodes=("n1",)))
    cluster_state = sync_of(slurm)
    asyncio.run(cluster_state.turn())
    monkeypatch.setattr(slurm_look, "open_slurm", lambda _: slurm)
    monkeypatch.setattr(reads_module, "_PAGE_ROWS", 2)
    monkeypatch.setattr(time, "time", lambda: 1003.0)
    direct = LedgerSource(ledger, settings())  # type: ignore[arg-type]
    return direct, DaemonSource(Through(Reads(settings(), slurm, ledger, cluster_state)))  # type: ignore[arg-type]


def test_both_tell_the_same(sources: tuple[Source, Source]):
    direct, through = sources
    assert through.explanation("vision") == direct.explanation("vision")
    assert through.balances("vision") == direct.balances("vision")
    assert through.budgets("vision") == direct.budgets("vision") == ()


def test_a_statement_of_several_pages_is_the_whole_one(sources: tuple[Source, Source]):
    direct, through = sources
    (whole, at_s), (paged, then_s) = direct.statement("vision", 0), through.statement("vision", 0)
    assert [row.run.key for row in paged.rows] == [row.run.key for row in whole.rows]
    assert (paged.totals, then_s) == (whole.totals, at_s)
    assert len(paged.rows) == 5


def test_a_month_that_has_ended_is_read_exactly_run_by_run(sources: tuple[Source, Source]):
    """Cut to it, what comes from the daemon has the sums that the command prints."""
    direct, through = (part(source.statement(None, 1001)[0].rows, 1001, 1003) for source in sources)
    assert [row.run.key for row in through] == [row.run.key for row in direct]
    assert (by_service(through), by_user(through)) == (by_service(direct), by_user(direct))
    (total,) = totals(through)
    assert (total.runs, total.used_millislice_s) == (5, 5 * 2000)
    assert {kind for row in through for kind in row.run.gres} == {"1g.10gb"}


def test_who_can_not_read_the_databases_url_asks_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLICEWISE_DATABASE_URL", raising=False)
    opened: list[Settings] = []
    monkeypatch.setattr(
        read_backend, "opened_ledger", lambda found: opened.append(found) or Opened()
    )
    file = tmp_path / "url"
    own = settings().model_copy(update={"database": DatabaseSettings(url_file=file)})
    with opened_source(own) as found:
        assert isinstance(found, DaemonSource)
    file.write_text("postgresql:///ledger\n")
    with opened_source(own) as found:
        assert isinstance(found, LedgerSource)
    assert opened == [own]


class Opened:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
