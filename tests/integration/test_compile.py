"""From a quota to Slurm's limits, from Slurm's accounting to the statement: on the sandbox.

Only what a real Slurm has to show: the rest is tried on the model (``tests/model``)."""

import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from quotas import (
    forget_tenant,
    record_quota,
    recorded_nominal,
    until_daemon_leads,
    until_in_force,
)
from run_folder import path_for
from second_witness import accounted_runs
from waiting import until, until_is

from slicewise.cluster.language.codes import Code
from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration


@pytest.fixture
def account(sandbox: Sandbox) -> Iterator[str]:
    """A Slurm account of its own for alice; no tenant any more afterwards."""
    with tenant_account(sandbox) as name:
        yield name


@contextmanager
def tenant_account(sandbox: Sandbox, parent: str = "root") -> Iterator[str]:
    name = f"lab{uuid4().hex[:8]}"
    alice = sandbox.state.users["alice"].name
    sandbox.run("slurm", ("sacctmgr", "-i", "add", "account", name, f"parent={parent}"))
    sandbox.run("slurm", ("sacctmgr", "-i", "add", "user", alice, f"account={name}"))
    try:
        yield name
    finally:
        sandbox.run("slurm", ("scancel", "-A", name))
        forget_tenant(sandbox, name)


@pytest.fixture
def without_daemon(sandbox: Sandbox) -> Iterator[None]:
    """Nobody compiles but the test."""
    sandbox.stop("daemon")
    yield
    sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
    until_daemon_leads(sandbox)


@pytest.fixture
def admission_off(sandbox: Sandbox) -> Iterator[None]:
    """slicewise.lua gives no job a QOS."""
    sandbox.run("root", ("slicewise", "admission", "off"))
    yield
    sandbox.run("root", ("slicewise", "admission", "on"))


@pytest.fixture
def installed_again(sandbox: Sandbox) -> Iterator[None]:
    """For the tests after it."""
    yield
    compiled(sandbox, "--again")


def set_quota(sandbox: Sandbox, tenant: str, nominal: str, *options: str) -> dict[str, Any]:
    argv = ("slicewise", "tenant-quota", "set", tenant, "--nominal", nominal, *options, "--json")
    change = json.loads(sandbox.run("root", argv).stdout)
    # On a busy machine the command may have stopped waiting before.
    until_in_force(sandbox, tenant)
    return change


def refused(sandbox: Sandbox, *argv: str) -> str:
    answer = sandbox.run("root", ("slicewise", *argv), check=False)
    assert "Traceback" not in answer.stderr
    assert answer.returncode == Code(answer.stderr.splitlines()[-1]).exit_code
    return answer.stderr


def statement(sandbox: Sandbox, tenant: str) -> dict[str, Any]:
    argv = ("slicewise", "ledger", "statement", tenant, "--journal", "--json")
    return json.loads(sandbox.run("root", argv).stdout)


def enforced(sandbox: Sandbox, account: str, end: str = "") -> str:
    """What slurmctld limits its own QOS to, or its borrowed one: slurmdbd's word would not do."""
    argv = ("scontrol", "show", "assoc_mgr", f"qos=slicewise_{account}{end}", "flags=qos")
    shown = sandbox.run("slurm", argv).stdout
    return shown.split("GrpTRES=", 1)[1].split("billing=", 1)[1].split("(", 1)[0]


def submit(
    sandbox: Sandbox, account: str, *options: str, seconds: int, once: Path = Path("/")
) -> str:
    """A job of so many seconds, once that file is there."""
    argv = ("sbatch", "--parsable", f"--account={account}", "--gres=gpu:1g.10gb:1", *options)
    script = f"#!/bin/sh\nuntil [ -e {once} ]; do sleep 0.2; done\nsleep {seconds}\n"
    argv = (*argv, "--output=/dev/null")
    return sandbox.run("alice", argv, input=script).stdout.strip()


def states(sandbox: Sandbox, account: str) -> list[str]:
    argv = ("squeue", "--noheader", "--array", f"--account={account}", "--format=%T")
    return sandbox.run("slurm", argv).stdout.split()


def running(sandbox: Sandbox, account: str) -> Counter[str]:
    """How many jobs of the account run in which QOS."""
    where = (f"--account={account}", "--states=running")
    argv = ("squeue", "--noheader", "--array", *where, "--format=%q")
    return Counter(sandbox.run("slurm", argv).stdout.split())


