"""Runs of slicewise rebalance, without a daemon, that die in each of their steps and in between."""

import json
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from effort import examples
from processes import children_of
from run_folder import path_for
from second_witness import accounted_runs
from waiting import until, until_is

from slicewise.cluster.language.gpus.repartitions import (
    RepartitionState,
)
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.rebalances import RebalanceRun, StepName
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.budgets import unspent
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Recall, TenantUpdate

pytestmark = pytest.mark.integration

TENANTS = {"vision": (4, 3, 0), "nlp": (1, 0, 3), "guest": (20, 0, 0)}
"""Slices: nominal, lending limit, borrowing limit. nlp wants more than it ever gets."""
AMOUNT = 10**9
"""Of vision's budget, each day, in millislice-seconds."""
STEPS = list(StepName)
DUE = {StepName.ROLL, StepName.LEND, StepName.COMPILE, StepName.PRIORITISE, StepName.CUT}
"""What is due once. Reconcile also reserves for what starts meanwhile."""
LOCKS = {
    StepName.RECONCILE: "transfers IN EXCLUSIVE MODE",
    StepName.ROLL: "budget_entries IN EXCLUSIVE MODE",
    StepName.LEND: "recalls IN EXCLUSIVE MODE",
    StepName.RECLAIM: "recalls",
    StepName.COMPILE: "known_limits IN EXCLUSIVE MODE",
    StepName.CUT: "repartition_steps IN EXCLUSIVE MODE",
}
"""What each step waits for while another session holds it. Prioritise waits for slurmctld."""
GATE = """
CREATE FUNCTION slicewise.gate() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock(hashtext(TG_OP || NEW.step)); RETURN NEW; END';
CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON slicewise.rebalance_steps
FOR EACH ROW WHEN (NEW.outcome <> 'failed') EXECUTE FUNCTION slicewise.gate()
"""
"""The journal waits where a test wants it to, before a step or after it; not for who marks what was
killed."""
DEAD = "The run ended in the middle of this step."

Process = subprocess.Popen[str]


