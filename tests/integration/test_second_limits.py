"""Loans and quotas that do not fit the site: another limit binds as well, or a node has gone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jobs_as_users import Job, Users
from quotas import until_in_force
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

SMALL, LARGE = "--gres=gpu:1g.10gb:1", "--gres=gpu:3g.40gb:1"
"""They cost 1 and 3.5 slices."""
MINUTES = "AssocGrpBillingMinutes"


@pytest.fixture
def users(sandbox: Sandbox) -> Iterator[Users]:
    found = Users(sandbox)
    yield found
    found.clear()


def set_quotas(users: Users, **options: str) -> None:
    """Options by tenant; the others have no quota."""
    listed = json.loads(users.slicewise("tenant", "list", "--json"))
    nothing = "--nominal 0 --borrowing-limit 0 --lending-limit 0"
    for name in {one["tenant"] for one in listed} | options.keys():
        words = options.get(name, nothing).split()
        users.slicewise("tenant-quota", "set", name, *words, "--overcommit", "--reason", "test")
    until_in_force(users.sandbox, *options)


def submitted(users: Users, user: str, gres: str) -> str:
    outcome = users.submit(user, "sbatch", gres)
    assert outcome.status == 0, outcome.text
    return outcome.jobs[0].job_id


def jobs_of(users: Users, *job_ids: str) -> list[Job]:
    return [users.job(one) for one in job_ids]


def attention(users: Users) -> list[Any]:
    found: list[Any] = overview(users).get("attention", [])
    return found


def overview(users: Users) -> Any:
    """Its status says whether anything needs attention; {} while the daemon has not looked."""
    shown = users.slicewise("overview", "--json", check=False)
    return json.loads(shown) if shown else {}


@pytest.fixture
def safe(users: Users) -> Iterator[None]:
    """Slurm starts no job that GrpTRESMins has too little for, and vision's has hardly any."""
    conf = users.sandbox.layout.slurm_conf
    before = conf.read_text()
    word = "AccountingStorageEnforce="
    conf.write_text(before.replace(word, f"{word}safe,"))
    users.sandbox.run("root", ("slicewise-restart", "slurmctld"))
    account(users, "RawUsage=0")
    account(users, "GrpTRESMins=billing=4000")
    yield
    account(users, "GrpTRESMins=billing=-1")
    conf.write_text(before)
    users.sandbox.run("root", ("slicewise-restart", "slurmctld"))


def account(users: Users, setting: str) -> None:
    argv = ("sacctmgr", "-i", "modify", "account", "where", "name=vision", "set", setting)
    users.sandbox.run("root", argv)


@pytest.mark.usefixtures("safe")
def test_a_loan_does_not_flap_where_the_sites_own_limit_binds_as_well(users: Users) -> None:
    """Each job of five minutes wants 5,000 of the 4,000 minutes."""
    set_quotas(users, nlp="--nominal 4 --lending-limit 4", vision="--nominal 0 --borrowing-limit 4")
    job = submitted(users, "alice", SMALL)

    def said() -> list[str]:
        found = (one for one in attention(users) if one["code"] == "SW-WAITING")
        return [one["what"] for one in found if MINUTES in one["what"]]

    # It had a loan, waited for the other limit, and is lent no more for the time being.
    (words,) = until(said)
    assert words.startswith("1 job of vision had quota and did not start")
    until(lambda: users.job(job)["Reason"] == "QOSGrpBilling")
    explained = json.loads(users.slicewise("why", job, "--json"))
    assert any("when it had quota" in one for one in explained["sentences"]), explained
    account(users, "GrpTRESMins=billing=9999999")
    until_is(lambda: users.job(job)["JobState"], "RUNNING")
    until_is(said, [])


@pytest.fixture
def a_node_less(users: Users) -> Iterator[str]:
    """Quotas are exactly what the cluster has, and then one of its nodes goes."""
    whole = until(lambda: overview(users).get("slices", {}).get("capacity_millislices"))
    half = f"--nominal {whole / 2000:g} --borrowing-limit 0 --lending-limit 0"
    set_quotas(users, vision=half, nlp=half)
    left = "Nodes=gpu01,gpu02,gpu04"
    assert users.scontrol("root", "update", "PartitionName=gpu", left)[0] == 0
    yield "gpu03"
    assert users.scontrol("root", "reconfigure")[0] == 0


def test_quotas_above_the_hardware_keep_no_job_from_a_free_gpu(
    users: Users, a_node_less: str
) -> None:
    """A share of the rest in proportion, 10.5 of 14 slices, would start no large job beside ten
    small ones.
    """
    alices = [submitted(users, "alice", SMALL) for _ in range(10)]
    alices.append(submitted(users, "alice", LARGE))
    bobs = [submitted(users, "bob", "--gres=gpu:1g.18gb:1") for _ in range(3)]
    every = (*alices, *bobs)
    until(lambda: {one["JobState"] for one in jobs_of(users, *every)} == {"RUNNING"})

    def over() -> list[Any]:
        return [one for one in attention(users) if one["code"] == "SW-QUOTA-CAPACITY"]

    (item,) = until(over)
    assert f"gone from Slurm: {a_node_less}" in item["what"]
    doctor = users.slicewise("doctor", "--section", "limits", check=False)
    assert "SW-QUOTA-CAPACITY" in doctor
    # What contends for the same GPU waits for it, and gets it.
    waiting = submitted(users, "bob", SMALL)
    until(lambda: users.job(waiting)["Reason"] in {"Resources", "Priority", "QOSGrpBilling"})
    users.sandbox.run("root", ("scancel", alices[0]))
    until_is(lambda: users.job(waiting)["JobState"], "RUNNING")
