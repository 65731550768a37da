"""What `slicewise admission install` proposes to a new site holds without a word in its settings.

A partition for jobs without GPUs is on the nodes with GPUs, as docs/how-to/install.md allows.
"""

import time
from collections.abc import Iterator

import pytest
from jobs_as_users import Outcome, Users
from quotas import until_in_force
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox

pytestmark = pytest.mark.integration

GPU = "--gres=gpu:1g.10gb:1"
LASTING = "#!/bin/sh\nsleep 600\n"


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[Users]:
    """As a new site: what `admission install` makes, in mode enforce; settings say no share."""
    sandbox.stop("launcher")
    users = Users(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "4")
    users.slicewise("tenant-quota", "set", "nlp", "--nominal", "5")
    until_in_force(sandbox, "vision", "nlp")
    weights = "TRESBillingWeights=CPU=0,Mem=0"
    cpu = ("PartitionName=cpu", "Nodes=ALL", weights, "State=UP", "DefMemPerCPU=100")
    assert users.scontrol("root", "create", *cpu)[0] == 0
    script = sandbox.layout.etc / "job_submit.lua"
    proposed = sandbox.layout.etc / "proposed.lua"
    users.slicewise("admission", "install", "--file", str(proposed))
    before = script.read_text()
    time.sleep(1.1)
    script.write_text(proposed.read_text().replace('mode = "observe"', 'mode = "enforce"'))
    yield users
    users.clear()
    time.sleep(1.1)
    script.write_text(before)
    assert users.scontrol("root", "delete", "PartitionName=cpu")[0] == 0
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.fixture(autouse=True)
def clean(users: Users) -> Iterator[None]:
    yield
    users.clear()


HOGS = (
    ("--ntasks=16",), ("--cpus-per-task=16",), ("--ntasks-per-node=16",), ("--cpus-per-gpu=16",),
    ("--mincpus=16",), ("--mem=0",), ("--mem=16000",), ("--mem-per-gpu=16000",),
    ("--mem-per-cpu=0",), ("--mem-per-cpu=8000",), ("--ntasks=1", "--gres-flags=enforce-binding"),
)  # fmt: skip


@pytest.mark.parametrize("options", HOGS)
def test_a_slice_brings_no_more_than_its_share(users: Users, options: tuple[str, ...]) -> None:
    outcome = users.submit("alice", "sbatch", "--nodes=1", GPU, *options, script=LASTING)
    assert (outcome.status, list(outcome.jobs)) == (1, [])
    assert "SW-SHARE" in outcome.text


def test_who_holds_his_share_keeps_nobody_from_the_rest(users: Users) -> None:
    """All seven slices of a node, each with the whole share; the four of alice alone are hers."""
    share = ("--nodelist=gpu01", GPU, "--cpus-per-task=2", "--mem=2285")
    jobs = [
        users.submit(user, "sbatch", *share, script=LASTING).jobs[0].job_id
        for user in ("alice", "alice", "alice", "alice", "bob", "bob", "bob")
    ]
    for job in jobs:
        until_is(lambda job=job: users.job(job)["JobState"], "RUNNING")


@pytest.fixture
def no_default(users: Users) -> Iterator[None]:
    """The managed partition has no default memory: Slurm's own is all that a node has."""
    default = users.scontrol("root", "update", "PartitionName=gpu", "DefMemPerNode=0")
    assert default[0] == 0, default
    yield
    assert users.scontrol("root", "update", "PartitionName=gpu", "DefMemPerCPU=100")[0] == 0


@pytest.mark.usefixtures("no_default")
@pytest.mark.parametrize("gpu", [GPU, "--gpus=1g.10gb:1", "--gpus-per-task=1g.10gb:1"])
def test_who_names_no_memory_keeps_nobody_from_the_rest(users: Users, gpu: str) -> None:
    share = ("--nodelist=gpu01", "--ntasks=1", gpu)
    jobs = [
        users.submit(user, "sbatch", *share, script=LASTING).jobs[0].job_id
        for user in ("alice", "alice", "alice", "alice", "bob", "bob", "bob")
    ]
    for job in jobs:
        until_is(lambda job=job: users.job(job)["JobState"], "RUNNING")
    assert "mem=2285M" in users.job(jobs[0]).tres_text
    more = users.scontrol("alice", "update", f"JobId={jobs[0]}", "MinMemoryNode=0")
    assert more[0] != 0


BESIDE = (
    ("--gres=gpu:1",), (GPU,), ("--gpus=1",), ("--gpus-per-task=1", "--ntasks=1"),
    ("--ntasks-per-gpu=1", "--ntasks=1"), ("--exclusive",), ("--exclusive=user",),
    ("--partition=cpu,gpu", GPU), ("--partition=gpu,cpu", GPU),
)  # fmt: skip


@pytest.mark.parametrize("options", BESIDE)
def test_a_partition_beside_gives_no_gpus(users: Users, options: tuple[str, ...]) -> None:
    """Nobody is charged for what runs there, and no limit counts it."""
    outcome = users.submit("alice", "sbatch", "--partition=cpu", *options, script=LASTING)
    assert (outcome.status, list(outcome.jobs)) == (1, [])
    assert "SW-JOB-OPTION" in outcome.text


def test_a_job_beside_gets_none_later(users: Users) -> None:
    plain = ("--partition=cpu", "--hold", "--qos=normal")
    (job,) = users.submit("alice", "sbatch", *plain, script=LASTING).jobs
    for change in ("Gres=gpu:1", "Gres=gpu:1g.10gb:1", "OverSubscribe=no", "QOS=slicewise_vision"):
        assert users.scontrol("alice", "update", f"JobId={job.job_id}", change)[0] != 0, change
    after = users.job(job.job_id)
    assert (after["QOS"], after["OverSubscribe"]) == ("normal", job["OverSubscribe"])
    assert "gres/gpu" not in after.tres_text


@pytest.mark.parametrize("qos", [(), ("--qos=slicewise_vision",), ("--qos=normal",)])
def test_a_job_beside_preempts_nobody(users: Users, qos: tuple[str, ...]) -> None:
    """By its tenant's own QOS, the default, it ended borrowed jobs of others for their CPUs."""
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "4", "--lending-limit", "4")
    users.slicewise("tenant-quota", "set", "nlp", "--nominal", "1", "--borrowing-limit", "4")
    until_in_force(users.sandbox, "vision", "nlp")
    borrowed = ("--nodelist=gpu01", "--qos=slicewise_nlp_borrowed", GPU)

    def is_lent() -> Outcome | None:
        """What he may borrow is lent at the daemon's next look: before, his job is refused."""
        outcome = users.submit("bob", "sbatch", *borrowed, script=LASTING)
        return outcome if outcome.status == 0 else None

    (job,) = until(is_lent).jobs
    until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
    greedy = ("--partition=cpu", "--nodelist=gpu01", "--ntasks-per-node=16", *qos)
    (hog,) = users.submit("alice", "sbatch", *greedy, script=LASTING).jobs
    time.sleep(6)
    after = users.job(job.job_id)
    assert (after["JobState"], after["Restarts"]) == ("RUNNING", "0")
    assert users.job(hog.job_id)["JobState"] == "PENDING"
