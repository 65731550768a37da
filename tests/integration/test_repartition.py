"""Repartitioning under a load, by killed runs, with a failing driver, for who is owed a type."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from pynvml import NVML_ERROR_INSUFFICIENT_RESOURCES
from run_folder import path_for
from service_status import status
from stand_ins.emulated_gpus import FaultyDriver
from steady_load import SteadyLoad
from waiting import until, until_is, until_true

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gpus.repartitions import (
    RepartitionStep,
    RepartitionStepOutcome,
)
from slicewise.cluster.language.jobs import SHAPES_NODE
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

SERVICE = "nlp/steady"
RATE_PER_S = 5.0
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
STEPS = [str(step) for step in RepartitionStep]
BOUNDED = (
    "setpriv",
    "--no-new-privs",
    # As etc/slicewise-rebalance.service, and what a sandbox needs to restart slurmctld.
    "--bounding-set=-all,+chown,+dac_override,+fowner,+setuid,+setgid,+kill",
)
SHAPES = (
    f"NodeName={SHAPES_NODE} NodeAddr=127.0.0.2 CPUs=16 RealMemory=16000 State=DOWN"
    " Gres=gpu:3g.71gb:2,gpu:7g.141gb:1\n"
)
ASKS_FOR_7G = ("sbatch", "--parsable", "--gres=gpu:7g.141gb:1", "--mem=10", "--wrap=sleep 900")
FILE = """\
[service]
name = "steady"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.10gb"
min_replicas = 2
max_replicas = 4
concurrency = 2
lease_s = 600
memory_mib = 512
"""


class Cluster:
    """A sandbox of its own: its GPUs are not what they were afterwards."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        url = sandbox.layout.database_url(sandbox.state.users["slurm"].name)
        self.url, self.ledger = url, Ledger(url, "sandbox")

    def root(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return self.sandbox.run("root", argv, check=check)

    def repartition(self, *argv: str) -> Any:
        shown = self.root(*BOUNDED, "slicewise", "repartition", *argv, "--json", check=False)
        return json.loads(shown.stdout)

    def limits(self) -> dict[str, int]:
        """Millislices by tenant."""
        shown = self.root("slicewise", "tenant", "list", "--json").stdout
        return {one["tenant"]: one["limit_millislices"] for one in json.loads(shown)}

    def submit(self, gres: str, *options: str, user: str = "alice") -> str:
        """A job that ends when it is cancelled."""
        argv = ("sbatch", "--parsable", f"--gres=gpu:{gres}:1", "--mem=10", "--time=20", *options)
        return self.sandbox.run(user, (*argv, "--wrap=sleep 900")).stdout.strip()

    def running(self, node: str, *gres: str) -> list[str]:
        jobs = [self.submit(one, f"--nodelist={node}") for one in gres]
        for job in jobs:
            until_is(lambda job=job: self.state(job), "RUNNING")
        return jobs

    def clear(self) -> None:
        """Until the queue is empty."""
        self.root("slicewise", "service", "delete", SERVICE, "--now", check=False)
        self.root("scancel", "--partition=gpu")
        until_is(lambda: self.root("squeue", "--noheader").stdout, "")

    def end(self, *jobs: str) -> None:
        """Until what they had is free."""
        self.root("scancel", *jobs)
        for job in jobs:
            until_is(lambda job=job: self.state(job), "")

    def waiting(self, gres: str) -> str:
        job = self.submit(gres)
        until_is(lambda: self.state(job, "%r"), "Resources")
        return job

    def state(self, job: str, form: str = "%T") -> str:
        argv = ("squeue", "--noheader", f"--jobs={job}", f"--format={form}")
        return self.root(*argv, check=False).stdout.strip()

    def gres(self) -> list[str]:
        return self.root("sinfo", "-N", "--noheader", "--format=%N %G").stdout.splitlines()

    def reservations(self) -> str:
        return self.root("scontrol", "show", "reservations").stdout.strip()

    def apply(self) -> None:
        models = publish_models(self.sandbox.layout.models)
        file = self.sandbox.layout.home / self.sandbox.state.users["bob"].name / "steady.toml"
        file.write_text(FILE.format(models=json.dumps(str(models))))
        self.sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
        until(lambda: len(self.ready()) == 2)

    def ready(self) -> list[Any]:
        try:
            return list(status(self.sandbox, SERVICE)["slots"]["ready"])
        except (SlicewiseError, KeyError):
            return []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    running = Sandbox.up(path_for("repartition"), progress=print)
    own = Cluster(running)
    try:
        for tenant in ("vision", "nlp"):
            own.root("slicewise", "tenant", "create", tenant)
            own.root("slicewise", "tenant-quota", "set", tenant, "--nominal", "13")
        own.root("slicewise", "repartition", "survey")
        yield own
    finally:
        own.ledger.close()
        running.down()


@pytest.fixture(autouse=True)
def _empty_queue(cluster: Cluster) -> None:
    """Jobs of another test, that may not have run at all, hold quota as well as GPUs."""
    cluster.clear()


@pytest.mark.promise(
    "GPUs are cut again beside running jobs for those that wait for a shape, and no request fails."
)
def test_who_waits_for_3g_gets_it_where_replicas_were_and_no_request_fails(
    cluster: Cluster,
) -> None:
    # On gpu02 and on one half of gpu01 jobs that can't move; on the other half the replicas.
    _, _, *second = cluster.running("gpu02", "3g.40gb", *["1g.10gb"] * 3)
    cluster.apply()
    *first, _ = cluster.running("gpu01", *["1g.10gb"] * 3)
    cluster.end(*first, *second)
    job, before = cluster.waiting("3g.40gb"), cluster.limits()
    url = f"{cluster.sandbox.layout.gateway_url}/{SERVICE}"

    async def repartition() -> tuple[SteadyLoad, Any]:
        async with SteadyLoad(url, RATE_PER_S) as clients:
            await until_true(lambda: clients.answers)
            ended = await asyncio.to_thread(cluster.repartition, "run")
            before = len(clients.answers)
            await until_true(lambda: len(clients.answers) > before)
        return clients, ended

    clients, ended = asyncio.run(repartition())
    (done,) = ended["repartitions"]
    assert (done["state"], done["node"], len(done["moves"])) == ("done", "gpu01", 2), done
    assert clients.failed == []
    until_is(lambda: cluster.state(job), "RUNNING")
    until_is(lambda: len(cluster.ready()), 2)
    assert cluster.limits() == before, "what tenants may hold is not what GPUs are cut into"
    assert cluster.reservations() == "No reservations in the system"
    shown = cluster.repartition("show", str(done["repartition_id"]))
    assert [one["step"] for one in shown["steps"]] == STEPS
    assert all(one["took_s"] > 0 for one in shown["steps"])


def test_a_type_that_no_node_has_may_be_waited_for_and_is_cut(cluster: Cluster) -> None:
    def asked(name: str = "refused") -> str:
        done = cluster.sandbox.run("alice", (*ASKS_FOR_7G, f"--job-name={name}"), check=False)
        return done.stdout.strip() or done.stderr

    assert "SW-PROFILE-UNKNOWN" in asked()
    conf = cluster.sandbox.layout.slurm_conf
    conf.write_text(conf.read_text().replace("PartitionName=", SHAPES + "PartitionName=", 1))
    cluster.root("slicewise-restart", "slurmctld")
    job = until(lambda: (said := asked("shaped")).isdigit() and said)
    until(lambda: SHAPES_NODE in cluster.state(job, "%r"))
    (planned,) = until(lambda: cluster.repartition("run", "--dry-run")["plan"])
    assert [one["profile"] for one in planned["after"]] == ["7g.141gb"]


def test_a_driver_that_fails_leaves_gpu_and_slurm_as_they_were(cluster: Cluster) -> None:
    cluster.running("gpu04", "3g.71gb")
    cluster.waiting("3g.71gb")
    before, files = cluster.gres(), conf_files(cluster)
    (planned,) = cluster.repartition("run", "--dry-run")["plan"]
    driver = FaultyDriver(cluster.sandbox.layout.drivers / planned["node"])
    driver.fail(CREATE, 1, NVML_ERROR_INSUFFICIENT_RESOURCES)
    run = cluster.root("slicewise", "repartition", "run", "--json", check=False)
    (ended,) = json.loads(run.stdout)["repartitions"]
    assert run.returncode == 1
    assert ended["state"] == "rolled back"
    assert "SW-DRIVER" in ended["error"]
    assert (cluster.gres(), conf_files(cluster)) == (before, files)
    assert cluster.reservations() == "No reservations in the system"
    again = [one["gpu"] for one in cluster.repartition("run", "--dry-run")["plan"]]
    assert planned["gpu"] not in again, "it would fail at each run"


def conf_files(cluster: Cluster) -> list[str]:
    etc = cluster.sandbox.layout.etc
    return [(etc / name).read_text() for name in ("slurm.conf", "gres.conf")]


def test_a_run_that_is_killed_at_each_step_is_ended_by_the_next(cluster: Cluster) -> None:
    cluster.running("gpu04", "3g.71gb")
    job = cluster.waiting("3g.71gb")
    for step in RepartitionStep:
        stall(cluster, step)
        run = cluster.sandbox.popen("root", ("slicewise", "repartition", "run"))
        until(lambda step=step: under_way(cluster) is step)
        run.kill()
        run.wait()
    stall(cluster, None)
    (done,) = cluster.repartition("run")["repartitions"]
    assert done["state"] == "done", done
    begun = [one["step"] for one in done["steps"] if one["outcome"] == "running"]
    assert begun == STEPS
    until_is(lambda: cluster.state(job), "RUNNING")
    assert cluster.reservations() == "No reservations in the system"
    assert cluster.ledger.repartitions.unfinished() == ()


def test_who_is_owed_a_type_gets_it_and_jobs_on_loan_end_for_it(cluster: Cluster) -> None:
    if not any(line.startswith("gpu01 ") and "3g.40gb" in line for line in cluster.gres()):
        cluster.running("gpu02", "3g.40gb")
        cluster.waiting("3g.40gb")
        (cut,) = cluster.repartition("run")["repartitions"]
        assert (cut["state"], cut["node"]) == ("done", "gpu01")
        cluster.clear()
    # It lends three and wants three times 3.5: a type is owed, and no loan has to come back first,
    # for Slurm would name the quota until then.
    asked = ("--nominal=14", "--lending-limit=14", "--type-nominal=3g.40gb=3", "--overcommit")
    cluster.root("slicewise", "tenant-quota", "set", "vision", *asked)
    cluster.root("slicewise", "tenant-quota", "set", "nlp", "--nominal=1", "--borrowing-limit=20")
    cluster.running("gpu01", "3g.40gb")
    cluster.running("gpu02", "3g.40gb")
    own = cluster.submit("1g.10gb", "--nodelist=gpu02", user="bob")
    until_is(lambda: cluster.state(own), "RUNNING")
    *lent, last = (cluster.submit("1g.10gb", "--nodelist=gpu01", user="bob") for _ in range(3))
    cluster.root("scontrol", "update", f"jobid={last}", "requeue=0")
    for job in (*lent, last):
        until_is(lambda job=job: cluster.state(job), "RUNNING")
    owed = cluster.waiting("3g.40gb")
    (done,) = cluster.repartition("run")["repartitions"]
    ended = [f"job {job}" for job in (*lent, last)]
    assert (done["state"], done["node"], sorted(done["ends"])) == ("done", "gpu01", sorted(ended))
    until_is(lambda: cluster.state(owed), "RUNNING")
    assert cluster.state(own) == "RUNNING"
    assert {cluster.state(job) for job in lent} == {"PENDING"}, "requeued, as Slurm preempts"
    argv = ("sacct", "-nX", f"--jobs={last}", "--format=state")
    until(lambda: "CANCELLED" in cluster.root(*argv).stdout)


def under_way(cluster: Cluster) -> RepartitionStep | None:
    for repartition in cluster.ledger.repartitions.unfinished():
        if repartition.steps and repartition.steps[-1].outcome is RepartitionStepOutcome.RUNNING:
            return repartition.steps[-1].step
    return None


def stall(cluster: Cluster, step: RepartitionStep | None) -> None:
    """Let that step's end take long in the journal: else it is over before it is killed."""
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        )
        connection.execute("DROP TRIGGER IF EXISTS stall ON slicewise.repartition_steps")
        if step is None:
            return
        connection.execute(
            "CREATE OR REPLACE FUNCTION slicewise.stall() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_sleep(300); RETURN NEW; END'"
        )
        connection.execute(
            "CREATE TRIGGER stall BEFORE UPDATE ON slicewise.repartition_steps FOR EACH ROW"
            f" WHEN (NEW.step = '{step}') EXECUTE FUNCTION slicewise.stall()"
        )
