import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from builders.settings import site_settings

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.asked import RequestCount
from slicewise.cluster.language.slurm.unread import Unread, ignored
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.open import open_lasting_slurm, open_slurm
from slicewise.cluster.slurm.rest_client import RestSlurm
from slicewise.cluster.slurm.rest_records import job_view

pytestmark = pytest.mark.usefixtures("clock")

BY_COMMANDS = ("what the commands said",)


def number(value: int, *, infinite: bool = False) -> Mapping[str, Any]:
    return {"set": True, "infinite": infinite, "number": value}


UNSET = {"set": False, "infinite": False, "number": 0}
JOB: Mapping[str, Any] = {
    "job_id": 7,
    "array_job_id": number(0),
    "array_task_id": UNSET,
    "array_task_string": "",
    "name": "train",
    "user_id": 1000,
    "user_name": "",
    "account": "vision",
    "partition": "gpu",
    "qos": "normal",
    "job_state": ["PENDING"],
    "state_reason": "JobHeldUser",
    "state_description": "",
    "priority": number(0),
    "admin_comment": "",
    "comment": "",
    "tres_alloc_str": "",
    "tres_req_str": "cpu=1,mem=20M,gres/gpu=1,gres/gpu:1g.10gb=1",
    "tres_per_node": "gres/gpu:1g.10gb:1",
    "tres_per_job": "",
    "tres_per_socket": "",
    "tres_per_task": "",
    "tasks": number(1),
    "gres_detail": [],
    "nodes": "",
    "submit_time": number(1_700_000_000),
    "start_time": number(0),
    "end_time": number(0),
    "eligible_time": UNSET,
    "time_limit": number(10),
    "restart_cnt": 0,
    "het_job_id": number(0),
}


def shown(*jobs: Mapping[str, Any], update_s: int = 1_700_000_000) -> Mapping[str, Any]:
    """An answer of slurmrestd."""
    return {"jobs": list(jobs), "last_update": number(update_s)}


def seen(**changes: object) -> Any:
    return job_view({**JOB, **changes}, "user{}".format, ignored)


def test_a_pending_job_is_read_by_what_it_asks_for() -> None:
    job = seen()
    assert (job.job_id, job.user, job.state, job.held) == (7, "user1000", JobState.PENDING, True)
    assert job.tres["gres/gpu:1g.10gb"] == "1"
    assert (job.time_limit_s, job.start_s, job.end_s, job.eligible_s) == (600, None, None, None)
    assert seen(time_limit=number(0, infinite=True)).time_limit_s is None
    assert seen(user_name="alice").user == "alice"


@pytest.mark.parametrize(
    ("words", "state", "ended"),
    [
        (["RUNNING"], JobState.RUNNING, ""),
        (["CANCELLED", "COMPLETING"], JobState.COMPLETING, ""),
        (["CANCELLED"], JobState.ENDED, "CANCELLED"),
        (["PENDING", "REQUEUE_HOLD"], JobState.PENDING, ""),
        (["PENDING", "SPECIAL_EXIT"], JobState.SPECIAL_EXIT, ""),
        (["RUNNING", "SIGNALING"], JobState.RUNNING, ""),
    ],
)
def test_of_several_words_the_one_that_squeue_shows_counts(
    words: list[str], state: JobState, ended: str
) -> None:
    job = seen(job_state=words)
    assert (job.state, job.ended, job.unread) == (state, ended, frozenset())


def test_an_unknown_state_is_reported_and_does_not_count_as_ended() -> None:
    told: list[Unread] = []
    job = job_view({**JOB, "job_state": ["DREAMING"]}, str, told.append)
    assert (job.state, [one.field for one in told]) == (JobState.OTHER, ["job_state"])


def test_untouched_tasks_are_one_record_and_a_single_one_is_a_task() -> None:
    several = seen(array_job_id=number(7), array_task_string="0-4:2,9%4")
    assert (several.task_index, several.untouched) == (None, frozenset({0, 2, 4, 9}))
    single = seen(array_job_id=number(7), array_task_string="3")
    assert (single.task_index, single.untouched) == (3, frozenset())
    first = seen(array_job_id=number(7), array_task_id=number(0))
    assert (first.array_job_id, first.task_index) == (7, 0)
    # A list that was cut can't be read.
    assert "task_index" in seen(array_job_id=number(7), array_task_string="0-4,9,...").unread


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    async def version(_self: object) -> tuple[int, ...]:
        return 25, 11, 7

    async def jobs(_self: object) -> Any:
        return BY_COMMANDS

    monkeypatch.setattr(CommandSlurm, "version", version)
    monkeypatch.setattr(CommandSlurm, "jobs", jobs)


@asynccontextmanager
async def server(socket: Path, answer: web.Response) -> AsyncIterator[list[web.Request]]:
    """Answers the list of jobs at a socket; yields what it was asked."""
    asked: list[web.Request] = []

    async def give(request: web.Request) -> web.Response:
        asked.append(request)
        # One that was sent can not be sent again.
        return web.Response(body=answer.body, status=answer.status)

    app = web.Application()
    app.router.add_get("/slurm/v0.0.44/jobs/", give)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        yield asked
    finally:
        await runner.cleanup()


def opened(socket: Path, log: list[str], token: Path | None = None) -> RestSlurm:
    def keep(event: str, /, **fields: object) -> None:
        log.append(f"{event} {fields.get('implementation', fields.get('why'))}")

    return RestSlurm(str(socket), token, keep, keep, ignored)


