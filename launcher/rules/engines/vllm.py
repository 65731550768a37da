"""vLLM's server, ``vllm serve``, with OpenAI's protocol by HTTP.

What it does was tried on 0.32.0, CPU build.
https://docs.vllm.ai/en/stable/cli/serve/
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from slicewise.cluster.language.adapters import MOST_ADAPTERS, model_name
from slicewise.cluster.language.service import ANY_HOST, AUTO, ServiceSpec
from slicewise.launcher.rules.engines import metrics_text
from slicewise.launcher.rules.engines.engine import (
    MEASURED_SLOTS,
    Answer,
    MediaFetch,
    Parallelism,
    Probe,
    Request,
    TokenCounts,
)
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.engines.openai import (
    AUDIO,
    BATCHED_ADAPTERS,
    COUNT_TOKENS,
    KEEP_ALIVE_S,
    MESSAGES,
    SCORES,
    Cards,
    OpenAIEngine,
    json_request,
)
from slicewise.launcher.rules.engines.said import Said

_PROCESS = r"(?:\([A-Za-z]\w* pid=[0-9]+\) )?"
_TIME = r"[0-9]{2}-[0-9]{2} [0-9:]{8} \[[^]]*\] "
_LOG_MARK = re.compile(rf"^{_PROCESS}(?:[A-Z]+(?:: +| {_TIME}))?")
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_COUNTERS = tuple(
    f"vllm:{name}_total"
    for name in (
        *("num_preemptions", "prompt_tokens", "generation_tokens"),
        *("prefix_cache_queries", "prefix_cache_hits"),
    )
)
_NO_HOST = "none: see media_domains"
"""What no address has for a host, so that none is even looked up. vLLM's refusals have these words.
"""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank may be."""


class _Version(Said):
    """vLLM's answer to /version."""

    version: str


