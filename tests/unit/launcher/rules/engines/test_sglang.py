"""Tests how SGLang's server is asked, and how its answers and log are read."""

import json
import re

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.rules.engines.engine import Probe
from slicewise.launcher.rules.engines.sglang import SGLang

ENGINE = SGLang()
FAILED_START = """\
[2026-11-26 17:11:30] server_args=ServerArgs(model_path='/m/tiny')
[2026-11-26 17:11:31 TP0] Init torch distributed begin.
/usr/lib/torch.py:224: FutureWarning: pynvml is deprecated
[2026-11-26 17:11:35 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/scheduler.py", line 1, in run_scheduler_process
    scheduler = Scheduler()
torch.OutOfMemoryError: CUDA out of memory.
[2026-11-26 17:11:36] Received sigquit from a child process. It usually means the child failed.
"""
"""A start that failed, as the source of 0.5.23 writes it."""


def model_info(version: str) -> bytes:
    return json.dumps(
        {"model_path": "/m/tiny", "weight_version": version, "is_generation": True}
    ).encode()


def test_a_replica_is_known_by_the_version_of_its_weights():
    assert ENGINE.identity_path == "/model_info"
    assert ENGINE.identified(model_info("chat.7.3"), "chat.7.3").probe is Probe.OURS
    assert ENGINE.identified(model_info("default"), "chat.7.3").probe is Probe.STRANGER


def test_it_is_ready_once_it_has_completed_a_token():
    """/health would generate a token at each of HAProxy's checks, and take a second."""
    assert ENGINE.ready_paths("tiny") == ("/ready",) == (ENGINE.health_path,)
    request = ENGINE.smallest_request("tiny", (), 1)
    assert request is not None
    assert request.path == "/v1/completions"


@pytest.mark.parametrize(
    "said",
    [
        b'{"object":"error","message":"too long","type":"BadRequest","param":null,"code":400}',
        b'{"error":{"message":"too long","type":"invalid_request_error"}}',
    ],
)
def test_both_forms_of_its_errors_are_read(said: bytes):
    assert ENGINE.failure(said) == "too long"
    assert ENGINE.failure(b"[1]") == "[1]"


def test_its_log_says_why_a_start_failed():
    said = [
        ENGINE.log_message(line)
        for line in FAILED_START.splitlines()
        if not ENGINE.log_notice.match(line)
    ]
    assert said == ["torch.OutOfMemoryError: CUDA out of memory."]
    line = "[2026-11-26 17:11:35] Failed to load the tokenizer"
    assert not ENGINE.log_notice.match(line)
    assert ENGINE.log_message(line) == "Failed to load the tokenizer"
    assert not ENGINE.log_notice.match("unshare: unshare failed: Operation not permitted")
    assert ENGINE.log_time_s(line, 1.0) is None


@pytest.mark.parametrize(
    "path",
    [
        *("/load_lora_adapter", "/abort_request", "/flush_cache", "/update_weights_from_disk"),
        *("/release_memory_occupation", "/pause_generation", "/server_info", "/model_info"),
        *("/generate", "/v1/responses/1/cancel", "/configure_logging", "/v1/loads", "/api/chat"),
    ],
)
def test_clients_only_ask_the_model(path: str):
    assert not any(re.fullmatch(one, path) for one in ENGINE.http_paths)


def _options(**change: object) -> str:
    return " ".join(ENGINE.options(a_spec(**change), is_measured=False))


def test_a_server_is_started_for_adapters_where_there_are_some():
    assert "lora" not in _options()
    said = _options(adapters={"legal": "x"}, adapter_rank=40)
    lora = "--enable-lora --max-lora-rank 40 --lora-target-modules all --max-loras-per-batch 2"
    assert lora in said


def test_an_adapter_has_the_name_that_stands_behind_the_colon_of_a_model():
    """It takes any model without a colon for the base."""
    load = ENGINE.load_adapter("chat", "legal", "/m/legal")
    assert (load.path, json.loads(load.head)) == (
        "/load_lora_adapter",
        {"lora_name": "legal", "lora_path": "/m/legal"},
    )
    assert json.loads(ENGINE.unload_adapter("chat", "legal").head) == {"lora_name": "legal"}
    cards = [{"id": "m", "root": "m"}, {"id": "legal", "root": "/m/legal", "parent": "m"}]
    said = json.dumps({"data": cards}).encode()
    assert ENGINE.loaded_adapters(said, "chat") == {"legal": "/m/legal"}
    # Two adapters can't have one name there.
    assert not ENGINE.replaces_adapters


def test_why_it_refuses_an_adapter_is_read():
    said = {"success": False, "error_message": "rank 64 is too large", "loaded_adapters": None}
    assert ENGINE.failure(json.dumps(said).encode()) == "rank 64 is too large"
    assert ENGINE.failure(b'{"object": "error", "message": "bad prompt"}') == "bad prompt"
