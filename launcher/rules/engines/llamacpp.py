"""llama.cpp's server, ``llama-server``, with OpenAI's protocol by HTTP.

What it does was tried on a build of October 2026; it needs one of March 2026 or newer (``--tags``).
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import re
from collections.abc import Collection, Mapping

from pydantic import Field

from slicewise.cluster.language.service import AUTO, ServiceSpec
from slicewise.launcher.rules.engines.engine import (
    MEASURED_SLOTS,
    Answer,
    MediaFetch,
    Parallelism,
    Probe,
    Request,
    TokenCounts,
)
from slicewise.launcher.rules.engines.llamacpp_model import BESIDE, is_model, model_needs
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.engines.metrics_text import counters, figures
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds
from slicewise.launcher.rules.engines.openai import (
    COUNT_TOKENS,
    MESSAGES,
    OpenAIEngine,
    json_request,
)
from slicewise.launcher.rules.engines.said import Said
from slicewise.launcher.rules.engines.statistics import Answered

_MOST_SLOTS = 256
"""Requests that llama.cpp works on at the same time at most (LLAMA_MAX_SEQ)."""
_MOST_TAGS = 100
MODELS = "/slicewise/models"
"""Path at which ``launcher/scripts/models.py`` is told which models to have."""
_PROJECTOR = "LLAMA_ARG_MMPROJ"
"""Beginning of variables by which llama-server reads images, and audio."""
_BUILD = re.compile("b[0-9]+-")
_LOG_MARK = re.compile(r"^([0-9.]+ )?([EWIDT] )?")
_TOKEN_COUNTERS = tuple(
    f"llamacpp:{name}_total"
    for name in ("prompt_seconds", "tokens_predicted", "tokens_predicted_seconds")
)


_GAUGES = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
_TOKENS = ("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total")


class _Model(Said):
    tags: list[str] = Field([], max_length=_MOST_TAGS)


class _Models(Said):
    """llama-server's answer to /v1/models: it serves one."""

    data: list[_Model] = Field(max_length=1)


class _Loaded(Said):
    """What ``models.py`` answers: the state of each model that has a server."""

    models: dict[str, str]

    def in_state(self, state: str) -> frozenset[str]:
        """The models in that state."""
        return frozenset(model for model, its_state in self.models.items() if its_state == state)


class _Props(Said):
    """llama-server's answer to /props."""

    build_info: str


