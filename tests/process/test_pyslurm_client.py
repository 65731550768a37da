"""Tests that the commands answer a call whatever happens to the process that holds pyslurm."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from signal import SIGKILL

import pytest
from stand_ins.pyslurm_stand_in import ASSETS, stand_in
from waiting import PATIENCE_S, until_true

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.language.slurm.unread import ignored
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm import pyslurm_client
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.open import open_lasting_slurm, open_slurm
from slicewise.cluster.slurm.pyslurm_client import PyslurmSlurm, PyslurmWorker

VERSION = "25.11.7"
JOBS = 12


class Log:
    """What was logged: events, and the fields of the last one."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fields: dict[str, object] = {}

    def __call__(self, event: str, /, **fields: object) -> None:
        self.events.append(event)
        self.fields = fields


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_in(tmp_path, VERSION, monkeypatch)
    return tmp_path


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def slurm(place: Path, log: Log) -> AsyncIterator[PyslurmSlurm]:
    door = PyslurmSlurm(log, log, ignored)
    yield door
    await door.close()


def asked(place: Path) -> int:
    """How many requests the stand-in for pyslurm got to answer."""
    file = place / "asked"
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


def let(place: Path, trouble: str) -> None:
    (place / "trouble").write_text(trouble, encoding="utf-8")


async def test_one_process_answers_all(place: Path, slurm: PyslurmSlurm, log: Log) -> None:
    jobs = await slurm.jobs()
    assert len(jobs) == JOBS
    assert len(await slurm.steps(jobs)) == 2
    assert (await slurm.batch_script(1)).startswith("#!/bin/bash\n")
    assert (log.events, asked(place)) == (["slurm_by"], 3)
    assert log.fields == {"implementation": "pyslurm", "version": "25.11.7"}


async def test_questions_at_the_same_time_get_their_own_answers(slurm: PyslurmSlurm) -> None:
    jobs, script, again = await asyncio.gather(slurm.jobs(), slurm.batch_script(1), slurm.jobs())
    assert (len(jobs), script[:2], again) == (JOBS, "#!", jobs)


async def test_index_lists_are_not_cut(place: Path, slurm: PyslurmSlurm) -> None:
    await slurm.jobs()
    assert (place / "asked").read_text(encoding="utf-8") == "0\n"


