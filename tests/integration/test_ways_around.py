"""Every way around admission that a user may try: refused, or charged right."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jobs_as_users import Job, Modes, Outcome, Users
from quotas import until_in_force
from second_witness import accounted_runs
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

GPU = "--gres=gpu:1g.10gb:1"
SERVICE = """#!/bin/bash
#SBATCH --account=vision --array=0-1 --hold --requeue --open-mode=append
#SLICEWISE name=around
#SLICEWISE tenant=vision
#SLICEWISE model_repository=/models
#SLICEWISE model=bert
#SLICEWISE profile=1g.10gb
#SLICEWISE max_replicas=2
sleep 600
"""
LASTING = "#!/bin/sh\nsleep 600\n"
FORGED = "slicewise:1 token=0123456789abcdef tenant=nlp"


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[Users]:
    """vision has three slices, nlp five; neither may borrow."""
    sandbox.stop("launcher")
    users = Users(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "3")
    users.slicewise("tenant-quota", "set", "nlp", "--nominal", "5")
    until_in_force(sandbox, "vision", "nlp")
    yield users
    users.clear()
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.fixture
def job(users: Users) -> Iterator[str]:
    """A plain job of alice's, held by her."""
    outcome = users.submit("alice", "sbatch", "--hold", GPU)
    assert outcome.status == 0, outcome.text
    yield outcome.jobs[0].job_id
    users.clear()


@pytest.fixture
def slot(users: Users) -> Iterator[str]:
    """A slot of a service of alice's, held by the daemon."""
    users.clear()
    yield submitted_slot(users)
    users.clear()


def submitted_slot(users: Users, script: str = SERVICE) -> str:
    """Once the service of the same name before it is gone."""
    outcomes: list[Outcome] = []

    def is_submitted() -> bool:
        outcomes.append(users.submit("alice", "sbatch", script=script))
        return outcomes[-1].status == 0

    until(is_submitted)
    array = outcomes[-1].jobs[0].job_id
    until_is(lambda: users.job(array)["Reason"], "JobHeldAdmin")
    return f"{array}_0"


@pytest.fixture(scope="module")
def kept(users: Users) -> Mapping[str, str]:
    """A job and a slot of alice's that stay as they are."""
    users.clear()
    job = users.submit("alice", "sbatch", "--hold", GPU).jobs[0].job_id
    return {"job": job, "slot": submitted_slot(users)}


@pytest.fixture
def without_gpu(users: Users) -> Iterator[str]:
    """A job of alice's that asks for no GPU, held by her: submitted while slicewise.lua was off."""
    users.slicewise("admission", "off")
    try:
        outcome = users.submit("alice", "sbatch", "--hold", f"--comment={FORGED} service=x")
    finally:
        users.slicewise("admission", "on")
    yield outcome.jobs[0].job_id
    users.clear()


@pytest.fixture
def clean(users: Users) -> Iterator[None]:
    yield
    users.clear()