class Site:
    """A sandbox of its own: one of its GPUs is repartitioned."""

    def __init__(self, sandbox: Sandbox, toml: Path) -> None:
        self.sandbox = sandbox
        self.url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
        self.ledger = Ledger(self.url, "sandbox")
        self.toml = toml
        self.local_hour = 22
        self.days: list[int] = []
        self.guest_slices, _, _ = TENANTS["guest"]
        self.waiting = 0

    def root(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.sandbox.run("root", argv, check=check)

    def sbatch(self, user: str, gres: str, seconds: int, *own: str, tasks: int = 1) -> int:
        options = (f"--gres=gpu:{gres}:1", f"--array=1-{tasks}", "--mem=10", "--time=60", *own)
        argv = ("sbatch", "--parsable", *options, "--output=/dev/null", f"--wrap=sleep {seconds}")
        return int(self.sandbox.run(user, argv).stdout)

    def tasks(self, job: int, form: str = "%T") -> list[str]:
        argv = ("squeue", "--noheader", "--array", f"--jobs={job}", f"--format={form}")
        return sorted(self.root(*argv).stdout.split())

    def change(self, tenant: str, **update: int | Budget) -> None:
        self.ledger.tenants.change(TenantUpdate(tenant, **update), "root", "test")  # type: ignore[arg-type]

    def set_guests(self, slices: int) -> None:
        self.guest_slices = slices
        self.change("guest", nominal_millislices=slices * 1000)

    def next_day(self) -> None:
        """It has begun an hour later, a zone further west."""
        if self.local_hour > 1:
            self.local_hour -= 1
            self.days.append((int(time.time()) // 3600 - self.local_hour) * 3600)
        self.configure()

    def configure(self, *, grace_s: int = 3600, may_cut: bool = False) -> None:
        """Budgets go by the zone of the last day; neither age nor use changes a job's priority."""
        ahead = (self.days[-1] // -3600 + 12) % 24 - 12
        text = self.sandbox.layout.settings_file.read_text()
        if not may_cut:
            text = text.replace("allowed = true", "allowed = false")
        self.toml.write_text(
            f'{text}\n[ledger]\ntime_zone = "Etc/GMT{-ahead:+d}"\n'
            f"[lending]\ngrace_s = {grace_s}\n[priority]\nwait_full_h = 1e6\nshare_weight = 0\n"
        )

    def begin(self) -> Process:
        argv = ("env", f"SLICEWISE_CONFIG={self.toml}", "slicewise", "rebalance", "--json")
        pipe = subprocess.PIPE
        return self.sandbox.popen("root", argv, stdout=pipe, stderr=pipe)

    def rebalance(self) -> set[str]:
        """A whole run: the steps that changed something."""
        run = self.begin()
        said, complaint = run.communicate()
        assert run.returncode == 0, said or complaint
        return {one["step"] for one in json.loads(said)["steps"] if one["did"]}

    def make_due(self) -> None:
        """Something for each step but reclaim and cut."""
        # No daemon has told slicewise.lua of this QOS.
        job = self.sbatch("alice", "1g.10gb", 1, "--qos=slicewise_vision")
        self.next_day()
        self.ledger.loans.replace([], "test", [recall(1000, called_s=1)])
        self.set_guests(41 - self.guest_slices)
        self.root("scontrol", "update", f"jobid={self.waiting}", "sitefactor=0")
        until(lambda: self.is_accounted(job))

    def is_accounted(self, job: int) -> bool:
        """Of a short run accounting learns the end first, its partition a moment later."""
        argv = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}")
        end, _, partition = self.root(*argv, "--format=End,Partition").stdout.strip().partition("|")
        return end not in {"", "Unknown"} and bool(partition)

    # Where a run stands still

    @contextmanager
    def holding(self, statement: str) -> Iterator[None]:
        with psycopg.connect(self.url) as connection:
            connection.execute(statement)
            yield

    def waits_for(self, kind: str) -> bool:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = %s"
        with psycopg.connect(self.url) as connection:
            return connection.execute(query, (kind,)).fetchone() != (0,)

    def gate(self, operation: str, step: StepName) -> AbstractContextManager[None]:
        """The journal lets no run begin (INSERT) or end (UPDATE) that step."""
        return self.holding(f"SELECT pg_advisory_xact_lock(hashtext('{operation}{step}'))")

    @contextmanager
    def stopped(self, server: str) -> Iterator[None]:
        self.sandbox.kill(server, signal.SIGSTOP)
        try:
            yield
        finally:
            self.sandbox.kill(server, signal.SIGCONT)

    @contextmanager
    def obstacle(self, step: StepName, run: Process) -> Iterator[Callable[[], bool]]:
        """Nobody gets through that step; whether the run has come so far."""
        if step is StepName.PRIORITISE:
            with self.stopped("slurmctld"):
                yield lambda: asks_slurm(run)
        else:
            with self.holding(f"LOCK TABLE slicewise.{LOCKS[step]}"):
                yield lambda: self.waits_for("relation")

    # How it dies

    def killed_before(self, step: StepName) -> None:
        """The step is begun and nothing of it done. A statement that is under way may still come
        about when the run is dead.
        """
        with ExitStack() as obstacles:
            with self.gate("INSERT", step):
                run = self.begin()
                until(lambda: self.waits_for("advisory"))
                has_come = obstacles.enter_context(self.obstacle(step, run))
            until(has_come)
            kill(run)

    def killed_after(self, step: StepName) -> None:
        """All of the step is done, and the journal does not know."""
        with self.gate("UPDATE", step):
            run = self.begin()
            until(lambda: self.waits_for("advisory"))
            kill(run)

    # What there is then

    def limits(self) -> dict[str, int]:
        """Slices to which slurmctld itself limits the two QOS of each tenant together."""
        shown = self.root("scontrol", "show", "assoc_mgr", "flags=qos").stdout
        pattern = r"QOS=slicewise_([a-z]+?)(?:_borrowed)?\(\d+\)\n.*?GrpTRES=\S*?billing=(\d+)\("
        found: Counter[str] = Counter()
        for tenant, amount in re.findall(pattern, shown, re.DOTALL):
            found[tenant] += int(amount) // 1000
        return {name: slices for name, slices in found.items() if name != "gate"}

    def charged(self) -> dict[tuple[int, int], int]:
        """Millislice-seconds of each run that has ended."""
        rows = self.ledger.audit.statement(None, 0, int(time.time())).rows
        ended = [row for row in rows if row.end_s is not None]
        return {(row.run.key.job_id, row.run.key.start_s): row.used_millislice_s for row in ended}

    def accounted(self) -> dict[tuple[int, int], int]:
        runs = accounted_runs(self.sandbox)
        return {(run.job_id, run.start_s): run.used_millislice_s for run in runs}

    def rolled(self) -> list[int | None]:
        """Starts of the periods that were begun."""
        entries = self.ledger.budgets.entries("vision", 0)
        return [one.period_start_s for one in entries if one.kind == "roll"]

    def require_as_never_killed(self) -> None:
        """Only vision's runs have ended, none of them before the first period began."""
        assert (self.ledger.loans.outstanding(), self.ledger.loans.recalls()) == ((loan(3000),), ())
        until_is(self.limits, {"vision": 1, "nlp": 4, "guest": self.guest_slices})
        charged = self.charged()
        assert charged == self.accounted()
        assert unspent(self.ledger.budgets.balances()["vision"]) == AMOUNT - sum(charged.values())
        assert self.rolled() == self.days
        assert self.ledger.audit.verify().faults == ()


def loan(amount: int) -> Loan:
    return Loan("vision", "nlp", Millislices(amount))


def recall(amount: int, called_s: int) -> Recall:
    return Recall("vision", "nlp", Millislices(amount), called_s)


def kill(run: Process) -> None:
    run.kill()
    assert run.wait() == -signal.SIGKILL


def asks_slurm(run: Process) -> bool:
    """Whether it waits for a command."""
    return bool(children_of(run.pid))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("kills")
    for path in (directory, *directory.parents[:2]):
        path.chmod(0o755)
    sandbox = Sandbox.up(path_for("kills"), progress=print)
    own = Site(sandbox, directory / "slicewise.toml")
    try:
        settle(own)
        yield own
    finally:
        own.ledger.close()
        sandbox.down()


def settle(site: Site) -> None:
    """nlp may have what vision lends and wants one more; of 1g.10gb one is free, and 3g.71gb is
    waited for.
    """
    for tenant, (nominal, lending, borrowing) in TENANTS.items():
        site.change(
            tenant,
            nominal_millislices=nominal * 1000,
            lending_limit_millislices=lending * 1000,
            borrowing_limit_millislices=borrowing * 1000,
        )
    until(lambda: site.ledger.limits.compiled(site.ledger.tenants.change_id()))
    site.waiting = site.sbatch("bob", "1g.10gb", 1800, tasks=5)
    site.sbatch("carol", "1g.10gb", 1800, tasks=5)
    site.sbatch("carol", "3g.71gb", 1800, tasks=2)
    site.root("slicewise", "repartition", "survey", "gpu03")
    until(lambda: site.ledger.loans.outstanding() == (loan(3000),))
    site.sandbox.stop("daemon")
    site.change("vision", budget=Budget(Period.DAY, MillisliceSeconds(AMOUNT)))
    with psycopg.connect(site.url) as connection:
        connection.execute(GATE)
    site.next_day()
    site.rebalance()


def require_dead_in(step: StepName, run: RebalanceRun) -> None:
    *before, last = run.steps
    assert run.outcome == "abandoned"
    assert [one.step for one in run.steps] == STEPS[: STEPS.index(step) + 1]
    assert {one.outcome for one in before} <= {"done", "skipped"}
    assert (last.outcome, last.did, last.why) == ("failed", (), DEAD)
    assert not {one.step for one in before if one.did} & DUE


def test_two_runs_that_die_in_each_step_leave_it_done_once(site: Site) -> None:
    """The second of them does what the first could not, and the journal never hears of it."""
    site.make_due()
    site.configure(may_cut=True)
    for step in STEPS:
        site.killed_before(step)
        site.killed_after(step)
    assert not site.rebalance() & DUE
    (_, *killed) = site.ledger.rebalances.history(1 + 2 * len(STEPS))
    for step in reversed(STEPS):
        second, first, *killed = killed
        require_dead_in(step, first)
        require_dead_in(step, second)
    site.require_as_never_killed()
    assert [one.state for one in site.ledger.repartitions.history(9)] == [RepartitionState.DONE]


def test_a_change_of_a_limit_that_lands_when_its_run_is_dead_is_nobodys_by_hand(
    site: Site,
) -> None:
    site.make_due()
    before = site.limits()
    with ExitStack() as obstacles:
        with site.holding(f"LOCK TABLE slicewise.{LOCKS[StepName.COMPILE]}"):
            run = site.begin()
            until(lambda: site.waits_for("relation"))
            assert site.limits() == before, "the ledger knows of a change before it is made"
            obstacles.enter_context(site.stopped("slurmdbd"))
        until(lambda: asks_slurm(run))
        # It has told the command what to change by then, and goes no further.
        time.sleep(1.0)
        kill(run)
    until_is(lambda: site.limits()["guest"], site.guest_slices)
    site.set_guests(site.guest_slices + 1)
    site.rebalance()
    whole, killed = site.ledger.rebalances.history(2)
    assert killed.outcome == "abandoned"
    assert whole.steps[STEPS.index(StepName.COMPILE)].saw["changed by hand"] == 0
    site.require_as_never_killed()


def test_a_run_that_is_told_to_end_leaves_nothing_behind(site: Site) -> None:
    site.make_due()
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)):
        with site.gate("UPDATE", StepName.LEND):
            run = site.begin()
            until(lambda: site.waits_for("advisory"))
            run.send_signal(number)
        assert (run.communicate(), run.returncode) == (("", ""), status)
    site.rebalance()
    _, *ended = site.ledger.rebalances.history(3)
    assert [one.outcome for one in ended] == ["abandoned"] * 2
    site.require_as_never_killed()


def test_runs_that_are_killed_at_any_moment_change_nothing_of_the_end(site: Site) -> None:
    chance = random.Random(7)  # noqa: S311 -- when is no secret
    (newest,) = site.ledger.rebalances.history(1)
    assert newest.ended_s is not None
    for _ in range(examples(1, 40)):
        site.make_due()
        before = site.ledger.rebalances.history(1)
        run = site.begin()
        until(lambda before=before: site.ledger.rebalances.history(1) != before)
        time.sleep(chance.uniform(0, newest.ended_s - newest.started_s))
        run.kill()
        run.wait()
        site.rebalance()
        site.require_as_never_killed()
    assert site.rebalance() == set()


def test_a_lender_gets_back_what_its_jobs_want_whatever_dies(site: Site) -> None:
    """nlp has batch jobs alone: no grace is for these, and Slurm preempts one of them."""
    until_is(lambda: site.tasks(site.waiting), ["PENDING", *["RUNNING"] * 4])
    job = site.sbatch("alice", "1g.10gb", 1800, "--qos=slicewise_vision", tasks=2)
    until_is(lambda: site.tasks(job), ["PENDING", "RUNNING"])
    site.killed_before(StepName.LEND)
    assert site.ledger.loans.outstanding() == (loan(3000),)
    site.killed_after(StepName.LEND)
    assert site.ledger.loans.outstanding() == (loan(2000),)
    assert site.limits() == {"vision": 1, "nlp": 4, "guest": site.guest_slices}
    site.rebalance()
    assert (site.ledger.loans.outstanding(), site.ledger.loans.recalls()) == ((loan(2000),), ())
    until_is(site.limits, {"vision": 2, "nlp": 3, "guest": site.guest_slices})
    until_is(lambda: site.tasks(job), ["RUNNING", "RUNNING"])