def reasons(sandbox: Sandbox, account: str) -> set[str]:
    """Why its jobs wait."""
    where = (f"--account={account}", "--states=pending")
    argv = ("squeue", "--noheader", "--array", *where, "--format=%r")
    return set(sandbox.run("slurm", argv).stdout.split())


def sacctmgr(sandbox: Sandbox, *words: str) -> None:
    sandbox.run("root", ("sacctmgr", "-i", *words))


COMPILE = (sys.executable, "-m", "slicewise.sandbox.compile_main")
"""Compiles as the daemon does, without one."""


def compiled(sandbox: Sandbox, *options: str) -> dict[str, Any]:
    return json.loads(sandbox.run("root", (*COMPILE, *options)).stdout)


def accounting_database(sandbox: Sandbox) -> tuple[list[str], str]:
    """Slurm's own dump of its accounts, which leaves out the QOS; and those."""
    path = path_for(f"dump-{uuid4().hex}")
    sandbox.run("root", ("sacctmgr", "dump", "sandbox", f"file={path}"))
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    path.unlink()
    return lines, sandbox.run("root", ("sacctmgr", "-n", "-P", "show", "qos")).stdout


@pytest.mark.promise("A quota is in force in Slurm when tenant-quota set says so.")
def test_a_quota_is_in_slurmctld_when_the_command_says_so(sandbox: Sandbox, account: str):
    for nominal, billing in (("2", "2000"), ("3.5", "3500"), ("0", "0")):
        change = set_quota(sandbox, account, nominal)
        assert change["after"]["quota"]["nominal_millislices"] == int(billing)
        assert enforced(sandbox, account) == billing
    argv = ("slicewise", "tenant-quota", "history", account, "--json")
    history = json.loads(sandbox.run("root", argv).stdout)
    assert [change["update"]["nominal_millislices"] for change in history] == [0, 3500, 2000]


def shown(sandbox: Sandbox, tenant: str) -> dict[str, Any]:
    argv = ("slicewise", "tenant", "show", tenant, "--json")
    return json.loads(sandbox.run("root", argv).stdout)


@pytest.mark.usefixtures("admission_off")
def test_what_is_in_another_qos_waits_at_the_gate(sandbox: Sandbox, account: str):
    """Whether its account has a quota or none; without GPUs it may run."""
    for nominal in ("0", "3"):
        set_quota(sandbox, account, nominal)
        submit(sandbox, account, seconds=600)
    plain = ("sbatch", f"--account={account}", "--output=/dev/null", "--wrap=sleep 600")
    sandbox.run("alice", plain)
    until_is(lambda: reasons(sandbox, account), {"QOSGrpBilling"})
    until_is(lambda: states(sandbox, account).count("RUNNING"), 1)


def test_a_coordinators_account_with_a_bracket_stops_no_limit(sandbox: Sandbox, account: str):
    """Of several names sacctmgr takes all behind an open bracket for one."""
    set_quota(sandbox, account, "2")
    alice = sandbox.state.users["alice"].name
    sacctmgr(sandbox, "add", "coordinator", f"account={account}", f"names={alice}")
    odd, own = f"a{account}[", f"{account}below"
    made = ("sacctmgr", "-i", "add", "account")
    try:
        sandbox.run("alice", (*made, f"name={odd}", f"parent={account}"))
        sandbox.run("alice", (*made, f"name={own}", f"parent={account}"))
        names = sandbox.run("root", ("sacctmgr", "-nP", "show", "account", "format=Account"))
        assert odd in names.stdout.splitlines()
        # In force in slurmctld when the command ends, of accounts made later, too.
        set_quota(sandbox, account, "3")
        assert enforced(sandbox, account) == "3000"
        # Nothing is to be told of it: it inherits what its tenant may use.
        assert not [text for text in compiled(sandbox)["warnings"] if "given to sacctmgr" in text]
    finally:
        sacctmgr(sandbox, "delete", "account", f"name={account}")


