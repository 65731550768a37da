"""slurmctld does not run slicewise.lua: Slurm's own limits hold, and the operator is told."""

import json
import re
import time
from collections.abc import Iterator

import pytest
from jobs_as_users import Users
from quotas import until_daemon_leads, until_in_force
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.slurm_plugin.lua.site_script import Wiring, minimal

pytestmark = pytest.mark.integration

GPU = "--gres=gpu:1g.10gb:1"
OWN = "--qos=slicewise_vision"
LASTING = "#!/bin/sh\nsleep 600\n"
QUOTA = 3000
OLD_LUA = """error("attempt to call a nil value (global 'unpack')")"""
"""As slicewise.lua was before it knew newer Lua than 5.1, run by such a one."""


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[Users]:
    """The site's script has the proposed lines, in enforce, and slicewise.lua does not load."""
    sandbox.stop("launcher")
    users = Users(sandbox)
    users.slicewise("tenant-quota", "set", "vision", "--nominal", "3")
    until_in_force(sandbox, "vision")
    layout = sandbox.layout
    broken = layout.etc / "broken.lua"
    broken.write_text(OLD_LUA)
    socket = layout.run_dir / "admission" / "admission.sock"
    script = layout.etc / "job_submit.lua"
    before = script.read_text()
    lines = minimal(Wiring(broken, socket, layout.etc / "off", ("gpu",)))
    time.sleep(1.1)
    script.write_text(lines.replace('mode = "observe"', 'mode = "enforce"'))
    yield users
    users.clear()
    time.sleep(1.1)
    script.write_text(before)
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.fixture(autouse=True)
def clean(users: Users) -> Iterator[None]:
    yield
    users.clear()


def running(users: Users) -> int:
    """Millislices that alice's jobs hold."""
    which = ("--array", "--user=alice", "--states=running", "--Format=tres-alloc:200")
    shown = users.sandbox.run("root", ("squeue", "--noheader", *which)).stdout
    return sum(int(amount) for amount in re.findall(r"billing=(\d+)", shown))


@pytest.fixture
def limits_stay(users: Users) -> Iterator[None]:
    """No daemon gives the borrowed QOS what waits there and fits in the tenant's own quota."""
    users.sandbox.stop("daemon")
    yield
    users.clear()
    users.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
    until_daemon_leads(users.sandbox)


@pytest.mark.usefixtures("limits_stay")
@pytest.mark.parametrize(
    ("qos", "held"),
    [
        ("--qos=slicewise_vision", QUOTA),
        ("--qos=slicewise_vision_borrowed", 0),
        ("--qos=normal", 0),
        ("--comment=none", 0),
    ],
)
def test_typed_gpus_stay_within_the_quota(users: Users, qos: str, held: int) -> None:
    """Nothing is lent, and the gate lets no other QOS through."""
    outcome = users.submit("alice", "sbatch", GPU, "--array=0-9", qos, script=LASTING)
    assert outcome.status == 0, outcome.text
    assert all(job.tag == "" for job in outcome.jobs)
    until_is(lambda: running(users), held)
    time.sleep(3)
    assert running(users) == held


def test_no_other_tenants_qos_may_be_named(users: Users) -> None:
    outcome = users.submit("alice", "sbatch", GPU, "--qos=slicewise_nlp")
    assert (outcome.status, list(outcome.jobs)) == (1, [])


UNCOUNTED = (
    "--gres=gpu:4", "--gpus=4", "--gpus-per-node=4", "--ntasks=4 --gpus-per-task=1",
    "--ntasks=4 --ntasks-per-gpu=1", "--gres=gpu:+4", "--nodes=2 --gres=gpu:2",
)  # fmt: skip


@pytest.mark.parametrize("options", UNCOUNTED)
def test_what_slurm_does_not_count_is_refused(users: Users, options: str) -> None:
    outcome = users.submit("alice", "sbatch", *options.split(), script=LASTING)
    time.sleep(3)
    assert running(users) <= QUOTA
    assert (outcome.status, list(outcome.jobs)) == (1, [])


@pytest.mark.parametrize("options", [("--exclusive",), ("--exclusive", GPU)])
def test_whole_nodes_stay_within_the_quota(users: Users, options: tuple[str, ...]) -> None:
    """Slurm itself counts them, before they start."""
    assert users.submit("alice", "sbatch", OWN, *options, script=LASTING).status == 0
    time.sleep(4)
    assert running(users) <= QUOTA


