"""Two daemons of one cluster (``daemon.pair``) on real PostgreSQL and Slurm: one leads."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from quotas import until_daemon_leads, until_in_force
from waiting import until, until_is

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import StatusRequest, ViewAnswer, ViewRequest
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.probes import unix_socket_answers

pytestmark = pytest.mark.integration

TAKEOVER_S = 3.0
"""Much longer than the other daemon would need, if it could."""


class Half:
    """One daemon of the pair, with its own directory."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self.sandbox = sandbox
        self.name = name
        self.run_dir = sandbox.layout.run_dir.parent / name
        self.settings = sandbox.layout.etc / f"{name}.toml"
        lines = sandbox.layout.settings_file.read_text().splitlines()
        kept = [one for one in lines if not one.startswith(("run_dir", "listen", "connect"))]
        own = f'[daemon]\nrun_dir = "{self.run_dir}"\npair = true'
        self.settings.write_text("\n".join(kept).replace("[daemon]", own))
        sandbox.run("root", ("install", "-d", "-o", self.user, str(self.run_dir)))

    @property
    def user(self) -> str:
        return self.sandbox.state.users["slurm"].name

    def start(self) -> None:
        argv = ("slicewise", "daemon", "--config", str(self.settings))
        self.sandbox.start(self.name, "slurm", argv)
        until(lambda: unix_socket_answers(self.run_dir / "user.sock"))

    def set_quota(self, nominal: str) -> None:
        config = ("env", f"SLICEWISE_CONFIG={self.settings}")
        quota = (*config, "slicewise", "tenant-quota", "set", "vision", "--nominal", nominal)
        self.sandbox.run("root", quota)
        until_in_force(self.sandbox, "vision", daemon=self._client)

    def signal(self, number: signal.Signals) -> None:
        self.sandbox.kill(self.name, number)

    def view(self) -> ViewAnswer:
        """In this very process: a command for each look would take a second on a busy machine."""
        return self._client.call(ViewRequest())

    @property
    def _client(self) -> DaemonClient:
        return DaemonClient(DaemonSettings(run_dir=self.run_dir))

    def leads(self) -> bool:
        return self._client.call(StatusRequest()).is_leader

    def nominals(self) -> set[tuple[str, int]]:
        return {(one.name, one.nominal_millislices) for one in self.view().tenants}

    @property
    def log(self) -> str:
        return Path(self.sandbox.layout.log, f"{self.name}.log").read_text()


@pytest.fixture(scope="module")
def pair(sandbox: Sandbox) -> Iterator[tuple[Half, Half]]:
    """The first one leads."""
    for name in ("launcher", "daemon"):
        sandbox.stop(name)
    first, second = Half(sandbox, "ctl1"), Half(sandbox, "ctl2")
    first.start()
    until(first.leads)
    second.start()
    yield first, second
    for each in (first, second):
        each.signal(signal.SIGKILL)
    sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
    until_daemon_leads(sandbox)
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.mark.promise("Of a pair of daemons one leads, and the other answers and stands by.")
def test_one_leads_and_the_other_answers_and_stands_by(pair: tuple[Half, Half]) -> None:
    first, second = pair
    until_is(lambda: (first.leads(), second.leads()), (True, False))
    until(lambda: second.view().complete)
    # Whatever it was before, one of the two is a change.
    for nominal in ("2", "3"):
        first.set_quota(nominal)
    # It follows the policy all the same, for its answers.
    until(lambda: ("vision", 3000) in second.nominals())
    # Slurm has it before the log says so.
    until(lambda: "limit_set" in first.log)
    assert "limit_set" not in second.log


def test_a_leader_that_hangs_leads_no_more_and_goes_on_after_it(pair: tuple[Half, Half]) -> None:
    first, second = pair
    first.signal(signal.SIGSTOP)
    time.sleep(TAKEOVER_S)
    # It has the lock, so no other daemon leads; it does not do what it would do next.
    assert not second.leads()
    first.signal(signal.SIGCONT)
    until(first.leads)
    assert not second.leads()


def test_postgresql_that_ends_the_session_gives_way(pair: tuple[Half, Half]) -> None:
    first, second = pair
    server = first.sandbox.layout.database_url(first.user)
    seen: list[bool] = []

    def both_lead() -> bool:
        """At one moment: between two looks the lead may have gone over, and it does not go back."""
        return first.leads() and second.leads() and first.leads()

    before = leads_begun(pair)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM slicewise.locks WHERE name = 'slicewise leader'"
        )
    until(lambda: seen.append(both_lead()) or leads_begun(pair) > before)
    assert not any(seen)


def leads_begun(pair: tuple[Half, Half]) -> int:
    """How often one of them began to lead."""
    return sum(half.log.count(" event=leads ") for half in pair)


def leader_and_other(pair: tuple[Half, Half]) -> tuple[Half, Half] | None:
    """On a machine that stalls, neither daemon leads for a moment."""
    first, second = pair
    if first.leads():
        return first, second
    return (second, first) if second.leads() else None


def test_a_killed_leader_is_followed(pair: tuple[Half, Half]) -> None:
    killed, follower = until(lambda: leader_and_other(pair))
    killed.signal(signal.SIGKILL)
    until(follower.leads)
    follower.set_quota("4")
    killed.start()
    assert not killed.leads()