class LlamaCpp(OpenAIEngine):
    """llama.cpp as an engine; ``Engine`` says what each part is."""

    title = "llama.cpp"

    command = "/opt/llama.cpp/bin/llama-server"
    image_command = "/app/llama-server"
    private_shm = False

    # It splits the layers of a model over the GPUs that it sees.
    parallelism = Parallelism(gpus=True)
    # It takes a host that ends in .sock for the path of a unix socket.
    sockets = ("http.sock",)
    media_fetch = MediaFetch.ANY
    # It ends at once: answers that go on are cut off, and look as if they were complete.
    finishes_requests = False

    model_layout = "a directory with .gguf files"
    model_indexes = ()
    chooses_file = True
    # It goes on without a GPU, memory that stays, or a template; the rest only passes a failure on.
    log_harmless = re.compile(
        r"ggml_cuda_init: failed to initialize CUDA|load_backend: failed|warning: "
        r"|(?:load|init): .*(?:token|template)|\S+: n_ctx_(?:seq|per_seq) .*n_ctx_train"
        r"|llama_model_load_from_file_impl: failed to load model"
        r"|common_init_(?:from_params|result)\S* failed to load model"
        r"|srv +load_model: failed to load model|srv .*cleaning up before exit"
        r"|(?:main|srv +\S+): exiting due to"
    )
    # All but warnings and errors.
    log_notice = re.compile(r"([0-9.]+ )?[IDT] ")

    group = "llamacpp"
    version_path = "/props"
    http_paths = (*OpenAIEngine.http_paths, MESSAGES, COUNT_TOKENS)
    # Such a request goes on when its client has gone, for a client that comes back.
    dropped_headers = ("x-conversation-id",)
    # It closes an idle connection after 5 s, maybe just when a request comes, and a thread waits
    # for each.
    keeps_connections = False
    running_sums = "timings_per_token"

    # As llama-server's own default: they share the context.
    slots = 4
    has_slot_memory = True

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        """Return llama-server's options; those that a service's environment sets stand behind."""
        wanted = self.slots if spec.concurrency == AUTO else min(spec.concurrency, _MOST_SLOTS)
        slots = MEASURED_SLOTS if is_measured else wanted
        # The name of a split model's first part is the first one by name.
        first = f"ls \"$models\"/{spec.model} | grep '[.]gguf$' | grep -Eiv '{BESIDE}' | head -n 1"
        file, model = f'"$models/{spec.model}/{spec.model_file or f"$({first})"}"', spec.model
        socket = '"$private/http.sock"'
        if spec.pool and not is_measured:
            file, model, socket = "'{file}'", "'{model}'", "'{socket}'"
        return (
            f"--model {file}",
            f'--alias {model} --tags "$id"',
            f"--host {socket}",
            f"--parallel {slots} --threads {spec.cpus}",
            "--metrics --no-webui",
        )

    has_server_each = True
    # It maps the files, and works on what finds no room on the GPU, or without one on all, there.
    has_host_weights = True
    answered_path = ""

    def answered(self, _body: bytes) -> Mapping[str, Answered]:
        """Return nothing."""
        return {}

    def models_request(self) -> Request:
        """Build the question for the models that have a server."""
        return Request("GET", MODELS)

    def ready_models(self, body: bytes) -> frozenset[str]:
        """Read the models whose server is fit."""
        return _Loaded.parse(body).in_state("ready")

    def leaving_models(self, body: bytes) -> frozenset[str]:
        """Read the models whose server finishes what it has."""
        return _Loaded.parse(body).in_state("leaving")

    def loading_models(self, body: bytes) -> frozenset[str]:
        """Read the models whose server is not fit yet."""
        return _Loaded.parse(body).in_state("loading")

    def load_model(self, model: str, service: str) -> Request:
        """Build the order to start the model's server."""
        return json_request(f"{MODELS}/load", {"model": model, "service": service})

    def unload_model(self, model: str) -> Request:
        """Build the order to end the model's server."""
        return json_request(f"{MODELS}/unload", {"model": model})

    def closes_network(self, spec: ServiceSpec, /) -> bool:
        """Whether it reads images, and its service lets it fetch none.

        It has no option for that, and fetches whatever begins with ``http``, redirects included. A
        server without a projector refuses images.
        """
        reads_images = any(name.startswith(_PROJECTOR) for name, _ in spec.environment)
        return reads_images and spec.media_domains is None

    def token_counts(self, body: bytes) -> TokenCounts:
        """Read llama-server's counters; it does not count requests."""
        first_s, tokens, token_s = counters(body, _TOKEN_COUNTERS)
        return TokenCounts(first_s, tokens, token_s)

    def engine_load(self, body: bytes) -> EngineLoad:
        """Read llama-server's gauges and counters; it says nothing of its cache."""
        running, waiting = counters(body, _GAUGES)
        numbers = figures(body, _TOKENS)
        prompt, output = map(numbers.get, _TOKENS)
        counts = EngineCounts(prompt_tokens=prompt, output_tokens=output)
        return EngineLoad(running, waiting, counts=counts, counts_cached=False)

    def is_model(self, entries: frozenset[str]) -> bool:
        """Whether it has a file in llama.cpp's format."""
        return is_model(entries)

    def model_needs(self, files: ModelFiles, _models: Collection[str], _gpus: int) -> ModelNeeds:
        """Find the model's file, or the parts of it."""
        return model_needs(files)

    def log_message(self, line: str) -> str:
        """Remove such as ``0.00.004.398 W ``."""
        return _LOG_MARK.sub("", line)

    def identified(self, body: bytes, identity: str) -> Answer:
        """Look for the identity among the tags of the model."""
        is_ours = any(identity in card.tags for card in _Models.parse(body).data)
        return Answer(Probe.OURS if is_ours else Probe.STRANGER)

    def version(self, body: bytes) -> str:
        """Read the number of its build, such as ``b12405-0a1b2c3``; nothing else counts up."""
        build = _Props.parse(body).build_info
        return build if _BUILD.match(build) else ""
