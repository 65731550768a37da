"""Tests the probe: a replica is ready when its name is right and its model has answered."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from builders.replica_keys import gateway_directory, replica_context, replica_keys
from log_lines import lines
from waiting import PATIENCE_S, until_true

from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.engine_failures import ENGINE_FAILURES
from slicewise.launcher.probing.prober import Prober, Replica, probe
from slicewise.launcher.rules.engines.engine import Answer, Probe, Request
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.statistics import Counts
from slicewise.launcher.rules.engines.triton import Triton as TritonEngine

ME = "bert.814.0"
TRITON = ENGINES["triton"]
METADATA = {"inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 4]}]}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be late on a slow machine."""
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)


class Triton:
    """A server that answers as it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.name, self.version = ME, "2.59.1"
        self.ready = True
        self.config: Any = {}
        self.status, self.words = 200, "{}"
        self.headers: dict[str, str] = {}
        self.delay_s = self.metadata_delay_s = 0.0
        self.secrets_read = 0
        self.asked: list[bytes] = []
        self.connections: set[object] = set()
        self.ends = ""

    async def server(self, request: web.Request) -> web.Response:
        self.connections.add(request.transport)
        return web.json_response({"name": self.name, "version": self.version})

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.ready else 400)

    async def metadata(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.metadata_delay_s)
        return web.json_response(METADATA)

    async def configuration(self, request: web.Request) -> web.Response:
        answer = web.json_response(self.config)
        if self.ends == "says so":
            answer.force_close()
        if self.ends == "silently":
            await answer.prepare(request)
            await answer.write_eof()
            assert request.transport is not None
            request.transport.close()
        return answer

    async def infer(self, request: web.Request) -> web.Response:
        self.connections.add(request.transport)
        head = int(request.headers["Inference-Header-Content-Length"])
        self.asked.append((await request.read())[head:])
        await asyncio.sleep(self.delay_s)
        return web.Response(status=self.status, text=self.words, headers=self.headers)

    async def statistics(self, request: web.Request) -> web.Response:
        await asyncio.sleep(self.delay_s)
        return web.Response(status=self.status, text=self.words, headers=self.headers)

    async def secret(self, request: web.Request) -> web.Response:
        self.secrets_read += 1
        return web.Response(status=400, text="secret")


@pytest.fixture
async def served() -> AsyncIterator[tuple[Triton, Replica]]:
    server = Triton()
    app = web.Application()
    model = "/v2/models/bert"
    app.router.add_get("/v2", server.server)
    app.router.add_get("/v2/models/stats", server.statistics)
    app.router.add_get("/secret", server.secret)
    app.router.add_get("/v2/health/ready", server.health)
    app.router.add_get(f"{model}/ready", server.health)
    app.router.add_get(model, server.metadata)
    app.router.add_get(f"{model}/config", server.configuration)
    app.router.add_post(f"{model}/infer", server.infer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    keys = replica_keys()
    tls = replica_context(gateway_directory() / "gateway.crt", keys)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = runner.addresses[0][1]
    yield server, Replica("127.0.0.1", port, keys.certificate, 1000, "bert", ME, TRITON)
    await runner.cleanup()


Served = tuple[Triton, Replica]


async def test_it_is_ours_once_its_model_has_answered_an_inference(served: Served) -> None:
    server, replica = served
    assert await probe(gateway_directory(), replica) == Answer(Probe.OURS)
    assert server.asked == [bytes(16)]


class Other(TritonEngine):
    """An engine of which only the health is asked, and which makes another request."""

    title = "Other"

    def ready_paths(self, model: str) -> tuple[str, ...]:
        return ("/v2/health/ready",)

    def model_paths(self, model: str) -> tuple[str, ...]:
        return ()

    def smallest_request(self, model: str, said: Sequence[bytes], sequence_id: int) -> Request:
        assert said == []
        headers = {"Inference-Header-Content-Length": "1"}
        return Request("POST", f"/v2/models/{model}/infer", headers, b"-", b"is it you?")


async def test_it_is_asked_what_its_engine_says(served: Served) -> None:
    server, replica = served
    assert await probe(gateway_directory(), replace(replica, engine=Other())) == OURS
    assert server.asked == [b"is it you?"]


async def test_where_the_models_word_is_enough_nothing_is_inferred(served: Served) -> None:
    server, replica = served
    assert await probe(gateway_directory(), replace(replica, infers=False)) == Answer(Probe.OURS)
    assert server.asked == []


@pytest.mark.parametrize(
    ("version", "too_old"),
    [
        ("2.51.0", "2.51.0"),
        ("2.59.1", "2.59.1"),
        ("2.70.9", "2.70.9"),
        ("2.71.0", ""),
        ("2.100.0", ""),
        ("3.0.0", ""),
        ("1.9.9\nno", "1.9.9 no"),
        ("1.9.9 " + "x" * 90, "1.9.9 " + "x" * 34),
        ("new", ""),
        ("9" * 5000, ""),
    ],
)
async def test_an_old_triton_is_warned_of_once(
    served: Served, caplog: pytest.LogCaptureFixture, version: str, too_old: str
) -> None:
    server, replica = served
    server.version = version
    news = asyncio.Event()
    prober = Prober(news, partial(probe, gateway_directory()))
    of_bert = replace(replica, tenant="t", service="bert")
    others = [of_bert, replace(of_bert, start_s=1001)]
    while {answer.probe for answer in prober.look(others).values()} != {Probe.OURS}:
        await asyncio.wait_for(news.wait(), PATIENCE_S)
        news.clear()
    told = prober.old_engines
    assert told == ({"t/bert": f"Triton {too_old}"} if too_old else {})
    prober.look(())
    assert prober.old_engines == {}
    said = [line for line in caplog.messages if line.startswith("engine_too_old")]
    assert len(said) == bool(too_old)
    for line in said:
        assert too_old.split(maxsplit=1)[0] in line
        assert "use Triton 26.07 (2.71.0) or newer" in line


async def test_another_server_on_its_port_is_a_stranger_and_infers_nothing(served: Served) -> None:
    server, replica = served
    server.name = "bert.814.1"
    assert await probe(gateway_directory(), replica) == Answer(Probe.STRANGER)
    assert server.asked == []


async def test_a_model_that_loads_says_nothing_odd(served: Served) -> None:
    server, replica = served
    server.ready = False
    assert await probe(gateway_directory(), replica) == Answer(Probe.SILENT, is_failure=False)
    assert await probe(gateway_directory(), replace(replica, port=1)) == Answer(Probe.SILENT)


@pytest.mark.parametrize("status", [400, 500])
async def test_what_the_model_says_against_it_is_handed_on(served: Served, status: int) -> None:
    server, replica = served
    server.status, server.words = status, '{"error":"no\\té\\nzeros"}'
    answer = await probe(gateway_directory(), replica)
    assert (answer.probe, answer.is_failure) == (Probe.SILENT, True)
    assert answer.said.startswith("the model refused a made-up request: no zeros;")
    assert 'readiness = "model"' in answer.said
    assert answer.said.isascii()
    assert answer.said.isprintable()


async def test_all_is_asked_on_one_connection(served: Served) -> None:
    server, replica = served
    assert await probe(gateway_directory(), replica) == Answer(Probe.OURS)
    assert len(server.connections) == 1


@pytest.mark.parametrize("ends", ["says so", "silently"])
async def test_one_that_ends_connections_is_asked_on_the_next(served: Served, ends: str) -> None:
    server, replica = served
    server.ends = ends
    assert await probe(gateway_directory(), replica) == Answer(Probe.OURS)
    assert len(server.connections) == 2


async def test_a_full_server_is_no_fault_of_the_model(served: Served) -> None:
    server, replica = served
    server.status = 503
    assert await probe(gateway_directory(), replica) == Answer(Probe.SILENT)


async def test_a_decoupled_models_word_is_enough(served: Served) -> None:
    server, replica = served
    server.config = {"model_transaction_policy": {"decoupled": True}}
    assert await probe(gateway_directory(), replica) == Answer(Probe.OURS)
    assert server.asked == []


async def test_a_model_that_never_answers_is_told_of(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = served
    server.delay_s = PATIENCE_S
    monkeypatch.setattr(probing, "INFERENCE_DEADLINE_S", 0.1)
    assert "no answer within" in (await probe(gateway_directory(), replica)).said


async def test_a_slow_server_is_not_said_to_refuse(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = served
    server.metadata_delay_s = PATIENCE_S
    monkeypatch.setattr(probing, "DEADLINE_S", 0.2)
    assert await probe(gateway_directory(), replica) == Answer(Probe.SILENT)


async def test_a_replica_leads_the_launcher_nowhere_else(served: Served) -> None:
    """Its words are told to people: they must not be another server's."""
    server, replica = served
    server.status, server.headers = 303, {"Location": "/secret"}
    assert "secret" not in (await probe(gateway_directory(), replica)).said
    assert server.secrets_read == 0


