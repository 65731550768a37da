"""The model of slurmctld and a real one, which get the same jobs and commands."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from statistics import mean

import pytest
from waiting import until_done

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import Target, Tasks
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.inventory import CPUS_PER_NODE, NODES, PARTITION
from slicewise.simulation.rules.cluster import Scheduling, SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest, QosLimits
from slicewise.simulation.rules.slurm_model.model import SlurmModel

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("without_admission")]

OWN, LOAN = "model_own", "model_loan"
EXPIRES_S = 5.0
"""AuthInfo=cred_expire of the sandbox."""
SETTLED_S = 20.0
"""By the model's clock."""
SCHEDULING = Scheduling(
    interval_s=0.0,
    backfill_s=1.0,
    requeue_wait_s=EXPIRES_S,
    preempts_youngest_first=True,
    start_s=0.0,
    complete_s=0.0,
)
MAX_MIN = 30
"""MaxTime of the partition, where it has one."""
APART_S = 1.1
"""Slurm knows to the second when a job started or was requeued, which its order depends on."""
Shown = Mapping[str, tuple[str, str]]


@pytest.fixture
def slurm(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandSlurm]:
    """Two QOS of which the one has half of the cluster and preempts the other."""
    for name, value in sandbox.environment("root").items():
        monkeypatch.setenv(name, value)

    def sacctmgr(*words: str) -> None:
        sandbox.run("root", ("sacctmgr", "-i", *words))

    sacctmgr("add", "qos", LOAN, "set", "preemptmode=requeue")
    limit = f"grptres=cpu={2 * CPUS_PER_NODE}"
    sacctmgr("add", "qos", OWN, "set", limit, f"preempt={LOAN}")
    sacctmgr("modify", "account", "vision", "set", f"qos+={OWN},{LOAN}")
    yield CommandSlurm()
    sandbox.run("root", ("scancel", "--user=alice"), check=False)
    sacctmgr("modify", "account", "vision", "set", f"qos-={OWN},{LOAN}")
    sacctmgr("delete", "qos", f"{OWN},{LOAN}")


@pytest.fixture
def max_time(sandbox: Sandbox, slurm: CommandSlurm) -> Iterator[None]:
    """The partition has a MaxTime until the fixture's jobs are gone."""
    partition = ("scontrol", "update", f"partition={PARTITION}")
    sandbox.run("root", (*partition, f"MaxTime={MAX_MIN}"))
    yield
    sandbox.run("root", (*partition, "MaxTime=UNLIMITED"))


class Pair:
    """A real Slurm and its model. Jobs have names, and each wants a whole node."""

    def __init__(
        self, slurm: CommandSlurm, sandbox: Sandbox, max_time_s: Mapping[str, int] | None = None
    ) -> None:
        self._slurm, self._sandbox = slurm, sandbox
        nodes = (
            SimulatedNode(one.name, frozenset({PARTITION}), {}, CPUS_PER_NODE) for one in NODES
        )
        cluster = SimulatedCluster(
            *("sandbox", tuple(nodes), SCHEDULING, {"vision": "root"}), max_time_s=max_time_s or {}
        )
        self._model = SlurmModel(cluster, start_s=0.0, costs={})
        self._model.set_qos(LOAN, QosLimits())
        half = {"cpu": 2 * CPUS_PER_NODE}
        self._model.set_qos(OWN, QosLimits(grp_tres=half, preempts=frozenset({LOAN})))
        self._ids: dict[str, tuple[int, int]] = {}

    def submit(
        self, name: str, qos: str, *, nodes: int = 1, minutes: int = 10, tasks: int = 0
    ) -> None:
        """Submit a job; an array is held."""
        argv = ["sbatch", "--parsable", "--output=/dev/null", "--mem=20", "--requeue"]
        argv += [f"--job-name={name}", f"--qos={qos}", f"--nodes={nodes}", f"--time={minutes}"]
        argv += ["--ntasks-per-node=1", f"--cpus-per-task={CPUS_PER_NODE}"]
        argv += ["--hold", f"--array=0-{tasks - 1}"] if tasks else []
        real = int(self._sandbox.run("alice", (*argv, "--wrap=sleep 600")).stdout)
        request = ModelRequest(
            *("alice", 1, "vision", PARTITION, qos, {}),
            run_s=600.0,
            nodes=nodes,
            cpus=CPUS_PER_NODE,
            time_limit_s=60 * minutes,
            name=name,
            tasks=tasks,
            held=bool(tasks),
        )
        self._ids[name] = (real, self._model.submit(request))

    async def do(self, change: str, name: str, *tasks: int) -> None:
        """Make the same change here and there."""
        real, modelled = (_target(number, tasks) for number in self._ids[name])
        await getattr(self._slurm, change)(real)
        getattr(self._model, change)(modelled)

    async def agree(self) -> Shown:
        """Wait until both show the same, and return it; the next change is in another second."""
        self._model.advance(self._model.now_s + SETTLED_S)
        expected = _shown(self._model.jobs)

        async def seen() -> Shown:
            own = {real for real, _ in self._ids.values()}
            jobs = await self._slurm.jobs()
            return _shown(one for one in jobs if (one.array_job_id or one.job_id) in own)

        try:
            shown = await until_done(seen, lambda now: now == expected)
        except AssertionError:
            assert await seen() == expected
            raise
        await asyncio.sleep(APART_S)
        return shown