def test_a_coordinators_names_forge_no_membership_and_no_limit(sandbox: Sandbox, account: str):
    """Slurm takes line breaks in names; nlp is another tenant's, and root knows what alice sets."""
    set_quota(sandbox, account, "2")
    set_quota(sandbox, "nlp", "2")
    alice = sandbox.state.users["alice"].name
    sacctmgr(sandbox, "add", "coordinator", f"account={account}", f"names={alice}")
    member = f"x{account}\nsandbox|nlp|{alice}||nlp||||\ny"
    limit = f"z{account}\nsandbox|{account}|||root|normal|slicewise_{account}|billing=1000|\ny"
    try:
        for name in (member, limit):
            made = ("sacctmgr", "-i", "add", "account", f"name={name}", f"parent={account}")
            sandbox.run("alice", made)
        user = ("sacctmgr", "-i", "add", "user", f"name=u{member}", f"account={account}")
        sandbox.run("alice", user)
        set_quota(sandbox, account, "1")
        assert enforced(sandbox, account) == "1000"
        asked = ("slicewise", "key", "create", "nlp", "--name", "mine")
        answer = sandbox.run("alice", asked, check=False)
        assert "SW-TENANT-UNKNOWN" in answer.stderr, answer.stdout
    finally:
        sacctmgr(sandbox, "delete", "user", f"name=u{member}")
        sacctmgr(sandbox, "delete", "account", f"name={account}")


@pytest.mark.promise(
    "The statement has each run as Slurm's accounting has it, to the millislice-second."
)
def test_limits_hold_and_every_run_is_charged_as_accounting_has_it(sandbox: Sandbox, account: str):
    set_quota(sandbox, account, "2")
    # The first two run side by side however late Slurm starts the second.
    home = sandbox.layout.home / sandbox.state.users["alice"].name
    go_on = home / f"go-on-{account}"
    array = submit(sandbox, account, "--array=0-4", "--time=5", seconds=4, once=go_on)
    until_is(lambda: states(sandbox, account).count("RUNNING"), 2)
    assert shown(sandbox, account)["nominal_millislices"] == 2000
    go_on.touch()
    until(lambda: not states(sandbox, account))
    go_on.unlink()
    until_is(lambda: len(accounting(sandbox, account)), 5)
    assert most_at_once(sandbox, account) == 2

    set_quota(sandbox, account, "4")
    cancelled = submit(sandbox, account, "--time=5", seconds=600)
    requeued = submit(sandbox, account, "--time=5", seconds=600)
    extended = submit(sandbox, account, "--time=5", seconds=600)
    until_is(lambda: states(sandbox, account).count("RUNNING"), 3)
    until_is(lambda: len(open_runs(sandbox, account)), 3)
    until_is(lambda: reserved(sandbox, account, extended), 5 * 60 * 1000)
    sandbox.run("slurm", ("scontrol", "update", f"JobId={extended}", "TimeLimit=9"))
    until_is(lambda: reserved(sandbox, account, extended), 9 * 60 * 1000)
    sandbox.run("slurm", ("scontrol", "requeue", requeued))
    until_is(lambda: states(sandbox, account).count("RUNNING"), 3)
    sandbox.run("alice", ("scancel", cancelled, extended, requeued))

    until(lambda: not states(sandbox, account))
    until_is(lambda: len(accounting(sandbox, account)), 5 + 3 + 1)
    until_is(lambda: charged(sandbox, account), accounting(sandbox, account))
    assert [job_id for job_id, _ in charged(sandbox, account)].count(int(requeued)) == 2
    runs = statement(sandbox, account)["runs"]
    assert {run["task"] for run in runs} >= {f"{array}_{i}" for i in range(5)}
    verify = ("slicewise", "ledger", "verify", "--json")
    assert json.loads(sandbox.run("root", verify).stdout)["imbalance"] == 0


def test_types_and_budgets_bind(sandbox: Sandbox, account: str):
    set_quota(sandbox, account, "5", "--limit", "1g.10gb=1")
    for _ in range(2):
        submit(sandbox, account, "--time=5", seconds=600)
    until_is(lambda: running(sandbox, account).total(), 1)
    until(lambda: reasons(sandbox, account) & {"AssocGrpGRES", "AssocGrpGRESLimit"})
    budget = ("slicewise", "budget")
    argv = (*budget, "set", account, "--period", "none", "--amount", "0")
    sandbox.run("root", argv)
    # A budget limits nothing before it has begun: the second job would start.
    until(lambda: run_minutes(sandbox, account)[1])
    set_quota(sandbox, account, "5", "--limit", "1g.10gb=none")
    until_is(lambda: reasons(sandbox, account), {"QOSGrpBillingRunMinutes"})
    sandbox.run("root", (*budget, "grant", account, "--amount", "10", "--reason", "test"))
    until_is(lambda: running(sandbox, account).total(), 2)


