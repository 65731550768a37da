"""`slicewise why` and `slicewise sbatch` on the sandbox: numbers, estimates, who sees what."""

import json
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from datetime import time as clock_time
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from quotas import until_in_force
from terminal import terminal
from waiting import PATIENCE_S, until, until_is

from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

WRAPPED = ("slicewise", "sbatch")
TARIFF = """\
valid_from = {tomorrow}
currency = "EUR"
[prices]
slice_hour = 0.36
[[windows]]
name = "night"
begin = "01:00"
end = "05:00"
factor = 0.5
"""
NIGHT = clock_time(1)
_DAY_S = 86400
_PLAN_S = 120
"""Slurm plans in whole minutes, and from the next look on."""
_WIDTH = 40
"""Characters of a column of squeue."""
_SHORT_MINUTES = 15
"""The other jobs are submitted, seen and explained within it. Then it is made shorter."""


class Tenant:
    """An account of alice's, with a quota; bob is not in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.name = f"lab{uuid4().hex[:8]}"
        alice = sandbox.state.users["alice"].name
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "account", self.name))
        sandbox.run("slurm", ("sacctmgr", "-i", "add", "user", alice, f"account={self.name}"))

    def give(self, nominal: str, *more: str) -> None:
        quota = ("slicewise", "tenant-quota", "set", self.name, "--nominal", nominal, *more)
        self.sandbox.run("root", quota)
        until_in_force(self.sandbox, self.name)

    def submit(self, *options: str, gpus: str = "1g.10gb", seconds: int = 600) -> str:
        where = (f"--account={self.name}", f"--gres=gpu:{gpus}:1", "--output=/dev/null")
        script = f"#!/bin/sh\nsleep {seconds}\n"
        argv = ("sbatch", "--parsable", *where, *options)
        return self.sandbox.run("alice", argv, input=script).stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        fields = ("state", "reason", "starttime", "endtime")
        shown = ",".join(f"{field}:{_WIDTH}" for field in fields)
        argv = ("squeue", "--noheader", "-j", number, "--states=all", "-O", shown)
        line = self.sandbox.run("slurm", argv).stdout
        # A reason may have several words: "Nodes required for job are DOWN, ...".
        cells = (line[_WIDTH * nth :][:_WIDTH].strip() for nth in range(len(fields)))
        return dict(zip(fields, cells, strict=True))

    def waits(self, number: str, reason: str) -> None:
        until_is(lambda: self.job(number)["reason"], reason)

    def runs(self, number: str) -> None:
        until_is(lambda: self.job(number)["state"], "RUNNING")

    def why(self, about: str, user: str = "alice") -> dict[str, Any]:
        """What it says as soon as the daemon has seen it."""
        argv = ("slicewise", "why", about, "--json")
        until_is(lambda: self.sandbox.run(user, argv, check=False).returncode, 0)
        return json.loads(self.sandbox.run(user, argv).stdout)


@contextmanager
def a_tenant(sandbox: Sandbox) -> Iterator[Tenant]:
    tenant = Tenant(sandbox)
    yield tenant
    sandbox.run("slurm", ("scancel", "-A", tenant.name))
    sandbox.run("root", ("slicewise", "tenant", "delete", tenant.name, "--yes"), check=False)


@pytest.fixture
def lab(sandbox: Sandbox) -> Iterator[Tenant]:
    with a_tenant(sandbox) as tenant:
        yield tenant


def second(text: str) -> int:
    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


def asked_in_vain(sandbox: Sandbox, user: str, about: str) -> str:
    answer = sandbox.run(user, ("slicewise", "why", about), check=False)
    assert (answer.returncode, answer.stdout) == (4, "")
    assert "SW-FORBIDDEN" in answer.stderr
    return answer.stderr.replace(about, "X")


@dataclass(frozen=True)
class Wait:
    """A tenant with two slices, the jobs that hold them, by their ends, and one that waits."""

    lab: Tenant
    short: str
    long: str
    waiting: str
    ends_s: dict[str, int]

    def shorten(self) -> None:
        """Give the short job the shortest time limit that is not over yet, unless it has ended.

        Its end would else be in the past, and the job that waits would seem to start too late.
        """
        ran_s = time.time() - second(self.lab.job(self.short)["starttime"])
        minutes = min(int(ran_s // 60) + 1, _SHORT_MINUTES)
        limit = (f"JobId={self.short}", f"TimeLimit={minutes}")
        self.lab.sandbox.run("alice", ("scontrol", "update", *limit), check=False)
        self.ends_s[self.short] = second(self.lab.job(self.short)["endtime"])


@pytest.fixture(scope="module")
def wait(sandbox: Sandbox) -> Iterator[Wait]:
    with a_tenant(sandbox) as lab:
        lab.give("2")
        short = lab.submit(f"--time={_SHORT_MINUTES}", seconds=60 * _SHORT_MINUTES + 600)
        lab.runs(short)
        long = lab.submit("--time=30", seconds=1800)
        lab.runs(long)
        waiting = lab.submit("--time=10")
        lab.waits(waiting, "QOSGrpBilling")
        ends_s = {number: second(lab.job(number)["endtime"]) for number in (short, long)}
        yield Wait(lab, short, long, waiting, ends_s)


@pytest.fixture
def explained(wait: Wait) -> Iterator[Wait]:
    """The wait; the short job's end comes sooner once the test has ended, however it ended."""
    yield wait
    wait.shorten()


