"""Tests reading what replicas count of tokens: Python's servers send it in chunks."""

import argparse
import asyncio
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import sglang_stand_in
from builders.replica_keys import gateway_directory, replica_context, replica_keys
from waiting import PATIENCE_S

from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.engine_failures import ENGINE_FAILURES
from slicewise.launcher.probing.prober import EngineMetrics, Replica, engine_metrics
from slicewise.launcher.rules.engines.engine import Engine, TokenCounts
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.engines.registry import ENGINES

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST, BETWEEN = "sglang:time_to_first_token_seconds", "sglang:inter_token_latency_seconds"
FIGURES = f"{FIRST}_sum 2\n{FIRST}_count 3\n{BETWEEN}_sum 4\n{BETWEEN}_count 5\n".encode()
COUNTS = EngineMetrics(TokenCounts(2.0, 5.0, 4.0, 3.0))


def _replica(port: int, engine: Engine) -> Replica:
    return Replica("127.0.0.1", port, replica_keys().certificate, 1000, "m", "m.1.0", engine)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be late on a slow machine."""
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)


@pytest.fixture
def stand_in() -> Iterator[sglang_stand_in.Server]:
    """SGLang's, behind TLS as a door is."""

    class Handler(sglang_stand_in.Handler):
        state = sglang_stand_in.State(
            argparse.Namespace(
                served_model_name="m",
                max_running_requests=4,
                enable_metrics=True,
                stream_response_default_include_usage=True,
            )
        )

    server = sglang_stand_in.Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def _complete(port: int, tokens: int) -> None:
    body = json.dumps({"prompt": "hello", "max_tokens": tokens}).encode()
    kind = {"content-type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, kind)) as said:
        assert said.status == 200


async def test_sglang_tells_what_it_works_on_and_how_long_its_tokens_took(
    stand_in: sglang_stand_in.Server,
) -> None:
    await asyncio.to_thread(_complete, stand_in.server_address[1], 3)
    tls = replica_context(gateway_directory() / "gateway.crt", replica_keys())
    stand_in.socket = tls.wrap_socket(stand_in.socket, server_side=True)
    replica = _replica(stand_in.server_address[1], ENGINES["sglang"])
    said = await engine_metrics(gateway_directory(), replica)
    assert said is not None
    assert said.load == EngineLoad(0.0, 0.0, 0.0, EngineCounts(0.0, 1.0, 3.0, 1.0, 0.0))
    found, token_s = said.tokens, sglang_stand_in.TOKEN_S
    assert found is not None
    assert replace(found, firsts=()) == TokenCounts(token_s, 2.0, 2 * token_s, 1.0)
    # Up to 0.1 s SGLang has one bucket, which counts as spread evenly.
    assert sum(found.firsts[:8]) == pytest.approx(1.0)
    assert sum(found.firsts[8:]) == 0


def _chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in parts)


def _split(text: bytes, count: int) -> list[bytes]:
    step = -(-len(text) // count)
    return [text[at : at + step] for at in range(0, len(text), step)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_chunks(FIGURES) + b"0\r\n\r\n", COUNTS),
        (_chunks(*_split(FIGURES, 50)) + b"0\r\n\r\n", COUNTS),
        (_chunks(*_split(FIGURES, 100)) + b"0\r\n\r\n", None),
        (_chunks(FIGURES), None),
        (b"fffff\r\n" + FIGURES, None),
        (_chunks(FIGURES, b"#" * 262_100) + b"0\r\n\r\n", None),
        (b"-1\r\n" + FIGURES, None),
    ],
    ids=["one", "some", "many", "no end", "one too long", "too long in all", "no length"],
)
async def test_chunks_are_read_within_bounds(body: bytes, expected: EngineMetrics | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_once, args=(listener, HEAD + body), daemon=True)
        thread.start()
        replica = _replica(listener.getsockname()[1], ENGINES["sglang"])
        assert await engine_metrics(gateway_directory(), replica) == expected


class Broken:
    """SGLang, but one thing that it says of its tokens raises."""

    def token_counts(self, _said: bytes) -> TokenCounts:
        raise KeyError("token_counts")

    def __getattr__(self, name: str) -> Any:
        return getattr(ENGINES["sglang"], name)


async def test_what_an_engine_can_t_read_takes_nothing_else_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ENGINE_FAILURES, "_said", set())
    broken: Any = Broken()
    said = _chunks(b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\n") + b"0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_once, args=(listener, HEAD + said), daemon=True)
        thread.start()
        replica = _replica(listener.getsockname()[1], broken)
        found = await engine_metrics(gateway_directory(), replica)
    assert found == EngineMetrics(None, EngineLoad(3.0, 1.0))
    assert [line.split()[0] for line in caplog.messages] == ["engine_failed"]


def _serve_once(listener: socket.socket, answer: bytes) -> None:
    tls = replica_context(gateway_directory() / "gateway.crt", replica_keys())
    with suppress(OSError):
        plain, _ = listener.accept()
        with tls.wrap_socket(plain, server_side=True) as connection:
            connection.recv(65536)
            connection.sendall(answer)
