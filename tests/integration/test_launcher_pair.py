"""Two launchers of one cluster (``launcher.pair``): one leads, and no request notices which."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from quotas import until_in_force
from service_status import until_routed
from steady_load import SteadyLoad
from waiting import until, until_is, until_true

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import RequestRecord
from slicewise.sandbox.demo.trace import Arrival

pytestmark = pytest.mark.integration

NAME, SERVICE = "paired", "nlp/paired"
TAKEOVER_S = 3.0
"""Much longer than the other launcher would need, if it could."""
RATE_PER_S = 5.0
FILE = """\
[service]
name = "paired"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
max_replicas = 3
concurrency = 2
keep_alive_s = 600
lease_s = 600
memory_mib = 512
"""


class Half:
    """One launcher of the pair, with settings of its own."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self.sandbox = sandbox
        self.name = name
        self.settings = sandbox.layout.etc / f"{name}.toml"
        text = sandbox.layout.settings_file.read_text()
        self.settings.write_text(text.replace("[launcher]", "[launcher]\npair = true"))

    def start(self) -> None:
        began = len(self.lines)
        argv = ("slicewise", "launcher", "--config", str(self.settings))
        self.sandbox.start(self.name, "slicewise", argv)
        until(lambda: any("started" in line for line in self.lines[began:]))

    def signal(self, number: signal.Signals) -> None:
        self.sandbox.kill(self.name, number)

    @property
    def lines(self) -> list[str]:
        log = Path(self.sandbox.layout.log, f"{self.name}.log")
        return log.read_text().splitlines() if log.exists() else []

    def leads(self) -> bool:
        """By its own last word; a killed one has none."""
        words = [line.partition(" event=")[2].partition(" ")[0] for line in self.lines]
        told = [one for one in words if one in {"leads", "stands_by", "started"}]
        return told[-1:] == ["leads"]


class Pair:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.halves = (Half(sandbox, "launcher1"), Half(sandbox, "launcher2"))

    @property
    def leader(self) -> Half:
        """On a machine that stalls, neither leads for a moment, or one says late that it does no
        more.
        """

        def found() -> Half | None:
            leaders = [half for half in self.halves if half.leads()]
            return leaders[0] if len(leaders) == 1 else None

        return until(found)

    @property
    def other(self) -> Half:
        return next(half for half in self.halves if half is not self.leader)

    def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        url = self.sandbox.layout.database_url(self.sandbox.state.users["slurm"].name)
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(statement, values or None)
            return found.fetchall() if found.description else []

    async def load(self, seconds: float) -> list[RequestRecord]:
        """Ten requests a second."""
        due = [Arrival(0.1 * i, SERVICE, 20, 40) for i in range(int(10 * seconds))]
        async with Load(self.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
            await load.replay(due)
            return list(load.records)


@pytest.fixture(scope="module")
def pair(sandbox: Sandbox) -> Iterator[Pair]:
    models = json.dumps(str(publish_models(sandbox.layout.models)))
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    file = sandbox.layout.home / sandbox.state.users["bob"].name / f"{NAME}.toml"
    file.write_text(FILE.format(models=models))
    sandbox.stop("launcher")
    found = Pair(sandbox)
    for half in found.halves:
        half.start()
    until(lambda: any(half.leads() for half in found.halves))
    sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
    until_routed(sandbox, SERVICE)
    yield found
    for half in found.halves:
        half.signal(signal.SIGKILL)
    sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))
    until(lambda: NAME not in sandbox.run("root", ("squeue", "-h", "-o", "%j")).stdout)


@pytest.mark.promise("Of a pair of launchers the second takes over without a failed request.")
async def test_a_leader_killed_under_load_is_followed_and_no_request_fails(pair: Pair) -> None:
    def followed() -> None:
        killed, follower = pair.leader, pair.other
        killed.signal(signal.SIGKILL)
        until(follower.leads)
        killed.start()

    async with SteadyLoad(f"{pair.sandbox.layout.gateway_url}/{SERVICE}", RATE_PER_S) as clients:
        await until_true(lambda: clients.answers)
        await asyncio.to_thread(followed)
        before = len(clients.answers)
        await until_true(lambda: len(clients.answers) > before)
    assert clients.failed == []


def test_what_was_learnt_is_saved_and_read_by_the_one_that_follows(pair: Pair) -> None:
    until_is(lambda: pair.sql("SELECT tenant, name FROM launcher.service_state"), [("nlp", NAME)])
    # Only the launcher knows this: the one that follows goes on with it.
    (array,) = pair.sql(
        "SELECT jsonb_object_keys(state -> 'generations') FROM launcher.service_state"
    )
    place = ["generations", array[0], "backoff", "failures"]
    killed, follower = pair.leader, pair.other
    follower.signal(signal.SIGSTOP)
    killed.signal(signal.SIGKILL)
    pair.sql("UPDATE launcher.service_state SET state = jsonb_set(state, %s, '7')", place)
    ((changed_at,),) = pair.sql("SELECT now()")
    follower.signal(signal.SIGCONT)
    until(follower.leads)
    asyncio.run(pair.load(1))
    look = "SELECT state #>> %s FROM launcher.service_state WHERE saved_at > %s"
    ((failures,),) = until(lambda: pair.sql(look, place, changed_at))
    assert failures == "7"
    killed.start()


def test_a_leader_that_hangs_leads_no_more_and_goes_on_after_it(pair: Pair) -> None:
    leader, other = pair.leader, pair.other
    leader.signal(signal.SIGSTOP)
    time.sleep(TAKEOVER_S)
    # It has the lock, so the other does not lead.
    assert not other.leads()
    leader.signal(signal.SIGCONT)
    assert [record.error for record in asyncio.run(pair.load(1))] == [""] * 10
    until(leader.leads)
    assert not other.leads()


def test_postgresql_that_ends_the_session_changes_the_leader_or_not_and_requests_go_on(
    pair: Pair,
) -> None:
    def leads_begun() -> int:
        """How often one of them began to lead."""
        logs = (pair.sandbox.layout.log / f"{half.name}.log" for half in pair.halves)
        return sum(log.read_text().count(" event=leads ") for log in logs)

    before = leads_begun()
    pair.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'slicewise launcher %'"
    )
    until(lambda: leads_begun() > before)
    until_is(lambda: [half.leads() for half in pair.halves].count(True), 1)
    assert [record.error for record in asyncio.run(pair.load(1))] == [""] * 10


def test_the_launchers_role_sees_nothing_of_the_ledger(pair: Pair) -> None:
    url = pair.sandbox.layout.database_url("slicewise_launcher")
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("quota_changes", "service_orders", "api_keys"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM slicewise.{table}")
