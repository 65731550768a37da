"""Tests that a replica of a pool loads and unloads models: a real Triton behind a real door.

It is started with the options that a pool's batch script gives it.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pool_replica
import pytest
from builders.replica_keys import gateway_directory
from pool_replica import OWN, Served
from waiting import PATIENCE_S, until, until_done, until_true

from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.prober import fit_models
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.statistics import Answered
from slicewise.launcher.rules.pools.server_memory import ServerMemory
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.sandbox.servers import triton

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="Triton wants numpy 1")

OTHER, SLOW, BROKEN, ABSENT, PICKY = "other", "slow", "broken", "absent", "picky"
CONFIG = """\
backend: "python"
max_batch_size: 0
input [{ name: "X" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "Y" data_type: TYPE_INT32 dims: [1] }]
instance_group [{ kind: KIND_CPU }]
"""
MODEL = """\
import time
import triton_python_backend_utils as utils

class TritonPythonModel:
    def initialize(self, args):
        {begins}

    def execute(self, requests):
        tensors = [utils.get_input_tensor_by_name(request, "X") for request in requests]
        if "picky" in __file__ and not all(tensor.as_numpy().all() for tensor in tensors):
            raise ValueError("no zeros")
        answers = [utils.Tensor("Y", tensor.as_numpy()) for tensor in tensors]
        return [utils.InferenceResponse([answer]) for answer in answers]
"""


def write_model(repository: Path, name: str, begins: str) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL.format(begins=begins))


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("triton")
    return triton.stage(place / "bin", place / "triton")


@pytest.fixture
def served(command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)
    for name, begins in (
        (OWN, "pass"),
        (OTHER, "pass"),
        (PICKY, "pass"),
        (SLOW, "time.sleep(1)"),
        (BROKEN, "raise RuntimeError('no weights here')"),
    ):
        write_model(tmp_path / "models", name, begins)
    with pool_replica.served("triton", command, tmp_path) as replica:
        yield replica


async def test_it_loads_and_unloads_models_and_stays_fit_for_requests(served: Served):
    await until_done(served.is_ready, bool)
    # It has started with its own model alone.
    assert await served.fits() == ReplicaModels(frozenset({OWN}))
    loaded = await served.fits(OTHER)
    assert loaded is not None
    assert (loaded.ready, loaded.loads, loaded.load_s.keys()) == ({OWN, OTHER}, 1, {OTHER})
    # Triton, and a Python for each model.
    assert 30 < loaded.memory.host_mib < 3000
    assert await served.fits(OTHER) == ReplicaModels(frozenset({OWN, OTHER}))
    assert await served.is_ready(OTHER)

    # It serves others while it loads one, and is fit by its own word.
    loading = asyncio.create_task(served.fits(OTHER, SLOW))
    while not loading.done():
        assert await served.is_ready()
        await asyncio.sleep(0.1)
    slow = loading.result()
    assert slow is not None
    assert slow.ready == {OWN, OTHER, SLOW}
    assert slow.load_s[SLOW] >= 1

    # One that fails leaves the others; the server is still fit.
    for model, why in ((BROKEN, "no weights here"), (ABSENT, "failed to load 'absent'")):
        failed = await served.fits(OTHER, SLOW, model)
        assert failed is not None
        assert (failed.ready, failed.loads) == ({OWN, OTHER, SLOW}, 0)
        assert why in failed.refused[model]
        assert await served.is_ready()

    # Its own model stays, whatever it is told.
    told = replace(served.replica, models=frozenset())
    assert await fit_models(gateway_directory(), told) == ReplicaModels(frozenset({OWN}))
    assert await served.is_ready()


async def test_neither_a_connection_nor_another_load_waits_for_a_load(served: Served):
    """Triton's few threads each serve connections one after the other: a load may have none."""
    begun, may_end = (served.repository.parent / name for name in ("begun", "may end"))
    waits = f"""import os; open({str(begun)!r}, "w").close()
        while not os.path.exists({str(may_end)!r}):
            time.sleep(0.05)"""
    write_model(served.repository, SLOW, waits)
    await until_done(served.is_ready, bool)
    kept = [Kept(await asyncio.open_unix_connection(served.private / "http")) for _ in range(8)]
    for connection in kept:
        assert await connection.inferred(OWN, 1) == 200
    loading = asyncio.create_task(served.fits(SLOW))
    await until_true(begun.exists)
    for connection in kept:
        assert await connection.inferred(OWN, 1) == 200
    # Another model is loaded beside it; it would take as long after it.
    beside = await served.fits(SLOW, OTHER, loading=frozenset({SLOW}))
    assert beside is not None
    assert (beside.ready, beside.load_s.keys()) == ({OWN, OTHER}, {OTHER})
    assert beside.memory == ServerMemory()
    assert await served.is_ready(OTHER)
    assert not loading.done()
    may_end.touch()
    loaded = await loading
    assert loaded is not None
    assert (loaded.ready, loaded.load_s.keys()) == ({OWN, OTHER, SLOW}, {SLOW})
    for connection in kept:
        connection.close()