def _target(number: int, tasks: tuple[int, ...]) -> Target:
    return Tasks(number, frozenset(tasks)) if tasks else number


def _shown(jobs: Iterable[JobView]) -> Shown:
    """State and reason of each job that has not ended."""
    return {
        f"{one.name}{_index(one)}": (one.state, one.reason)
        for one in jobs
        if one.state is not JobState.ENDED
    }


def _index(job: JobView) -> str:
    if job.untouched:
        return str(sorted(job.untouched))
    return "" if job.task_index is None else f"_{job.task_index}"


async def test_the_model_shows_what_slurm_shows(slurm: CommandSlurm, sandbox: Sandbox) -> None:
    pair = Pair(slurm, sandbox)
    for number in range(1, 5):
        pair.submit(f"loan{number}", LOAN)
        assert {state for state, _ in (await pair.agree()).values()} == {"RUNNING"}

    pair.submit("own", OWN, tasks=3)
    await pair.agree()
    await pair.do("hold", "own")
    await pair.agree()
    await pair.do("release", "own", 0)
    await pair.agree()
    await pair.do("release", "own", 1)
    shown = await pair.agree()
    assert shown["own_0"][0] == shown["own_1"][0] == "RUNNING"
    assert [shown[f"loan{number}"][0] for number in range(1, 5)] == [
        *("RUNNING", "RUNNING", "PENDING", "PENDING"),
    ]
    await pair.do("release", "own", 2)
    assert (await pair.agree())["own_2"] == ("PENDING", "QOSGrpCpuLimit")
    pair.submit("wide", LOAN, nodes=2)
    pair.submit("short", LOAN, minutes=2)
    assert (await pair.agree())["short"] == ("PENDING", "Priority")

    await pair.do("requeue_hold", "own", 0)
    shown = await pair.agree()
    assert shown["own_0"] == ("PENDING", "job requeued in held state")
    assert shown["own_2"] == ("RUNNING", "None")
    for number in (1, 2):
        await pair.do("cancel", f"loan{number}")
        await pair.agree()
    await pair.do("cancel", "own", 1)
    shown = await pair.agree()
    assert (shown["wide"][1], shown["short"][0]) == ("Resources", "RUNNING")
    await pair.do("release", "own", 0)
    assert (await pair.agree())["own_0"] == ("RUNNING", "None")


@pytest.mark.usefixtures("max_time")
async def test_a_job_above_max_time_waits_and_keeps_nobody_from_starting(
    slurm: CommandSlurm, sandbox: Sandbox
) -> None:
    pair = Pair(slurm, sandbox, {PARTITION: MAX_MIN * 60})
    pair.submit("long", OWN, minutes=MAX_MIN + 1)
    assert (await pair.agree())["long"] == ("PENDING", "PartitionTimeLimit")
    pair.submit("short", LOAN, minutes=MAX_MIN)
    assert (await pair.agree())["short"][0] == "RUNNING"


