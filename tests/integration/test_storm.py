"""A storm of short jobs of every kind from three tenants: the ledger is what sacct says."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from effort import is_nightly
from quotas import until_in_force
from second_witness import accounted_runs
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

JOBS = 2000 if is_nightly() else 240
TENANTS = {"storm1": "alice", "storm2": "bob", "storm3": "carol"}
SMALL, LARGE = ("1g.10gb", "1g.18gb"), ("3g.40gb", "3g.71gb")
"""Of each of the large ones the sandbox has one: what wants it runs one by one."""
DARK_S = 60 if is_nightly() else 15
"""How long the daemon is away in mid-storm."""

_SHORT, _FAILING, _LONG, _TIMED_OUT = "sleep 1", "exit 3", "sleep 300", "sleep 600"
_PATIENCE_S = 1200.0 if is_nightly() else 400.0
_VICTIM, _VICTIM_LIMIT = "sleep 7200", "1:30:00"
"""Each waits for the other to run, for as long as the test has patience."""


class Storm:
    """Submits and disturbs; every choice follows from counting, none from chance."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.submitted = 0
        self.disturbances = 0
        self.disturbed = {"10:00", "20:00"}
        """Time limits of the jobs that are not left alone."""

    def submit(self, tenant: str, script: str, tasks: int, gpu: str, *options: str) -> str:
        self.submitted += tasks
        array = (f"--array=0-{tasks - 1}",) if tasks > 1 else ()
        fixed = ("--parsable", "--output=/dev/null", f"--account={tenant}", f"--gres=gpu:{gpu}:1")
        argv = ("sbatch", *fixed, "--requeue", *array, *options)
        text = f"#!/bin/sh\n{script}\n"
        return self.sandbox.run(TENANTS[tenant], argv, input=text).stdout.strip()

    def gust(self, number: int) -> None:
        """Twenty jobs of every tenant, some of which don't live long."""
        gpu, other, large = SMALL[number % 2], SMALL[1 - number % 2], LARGE[number % 2]
        for tenant in TENANTS:
            self.submit(tenant, _SHORT, 10, gpu, "--time=5")
            self.submit(tenant, _SHORT, 1, large, "--time=5")
            self.submit(tenant, _FAILING, 4, gpu, "--time=5")
            self.submit(tenant, _LONG, 2, other, "--time=10")
            self.submit(tenant, _LONG, 1, large, "--time=10")
            self.cancel(self.submit(tenant, _SHORT, 1, gpu, "--time=5"))
            self.submit(tenant, f"scancel $SLURM_JOB_ID; {_SHORT}", 1, gpu, "--time=5")

    def disturb(self) -> None:
        """Requeue, suspend, resume, cancel or change the limit of what runs long, in turn.

        Slurm takes the priority of what it suspends, and does not give it back when the node fails:
        such a job is requeued held, until somebody releases it.
        """
        for name, state in self.to_disturb():
            self.disturbances += 1
            if state == "PENDING":
                self.scontrol("release", name)
            elif state == "SUSPENDED":
                self.scontrol("resume", name)
                self.cancel(name)
            else:
                actions = (
                    lambda job: self.scontrol("requeue", job),
                    lambda job: self.scontrol("suspend", job),
                    self.cancel,
                    lambda job: self.scontrol("update", f"JobId={job}", "TimeLimit=20"),
                )
                actions[self.disturbances % len(actions)](name)

    def to_disturb(self) -> list[tuple[str, str]]:
        """What runs long, is suspended, or is held."""
        argv = ("squeue", "-h", "-r", "-A", ",".join(TENANTS), "-t", "PD,R,S", "-o", "%i %T %l %Q")
        rows = (line.split() for line in self.sandbox.run("slurm", argv).stdout.splitlines())
        return [
            (name, state)
            for name, state, limit, priority in rows
            if (priority == "0" if state == "PENDING" else limit in self.disturbed)
        ]

    def break_node(self, node: str) -> None:
        """Its slurmd is killed under two jobs and Slurm notices; one may start again."""
        where = (f"--nodelist={node}", f"--time={_VICTIM_LIMIT}")
        victims = [
            self.submit("storm1", _VICTIM, 1, "1g.18gb", *where, *options)
            for options in ((), ("--no-requeue",))
        ]
        until(lambda: self.disturb() or all(map(self.is_running, victims)), _PATIENCE_S)
        self.sandbox.kill(f"slurmd-{node}")
        self.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=storm")

    def mend_node(self, node: str) -> None:
        self.bring_back()
        self.scontrol("update", f"NodeName={node}", "State=RESUME")
        self.disturbed.add(_VICTIM_LIMIT)

    def resume(self, node: str) -> None:
        """Slurm drains it if a job starts again while the node still has its last run ("Duplicate
        jobid"): an operator takes that back.
        """
        argv = ("sinfo", "-h", "-n", node, "-t", "drain", "-o", "%n")
        if self.sandbox.run("slurm", argv).stdout:
            self.scontrol("update", f"NodeName={node}", "State=RESUME")

    def bring_back(self) -> None:
        """Start again whatever has ended."""
        up = Sandbox.up(Path(self.sandbox.layout.directory), progress=print)
        # Those who come after must find the daemon in their own sandbox's list to end it.
        up.stop("daemon")
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))

    def is_running(self, job: str) -> bool:
        argv = ("squeue", "-h", "-j", job, "-t", "R", "-o", "%i")
        return bool(self.sandbox.run("slurm", argv, check=False).stdout)

    def cancel(self, job: str) -> None:
        self.sandbox.run("slurm", ("scancel", job), check=False)

    def scontrol(self, *words: str) -> None:
        self.sandbox.run("slurm", ("scontrol", *words), check=False)

    def left(self) -> list[str]:
        """Each job that has not ended: id, state, limit, QOS, why it waits or where it runs."""
        argv = ("squeue", "-h", "-r", "-A", ",".join(TENANTS), "-o", "%i %T %l %q %R")
        return self.sandbox.run("slurm", argv).stdout.splitlines()

    def differences(self) -> Mapping[tuple[int, int], tuple[int | None, int | None]]:
        """Of each run, by job and start, what the ledger has charged and what accounting says."""
        charged, accounted = self.charged(), self.accounting()
        both = {run: (charged.get(run), accounted.get(run)) for run in charged | accounted}
        return {run: (ours, slurms) for run, (ours, slurms) in both.items() if ours != slurms}

    def charged(self) -> dict[tuple[int, int], int | None]:
        """Millislice-seconds by job and start; None of a run that has not ended in the ledger."""
        found: dict[tuple[int, int], int | None] = {}
        for tenant in TENANTS:
            argv = ("slicewise", "ledger", "statement", tenant, "--journal", "--json")
            for run in json.loads(self.sandbox.run("root", argv).stdout)["runs"]:
                used = run["used_millislice_s"] if run["end_s"] else None
                found[run["job_id"], run["start_s"]] = used
        return found

    def accounting(self) -> dict[tuple[int, int], int]:
        """The same, of what has ended."""
        runs = (run for run in accounted_runs(self.sandbox) if run.account in TENANTS)
        return {(run.job_id, run.start_s): run.used_millislice_s for run in runs}


