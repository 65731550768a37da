"""Decisions on a real slurmctld: types, and what is decided later."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_as_users import Users
from waiting import until, until_is

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import ViewRequest
from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.probes import unix_socket_answers

pytestmark = pytest.mark.integration

ONE = "--gres=gpu:1g.10gb:1"
IN_FORCE = {"vision": 2000, "nlp": 8000}
"""Millislices; a submission before that is weighed on what another module has left."""
OWN, BORROWED = "slicewise_vision", "slicewise_vision_borrowed"


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[Users]:
    sandbox.stop("launcher")
    users = Users(sandbox)
    set_quota(users, "vision", "2", "--borrowing-limit", "4")
    set_quota(users, "nlp", "8", "--lending-limit", "6")
    until_is(lambda: {name: seen(users, name)[0] for name in ("vision", "nlp")}, IN_FORCE)
    yield users
    set_quota(users, "vision", "2", "--borrowing-limit", "0")
    set_quota(users, "nlp", "8", "--lending-limit", "0")
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.fixture(autouse=True)
def clean(users: Users) -> Iterator[None]:
    users.clear()
    # The test before may have changed the quota, or started the daemon, which then knows neither.
    until_is(lambda: seen(users, "vision"), (IN_FORCE["vision"], 0))
    yield
    users.clear()


def set_quota(users: Users, tenant: str, *words: str) -> None:
    users.slicewise("tenant-quota", "set", tenant, "--nominal", *words)


def seen(users: Users, tenant: str) -> tuple[int, int]:
    """Quota and use in millislices as the daemon has them: what submissions are weighed on."""
    daemon = DaemonClient(load_settings(users.sandbox.layout.settings_file).daemon)
    tenants = daemon.call(ViewRequest()).tenants
    found = [one for one in tenants if one.name == tenant]
    return (found[0].nominal_millislices, found[0].own_in_use_millislices) if found else (0, 0)


def places(users: Users) -> Counter[tuple[str, str]]:
    """How many tasks are in each QOS and state."""
    squeue = ("squeue", "--noheader", "--array", "--user=alice", "--format=%q %T")
    lines = users.sandbox.run("root", squeue).stdout.splitlines()
    return Counter((line.split()[0], line.split()[1]) for line in lines)


@pytest.fixture
def daemon_down(users: Users) -> Iterator[Path]:
    path = users.sandbox.layout.run_dir / "user.sock"
    users.sandbox.kill("daemon", signal.SIGKILL)
    # Who answers slicewise.lua is another process, which ends a moment after the daemon.
    for one in (path, path.parent / "admission" / "admission.sock"):
        until(lambda one=one: not unix_socket_answers(one))
    yield path
    if not unix_socket_answers(path):
        start(users, path)


def start(users: Users, path: Path) -> None:
    users.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
    until(lambda: unix_socket_answers(path))


FORMS = [
    ("--gres=gpu:auto:1",),
    ("--gpus=auto:1",),
    ("--ntasks=2", "--gpus-per-task=auto:1"),
    ("--array=0-1", "--gres=gpu:auto"),
]


@pytest.mark.parametrize("options", FORMS)
def test_a_type_that_is_chosen_later_starts(
    users: Users, daemon_down: Path, options: tuple[str, ...]
) -> None:
    job_id = users.submit("alice", "sbatch", *options).jobs[0].job_id
    until_is(lambda: users.job(job_id)["Reason"], "JobHeldUser")
    start(users, daemon_down)
    until_is(lambda: set(places(users)), {(OWN, "RUNNING")})
    job = users.job(job_id)
    assert job.billing == 1000 * int(job.tres["gres/gpu:1g.10gb"])
    until(lambda: users.job(job_id).tag.endswith("tenant=vision flexible"))


def test_a_need_is_met_later(users: Users, daemon_down: Path) -> None:
    script = "#!/bin/sh\n#SLICEWISE need=15GiB\nsleep 600\n"
    job_id = users.submit("alice", "sbatch", script=script).jobs[0].job_id
    start(users, daemon_down)
    until_is(lambda: users.job(job_id)["JobState"], "RUNNING")
    assert users.job(job_id).tres["gres/gpu:1g.18gb"] == "1"


def test_what_is_refused_later_stays_held(users: Users, daemon_down: Path) -> None:
    untyped = users.submit("alice", "sbatch", "--gres=gpu:1").jobs[0].job_id
    large = users.submit("alice", "sbatch", "--gres=gpu:auto:7").jobs[0].job_id
    start(users, daemon_down)
    for job_id in (untyped, large):
        until(lambda job_id=job_id: users.job(job_id)["Reason"] == "JobHeldAdmin")
        assert users.scontrol("alice", "release", job_id)[0] != 0
    set_quota(users, "vision", "7")
    try:
        until_is(lambda: users.job(large)["JobState"], "RUNNING")
        assert users.job(large).billing == 7000
    finally:
        set_quota(users, "vision", "2")


def test_whole_nodes_that_could_never_be_had_are_refused(users: Users) -> None:
    refused = users.submit("alice", "sbatch", "--exclusive", ONE)
    assert refused.status == 1
    assert "One task costs 6.5 slices, the quota of 'vision' is 2" in refused.text