def run_minutes(sandbox: Sandbox, account: str) -> list[str]:
    """What slurmdbd has of its account, its own QOS and its borrowed one."""
    names = f"slicewise_{account},slicewise_{account}_borrowed"
    show = ("sacctmgr", "-nP", "show")
    whose = (("assoc", f"account={account}", "user="), ("qos", names))
    found = (sandbox.run("root", (*show, *one, "format=grptresrunmins")).stdout for one in whose)
    return [line for text in found for line in text.removesuffix("\n").split("\n")]


@pytest.mark.usefixtures("without_daemon")
def test_a_change_by_hand_is_told_and_put_back(sandbox: Sandbox, account: str, tmp_path: Path):
    record_quota(sandbox, account, 3)
    compiled(sandbox)
    sacctmgr(sandbox, "modify", "qos", f"slicewise_{account}", "set", "grptres=billing=4000")
    more = "\n[lending]\nterm_s = 150\n"
    (tmp_path / "slicewise.toml").write_text(sandbox.layout.settings_file.read_text() + more)
    config = f"SLICEWISE_CONFIG={tmp_path}/slicewise.toml"
    argv = ("env", config, *COMPILE)
    (told,) = json.loads(sandbox.run("root", argv).stdout)["changed_by_hand"]
    assert (told["name"], told["was"], told["now"]) == (f"slicewise_{account}", "3000", "4000")
    assert enforced(sandbox, account) == "3000"
    assert recorded_nominal(sandbox, account) == 3000
    assert exempt_time(sandbox, account) == "00:02:30"
    assert compiled(sandbox)["changed_by_hand"] == []
    assert exempt_time(sandbox, account) == ""


def test_what_is_proposed_for_a_limited_account_is_taken_over_as_it_stands(
    sandbox: Sandbox, account: str, tmp_path: Path
):
    limits = "GrpTRES=gres/gpu:1g.10gb=2,gres/gpu:3g.40gb=1"
    sacctmgr(sandbox, "modify", "account", account, "set", limits, "GrpTRESMins=gres/gpu=60")
    before = account_limits(sandbox, account)[:3]
    dump = path_for(f"dump-{uuid4().hex}")
    sandbox.run("root", ("sacctmgr", "dump", "sandbox", f"file={dump}"))
    quotas = tmp_path / "quotas.toml"
    proposed = ("slicewise", "tenant-quota", "propose", str(dump), "--gpu", "7")
    text = sandbox.run("root", proposed).stdout
    dump.unlink()
    # Those of other accounts are not what this is about.
    (table,) = [one for one in text.split("\n\n") if one.startswith(f"[tenants.{account}]")]
    quotas.write_text(table)
    sandbox.run("root", ("slicewise", "tenant-quota", "apply", str(quotas)))
    assert recorded_nominal(sandbox, account) == 5500
    until_in_force(sandbox, account)
    log = sandbox.layout.log / "daemon.log"
    assert f'of="account {account}"' not in log.read_text()
    assert compiled(sandbox)["changed_by_hand"] == []
    assert account_limits(sandbox, account)[:3] == before
    assert enforced(sandbox, account) == "5500"


def account_limits(sandbox: Sandbox, account: str) -> list[str]:
    """GrpTRES, GrpTRESMins, GrpSubmitJobs and QOS of an account."""
    where = ("where", f"account={account}", "user=")
    fields = "format=grptres,grptresmins,grpsubmitjobs,qos"
    argv = ("sacctmgr", "-n", "-P", "show", "assoc", *where, fields)
    return sandbox.run("root", argv).stdout.strip().split("|")


def waldur(sandbox: Sandbox, account: str, way: str, step: str) -> None:
    """Send what Waldur's agent has sent to change limits and QOS."""
    recorded = Path(__file__).parents[1] / "assets" / "waldur" / "commands.txt"
    _, _, section = recorded.read_text().partition(f"\n# {way}\n")
    _, _, commands = section.partition(f"## {step}\n")
    own = {"hpc_alloc": account, "cluster=default": "cluster=sandbox"}
    for command in commands.partition("#")[0].splitlines():
        words = [own.get(word, word) for word in shlex.split(command)]
        if "modify" in words or words[4:6] == ["add", "qos"]:
            sandbox.run("root", words)