async def test_an_answer_without_end_is_not_read_to_its_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, replica = served
    server.status, server.words = 400, "x" * 2000
    monkeypatch.setattr(probing, "_MOST_WORDS_BYTES", 1000)
    assert "an answer of more than 1000 bytes" in (await probe(gateway_directory(), replica)).said


@pytest.mark.parametrize("config", [[], "x", None])
async def test_a_configuration_that_is_none_is_no_answer(served: Served, config: Any) -> None:
    server, replica = served
    server.config = config
    assert await probe(gateway_directory(), replica) == Answer(Probe.SILENT)


# The prober


class Asker:
    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Replica] = []

    async def ask(self, replica: Replica) -> Answer:
        self.asked.append(replica)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


A = Replica("10.0.0.1", 8000, "", 1000, "bert", ME, TRITON)
SILENT, OURS = Answer(Probe.SILENT), Answer(Probe.OURS)


async def test_it_asks_on_until_it_is_ours_and_tells_of_news() -> None:
    asker, news = Asker(SILENT, SILENT, OURS), asyncio.Event()
    prober = Prober(news, asker.ask)
    assert prober.look([A]) == {A: SILENT}
    await asyncio.wait_for(news.wait(), PATIENCE_S)
    assert prober.look([A]) == {A: OURS}
    await asyncio.wait_for(prober._asking[A], PATIENCE_S)
    assert len(asker.asked) == 3
    assert prober.look([]) == {}


