"""What an inference engine is to Slicewise: how it is started, reached, asked and measured.

An engine is pure: it says which words start its server and which requests to send, and reads the
answers. Others send them: ``launcher/probing/`` to replicas, ``launcher/profiling/job_main.py`` in
a job of ``slicewise profile``. A replica's answers come from a tenant's program, and all tenants
share the launcher: no answer may cost more than milliseconds to read.
"""

import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Protocol, runtime_checkable

from pydantic import Field

from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.language.starts import NOT_TOLD, Weights
from slicewise.launcher.rules.engines.load import EngineLoad
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds
from slicewise.launcher.rules.engines.statistics import Answered, Counts, Kind, StatisticsAnswer

IDLE_SUFFIX = "idle"
"""What the gateway adds to ``Engine.group`` for backends without servers."""

OPENAI_API = "/v1"
"""``Engine.api`` of an engine that speaks OpenAI's API.

Its services can also be asked at their tenant's one address, where a body's ``model`` is the
service's name: its server must take that name for its model. Whether an answer on one of its
``stream_paths`` is a stream, the body says.
"""


MEASURED_SLOTS = '"$(cat "$private/slots")"'
"""Word of bash in ``Engine.options``: how many requests ``slicewise profile`` sends at a time.

A job writes the file for a ``PromptedEngine`` before each start of its server.
"""


class Probe(StrEnum):
    """What a replica answered when it was asked for its identity."""

    OURS = "ours"
    SILENT = "silent"
    """No answer, or not ready yet."""
    STRANGER = "stranger"
    """Another server has the port."""


class MediaFetch(StrEnum):
    """Whether a server fetches images and other media that a request names by URL."""

    NEVER = "never"
    ANY = "any"
    """If at all, from anywhere: it can't tell hosts apart."""
    BY_HOST = "by host"
    """From hosts that it is told."""


@dataclass(frozen=True)
class ReadyTimes:
    """When a replica became ready: Unix seconds by the clock of the launcher's host.

    Attributes:
        loaded_s: when its server first said that its model is ready.
        ready_s: when it had answered all that it was asked.
        marks_s: when its batch script has set each mark; none if its door does not tell.
        weights: where the model's files were, as the script has marked it.
    """

    loaded_s: float
    ready_s: float
    marks_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    weights: Weights = NOT_TOLD


