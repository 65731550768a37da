"""SGLang's server, ``sglang serve``, with OpenAI's protocol by HTTP.

Written from the source of 0.5.23, which runs on no processor that the tests have: they ask a
stand-in. https://docs.sglang.io/advanced_features/server_arguments.html
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from slicewise.cluster.language.service import AUTO, ServiceSpec
from slicewise.launcher.rules.engines import metrics_text
from slicewise.launcher.rules.engines.engine import (
    MEASURED_SLOTS,
    Answer,
    Parallelism,
    Probe,
    Request,
    TokenCounts,
)
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.engines.openai import (
    BATCHED_ADAPTERS,
    KEEP_ALIVE_S,
    SCORES,
    Cards,
    OpenAIEngine,
    json_request,
)
from slicewise.launcher.rules.engines.said import Said

_GAUGES = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
_COUNTERS = tuple(
    f"sglang:{name}_total"
    for name in ("num_retracted_requests", "prompt_tokens", "generation_tokens")
)
_CACHED = "sglang:cached_tokens_total"
_PORT = 30000
_MARK = r"\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]{8,12}[^]]*\] "
_LOG_MARK = re.compile(f"^{_MARK}")


class _ModelInfo(Said):
    """SGLang's answer to /model_info."""

    weight_version: str


class _ServerInfo(Said):
    """SGLang's answer to /server_info."""

    version: str


class SGLang(OpenAIEngine):
    """SGLang as an engine; ``Engine`` says what each part is."""

    title = "SGLang"

    command = "/opt/sglang/bin/sglang"
    image_command = "sglang"

    # On several nodes its network, which leads nowhere, would have to lead to the others.
    parallelism = Parallelism(gpus=True, layers=True)
    # It listens on no unix socket (sgl-project/sglang#14258).
    loopback_port = _PORT
    environment = MappingProxyType(
        {"SGLANG_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S), "HF_HUB_OFFLINE": "1"}
    )
    options_file = "sglang.yaml"
    adapters_path = "/v1/models"
    replaces_adapters = False
    # By TERM it would finish its requests, and look every 5 s whether it has; but the step's TERM
    # is kept from the server, and with it from all that it starts.
    drain_signal = "INT"

    # What its processes say of each other once one has failed.
    log_harmless = re.compile(
        r"(?:Child process unexpectedly failed|Rank [0-9]+ scheduler is dead|Exit code: )"
        r"|RuntimeError: Rank [0-9]+ scheduler died|`?torch_dtype`? is deprecated"
        r"|\[(?:rank[0-9]+\]:\[)?W|\[Gloo\]"
    )
    # Its lines have no level. Those of a traceback, and what only points to one, explain nothing.
    log_notice = re.compile(
        rf"{_MARK}(?!.*([Ee]rror|[Ee]xception:|[Ff]ailed|out of memory))|"
        rf"({_MARK})?( |Traceback |.* hit an exception: Traceback |Received sigquit )|"
        r"\S+: \w*Warning: "
    )

    group = "sglang"
    http_paths = (*OpenAIEngine.http_paths, SCORES)
    # /health generates a token each time, and takes a second.
    health_path = "/ready"
    health_paths = ("/health", "/v1/health", "/ready")
    # By them a client names another's request as its own, or servers that this one should call.
    dropped_headers = (
        *("x-override-rid", "x-override-conversation-id", "x-override-priority"),
        *("x-override-bootstrap-host", "x-override-bootstrap-port", "x-override-bootstrap-room"),
        *("x-override-routed-dp-rank", "x-override-disagg-prefill-dp-rank"),
        *("x-data-parallel-rank", "x-smg-routing-key"),
    )

    # Most models' cache of keys and values is full before.
    slots = 256
    identity_path = "/model_info"
    version_path = "/server_info"

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        """Return the words after ``sglang``; they win over those of the model's ``sglang.yaml``."""
        wanted = self.slots if spec.concurrency == AUTO else spec.concurrency
        slots = MEASURED_SLOTS if is_measured else wanted
        return (
            f'serve --model-path "$models"/{spec.model} --served-model-name {spec.model}',
            # The version of the weights is any text; the server says it, and does nothing with it.
            '--weight-version "$id"',
            f"--host 127.0.0.1 --port {self.loopback_port}",
            f"--max-running-requests {slots}",
            f"--tp-size {spec.layer_gpus} --pp-size {spec.stages}",
            *_lora(spec),
            "--enable-metrics --stream-response-default-include-usage --log-level-http warning",
            '${options_file:+--config "$options_file"}',
        )

    def token_counts(self, body: bytes) -> TokenCounts:
        """Read its histograms."""
        return metrics_text.token_counts(body, "sglang")

    def engine_load(self, body: bytes) -> EngineLoad:
        """Read its gauges and counters.

        It counts tokens when their request ends, and what its cache had once that had something.
        """
        running, waiting = metrics_text.counters(body, _GAUGES)
        sums = metrics_text.figures(body, (*_COUNTERS, _CACHED))
        preemptions, prompt, output = map(sums.get, _COUNTERS)
        cached = None if prompt is None else sums.get(_CACHED, 0.0)
        counts = EngineCounts(preemptions, prompt, output, prompt, cached)
        cache = metrics_text.share(body, "sglang:token_usage")
        return EngineLoad(running, waiting, cache, counts)

    def log_message(self, line: str) -> str:
        """Remove such as ``[2026-11-26 17:11:35 TP0] ``."""
        return _LOG_MARK.sub("", line)

    def identified(self, body: bytes, identity: str) -> Answer:
        """Compare the version of the weights, which the identity is given as."""
        is_ours = _ModelInfo.parse(body).weight_version == identity
        return Answer(Probe.OURS if is_ours else Probe.STRANGER)

    def version(self, body: bytes) -> str:
        """Read its version."""
        return _ServerInfo.parse(body).version

    def loaded_adapters(self, body: bytes, _service: str) -> Mapping[str, str]:
        """Read its list of models: adapters have a parent."""
        return Cards.parse(body).adapters

    def load_adapter(self, _service: str, adapter: str, path: str) -> Request:
        """Load it by its own name: it takes what stands behind a model's colon for an adapter."""
        return json_request("/load_lora_adapter", {"lora_name": adapter, "lora_path": path})

    def unload_adapter(self, _service: str, adapter: str) -> Request:
        """Unload it; the server waits for requests that it works on."""
        return json_request("/unload_lora_adapter", {"lora_name": adapter})


def _lora(spec: ServiceSpec) -> tuple[str, ...]:
    if not spec.adapters:
        return ()
    # Requests without an adapter take a place, too.
    batched = 1 + min(len(spec.adapters), BATCHED_ADAPTERS)
    return (
        f"--enable-lora --max-lora-rank {spec.largest_rank} --lora-target-modules all",
        f"--max-loras-per-batch {batched}",
    )