@pytest.mark.promise("slicewise why says in words and numbers why a job waits, and when it starts.")
def test_quota_with_its_numbers_and_an_estimate(sandbox: Sandbox, explained: Wait):
    wait = explained
    lab, waiting, ends_s = wait.lab, wait.waiting, wait.ends_s
    alice = sandbox.state.users["alice"].name
    until_is(lambda: lab.why(waiting)["reason"], "QOSGrpBilling")
    found = lab.why(waiting)
    assert f"The jobs of {lab.name} in QOS slicewise_{lab.name} hold 2 of 2 slices" in str(found)
    (table,) = found["tables"]
    assert [(row["what"], row["amount_millislices"], row["ends_s"]) for row in table["rows"]] == [
        (f"job {number} of {alice}", 1000, ends_s[number]) for number in (wait.short, wait.long)
    ]
    assert found["start_s"] >= ends_s[wait.short]
    assert lab.why(waiting, "root")["tables"] == found["tables"]

    tenant = lab.why(lab.name)
    assert tenant["headline"] == f"{lab.name} holds 2 of 2 slices; 1 job waits."


def test_a_job_that_can_wait_begins_when_it_costs_least(sandbox: Sandbox, lab: Tenant) -> None:
    lab.give("1")
    zone = ZoneInfo(load_settings(sandbox.layout.settings_file).ledger.time_zone)
    tomorrow = datetime.now(zone).date() + timedelta(days=1)
    file = TARIFF.format(tomorrow=tomorrow)
    sandbox.run("root", ("slicewise", "tariff", "apply", "-", "--yes"), input=file)
    job = ("--time=3:00:00", "--deadline=now+3days")
    asked = ("slicewise", "cheapest", "--tenant", lab.name, "--gres=gpu:1g.10gb:1", *job)
    best = json.loads(sandbox.run("alice", (*asked, "--json")).stdout)["cheapest"]
    assert datetime.fromtimestamp(best["at_s"], zone) == datetime.combine(tomorrow, NIGHT, zone)
    begin = sandbox.run("alice", (*asked, "--begin")).stdout.strip()
    number = lab.submit(*job, f"--begin={begin}")
    lab.waits(number, "BeginTime")
    found = lab.why(number)
    assert "its begin time has not come" in found["headline"]
    assert found["start_s"] == best["at_s"]


@pytest.mark.promise("No user learns of another tenant's jobs.")
def test_nobody_else_learns_that_a_job_or_tenant_exists(sandbox: Sandbox, lab: Tenant):
    lab.give("1")
    job = lab.submit("--hold", "--time=5")
    lab.waits(job, "JobHeldUser")
    assert lab.why(job)["about"] == job
    nothing = asked_in_vain(sandbox, "bob", "4000000")
    assert asked_in_vain(sandbox, "bob", job) == nothing
    assert asked_in_vain(sandbox, "bob", lab.name) == nothing
    assert asked_in_vain(sandbox, "bob", f"{job}_0") == nothing
    assert "4000000" not in nothing
    assert asked_in_vain(sandbox, "alice", "no such thing; `x`")


