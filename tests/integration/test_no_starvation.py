"""Priority on the sandbox: set at submit, refreshed, explained.

How it grows, and that no job starves, is tried on the model of Slurm (tests/model).
"""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from quotas import until_in_force
from waiting import until

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

WAIT_FULL_S = 40.0
SETTINGS = f"""
[priority]
wait_full_h = {WAIT_FULL_S / 3600}
wait_full_limits = 0
high_class_for = ["nlp"]
[qos]
urgent = "high"
"""
# There is one instance of this type: jobs that want it queue.
RARE = ("sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gres=gpu:3g.71gb:1")


class Queue:
    """Jobs of two tenants, and what sprio shows of them."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def submit(self, user: str, *options: str, job_class: str = "normal") -> int:
        script = f"#!/bin/bash\n#SLICEWISE class={job_class}\nsleep 280\n"
        return int(self.sandbox.run(user, (*RARE, *options), input=script).stdout)

    def site_factors(self) -> dict[int, int]:
        argv = ("sprio", "--noheader", "--format=%i %S")
        rows = (line.split() for line in self.sandbox.run("root", argv).stdout.splitlines())
        return {int(job_id): int(site) for job_id, site in rows}

    def jobs(self, states: str) -> list[str]:
        argv = ("squeue", "--noheader", f"--states={states}", "--format=%i")
        return self.sandbox.run("root", argv).stdout.split()

    def is_running(self, job_id: int) -> bool:
        return str(job_id) in self.jobs("RUNNING")

    def explain(self, user: str, job: str) -> Any:
        argv = ("slicewise", "why", "--priority", job, "--json")
        done = self.sandbox.run(user, argv, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else json.loads(done.stderr)["code"]

    def explained(self, user: str, job: str) -> Any:
        """Once the daemon has seen the job, and Slurm has its priority."""

        def found() -> Any:
            answer = self.explain(user, job)
            known = isinstance(answer, dict) and answer["site_factor_in_slurm"] is not None
            return answer if known else None

        return until(found)

    def restart_daemon(self) -> None:
        self.sandbox.kill("daemon", signal.SIGKILL)
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until(self._answers)

    def _answers(self) -> bool:
        argv = ("slicewise", "why", "vision")
        return self.sandbox.run("root", argv, check=False).returncode == 0

    def cancel_all(self) -> None:
        for user in ("alice", "bob"):
            self.sandbox.run("root", ("scancel", f"--user={user}"), check=False)
        until(lambda: not self.jobs("PENDING,RUNNING,COMPLETING"))


@pytest.fixture(scope="module")
def settled(sandbox: Sandbox) -> Iterator[Queue]:
    """Waiting for 40 s is enough for the maximum; vision and nlp have quotas."""
    queue = Queue(sandbox)
    file = sandbox.layout.settings_file
    before = file.read_text()
    file.write_text(f"{before}\n{SETTINGS}")
    for tenant in ("vision", "nlp"):
        set_quota = ("tenant-quota", "set", tenant, "--nominal", "4", "--reason", "test")
        sandbox.run("root", ("slicewise", *set_quota))
    queue.restart_daemon()
    until_in_force(sandbox, "vision", "nlp")
    yield queue
    file.write_text(before)
    queue.restart_daemon()


@pytest.fixture
def queue(settled: Queue) -> Iterator[Queue]:
    yield settled
    settled.cancel_all()


def test_an_arrays_waiting_tasks_stay_one_record(queue: Queue) -> None:
    running = queue.submit("bob")
    until(lambda: queue.is_running(running))
    array = queue.submit("alice", "--array=0-9")
    until(lambda: array in queue.site_factors())
    at_first = queue.site_factors()[array]
    until(lambda: queue.site_factors()[array] >= min(at_first + 500, 10_000))
    assert f"{array}_[0-9]" in queue.jobs("PENDING")
    assert len([job_id for job_id in queue.site_factors() if job_id >= array]) == 1


@pytest.fixture
def urgent(sandbox: Sandbox) -> Iterator[None]:
    """A QOS of the site that users of vision may name."""

    def sacctmgr(*words: str) -> None:
        sandbox.run("slurm", ("sacctmgr", "--immediate", *words))

    sacctmgr("add", "qos", "urgent")
    sacctmgr("modify", "account", "vision", "set", "qos+=urgent")
    yield
    sacctmgr("modify", "account", "vision", "set", "qos-=urgent")
    sacctmgr("delete", "qos", "urgent")


@pytest.mark.usefixtures("urgent")
def test_a_qos_of_the_site_stands_for_a_class_where_its_user_may_name_it(queue: Queue) -> None:
    running = queue.submit("bob")
    until(lambda: queue.is_running(running))
    argv = (*RARE, "--qos=urgent", "--wrap=true")

    def submitted() -> str:
        """The daemon looks every 15 s at who may use what."""
        return queue.sandbox.run("alice", argv, check=False).stdout

    job = int(until(submitted))
    plain = queue.submit("alice")
    until(lambda: {job, plain} <= queue.site_factors().keys())
    factors = queue.site_factors()
    assert factors[job] > factors[plain] + 900
    assert queue.explained("root", str(job))["job_class"] == "high"
    refused = queue.sandbox.run("bob", argv, check=False)
    assert (refused.returncode, "SW-QOS" in refused.stderr) == (1, True), refused.stderr


def test_it_is_explained_beside_what_slurm_has(queue: Queue) -> None:
    running = queue.submit("bob")
    until(lambda: queue.is_running(running))
    first, second = queue.submit("bob"), queue.submit("alice", job_class="low")
    found = queue.explained("alice", str(second))
    assert sum(term["points"] for term in found["terms"]) == found["site_factor"]
    assert (found["tenant"], found["job_class"], found["ahead"]) == ("vision", "low", 1)
    parts = {one["name"]: one["points"] for one in found["factors"]}
    of_slurm = sum(parts.values()) - 2 * parts["nice"]
    assert found["priority"] == found["site_factor_in_slurm"] + of_slurm
    until(lambda: abs(_drift(queue.explain("root", str(second)))) <= 700)
    assert queue.explain("alice", str(first)) == "SW-FORBIDDEN"
    assert queue.explain("bob", str(running)) == "SW-NOTHING"


def _drift(found: Any) -> int:
    """Between the formula at the last look and Slurm: a second of waiting is worth 300 at most."""
    return int(found["site_factor"] - found["site_factor_in_slurm"])
