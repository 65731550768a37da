"""Tests that a replica of a pool loads and unloads models: a real Triton behind a real door.

It is started with the options that a pool's batch script gives it.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from builders.replica_keys import gateway_directory, replica_keys
from free_ports import free_port
from waiting import PATIENCE_S, until, until_done

from slicewise.cluster.language.service import service_spec
from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.prober import Replica, fit_models, probe
from slicewise.launcher.rules.engines.engine import Probe
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.scripts import door
from slicewise.sandbox.servers import triton

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="Triton wants numpy 1")

OWN, OTHER, SLOW, BROKEN, ABSENT = "own", "other", "slow", "broken", "absent"
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
        answers = [utils.Tensor("Y", {answer} + tensor.as_numpy()) for tensor in tensors]
        return [utils.InferenceResponse([answer]) for answer in answers]
"""


def write_model(repository: Path, name: str, begins: str = "pass", answer: str = "0") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(CONFIG)
    (version / "model.py").write_text(MODEL.format(begins=begins, answer=answer))


@dataclass(frozen=True)
class Served:
    """A replica that serves, its processes, and its models."""

    replica: Replica
    server: subprocess.Popen[bytes]
    repository: Path

    async def fits(self, *models: str, **change: object) -> ReplicaModels | None:
        told = replace(self.replica, models=frozenset({OWN, *models}), **change)
        return await fit_models(gateway_directory(), told)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("triton")
    return triton.stage(place / "bin", place / "triton")


@pytest.fixture
def served(command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)
    repository, private = tmp_path / "models", tmp_path / "p"
    private.mkdir()
    (private / "replica.pem").write_text(replica_keys().pem.read_text())
    (private / "gateway.crt").write_text((gateway_directory() / "gateway.crt").read_text())
    for name, begins in (
        (OWN, "pass"),
        (OTHER, "pass"),
        (SLOW, "time.sleep(1)"),
        (BROKEN, "raise RuntimeError('no weights here')"),
    ):
        write_model(repository, name, begins)
    engine = ENGINES["triton"]
    spec = service_spec(
        {
            "name": "own",
            "tenant": "nlp",
            "model_repository": str(repository),
            "model": OWN,
            "profile": "1g.10gb",
            "pool": "small",
        }
    )
    options = " ".join(engine.options(spec, is_measured=False))
    variables = {
        "id": "own.7.0",
        "models": str(repository),
        "private": str(private),
        "exit_timeout_s": "5",
        "SLURM_JOB_ID": str(os.getpid()),
    }
    server = subprocess.Popen(
        ("bash", "-c", f'exec "$0" {options}', command),
        env=os.environ | variables,
        start_new_session=True,
    )
    ports = free_port(), free_port()
    (private / "server").write_text(f"{server.pid} {ports[0]} {ports[1]}\n")
    doorkeeper = subprocess.Popen(
        (sys.executable, door.__file__, "127.0.0.1", private, *engine.sockets)
    )
    replica = Replica(
        *("127.0.0.1", ports[0], replica_keys().certificate, 1000, OWN, "own.7.0"), engine
    )
    yield Served(replica, server, repository)
    doorkeeper.kill()
    server.send_signal(signal.SIGINT)
    try:
        server.wait(PATIENCE_S)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)


async def is_ready(replica: Replica) -> bool:
    return (await probe(gateway_directory(), replica)).probe is Probe.OURS


async def test_it_loads_and_unloads_models_and_stays_fit_for_requests(served: Served):
    await until_done(lambda: is_ready(served.replica), bool)
    # It has started with its own model alone.
    assert await served.fits() == ReplicaModels(frozenset({OWN}))
    loaded = await served.fits(OTHER)
    assert loaded is not None
    assert (loaded.ready, loaded.loads, loaded.load_s.keys()) == ({OWN, OTHER}, 1, {OTHER})
    assert await served.fits(OTHER) == ReplicaModels(frozenset({OWN, OTHER}))
    assert await is_ready(replace(served.replica, model=OTHER))

    # It serves others while it loads one, and is fit by its own word.
    loading = asyncio.create_task(served.fits(OTHER, SLOW))
    while not loading.done():
        assert await is_ready(served.replica)
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
        assert await is_ready(served.replica)

    # Its own model stays, whatever it is told.
    told = replace(served.replica, models=frozenset())
    assert await fit_models(gateway_directory(), told) == ReplicaModels(frozenset({OWN}))
    assert await is_ready(served.replica)


async def test_a_load_that_takes_too_long_is_refused_and_its_model_found_later(served: Served):
    await until_done(lambda: is_ready(served.replica), bool)
    late = await served.fits(SLOW, load_timeout_s=0.5)
    assert late == ReplicaModels(frozenset({OWN}), refused={SLOW: "not loaded within 0.5 s"})

    async def has_slow() -> bool:
        models = await served.fits(SLOW)
        return models is not None and models.ready == {OWN, SLOW}

    await until_done(has_slow, bool)


async def test_of_one_that_is_killed_nothing_is_known(served: Served):
    await until_done(lambda: is_ready(served.replica), bool)
    assert await served.fits(OTHER) is not None
    os.killpg(served.server.pid, signal.SIGKILL)
    until(lambda: served.server.poll() is not None)
    assert await served.fits(OTHER) is None
    llamacpp = replace(served.replica, engine=ENGINES["llamacpp"])
    assert await fit_models(gateway_directory(), llamacpp) is None
