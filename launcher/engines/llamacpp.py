"""llama.cpp's server, ``llama-server``, with OpenAI's protocol by HTTP.

What it does was tried on a build of October 2026; it needs one of March 2026 or newer (``--tags``).
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import re
from collections.abc import Collection, Sequence
from types import MappingProxyType

from pydantic import Field

from cluster.language.service import AUTO, ServiceSpec
from launcher.engines import openai
from launcher.engines.engine import OPENAI_API, Answer, Parallelism, Probe, Request, TokenCounts
from launcher.engines.llamacpp_model import is_model, model_needs
from launcher.engines.metrics_text import figures
from launcher.engines.model_files import ModelFiles, ModelNeeds
from launcher.engines.said import Said

_MOST_SLOTS = 256
"""Requests that llama.cpp works on at the same time at most (LLAMA_MAX_SEQ)."""
_MOST_TAGS = 100
_LOG_MARK = re.compile(r"^([0-9.]+ )?([EWIDT] )?")
_PROMPT_S, _TOKENS, _TOKENS_S = (
    f"llamacpp:{one}_total"
    for one in ("prompt_seconds", "tokens_predicted", "tokens_predicted_seconds")
)


class _Model(Said):
    tags: list[str] = Field([], max_length=_MOST_TAGS)


class _Models(Said):
    """llama-server's answer to /v1/models: it serves one."""

    data: list[_Model] = Field(max_length=1)


class LlamaCpp:
    """llama.cpp as an engine; ``launcher.engines.engine.Engine`` says what each part is."""

    title = "llama.cpp"

    # It splits the layers of a model over the GPUs that it sees.
    parallelism = Parallelism(gpus=True)
    # It takes a host that ends in .sock for the path of a unix socket.
    sockets = ("http.sock",)
    loopback_port = 0
    environment = MappingProxyType[str, str]({})
    options_file = ""
    drain_signal = "INT"
    # It ends at once: answers that go on are cut off, and look as if they were complete.
    finishes_requests = False
    temporary = ""
    library = ""

    model_layout = "a directory with one .gguf file, or with all parts of one"
    model_config = ""
    loads_all = False
    # All but warnings and errors.
    log_notice = re.compile(r"([0-9.]+ )?[IDT] ")

    pool = "llamacpp"
    api = OPENAI_API
    health_path = "/health"
    # No client sees or changes slots, properties, LoRA adapters, or what others have asked.
    http_paths = openai.HTTP_PATHS
    grpc_paths = ()
    health_paths = ("/health", "/v1/health")
    statistics_paths = ()
    stream_paths = (openai.ANSWERS,)
    served = openai.SERVED
    # Such a request goes on when its client has gone, for a client that comes back.
    dropped_headers = ("x-conversation-id",)
    # It closes an idle connection after 5 s, maybe just when a request comes, and a thread waits
    # for each.
    keeps_connections = False

    # As llama-server's own default: they share the context.
    slots = 4

    metrics_path = "/metrics"

    identity_path = "/v1/models"
    upgrade = ""

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        """Return llama-server's options; those that a service's environment sets stand behind."""
        if is_measured:
            raise ValueError("llama.cpp is not measured")
        slots = self.slots if spec.concurrency == AUTO else min(spec.concurrency, _MOST_SLOTS)
        # The name of a split model's first part is the first one by name.
        return (
            f'--model "$(set -- "$models"/{spec.model}/*.gguf && printf %s "$1")"',
            f'--alias {spec.model} --tags "$id"',
            '--host "$private/http.sock"',
            f"--parallel {slots} --threads {spec.cpus}",
            "--metrics --no-webui",
        )

    def token_counts(self, said: bytes) -> TokenCounts:
        """Read llama-server's counters; it does not count requests."""
        found = figures(said, {_PROMPT_S, _TOKENS, _TOKENS_S})
        try:
            return TokenCounts(found[_PROMPT_S], found[_TOKENS], found[_TOKENS_S])
        except KeyError as error:
            raise ValueError(f"no {error}") from None

    def is_model(self, entries: frozenset[str]) -> bool:
        """Whether it has a file in llama.cpp's format."""
        return is_model(entries)

    def model_needs(self, files: ModelFiles, _models: Collection[str], _gpus: int) -> ModelNeeds:
        """Find the model's file, or the parts of it."""
        return model_needs(files)

    def log_time_s(self, _line: str, _now_s: float, /) -> float | None:
        """Return nothing: llama-server writes the time since its start."""
        return None

    def log_message(self, line: str) -> str:
        """Remove such as ``0.00.004.398 W ``."""
        return _LOG_MARK.sub("", line)

    def identified(self, said: bytes, identity: str) -> Answer:
        """Look for the identity among the tags of the model."""
        is_ours = any(identity in one.tags for one in _Models.parse(said).data)
        return Answer(Probe.OURS if is_ours else Probe.STRANGER)

    def ready_paths(self, _model: str) -> tuple[str, ...]:
        """Return the path that answers 503 while the model is loaded."""
        return (self.health_path,)

    def model_paths(self, _model: str) -> tuple[str, ...]:
        """Return nothing: the smallest request is the same for all."""
        return ()

    def smallest_request(
        self, model: str, _said: Sequence[bytes], _sequence_id: int
    ) -> Request | None:
        """Build a completion of one token."""
        return openai.smallest_completion(model)

    def failure(self, said: bytes) -> str:
        """Return llama-server's own message, else all that was answered."""
        return openai.failure(said)