async def test_who_is_not_asked_for_any_more_is_forgotten() -> None:
    asker = Asker(OURS)
    prober = Prober(asyncio.Event(), asker.ask)
    prober.look([A])
    await until_true(lambda: prober.look([A])[A] == OURS)
    prober.look([])
    again = replace(A, start_s=2000)
    assert prober.look([again]) == {again: SILENT}
    await until_true(lambda: prober.look([again])[again] == OURS)
    assert asker.asked == [A, again]


async def test_a_slow_one_holds_up_nobody() -> None:
    async def ask(replica: Replica) -> Answer:
        await asyncio.sleep(0 if replica.port == A.port else 10 * PATIENCE_S)
        return OURS

    slow = replace(A, port=9000)
    prober = Prober(asyncio.Event(), ask)
    prober.look([A, slow])
    await until_true(lambda: prober.look([A, slow])[A] == OURS)
    assert prober.look([slow]) == {slow: SILENT}
    prober.look([])


@pytest.mark.parametrize(("waited_s", "asked"), [(0.0, 17), (0.5, 6)])
async def test_a_start_is_asked_for_soon_and_then_at_a_bounded_rate(
    waited_s: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In three seconds; where the door lets each question wait, hardly a pause follows it."""
    now_s, at_s, sleep = 0.0, list[float](), asyncio.sleep

    async def paused(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        await sleep(0)

    async def ask(_: Replica) -> Answer:
        nonlocal now_s
        at_s.append(now_s)
        now_s += waited_s
        return SILENT

    monkeypatch.setattr(asyncio, "sleep", paused)
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    prober = Prober(asyncio.Event(), ask)
    prober.look([A])
    while now_s < 3:
        await sleep(0)
    prober.look([])
    assert at_s[1] - at_s[0] <= waited_s + 0.03 + 1e-9
    assert at_s[-1] - at_s[-2] <= max(0.25, waited_s + 0.03) + 1e-9
    assert sum(one < 3 for one in at_s) == pytest.approx(asked, abs=4)


async def test_a_refusal_is_not_asked_for_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Answer(Probe.SILENT, "the model refused")
    asker, paused_s, sleep = Asker(refused), list[float](), asyncio.sleep

    async def paused(seconds: float) -> None:
        paused_s.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "sleep", paused)
    prober = Prober(asyncio.Event(), asker.ask)
    prober.look([A])
    while not paused_s:
        await sleep(0)
    assert (prober.look([A]), len(asker.asked), paused_s) == ({A: refused}, 1, [5.0])
    prober.look([])


class Broken:
    """An engine of a site that raises what it may not."""

    title = "Broken"

    def identified(self, said: bytes, identity: str) -> Answer:
        raise KeyError("identified")

    def counted(self, said: bytes) -> Counts:
        raise KeyError("counted")

    def __getattr__(self, name: str) -> Any:
        return getattr(TRITON, name)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ENGINE_FAILURES, "_said", set())
    return Broken()


async def test_a_replica_whose_engine_raises_is_asked_on_and_that_is_said_once(
    served: tuple[Triton, Replica],
    broken: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    server, replica = served
    server.words = COUNTED
    for name in ("_LONGEST_PAUSE_S", "_LONGEST_COSTLY_PAUSE_S"):
        monkeypatch.setattr(probing, name, 0.01)
    asked, other = [0], replace(replica, engine=broken)

    async def ask(one: Replica) -> Answer:
        asked[0] += 1
        return OURS if asked[0] > 3 else await probe(gateway_directory(), one)

    prober = Prober(asyncio.Event(), ask)
    await until_true(lambda: prober.look([other])[other] == OURS)
    prober.look([])
    assert await probing.statistics(gateway_directory(), other) is None
    said = [line for line in caplog.messages if line.startswith("engine_failed")]
    assert len(said) == 1
    assert "KeyError: 'identified'" in said[0]


async def test_what_is_logged_of_a_replica_says_whose_it_is_and_where(
    served: tuple[Triton, Replica], broken: Any
):
    _, replica = served
    other = replace(replica, engine=broken, tenant="vision", service="bert", node="gpu01")
    prober = Prober(asyncio.Event(), partial(probe, gateway_directory()))
    with lines() as caught:
        prober.look([other])
        await until_true(lambda: caught.texts != [])
        prober.look([])
    (told,) = caught.events("engine_failed")
    ids = {"tenant": "vision", "service": "vision/bert", "node": "gpu01"}
    assert ids.items() <= told.items()
    assert told["replica"] == replica.identity


COUNTED = json.dumps(
    {"model_stats": [{"name": "bert", "version": "1", "inference_count": 3, "batch_stats": []}]}
)


async def test_a_replica_is_asked_what_its_models_have_counted(served: tuple[Triton, Replica]):
    server, replica = served
    server.words = COUNTED
    found = await probing.statistics(gateway_directory(), replica)
    assert found is not None
    assert found["bert", "1", "inference_count"] == 3


@pytest.mark.parametrize(
    "change",
    [
        {"words": "[" * 10_000},
        {"words": "nothing"},
        {"words": f"{COUNTED}{' ' * 300_000}"},
        {"status": 500},
        {"status": 307, "headers": {"Location": "/secret"}},
        {"delay_s": PATIENCE_S},
    ],
    ids=["nested", "no JSON", "too long", "an error", "elsewhere", "too late"],
)
async def test_what_is_no_statistics_in_time_and_within_bounds_is_none(
    served: tuple[Triton, Replica], monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
):
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S if "delay_s" not in change else 0.2)
    server, replica = served
    server.words = COUNTED
    for name, value in change.items():
        setattr(server, name, value)
    assert await probing.statistics(gateway_directory(), replica) is None
    assert server.secrets_read == 0


async def test_a_stranger_at_the_port_tells_no_statistics(served: tuple[Triton, Replica]):
    server, replica = served
    server.words = COUNTED
    other = replace(replica, certificate="CCCC")
    assert await probing.statistics(gateway_directory(), other) is None
