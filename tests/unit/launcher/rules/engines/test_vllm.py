"""Tests how vLLM's server is asked, and how its answers, files and log are read."""

import json
import re

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.rules.engines.engine import AdapterEngine, Probe
from slicewise.launcher.rules.engines.vllm import Vllm

ENGINE = Vllm()
FAILED_START = """\
INFO 11-26 17:11:30 [api_server.py:1] start
(APIServer pid=3) WARNING 11-26 17:10:21 [cpu.py:224] Triton is not installed.
(Worker pid=1) ERROR 11-26 17:11:30 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=1) ERROR 11-26 17:11:30 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=1) ERROR 11-26 17:11:30 [multiproc_executor.py:953]   File "x.py", line 920, in main
(Worker pid=1) ERROR 11-26 17:11:30 [multiproc_executor.py:953]     worker = WorkerProc()
(Worker pid=1) ERROR 11-26 17:11:30 [multiproc_executor.py:953]              ^^^^^^^^^^^^
(Worker pid=1) ERROR 11-26 17:11:30 [multiproc_executor.py:953] safetensors.Error: invalid header
(EngineCore pid=2) ERROR 11-26 17:11:35 [core.py:1510] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-26 17:11:35 [core.py:1510] Exception: WorkerProc initialization failed
Process EngineCore:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
/usr/lib/tracker.py:224: UserWarning: resource_tracker: 1 leaked
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
INFO:     Waiting for application shutdown.
"""
"""Lines of a start of 0.32.0 with a broken file of weights, shortened."""


def models(*names: str) -> bytes:
    """Its answer to /v1/models, as 0.32.0 gives it."""
    data = [{"id": name, "object": "model", "root": "/m/tiny", "parent": None} for name in names]
    return json.dumps({"object": "list", "data": data}).encode()


@pytest.mark.parametrize(
    ("gpus", "nodes", "tensor_parallel", "split", "stages"),
    [(1, 1, None, 1, 1), (4, 1, None, 4, 1), (4, 2, None, 4, 2), (4, 2, 8, 8, 1), (4, 2, 2, 2, 4)],
)
def test_all_of_a_replica_s_gpus_hold_the_model(
    gpus: int, nodes: int, tensor_parallel: int | None, split: int, stages: int
):
    one = a_spec(gpus=gpus, nodes=nodes, tensor_parallel=tensor_parallel)
    said = " ".join(ENGINE.options(one, is_measured=False))
    assert f" --tensor-parallel-size {split} --pipeline-parallel-size {stages} " in said
    assert split * stages == gpus * nodes
    assert ("--nnodes" in said) == (nodes > 1)


@pytest.mark.parametrize(("concurrency", "most"), [(64, 64), ("auto", 256)])
def test_it_works_on_as_many_requests_as_a_replica_may_get(concurrency: object, most: int):
    words = " ".join(ENGINE.options(a_spec(concurrency=concurrency), is_measured=False))
    assert f"--max-num-seqs {most} " in words


def test_a_replica_is_known_by_the_last_of_its_model_s_names():
    assert ENGINE.identified(models("tiny", "chat", "chat.7.3"), "chat.7.3").probe is Probe.OURS
    assert ENGINE.identified(models("tiny", "chat", "chat.7.4"), "chat.7.3").probe is Probe.STRANGER
    assert ENGINE.identified(models(), "chat.7.3").probe is Probe.STRANGER
    with pytest.raises(TypeError):
        ENGINE.identified(b'{"data": [{"name": "chat.7.3"}]}', "chat.7.3")


def test_it_is_ready_once_it_has_completed_a_token():
    assert ENGINE.ready_paths("tiny") == ("/health",)
    request = ENGINE.smallest_request("tiny", (), 1)
    assert request is not None
    assert json.loads(request.head) == {"model": "tiny", "prompt": "1", "max_tokens": 1}
    said = b'{"error":{"message":"The model `no` does not exist.","type":"NotFoundError"}}'
    assert ENGINE.failure(said) == "The model `no` does not exist."


def test_its_log_says_why_a_start_failed():
    said = [
        ENGINE.log_message(line)
        for line in FAILED_START.splitlines()
        if not ENGINE.log_notice.match(line)
    ]
    assert said == [
        "WorkerProc failed to start.",
        "safetensors.Error: invalid header",
        "EngineCore failed to start.",
    ]
    for line in ("/opt/vllm/bin/vllm: No such file or directory", "vllm: error: no such option"):
        assert not ENGINE.log_notice.match(line)
        assert ENGINE.log_message(line) == line
    assert ENGINE.log_message("INFO:     Started") == "Started"
    assert ENGINE.log_time_s(FAILED_START, 1.0) is None


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/pause"),
        *("/abort_requests", "/collective_rpc", "/reset_prefix_cache", "/server_info", "/docs"),
        *("/v1/responses/resp_1", "/v1/responses/resp_1/cancel", "/update_weights", "/tokenize"),
    ],
)
def test_clients_only_ask_the_model(path: str):
    assert not any(re.fullmatch(one, path) for one in ENGINE.http_paths)


def test_it_never_closes_a_connection_that_haproxy_keeps():
    assert ENGINE.keeps_connections
    assert float(ENGINE.environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"]) >= 3600


def test_a_server_without_adapters_is_started_for_none():
    assert "lora" not in " ".join(ENGINE.options(a_spec(), is_measured=False))


@pytest.mark.parametrize(
    ("count", "rank", "expected"),
    [
        (1, None, "--enable-lora --max-lora-rank 16 --max-loras 1 --max-cpu-loras 32"),
        (9, 100, "--enable-lora --max-lora-rank 128 --max-loras 4 --max-cpu-loras 32"),
    ],
)
def test_a_server_with_adapters_has_room_for_more(count: int, rank: int | None, expected: str):
    """Which ones it loads later may change without another start."""
    one = a_spec(adapters={f"a{number}": "x" for number in range(count)}, adapter_rank=rank)
    assert expected in " ".join(ENGINE.options(one, is_measured=False))
    assert "a0" not in " ".join(ENGINE.options(one, is_measured=False))


def test_its_adapters_are_those_of_the_service_with_a_parent():
    cards = [
        {"id": "chat", "root": "/m/tiny", "parent": None},
        {"id": "chat:legal", "root": "/m/legal", "parent": "tiny"},
        {"id": "static", "root": "/m/static", "parent": "tiny"},
    ]
    said = json.dumps({"object": "list", "data": cards}).encode()
    assert ENGINE.loaded_adapters(said, "chat") == {"legal": "/m/legal"}
    assert isinstance(ENGINE, AdapterEngine)


def test_an_adapter_is_loaded_in_place_by_the_name_that_clients_use():
    load = ENGINE.load_adapter("chat", "legal", "/m/legal-2")
    assert (load.method, load.path) == ("POST", "/v1/load_lora_adapter")
    assert json.loads(load.head) == {
        "lora_name": "chat:legal",
        "lora_path": "/m/legal-2",
        "load_inplace": True,
    }
    assert ENGINE.replaces_adapters
    unload = ENGINE.unload_adapter("chat", "legal")
    assert unload.path == "/v1/unload_lora_adapter"
    assert json.loads(unload.head) == {"lora_name": "chat:legal"}