@dataclass(frozen=True)
class Answer:
    """A replica's answer when it was asked for its identity.

    Attributes:
        said: why it is not ready, for users, if the reason is unusual.
        is_failure: whether its model answered an inference with an error.
        is_costly: whether more than a few words were read and sent for it.
        too_old: the version of its engine, if that is older than it should be; else "".
        times: when it became ready; None of one that is not.
    """

    probe: Probe
    said: str = ""
    is_failure: bool = False
    is_costly: bool = field(default=False, compare=False)
    too_old: str = field(default="", compare=False)
    times: ReadyTimes | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Request:
    """An HTTP request to an engine's server.

    Attributes:
        head, rest: the two parts of its body; the second may have many MiB.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    head: bytes = b""
    rest: bytes = b""


@dataclass(frozen=True)
class Call:
    """A unary call of gRPC to an engine's server, at its port for these.

    Attributes:
        message: the Protobuf that is sent.
    """

    path: str
    message: bytes


@dataclass(frozen=True)
class Parallelism:
    """Over what one server can spread a model.

    Attributes:
        gpus: whether it uses several GPUs of a node.
        nodes: whether it uses GPUs of several nodes, with a rank on each.
        instances: whether it uses several MIG instances. They can't copy memory to each other, so
            most engines, which split a model by NCCL, do not.
        layers: whether it splits each layer, over as many GPUs as ``tensor_parallel`` says.
    """

    gpus: bool = False
    nodes: bool = False
    instances: bool = False
    layers: bool = False


@dataclass(frozen=True)
class StartSettings:
    """How an engine's server is started on the nodes of this site.

    Attributes:
        command: the server on the nodes, for runtime bare.
        image_command: the server in images, for runtime apptainer and pyxis.
        apptainer: Apptainer on the nodes.
        image_copies: whether nodes keep copies of images that are files.
        python: Python on the nodes, which runs the door.
        private_shm: whether a replica gets a /dev/shm of its own.
        interface: network interface between the nodes of a replica; "": that of the nodes'
            addresses.
    """

    command: str
    image_command: str
    apptainer: str
    image_copies: bool
    python: str
    private_shm: bool
    interface: str


class LoadedModel(Protocol):
    """A model that a server has loaded to be measured."""

    @property
    def processes(self) -> int:
        """How many processes of the server work on the model."""

    def requests(self, batch: int, count: int) -> Iterator[Request]:
        """Yield ``count`` inferences of ``batch`` requests each.

        Raises ValueError, with a text for users, if the model takes none such.
        """


@runtime_checkable
class Engine(Protocol):
    """An inference engine. Its server listens on unix sockets, on which only its user comes."""

    @property
    def title(self) -> str:
        """The engine's name in messages."""

    # How it is started and ended.

    @property
    def command(self) -> str:
        """Path of its server on the nodes, unless slicewise.toml says another; "": it must."""

    @property
    def image_command(self) -> str:
        """Its server in images, unless slicewise.toml says another."""

    @property
    def private_shm(self) -> bool:
        """Whether its server uses /dev/shm: a replica then gets one of its own."""

    @property
    def parallelism(self) -> Parallelism:
        """Of which GPUs a replica may consist: services that ask for others are refused."""

    @property
    def sockets(self) -> tuple[str, ...]:
        """Names of the server's sockets, each of which gets a port: HTTP's first, then gRPC's.

        A server that speaks both on one socket, or no gRPC, has one.
        """

    @property
    def loopback_port(self) -> int:
        """Port of 127.0.0.1 on which it listens if it can't listen on a unix socket; else 0.

        Such a server gets a network of its own, which has nothing but that address: only what is
        started beside it reaches the port. It has one socket.
        """

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the server starts with; those of a service's environment win."""

    @property
    def options_file(self) -> str:
        """Name of a file with more options for the server in a model's directory; "" for none."""

    @property
    def starts_in_models(self) -> bool:
        """Whether the server starts in ``$models``, and is told paths below it."""

    @property
    def drain_signal(self) -> str:
        """The signal after which the server ends, such as INT."""

    @property
    def finishes_requests(self) -> bool:
        """Whether it finishes the requests that it has before it ends by that signal.

        If not, it gets the signal once its last client has left.
        """

    @property
    def temporary(self) -> str:
        """Pattern of the names of directories in /tmp that a killed server leaves; "" for none."""

    @property
    def library(self) -> str:
        """File of the library that makes them: a server that may use one has it loaded."""

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        """Return words of bash that follow the server's command, one or more a line.

        They may use ``$id``, the replica's identity; ``$models``, the model repository;
        ``$private``, the directory of its sockets; ``$options_file``, the path of the model's file
        of that name, "" if it has none; and ``$exit_timeout_s``. Of a replica on several nodes
        each rank is started with them: ``$node_rank`` is 0 where clients are answered, and counts
        up on the other nodes; ``$leader_address`` and ``$leader_port`` are where rank 0 may wait
        for the others; ``$rank_address`` is the node's own address. ``is_measured``: whether
        ``slicewise profile`` starts it, and will load the model itself; raises ValueError if models
        of this engine can't be measured.
        """

    @property
    def media_fetch(self) -> MediaFetch:
        """From where its server may fetch media: a service's ``media_domains`` opens it."""

    def closes_network(self, spec: ServiceSpec, /) -> bool:
        """Whether its server gets a network that leads nowhere, so that it fetches nothing."""

    # What a model repository and a log look like.

    @property
    def model_layout(self) -> str:
        """What a model's directory is, for users."""

    def is_model(self, entries: frozenset[str]) -> bool:
        """Whether a directory with these entries is a model; those of directories end with /."""

    @property
    def loads_all(self) -> bool:
        """Whether it loads each model of its repository, and ends if it can't load one."""

    @property
    def model_config(self) -> str:
        """Name of the file with a model's configuration in its directory; "" if there is none."""

    @property
    def model_indexes(self) -> tuple[str, ...]:
        """Names of the index of a model's weights, of which the first that is there counts."""

    @property
    def chooses_file(self) -> bool:
        """Whether a model is one file of its directory, which ``model_file`` may name."""

    def model_needs(self, files: ModelFiles, models: Collection[str], gpus: int) -> ModelNeeds:
        """Return what a model needs, and why the server can't load it.

        ``models`` are the directories of its repository; ``gpus`` is how many a replica has.
        """

    @property
    def log_notice(self) -> re.Pattern[str]:
        """Beginnings of lines of the server's log that explain no failure."""

    @property
    def log_harmless(self) -> re.Pattern[str]:
        """Beginnings of messages that stand in logs of starts that succeed, too, or only repeat a
        failure: they explain one if there is nothing else.
        """

    def log_time_s(self, line: str, now_s: float, /) -> float | None:
        """Return when the server wrote a line, Unix seconds; None if the line has no time."""

    def log_message(self, line: str) -> str:
        """Return the message in a line of the server's log, without time and place."""

    # What the gateway lets in. Paths are regular expressions of HAProxy, and stand for whole paths.

    @property
    def group(self) -> str:
        """Name of the gateway's backends for it, before their numbers.

        Lower-case letters only, of which the last are not ``IDLE_SUFFIX``.
        """

    @property
    def api(self) -> str:
        """Path before which clients put the service's address; ``OPENAI_API`` means that API."""

    @property
    def health_path(self) -> str:
        """Path that answers with 200 to 399 while the server is fit."""

    @property
    def http_paths(self) -> tuple[str, ...]:
        """Paths that clients may ask for by HTTP: no client may change what a replica serves."""

    @property
    def grpc_paths(self) -> tuple[str, ...]:
        """The same by gRPC."""

    @property
    def health_paths(self) -> tuple[str, ...]:
        """Paths of both protocols by which clients ask whether the server lives or is ready.

        The gateway itself answers them, without a body by HTTP. By gRPC it answers with a message
        whose first field is 1 or true.
        """

    @property
    def stream_paths(self) -> tuple[str, ...]:
        """Paths, of both protocols, on which an answer may go on for long."""

    @property
    def running_sums(self) -> str:
        """Key of a chat's or completion's body by which the gateway asks for the tokens so far.

        Each event of the stream then says them; "" if there are none.
        """

    @property
    def statistics_paths(self) -> tuple[str, ...]:
        """Paths of both protocols by which clients ask what models have counted.

        The launcher answers them: with the counts of all replicas together.
        """

    @property
    def served(self) -> str:
        """What ``http_paths`` and ``grpc_paths`` are, for users."""

    @property
    def dropped_headers(self) -> tuple[str, ...]:
        """Headers by which a client could change more than its own request."""

    @property
    def keeps_connections(self) -> bool:
        """Whether a connection may wait for its next request for as long as HAProxy likes.

        If not, HAProxy opens one for each request.
        """

    # How a replica is asked whether it is ours and ready.

    @property
    def identity_path(self) -> str:
        """Path at which the server says who it is."""

    def identified(self, body: bytes, identity: str) -> Answer:
        """Read the server's identity: OURS or STRANGER.

        Raises TypeError or ValueError if that is no answer of the engine.
        """

    @property
    def version_path(self) -> str:
        """Path at which the server says its version; "" if it does not."""

    def version(self, body: bytes) -> str:
        """Read the version at that path.

        Raises TypeError or ValueError if that is no answer of the engine.
        """

    def ready_paths(self, model: str) -> tuple[str, ...]:
        """Return the paths that answer with 200 once server and model are ready."""

    def model_paths(self, model: str) -> tuple[str, ...]:
        """Return the paths at which the server says what ``smallest_request`` must know."""

    def smallest_request(
        self, model: str, bodies: Sequence[bytes], sequence_id: int
    ) -> Request | None:
        """Build the smallest inference that the model accepts, from its ``model_paths``' answers.

        None if a plain request can't be answered. Raises TypeError if they are no answers of the
        engine, ValueError with a text for users if the model can't be asked.
        """

    def failure(self, body: bytes) -> str:
        """Return the words in the answer to a request that the server refuses."""


FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.2, 0.25, 0.4, 0.5, 0.6, 0.75, 0.8),
    *(1.0, 2.0, 2.5, 4.0, 5.0, 6.0, 7.5, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 160.0),
    *(200.0, 400.0, 640.0, 2560.0),
)
"""Seconds between which times to the first token are counted: all bounds of the histograms that
vLLM and SGLang have, so that those of any replica can be added up."""
_BINS = len(FIRST_TOKEN_S) + 1
FirstTokens = tuple[()] | Annotated[tuple[float, ...], Field(min_length=_BINS, max_length=_BINS)]
"""Requests by the time to their first token; what was saved with other bounds is not read."""


@dataclass(frozen=True)
class TokenCounts:
    """What a server has counted since its start.

    Attributes:
        first_s: seconds in the server until requests' first tokens, added up.
        tokens: tokens that it has made.
        token_s: seconds from one token to the next, added up.
        requests: requests with a first token; None if it does not count them.
        firsts: requests by the time to their first token: one number for each time between two of
            ``FIRST_TOKEN_S``, one for shorter and one for longer ones; empty without a histogram.
    """

    first_s: float
    tokens: float
    token_s: float
    requests: float | None = None
    firsts: FirstTokens = ()


@runtime_checkable
class TokenEngine(Engine, Protocol):
    """An engine that makes tokens and says how long they take."""

    @property
    def metrics_path(self) -> str:
        """Path of its metrics."""

    def token_counts(self, body: bytes) -> TokenCounts:
        """Read the answer at ``metrics_path``.

        Raises TypeError or ValueError if it is no answer of the engine.
        """