async def test_a_load_reads_the_nodes_copy_and_says_so(
    command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Triton follows the links, and names models also while one's files have gone."""
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)
    monkeypatch.setattr(probing, "_FINDS_S", PATIENCE_S)
    seen, cache = tmp_path / "seen", tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o1777)
    looks = f"import os; open({str(seen)!r}, 'w').write(os.path.realpath(__file__))"
    for name in (OWN, OTHER, SLOW):
        write_model(tmp_path / "models", name, looks)
    with pool_replica.served("triton", command, tmp_path, cache) as served:
        await until_done(served.is_ready, bool)
        assert Path(seen.read_text()).is_relative_to(tmp_path / "models")
        first = await served.fits(OTHER)
        assert first is not None
        assert (first.ready, first.from_node) == ({OWN, OTHER}, frozenset())
        assert seen.read_text() == str(tmp_path / "models" / OTHER / "1" / "model.py")
        copies = f"{os.geteuid()}/{'[0-9a-f]' * 32}/models/{OTHER}/1/model.py"
        (copy,) = await until_true(lambda: list(cache.glob(copies)))

        async def again() -> ReplicaModels | None:
            assert await served.fits() == ReplicaModels(frozenset({OWN}))
            return await served.fits(OTHER)

        second = await until_done(again, lambda fit: fit is not None and bool(fit.from_node))
        assert second is not None
        assert (second.ready, second.from_node) == ({OWN, OTHER}, {OTHER})
        assert seen.read_text() == str(copy)
        assert await served.is_ready(OTHER)
        shutil.rmtree(tmp_path / "models" / SLOW)
        assert await served.fits(OTHER) == ReplicaModels(frozenset({OWN, OTHER}))
        # A newer file is loaded, and a check by Triton itself finds it, too.
        write_model(tmp_path / "models", OTHER, f"{looks}; self.is_new = True")
        newer = await again()
        assert newer is not None
        assert (newer.ready, newer.from_node) == ({OWN, OTHER}, frozenset())
        assert seen.read_text() == str(tmp_path / "models" / OTHER / "1" / "model.py")
        assert await served.is_ready(OTHER)


async def test_memory_is_not_known_while_a_model_leaves_that_takes_some_of_it(served: Served):
    """It is no longer among those that the replica has."""
    may_leave = served.repository.parent / "may leave"
    stays = f"""pass

    def finalize(self):
        import os
        while not os.path.exists({str(may_leave)!r}):
            time.sleep(0.05)"""
    write_model(served.repository, OTHER, stays)
    await until_done(served.is_ready, bool)
    with_it = await served.fits(OTHER)
    assert with_it is not None
    assert with_it.memory.host_mib
    for leaving in (await served.fits(), await served.fits()):
        assert leaving == ReplicaModels(frozenset({OWN}))
        assert leaving is not None
        assert leaving.memory == ServerMemory()
    may_leave.touch()
    without = await until_done(served.fits, lambda fit: fit is not None and fit.memory.host_mib)
    assert without is not None
    assert without.memory.host_mib < with_it.memory.host_mib


async def test_a_load_that_takes_too_long_is_refused_and_leaves_nothing(served: Served):
    await until_done(served.is_ready, bool)
    late = await served.fits(SLOW, load_timeout_s=0.5)
    assert late == ReplicaModels(frozenset({OWN}), refused={SLOW: "not loaded within 0.5 s"})
    # The next load waits until its memory is free.
    loaded = await served.fits(OTHER)
    assert loaded is not None
    assert loaded.ready == {OWN, OTHER}


