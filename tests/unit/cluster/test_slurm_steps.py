"""A user's job may have tens of thousands of steps; each is a call of slurmctld."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from cluster.slurm import commands
from cluster.slurm.commands import CommandSlurm
from cluster.slurm.job_rows import JOB_FIELDS
from cluster.slurm.pyslurm_records import step_views
from cluster.slurm.run import Reply
from cluster.slurm.unread import ignored

MANY = 20_000
ROW = dict.fromkeys(JOB_FIELDS, "") | {
    "JobId": "7",
    "State": "RUNNING",
    "admin_comment": "slicewise:1 token=ab12 tenant=vision",
    "PriorityLong": "1",
    "UserId": "1000",
}


async def test_a_look_asks_for_few_of_a_jobs_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of them it did not end within its ten seconds, for all tenants."""
    asked: list[str] = []

    async def rows(*_: object) -> tuple[Mapping[str, str], ...]:
        return (ROW, ROW | {"JobId": "8"})

    async def run(*_: object, **__: object) -> str:
        steps = [f"7.{step}" for step in reversed(range(MANY))]
        return "\n".join([*steps, "8.3", "9.1"])

    async def attempt(*_: object, stdin: str = "", **__: object) -> Reply:
        asked.extend(line for line in stdin.splitlines() if line.startswith("show step"))
        return Reply(0, "", "")

    monkeypatch.setattr(commands, "_rows", rows)
    monkeypatch.setattr(commands, "run", run)
    monkeypatch.setattr(commands, "attempt", attempt)
    assert await CommandSlurm().steps() == ()
    assert asked == [*(f"show step 7.{step}" for step in range(8)), "show step 8.3"]


class RunningJob:
    """As pyslurm shows a job of which it knows little."""

    id, state, user_id = 7, "RUNNING", 1000
    admin_comment = "slicewise:1 token=ab12 tenant=vision"

    def __getattr__(self, _: str) -> None:
        return None


def test_so_it_is_with_pyslurm() -> None:
    ports = (
        SimpleNamespace(reserved_ports=f"{21000 + n}", allocated_nodes=()) for n in range(MANY)
    )
    steps = dict(zip(reversed(range(MANY)), ports, strict=True)) | {"batch": SimpleNamespace()}
    views = step_views([RunningJob()], {7: steps}, str, ignored)
    assert [view.step for view in views] == [str(number) for number in range(8)]
