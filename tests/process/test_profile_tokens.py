"""Tests the client that measures tokens against a stand-in for vLLM's server in this process."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from measuring_job import FIRST_PID, Killed, points, run_client
from waiting import PATIENCE_S

from slicewise.launcher.profiling.job_main import main
from slicewise.launcher.rules.profiling.figures import Begun, Message, messages
from slicewise.launcher.rules.profiling.token_figures import NOT_STARTED, TokenTask

SIGNS_PER_TOKEN = 2
Says = Callable[[dict[str, Any]], tuple[int, bytes]]
"""Status and what stands in place of the stream, if not 200 and nothing, by the request."""


def good(body: dict[str, Any]) -> tuple[int, bytes]:
    return 200, b""


class Server:
    """Answers with as many tokens as it is asked for, the first after 5 ms.

    Attributes:
        asked: bodies of all requests.
        most_at_once: requests.
    """

    def __init__(self, says: Says, slots: Path) -> None:
        self.says, self.slots = says, slots
        self.asked: list[dict[str, Any]] = []
        self.now = self.most_at_once = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_post("/v1/completions", self.answer)
        app.router.add_post("/v1/chat/completions", self.answer)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "me.7", "tags": ["me.7"]}]})

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body | {"path": request.path, "slots": self.slots.read_text().strip()})
        status, instead = self.says(body)
        if status != 200:
            return web.Response(status=status, body=instead)
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        response = web.StreamResponse()
        try:
            with suppress(ConnectionResetError):
                await response.prepare(request)
                await self._stream(response, body, instead)
        finally:
            self.now -= 1
        return response

    async def _stream(
        self, response: web.StreamResponse, body: dict[str, Any], instead: bytes
    ) -> None:
        for number in range(body["max_tokens"]):
            await asyncio.sleep(0.001 if number else 0.005)
            text = instead or b'data: {"choices":[{"text":"a"}]}\n\n'
            await response.write(text)
        prompt = len(body.get("prompt", "")) // SIGNS_PER_TOKEN
        counts = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        end = json.dumps({"choices": [], "usage": counts}).encode()
        await response.write(b"" if instead else b"data: " + end + b"\n\ndata: [DONE]\n\n")


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Killed:
    return Killed(tmp_path / "server", monkeypatch)


Measure = Callable[..., tuple[Server, list[Message]]]


@pytest.fixture
def measure(
    killed: Killed,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Measure:
    """Windows are as short as they may be; a machine that stalls makes none too late."""
    monkeypatch.setattr(TokenTask, "window_s", 0.03)

    def run(says: Says = good, engine: str = "vllm", **work: Any) -> tuple[Server, list[Message]]:
        slots = tmp_path / "slots"
        server = Server(says, slots)
        asked = TokenTask.model_validate(
            {"model": "m", "concurrencies": (1, 3), "prompt_tokens": 60, "output_tokens": 4}
            | {"seconds": PATIENCE_S}
            | work
        )

        slots.write_text("3\n" if engine == "vllm" else "1\n")
        run_client(server.app(), asked, engine, killed)
        return server, list(messages(capsys.readouterr().out))

    return run


def test_each_point_has_as_many_requests_at_a_time_and_figures_of_tokens(
    measure: Measure, killed: Killed
) -> None:
    server, found = measure()
    begun = [one for one in found if isinstance(one, Begun)]
    assert [(one.number, one.batch) for one in begun] == [(1, 1), (2, 3)]
    assert [(one.batch, one.reason) for one in points(found)] == [(1, ""), (3, "")]
    # The server may not have seen yet that the request before has been given up.
    assert server.most_at_once in {3, 4}
    for point in points(found):
        figures = point.tokens
        assert figures is not None
        assert (figures.load, figures.prompt_tokens, figures.output_tokens) == ("60+4", 60, 4)
        assert figures.output_mtps == pytest.approx(4 * point.throughput_mrps, rel=0.01)
        assert 5_000 <= figures.ttft_p50_us <= point.latency_us - 2_000
        assert figures.tpot_p50_us >= 1_000
    assert killed.pids == []


def test_prompts_are_as_long_as_asked_and_begin_differently(measure: Measure) -> None:
    server, _ = measure(concurrencies=(2,))
    first, *others = server.asked
    assert (len(first["prompt"]), first["max_tokens"]) == (60, 1)
    assert {len(one["prompt"]) for one in others} == {60 * SIGNS_PER_TOKEN}
    assert len({one["prompt"][:8] for one in others}) == len(others)
    assert all(one["ignore_eos"] and one["stream"] for one in others)


def test_a_user_s_requests_are_sent_as_they_are_in_turn(measure: Measure, tmp_path: Path) -> None:
    file = tmp_path / "a b;$(x).jsonl"
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    file.write_text(json.dumps({"prompt": "one"}) + "\n" + json.dumps(chat) + "\n")
    server, found = measure(concurrencies=(1,), data=str(file))
    assert points(found)[0].reason == ""
    first, second = server.asked[:2]
    assert (first["path"], first["prompt"], first["max_tokens"]) == ("/v1/completions", "one", 4)
    assert (second["path"], second["messages"]) == ("/v1/chat/completions", chat["messages"])
    assert "ignore_eos" not in first | second


def test_an_engine_whose_slots_have_memory_is_started_for_each_point(
    measure: Measure, killed: Killed
) -> None:
    server, found = measure(engine="llamacpp")
    assert [one.reason for one in points(found)] == ["", ""]
    assert killed.pids == [FIRST_PID]
    slots = [one["slots"] for one in server.asked]
    assert (set(slots), slots) == ({"1", "3"}, sorted(slots))


def test_a_refused_request_fails_its_point_and_no_other(measure: Measure, killed: Killed) -> None:
    said = json.dumps({"error": {"message": "context is 2048"}}).encode()
    sent = iter(range(100_000))
    _, found = measure(lambda _: (400, said) if next(sent) == 1 else (200, b""))
    assert [one.reason for one in points(found)] == ["context is 2048", ""]
    assert killed.pids == []


def test_after_a_failure_the_server_is_started_again(measure: Measure, killed: Killed) -> None:
    said = json.dumps({"error": {"message": "engine is dead"}}).encode()
    sent = iter(range(100_000))
    _, found = measure(lambda _: (500, said) if next(sent) == 1 else (200, b""))
    assert [one.reason for one in points(found)] == ["engine is dead", ""]
    assert killed.pids == [FIRST_PID]


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (b"data: {'no': JSON}\n\n", "answers with no stream of tokens"),
        (b"hello " * 9_999 + b"\n", "ended an answer early"),
        (b'data: {"choices": [{"text": "a"}]}\n\n', "does not say how many tokens it took"),
        (b'data: {"error": {"message": "queue is full"}}\n\n', "early: queue is full"),
    ],
)
def test_another_stream_fails_its_points(measure: Measure, stream: bytes, said: str) -> None:
    _, found = measure(lambda _: (200, stream))
    assert len(points(found)) == 2
    assert all(said in one.reason for one in points(found))


def test_what_is_too_slow_for_its_time_says_so(measure: Measure) -> None:
    _, found = measure(concurrencies=(1,), output_tokens=300, seconds=0.2)
    assert "fewer than 2 answers within 0.4 s; give it more --seconds" in points(found)[0].reason


def test_a_server_that_ends_before_it_is_ready_never_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server"
    file.write_text("1\n")
    (tmp_path / "slots").write_text("1\n")
    read = Path.read_text

    def restarted(path: Path, encoding: str = "utf-8") -> str:
        """As the script has it: another process each time."""
        found = read(path, encoding=encoding)
        if path == file:
            file.write_text(f"{int(found) + 1}\n")
        return found

    monkeypatch.setattr(Path, "read_text", restarted)
    work = TokenTask(model="m", concurrencies=(1, 2), prompt_tokens=1, output_tokens=1, seconds=1)
    words = (work.model_dump_json(), str(tmp_path / "none"), "me.7", str(file), "llamacpp")
    with pytest.raises(SystemExit, match=r"llama\.cpp did not start"):
        main(*words)
    found = points(messages(capsys.readouterr().out))
    assert [(one.batch, one.reason) for one in found] == [(1, NOT_STARTED), (2, NOT_STARTED)]
