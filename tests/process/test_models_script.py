"""Tests what gives each model of a pool a server of its own: llama.cpp's, behind a real door."""

import ast
import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pool_replica
import pytest
from pool_replica import OWN, Served
from waiting import PATIENCE_S, until, until_done

from slicewise.launcher.probing import prober as probing
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.scripts import models
from slicewise.sandbox.servers import llamacpp
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

OTHER, BROKEN, ABSENT = "other", "broken", "absent"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)
    command = llamacpp.stage(tmp_path / "bin", tmp_path / "llamacpp", Path(sys.executable))
    for name in (OWN, OTHER, BROKEN):
        (tmp_path / "models" / name).mkdir(parents=True)
        write_tiny_model(tmp_path / "models" / name / "m.gguf")
    (tmp_path / "models" / OTHER / "mmproj-m.gguf").write_text("reads images")
    (tmp_path / "models" / BROKEN / "m.gguf").write_text("no model")
    with pool_replica.served("llamacpp", command, tmp_path) as replica:
        yield replica


@dataclass(frozen=True)
class Answer:
    status: int
    body: str


async def asked(
    served: Served, path: str, service: str, body: dict[str, object] | None = None
) -> Answer:
    """What a client gets whom the gateway has let in for a service."""
    reader, writer = await asyncio.open_unix_connection(served.private / "http.sock")
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: here\r\n"
        f"X-Slicewise-Service: nlp/{service}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    status, _, rest = answer.partition(b"\r\n\r\n")
    return Answer(int(status.split()[1]), rest.decode())


async def model_of(served: Served, service: str, **keys: object) -> str:
    """The model that answers a service's completion."""
    body = {"model": "whatever", "prompt": "a", "max_tokens": 3, **keys}
    answer = await asked(served, "/v1/completions", service, body)
    assert answer.status == 200
    model: str = json.loads(answer.body)["model"]
    return model


async def test_each_service_has_its_model_whatever_its_clients_name(served: Served):
    await until_done(served.is_ready, bool)
    assert await served.fits() == ReplicaModels(frozenset({OWN}))
    loaded = await served.fits(OTHER)
    assert loaded is not None
    assert (loaded.ready, loaded.loads, loaded.load_s.keys()) == ({OWN, OTHER}, 1, {OTHER})
    assert await served.fits(OTHER) == ReplicaModels(frozenset({OWN, OTHER}))
    both = [await model_of(served, name, model=OWN) for name in ("own-service", "other-service")]
    assert both == [OWN, OTHER]
    # No client changes what is loaded, nor is led to another service's model.
    orders = await asked(served, "/slicewise/models/unload", "own-service", {"model": OTHER})
    assert orders.status == 404
    unknown = await asked(served, "/v1/models", "nobody")
    assert (unknown.status, "no model of nobody" in unknown.body) == (503, True)
    assert await served.fits() == ReplicaModels(frozenset({OWN}))
    assert (await asked(served, "/v1/models", "other-service")).status == 503
    assert await served.is_ready()


async def test_one_that_can_not_be_loaded_leaves_the_others(served: Served):
    await until_done(served.is_ready, bool)
    for model, why in ((BROKEN, "its server ended with 1: "), (ABSENT, "has no .gguf file")):
        failed = await served.fits(model)
        assert failed is not None
        assert (failed.ready, failed.loads) == ({OWN}, 0)
        assert why in failed.refused[model]
    assert await served.is_ready()


async def test_a_model_is_unloaded_once_its_requests_are_answered(served: Served):
    await until_done(served.is_ready, bool)
    await served.fits(OTHER)
    answering = asyncio.create_task(
        model_of(served, "other-service", max_tokens=1000, ignore_eos=True)
    )
    await asyncio.sleep(0.2)
    assert await served.fits() == ReplicaModels(frozenset({OWN}))
    assert await answering == OTHER


