"""A lender takes its slices back from a service under load: in good order, and none too many."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from quotas import until_daemon_leads, until_in_force
from second_witness import accounted_runs
from service_status import status
from steady_load import SteadyLoad
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

pytestmark = pytest.mark.integration

GRACE_S = 3600
RATE_PER_S = 5.0
"""One replica alone can answer them."""
PROFILE, INSTANCES = "1g.18gb", 10
OWN, LENT = 1, 3
"""Of nlp, and of vision; the other instances are in use."""
FILE = """\
[service]
name = "taken"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "{profile}"
min_replicas = {replicas}
max_replicas = {slots}
concurrency = 2
memory_mib = 512
"""


class Lent:
    """vision is idle; nlp has a replica of its own and one on each slice of vision's."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.database = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
        self.array = 0
        self.jobs: list[int] = []

    def quotas(self, *sets: str) -> None:
        """All at once: each waits until it is in force."""
        argvs = [("slicewise", "tenant-quota", "set", *words.split()) for words in sets]
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(self.sandbox.run, "root"), argvs))
        until_in_force(self.sandbox, *(words.split()[0] for words in sets))

    def sbatch(self, user: str, count: int, seconds: int) -> int:
        options = (f"--array=1-{count}", f"--gres=gpu:{PROFILE}:1", "--time=59")
        argv = ("sbatch", "--parsable", *options, "--output=/dev/null", f"--wrap=sleep {seconds}")
        self.jobs.append(int(self.sandbox.run(user, argv).stdout))
        return self.jobs[-1]

    def apply(self) -> None:
        models = json.dumps(str(publish_models(self.sandbox.layout.models)))
        file = self.sandbox.layout.home / self.sandbox.state.users["bob"].name / "taken.toml"
        replicas = OWN + LENT
        file.write_text(
            FILE.format(models=models, profile=PROFILE, replicas=replicas, slots=replicas + 2)
        )
        argv = ("slicewise", "service", "apply", str(file), "--json")
        self.array = json.loads(self.sandbox.run("bob", argv).stdout)["array_job_id"]

    def states(self, job: int, states: str = "pending,running,completing") -> Counter[str]:
        """How many tasks are in which state, those at rest left out."""
        which = (f"--jobs={job}", f"--states={states}", "--format=%T %r")
        argv = ("squeue", "--noheader", "--array", *which)
        lines = self.sandbox.run("root", argv, check=False).stdout.splitlines()
        return Counter(line.split()[0] for line in lines if "Held" not in line)

    def ready(self) -> int:
        found = status(self.sandbox, "nlp/taken")["generations"]
        return sum(len(one["slots"]["ready"]) for one in found)

    def ended(self) -> Counter[str]:
        """How the runs of the service have ended so far."""
        which = (f"--jobs={self.array}", "--duplicates", "--allocations", "--format=State,End")
        argv = ("sacct", "--noheader", "--parsable2", *which)
        rows = (line.split("|") for line in self.sandbox.run("root", argv).stdout.splitlines())
        return Counter(state for state, end in rows if end != "Unknown")

    def recalls(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute("SELECT * FROM slicewise.recalls").fetchall()

    def recalled(self) -> int:
        """Millislices that are called back and not there yet."""
        with psycopg.connect(self.database) as connection:
            total = "SELECT coalesce(sum(amount_millislices), 0)::bigint FROM slicewise.recalls"
            return connection.execute(total).fetchone()[0]

    def wait_long(self) -> None:
        """As if all was called before the grace."""
        with psycopg.connect(self.database) as connection:
            earlier = "UPDATE slicewise.recalls SET called_s = called_s - %s"
            connection.execute(earlier, (GRACE_S,))

    def why(self, job: int) -> list[str]:
        argv = ("slicewise", "why", f"{job}_1", "--json")
        said = self.sandbox.run("alice", argv, check=False).stdout
        return list(json.loads(said)["sentences"]) if said else []

    def under_load(self, happens: Callable[[], None]) -> SteadyLoad:
        async def loaded() -> SteadyLoad:
            url = f"{self.sandbox.layout.gateway_url}/nlp/taken"
            async with SteadyLoad(url, RATE_PER_S) as load:
                await asyncio.sleep(1.0)
                await asyncio.to_thread(happens)
            return load

        return asyncio.run(loaded())

    def start_daemon(self) -> None:
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until_daemon_leads(self.sandbox)

    @contextmanager
    def grace(self) -> Iterator[None]:
        file = self.sandbox.layout.settings_file
        text = file.read_text()
        file.write_text(f"{text}\n[lending]\ngrace_s = {GRACE_S}\n")
        self.sandbox.stop("daemon")
        self.start_daemon()
        yield
        file.write_text(text)
        self.sandbox.stop("daemon")
        self.start_daemon()

    def charged(self, tenant: str) -> dict[tuple[int, int], int]:
        """Millislice-seconds of the service's runs that have ended, and of the lender's jobs'."""
        argv = ("slicewise", "ledger", "statement", tenant, "--journal", "--json")
        runs: list[dict[str, Any]] = json.loads(self.sandbox.run("root", argv).stdout)["runs"]
        return {
            (run["job_id"], run["start_s"]): run["used_millislice_s"]
            for run in runs
            if run["end_s"] is not None and self.is_ours(run["task"])
        }

    def accounted(self, tenant: str) -> dict[tuple[int, int], int]:
        return {
            (run.job_id, run.start_s): run.used_millislice_s
            for run in accounted_runs(self.sandbox)
            if run.account == tenant and self.is_ours(run.task)
        }

    def is_ours(self, task: str) -> bool:
        return int(task.partition("_")[0]) in {self.array, *self.jobs}


@pytest.fixture(scope="module")
def lent(sandbox: Sandbox) -> Iterator[Lent]:
    found = Lent(sandbox)
    with found.grace():
        others = INSTANCES - OWN - LENT
        found.quotas(f"guest --nominal {others}", f"nlp --nominal {OWN} --borrowing-limit {LENT}")
        found.sbatch("carol", others, 3000)
        found.apply()
        # Nobody could lend it more yet, so that no other slot is let go.
        until_is(lambda: found.states(found.array), {"RUNNING": OWN})
        found.quotas(f"vision --nominal {LENT} --lending-limit {LENT}")
        yield found
        sandbox.run("root", ("scancel", *map(str, (*found.jobs, found.array))))
        found.quotas(
            "guest --nominal 0",
            "nlp --nominal 0 --borrowing-limit 0",
            "vision --nominal 0 --lending-limit 0",
        )


@pytest.fixture
def full(lent: Lent) -> Lent:
    """With a replica on each slice and nothing called back, whatever the test before did."""
    until_is(lent.ready, OWN + LENT)
    until_is(lent.recalls, [])
    return lent


@pytest.mark.promise(
    "A tenant gets lent slices back when its own jobs wait, without a failed request."
)
def test_a_lender_has_back_what_its_jobs_need_and_the_service_what_they_leave(full: Lent) -> None:
    needed = LENT - 1
    jobs: list[int] = []

    def taken_back_and_given_again() -> None:
        jobs.append(full.sbatch("alice", needed, 3000))
        # It is said until the replicas have gone, which none does while the launcher hangs.
        full.sandbox.kill("launcher", signal.SIGSTOP)
        try:
            until(lambda: any("back from nlp, in " in words for words in full.why(jobs[0])))
        finally:
            full.sandbox.kill("launcher", signal.SIGCONT)
        until_is(lambda: full.states(jobs[0]), {"RUNNING": needed})
        assert full.states(full.array)["RUNNING"] == OWN + LENT - needed
        full.sandbox.run("alice", ("scancel", str(jobs[0])))
        until_is(full.ready, OWN + LENT)

    assert full.under_load(taken_back_and_given_again).failed == []
    until(lambda: full.ended().total() >= needed)
    assert full.ended() == {"REQUEUED": needed}, "no one too many, and none by Slurm"
    until_is(full.recalls, [])
    for tenant, count in (("vision", needed), ("nlp", needed)):
        until_is(lambda tenant=tenant: len(full.accounted(tenant)), count)
        until(lambda tenant=tenant: full.charged(tenant) == full.accounted(tenant))


@pytest.mark.promise("Slurm preempts borrowed runs only after the grace time.")
def test_who_does_not_go_within_the_grace_is_preempted_by_slurm(full: Lent) -> None:
    before = full.ended()
    full.sandbox.kill("launcher", signal.SIGSTOP)
    try:
        job = full.sbatch("alice", LENT, 1)
        # What is called later has all of the grace still before it.
        until_is(full.recalled, LENT * 1000)
        assert full.ended() == before
        full.wait_long()
        until(lambda: full.states(job, "running,completed").total() == LENT)
    finally:
        full.sandbox.kill("launcher", signal.SIGCONT)
    until_is(lambda: set(full.ended() - before), {"PREEMPTED"})