@pytest.fixture
def storm(sandbox: Sandbox) -> Iterator[Storm]:
    for tenant, role in TENANTS.items():
        user = sandbox.state.users[role].name
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "account", tenant))
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "user", user, f"account={tenant}"))
        argv = ("slicewise", "tenant-quota", "set", tenant, "--nominal", "5")
        sandbox.run("root", argv)
    until_in_force(sandbox, *TENANTS)
    yield Storm(sandbox)
    for tenant in TENANTS:
        sandbox.run("slurm", ("scancel", "-A", tenant))
        sandbox.run("root", ("slicewise", "tenant-quota", "set", tenant, "--nominal", "0"))


def test_after_a_storm_the_ledger_is_what_accounting_says(storm: Storm):
    for tenant in TENANTS:
        storm.submit(tenant, _TIMED_OUT, 1, "1g.10gb", "--time=1")
    number, dark_since_s = 0, None
    broken = False
    while storm.submitted < JOBS:
        storm.gust(number)
        number += 1
        if dark_since_s is None and storm.submitted > JOBS // 3:
            storm.sandbox.kill("daemon")
            dark_since_s = time.monotonic()
        if not broken and storm.submitted > JOBS // 2:
            storm.break_node("gpu03")
            broken = True
        until(lambda: storm.disturb() or len(storm.left()) < 150, _PATIENCE_S)
    assert dark_since_s is not None
    while time.monotonic() < dark_since_s + DARK_S:
        storm.disturb()
        time.sleep(0.5)
    storm.mend_node("gpu03")
    until_is(lambda: storm.disturb() or storm.resume("gpu03") or storm.left(), [], _PATIENCE_S)

    # On a busy machine one look takes a quarter of a minute.
    until_is(storm.differences, {}, _PATIENCE_S)
    assert len(storm.accounting()) > JOBS // 2
    expected = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "REQUEUED", "NODE_FAIL"}
    assert expected <= states_of(storm).keys()
    verify = storm.sandbox.run("root", ("slicewise", "ledger", "verify", "--json"))
    assert json.loads(verify.stdout)["imbalance"] == 0


def states_of(storm: Storm) -> Mapping[str, int]:
    """How many runs ended how, as sacct says."""
    window = ("--starttime=now-1hours", "--endtime=now", "--duplicates", "-X")
    argv = ("sacct", "-n", "-P", "-a", *window, "-A", ",".join(TENANTS), "--format=State")
    found: dict[str, int] = {}
    for line in storm.sandbox.run("slurm", argv).stdout.splitlines():
        state = line.split()[0]
        found[state] = found.get(state, 0) + 1
    return found
