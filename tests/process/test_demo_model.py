"""Tests the demo model's arithmetic, also in a real Triton."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from free_ports import free_port
from tritonclient.http import InferenceServerClient, InferInput
from waiting import until

from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.servers.triton import remove_shared_memory, stage

MODEL = Path("sandbox/demo/model_repository/tokens")


@pytest.fixture(scope="module")
def model() -> ModuleType:
    path = Path(__file__).parents[2] / MODEL / "1" / "model.py"
    sys.modules.setdefault("triton_python_backend_utils", ModuleType("pb_utils"))
    spec = importlib.util.spec_from_file_location("tokens_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_decoding_is_deterministic_and_as_long_as_asked(model: ModuleType) -> None:
    state = model.prefill(1000)
    tokens = model.decode(state, 200)
    assert tokens.shape == (200,)
    assert (tokens == model.decode(state, 200)).all()
    assert ((tokens >= 0) & (tokens < model.STATE_SIZE)).all()


def test_each_token_follows_from_those_before(model: ModuleType) -> None:
    state = model.prefill(1000)
    assert (model.decode(state, 50) == model.decode(state, 200)[:50]).all()
    assert len(set(model.decode(state, 200))) > 1


def test_the_context_counts(model: ModuleType) -> None:
    assert not (model.prefill(10) == model.prefill(11)).all()


@pytest.mark.parametrize("tokens", [0, 1])
def test_the_smallest_requests_work(model: ModuleType, tokens: int) -> None:
    assert model.decode(model.prefill(tokens), tokens).shape == (tokens,)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceServerClient]:
    """A real tritonserver with the demo's model, killed in the end; leaves nothing behind.

    Nor does it outlive tests that are killed.
    """
    if sys.version_info >= (3, 13):
        pytest.skip("Triton wants numpy 1")
    top = tmp_path_factory.mktemp("triton")
    others = environments()
    command, port = stage(top / "bin", top / "triton"), free_port()
    running = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL", command),
            f"--model-repository={publish_models(top)}",
            *(f"--http-port={port}", "--http-address=127.0.0.1", "--allow-metrics=false"),
            "--id=vision/captions",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    client = InferenceServerClient(f"127.0.0.1:{port}", concurrency=4)
    try:
        wait_until_ready(client, running)
        yield client
    finally:
        client.close()
        # The whole group: the backend's stubs sometimes outlive a server that is killed.
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        assert remove_shared_memory(top / "triton") == 2
        for place in environments() - others:
            with suppress(FileNotFoundError):
                place.rmdir()


def environments() -> set[Path]:
    """Empty folders that Triton's Python backend makes, whatever TMPDIR says, and removes if it may
    end by itself.
    """
    found = set()
    for place in Path("/tmp").glob("python_env_*"):
        with suppress(FileNotFoundError):
            if place.stat().st_uid == os.getuid():
                found.add(place)
    return found


def wait_until_ready(client: InferenceServerClient, running: subprocess.Popen[bytes]) -> None:
    def is_ready() -> bool:
        assert running.poll() is None
        with suppress(OSError):
            return bool(client.is_server_ready())
        return False

    until(is_ready)


def inputs(context: int, generated: int) -> list[InferInput]:
    tensors = []
    for name, value in (("CONTEXT_TOKENS", context), ("GENERATED_TOKENS", generated)):
        tensor = InferInput(name, [1], "INT32")
        tensor.set_data_from_numpy(np.array([value], dtype=np.int32))
        tensors.append(tensor)
    return tensors


def test_triton_answers_what_the_model_computes(
    server: InferenceServerClient, model: ModuleType
) -> None:
    answer = server.infer("tokens", inputs(300, 40)).as_numpy("TOKENS")
    assert (answer == model.decode(model.prefill(300), 40)).all()


def test_triton_carries_the_name_that_it_was_given(server: InferenceServerClient) -> None:
    assert server.get_server_metadata()["name"] == "vision/captions"


def test_a_request_takes_the_time_of_its_tokens(
    server: InferenceServerClient, model: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps for what is left of that."""
    now_s, slept_s = iter((100.0, 100.02)), list[float]()
    clock = SimpleNamespace(monotonic=lambda: next(now_s), sleep=slept_s.append)
    backend = SimpleNamespace(
        get_input_tensor_by_name=lambda request, name: SimpleNamespace(
            as_numpy=lambda: np.array([request[name]])
        ),
        Tensor=lambda name, tokens: (name, len(tokens)),
        InferenceResponse=lambda output_tensors: output_tensors,
    )
    monkeypatch.setattr(model, "time", clock)
    monkeypatch.setattr(model, "pb_utils", backend)
    instance = model.TritonPythonModel()
    instance.initialize({"model_config": json.dumps(server.get_model_config("tokens"))})
    answers = instance.execute([{"CONTEXT_TOKENS": 1000, "GENERATED_TOKENS": 100}])
    assert answers == [[("TOKENS", 100)]]
    assert slept_s == [pytest.approx(0.050 + 0.120 - 0.02)]


def test_two_requests_run_at_once_and_the_third_waits(server: InferenceServerClient) -> None:
    (instances,) = server.get_model_config("tokens")["instance_group"]
    assert instances["count"] == 2
    begin = time.monotonic()
    requests = [server.async_infer("tokens", inputs(0, 500)) for _ in range(3)]
    for request in requests:
        request.get_result()
    # 0.6 s each at least, and one of the three behind another.
    assert time.monotonic() - begin >= 1.2
