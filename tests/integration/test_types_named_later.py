"""Jobs that ran and waited before AccountingStorageTRES named their types of GPUs.

Slurm leaves their TRES as they were, for as long as they live.
"""

import json
import re
from collections.abc import Iterator

import pytest
from jobs_as_users import Users
from quotas import until_in_force
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

ONE, OTHER, THREE = "1g.10gb", "1g.18gb", "3g.71gb"
RUNNING = {
    "per node": ((f"--gres=gpu:{ONE}:2",), {ONE: 2}),
    "per job": ((f"--gpus={OTHER}:2",), {OTHER: 2}),
    "per task": ((f"--gpus-per-task={OTHER}:1", "--ntasks=2"), {OTHER: 2}),
    "per socket": ((f"--gpus-per-socket={ONE}:1", "--sockets-per-node=1"), {ONE: 1}),
    "of any type": (("--gres=gpu:1", "--nodelist=gpu01"), {ONE: 1}),
    "two types": ((f"--gres=gpu:{ONE}:1,gpu:3g.40gb:1",), {ONE: 1, "3g.40gb": 1}),
    "two nodes": (("--nodes=2", f"--gres=gpu:{OTHER}:1"), {OTHER: 2}),
    "an array": (("--array=0-1", f"--gres=gpu:{OTHER}:1"), {OTHER: 1}),
}
HELD_MILLISLICES = 2000 + 2000 + 2000 + 1000 + 1000 + 4500 + 2000 + 2000
WAITING = {
    "per job": ("--hold", f"--gpus={ONE}:3"),
    "an array": ("--hold", "--array=0-7", f"--gres=gpu:{THREE}:1"),
    "parts": ("--hold", f"--gres=gpu:{OTHER}:1", ":", f"--gres=gpu:{THREE}:1"),
    "of any type": ("--hold", "--gpus=1"),
}
NOMINAL = 17
BEGINS = '#!/bin/sh\ntouch "begun.$SLURM_JOB_ID"\nsleep 300\n'


@pytest.fixture(scope="module", params=["AccountingStorageTRES=gres/gpu", ""], ids=["one", "none"])
def ids(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Jobs by what they are; slurmctld has been told the types since they were submitted.

    Before that it counted GPUs without types, or none.
    """
    users = Users(sandbox)
    conf = sandbox.layout.slurm_conf
    named = conf.read_text()
    before = re.sub(r"^AccountingStorageTRES=.*$", request.param, named, flags=re.MULTILINE)
    before = re.sub(r'TRESBillingWeights="[^"]*"', 'TRESBillingWeights="CPU=3"', before)
    conf.write_text(re.sub(r" QOS=slicewise_gate", "", before))
    users.slicewise("admission", "off")
    home = sandbox.layout.home / sandbox.state.users["alice"].name
    found = {}
    try:
        _restart(sandbox)
        for what, (options, _) in RUNNING.items():
            found[f"running {what}"] = _submitted(users, *options, script=BEGINS)
        for what, asked in WAITING.items():
            found[f"waiting {what}"] = _submitted(users, *asked)
        # A slurmctld that ends drops what it is just sending to a node: such a job runs for it, has
        # never begun, and is requeued and held.
        until_is(lambda: len(list(home.glob("begun.*"))), len(RUNNING) + 1)
    finally:
        conf.write_text(named)
        users.slicewise("admission", "on")
        _restart(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", str(NOMINAL))
    until_in_force(sandbox, "vision")
    yield found
    users.clear()
    for one in home.glob("begun.*"):
        one.unlink()


def _restart(sandbox: Sandbox) -> None:
    sandbox.run("root", ("slicewise-restart", "slurmctld"))
    until(lambda: "UP" in sandbox.run("root", ("scontrol", "ping"), check=False).stdout)


def _submitted(users: Users, *options: str, script: str = "") -> str:
    outcome = users.submit("alice", "sbatch", *options, script=script)
    assert outcome.status == 0, outcome.text
    return min((job.job_id for job in outcome.jobs), key=int)


@pytest.fixture
def users(sandbox: Sandbox) -> Users:
    return Users(sandbox)


def _tenant(users: Users) -> dict[str, int]:
    listed = json.loads(users.slicewise("tenant", "list", "--json"))
    return dict(next(row for row in listed if row["tenant"] == "vision"))


def test_what_they_hold_counts_and_is_not_given_twice(ids: dict[str, str], users: Users) -> None:
    for job in (job for what, job in ids.items() if what.startswith("running")):
        assert "gres/gpu:" not in users.job(job).tres_text
    until_is(lambda: _tenant(users)["own_in_use_millislices"], HELD_MILLISLICES)
    show = ("sacctmgr", "-nP", "show", "qos", "where", "name=slicewise_vision", "format=grptres")
    left = NOMINAL * 1000 - HELD_MILLISLICES

    def limit() -> str:
        return users.sandbox.run("root", show).stdout.strip()

    until_is(limit, f"billing={left}")


def test_they_are_charged_by_type_from_their_start(ids: dict[str, str], users: Users) -> None:
    def charged() -> dict[str, dict[str, int]]:
        said = users.slicewise("ledger", "statement", "vision", "--journal", "--json")
        return {row["task"]: row["gres"] for row in json.loads(said)["runs"]}

    expected = {ids[f"running {what}"]: gpus for what, (_, gpus) in RUNNING.items()}
    array = ids["running an array"]
    expected |= {f"{array}_{task}": expected[array] for task in range(2)}
    del expected[array]
    until(lambda: expected.items() <= charged().items())


def test_an_end_is_charged_what_accounting_has_in_seconds(
    ids: dict[str, str], users: Users
) -> None:
    job = ids["running two types"]
    users.sandbox.run("alice", ("scancel", job))
    show = ("sacct", "-nXP", f"--jobs={job}", "--format=ElapsedRaw,State")

    def ended() -> str:
        said = users.sandbox.run("root", show).stdout.strip()
        return said.partition("|")[0] if "CANCELLED" in said else ""

    seconds = int(until(ended))

    def used() -> list[int]:
        said = users.slicewise("ledger", "statement", "vision", "--journal", "--json")
        rows = json.loads(said)["runs"]
        return [row["used_millislice_s"] for row in rows if row["task"] == job and row["end_s"]]

    until_is(used, [4500 * seconds])


def test_adopt_moves_those_whose_type_is_named_anywhere(ids: dict[str, str], users: Users) -> None:
    users.sandbox.run("alice", ("scancel", ids["running two types"]))
    found = json.loads(users.slicewise("admission", "adopt", "--json"))
    parts = int(ids["waiting parts"])
    array = f"{ids['waiting an array']}_[0-7]"
    moved = (ids["waiting per job"], array, str(parts), str(parts + 1))
    assert found["moved"] == dict.fromkeys(moved, "slicewise_vision")
    assert found["untyped"] == {ids["waiting of any type"]: "vision"}
    # Once it runs Slurm counts it as any other.
    users.scontrol("alice", "release", ids["waiting per job"])
    until_is(lambda: users.job(ids["waiting per job"])["JobState"], "RUNNING")
    assert users.job(ids["waiting per job"]).billing == 3000
    more = [_submitted(users, f"--gres=gpu:{kind}:1") for kind in (ONE, ONE, OTHER)]
    wanted = ["RUNNING", "RUNNING", "PENDING"]
    until_is(lambda: [users.job(job)["JobState"] for job in more], wanted)
    until_is(lambda: users.job(more[-1])["Reason"], "QOSGrpBilling")
