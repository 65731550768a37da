"""OpenAI's API by HTTP: what engines that speak it share, its list of models, its errors.

https://platform.openai.com/docs/api-reference/models
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import Field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.rules.engines import openai_stream, safetensors_model
from slicewise.launcher.rules.engines.engine import OPENAI_API, MediaFetch, Request
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds
from slicewise.launcher.rules.engines.said import Said
from slicewise.launcher.rules.engines.statistics import StatisticsAnswer

_ANSWERS = "/v1/(completions|chat/completions|responses)"
"""Paths whose answers may be streams."""
CHATS = "/v1/(chat/)?completions"
"""Paths at which a stream's running sums can be asked for."""
MESSAGES = "/v1/messages"
"""Path of Anthropic's API at vLLM and llama.cpp; its answers may be streams."""
COUNT_TOKENS = f"{MESSAGES}/count_tokens"
AUDIO = "/v1/audio/(transcriptions|translations)"
"""Paths to which vLLM takes a form with a recording."""
SCORES = "/v1/score"
"""Path of vLLM and SGLang at which pairs of texts get scores."""
KEEP_ALIVE_S = 86_400
"""Seconds for which a server on uvicorn keeps an idle connection where a variable sets that: longer
than HAProxy keeps one, so that HAProxy never takes one in the moment in which the server closes it.
Unless set, it is 5 s."""

_UNKNOWN = Code.GATEWAY_UNKNOWN

BATCHED_ADAPTERS = 4
"""Adapters of which requests are worked on in one batch at most: the GPU keeps memory for each."""
_MOST_NAMES = 1000
"""Models that a server names at most: one for each name, and one for each LoRA adapter."""


class Card(Said):
    """A model in a server's answer to /v1/models; an adapter has a parent."""

    id: str = Field(max_length=1024)
    root: str | None = Field(None, max_length=4096)
    parent: str | None = Field(None, max_length=1024)


class Cards(Said):
    """A server's answer to /v1/models."""

    data: list[Card] = Field(max_length=_MOST_NAMES)

    @property
    def adapters(self) -> Mapping[str, str]:
        """Paths of its adapters, by the names that it has for them."""
        return {card.id: card.root or "" for card in self.data if card.parent is not None}


def json_request(path: str, body: Mapping[str, object]) -> Request:
    """Build a request with a body in JSON."""
    return Request("POST", path, {"Content-Type": "application/json"}, json.dumps(body).encode())


class _Error(Said):
    message: str


class _AdapterFailure(Said):
    """SGLang's answer when it can't load or unload an adapter."""

    error_message: str

    @property
    def message(self) -> str:
        return self.error_message


class _Failure(Said):
    """An answer to a refused request, as OpenAI's API has it."""

    error: _Error


