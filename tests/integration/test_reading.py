"""What ordinary users read, on the daemon's host and, by munge over TCP, on another one."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg
import pytest
from quotas import until_in_force
from waiting import until, until_is

from slicewise.cluster.rpc.munge_rpc import SEALED_PATH
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CLUSTER
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import StatementRow

pytestmark = pytest.mark.integration

TASK = ("sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gres=gpu:1g.10gb:1")
HEADING = {"v": 1, "kind": "question", "nonce": "0" * 32, "part": 0, "parts": 1}
VIEW = "GET /v1/view\n"


class Site:
    """The commands here and on a host that has neither the daemon's sockets nor HAProxy's."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.address = (sandbox.layout.head_address, sandbox.layout.port("daemon"))
        self.elsewhere = self.settings("elsewhere", run_dir="/nowhere", runtime_socket="/nowhere/h")

    def settings(self, name: str, **values: str) -> Path:
        """The sandbox's own, with other values."""
        text = self.sandbox.layout.settings_file.read_text()
        for key, value in values.items():
            text, found = re.subn(
                rf'^{key} = ".*"$', f'{key} = "{value}"', text, flags=re.MULTILINE
            )
            assert found == 1
        path = self.sandbox.layout.etc / f"{name}.toml"
        path.write_text(text)
        path.chmod(0o644)
        return path

    def says(self, user: str, *words: str, config: Path | None = None) -> tuple[int, str]:
        place = config or self.sandbox.layout.settings_file
        unset = ("-u", "SLICEWISE_DATABASE_URL") if config else ()
        argv = ("env", *unset, "COLUMNS=300", f"SLICEWISE_CONFIG={place}", "slicewise", *words)
        done = self.sandbox.run(user, argv, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout or done.stderr

    def reads(self, user: str, *words: str, config: Path | None = None) -> Any:
        code, said = self.says(user, *words, "--json", config=config)
        assert code == 0, said
        return json.loads(said)

    def uid(self, user: str) -> int:
        return self.sandbox.state.users[user].uid

    def credential(self, user: str, *, for_user: str = "slurm", ttl_s: int = 60) -> bytes:
        """A question of that user's, sealed by munge itself."""
        munge = ("munge", "-S", str(self.sandbox.layout.munge_socket), "-t", str(ttl_s))
        payload = json.dumps(HEADING) + "\n" + VIEW
        argv = (*munge, "-u", str(self.uid(for_user)))
        return self.sandbox.run(user, argv, input=payload).stdout.strip().encode()

    def opens(self, user: str, credential: bytes) -> "subprocess.CompletedProcess[str]":
        argv = ("unmunge", "-S", str(self.sandbox.layout.munge_socket), "-n")
        return self.sandbox.run(user, argv, input=credential.decode(), check=False)

    def sends(self, line: bytes) -> bytes:
        """What comes back for that credential."""
        connection = HTTPConnection(*self.address, timeout=60)
        with closing(connection):
            with suppress(ConnectionError):  # It is refused while it is still being sent.
                connection.request("POST", SEALED_PATH, line)
            return connection.getresponse().read()

    def code(self, line: bytes) -> str:
        return str(json.loads(self.sends(line))["code"])


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    """Two tenants that have used something, and now rest."""
    site = Site(sandbox)
    jobs: set[int] = set()
    for tenant, user in (("vision", "alice"), ("nlp", "bob")):
        site.reads("root", "tenant-quota", "set", tenant, "--nominal", "3")
        until_in_force(sandbox, tenant)
        jobs.add(int(sandbox.run(user, (*TASK, "--wrap=sleep 1")).stdout))

    def ends() -> dict[int, int | None]:
        runs = site.reads("root", "ledger", "statement", "--journal")["runs"]
        return {run["job_id"]: run["end_s"] for run in runs}

    def held() -> set[int]:
        """As the daemon has seen it last, and as it is."""
        shown = [site.reads(who, "why", "--limits", "vision") for who in ("alice", "root")]
        return {one["in_use_millislices"] for one in shown}

    until(lambda: jobs <= ends().keys() and None not in ends().values())
    until_is(held, {0})
    yield site
    for path in sandbox.layout.etc.glob("elsewhere*.toml"):
        path.unlink()


@pytest.fixture(params=["here", "elsewhere"])
def config(site: Site, request: pytest.FixtureRequest) -> Path:
    here = site.sandbox.layout.settings_file
    return site.elsewhere if request.param == "elsewhere" else here


def asked(site: Site, user: str, place: str, body: str | None = None) -> Any:
    """What a program of that user's is answered on this host."""
    data = () if body is None else ("--data", body)
    url = f"http://localhost/v1/{place}"
    argv = (
        "curl",
        "-s",
        "-m",
        "60",
        "--unix-socket",
        str(site.sandbox.layout.run_dir / "user.sock"),
        *data,
    )
    return json.loads(site.sandbox.run(user, (*argv, url)).stdout)


def at_rest(statement: Any) -> Any:
    return {**statement, "now_s": 0}


def test_users_read_of_their_tenant_what_operators_read_of_it(site: Site, config: Path) -> None:
    reads = (("why", "--limits", "vision"), ("ledger", "balance", "vision"), ("budget", "show"))
    for words in reads:
        assert site.reads("alice", *words, config=config) == site.reads("root", *words)
    words = ("ledger", "statement", "vision", "--journal")
    mine = site.reads("alice", *words, config=config)
    assert at_rest(mine) == at_rest(site.reads("root", *words))
    assert {run["tenant"] for run in mine["runs"]} == {"vision"}
    assert mine["tenants"][0]["used_millislice_s"] > 0


def test_programs_read_what_each_user_may(site: Site) -> None:
    every, mine = (asked(site, user, "tenants") for user in ("root", "alice"))
    assert {"vision", "nlp"} <= {one["name"] for one in every["tenants"]}
    (vision,) = mine["tenants"]
    assert (vision["name"], vision["nominal_millislices"]) == ("vision", 3000)
    assert mine["others"]["tenants"] == len(every["tenants"]) - 1
    assert asked(site, "alice", "queue")["rows"] == []
    assert asked(site, "root", "rebalances?before=1")["runs"] == []
    assert asked(site, "root", "repartitions?before=1")["repartitions"] == []
    file = json.dumps({"text": "[tenants.vision]\nnominal = 2\n"})
    planned = asked(site, "root", "quota-plan", file)
    assert planned["change"]["changes"] == ["vision: nominal 2 slices (was 3 slices)"]
    faulty = json.dumps({"text": "\n[tenants.nobody]\nnominal = 2\n"})
    assert (
        "line 2: [tenants.nobody] Slurm has no account"
        in asked(site, "root", "quota-plan", faulty)["message"]
    )
    for place, body in (("rebalances", None), ("repartitions", None), ("quota-plan", file)):
        assert asked(site, "alice", place, body)["code"] == "SW-FORBIDDEN"
    assert site.reads("root", "tenant", "show", "vision")["nominal_millislices"] == 3000


def test_people_get_the_same_tables_as_operators(site: Site, config: Path) -> None:
    for words in (("why", "--limits", "vision"), ("ledger", "statement", "vision")):
        assert site.says("alice", *words, config=config) == site.says("root", *words)


def test_nothing_is_shown_of_others(site: Site, config: Path) -> None:
    said = [
        site.says(user, *words, config=config)[1]
        for user, words in (
            ("bob", ("why", "--limits", "nlp")),
            ("bob", ("ledger", "statement")),
            ("bob", ("ledger", "balance")),
            ("bob", ("service", "list")),
        )
    ]
    assert "nlp" in "".join(said)
    assert [text for text in said if "vision" in text or "alice" in text] == []


def test_whether_a_tenant_exists_can_not_be_found_out(site: Site, config: Path) -> None:
    for words in (("why", "--limits"), ("ledger", "statement"), ("ledger", "balance")):
        answers = {
            site.says("bob", *words, name, config=config)[1].replace(name, "?")
            for name in ("vision", "no-such")
        }
        assert len(answers) == 1
        assert "SW-TENANT-UNKNOWN" in answers.pop()


def test_root_sees_everything_from_elsewhere_too(site: Site) -> None:
    there = site.reads("root", "ledger", "balance", config=site.elsewhere)
    assert {line["tenant"] for line in there} >= {"vision", "nlp"}
    assert site.reads("root", "why", "--limits", "nlp", config=site.elsewhere)["tenant"] == "nlp"


def test_services_are_seen_from_elsewhere(site: Site) -> None:
    assert site.reads("alice", "service", "list", config=site.elsewhere) == []
    code, said = site.says("alice", "service", "status", "bert", config=site.elsewhere)
    assert (code, "SW-SERVICE-UNKNOWN" in said) == (3, True)


def test_without_munge_or_daemon_it_is_said_what_is_missing(site: Site) -> None:
    nowhere = {"run_dir": "/nowhere", "runtime_socket": "/nowhere/h"}
    for name, values, code, word in (
        ("munge", {"munge_socket": "/nowhere/munge"}, "SW-MUNGE", "munge_socket"),
        ("port", {"connect": "127.0.0.1:1"}, "SW-DAEMON-DOWN", "daemon.listen"),
        ("none", {"connect": ""}, "SW-DAEMON-DOWN", "daemon.connect"),
    ):
        config = site.settings(f"elsewhere-{name}", **nowhere, **values)
        said = site.says("alice", "why", "--limits", "vision", config=config)[1]
        assert code in said
        assert word in said


def test_pages_together_are_the_statement(site: Site) -> None:
    url = site.sandbox.layout.database_url(site.sandbox.state.users["slurm"].name)
    with Ledger(url, CLUSTER) as ledger:
        whole = ledger.audit.statement(None, 0, 1).rows
        found: list[StatementRow] = []
        after = None
        while page := ledger.audit.statement_page(None, 0, 1, after, 1):
            found += page
            after = (page[0].run.tenant, page[0].run.key.start_s, page[0].run.key.job_id)
        of_one = ledger.audit.statement_page(None, 0, 1, None, 1000, accounts={"vision"})
        of_none = ledger.audit.statement_page(None, 0, 1, None, 1000, accounts=frozenset())
        newest_s = max(row.run.key.start_s for row in whole)
        before = ledger.audit.statement_page(None, 0, 1, None, 1000, until_s=newest_s)
    assert tuple(found) == whole
    assert of_one == tuple(row for row in whole if row.run.tenant == "vision")
    assert (of_none, len(of_one) < len(whole)) == ((), True)
    assert before == tuple(row for row in whole if row.run.key.start_s < newest_s)


# Around the commands


def test_a_credential_counts_once_whole_in_time_and_for_the_daemon(site: Site) -> None:
    good = site.credential("alice")
    assert site.sends(good + b"\n").startswith(b"MUNGE:")
    expired = site.credential("alice", ttl_s=1)
    time.sleep(2.1)
    refused = (
        ("Replayed credential", good),
        ("Unauthorized credential", site.credential("alice", for_user="bob")),
        ("armor", site.credential("alice")[:-20]),
        ("Check that it is complete", site.credential("alice")[:60] + b":"),
        ("Check that it is complete", forged(site.credential("alice"))),
        ("Check that it is complete", b"MUNGE:" + b"QUFB" * 40 + b":"),
        ("not a MUNGE credential", b"MUNGE:" + b"\0" * 1_000 + b":"),
        ("Expired credential", expired),
    )
    for why, line in refused:
        answer = json.loads(site.sends(line + b"\n"))
        assert answer["code"] == "SW-MUNGE"
        assert why in answer["message"] + answer["hint"]
    assert site.reads("alice", "service", "list", config=site.elsewhere) == []


def forged(credential: bytes) -> bytes:
    """With another letter in the middle."""
    middle = len(credential) // 2
    other = b"A" if credential[middle : middle + 1] != b"A" else b"B"
    return credential[:middle] + other + credential[middle + 1 :]


def test_who_catches_a_question_learns_nothing(site: Site) -> None:
    """Bob sends what alice has sealed: the answer is hers, and only she can open it."""
    answer = site.sends(site.credential("alice") + b"\n").strip()
    assert site.opens("bob", answer).returncode != 0
    assert site.opens("slurm", answer).returncode != 0
    assert site.opens("alice", answer).returncode == 0


def test_the_wire_shows_only_credentials(site: Site) -> None:
    answer = site.sends(site.credential("alice") + b"\n")
    assert [line[:6] for line in answer.splitlines()] == [b"MUNGE:"]


@pytest.mark.parametrize("garbage", [b"\0" * 1_000_000, b"MUNGE:" * 200_000, b"\n" * 1000])
def test_garbage_ends_nothing(site: Site, garbage: bytes) -> None:
    with suppress(ConnectionError):  # Cut off while it was still sending.
        assert site.code(garbage) in {"SW-MUNGE", "SW-WIRE"}
    with suppress(ConnectionError), socket.create_connection(site.address, timeout=10) as peer:
        peer.sendall(garbage)
        peer.makefile("rb").read()
    assert site.reads("alice", "service", "list", config=site.elsewhere) == []


def test_sleeping_peers_go_away_by_themselves(site: Site) -> None:
    sleeping: list[socket.socket] = []

    def is_turned_away() -> bool:
        """Not where it comes late: who sleeps for half a second makes room."""
        for connection in sleeping:
            connection.close()
        # First: where munge is slow, they would have gone away meanwhile.
        credential = site.credential("alice")
        sleeping[:] = [socket.create_connection(site.address) for _ in range(16)]
        return b'"code":"SW-BUSY"' in site.sends(credential + b"\n")

    until(is_turned_away)
    until_is(lambda: site.says("alice", "service", "list", config=site.elsewhere)[0], 0)
    for connection in sleeping:
        connection.close()


def test_a_slow_database_holds_up_only_who_asks_about_it(site: Site) -> None:
    server = site.sandbox.layout.database_url(site.sandbox.state.users["slurm"].name)
    with psycopg.connect(server) as connection:
        connection.execute("LOCK TABLE slicewise.runs IN ACCESS EXCLUSIVE MODE")
        statement = ("slicewise", "ledger", "statement")

        def is_answered_while_alice_waits() -> bool:
            """Not where the command itself is slower than the database's deadline."""
            waiting = site.sandbox.popen(
                "alice", statement, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            time.sleep(2)
            assert site.reads("bob", "service", "list", config=site.elsewhere) == []
            still_waits = waiting.poll() is None
            assert "SW-DATABASE-" in waiting.communicate(timeout=120)[1]
            return still_waits

        until(is_answered_while_alice_waits)
    until_is(lambda: site.says("alice", "ledger", "statement")[0], 0)
