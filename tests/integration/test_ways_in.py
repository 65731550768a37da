"""Every way to ask for GPUs, for two tenants, in all three modes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from jobs_as_users import Job, Modes, Users
from quotas import until_in_force
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.servers.slurm import slurmd_version

pytestmark = pytest.mark.integration

OWN = {"alice": 4000, "bob": 2000}
MOST = {"alice": 4000, "bob": 5000}
"""In millislices; bob's tenant may borrow three slices."""
TENANTS = {"alice": "vision", "bob": "nlp"}


@dataclass(frozen=True)
class Way:
    """A way to ask for GPUs.

    Attributes:
        cost: of each of its jobs, in millislices.
        code: of the refusal, for every tenant. Else it follows from cost and quota.
        is_slurms: without slicewise Slurm itself refuses it.
        jobs: how many it makes.
    """

    options: str
    cost: int = 0
    code: str = ""
    command: str = "sbatch"
    is_slurms: bool = False
    jobs: int = 1

    def code_for(self, user: str) -> str:
        return self.code or ("SW-QUOTA-EXCEEDED" if self.cost > MOST[user] else "")

    def is_weighed_together(self, user: str) -> bool:
        """Whether Slurm may refuse it: since 26.05 it holds all components against a limit."""
        exceeds = self.jobs > 1 and self.jobs * self.cost > OWN[user]
        return exceeds and slurmd_version() >= (26, 5)

    def qos_for(self, user: str) -> set[str]:
        own = f"slicewise_{TENANTS[user]}"
        borrowed = f"{own}_borrowed"
        if self.cost > OWN[user]:
            return {borrowed}
        # What was admitted a moment ago counts until the next look, ended or not.
        may_borrow = MOST[user] > OWN[user] and self.command == "sbatch"
        return {own, borrowed} if may_borrow else {own}


SOCKET = "--sockets-per-node=1 --gpus-per-socket="
WAYS = (
    Way("--gres=gpu:1g.10gb:1", 1000),
    Way("--gres=gpu:1", code="SW-GRES"),
    Way("--gres=gpu", code="SW-GRES"),
    Way("--gres=gpu:auto", 1000, is_slurms=True),
    Way("--gres=gpu:auto:2", 2000, is_slurms=True),
    Way("--gpus=1g.10gb:1", 1000),
    Way("--gpus=2", code="SW-GRES"),
    Way("--gpus=auto:2", 2000, is_slurms=True),
    Way("--gpus-per-node=1g.10gb:1 --nodes=2", 2000),
    Way("--gpus-per-node=2", code="SW-GRES"),
    Way("--gpus-per-node=auto:1 --nodes=2", 2000, is_slurms=True),
    Way("--ntasks=2 --gpus-per-task=1g.10gb:1", 2000),
    Way("--ntasks=2 --gpus-per-task=1", code="SW-GRES"),
    Way("--ntasks=2 --gpus-per-task=auto:1", 2000, is_slurms=True),
    Way(f"{SOCKET}1g.10gb:1", 1000),
    Way(f"{SOCKET}1", code="SW-GRES"),
    Way(f"{SOCKET}auto:1", 1000, is_slurms=True),
    Way("--ntasks=2 --ntasks-per-gpu=1", code="SW-GRES"),
    Way("--gpus=1g.10gb:2 --ntasks-per-gpu=1", 2000),
    Way("--gres=gpu:1g.10gb:1,gpu:1g.18gb:1", 2000),
    Way("--gres=gpu:1g.10gb:2,gpu:1g.10gb:3", 3000),
    Way("--gres=gpu:1g.10gb:1 --nodes=3", 3000),
    Way("--gres=gpu:3g.40gb:1", 3500),
    Way("--gres=gpu:3g.40gb:1 --nodes=2", 7000, is_slurms=True),
    Way("--gres=gpu:1g.10gb:5", 5000),
    Way("--gres=gpu:1g.10gb:6", 6000),
    Way("--gres=gpu:nosuch:1", code="SW-PROFILE-UNKNOWN", is_slurms=True),
    Way("--exclusive", 7000),
    Way("--exclusive --gres=gpu:1g.10gb:1", 7000),
    Way("--array=0-3 --gres=gpu:1g.10gb:1", 1000),
    Way("--array=0-3%2 --gpus=1g.10gb:1", 1000),
    Way("--gres=gpu:1g.10gb:1 : --gres=gpu:1g.18gb:2", jobs=2, cost=1500),
    Way("--gres=gpu:1g.10gb:1 : --gpus=1", code="SW-GRES"),
    Way("--ntasks=2", code="SW-WITHOUT-GPU"),
    Way("--gres=none", code="SW-WITHOUT-GPU"),
    Way("--gres=gpu:1g.10gb:0", code="SW-WITHOUT-GPU"),
    Way("--nodes=4 --exclusive=user", code="SW-JOB-OPTION"),
    Way("--exclusive=user --gres=gpu:1g.10gb:1", code="SW-JOB-OPTION"),
    Way("--nodes=4 --exclusive=mcs", code="SW-JOB-OPTION"),
    Way("--nodes=4 --ntasks-per-node=16", code="SW-WITHOUT-GPU"),
    Way("--nodes=4 --spread-job --mem=0", code="SW-WITHOUT-GPU"),
    Way("--nodelist=gpu[01-04]", code="SW-WITHOUT-GPU"),
    Way("--ntasks=64 --overcommit --nodes=4", code="SW-WITHOUT-GPU"),
    Way("--nodes=4 --core-spec=15", code="SW-WITHOUT-GPU"),
    Way("--nodes=2", code="SW-WITHOUT-GPU", command="salloc"),
    Way("--nodes=2 --exclusive=user", code="SW-JOB-OPTION", command="srun"),
    Way("--gres=gpu:1g.10gb:1 : --ntasks=2", code="SW-WITHOUT-GPU"),
    Way("--gres=gpu:0", code="SW-WITHOUT-GPU"),
    Way("--gres=gpu:0 --ntasks=2 --ntasks-per-gpu=1", code="SW-WITHOUT-GPU"),
    Way("--gres=gpu:1g.10gb:1 --nodes=0-4", code="SW-JOB-OPTION"),
    Way("--gres=gpu:1g.10gb:1", 1000, command="salloc"),
    Way("--gpus=1", code="SW-GRES", command="salloc"),
    Way("--gres=gpu:1g.10gb:1", 1000, command="srun"),
    Way("--gpus-per-node=1", code="SW-GRES", command="srun"),
)