# Why, with which status its process ended, when it is tried again.
TROUBLES = {
    "down": ("RPCError: Unable to contact slurm controller (connect failure)", -9, 5.0),
    "refuses": ("RPCError: Unable to contact slurm controller", -9, 5.0),
    "hangs": ("no answer within 0.5 s", -9, 30.0),
    "exits": ("its process ended", 1, 30.0),
    "crashes": ("its process ended", -11, 30.0),
    "has no slurm.conf": ("its process ended", 1, 600.0),
    "does not load": ("ImportError: undefined symbol: slurm_something", -9, 600.0),
    "is old": ("pyslurm of Slurm 22.5.8 with a library of API 44 is not tested", -9, 600.0),
    "has another library": (
        "pyslurm of Slurm 25.11.7 with a library of API 45 is not tested",
        -9,
        600.0,
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_the_commands_answer_instead(
    place: Path, slurm: PyslurmSlurm, log: Log, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(pyslurm_client, "DEADLINE_S", PATIENCE_S)
    if trouble == "hangs":
        # Its process is up by then: to start it may take a busy machine longer than the deadline.
        await slurm.jobs()
        monkeypatch.setattr(pyslurm_client, "DEADLINE_S", 0.5)
    let(place, trouble)
    why, status, retry_s = TROUBLES[trouble]
    assert len(await slurm.jobs()) == JOBS
    assert (log.events[-1], log.fields["request"]) == ("pyslurm_failed", "jobs")
    assert (str(log.fields["why"]), log.fields["retry_s"]) == (why, retry_s)
    assert log.fields["status"] == status


async def test_a_record_that_is_not_as_expected_is_left_to_the_commands(
    place: Path, slurm: PyslurmSlurm, log: Log
) -> None:
    recorded = json.loads((place / "pyslurm.json").read_text(encoding="utf-8"))
    rest = next(job for job in recorded["jobs"] if job["id"] == 1)
    rest["array_tasks_waiting"] = "10,12,14,16,..."
    (place / "pyslurm.json").write_text(json.dumps(recorded), encoding="utf-8")
    assert len(await slurm.jobs()) == JOBS
    assert "job 1: array_id is " in str(log.fields["why"])


async def test_another_slurmctld_than_pyslurms_is_left_to_the_commands(
    place: Path, slurm: PyslurmSlurm, log: Log
) -> None:
    shown = "#!/bin/sh\necho SLURM_VERSION = 26.05.1\n"
    (place / "scontrol").write_text(shown, encoding="utf-8")
    assert len(await slurm.jobs()) == JOBS
    why = "pyslurm is for Slurm 25.11.7, slurmctld is 26.5.1"
    assert (str(log.fields["why"]), log.fields["retry_s"]) == (why, 600.0)


async def test_it_rests_after_a_failure_and_is_tried_anew(
    place: Path, slurm: PyslurmSlurm, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(place, "refuses")
    for _ in range(3):
        await slurm.jobs()
    assert (log.events, asked(place)) == (["slurm_by", "pyslurm_failed"], 1)
    let(place, "")
    monkeypatch.setattr(slurm._preferred, "_rest_until_s", 0.0)
    assert len(await slurm.jobs()) == JOBS
    assert (log.events[-1], asked(place)) == ("slurm_by", 2)


async def test_a_call_given_up_leaves_no_answer_to_the_next(
    place: Path, slurm: PyslurmSlurm, log: Log
) -> None:
    let(place, "hangs")
    call = asyncio.create_task(slurm.jobs())
    await until_true(lambda: asked(place))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    let(place, "")
    assert len(await slurm.jobs()) == JOBS
    assert log.events == ["slurm_by", "slurm_by"]


async def test_the_process_ends_with_the_one_that_asks(place: Path) -> None:
    worker = PyslurmWorker()
    await worker.start()
    process = worker._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert await process.wait() == 0


async def test_it_ends_though_nobody_has_read_its_answer() -> None:
    worker = PyslurmWorker()
    worker._process = await asyncio.create_subprocess_exec("yes", stdin=PIPE, stdout=PIPE)
    replies = worker._process.stdout
    assert replies is not None
    # So much is unread that asyncio reads no more.
    await until_true(lambda: len(replies._buffer) > 2 * replies._limit)  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE_S):
        assert await worker.end() == -SIGKILL


def settings(which: str) -> Settings:
    cluster = {"name": "test", "partitions": ["gpu"]}
    gpus = {"A100-80GB": {"types": ["1g.10gb"]}}
    return Settings.model_validate({"cluster": cluster, "gpus": gpus, "daemon": {"slurm": which}})


async def test_closing_leaves_no_process(place: Path, log: Log) -> None:
    async with open_lasting_slurm(settings("pyslurm"), log, log, ignored) as door:
        await door.jobs()
        assert isinstance(door, PyslurmSlurm)
        process = door._worker._process
    assert process is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def chosen(which: str, log: Log) -> type[Slurm]:
    async with open_lasting_slurm(settings(which), log, log, ignored) as door:
        return type(door)


async def test_the_choice(place: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await chosen("commands", log) is CommandSlurm
    assert (log.events, log.fields) == (["slurm_by"], {"implementation": "commands"})
    monkeypatch.syspath_prepend(str(ASSETS / "stand_in"))
    assert await chosen("auto", log) is PyslurmSlurm
    assert await chosen("pyslurm", log) is PyslurmSlurm


@pytest.mark.parametrize("which", ["auto", "commands", "pyslurm"])
def test_a_command_starts_no_process_for_pyslurm(
    place: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.syspath_prepend(str(ASSETS / "stand_in"))
    assert type(open_slurm(settings(which))) is CommandSlurm
    assert type(open_slurm(None)) is CommandSlurm


async def test_what_is_demanded_must_be_there(place: Path, log: Log) -> None:
    let(place, "does not load")
    with pytest.raises(SlicewiseError, match=r"ImportError: undefined.*\[SW-PROGRAM\]"):
        await chosen("pyslurm", log)