@runtime_checkable
class BatchingEngine(TokenEngine, Protocol):
    """One that also says how many requests it works on, and how full its cache is."""

    def engine_load(self, body: bytes) -> EngineLoad:
        """Read the answer at ``metrics_path``.

        Raises TypeError or ValueError if it is no answer of the engine.
        """


@runtime_checkable
class AdapterEngine(Engine, Protocol):
    """An engine that loads and unloads LoRA adapters of its model while it serves.

    Its server takes ``SERVICE:ADAPTER`` for the name of an adapter.
    """

    @property
    def adapters_path(self) -> str:
        """Path at which the server says which adapters it has."""

    def loaded_adapters(self, body: bytes, service: str) -> Mapping[str, str]:
        """Read the answer at ``adapters_path``: paths by the adapters' names.

        ``service`` is the service's name without its tenant. Raises TypeError or ValueError if it
        is no answer of the engine.
        """

    @property
    def replaces_adapters(self) -> bool:
        """Whether it loads an adapter in the place of one of that name; else that is unloaded."""

    def load_adapter(self, service: str, adapter: str, path: str) -> Request:
        """Build the request by which the server loads the adapter in that directory."""

    def unload_adapter(self, service: str, adapter: str) -> Request:
        """Build the request by which the server forgets an adapter."""


@runtime_checkable
class PooledEngine(Engine, Protocol):
    """An engine whose server loads and unloads models of its repository while it serves others.

    The server of a service with a ``pool`` starts with the service's own model alone, and answers
    at ``health_path`` whatever becomes of other models. A load is answered once it has ended.
    """

    @property
    def has_server_each(self) -> bool:
        """Whether it has a server for each model, which ``launcher/scripts/models.py`` starts.

        Words of its ``options`` are ``{model}``, ``{file}`` and ``{socket}`` then.
        """

    @property
    def has_host_weights(self) -> bool:
        """Whether its models' weights lie in memory of the node, too, or there alone."""

    def models_request(self) -> Request:
        """Build the request for the models that the server has."""

    def ready_models(self, body: bytes) -> frozenset[str]:
        """Read the answer: the models that answer inferences.

        Raises TypeError or ValueError if it is no answer of the engine.
        """

    def leaving_models(self, body: bytes) -> frozenset[str]:
        """Read the same answer: the models that are being unloaded, and still take memory."""

    def loading_models(self, body: bytes) -> frozenset[str]:
        """Read the same answer: the models that are being loaded."""

    @property
    def answered_path(self) -> str:
        """Path at which the server says how many requests each model has answered and failed.

        "" if it notices that a model's process has ended: then the model is not ready.
        """

    def answered(self, body: bytes) -> Mapping[str, Answered]:
        """Read the answer, by model.

        Raises TypeError or ValueError if it is no answer of the engine.
        """

    def load_model(self, model: str, service: str) -> Request | Call:
        """Build the request by which the server loads a model for that service's requests.

        Others' requests, on whatever connections, are answered meanwhile.

        ``service`` is the service's name without its tenant, as the gateway's header has it.
        """

    def unload_model(self, model: str) -> Request:
        """Build the request by which the server unloads a model."""