def test_the_overview_shows_users_own_tenants_and_top_why_a_job_waits(
    sandbox: Sandbox, lab: Tenant
):
    lab.give("1")
    running = lab.submit("--time=30")
    lab.runs(running)
    job = lab.submit("--time=10")
    lab.waits(job, "QOSGrpBilling")

    def overview(user: str) -> dict[str, Any]:
        found = sandbox.run(user, ("slicewise", "overview", "--json"), check=False)
        assert found.returncode in {0, 1, 9}, found.stderr
        return json.loads(found.stdout)

    def seats(found: dict[str, Any]) -> list[dict[str, Any]]:
        """Instances that the job has which runs."""
        instances = (one for gpu in found["gpus"] for one in gpu["instances"])
        return [one for one in instances if one["job"] == running]

    def both_seen() -> dict[str, Any]:
        found = overview("alice")
        waits = job in {one["job"] for one in found["waiting"]}
        return found if waits and seats(found) else {}

    own = until(both_seen)
    whole, others = overview("root"), overview("bob")
    (seat,) = seats(own)
    assert (seat["tenant"], seat["gres_type"]) == (lab.name, "1g.10gb")
    for answer in (own, whole):
        (tenant,) = [one for one in answer["tenants"] if one["name"] == lab.name]
        assert tenant["nominal_millislices"] == tenant["in_use_millislices"] == 1000
        assert (tenant["waiting_jobs"], tenant["waiting_millislices"]) == (1, 1000)
    assert lab.name not in json.dumps(others)
    assert others["others"]["in_use_millislices"] >= 1000
    amounts = dict(whole["slices"])
    assert amounts.pop("capacity_millislices") == sum(amounts.values()) > 0
    until(lambda: overview("root")["slices"] == overview("bob")["slices"])

    with terminal(sandbox, "alice", ("slicewise", "top")) as screen:
        until(lambda: lab.name in screen.text())
        before = screen.modes() | termios.ICANON | termios.ECHO | termios.ISIG
        screen.type("5")
        until(lambda: "QOSGrpBilling" in screen.text())
        # By the account, which has no other waiting job: numbers of jobs are found in other texts.
        screen.type("/" + lab.name + "\r")
        until(lambda: f"only '{lab.name}'" in screen.text())
        screen.clear()
        screen.type("\r")
        until(lambda: f"Job {job} of" in screen.text())
        screen.type("q")
        until(lambda: "Enter why" in screen.text())
        screen.type("q")
        assert screen.process.wait(PATIENCE_S) == 0
        assert screen.modes() == before
    refused = sandbox.run("alice", ("slicewise", "top"), check=False)
    assert (refused.returncode, "top needs a terminal" in refused.stderr) == (2, True)


def test_gpus_a_budget_a_hold_and_an_array(sandbox: Sandbox, lab: Tenant):
    """One tenant after the other: each what it waits for, with its numbers."""
    lab.give("9")
    first = lab.submit("--time=5", gpus="3g.40gb")
    lab.runs(first)
    second_job = lab.submit("--time=5", gpus="3g.40gb")
    lab.waits(second_job, "Resources")
    until_is(lambda: lab.why(second_job)["reason"], "Resources")
    assert "0 of 1 3g.40gb are free; this one needs 1." in lab.why(second_job)["sentences"]
    end_s = second(lab.job(first)["endtime"])
    # Slurm says what a job waits for before it plans when that job starts.
    until(lambda: end_s <= (lab.why(second_job)["start_s"] or 0) <= end_s + _PLAN_S)
    sandbox.run("alice", ("scancel", first, second_job))

    held = lab.submit("--hold", "--time=5")
    # Before, the job that waited for a GPU was the one that waits.
    assert lab.why(held)["start"] == "no estimate while it is held"
    until(lambda: lab.why(lab.name)["headline"].endswith("1 job waits."))
    assert f"Release it: scontrol release {held}" in lab.why(held)["hints"]
    sandbox.run("alice", ("scancel", held))

    array = lab.submit("--array=0-3%2", "--time=5", gpus="1g.18gb")
    until(lambda: f"Array {array}" in lab.why(array)["headline"])
    until(lambda: lab.why(array)["headline"].endswith(": 2 run, 2 wait."))
    until_is(lambda: lab.why(f"{array}_3")["reason"], "JobArrayTaskLimit")
    assert lab.why(f"{array}_0")["state"] == "RUNNING"