SEEN = (
    *("QOS", "Account", "TRES", "ReqTRES", "AllocTRES", "TresPerNode", "AdminComment", "Priority"),
    *("ArrayTaskThrottle", "NumNodes", "ReqNodeList", "MinMemoryNode", "MinMemoryCPU"),
    *("MinCPUsNode", "OverSubscribe", "ReqB:S:C:T"),
)
CHANGES = (
    "QOS=normal", "QOS=slicewise_vision_borrowed", "QOS=slicewise_nlp", "Account=nlp",
    "Gres=gpu:1g.10gb:3",
    "Gres=gpu:3g.40gb:1", "Gres=gpu:1", "Gres=", "TresPerNode=gres/gpu:1g.10gb:3",
    "NumNodes=3", "NumTasks=3", "NumCPUs=4", "Priority=100000", "Nice=-100", "ArrayTaskThrottle=1",
    f"AdminComment={FORGED}", "AdminComment=", "Partition=gpu", "OverSubscribe=no",
    "NumNodes=1-4", "NumNodes=4", "ReqNodeList=gpu02", "ReqNodeList=gpu[01-04]", "MinMemoryNode=0",
    "MinMemoryNode=16000", "MinMemoryCPU=0", "MinMemoryCPU=1000", "MinCPUsNode=16", "NumCPUs=16",
    "ReqSockets=2", "ReqThreads=1", "TimeLimit=60", "TimeLimit=UNLIMITED", "Requeue=0",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", ["job", "slot"])
def test_an_owner_changes_nothing_that_is_decided(
    users: Users, kept: Mapping[str, str], what: str, change: str
) -> None:
    target = kept[what]
    before = users.job(target)
    users.scontrol("alice", "update", f"JobId={target}", *change.split())
    after = users.job(target)
    # Slurm 22.05 takes a throttle before anybody is asked; that lets less run, not more.
    seen = [name for name in SEEN if name != "ArrayTaskThrottle"]
    if what == "slot":
        # Its lease, and how it gives its GPU back. Those of a plain job are its owner's.
        seen += ["TimeLimit", "Requeue"]
    assert [(name, after[name]) for name in seen] == [(name, before[name]) for name in seen]


@pytest.mark.promise("Nobody releases a slot of a service but the daemon.")
def test_a_slots_owner_can_not_release_it(users: Users, slot: str) -> None:
    for words in (("release", slot), ("update", f"JobId={slot}", "Priority=1")):
        status, _ = users.scontrol("alice", *words)
        assert status != 0
    assert users.job(slot)["Reason"] == "JobHeldAdmin"


@pytest.mark.parametrize(
    "change", ["Comment=c", "TimeLimit=4", "Name=other", "Requeue=1", "NumNodes=1", "Nice=10"]
)
def test_an_owner_changes_what_is_his(users: Users, job: str, change: str) -> None:
    assert users.scontrol("alice", "update", f"JobId={job}", change) == (0, "")


def test_an_owner_may_throttle_plain_arrays(users: Users, clean: None) -> None:
    """It orders what quota allows already."""
    first, second = (
        users.submit("alice", "sbatch", "--hold", "--array=1-6%2", GPU).jobs[0] for _ in range(2)
    )
    several = f"JobId={first.job_id},{second.job_id}"
    named = f"JobName={first['JobName']}"
    for what, throttle in ((f"JobId={first.job_id}", 3), (several, 4), (named, 5)):
        words = ("update", what, f"ArrayTaskThrottle={throttle}")
        assert users.scontrol("alice", *words) == (0, "")
        assert users.job(first.job_id)["ArrayTaskThrottle"] == str(throttle)
    # With what is refused it takes effect all the same, and nothing else does.
    words = ("update", f"JobId={first.job_id}", "ArrayTaskThrottle=1", "QOS=normal")
    status, told = users.scontrol("alice", *words)
    assert status != 0
    assert "throttle is set" in told or "SW-RESUBMIT" not in told
    assert users.job(first.job_id)["QOS"] == "slicewise_vision"


def test_a_throttle_of_a_service_is_refused_and_does_not_stay(users: Users, slot: str) -> None:
    array = slot.partition("_")[0]
    status, _ = users.scontrol("alice", "update", f"JobId={array}", "ArrayTaskThrottle=1")
    assert status != 0
    # It looks at its start; later only every some minutes while no slot waits for the throttle.
    Modes(users.sandbox).restart_daemon()
    until(lambda: not users.job(array)["ArrayTaskThrottle"])


def test_an_owner_may_release_what_he_held(users: Users, job: str) -> None:
    assert users.scontrol("alice", "release", job) == (0, "")
    until_is(lambda: users.job(job)["JobState"], "RUNNING")


@pytest.mark.parametrize("other", ["bob", "carol"])
def test_nobody_else_may_touch_it(users: Users, slot: str, job: str, other: str) -> None:
    for target in (job, slot):
        before = users.job(target)
        for words in (("release",), ("hold",), ("requeue",)):
            assert users.scontrol(other, *words, target)[0] != 0
        assert users.scontrol(other, "update", f"JobId={target}", "QOS=normal")[0] != 0
        after = users.job(target)
        assert [after[name] for name in SEEN] == [before[name] for name in SEEN]


def test_a_forged_tag_is_not_the_jobs(users: Users, clean: None) -> None:
    """Where users may write, a tag means nothing; sbatch has no option for admin_comment."""
    outcome = users.submit("alice", "sbatch", "--hold", GPU, f"--comment={FORGED}")
    (job,) = outcome.jobs
    assert " tenant=vision " in f"{job.tag} "
    assert job["QOS"] == "slicewise_vision"
    assert FORGED not in job["AdminComment"]
    assert "unrecognized" in users.submit("alice", "sbatch", f"--admin-comment={FORGED}").text


def test_a_job_with_a_forged_comment_alone_is_nobodys(users: Users, without_gpu: str) -> None:
    job = users.job(without_gpu)
    assert job.tag == ""
    time.sleep(2)
    assert users.job(without_gpu)["Reason"] == "JobHeldUser"


def test_without_an_account_the_default_one_is_charged(users: Users, clean: None) -> None:
    (job,) = users.submit("bob", "sbatch", "--hold", GPU).jobs
    assert (job["Account"], job["QOS"]) == ("nlp", "slicewise_nlp")


@pytest.mark.parametrize("account", ["nlp", "NLP", "root", "nosuch", "vision,nlp"])
def test_another_tenants_account_is_refused(users: Users, clean: None, account: str) -> None:
    outcome = users.submit("alice", "sbatch", "--hold", GPU, f"--account={account}")
    assert (outcome.status, list(outcome.jobs)) == (1, [])


@pytest.mark.parametrize("qos", ["slicewise_nlp", "slicewise_nlp_borrowed"])
def test_a_qos_that_is_not_the_tenants_is_refused(users: Users, clean: None, qos: str) -> None:
    outcome = users.submit("alice", "sbatch", "--hold", GPU, f"--qos={qos}")
    assert (outcome.status, list(outcome.jobs)) == (1, [])
    assert re.search("SW-QOS|SW-QUOTA-BORROW", outcome.text)


def test_in_another_qos_the_quota_holds_as_well(users: Users, clean: None) -> None:
    (job,) = users.submit("alice", "sbatch", "--hold", GPU, "--qos=normal").jobs
    assert job["QOS"] == "slicewise_vision"


def test_only_root_may_submit_as_somebody_else(users: Users, clean: None) -> None:
    bob = users.sandbox.state.users["bob"]
    outcome = users.submit("alice", "sbatch", "--hold", GPU, f"--uid={bob.uid}")
    assert (outcome.status != 0, list(outcome.jobs)) == (True, [])
    (job,) = users.submit("root", "sbatch", "--hold", GPU, f"--uid={bob.uid}").jobs
    assert job["UserId"].startswith("bob(")
    assert " tenant=nlp" in job.tag


def test_a_requeue_by_the_owner_is_charged_run_by_run(users: Users, clean: None) -> None:
    (job,) = users.submit("alice", "sbatch", GPU, "--requeue").jobs
    until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
    time.sleep(2)
    assert users.scontrol("alice", "requeue", job.job_id)[0] == 0
    until_is(lambda: users.job(job.job_id)["Restarts"], "1")
    requeued = users.job(job.job_id)
    assert (requeued.tag, requeued["QOS"]) == (job.tag, job["QOS"])
    assert requeued.billing == 1000
    users.sandbox.run("root", ("scancel", job.job_id))
    runs = lambda: [run for run in statement(users) if run["task"] == job.job_id]  # noqa: E731
    until(lambda: runs() and all(run["end_s"] for run in runs()))
    for run in runs():
        assert run["used_millislice_s"] == 1000 * (run["end_s"] - run["start_s"])
    assert sum(run["used_millislice_s"] for run in runs()) >= 2000


def test_nobody_leaves_run_minutes_behind(users: Users, clean: None) -> None:
    """By EndTime Slurm 22.05 did; the QOS of a tenant with a budget then started nothing."""
    qos = ("scontrol", "show", "assoc_mgr", "flags=qos", "qos=slicewise_vision")

    def run_minutes() -> int:
        shown = users.sandbox.run("root", qos).stdout
        (counted,) = re.findall(r"GrpTRESRunMins=.*?billing=\w+\((\d+)\)", shown)
        return int(counted)

    (submitted,) = users.submit("alice", "sbatch", "--time=50", GPU).jobs
    job = submitted.job_id
    until_is(lambda: users.job(job)["JobState"], "RUNNING")
    assert run_minutes() >= 49_000
    users.scontrol("alice", "update", f"JobId={job}", "EndTime=now+2minutes")
    assert users.job(job)["TimeLimit"] == "00:50:00"
    assert users.scontrol("alice", "update", f"JobId={job}", "TimeLimit=4") == (0, "")
    until(lambda: run_minutes() <= 4000)
    users.sandbox.run("alice", ("scancel", job))
    until_is(run_minutes, 0)


def test_a_slot_is_one_node_that_may_be_requeued(users: Users, clean: None) -> None:
    """Whatever its script says: by a requeue it gives its GPU back."""
    script = SERVICE.replace(" --requeue", " --no-requeue --nodes=1-2 --ntasks=2 --spread-job")
    slot = users.job(submitted_slot(users, script))
    assert (slot["Requeue"], slot["NumNodes"]) == ("1", "1-1")


def test_who_gives_nodes_back_is_charged_to_the_end(users: Users, clean: None) -> None:
    """Accounting ends the record of such a run: its rest ran for nothing."""
    (job,) = users.submit("bob", "sbatch", "--nodes=2", GPU).jobs
    until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
    shrink = ("update", f"JobId={job.job_id}", "NumNodes=1")
    assert users.scontrol("bob", *shrink)[0] != 0
    assert users.job(job.job_id)["NumNodes"] == "2"
    until(lambda: runs_of(users, job.job_id))
    # As a node that fails does, where a job goes on without it.
    assert users.scontrol("root", *shrink)[0] == 0
    until_is(lambda: users.job(job.job_id)["NumNodes"], "1")
    time.sleep(6)
    (run,) = runs_of(users, job.job_id)
    assert run["end_s"] is None
    users.sandbox.run("root", ("scancel", job.job_id))
    until(lambda: all(one["end_s"] for one in runs_of(users, job.job_id)))
    (run,) = runs_of(users, job.job_id)
    assert run["end_s"] - run["start_s"] >= 6
    assert run["used_millislice_s"] == 2000 * (run["end_s"] - run["start_s"])


def runs_of(users: Users, task: str) -> list[dict[str, Any]]:
    shown = json.loads(users.slicewise("ledger", "statement", "nlp", "--journal", "--json"))["runs"]
    return [run for run in shown if run["task"] == task]


def test_who_rewrites_accounting_is_charged_all_the_same(users: Users, clean: None) -> None:
    """Slurm 25.11 lets users do it, with runs of their own that have ended; others refuse it."""
    (job,) = users.submit("bob", "sbatch", "--hold", GPU).jobs
    users.sandbox.stop("daemon")
    try:
        users.scontrol("bob", "release", job.job_id)
        until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
        time.sleep(2)
        users.sandbox.run("root", ("scancel", job.job_id))
        until_is(lambda: users.job(job.job_id)["JobState"], "CANCELLED")
        until(lambda: job.job_id in {str(run.job_id) for run in accounted_runs(users.sandbox)})
        less = "TRES=billing=0,gres/gpu=0,gres/gpu:1g.10gb=0"
        change = ("sacctmgr", "-i", "modify", "job", job.job_id, "set", less)
        users.sandbox.run("bob", change, check=False)
    finally:
        Modes(users.sandbox).restart_daemon()
    until(lambda: any(run["end_s"] for run in runs_of(users, job.job_id)))
    (run,) = runs_of(users, job.job_id)
    assert run["end_s"] - run["start_s"] >= 2
    assert run["used_millislice_s"] == 1000 * (run["end_s"] - run["start_s"])


def test_a_whole_node_is_refused_or_charged_as_one(users: Users, clean: None) -> None:
    for options in (("--exclusive",), ("--exclusive", GPU), ("--exclusive", "--nodes=2")):
        outcome = users.submit("bob", "sbatch", *options)
        assert (outcome.status, list(outcome.jobs)) == (1, [])
        assert "SW-QUOTA-EXCEEDED" in outcome.text
    users.slicewise("tenant-quota", "set", "nlp", "--nominal", "14")
    try:
        until_is(lambda: users.submit("bob", "sbatch", "--exclusive", "--hold").status, 0)
        (job,) = users.submit("bob", "sbatch", "--exclusive", GPU).jobs
        until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
        assert users.job(job.job_id).billing in {6500, 7000}
    finally:
        users.clear()
        users.slicewise("tenant-quota", "set", "nlp", "--nominal", "5")


BLOCKING = (
    ("--exclusive=user",), ("--exclusive=mcs",), ("--ntasks-per-node=16",), ("--mem=0",),
    ("--ntasks-per-node=1", "--cpus-per-task=16"), ("--spread-job", "--mem=16000"),
    ("--core-spec=15",), ("--overcommit", "--ntasks=64", "--mem=0"), ("--exclusive=user", GPU),
)  # fmt: skip


@pytest.mark.parametrize("is_answered", [True, False])
def test_nobody_blocks_nodes_without_being_charged(
    users: Users, clean: None, is_answered: bool
) -> None:
    """Four nodes each time; afterwards another tenant's job starts at once."""
    if not is_answered:
        users.sandbox.stop("daemon")
    try:
        for options in BLOCKING:
            outcome = users.submit("alice", "sbatch", "--nodes=4", *options)
            assert (outcome.status, list(outcome.jobs)) == (1, []), options
            assert re.search("SW-WITHOUT-GPU|SW-JOB-OPTION", outcome.text)
        (job,) = users.submit("bob", "sbatch", GPU).jobs
        until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
    finally:
        if not is_answered:
            users.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
            until(lambda: _is_decided(users.submit("alice", "sbatch", "--hold", GPU).jobs[0].tag))


def _is_decided(tag: str) -> bool:
    """slicewise.lua itself gives a tag to what the daemon has still to decide."""
    return tag != "" and " undecided" not in tag


def test_why_sees_nodes_that_have_nothing_left(users: Users, clean: None) -> None:
    """As where an administrator runs something, or admission was off."""
    users.slicewise("admission", "off")
    try:
        (hog,) = users.submit("bob", "sbatch", "--nodes=4", "--exclusive=user").jobs
    finally:
        users.slicewise("admission", "on")
    until_is(lambda: users.job(hog.job_id)["JobState"], "RUNNING")
    (job,) = users.submit("alice", "sbatch", GPU).jobs
    until(lambda: users.job(job.job_id)["Reason"] in {"Resources", "Priority"})
    shown = until(lambda: blocked(users, job.job_id))
    assert "0 of 10 1g.10gb are free" in shown
    assert "gpu01 (it is kept for one user)" in shown
    assert "bob" not in shown


def blocked(users: Users, job: str) -> str:
    # Until the next look the daemon knows no such job.
    done = users.sandbox.run("root", ("slicewise", "why", job), check=False)
    shown = " ".join(done.stdout.split())
    return shown if "can't be used" in shown else ""


@pytest.mark.promise("No more than the quota runs, whatever users try.")
def test_no_more_than_the_quota_runs_whatever_is_tried(users: Users, clean: None) -> None:
    """Each way at once, and then a moment to start."""
    for options in ((GPU,), ("--gpus=1g.10gb:1",), ("--gpus-per-node=1g.18gb:1",)) * 3:
        assert users.submit("alice", "sbatch", *options, script=LASTING).status == 0
    assert users.submit("alice", "sbatch", "--array=0-9", GPU, script=LASTING).status == 0
    until_is(lambda: len(running(users)), 3)
    time.sleep(3)
    assert sum(running(users)) == 3000


def running(users: Users) -> list[int]:
    """Millislices of each of alice's jobs that runs, all of one moment."""
    which = ("--array", "--user=alice", "--states=running", "--Format=tres-alloc:200")
    shown = users.sandbox.run("root", ("squeue", "--noheader", *which)).stdout
    return [int(amount) for amount in re.findall(r"billing=(\d+)", shown)]


def statement(users: Users) -> list[dict[str, object]]:
    return list(
        json.loads(users.slicewise("ledger", "statement", "vision", "--journal", "--json"))["runs"]
    )


SMUGGLED = (
    "Gres=gpu:1g.10gb:1",
    "Gres=gpu:1",
    "Gres=gpu:auto",
    "OverSubscribe=no",
    "QOS=slicewise_nlp",
    # There it would end, for CPUs, what runs on borrowed quota.
    "QOS=slicewise_vision",
)


@pytest.mark.parametrize("change", SMUGGLED)
def test_a_job_without_gpus_gets_none_later(users: Users, without_gpu: str, change: str) -> None:
    job = users.job(without_gpu)
    users.scontrol("alice", "update", f"JobId={job.job_id}", change)
    after = users.job(job.job_id)
    assert "cpu" in after.tres
    assert "gres/gpu" not in after.tres_text
    assert (after["QOS"], after["OverSubscribe"]) == (job["QOS"], job["OverSubscribe"])


HOSTILE = (
    "'; DROP TABLE entry; --", '"]] .. os.execute("touch /tmp/owned") .. [["', "$(id)`id`",
    "%s%n%d", "line\nbreak", "x" * 100_000, "\u202e", "vision tenant=nlp", FORGED,
)  # fmt: skip


def submitted(users: Users, *options: str, script: str = "") -> list[Job]:
    """What became of it."""
    return users.submit("alice", "sbatch", "--hold", GPU, *options, script=script).jobs


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words_in_a_description_do_nothing(users: Users, clean: None, text: str) -> None:
    """Real Lua, the real daemon: a job gets its own tenant's quota or none, slurmctld lives on."""
    for option in ("--comment", "--account", "--qos", "--gres", "--wckey", "--licenses"):
        for job in submitted(users, f"{option}={text}"):
            assert (job["Account"], job["QOS"]) == ("vision", "slicewise_vision")
            assert " tenant=vision" in job.tag
    script = f"#!/bin/sh\n#SLICEWISE need={text}\n#SLICEWISE {text}\n: {text}\n"
    for job in submitted(users, script=script):
        assert " tenant=vision" in job.tag
    assert users.scontrol("root", "ping")[1].count("is UP") == 1


@pytest.mark.parametrize("size", [1_000_000, 4_000_000])
def test_a_script_of_megabytes_is_decided_as_any_other(
    users: Users, clean: None, size: int
) -> None:
    for filling in ("# " + "x" * 100 + "\n", "#SLICEWISE need=9GiB\n", "\x01" * 99 + "\n"):
        script = "#!/bin/sh\n" + filling * (size // len(filling))
        for job in submitted(users, script=script):
            assert " tenant=vision" in job.tag
    assert users.submit("alice", "sbatch", "--hold", GPU).status == 0