@pytest.fixture
def qos_of_waldur(sandbox: Sandbox, account: str) -> Iterator[None]:
    yield
    # First: of a list that names a QOS when it is deleted, slurmdbd joins the ids beside it.
    sacctmgr(sandbox, "modify", "account", account, "set", "qos-=paused,limited")
    sacctmgr(sandbox, "delete", "qos", "paused,limited")


@pytest.mark.usefixtures("without_daemon", "qos_of_waldur")
def test_waldurs_limits_stay_and_of_its_two_ways_to_pause_one_holds(sandbox: Sandbox, account: str):
    record_quota(sandbox, account, 3)
    compiled(sandbox)
    ours = account_limits(sandbox, account)[3]
    for step in ("make", "periodic"):
        waldur(sandbox, account, "swap", step)
    waldur(sandbox, account, "lever", "pause")
    set_by_it = account_limits(sandbox, account)
    held, minutes, submits, qos = set_by_it
    assert set(held.split(",")) == {"billing=9000", "gres/gpu=4"}
    assert (minutes, submits, qos) == ("cpu=600000,gres/gpu=60000", "0", ours)
    seen = compiled(sandbox)
    assert (seen["changes"], seen["changed_by_hand"]) == ([], [])
    assert account_limits(sandbox, account) == set_by_it
    # Paused, the account may submit nothing, whatever its quota.
    job = ("sbatch", f"--account={account}", "--gres=gpu:1g.10gb:1", "--wrap=true")
    assert "AssocGrpSubmitJobsLimit" in sandbox.run("alice", job, check=False).stderr
    waldur(sandbox, account, "lever", "restore")
    # The other way takes Slicewise's QOS away, and they come back.
    waldur(sandbox, account, "swap", "pause")
    assert account_limits(sandbox, account)[2:] == ["", "paused"]
    compiled(sandbox)
    back = [f"slicewise_{account}", f"slicewise_{account}_borrowed"]
    assert account_limits(sandbox, account)[3].split(",") == ["paused", *back]


def exempt_time(sandbox: Sandbox, account: str) -> str:
    """Of what runs on borrowed quota."""
    where = ("qos", f"slicewise_{account}_borrowed", "format=preemptexempttime")
    return sandbox.run("root", ("sacctmgr", "-n", "-P", "show", *where)).stdout.strip()


@pytest.mark.usefixtures("without_daemon", "admission_off", "installed_again")
def test_uninstalling_leaves_no_trace_though_both_ways_are_killed(sandbox: Sandbox, account: str):
    uninstall = ("slicewise", "uninstall", "--yes")
    record_quota(sandbox, account, 2)
    compiled(sandbox)
    for _ in range(3):
        submit(sandbox, account, f"--qos=slicewise_{account}", "--time=5", seconds=600)
    until_is(lambda: running(sandbox, account).total(), 2)
    # The gate is open, and what is in its QOS goes on, within its limits.
    assert len(uninstalled(sandbox)) == 2
    submit(sandbox, account, "--qos=normal", "--time=5", seconds=600)
    until_is(lambda: dict(running(sandbox, account)), {f"slicewise_{account}": 2, "normal": 1})
    until_is(lambda: reasons(sandbox, account), {"QOSGrpBilling"})
    sandbox.run("slurm", ("scancel", f"--account={account}"))
    until(lambda: not states(sandbox, account))
    # The gate's QOS stays as long as the partition has it.
    assert len(uninstalled(sandbox)) == 1
    assert our_qos(sandbox) == ["slicewise_gate"]

    # What still runs sets nothing again.
    left = accounting_database(sandbox)
    run = json.loads(sandbox.run("root", ("slicewise", "rebalance", "--json")).stdout)
    why = {one["step"]: one["why"] for one in run["steps"]}
    assert "SW-UNINSTALLED" in why["compile"]
    assert "SW-UNINSTALLED" in sandbox.run("root", COMPILE, check=False).stderr
    assert "SW-DAEMON-DOWN" in refused(sandbox, "compile")
    assert accounting_database(sandbox) == left
    compiled(sandbox, "--again")
    assert enforced(sandbox, account) == "2000"
    assert our_qos(sandbox) != ["slicewise_gate"]
    uninstalled(sandbox)

    limits = ("grptres=billing=5000,cpu=20", "grptresrunmins=billing=99")
    sacctmgr(sandbox, "modify", "account", account, "set", *limits)
    before = accounting_database(sandbox)
    for argv in ((*COMPILE, "--again"), uninstall):
        for _ in range(3):
            program = sandbox.popen("root", argv, stdout=subprocess.DEVNULL)
            time.sleep(random.uniform(0.8, 2.0))  # noqa: S311 -- no secret
            program.kill()
            program.wait()
        last = sandbox.run("root", argv)
        assert not last.stderr
        if argv != uninstall:
            assert enforced(sandbox, account) == "2000"
    assert accounting_database(sandbox) == before