def test_a_budget_with_its_numbers(sandbox: Sandbox, lab: Tenant):
    lab.give("4")
    budget = ("slicewise", "budget", "set", lab.name, "--period", "day", "--amount", "2")
    sandbox.run("root", budget)
    until_in_force(sandbox, lab.name)
    running = lab.submit("--time=90")
    lab.runs(running)
    waiting = lab.submit("--time=60")
    lab.waits(waiting, "QOSGrpBillingRunMinutes")
    # The run is reserved for in the ledger a moment after it has begun.
    until(lambda: "leaves 0.5 slice-hours" in str(lab.why(waiting)["sentences"]))
    found = lab.why(waiting)
    assert "this one could use 1 by its time limit" in str(found["sentences"])
    assert found["start_s"] % _DAY_S == 0
    assert 0 < found["start_s"] - time.time() <= _DAY_S
    (shorter,) = (hint for hint in found["hints"] if "TimeLimit=" in hint)
    limit = shorter.rpartition("=")[2]
    sandbox.run("alice", ("scontrol", "update", f"JobId={waiting}", f"TimeLimit={limit}"))
    lab.runs(waiting)


@pytest.mark.promise("slicewise sbatch shows the decision and is sbatch in all else.")
def test_the_wrapper_shows_the_decision_and_is_sbatch_in_all_else(sandbox: Sandbox, lab: Tenant):
    lab.give("2")
    where = (f"--account={lab.name}", "--time=5", "--output=/dev/null", "--parsable")

    def submit(*words: str) -> "subprocess.CompletedProcess[str]":
        argv = (*words, *where, "--gres=gpu:1g.10gb:1")
        return sandbox.run("alice", argv, input="#!/bin/sh\nsleep 60\n", check=False)

    preview = submit(*WRAPPED, "--preview")
    assert preview.returncode == 0
    assert f"guaranteed in QOS slicewise_{lab.name}" in preview.stderr
    assert "to start at" in preview.stderr
    assert sandbox.run("slurm", ("squeue", "-h", "-A", lab.name)).stdout == ""

    told = submit(*WRAPPED)
    assert "guaranteed in QOS" in told.stderr
    assert told.stdout.strip().isdigit()
    assert submit("sbatch").stderr == ""
    assert submit(*WRAPPED, "--export=NONE").stderr == ""
    assert "in QOS" in submit(*WRAPPED, "--export=SLICEWISE_EXPLAIN").stderr

    refused, plain = (submit(*words, "--partition=x") for words in (WRAPPED, ("sbatch",)))
    assert refused.returncode == plain.returncode == 1
    assert refused.stdout == plain.stdout == ""
    assert refused.stderr == plain.stderr


def test_plain_sbatch_of_an_accepted_job_prints_the_id_alone(sandbox: Sandbox, lab: Tenant):
    """Snakemake waited for ever for job "sbatch: It runs on borrowed quota: ...", with its id."""

    def submitted(*command: str) -> "subprocess.CompletedProcess[str]":
        where = (f"--account={lab.name}", "--time=5", "--output=/dev/null", "--parsable")
        argv = (*command, *where, "--gres=gpu:auto:1")
        return sandbox.run("alice", argv, input="#!/bin/sh\nsleep 60\n")

    with a_tenant(sandbox) as lender:
        lender.give("2", "--lending-limit", "1")
        quota = ("--nominal", "1", "--borrowing-limit", "1")
        sandbox.run("root", ("slicewise", "tenant-quota", "set", lab.name, *quota))
        until_in_force(sandbox, lab.name)
        lab.runs(submitted("sbatch").stdout.strip())
        asked, borrowing = submitted(*WRAPPED, "--preview"), submitted("sbatch")
        assert borrowing.stdout.strip().isdigit()
        assert borrowing.stderr == ""
        assert "Its GPU type is" in asked.stderr
        assert "runs on borrowed quota" in asked.stderr
        assert "on borrowed quota" in str(lab.why(borrowing.stdout.strip())["sentences"])


def test_the_estimate_came_true(wait: Wait):
    """The last one here: the short job's minutes pass meanwhile."""
    lab, waiting = wait.lab, wait.waiting
    wait.shorten()
    until(lambda: lab.job(waiting)["state"] != "PENDING", 60 * _SHORT_MINUTES + PATIENCE_S)
    # Once the short job had ended, not before, and without waiting for the long one.
    started_s = second(lab.job(waiting)["starttime"])
    assert wait.ends_s[wait.short] <= started_s < wait.ends_s[wait.long]
    until_is(lambda: lab.why(waiting)["state"], "RUNNING")
    assert "guaranteed" in str(lab.why(waiting)["sentences"])
    assert "it reached its time limit" in lab.why(wait.short)["headline"]
