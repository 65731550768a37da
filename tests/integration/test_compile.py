"""From a quota to Slurm's limits, from Slurm's accounting to the statement: on the sandbox."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from second_witness import accounted_runs

from sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

_PATIENCE_S = 60.0


@pytest.fixture
def account(sandbox: Sandbox) -> Iterator[str]:
    """A Slurm account of its own for alice; without a quota again afterwards."""
    name = f"lab{uuid4().hex[:8]}"
    alice = sandbox.state.users["alice"].name
    sandbox.run("slurm", ("sacctmgr", "-i", "add", "account", name))
    sandbox.run("slurm", ("sacctmgr", "-i", "add", "user", alice, f"account={name}"))
    yield name
    sandbox.run("slurm", ("scancel", "-A", name))
    sandbox.run("root", ("slicewise", "tenant-quota", "set", name, "--nominal", "0"))


def set_quota(sandbox: Sandbox, tenant: str, nominal: str) -> dict[str, Any]:
    argv = ("slicewise", "tenant-quota", "set", tenant, "--nominal", nominal, "--json")
    change = json.loads(sandbox.run("root", argv).stdout)
    # On a busy machine the command may have stopped waiting before.
    eventually(lambda: shown(sandbox, tenant)["in_force"])
    return change


def refused(sandbox: Sandbox, *argv: str) -> str:
    answer = sandbox.run("root", ("slicewise", *argv), check=False)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    return answer.stderr


def statement(sandbox: Sandbox, tenant: str) -> dict[str, Any]:
    argv = ("slicewise", "ledger", "statement", tenant, "--json")
    return json.loads(sandbox.run("root", argv).stdout)


def enforced(sandbox: Sandbox, account: str) -> str:
    """What slurmctld itself limits the account to: slurmdbd's word would not be enough."""
    argv = ("scontrol", "show", "assoc_mgr", f"accounts={account}", "flags=assoc", "--oneliner")
    lines = sandbox.run("slurm", argv).stdout.splitlines()
    (own,) = (line for line in lines if f"Account={account} UserName= " in line)
    return own.split("GrpTRES=", 1)[1].split("billing=", 1)[1].split("(", 1)[0]


def submit(sandbox: Sandbox, account: str, *options: str, seconds: int) -> str:
    argv = ("sbatch", "--parsable", f"--account={account}", "--gres=gpu:1g.10gb:1", *options)
    script = f"#!/bin/sh\nsleep {seconds}\n"
    argv = (*argv, "--output=/dev/null")
    return sandbox.run("alice", argv, input=script).stdout.strip()


def states(sandbox: Sandbox, account: str) -> list[str]:
    argv = ("squeue", "--noheader", "--array", f"--account={account}", "--format=%T")
    return sandbox.run("slurm", argv).stdout.split()


def eventually(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, "it never came true"
        time.sleep(0.3)


def test_a_quota_is_in_slurmctld_when_the_command_says_so(sandbox: Sandbox, account: str):
    for nominal, billing in (("2", "2000"), ("3.5", "3500"), ("0", "0")):
        change = set_quota(sandbox, account, nominal)
        assert change["nominal_millislices"] == int(billing)
        assert enforced(sandbox, account) == billing
    argv = ("slicewise", "tenant-quota", "history", account, "--json")
    history = json.loads(sandbox.run("root", argv).stdout)
    assert [change["nominal_millislices"] for change in history] == [0, 3500, 2000]


def shown(sandbox: Sandbox, tenant: str) -> dict[str, Any]:
    argv = ("slicewise", "tenant-quota", "show", tenant, "--json")
    return json.loads(sandbox.run("root", argv).stdout)


def test_an_account_without_a_quota_may_run_nothing(sandbox: Sandbox, account: str):
    eventually(lambda: enforced(sandbox, account) == "0")


def test_bad_input_is_explained_and_writes_nothing(sandbox: Sandbox, account: str):
    unknown = refused(sandbox, "tenant-quota", "set", "nobody", "--nominal", "3")
    assert "SW-TENANT-UNKNOWN" in unknown
    assert "vision" in unknown
    for nominal, code in (("-1", "SW-UNITS"), ("9999999", "SW-QUOTA-RANGE"), ("1e9", "SW-UNITS")):
        assert code in refused(sandbox, "tenant-quota", "set", account, f"--nominal={nominal}")
    for command in ("show", "history"):
        assert "SW-QUOTA-NONE" in refused(sandbox, "tenant-quota", command, account)
    assert "SW-TENANT-UNKNOWN" in refused(sandbox, "ledger", "statement", "nobody")


def test_limits_hold_and_every_run_is_charged_as_accounting_has_it(sandbox: Sandbox, account: str):
    set_quota(sandbox, account, "2")
    array = submit(sandbox, account, "--array=0-4", "--time=5", seconds=4)
    eventually(lambda: "RUNNING" in states(sandbox, account))
    assert shown(sandbox, account)["nominal_millislices"] == 2000
    most = 0
    while remaining := states(sandbox, account):
        most = max(most, remaining.count("RUNNING"))
        time.sleep(0.3)
    assert most == 2

    set_quota(sandbox, account, "4")
    cancelled = submit(sandbox, account, "--time=5", seconds=600)
    requeued = submit(sandbox, account, "--time=5", seconds=600)
    extended = submit(sandbox, account, "--time=5", seconds=600)
    eventually(lambda: states(sandbox, account).count("RUNNING") == 3)
    eventually(lambda: len(open_runs(sandbox, account)) == 3)
    time.sleep(2)
    reserved_ms = reserved(sandbox, account, extended)
    sandbox.run("slurm", ("scontrol", "update", f"JobId={extended}", "TimeLimit=9"))
    eventually(lambda: reserved(sandbox, account, extended) == reserved_ms + 4 * 60 * 1000)
    sandbox.run("slurm", ("scontrol", "requeue", requeued))
    eventually(lambda: states(sandbox, account).count("RUNNING") == 3)
    sandbox.run("alice", ("scancel", cancelled, extended, requeued))

    eventually(lambda: not states(sandbox, account))
    eventually(lambda: not open_runs(sandbox, account))
    runs = {(run["job_id"], run["start_s"]): run for run in statement(sandbox, account)["runs"]}
    expected = accounting(sandbox, account)
    assert {key: run["used_millislice_s"] for key, run in runs.items()} == expected
    assert len([key for key in expected if key[0] == int(requeued)]) == 2
    assert {run["task"] for run in runs.values()} >= {f"{array}_{i}" for i in range(5)}
    verify = ("slicewise", "ledger", "verify", "--json")
    assert json.loads(sandbox.run("root", verify).stdout) == {"imbalance_millislice_s": 0}


def open_runs(sandbox: Sandbox, account: str) -> list[dict[str, Any]]:
    try:
        found = statement(sandbox, account)["runs"]
    except subprocess.CalledProcessError:  # Nothing was ever charged yet.
        return []
    return [run for run in found if run["end_s"] is None]


def reserved(sandbox: Sandbox, account: str, job: str) -> int:
    """All that is set aside for a running job: what it has used so far and the rest."""
    (run,) = (run for run in open_runs(sandbox, account) if run["job_id"] == int(job))
    return int(run["used_millislice_s"] + run["reserved_millislice_s"])


def accounting(sandbox: Sandbox, account: str) -> dict[tuple[int, int], int]:
    """Millislice-seconds by job and start as sacct has them."""
    runs = (run for run in accounted_runs(sandbox) if run.account == account)
    return {(run.job_id, run.start_s): run.used_millislice_s for run in runs}
