"""Many clients on one tenant tree, they and PostgreSQL killed: nothing lost, nothing twice."""

import random
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from effort import examples

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host import process
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import (
    BudgetEntry,
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.integration

CLIENTS = examples(24, nightly=64)
TEAMS = 8
RUNS_EACH = examples(24, nightly=120)
KILLED_CLIENTS = examples(18, nightly=40)
KILLED_SERVERS = 3
COST = Millislices(1000)
LIMIT_S, USED_S, LONGER_S = 600, 37, 900
_PATIENCE_S = 600.0

_CLIENTS = get_context("forkserver")
_CLIENTS.set_forkserver_preload(["slicewise.slurm_plugin.ledger.store", "psycopg"])


@pytest.mark.promise(
    "Programs that are killed while they book lose nothing and book nothing twice."
)
def test_nothing_is_lost_and_nothing_twice(sandbox: Sandbox, ledger_database: str, tmp_path: Path):
    clients = {number: start(number, ledger_database, tmp_path) for number in range(CLIENTS)}
    chance = random.Random(5_171_717)  # noqa: S311 -- which client dies is no secret
    in_the_middle = 0
    for kill in range(KILLED_CLIENTS):
        time.sleep(0.1)
        number = chance.randrange(CLIENTS)
        in_the_middle += clients[number].is_alive()
        clients[number].kill()
        clients[number].join()
        clients[number] = start(number, ledger_database, tmp_path)
        if kill % (KILLED_CLIENTS // KILLED_SERVERS) == KILLED_CLIENTS // KILLED_SERVERS - 1:
            sandbox = kill_server(sandbox)
    finish(clients)
    assert in_the_middle > KILLED_CLIENTS // 4
    with Ledger(ledger_database, "chaos") as ledger:
        assert ledger.audit.verify().imbalance == 0
        assert ledger.charges.open_reservations() == ()
        rows = ledger.audit.statement(None, 0, 0).rows
        used = {row.run.key.job_id: row.used_millislice_s for row in rows}
        balances = ledger.budgets.balances()
    acknowledged = [line for file in tmp_path.iterdir() for line in file.read_text().split()]
    assert len(acknowledged) == CLIENTS * RUNS_EACH
    assert used == {int(job): USED_S * COST for job in acknowledged}
    granted = [balances[f"team{number}"].granted for number in range(TEAMS)]
    assert granted == [COST] * TEAMS
    assert balances["org"].available == -sum(used.values())
    assert sum(one.used for one in balances.values()) == sum(used.values())


def kill_server(sandbox: Sandbox) -> Sandbox:
    """With the pid of the one that is started again."""
    sandbox.kill("postgres")
    while process.is_alive(sandbox.state.processes["postgres"]):
        time.sleep(0.01)
    return Sandbox.up(Path(sandbox.layout.directory), progress=print)


def start(number: int, database: str, journals: Path) -> BaseProcess:
    client = _CLIENTS.Process(target=work, args=(number, database, journals), daemon=True)
    client.start()
    return client


def finish(clients: dict[int, BaseProcess]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    for client in clients.values():
        client.join(max(0.0, until_s - time.monotonic()))
        assert client.exitcode == 0


def work(number: int, database: str, journals: Path) -> None:
    """One client's runs, from where its journal ends; of some a grant to its team first."""
    journal = journals / str(number)
    done = set(journal.read_text().split()) if journal.exists() else set()
    with Ledger(database, "chaos") as ledger, journal.open("a", buffering=1) as file:
        if number < TEAMS:
            grant_once(ledger, number)
        for turn in range(RUNS_EACH):
            run = a_run(number, turn)
            if str(run.key.job_id) not in done:
                for charge in life_of(run):
                    insist(ledger, charge)
                file.write(f"{run.key.job_id}\n")


def grant_once(ledger: Ledger, number: int) -> None:
    """As a roll, which happens once for its period however often it is booked."""
    team = f"team{number}"
    while True:
        try:
            if ledger.budgets.enter(BudgetEntry(team, "roll", COST, 1, "chaos", ""), 0):
                return
            if team in ledger.budgets.rollovers():
                return
        except (UnreachableError, OutsideError):
            time.sleep(0.05)


def insist(ledger: Ledger, charge: Charge) -> None:
    """Until the server has said yes, or that it has this already."""
    while True:
        try:
            ledger.charges.post([charge])
        except (UnreachableError, OutsideError):
            time.sleep(0.05)
        else:
            return


def a_run(number: int, turn: int) -> Run:
    key = RunKey("chaos", number * 1000 + turn + 1, 1000)
    tenant = f"team{number % TEAMS}"
    return Run(key, tenant, "alice", str(key.job_id), {"1g.10gb": 1}, COST, "org")


def life_of(run: Run) -> Iterator[Charge]:
    start_s = run.key.start_s

    def step(kind: TransferKind, seconds: int, until_s: int) -> Transfer:
        return Transfer(kind, MillisliceSeconds(seconds * COST), start_s + until_s)

    yield Charge(run, 0, (step(TransferKind.RESERVE, LIMIT_S, LIMIT_S),))
    yield Charge(run, 1, (step(TransferKind.EXTEND, LONGER_S - LIMIT_S, LONGER_S),))
    yield Charge(run, 2, (step(TransferKind.POST, 10, 10),))
    post = step(TransferKind.POST, USED_S - 10, USED_S)
    yield Charge(run, 3, (post, step(TransferKind.VOID, LONGER_S - USED_S, USED_S)))