class Vllm(OpenAIEngine):
    """vLLM as an engine; ``Engine`` says what each part is."""

    title = "vLLM"

    command = "/opt/vllm/bin/vllm"
    image_command = "vllm"

    parallelism = Parallelism(gpus=True, nodes=True, layers=True)
    environment = MappingProxyType(
        {
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
            # It would tell its project of each start, and look for models in the internet.
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            # From a host that it may ask, media could lead anywhere.
            "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
            # Without --enable-lora it refuses to load one. The gateway lets in no client there.
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        }
    )
    options_file = "vllm.yaml"
    # The path of its model is part of the key by which it finds again what it has compiled: one
    # that names the node's copy would be another on each node, and after each change.
    starts_in_models = True
    media_fetch = MediaFetch.BY_HOST
    adapters_path = "/v1/models"
    replaces_adapters = True
    # It aborts them, or with --shutdown-timeout takes all that time even if it has none. New ones
    # get 500 meanwhile, and /health stays 200.
    finishes_requests = False

    # All but errors; of these, the lines of tracebacks, and what only points to other lines.
    log_harmless = re.compile(
        r"(?:WorkerProc|EngineCore) (?:failed to start|hit an exception|encountered a fatal error)"
        r"|RuntimeError: Engine (?:core|process) (?:initialization failed|failed to start)"
        r"|Exception: WorkerProc initialization failed"
        # Parts that a model does without.
        r"|Failed to import (?:Triton kernels|from vllm\._)|Cannot use FA version"
        r"|Error retrieving safetensors|Error retrieving file list|Failed to get device"
        # Of PyTorch's: warnings, and processes that end with the one that failed.
        r"|\[(?:rank[0-9]+\]:\[)?W|\[Gloo\]|WARNING: destroy_process_group"
        r"|`?torch_dtype`? is deprecated"
    )
    log_notice = re.compile(
        rf"{_PROCESS}(?:(?:INFO|WARNING|DEBUG)(?::| {_TIME})|(?:ERROR {_TIME})?(?: |Traceback \(|"
        r"Process \w+:|\w+: (?:WorkerProc|Engine core) initialization failed)|\S+: \w*Warning: )"
    )

    group = "vllm"
    version_path = "/version"
    http_paths = (*OpenAIEngine.http_paths, SCORES, MESSAGES, COUNT_TOKENS, AUDIO)
    # Most models' cache of keys and values is full before.
    slots = 256

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        """Return the words after ``vllm``; they win over those of the model's ``vllm.yaml``."""
        wanted = self.slots if spec.concurrency == AUTO else spec.concurrency
        slots = MEASURED_SLOTS if is_measured else wanted
        # Clients may call the model by its name or the service's; the last name is the identity.
        names = dict.fromkeys((spec.model, spec.name, f"{spec.tenant}/{spec.name}"))
        return (
            f'serve ./{spec.model} --served-model-name {" ".join(names)} "$id"',
            '--uds "$private/http.sock"',
            f"--max-num-seqs {slots}",
            f"--tensor-parallel-size {spec.layer_gpus} --pipeline-parallel-size {spec.stages}",
            *_rank(spec.nodes),
            *_lora(spec),
            *_media(spec),
            "--enable-force-include-usage --disable-uvicorn-access-log",
            '${options_file:+--config "$options_file"}',
        )

    def token_counts(self, body: bytes) -> TokenCounts:
        """Read its histograms."""
        return metrics_text.token_counts(body, "vllm")

    def engine_load(self, body: bytes) -> EngineLoad:
        """Read its gauges and counters; one without a cache of prefixes looks nothing up."""
        running, waiting = metrics_text.counters(body, _GAUGES)
        sums = metrics_text.figures(body, _COUNTERS)
        counts = EngineCounts(*map(sums.get, _COUNTERS))
        cache = metrics_text.share(body, "vllm:kv_cache_usage_perc")
        return EngineLoad(running, waiting, cache, counts)

    def log_message(self, line: str) -> str:
        """Remove such as ``(EngineCore pid=7) ERROR 11-26 17:11:35 [core.py:1510] ``."""
        return _LOG_MARK.sub("", line)

    def identified(self, body: bytes, identity: str) -> Answer:
        """Look for the identity among the model's names."""
        is_ours = any(card.id == identity for card in Cards.parse(body).data)
        return Answer(Probe.OURS if is_ours else Probe.STRANGER)

    def version(self, body: bytes) -> str:
        """Read its version."""
        return _Version.parse(body).version

    def loaded_adapters(self, body: bytes, service: str) -> Mapping[str, str]:
        """Read its list of models: adapters have a parent."""
        before = model_name(service, "")
        return {
            name.removeprefix(before): path
            for name, path in Cards.parse(body).adapters.items()
            if name.startswith(before)
        }

    def load_adapter(self, service: str, adapter: str, path: str) -> Request:
        """Load it in place: one of that name, from another path, is replaced without a gap."""
        body = {"lora_name": model_name(service, adapter), "lora_path": path, "load_inplace": True}
        return json_request("/v1/load_lora_adapter", body)

    def unload_adapter(self, service: str, adapter: str) -> Request:
        """Forget its name; requests that it works on go on."""
        body = {"lora_name": model_name(service, adapter)}
        return json_request("/v1/unload_lora_adapter", body)


def _lora(spec: ServiceSpec) -> tuple[str, ...]:
    if not spec.adapters:
        return ()
    rank = next(rank for rank in _RANKS if rank >= spec.largest_rank)
    batched = min(len(spec.adapters), BATCHED_ADAPTERS)
    # The host's memory has all: one that leaves the GPU need not be read again.
    return (
        f"--enable-lora --max-lora-rank {rank} --max-loras {batched}",
        f"--max-cpu-loras {MOST_ADAPTERS}",
    )


def _media(spec: ServiceSpec) -> tuple[str, ...]:
    """Say from where media may come; without a host that it may ask vLLM asks any."""
    no_file = '--allowed-local-media-path ""'
    if spec.media_domains == ANY_HOST:
        return (no_file,)
    hosts = spec.media_domains.replace(",", " ") if spec.media_domains else f'"{_NO_HOST}"'
    return (f"{no_file} --allowed-media-domains {hosts}",)


def _rank(nodes: int) -> tuple[str, ...]:
    """Say to the server of a node how it finds those of the others; rank 0 answers clients."""
    if nodes == 1:
        return ()
    return (
        f'--nnodes {nodes} --node-rank "$node_rank"',
        '--master-addr "$leader_address" --master-port "$leader_port"',
        '$([ "$node_rank" = 0 ] || echo --headless)',
    )
