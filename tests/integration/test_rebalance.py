"""Runs of slicewise rebalance on a real cluster: beside the daemon, without it, killed, and with
Slurm or PostgreSQL away.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from ledger_rows import rows_of_every_table
from second_witness import accounted_runs
from waiting import until, until_is

from slicewise.cluster.language.units import Millislices
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.process import is_alive
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate

pytestmark = pytest.mark.integration

TENANT = "rebalanced"
BUSY = 75
STEPS = ["reconcile", "roll", "lend", "reclaim", "compile", "prioritise", "cut"]


class Cluster:
    """The sandbox, a tenant of its own with jobs of alice's, GPUs that stay as they are cut."""

    def __init__(self, sandbox: Sandbox, toml: Path) -> None:
        self.sandbox = sandbox
        self.url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
        self.ledger = Ledger(self.url, "sandbox")
        text = sandbox.layout.settings_file.read_text()
        toml.write_text(text.replace("allowed = true", "allowed = false"))
        self.config = ("env", f"SLICEWISE_CONFIG={toml}")

    def root(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.sandbox.run("root", argv, check=check)

    def slicewise(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.root(*self.config, "slicewise", *words, check=check)

    def rebalance(self, *words: str) -> dict[str, Any]:
        ended = self.slicewise("rebalance", *words, "--json", check=False)
        assert ended.stdout, ended.stderr
        return json.loads(ended.stdout)

    def begin(self) -> "subprocess.Popen[str]":
        argv = (*self.config, "slicewise", "rebalance", "--json")
        return self.sandbox.popen("root", argv, stdout=subprocess.PIPE)

    def set_quota(self, slices: int) -> None:
        """As the command, which would wait until another program has compiled it."""
        update = TenantUpdate(TENANT, nominal_millislices=Millislices(slices * 1000))
        self.ledger.tenants.change(update, "root", "test")

    def limit(self) -> str:
        """What slurmctld itself limits the account to."""
        argv = ("scontrol", "show", "assoc_mgr", f"qos=slicewise_{TENANT}", "flags=qos")
        found = re.search(r"GrpTRES=\S*billing=(\d+)", self.root(*argv).stdout)
        return found[1] if found else ""

    def submit(self, seconds: int) -> int:
        argv = ("sbatch", "--parsable", f"--account={TENANT}", "--gres=gpu:1g.10gb:1")
        argv = (*argv, "--mem=10", "--time=5", "--output=/dev/null", f"--wrap=sleep {seconds}")
        return int(self.sandbox.run("alice", argv).stdout)

    def state(self, job: int) -> str:
        argv = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        return self.root(*argv, check=False).stdout.strip()

    def charged(self) -> dict[int, int]:
        """Millislice-seconds of the tenant's runs that have ended, by job."""
        rows = self.ledger.audit.statement(TENANT, 0, int(time.time())).rows
        ours = (row for row in rows if row.run.tenant == TENANT and row.end_s)
        return {row.run.key.job_id: row.used_millislice_s for row in ours}

    def accounted(self) -> dict[int, int]:
        runs = accounted_runs(self.sandbox)
        ours = (run for run in runs if run.account == TENANT)
        return {run.job_id: run.used_millislice_s for run in ours}

    def kill(self, name: str) -> None:
        self.sandbox.kill(name)
        until(lambda: not is_alive(self.sandbox.state.processes[name]))


@pytest.fixture(scope="module")
def cluster(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("rebalance")
    for path in (directory, *directory.parents[:2]):
        path.chmod(0o755)
    own = Cluster(sandbox, directory / "slicewise.toml")
    alice = sandbox.state.users["alice"].name
    own.root("sacctmgr", "-i", "add", "account", TENANT)
    own.root("sacctmgr", "-i", "add", "user", alice, f"account={TENANT}")
    own.set_quota(2)
    until(lambda: own.ledger.limits.compiled(own.ledger.tenants.change_id()))
    yield own
    sandbox.restore(print)
    own.root("scancel", f"--account={TENANT}")
    own.root("slicewise", "tenant", "delete", TENANT, "--yes")
    own.ledger.close()


def done(ended: dict[str, Any]) -> dict[str, list[str]]:
    """What each step that changed something did."""
    return {one["step"]: one["did"] for one in ended["steps"] if one["did"]}


def outcomes(ended: dict[str, Any]) -> dict[str, str]:
    return {one["step"]: one["outcome"] for one in ended["steps"]}


def test_beside_the_daemon_everything_is_done_or_left_to_it(cluster: Cluster) -> None:
    job = cluster.submit(600)
    until_is(lambda: cluster.state(job), "RUNNING")
    until(lambda: done(cluster.rebalance()) == {})
    ended = cluster.rebalance()
    assert [one["step"] for one in ended["steps"]] == STEPS
    skipped = {name for name, outcome in outcomes(ended).items() if outcome == "skipped"}
    assert (ended["outcome"], skipped) == ("done", {"lend", "reclaim", "prioritise", "cut"})

    def writes_nothing() -> bool:
        rows = rows_of_every_table(cluster.url)
        assert cluster.rebalance("--dry-run")["outcome"] is None
        return rows_of_every_table(cluster.url) == rows

    # The daemon may write in between, once; a dry run that writes does each time.
    until(writes_nothing)
    cluster.root("scancel", str(job))


def test_of_two_at_once_one_works_and_nobodys_hand_is_blamed(cluster: Cluster) -> None:
    """And the daemon, and who compiles by hand, beside them: on quotas that change meanwhile."""
    job = cluster.submit(1)
    until_is(lambda: cluster.state(job), "")
    compiling = (*cluster.config, "slicewise", "compile", "--json")
    with psycopg.connect(cluster.url) as holding:
        holding.execute("LOCK TABLE slicewise.rebalance_steps")
        runs = [cluster.begin(), cluster.begin()]
        until(lambda: [run.poll() for run in runs].count(BUSY) == 1)
    for nominal in (3, 1, 2):
        cluster.set_quota(nominal)
    by_hand = cluster.sandbox.popen("root", compiling, stdout=subprocess.PIPE)
    (working,) = (run for run in runs if run.wait() != BUSY)
    assert working.returncode == 0
    assert json.loads(working.stdout.read())["steps"][4]["saw"]["changed by hand"] == 0
    assert json.loads(by_hand.communicate()[0])["changed_by_hand"] == []
    until_is(cluster.limit, "2000")
    until(lambda: cluster.charged() == cluster.accounted())


@pytest.fixture(scope="module")
def without_daemon(cluster: Cluster) -> None:
    """Until all servers are started again, by the last test of those."""
    # slicewise.lua names a tenant's own QOS by itself once it has seen a job admitted to it.
    job = cluster.submit(1)
    until_is(lambda: cluster.state(job), "")
    cluster.sandbox.stop("daemon")


@pytest.mark.promise("Without the daemon, rebalance from cron keeps limits and charges right.")
@pytest.mark.usefixtures("without_daemon")
def test_without_the_daemon_limits_follow_the_ledger_and_runs_are_charged(
    cluster: Cluster,
) -> None:
    cluster.set_quota(1)
    job = cluster.submit(1)
    until_is(lambda: cluster.state(job), "")
    ended = cluster.rebalance()
    assert ended["outcome"] == "done"
    assert outcomes(ended)["prioritise"] == "done"
    until_is(cluster.limit, "1000")
    # Of a short run accounting learns the end first, its partition a moment later.
    until(lambda: cluster.rebalance() and job in cluster.charged())
    assert cluster.charged() == cluster.accounted()
    assert done(cluster.rebalance()) == {}


@pytest.mark.promise("A rebalance that is killed is completed by the next one.")
@pytest.mark.usefixtures("without_daemon")
def test_what_a_killed_run_left_the_next_one_does_anew(cluster: Cluster) -> None:
    cluster.set_quota(2)
    stall(cluster, "compile")
    run = cluster.begin()
    until_is(lambda: under_way(cluster), "compile")
    until_is(cluster.limit, "2000")
    run.send_signal(signal.SIGKILL)
    run.wait()
    stall(cluster, None)
    cluster.set_quota(3)
    ended = cluster.rebalance()
    after, before = cluster.ledger.rebalances.history(2)
    assert (after.run_id, ended["outcome"]) == (ended["run_id"], "done")
    last = before.steps[-1]
    assert (before.outcome, last.step, last.did) == ("abandoned", "compile", ())
    assert last.why == "The run ended in the middle of this step."
    until_is(cluster.limit, "3000")
    assert done(cluster.rebalance()) == {}


@pytest.mark.usefixtures("without_daemon")
def test_without_slurm_nothing_is_done_and_each_step_says_why(cluster: Cluster) -> None:
    cluster.kill("slurmctld")
    ended = cluster.rebalance()
    assert ended["outcome"] == "failed"
    assert done(ended) == {}
    assert all("SW-SLURM-DOWN" in one["why"] for one in ended["steps"])
    cluster.sandbox.restore(print)


def test_without_postgresql_nothing_is_half_done(cluster: Cluster) -> None:
    cluster.kill("postgres")
    limits = cluster.limit()
    ended = cluster.slicewise("rebalance", "--quiet", check=False)
    assert ended.returncode == 6
    assert "SW-DATABASE-DOWN" in ended.stderr
    assert cluster.limit() == limits
    cluster.sandbox.restore(print)
    until(lambda: cluster.rebalance()["outcome"] == "done")


def under_way(cluster: Cluster) -> str:
    """Its newest step; "" before the first."""
    runs = cluster.ledger.rebalances.history(1)
    return "".join(one.step for run in runs for one in run.steps[-1:])


def stall(cluster: Cluster, step: str | None) -> None:
    """Let that step's end take long in the journal: else it is over before it is killed."""
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        )
        connection.execute("DROP TRIGGER IF EXISTS stall ON slicewise.rebalance_steps")
        if step is None:
            return
        connection.execute(
            "CREATE OR REPLACE FUNCTION slicewise.stall() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(300); RETURN NEW; END'"
        )
        connection.execute(
            "CREATE TRIGGER stall BEFORE UPDATE ON slicewise.rebalance_steps FOR EACH ROW"
            f" WHEN (NEW.step = '{step}') EXECUTE FUNCTION slicewise.stall()"
        )