async def test_a_server_that_ends_begins_again_and_with_the_first_all_end(served: Served):
    await until_done(served.is_ready, bool)
    await served.fits(OTHER)
    # One that can't begin again is given up.
    (served.repository / OTHER / "m.gguf").write_text("no model")
    os.kill(pid_of(OTHER), signal.SIGKILL)

    async def ready() -> frozenset[str] | None:
        answer = await served.fits()
        return answer and answer.ready

    await until_done(ready, lambda names: names == {OWN})
    write_tiny_model(served.repository / OTHER / "m.gguf")
    again = await served.fits(OTHER)
    assert again is not None
    assert again.ready == {OWN, OTHER}
    other = await begun_again(served)
    os.kill(pid_of(OWN), signal.SIGKILL)
    until(lambda: served.server.poll() is not None)
    assert served.server.returncode == 128 + signal.SIGKILL
    until(lambda: is_gone(other))
    assert await served.fits(OTHER) is None


async def begun_again(served: Served) -> int:
    """The process after one that was killed; requests have waited for that."""
    killed = pid_of(OTHER)
    os.kill(killed, signal.SIGKILL)
    until(lambda: pids_of(OTHER) - {killed})
    assert await model_of(served, "other-service") == OTHER
    assert await served.fits(OTHER) == ReplicaModels(frozenset({OWN, OTHER}))
    return pid_of(OTHER)


async def test_a_server_that_ends_again_and_again_rests_and_the_others_serve(served: Served):
    await until_done(served.is_ready, bool)
    await served.fits(OTHER)
    own, refused = pid_of(OWN), ""
    while "times" not in refused:
        for pid in pids_of(OTHER):
            os.kill(pid, signal.SIGKILL)
        answer = await served.fits(OTHER)
        assert answer is not None
        refused = answer.refused.get(OTHER, "")
    assert "its server ends again and again" in refused
    assert "the last time it ended with 137" in refused
    # It was refused, so others may have its memory by now: it comes back by an order alone.
    assert await served.fits() == ReplicaModels(frozenset({OWN}))
    assert (pid_of(OWN), await model_of(served, "own-service")) == (own, OWN)

    async def again() -> frozenset[str] | None:
        answer = await served.fits(OTHER)
        return answer and answer.ready

    await until_done(again, lambda names: names == {OWN, OTHER})
    assert await model_of(served, "other-service") == OTHER


async def test_one_that_is_unloaded_while_it_starts_ends():
    server = models.ModelServer(OTHER, "other-service", "no-socket")
    ending = asyncio.create_task(server.end())
    await asyncio.sleep(0)
    await server.start(("sleep", "600"), is_first=False)
    await asyncio.wait_for(ending, PATIENCE_S)
    assert server.code == 128 + signal.SIGKILL


def test_pauses_grow_to_a_bound_and_begin_anew_for_one_that_has_served_long():
    ends, pauses_s = models.Ends(), []
    with patch("time.monotonic", lambda: 1e6 + sum(pauses_s)):
        for _ in range(12):
            ends = ends.one_more("ended with 1")
            pauses_s.append(ends.pause_s)
    assert pauses_s == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    with patch("time.monotonic", lambda: 1e6 + sum(pauses_s) + 600):
        assert ends.one_more("ended with 1").pause_s == 0
    # The power of so many is no float.
    assert models.Ends(2000).pause_s == 300


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also if nobody has waited for it yet."""
    words = Path(f"/proc/{pid}/cmdline")
    return not words.exists() or not words.read_bytes()


def pid_of(model: str) -> int:
    (pid,) = pids_of(model)
    return pid


def pids_of(model: str) -> set[int]:
    """The processes of a model's servers that this test has started."""
    pids = set[int]()
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = status.read_bytes().split(b"\0")
            is_its = b"--alias" in words and words[words.index(b"--alias") + 1] == model.encode()
            if is_its and str(os.getpid()).encode() in _environment(status):
                pids.add(int(status.parent.name))
    return pids


def _environment(cmdline: Path) -> list[bytes]:
    variables = (cmdline.parent / "environ").read_bytes().split(b"\0")
    return [variable.partition(b"=")[2] for variable in variables if b"SLURM_JOB_ID" in variable]


def test_its_syntax_is_that_of_python_3_8():
    ast.parse(Path(models.__file__).read_text(), feature_version=(3, 8))