async def test_a_model_whose_process_has_ended_is_loaded_again(served: Served):
    await until_done(served.is_ready, bool)
    await served.fits(OTHER)
    os.kill(stub_of(served, OTHER), signal.SIGKILL)
    # Triton calls it ready, and answers each of its requests with an error.
    assert not await served.is_ready(OTHER)
    assert await served.fits(OTHER) == ReplicaModels(frozenset({OWN, OTHER}))
    again = await served.fits(OTHER, checked=frozenset({OWN, OTHER}))
    assert again is not None
    assert (again.ready, again.load_s.keys()) == ({OWN, OTHER}, {OTHER})
    assert await served.is_ready(OTHER)
    checked = await served.fits(OTHER, checked=frozenset({OWN, OTHER}))
    assert checked == ReplicaModels(frozenset({OWN, OTHER}))
    # Only a model that has failed more requests than before is asked an inference.
    os.kill(stub_of(served, OTHER), signal.SIGKILL)
    assert not await served.is_ready(OTHER)
    seen = await served.fits(OTHER)
    assert seen is not None
    assert seen.answered[OTHER].failed > 0
    both = frozenset({OWN, OTHER})
    same = await served.fits(OTHER, checked=both, answered=seen.answered)
    assert same == ReplicaModels(both)
    assert not await served.is_ready(OTHER)
    later = await served.fits(OTHER, checked=both, answered=seen.answered)
    assert later is not None
    assert later.loads == 1
    assert await served.is_ready(OTHER)


class Kept:
    """A connection of a client that asks one request after the other."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._reader, self._writer = streams

    async def inferred(self, model: str, value: int) -> int:
        """The status that it gets."""
        tensor = {"name": "X", "shape": [1], "datatype": "INT32", "data": [value]}
        body = json.dumps({"inputs": [tensor]}).encode()
        self._writer.write(
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: here\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        (length,) = (
            int(line.partition(b":")[2])
            for line in head.splitlines()
            if line.lower().startswith(b"content-length:")
        )
        await self._reader.readexactly(length)
        return int(head.split()[1])

    def close(self) -> None:
        self._writer.close()


async def inferred(served: Served, model: str, value: int) -> int:
    """The status that a client gets."""
    client = Kept(await asyncio.open_unix_connection(served.private / "http"))
    status = await client.inferred(model, value)
    client.close()
    return status


async def test_a_model_that_refuses_some_requests_and_answers_others_stays_loaded(served: Served):
    await until_done(served.is_ready, bool)
    both = frozenset({OWN, PICKY})
    seen = await served.fits(PICKY)
    for _ in range(3):
        assert await inferred(served, PICKY, 1) == 200
        assert await inferred(served, PICKY, 0) >= 400
        before = seen.answered if seen else {}
        seen = await served.fits(PICKY, checked=both, answered=before)
        assert seen == ReplicaModels(both)
        assert seen is not None
        assert seen.answered[PICKY].failed > before.get(PICKY, Answered()).failed
    # Of one that answers nobody any more the process may have ended.
    assert await inferred(served, PICKY, 0) >= 400
    again = await served.fits(PICKY, checked=both, answered=seen.answered if seen else {})
    assert again is not None
    assert again.loads == 1
    # What it had counted before that is no failure.
    rests = await served.fits(PICKY, checked=both, answered=again.answered)
    assert rests == ReplicaModels(both)


def stub_of(served: Served, model: str) -> int:
    """The process in which the Python backend runs a model."""
    file = f"{served.repository}/{model}/1/model.py".encode()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        # A process of another test may end just now.
        with suppress(OSError):
            words = cmdline.read_bytes()
            if b"triton_python_backend_stub" in words and file in words:
                return int(cmdline.parent.name)
    raise AssertionError(model)


async def test_of_one_that_is_killed_nothing_is_known(served: Served):
    await until_done(served.is_ready, bool)
    assert await served.fits(OTHER) is not None
    served.kill()
    until(lambda: served.server.poll() is not None)
    assert await served.fits(OTHER) is None
    llamacpp = replace(served.replica, engine=ENGINES["llamacpp"])
    assert await fit_models(gateway_directory(), llamacpp) is None