SHAPES = ((4, 1), (16, 1), (8, 2), (12, 1), (8, 1))
"""CPUs on a node, and nodes."""
LIMITS_MIN = (1, 5, 2)


async def test_a_queue_waits_as_long_as_in_the_model(slurm: CommandSlurm, sandbox: Sandbox) -> None:
    """Jobs of several sizes and limits come at once, so that some are backfilled.

    The model is told when they came and how long each ran: on a busy machine that is another time.
    A second more or less moves jobs past each other, so only sums are alike.
    """
    asked = dict(_submitted(sandbox, number) for number in range(24))

    async def ended() -> Mapping[int, JobView]:
        jobs = {one.job_id: one for one in await slurm.jobs() if one.job_id in asked}
        return {number: one for number, one in jobs.items() if one.state is JobState.ENDED}

    really = await until_done(ended, lambda now: len(now) == len(asked), 240.0)
    runs_s = {
        number: float((one.end_s or 0) - (one.start_s or 0)) for number, one in really.items()
    }
    # slurmctld has whole seconds: on average half a second is missing.
    starts_s = {number: (one.start_s or 0) + 0.5 for number, one in really.items()}
    modelled_s = _modelled(asked, runs_s)

    def waits(starts: Mapping[int, float]) -> list[float]:
        return [starts[number] - at_s for number, (at_s, _) in asked.items()]

    def took_s(starts: Mapping[int, float]) -> float:
        return max(starts[number] + runs_s[number] for number in asked) - asked[min(asked)][0]

    assert mean(waits(starts_s)) > 3.0, "there was a queue"
    assert mean(waits(modelled_s)) == pytest.approx(mean(waits(starts_s)), rel=0.25, abs=1.5)
    in_order = [
        (starts_s[one] < starts_s[other]) == (modelled_s[one] < modelled_s[other])
        for one, other in combinations(asked, 2)
        if abs(starts_s[one] - starts_s[other]) > 1.0
    ]
    assert mean(in_order) > 0.8
    assert took_s(modelled_s) == pytest.approx(took_s(starts_s), rel=0.2), "as much was in use"


def _submitted(sandbox: Sandbox, nth: int) -> tuple[int, tuple[float, ModelRequest]]:
    """Submit one more job; return its id, when it came, and the same job for the model."""
    (cpus, nodes), minutes = SHAPES[nth % len(SHAPES)], LIMITS_MIN[nth % len(LIMITS_MIN)]
    argv = ("sbatch", "--parsable", "--output=/dev/null", "--mem=20", f"--qos={LOAN}")
    argv += (f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}")
    argv += (f"--time={minutes}", f"--wrap=sleep {2 + nth * 7 % 5}")
    began_s = time.time()
    number = int(sandbox.run("alice", argv).stdout)
    request = ModelRequest(
        *("alice", 1, "vision", PARTITION, LOAN, {}, 0.0, nodes, cpus), time_limit_s=60 * minutes
    )
    return number, ((began_s + time.time()) / 2, request)


def _modelled(
    asked: Mapping[int, tuple[float, ModelRequest]], runs_s: Mapping[int, float]
) -> Mapping[int, float]:
    """When each job starts in the model."""
    nodes = (SimulatedNode(one.name, frozenset({PARTITION}), {}, CPUS_PER_NODE) for one in NODES)
    promptly = replace(SCHEDULING, complete_s=0.1, full_run_s=2.0)
    cluster = SimulatedCluster("sandbox", tuple(nodes), promptly, {"vision": "root"})
    model = SlurmModel(cluster, start_s=float(int(asked[min(asked)][0])), costs={})
    numbers = {}
    for number, (at_s, request) in asked.items():
        model.advance(at_s)
        numbers[model.submit(replace(request, run_s=runs_s[number]))] = number
    model.advance(model.now_s + 300.0)
    return {numbers[one.job_id]: one.start_s or 0.0 for one in model.take_ended()}