def named(way: Way) -> str:
    return f"{way.command} {way.options}"


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[Users]:
    sandbox.stop("launcher")
    users = Users(sandbox)
    quota = ("tenant-quota", "set")
    users.slicewise(*quota, "vision", "--nominal", "4", "--lending-limit", "4")
    users.slicewise(*quota, "nlp", "--nominal", "2", "--borrowing-limit", "3")
    until_in_force(sandbox, "vision", "nlp")
    yield users
    users.clear()
    users.slicewise(*quota, "nlp", "--nominal", "2", "--borrowing-limit", "0")
    users.slicewise(*quota, "vision", "--nominal", "4", "--lending-limit", "0")
    sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))


@pytest.fixture(scope="module", params=["enforce", "advise", "observe"])
def mode(users: Users, request: pytest.FixtureRequest) -> Iterator[str]:
    modes = Modes(users.sandbox)
    if request.param != "enforce":
        modes.set(request.param)
        # What enforce has left: the next daemon in that mode closes it again.
        opened = ("modify", "qos", "slicewise_gate", "set", "grptres=billing=-1")
        users.sandbox.run("slurm", ("sacctmgr", "-i", *opened))

    def shown() -> tuple[str, str]:
        users.submit("alice", "sbatch", "--hold", "--gres=gpu:1g.10gb:1")
        status = modes.status()
        return status["mode"], status["module_mode"]

    until_is(shown, (request.param, request.param))
    yield str(request.param)
    users.clear()
    if request.param != "enforce":
        modes.set("enforce")


@pytest.mark.parametrize("user", ["alice", "bob"])
@pytest.mark.parametrize("way", WAYS, ids=named)
def test_a_way_to_ask_for_gpus(users: Users, mode: str, way: Way, user: str) -> None:
    held = ("--hold",) if way.command == "sbatch" else ()
    outcome = users.submit(user, way.command, *held, *way.options.split())
    code = way.code_for(user)
    if mode == "enforce" and code:
        assert (outcome.status, list(outcome.jobs)) == (1, [])
        assert code in outcome.text
    elif mode == "enforce" and outcome.status and way.is_weighed_together(user):
        assert "Job violates accounting/QOS policy" in outcome.text
        assert "RUNNING" not in {job.fields["JobState"] for job in outcome.jobs}
    elif mode == "enforce":
        assert outcome.status == 0, outcome.text
        assert len(outcome.jobs) == way.jobs
        check_admitted(outcome.jobs, way, user)
    else:
        assert outcome.status == 0 or way.is_slurms, outcome.text
        assert [job.tag for job in outcome.jobs if job.tag] == []
        # Observed ones read nothing of slicewise, advised ones what would be refused.
        assert ("SW-" in outcome.text) == (mode == "advise" and bool(code)), outcome.text
    users.sandbox.run("root", ("scancel", "--quiet", f"--user={user}"))


def check_admitted(jobs: Sequence[Job], way: Way, user: str) -> None:
    assert sum(job.billing for job in jobs) == way.cost * len(jobs)
    for job in jobs:
        # What is interactive can't be requeued, so it is not moved either.
        movable = " flexible" if way.command == "sbatch" else ""
        assert job.tag.endswith(f" tenant={TENANTS[user]}{movable}")
        assert job["QOS"] in way.qos_for(user)


@pytest.mark.parametrize(
    ("need", "kind"), [("9GiB", "1g.10gb"), ("12GiB", "1g.18gb"), ("30GiB", "3g.40gb")]
)
def test_a_job_that_says_its_need_gets_what_fits(
    users: Users, mode: str, need: str, kind: str
) -> None:
    script = f"#!/bin/sh\n#SLICEWISE need={need}\n#SLICEWISE class=low\nsleep 60\n"
    outcome = users.submit("alice", "sbatch", "--hold", script=script)
    assert outcome.status == 0, outcome.text
    (job,) = outcome.jobs
    assert job.tres.get(f"gres/gpu:{kind}", "0") == str(int(mode == "enforce"))
    assert ("class=low" in job.tag) == (mode == "enforce")


def test_observe_report_says_what_was_decided_in_each_mode(users: Users, mode: str) -> None:
    def report() -> Any:
        return json.loads(users.slicewise("observe", "--json"))

    def refused() -> int:
        rows = report()["refusals"]
        user = users.sandbox.state.users["alice"].name
        wanted = ("SW-GRES", "vision", user)
        found = [one for one in rows if (one["code"], one["tenant"], one["user"]) == wanted]
        return sum(one["submissions"] for one in found)

    before = refused()
    users.submit("alice", "sbatch", "--gpus=2", "--hold")
    until(lambda: refused() > before)
    found = report()
    assert found["modes"][mode] > 0
    assert any("SW-GRES" in hint for hint in found["hints"])
    if mode != "enforce":
        until(lambda: any(one["guaranteed_millislice_s"] for one in report()["tenants"]))