@runtime_checkable
class SlottedEngine(Protocol):
    """An engine that is told at its start how many requests it works on at the same time at most.

    Others take what comes and choose their batches themselves.
    """

    @property
    def slots(self) -> int:
        """How many that are where a service's ``concurrency`` is auto."""


@runtime_checkable
class CountedEngine(Engine, Protocol):
    """An engine whose models say what they have counted, at the ``statistics_paths``."""

    @property
    def statistics_path(self) -> str:
        """Path at which the server says what all its models have counted."""

    @property
    def statistics_kind(self) -> Kind:
        """Which of these counts are added up."""

    def counted(self, body: bytes) -> Counts:
        """Read the answer at ``statistics_path``.

        Raises TypeError or ValueError if it is no answer of the engine.
        """

    def statistics_by_http(self, path: str, counts: Counts) -> StatisticsAnswer:
        """Answer a client that asks for one of the ``statistics_paths``."""

    def statistics_by_grpc(self, frame: bytes, counts: Counts) -> StatisticsAnswer:
        """Answer a client's call; ``frame`` is what it sent: five bytes, then its message."""


@runtime_checkable
class MeasuredEngine(Engine, Protocol):
    """An engine of which ``slicewise profile`` can measure models."""

    def check_data(self, data: str) -> None:
        """Check a request's inputs; raises InvalidInputError (SW-INPUT-FILE)."""

    def load(
        self, model: str, processes: int | None, data: str | None
    ) -> Generator[Request, bytes, LoadedModel]:
        """Load a model with ``processes`` (None: as configured), to be asked with ``data``.

        Yields each request and is sent its answer; a request that comes again waits for a change.
        ``data`` None makes zeros.
        """


@dataclass(frozen=True)
class TokenUsage:
    """How many tokens a request had and its answer took, as the server counts them."""

    prompt_tokens: int
    output_tokens: int


@runtime_checkable
class PromptedEngine(Engine, Protocol):
    """An engine of which ``slicewise profile`` measures models by streams of tokens.

    Its server loads its one model as for a service. ``said`` is a part of a stream: its end up to
    now, of which at least the last 8 KiB are kept.
    """

    @property
    def has_slot_memory(self) -> bool:
        """Whether each slot has memory of its own.

        If so, its server is started again for each number of requests at a time; else once, for
        the largest.
        """

    def parse_prompts(self, data: str) -> Sequence[Mapping[str, object]]:
        """Read a user's requests; raises InvalidInputError (SW-INPUT-FILE)."""

    def streamed_request(self, model: str, asked: Mapping[str, object], /) -> Request:
        """Build a request that is answered by a stream.

        ``asked`` is one of ``parse_prompts``, or has ``prompt``, ``max_tokens`` and ``ignore_eos``
        (true: the answer takes just so many tokens).
        """

    def has_text(self, body: bytes, /) -> bool:
        """Whether a part of the answer has come.

        Raises TypeError or ValueError if it is no answer of the engine.
        """

    def usage(self, body: bytes, /) -> TokenUsage | None:
        """Return what a whole stream took; None if it ended before it said so.

        Raises TypeError or ValueError if it is no answer of the engine.
        """

    def stream_failure(self, body: bytes, /) -> str:
        """Return the words with which the server ended a stream early."""
