"""Tests that a job with tens of thousands of steps costs few calls of slurmctld."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.slurm.job_rows import JOB_FIELDS, parse_jobs
from slicewise.cluster.language.slurm.unread import ignored
from slicewise.cluster.slurm import running_steps
from slicewise.cluster.slurm.pyslurm_records import step_views
from slicewise.cluster.slurm.run_command import Reply
from slicewise.cluster.slurm.running_steps import StepReader

MANY = 20_000
ROW = dict.fromkeys(JOB_FIELDS, "") | {
    "State": "RUNNING",
    "PriorityLong": "1",
    "UserId": "1000",
    "RestartCnt": "0",
}


def job(job_id: int, **more: str) -> JobView:
    (found,) = parse_jobs([ROW | {"JobId": str(job_id)} | more], {}, ignored)
    return found


class Slurmctld:
    """Lists these steps; of each that is asked for it says what ``words`` make of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.listed: list[str] = []
        self.asked: list[str] = []
        self.words: Callable[[str], str] = with_port
        patch.setattr(running_steps, "run", self._run)
        patch.setattr(running_steps, "attempt", self._attempt)

    async def _run(self, *_: object, **__: object) -> str:
        return "\n".join(self.listed)

    async def _attempt(self, *_: object, stdin: str = "", **__: object) -> Reply:
        lines = stdin.splitlines()
        mark = lines[1].rpartition(" ")[2]
        self.asked = [line.removeprefix("show step ") for line in lines[::2]]
        return Reply(0, "".join(f"{self.words(step)}{mark}\n" for step in self.asked), "")


def with_port(step: str) -> str:
    port = 20000 + int(step.partition(".")[2])
    return f"StepId={step}\n   State=RUNNING NodeList=gpu01\n   ResvPorts={port}\n"


@pytest.fixture
def slurmctld(monkeypatch: pytest.MonkeyPatch) -> Slurmctld:
    return Slurmctld(monkeypatch)


async def ports(reader: StepReader, *jobs: JobView) -> Mapping[tuple[int, str], tuple[int, ...]]:
    return {(view.job_id, view.step): view.ports for view in await reader.read(jobs)}


async def test_a_look_asks_for_few_of_a_jobs_steps(slurmctld: Slurmctld) -> None:
    """With all of them it did not end within its ten seconds, for all tenants."""
    slurmctld.listed = [*(f"7.{step}" for step in reversed(range(MANY))), "8.3", "9.1"]
    found = await ports(StepReader(ignored), job(7), job(8))
    assert slurmctld.asked == [*(f"7.{step}" for step in range(8)), "8.3"]
    assert found == {(7, str(step)): (20000 + step,) for step in range(8)} | {(8, "3"): (20003,)}


async def test_ports_are_asked_for_once(slurmctld: Slurmctld) -> None:
    reader = StepReader(ignored)
    slurmctld.listed = ["7.0", "8.1"]
    first = await ports(reader, job(7), job(8))
    slurmctld.listed = ["7.0", "8.1", "8.2"]
    assert await ports(reader, job(7), job(8)) == {**first, (8, "2"): (20002,)}
    assert slurmctld.asked == ["8.2"]


async def test_a_step_that_has_ended_has_no_ports(slurmctld: Slurmctld) -> None:
    reader = StepReader(ignored)
    slurmctld.listed = ["7.0"]
    assert await ports(reader, job(7))
    slurmctld.listed = []
    assert await ports(reader, job(7)) == {}


async def test_without_jobs_nothing_is_asked(slurmctld: Slurmctld) -> None:
    slurmctld.listed = ["7.0"]
    assert await ports(StepReader(ignored)) == {}
    assert slurmctld.asked == []


async def test_a_run_after_a_requeue_has_ports_of_its_own(slurmctld: Slurmctld) -> None:
    """Its step has the number that the last run's had."""
    reader = StepReader(ignored)
    slurmctld.listed = ["7.0"]
    await ports(reader, job(7))
    slurmctld.words = lambda step: with_port(step).replace("20000", "21000")
    assert await ports(reader, job(7, RestartCnt="1")) == {(7, "0"): (21000,)}


async def test_ports_that_come_later_are_seen(slurmctld: Slurmctld) -> None:
    reader = StepReader(ignored)
    slurmctld.listed = ["7.0", "8.0"]
    slurmctld.words = lambda step: "" if step == "7.0" else with_port(step)
    assert await ports(reader, job(7), job(8)) == {(8, "0"): (20000,)}
    slurmctld.words = with_port
    assert await ports(reader, job(7), job(8)) == {(8, "0"): (20000,), (7, "0"): (20000,)}
    assert slurmctld.asked == ["7.0"]


@pytest.mark.parametrize("ports", ["", "   ResvPorts=(null)\n", "   ResvPorts=\n"])
async def test_that_a_step_has_no_ports_is_asked_for_once(slurmctld: Slurmctld, ports: str) -> None:
    """At each look each further srun of a replica was a call of slurmctld."""
    reader = StepReader(ignored)
    slurmctld.listed = ["7.0", "7.1", "8.0"]
    state = {"7.0": "PENDING", "7.1": "RUNNING", "8.0": "RUNNING"}
    slurmctld.words = lambda step: (
        f"StepId={step}\n   State={state[step]} Partition=gpu NodeList=gpu01\n{ports}"
    )
    for _ in range(2):
        assert await reader.read([job(7), job(8)]) == ()
    # What does not run yet may get some.
    assert slurmctld.asked == ["7.0"]


async def test_a_task_of_an_array_is_asked_for_by_its_own_number(slurmctld: Slurmctld) -> None:
    slurmctld.listed = ["814_3.0"]
    task = job(900, ArrayJobId="814", ArrayTaskId="3")
    assert await ports(StepReader(ignored), task) == {(900, "0"): (20000,)}
    assert slurmctld.asked == ["900.0"]


def test_so_it_is_with_pyslurm() -> None:
    listed = (
        SimpleNamespace(reserved_ports=f"{21000 + n}", allocated_nodes=()) for n in range(MANY)
    )
    known = dict(zip(reversed(range(MANY)), listed, strict=True)) | {"batch": SimpleNamespace()}
    views = step_views([7, 8], {7: known}, ignored)
    assert [view.step for view in views] == [str(number) for number in range(8)]