def finished(sandbox: Sandbox) -> dict[str, Any]:
    """What it says while something stays."""
    argv = ("slicewise", "uninstall", "--finish", "--json")
    done = sandbox.run("root", argv, check=False)
    assert done.returncode == os.EX_TEMPFAIL
    return dict(json.loads(done.stdout))


@pytest.mark.usefixtures("admission_off", "installed_again")
def test_uninstalling_works_without_the_ledger(sandbox: Sandbox, account: str):
    set_quota(sandbox, account, "2")
    submit(sandbox, account, f"--qos=slicewise_{account}", "--time=5", seconds=600)
    until_is(lambda: running(sandbox, account).total(), 1)
    sandbox.stop("daemon")
    borrowed = f"slicewise_{account}_borrowed"
    submit(sandbox, account, f"--qos={borrowed}", "--time=5", seconds=600)
    sandbox.stop("postgres")
    mark = "slicewise_uninstalled_sandbox"
    try:
        waits = uninstalled(sandbox)
        assert our_qos(sandbox) == ["slicewise_gate", f"slicewise_{account}", mark]
        assert f"sacctmgr remove qos {mark}" in waits[-1]
        assert enforced(sandbox, account) == "2000"
        # What stands there is enough for it.
        until_is(lambda: dict(running(sandbox, account)), {f"slicewise_{account}": 2})
        sandbox.run("slurm", ("scancel", f"--account={account}"))
        until(lambda: not states(sandbox, account))
        assert finished(sandbox)["in_use"] == {}
        assert our_qos(sandbox) == ["slicewise_gate", mark]
    finally:
        sandbox.restore(print)
    # With the ledger the daemon puts back what only that knows, and goes on.
    until_is(lambda: our_qos(sandbox), ["slicewise_gate"])
    until_is(lambda: standing(sandbox)["is_uninstalled"], True)
    assert "SW-UNINSTALLED" in refused(sandbox, "compile")
    left = accounting_database(sandbox)
    sandbox.run("root", ("slicewise", "rebalance"))
    assert accounting_database(sandbox) == left
    sandbox.run("root", ("slicewise", "compile", "--again"))
    assert enforced(sandbox, account) == "2000"
    until_is(lambda: standing(sandbox)["is_uninstalled"], False)


def standing(sandbox: Sandbox) -> dict[str, Any]:
    found = sandbox.run("root", ("slicewise", "admission", "status", "--json")).stdout
    return dict(json.loads(found)["daemon"])


def our_qos(sandbox: Sandbox) -> list[str]:
    lines = accounting_database(sandbox)[1].splitlines()
    return sorted(line.partition("|")[0] for line in lines if line.startswith("slicewise_"))


def uninstalled(sandbox: Sandbox) -> list[str]:
    """What has to wait."""
    found = sandbox.run("root", ("slicewise", "uninstall", "--yes", "--json")).stdout
    return list(json.loads(found)["waits"])


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


def most_at_once(sandbox: Sandbox, account: str) -> int:
    """How many of its runs ran side by side, as sacct has them: no look can miss one."""
    runs = [run for run in accounted_runs(sandbox) if run.account == account]
    return max(sum(run.start_s <= at.start_s < run.end_s for run in runs) for at in runs)


def charged(sandbox: Sandbox, account: str) -> dict[tuple[int, int], int]:
    """Millislice-seconds by job and start of what has ended."""
    return {
        (run["job_id"], run["start_s"]): run["used_millislice_s"]
        for run in statement(sandbox, account)["runs"]
        if run["end_s"]
    }


def accounting(sandbox: Sandbox, account: str) -> dict[tuple[int, int], int]:
    """The same, as sacct has it."""
    runs = (run for run in accounted_runs(sandbox) if run.account == account)
    return {(run.job_id, run.start_s): run.used_millislice_s for run in runs}