@pytest.mark.usefixtures("commands")
async def test_jobs_are_asked_for_with_the_token_that_the_file_has_then(tmp_path: Path) -> None:
    token, log = tmp_path / "token", list[str]()
    comment = {**JOB, "comment": "caf\udce9"}
    body = json.dumps(shown(comment), ensure_ascii=False).encode(errors="surrogateescape")
    async with server(tmp_path / "socket", web.Response(body=body)) as asked:
        slurm = opened(tmp_path / "socket", log, token)
        for text in ("SLURM_JWT=one\n", "two"):
            token.write_text(text)
            (job,) = await slurm.jobs()
            assert (job.name, job.comment) == ("train", "caf\ufffd")
    assert [one.headers["X-SLURM-USER-TOKEN"] for one in asked] == ["one", "two"]
    assert log == ["slurm_by slurmrestd"]


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (web.json_response({"errors": [{"description": "no token"}]}, status=401), "no token"),
        (web.Response(text="proxy error", status=502), "502: proxy error"),
        (web.json_response(shown({**JOB, "priority": None})), "priority"),
        (web.Response(text="{"), "JSONDecodeError"),
        (web.Response(text="[" * 100_000), "RecursionError"),
        (web.Response(text="[" * 100_000, status=500), "500: [["),
    ],
)
async def test_the_commands_answer_where_it_can_t_and_for_a_while(
    answer: web.Response, why: str, tmp_path: Path
) -> None:
    log: list[str] = []
    async with server(tmp_path / "socket", answer) as asked:
        slurm = opened(tmp_path / "socket", log)
        assert [await slurm.jobs(), await slurm.jobs()] == [BY_COMMANDS] * 2
    assert len(asked) == 1
    assert why in log[-1]


@pytest.mark.usefixtures("commands")
async def test_the_commands_answer_where_nothing_listens_or_the_token_is_gone(
    tmp_path: Path,
) -> None:
    log: list[str] = []
    assert await opened(tmp_path / "none", log).jobs() == BY_COMMANDS
    assert await opened(tmp_path / "none", log, tmp_path / "token").jobs() == BY_COMMANDS
    assert log[-1].startswith("slurmrestd_failed FileNotFoundError")


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    "token", [b"SLURM_JWT=one\ntwo: 3\n", b"caf\xe9", "café".encode(), b"a\0b"]
)
async def test_the_commands_answer_where_the_file_holds_no_token(
    token: bytes, tmp_path: Path
) -> None:
    log: list[str] = []
    (tmp_path / "token").write_bytes(token)
    async with server(tmp_path / "socket", web.json_response(shown(JOB))) as asked:
        slurm = opened(tmp_path / "socket", log, tmp_path / "token")
        assert await slurm.jobs() == BY_COMMANDS
    assert (asked, log[-1]) == ([], f"slurmrestd_failed {tmp_path}/token holds no token")


@pytest.mark.usefixtures("commands")
async def test_what_it_is_asked_is_counted_and_no_answer_is_read_without_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr("slicewise.cluster.slurm.rest_client.ASKED", count := RequestCount())
    async with server(tmp_path / "socket", web.json_response(shown(JOB))):
        slurm = opened(tmp_path / "socket", log)
        for _ in range(2):
            assert [job.name for job in await slurm.jobs()] == ["train"]
        assert count.reads == {"slurmrestd": 4}
        monkeypatch.setattr("slicewise.cluster.slurm.rest_client._MOST_BYTES", 100)
        assert await slurm.jobs() == BY_COMMANDS
    assert log[-1] == "slurmrestd_failed it answers more than 100 bytes"


@pytest.mark.usefixtures("commands")
async def test_jobs_are_sent_again_only_if_any_has_changed_or_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 jobs are 42 MB of JSON, for which slurmrestd took two seconds of CPU at each look."""
    now_s = 100.0
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("slicewise.cluster.slurm.rest_client.time", clock)
    monkeypatch.setattr("slicewise.cluster.slurm.preferred.time", clock)
    unchanged, other = shown(update_s=0), {**JOB, "name": "other"}
    slurm = opened(tmp_path / "socket", [])
    for at_s, answer, query, names in (
        (100.0, shown(JOB, update_s=70), "", ["train"]),
        (105.0, unchanged, "update_time=70", ["train"]),
        (110.0, shown(other, update_s=80), "update_time=70", ["other"]),
        (169.0, unchanged, "update_time=80", ["other"]),
        # slurmctld may compare with a clock that was set back.
        (170.0, shown(JOB, update_s=40), "", ["train"]),
        (171.0, shown(update_s=41), "update_time=40", []),
        (172.0, {"errors": []}, "update_time=41", None),
        (178.0, shown(JOB, update_s=48), "", ["train"]),
    ):
        now_s = at_s
        async with server(tmp_path / "socket", web.json_response(answer)) as asked:
            jobs = await slurm.jobs()
        assert [one.query_string for one in asked] == [query]
        assert jobs == BY_COMMANDS if names is None else [job.name for job in jobs] == names


@pytest.mark.usefixtures("commands")
async def test_a_slurm_with_which_it_was_not_tried_is_read_by_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def version(_self: object) -> tuple[int, ...]:
        return 24, 11, 5

    monkeypatch.setattr(CommandSlurm, "version", version)
    log: list[str] = []
    assert await opened(tmp_path / "none", log).jobs() == BY_COMMANDS
    assert log == ["slurmrestd_failed slurmrestd of Slurm 24.11.5 is not tested"]


async def test_the_setting_chooses_it_for_the_daemon_and_not_for_commands(tmp_path: Path) -> None:
    daemon = {"slurm": "slurmrestd", "slurmrestd": str(tmp_path / "socket")}
    settings = site_settings(name="test", daemon=daemon)
    assert type(open_slurm(settings)) is CommandSlurm

    def log(_event: str, /, **_fields: object) -> None:
        pass

    async with open_lasting_slurm(settings, log, log, ignored) as slurm:
        assert type(slurm) is RestSlurm
