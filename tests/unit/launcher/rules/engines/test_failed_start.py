"""Tests that the line shown of a failed start is its cause, by each engine's own log."""

import pytest

from slicewise.launcher.rules.engines.failed_start import cause
from slicewise.launcher.rules.engines.registry import ENGINES

VLLM_LENGTH = """\
INFO 11-26 17:11:30 [api_server.py:1] vLLM API server version 0.32.0
(APIServer pid=3) ERROR 11-26 17:11:31 [gpt_oss.py:58] Failed to import Triton kernels. Please \
make sure your triton version is compatible. Error: No module named 'triton_kernels.routing'
`torch_dtype` is deprecated! Use `dtype` instead!
(APIServer pid=3) Traceback (most recent call last):
(APIServer pid=3)   File "/opt/vllm/bin/vllm", line 8, in <module>
(APIServer pid=3)     sys.exit(main())
(APIServer pid=3) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=3)   Value error, User-specified max_model_len (99999) is greater than the derived \
max_model_len (max_position_embeddings=2048)
"""
VLLM_MEMORY = """\
(EngineCore pid=7) ERROR 11-26 17:11:31 [fa_utils.py:57] Cannot use FA version 2 is not supported
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510]   File "core.py", line 1, in run
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] KeyError: 'memory'
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510]
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] During handling of the above exception, \
another exception occurred:
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510]
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] ValueError: Free memory on device (3.1/9.5 \
GiB) on startup is less than desired GPU memory utilization (0.9, 8.5 GiB).
[rank0]:[W1126 17:11:36.123 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not
(APIServer pid=3) Traceback (most recent call last):
(APIServer pid=3)   File "utils.py", line 1031, in wait_for_engine_startup
(APIServer pid=3) RuntimeError: Engine core initialization failed. See root cause above. Failed \
core proc(s): {}
Exception ignored in: <function BaseEventLoop.__del__ at 0x7f>
asyncio.exceptions.CancelledError
/usr/lib/python3.12/resource_tracker.py:279: UserWarning: resource_tracker: There appear to be 1
"""
LLAMA = """\
0.00.001.100 E ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected
0.00.001.200 W warning: no usable GPU found, --gpu-layers option will be ignored
0.00.004.000 I srv    load_model: loading model '/m/tiny.gguf'
0.00.004.398 E gguf_init_from_file_impl: invalid magic characters: 'GGML', expected 'GGUF'
0.00.004.399 E llama_model_load: error loading model: llama_model_loader: failed to load model
0.00.004.400 E llama_model_load_from_file_impl: failed to load model
0.00.004.401 E common_init_from_params: failed to load model '/m/tiny.gguf'
0.00.004.402 E srv    load_model: failed to load model, '/m/tiny.gguf'
0.00.004.403 I srv    operator(): operator(): cleaning up before exit...
0.00.004.404 E main: exiting due to model loading error
"""
TRITON = """\
W1126 17:11:30.000001 17 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, \
pinned memory group will not be available: CUDA driver version is insufficient"
I1126 17:11:30.000002 17 cuda_memory_manager.cc:117] "CUDA memory pool disabled"
E1126 17:11:30.000003 17 server.cc:248] "CacheManager Init Failed. Error: -17"
E1126 17:11:31.000001 17 model_lifecycle.cc:654] "failed to load 'bert' version 1: Invalid \
argument: unable to find 'libtriton_onnxruntime.so' for model 'bert'"
+-------+---------+
| Model | Version |
+-------+---------+
I1126 17:11:31.000002 17 server.cc:305] "Waiting for in-flight requests to complete."
W1126 17:11:32.000001 17 metrics.cc:644] "Unable to get power limit for GPU 0. Status:Success"
error: creating server: Internal - failed to load all models
"""
SGLANG = """\
[2026-11-26 17:11:35 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/sglang/scheduler.py", line 1, in run_scheduler_process
torch.OutOfMemoryError: CUDA out of memory.
[2026-11-26 17:11:36] Received sigquit from a child process. It usually means the child failed.
[2026-11-26 17:11:36] Rank 0 scheduler is dead. Please check if there are relevant errors.
[2026-11-26 17:11:36] Exit code: -9 failed
Traceback (most recent call last):
  File "engine.py", line 9, in launch
RuntimeError: Rank 0 scheduler died during initialization (exit code: -9).
"""


@pytest.mark.parametrize(
    ("name", "log", "begins"),
    [
        (
            "vllm",
            VLLM_LENGTH,
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
                " Value error, User-specified max_model_len (99999) is greater"
            ),
        ),
        ("vllm", VLLM_MEMORY, "ValueError: Free memory on device (3.1/9.5 GiB) on startup"),
        (
            "llamacpp",
            LLAMA,
            (
                "gguf_init_from_file_impl: invalid magic characters: 'GGML', expected 'GGUF'"
                " llama_model_load: error loading model"
            ),
        ),
        ("triton", TRITON, "\"failed to load 'bert' version 1: Invalid argument: unable to find"),
        ("sglang", SGLANG, "torch.OutOfMemoryError: CUDA out of memory."),
        # Nothing else is there.
        ("llamacpp", LLAMA.splitlines()[-1], "main: exiting due to model loading error"),
        ("vllm", "/opt/vllm/bin/vllm: No such file", "/opt/vllm/bin/vllm: No such file"),
        ("vllm", "vllm serve: error: unrecognized arguments: --x", "vllm serve: error:"),
        ("vllm", "ImportError: libcudart.so.12: cannot open\nAborted", "ImportError: libcudart"),
        ("triton", "", ""),
    ],
)
def test_the_cause_of_a_failed_start_is_shown(name: str, log: str, begins: str) -> None:
    shown = cause(log.splitlines(), ENGINES[name])
    assert shown.startswith(begins)
    assert len(shown) <= 3 * 131


def test_what_repeats_the_failure_or_harms_none_is_not_shown_beside_it() -> None:
    for name, log in (("llamacpp", LLAMA), ("triton", TRITON), ("vllm", VLLM_MEMORY)):
        shown = cause(log.splitlines(), ENGINES[name])
        for word in ("exiting", "CUDA:", "creating server", "pinned", "See root cause", "FA "):
            assert word not in shown