class OpenAIEngine:
    """What engines that speak OpenAI's API have in common, unless they say otherwise.

    Its server listens on a unix socket, and loads a model as Hugging Face's tools save one.
    ``slicewise.launcher.rules.engines.engine.Engine`` says what each part is.
    """

    command = ""
    image_command = ""
    private_shm = True
    sockets = ("http.sock",)
    loopback_port = 0
    environment: Mapping[str, str] = MappingProxyType({})
    options_file = ""
    starts_in_models = False
    drain_signal = "INT"
    finishes_requests = False
    temporary = ""
    library = ""
    log_harmless = re.compile(r"(?!)")

    media_fetch = MediaFetch.NEVER

    model_layout = safetensors_model.LAYOUT
    model_config = safetensors_model.CONFIG
    model_indexes: tuple[str, ...] = safetensors_model.INDEXES
    chooses_file = False
    loads_all = False

    api = OPENAI_API
    health_path = "/health"
    # They only ask the model. With others a client would load weights or adapters, free memory, end
    # others' requests, or see what the server does for them.
    http_paths: tuple[str, ...] = ("/v1/(models|embeddings|rerank)", _ANSWERS)
    grpc_paths: tuple[str, ...] = ()
    health_paths: tuple[str, ...] = ("/health", "/v1/health")
    statistics_paths: tuple[str, ...] = ()
    stream_paths: tuple[str, ...] = (_ANSWERS, MESSAGES)
    served = "models, completions, chat, responses, embeddings and reranking (/v1/...)"
    dropped_headers: tuple[str, ...] = ()
    keeps_connections = True
    # With the option continuous_usage_stats of vLLM and SGLang.
    running_sums = "stream_options"

    metrics_path = "/metrics"
    # Its cache of keys and values is as large as the memory, however many requests share it.
    has_slot_memory = False

    identity_path = "/v1/models"
    version_path = ""

    def closes_network(self, _spec: ServiceSpec, /) -> bool:
        """Return no."""
        return False

    is_model = staticmethod(safetensors_model.is_model)

    def model_needs(self, files: ModelFiles, _models: Collection[str], _gpus: int) -> ModelNeeds:
        """Find the model's files."""
        return safetensors_model.model_needs(files)

    def log_time_s(self, _line: str, _now_s: float, /) -> float | None:
        """Return nothing: the time in a log may be that of the node's zone."""
        return None

    def version(self, _said: bytes) -> str:
        """Return nothing."""
        return ""

    def ready_paths(self, _model: str) -> tuple[str, ...]:
        """Return the path that answers 503 while the server can't answer."""
        return (self.health_path,)

    def model_paths(self, _model: str) -> tuple[str, ...]:
        """Return nothing: the smallest request is the same for all."""
        return ()

    def smallest_request(
        self, model: str, _said: Sequence[bytes], _sequence_id: int
    ) -> Request | None:
        """Build a completion of one token."""
        body = {"model": model, "prompt": "1", "max_tokens": 1}
        return json_request("/v1/completions", body)

    def failure(self, body: bytes) -> str:
        """Return the server's own message, else all that was answered.

        The message stands in ``error``; in SGLang's answers it may stand beside no other key of
        ours.
        """
        for kind in (_Failure, _Error, _AdapterFailure):
            try:
                failure = kind.parse(body)
            except (ValueError, TypeError):
                continue
            return failure.error.message if isinstance(failure, _Failure) else failure.message
        return body.decode(errors="replace")

    parse_prompts = staticmethod(openai_stream.parse_prompts)
    streamed_request = staticmethod(openai_stream.streamed_request)
    has_text = staticmethod(openai_stream.has_text)
    usage = staticmethod(openai_stream.usage)

    def stream_failure(self, body: bytes, /) -> str:
        """Return the server's message in the last event."""
        error = openai_stream.stream_error(body)
        return self.failure(error) if error else ""


@dataclass(frozen=True)
class ListedModel:
    """A service, or an adapter of one, as a model of OpenAI's API.

    Attributes:
        created_s: Unix seconds at which it was last applied.
        parent: the service of an adapter; "" for a service.
    """

    name: str
    tenant: str
    created_s: int
    parent: str = ""

    @property
    def said(self) -> dict[str, object]:
        """The object ``model`` of OpenAI's API."""
        card = {
            "id": self.name,
            "object": "model",
            "created": self.created_s,
            "owned_by": self.tenant,
        }
        return card | ({"parent": self.parent} if self.parent else {})


def models_answer(models: Sequence[ListedModel], name: str) -> StatisticsAnswer:
    """Answer with the model of that name, or with all of them if ``name`` is ""."""
    if not name:
        listing = {"object": "list", "data": [model.said for model in models]}
        return StatisticsAnswer(200, json.dumps(listing).encode())
    for model in models:
        if model.name == name:
            return StatisticsAnswer(200, json.dumps(model.said).encode())
    return openai_error(404, _UNKNOWN, "there is no such model that this key opens.", "model")


def openai_error(
    status: int, code: str, message: str, parameter: str | None = None
) -> StatisticsAnswer:
    """Return an error that OpenAI's clients understand."""
    error = {
        "message": f"{code}: {message}",
        "type": "server_error" if status >= 500 else "invalid_request_error",  # noqa: PLR2004
        "param": parameter,
        "code": code,
    }
    return StatisticsAnswer(status, json.dumps({"error": error}).encode())
