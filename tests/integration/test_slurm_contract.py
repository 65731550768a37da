"""Every door to Slurm that works here, at the same moment, on a real cluster."""

import asyncio
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from effort import examples
from slurm_contract import (
    ABOVE,
    BELOW,
    LOAN_QOS,
    OWN_QOS,
    LimitsContract,
    LimitsLook,
    Look,
    SlurmContract,
    assert_same,
    limits_on,
    look,
    scene_on,
)

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.unread import ignored
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.pyslurm_client import PyslurmSlurm
from slicewise.cluster.slurm.rest_client import RestSlurm
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.packages import SEARCH_PATH
from slicewise.sandbox.servers.slurm import slurmd_version
from slicewise.sandbox.servers.slurmrestd import slurmrestd

pytestmark = pytest.mark.integration

HAS_SLURMRESTD = shutil.which("slurmrestd", path=SEARCH_PATH) and slurmd_version() >= (25, 11)
DOORS = (
    "commands",
    *(("pyslurm",) if find_spec("pyslurm") else ()),
    *(("slurmrestd",) if HAS_SLURMRESTD else ()),
)
MANY = 5000
ARRAY, TASKS_AT_ONCE = 500, 250
SEED = 2511
CHANGES = (
    ("scontrol", "update", "TimeLimit={number}", "JobId={tasks}"),
    ("scontrol", "update", "Comment=a|b {number}", "JobId={tasks}"),
    ("scontrol", "update", "AdminComment=é {number}", "JobId={tasks}"),
    ("scontrol", "update", "JobName=x y {number}", "JobId={tasks}"),
    ("scontrol", "update", "StartTime=now+{number}hours", "JobId={tasks}"),
    ("scontrol", "update", "Requeue=1", "JobId={tasks}"),
    ("scontrol", "update", "Nice={number}", "JobId={tasks}"),
    ("scontrol", "update", "Dependency=afterok:{dependent}", "JobId={tasks}"),
    ("scontrol", "update", "Features=A100", "JobId={tasks}"),
    ("scontrol", "hold", "{tasks}"),
    ("scontrol", "uhold", "{tasks}"),
    ("scancel", "{tasks}"),
)
UNFIT = ("pyslurm is for Slurm", "pyslurm of Slurm", "ImportError")


@pytest.fixture(scope="module")
def looks(sandbox: Sandbox, without_admission: None) -> Iterator[Mapping[str, Look]]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sandbox.environment("root").items():
            patch.setenv(name, value)
        scene, found = asyncio.run(_looks(sandbox))
        yield found
        sandbox.run("root", ("scancel", *map(str, scene)))


async def _looks(sandbox: Sandbox) -> tuple[frozenset[int], Mapping[str, Look]]:
    async with scene_on(sandbox) as scene:
        found = await _looks_at(scene)
        if "slurmrestd" in DOORS:
            with by_slurmrestd(sandbox) as slurm:
                # After this look it is asked only what has changed since.
                await slurm.jobs()
                found["slurmrestd"] = await look(slurm, scene)
        return scene, found


@contextmanager
def by_slurmrestd(sandbox: Sandbox) -> Iterator[RestSlurm]:
    troubles: list[Mapping[str, object]] = []
    with slurmrestd(sandbox) as (socket, _):
        yield RestSlurm(
            str(socket),
            None,
            lambda *_, **__: None,
            lambda *_, **fields: troubles.append(fields),
            ignored,
        )
    assert troubles == []


async def _looks_at(scene: frozenset[int]) -> dict[str, Look]:
    found = {"commands": await look(CommandSlurm(), scene)}
    if "pyslurm" in DOORS:
        troubles: list[Mapping[str, object]] = []
        slurm = PyslurmSlurm(
            lambda *_, **__: None, lambda *_, **fields: troubles.append(fields), ignored
        )
        found["pyslurm"] = await look(slurm, scene)
        await slurm.close()
        # One that is of another Slurm asks the commands.
        assert [one for one in troubles if not str(one["why"]).startswith(UNFIT)] == []
    return found


@pytest.fixture(params=DOORS)
def seen(request: pytest.FixtureRequest, looks: Mapping[str, Look]) -> Look:
    return looks[request.param]


class TestOnACluster(SlurmContract):
    def test_all_doors_say_the_same(self, looks: Mapping[str, Look], seen: Look) -> None:
        assert_same(seen, looks["commands"])


