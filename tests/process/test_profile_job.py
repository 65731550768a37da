"""Tests the measuring client against a stand-in for Triton's HTTP server in this process."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from measuring_job import FIRST_PID, Killed, points, run_client

from slicewise.launcher.profiling.job_main import main
from slicewise.launcher.rules.profiling.figures import Begun, Message, ProfileTask, messages

CONFIG: dict[str, Any] = {
    "max_batch_size": 4,
    "instance_group": [{"count": 2}],
    "dynamic_batching": {"max_queue_delay_microseconds": 9},
}
INPUTS = [{"name": "X", "datatype": "FP32", "shape": [-1, 1]}]
Answer = Callable[[int, int], tuple[int, str]]
"""Status and words, by the batch and how many inferences came before."""


class Triton:
    """Keeps what it was told.

    Attributes:
        refuses: why it loads no model with so many processes.
        most_at_once: inferences.
    """

    def __init__(self, answer: Answer, refuses: dict[int, str]) -> None:
        self.answer, self.refuses = answer, refuses
        self.config = dict(CONFIG)
        self.loaded = False
        self.loads: list[dict[str, Any]] = []
        self.inferred = self.now = self.most_at_once = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v2{rest:.*}", self.tell)
        app.router.add_post("/v2/repository/models/m/{what}", self.control)
        app.router.add_post("/v2/repository/index", self.tell)
        app.router.add_post("/v2/models/m/infer", self.infer)
        return app

    async def tell(self, request: web.Request) -> web.Response:
        told = {
            "/v2": {"name": "me.7"},
            "/v2/models/m": {"inputs": INPUTS},
            "/v2/models/m/config": self.config,
            "/v2/repository/index": self.index,
        }
        return web.json_response(told[request.path])

    @property
    def index(self) -> list[dict[str, str]]:
        return [{"name": "m", "reason": "" if self.loaded else "unloaded"}, {"name": "other"}]

    async def control(self, request: web.Request) -> web.Response:
        self.loaded = request.match_info["what"] == "load"
        if text := (await request.json())["parameters"].get("config"):
            self.config = json.loads(text)
            self.loads.append(self.config)
            if why := self.refuses.get(self.config["instance_group"][0]["count"]):
                return web.json_response({"error": why}, status=400)
        return web.json_response({})

    async def infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        head = json.loads(body[: int(request.headers["Inference-Header-Content-Length"])])
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        await asyncio.sleep(0.005)
        self.now -= 1
        self.inferred += 1
        status, words = self.answer(head["inputs"][0]["shape"][0], self.inferred)
        return web.json_response({"error": words}, status=status)


def good(batch: int, before: int) -> tuple[int, str]:
    return 200, ""


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killed:
    return Killed(tmp_path / "where", monkeypatch)


@pytest.fixture
def measure(
    killed: Killed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Triton, list[Message]]]:
    def run(
        answer: Answer = good, refuses: dict[int, str] | None = None, **work: Any
    ) -> tuple[Triton, list[Message]]:
        triton = Triton(answer, refuses or {})
        asked = ProfileTask.model_validate({"model": "m", "batches": (1, 4), "seconds": 0.2} | work)
        run_client(triton.app(), asked, "triton", killed)
        return triton, list(messages(capsys.readouterr().out))

    return run


def test_each_point_is_announced_and_measured_with_every_process_at_work_and_one_waiting(
    measure: Any,
) -> None:
    triton, found = measure(processes=(1, 3))
    begun = [one for one in found if isinstance(one, Begun)]
    assert [(one.number, one.batch) for one in begun] == [(1, 1), (2, 4), (3, 1), (4, 4)]
    assert [(one.batch, one.processes) for one in points(found)] == [(1, 1), (4, 1), (1, 3), (4, 3)]
    assert all(one.throughput_mrps and one.samples and not one.reason for one in points(found))
    assert all(one.latency_us >= 5_000 for one in points(found))
    assert triton.most_at_once == 6


def test_the_model_is_loaded_so_once_for_all_its_batches_and_without_a_batcher(
    measure: Any,
) -> None:
    triton, _ = measure(processes=(1, 3))
    assert [one["instance_group"][0]["count"] for one in triton.loads] == [1, 3]
    assert all("dynamic_batching" not in one for one in triton.loads)


def test_without_a_wish_there_are_as_many_processes_as_it_has(measure: Any) -> None:
    triton, found = measure(batches=(1,))
    assert (points(found)[0].processes, triton.most_at_once) == (2, 4)


def test_a_model_that_does_not_load_fails_its_points_and_no_others(
    measure: Any, killed: Killed
) -> None:
    _, found = measure(processes=(1, 3), refuses={1: "CUDA out of memory"})
    assert [one.reason for one in points(found)] == ["CUDA out of memory"] * 2 + ["", ""]
    assert killed.pids == []


def test_a_refused_batch_fails_alone(measure: Any, killed: Killed) -> None:
    triton, found = measure(
        lambda batch, _: (400, "no such shape") if batch == 1 else (200, ""), batches=(1, 4, 8)
    )
    reasons = [one.reason for one in points(found)]
    assert reasons == ["no such shape", "", "max_batch_size of its configuration is 4"]
    assert (len(triton.loads), killed.pids) == (1, [])


def test_after_a_failure_triton_is_started_anew(measure: Any, killed: Killed) -> None:
    triton, found = measure(
        lambda batch, _: (500, "stub is not healthy") if batch == 1 else (200, "")
    )
    assert [one.reason for one in points(found)] == ["stub is not healthy", ""]
    assert (len(triton.loads), killed.pids) == (2, [FIRST_PID])


def test_a_point_that_fails_in_the_middle_has_no_figure(measure: Any) -> None:
    _, found = measure(lambda _, before: (200 if before < 9 else 400, "full"), batches=(1,))
    (point,) = points(found)
    assert (point.throughput_mrps, point.reason) == (0, "full")


def test_a_triton_that_never_starts_ends_it_and_says_nothing_of_the_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ProfileTask(model="m", batches=(1, 2), seconds=1)
    with pytest.raises(SystemExit, match="Triton did not start"):
        main(work.model_dump_json(), "127.0.0.1", "me.7", str(tmp_path / "none"), "triton")
    assert points(messages(capsys.readouterr().out)) == []


def test_the_data_are_sent(measure: Any, tmp_path: Path) -> None:
    file = tmp_path / "a b;$(x).json"
    tensor = {"name": "X", "datatype": "FP32", "shape": [1, 5], "data": [0] * 5}
    file.write_text(json.dumps({"inputs": [tensor]}))
    _, found = measure(data=str(file), batches=(1,))
    assert points(found)[0].reason == ""