BLOCKING = (
    ("--exclusive=user",), ("--exclusive=user", GPU), ("--ntasks-per-node=16",), ("--mem=0",),
)  # fmt: skip


@pytest.mark.parametrize("options", BLOCKING)
def test_nobody_keeps_nodes_without_gpus(users: Users, options: tuple[str, ...]) -> None:
    outcome = users.submit("alice", "sbatch", "--nodes=4", *options, script=LASTING)
    assert (outcome.status, list(outcome.jobs)) == (1, [])


CHANGES = (
    "Gres=gpu:4", "TresPerNode=gres/gpu:4", "QOS=normal", "Account=nlp", "NumNodes=4",
    "NumTasks=16", "NumCPUs=16", "OverSubscribe=no", "Partition=gpu", "Priority=9",
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_nobody_can_weigh_has_to_wait(users: Users, change: str) -> None:
    (job,) = users.submit("alice", "sbatch", GPU, "--hold").jobs
    assert users.scontrol("alice", "update", f"JobId={job.job_id}", change)[0] != 0
    after = users.job(job.job_id)
    for name in ("QOS", "Account", "Partition", "NumNodes", "NumCPUs", "Priority", "TresPerNode"):
        assert after[name] == job[name], name
    assert after.tres_text == job.tres_text


def test_a_replica_can_still_say_who_it_is(users: Users) -> None:
    """By its comment; and what is its owner's alone stays so."""
    (job,) = users.submit("alice", "sbatch", GPU, OWN, script=LASTING).jobs
    words = "slicewise:certificate=0 MIIB"
    assert users.scontrol("alice", "update", f"JobId={job.job_id}", f"Comment={words}")[0] == 0
    assert users.job(job.job_id)["Comment"] == words
    assert users.scontrol("alice", "update", f"JobId={job.job_id}", "TimeLimit=4")[0] == 0


@pytest.mark.promise("With admission off jobs wait at the gate until they are adopted.")
def test_what_waits_at_the_gate_runs_in_its_tenants_qos_once_it_is_adopted(users: Users) -> None:
    """As docs/how-to/go-live.md says."""
    plain = users.submit("alice", "sbatch", GPU, "--array=0-9", script=LASTING)
    array = plain.jobs[0].job_id
    until_is(lambda: users.job(array)["Reason"], "QOSGrpBilling")
    found = json.loads(users.slicewise("admission", "adopt", "--json"))
    assert found["moved"] == {f"{array}_[0-9]": "slicewise_vision"}
    until_is(lambda: running(users), QUOTA)


def submitted(users: Users, *options: str) -> tuple[int, list[object]]:
    outcome = users.submit("alice", "sbatch", "--nodes=4", *options, script=LASTING)
    return outcome.status, list(outcome.jobs)


def test_the_partitions_own_limit_refuses_jobs_without_gpus(users: Users) -> None:
    """As docs/how-to/install.md says; also while the kill switch is set."""
    users.slicewise("admission", "off")
    administer = lambda *words: users.sandbox.run("slurm", ("sacctmgr", "-i", *words))  # noqa: E731
    change = ("modify", "qos", "slicewise_gate", "set")
    administer(*change, "MinTRESPerJob=gres/gpu=1", "Flags=DenyOnLimit")
    try:
        blocking = ("--exclusive=user",), ("--ntasks-per-node=16",), ("--mem=0",), ("--exclusive",)
        for options in blocking:
            until_is(lambda options=options: submitted(users, *options), (1, []))
        # Those that came before slurmctld had the limit keep whole nodes.
        users.clear()
        (job,) = users.submit("alice", "sbatch", GPU, OWN, script=LASTING).jobs
        until_is(lambda: users.job(job.job_id)["JobState"], "RUNNING")
    finally:
        users.slicewise("admission", "on")
        administer(*change, "MinTRESPerJob=gres/gpu=-1", "Flags=-1")
        users.clear()


def test_the_operator_is_told_at_once(users: Users) -> None:
    (job,) = users.submit("alice", "sbatch", GPU, OWN, script=LASTING).jobs
    log = users.sandbox.layout.log / "daemon.log"
    # The status may still be that of another test's job; this line is about this one.
    until(lambda: f"not_admitted job_id={job.job_id} jobs=1" in log.read_text())

    def told() -> str:
        done = users.sandbox.run("root", ("slicewise", "admission", "status", "--json"))
        status = json.loads(done.stdout)
        return " ".join(status["advice"]) if status["daemon"]["unadmitted"] == 1 else ""

    assert "without slicewise.lua" in until(told)