def _filled(sandbox: Sandbox, count: int, rng: random.Random) -> list[str]:
    """Submit array tasks until ``count`` of them have records of their own; return the arrays' ids.

    What users may choose is drawn: names, comments, limits, memory, requeueing and times.
    """
    arrays = []
    while count > 0:
        size = min(ARRAY, count)
        count -= size
        options = (
            f"--array=0-{size}",
            "--hold",
            "--output=/dev/null",
            f"--job-name={rng.choice(('train', 'a b = c', 'x|y', 'None-such', 'π'))}",
            f"--comment={rng.choice(('', 'why not', 'JobId=1 State=RUNNING', 'a,b=c'))}",
            f"--time={rng.choice((1, 10, 90, 10_000))}",
            f"--mem={rng.choice((20, 100))}",
            *rng.choice(((), ("--requeue",), ("--nice=5",), ("--begin=now+9hours",))),
        )
        argv = ("sbatch", "--parsable", *options)
        array = sandbox.run("alice", argv, input="#!/bin/bash\nsleep 3600\n").stdout.strip()
        # Tasks that are changed get records of their own while another one, the last, does not.
        for first in range(0, size, TASKS_AT_ONCE):
            tasks = f"{array}_[{first}-{min(first + TASKS_AT_ONCE, size) - 1}]"
            words = rng.choice(("TimeLimit=5", "Comment=changed", "Priority=0", "Nice=7"))
            sandbox.run("root", ("scontrol", "update", f"JobId={tasks}", words))
        arrays.append(array)
    return arrays


@pytest.fixture(scope="module")
def limits(sandbox: Sandbox) -> Iterator[list[LimitsLook]]:
    alice = sandbox.state.users["alice"].name

    def sacctmgr(*words: str, check: bool = True) -> None:
        sandbox.run("root", ("sacctmgr", "-i", *words), check=check)

    sacctmgr("add", "account", ABOVE, "parent=root")
    sacctmgr("add", "account", BELOW, f"parent={ABOVE}")
    sacctmgr("add", "user", alice, f"account={BELOW}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sandbox.environment("root").items():
            patch.setenv(name, value)
        yield asyncio.run(limits_on(CommandSlurm(), "sandbox", alice))
    sacctmgr("delete", "user", alice, f"account={BELOW}")
    sacctmgr("delete", "account", f"name={BELOW},{ABOVE}")
    sacctmgr("delete", "qos", f"{OWN_QOS},{LOAN_QOS}", check=False)


class TestLimitsOnACluster(LimitsContract):
    """All tests are the contract's."""


@pytest.fixture
def many(sandbox: Sandbox, without_admission: None) -> Iterator[tuple[list[str], random.Random]]:
    """Arrays of 5,000 tasks with records of their own, and what to draw changes of them with."""
    rng = random.Random(SEED)  # noqa: S311 -- an input of a test
    arrays = _filled(sandbox, MANY, rng)
    yield arrays, rng
    sandbox.run("root", ("scancel", *arrays))


@pytest.mark.nightly
@pytest.mark.skipif("pyslurm" not in DOORS, reason="pyslurm is not installed")
async def test_both_ways_say_the_same_of_thousands_of_jobs_whatever_users_change(
    sandbox: Sandbox, many: tuple[list[str], random.Random], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays, rng = many
    for name, value in sandbox.environment("root").items():
        monkeypatch.setenv(name, value)
    used: list[str] = []
    commands = CommandSlurm()
    slurm = PyslurmSlurm(
        lambda _event, **fields: used.append(str(fields["implementation"])),
        lambda _event, **fields: used.append(str(fields["why"])),
        ignored,
    )
    try:
        for turn in range(examples(2, nightly=20)):
            for _ in range(10):
                _change(sandbox, arrays, rng)
            by_id = {job.job_id: job for job in await commands.jobs()}
            assert len(by_id) > MANY
            seen = {job.job_id: job for job in await slurm.jobs()}
            assert seen.keys() == by_id.keys(), turn
            assert [(seen[one], by_id[one]) for one in by_id if seen[one] != by_id[one]] == [], turn
            running = [job for job in seen.values() if job.state is JobState.RUNNING]
            assert set(await slurm.steps(running)) == set(await commands.steps(running))
    finally:
        await slurm.close()
    assert used == ["pyslurm"]


def _change(sandbox: Sandbox, arrays: list[str], rng: random.Random) -> None:
    first = rng.randrange(400)
    words = {
        "tasks": f"{rng.choice(arrays)}_[{first}-{first + rng.randrange(20)}]",
        "number": str(rng.randrange(1, 60)),
        "dependent": rng.choice(arrays),
    }
    argv = tuple(word.format(**words) for word in rng.choice(CHANGES))
    # Some are refused: of tasks that have ended.
    sandbox.run("root", argv, check=False)
