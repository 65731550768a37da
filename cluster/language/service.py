"""Reads services from TOML or ``#SLICEWISE`` lines, by one schema, and such lines of other jobs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from itertools import islice
from math import ceil
from pathlib import PurePosixPath
from string import whitespace
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.adapters import (
    ADAPTERS,
    DEFAULT_RANK,
    MOST_RANK,
    Adapters,
    adapters_of,
)
from slicewise.cluster.language.audience import AUDIENCE, Audience
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.engine_names import ENGINE_NAME_WORDS, EngineName
from slicewise.cluster.language.environment import ENVIRONMENT, Environment, encoded
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.job_class import JobClass
from slicewise.cluster.language.queue_weights import WEIGHTS, Weights, weights_text
from slicewise.cluster.language.replica_shape import ReplicaShape

DIRECTIVE = "#SLICEWISE"
MAX_SLOTS = 256
"""Slots of one service at most: each is an array task that slurmctld keeps in memory."""

MAX_GPUS, MAX_NODES = 64, 64
"""GPUs on a node, and nodes, that one replica may ask for at most."""

DEFAULT_MEMORY_MIB = 1024
MOST_MODEL_MIB = 2**30
"""MiB that a model may take of a replica at most: a PiB."""

AUTO: Literal["auto"] = "auto"
"""The ``concurrency`` of a service whose launcher learns it."""
DEFAULT_LEASE_S = 900
LONGEST_DEADLINE_S = 600
"""Seconds that any service's request may take at most."""
DEFAULT_START_TIMEOUT_S = 1800

COMMENT = "slicewise:service"
"""The comment with which a service's array is submitted. Where no slicewise.lua tags it, the daemon
knows by it whose script to read; it proves nothing. A replica writes others in its place."""

_HEAD_BYTES = 65_536
_HEAD_DIRECTIVES = 64
_DIRECTIVE_BYTES = 2048
"""Bytes of one directive at most. This and the two limits above are also those of slicewise.lua,
which reads the same lines of the same script at submission.
"""


def tenant_of(service: str) -> str:
    """Return the tenant of ``tenant/service``."""
    return service.partition("/")[0]


def _without_parents(path: str) -> str:
    if ".." in PurePosixPath(path).parts:
        raise ValueError("a part is '..'")
    return path


OPENAI_NAME = "v1"
"""No tenant and no service has this name: ``/v1`` and ``/TENANT/v1`` are the addresses of all
services that speak OpenAI's API, of the site and of a tenant."""


def _not_openai(name: str) -> str:
    if name == OPENAI_NAME:
        raise ValueError(
            f"no tenant and no service has the name {name}: /{name} and /TENANT/{name} stand for"
            " all that speak OpenAI's API"
        )
    return name


Name = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"),
    AfterValidator(_not_openai),
]
_NAME = "1 to 32 lower-case letters, digits and hyphens, with no hyphen at either end"
Tenant = Annotated[
    str,
    BeforeValidator(lambda written: account_name(written) if isinstance(written, str) else written),
    StringConstraints(pattern=r"^[a-z0-9_][a-z0-9_.-]{0,62}$"),
    AfterValidator(_not_openai),
]
_TENANT = "1 to 63 letters, digits and _ . -, the first no . or -"
ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
_MODEL_NAME = "1 to 128 letters, digits and _ . -, the first no . or -"
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
_DIGEST = "16 hexadecimal digits"
Partition = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
GresType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}$")]
_GRES_TYPE = "1 to 63 letters, digits and _ . + -, the first a letter or digit"
SafePath = Annotated[
    str,
    StringConstraints(pattern=r"^/[A-Za-z0-9_./@%+=:,-]*$", max_length=1024),
    AfterValidator(_without_parents),
]
_SAFE_PATH = (
    "an absolute path of letters, digits and _ . / @ % + = : , -, "
    "at most 1024 characters, with no part '..'"
)
ModelFile = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=255)
]
_MODEL_FILE = "1 to 255 letters, digits and _ . + -, the first no . + or -"
ANY_HOST = "*"
"""``media_domains`` of a service whose engine may fetch from anywhere."""
_HOST = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
MediaDomains = Annotated[
    str, StringConstraints(pattern=rf"^(\*|{_HOST}(,{_HOST})*)$", max_length=1024)
]
MOST_MEASURED = 24
"""Numbers of requests at a time of which a service's file says what was measured, at most."""
_FIGURE = r"[0-9]{1,9}(\.[0-9]{1,3})?"
Measured = Annotated[
    str,
    StringConstraints(
        pattern=rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(,[1-9][0-9]{{0,3}}(:{_FIGURE}){{3}}){{1,{MOST_MEASURED}}}$"
    ),
]
_MEASURED = "a day and figures, as slicewise service init --measured writes them"
_MEDIA_DOMAINS = "*, or hosts of lower-case letters, digits and . -, with commas between them"
Image = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9/][A-Za-z0-9_./:@#+=-]*$", max_length=1024)
]
_IMAGE = "at most 1024 letters, digits and _ . / : @ # + = -, the first a letter, a digit or /"


class ServiceSpec(BaseModel):
    """One inference service: a job array of servers with an elastic number of replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)

    name: Name = Field(description="Part of the service's address: lower case, digits, hyphens.")
    tenant: Tenant = Field(
        description="The Slurm account that is charged, in any case: Slurm's are in small letters."
    )
    model_repository: SafePath = Field(
        description="Absolute path that the nodes can read: a directory with one for each model."
    )
    model: ModelName = Field(
        description="The model in the repository that must be ready before a replica serves."
    )
    model_file: ModelFile | None = Field(
        None,
        description="Of several models in that directory the file to serve, of a split one its "
        "first part. Only llamacpp.",
    )
    model_digest: Digest | None = Field(
        None,
        description="Digest of the repository's files, in a pool of the model's; apply and render "
        "set it, so that replicas with other files are seen.",
    )
    pool: Name | None = Field(
        None,
        description="Services of the tenant with the same pool share replicas: each replica serves "
        "models of all of them. They have the same model_repository, engine and replicas. Only "
        "triton and llamacpp.",
    )
    model_mib: int | None = Field(
        None,
        ge=1,
        le=MOST_MODEL_MIB,
        description="Memory in MiB that the model takes in a replica, by which the models of a "
        "pool are packed; unset: apply and render set 1.2 times the size of the model's files.",
    )
    profile: GresType | None = Field(
        None,
        description="GRES type of a replica's GPUs, such as 1g.10gb. Give either this or need_gib.",
    )
    need_gib: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Memory in GiB of each of a replica's GPUs; the cheapest profile that fits is "
        "chosen.",
    )
    gpus: int = Field(1, ge=1, le=MAX_GPUS, description="GPUs of one replica on each of its nodes.")
    nodes: int = Field(
        1,
        ge=1,
        le=MAX_NODES,
        description="Nodes of one replica, for a model that does not fit on one; a replica costs "
        "nodes times gpus.",
    )
    tensor_parallel: int | None = Field(
        None,
        ge=1,
        le=MAX_GPUS * MAX_NODES,
        description="GPUs over which the engine splits each layer; groups of so many hold the "
        "layers in turn. It divides gpus times nodes; unset: gpus. Only vllm and sglang.",
    )
    min_replicas: int = Field(0, ge=0, le=MAX_SLOTS, description="Replicas kept even if idle.")
    max_replicas: int = Field(
        1, ge=1, le=MAX_SLOTS, description="Maximum number of replicas: slots of the job array."
    )
    concurrency: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = Field(
        1,
        description="Requests that one replica serves in parallel; more wait. auto: as many as "
        "keep the objective, learnt from how long requests take.",
    )
    measured: Measured | None = Field(
        None,
        description="What slicewise profile has measured, as service init writes it: where auto "
        "begins to learn.",
    )
    max_queue_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="Objective: seconds that a request may wait for a replica. Not with p95_ms.",
    )
    p95_ms: int | None = Field(
        None,
        ge=1,
        le=86_400_000,
        description="Objective: 95 % of requests are answered within these ms, waiting included.",
    )
    ttft_ms: int | None = Field(
        None,
        ge=1,
        le=86_400_000,
        description="Objective: requests have their first token within these ms, waiting included.",
    )
    tpot_ms: int | None = Field(
        None,
        ge=1,
        le=86_400_000,
        description="Objective: milliseconds from one token of an answer to the next, on average.",
    )
    deadline_s: float | None = Field(
        None,
        gt=0,
        le=LONGEST_DEADLINE_S,
        allow_inf_nan=False,
        description="Seconds without a byte of the answer after which the gateway ends a request; "
        "unset: 600. A replica that answers nothing for so long is replaced.",
    )
    retry_once: bool = Field(
        False,
        description="Whether a request that was lost as its replica ended is sent to another one, "
        "once: only HTTP, up to gateway.buffer_kib (16) less 1 KiB. It may have begun: say true if "
        "a model may do it twice.",
    )
    keep_alive_s: float | None = Field(
        None,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        description="Idle seconds before a replica ends; unset: the cost of keeping it is weighed "
        "against the cost of a start.",
    )
    lease_s: int = Field(
        DEFAULT_LEASE_S,
        ge=60,
        le=2_592_000,
        description="Slurm's time limit of a replica in seconds; extended while it is needed.",
    )
    priority_class: JobClass = Field(
        "normal", description="Priority of its waiting slots: low, normal or high."
    )
    engine: EngineName = Field(
        "triton",
        description="What serves the model: triton, llamacpp, vllm, sglang or an engine of "
        "the site.",
    )
    runtime: Literal["bare", "apptainer", "pyxis"] = Field(
        "bare",
        description="How the engine starts: bare (as installed on the node), apptainer, pyxis.",
    )
    image: Image | None = Field(
        None, description="Container image, such as /images/triton.sif; not with runtime bare."
    )
    environment: Environment = Field(
        (), description='Environment variables of the engine: { NAME = "text" }.'
    )
    adapters: Adapters = Field(
        (),
        description="LoRA adapters of the model, each a model of the name SERVICE:NAME: "
        '{ NAME = "directory below model_repository" }. Only vllm and sglang.',
    )
    adapter_rank: int | None = Field(
        None,
        ge=1,
        le=MOST_RANK,
        description="Largest rank of an adapter that replicas can load; each takes more of the "
        f"GPU's memory. Unset: {DEFAULT_RANK}.",
    )
    media_domains: MediaDomains | None = Field(
        None,
        description="Hosts from which the engine may fetch images and other media that requests "
        "name by URL, with commas between them; *: any. Unset: none. Only vllm, and llamacpp "
        "with *.",
    )
    audience: Audience | None = Field(
        None,
        description='Tenants that may ask it beside its owner, each with all below it: ["vision"]; '
        '"*": all. Unset: its owner alone. The owner\'s quota runs it.',
    )
    fair: Literal["tenants", "persons"] | None = Field(
        None,
        description="Who is served next while requests wait: of these, the one that has used least "
        "of its share. Unset: tenants, if it has an audience; else in the order of arrival.",
    )
    weights: Weights = Field(
        (),
        description="Shares of those tenants or persons: { physics = 2 }. All others have 1.",
    )
    readiness: Literal["inference", "model"] = Field(
        "inference",
        description="When a replica is ready: inference, once its model has answered a made-up "
        "request; model, once the engine says so.",
    )
    session_affinity: Literal["none", "sequence"] = Field(
        "none",
        description="sequence: the gateway sends all requests of a sequence to one replica, for a "
        "model that keeps its state.",
    )
    start_timeout_s: int = Field(
        DEFAULT_START_TIMEOUT_S,
        ge=10,
        le=86_400,
        description="Seconds on its slice after which a replica that is not ready counts as a "
        "failed start and gives the slice back.",
    )
    abort_roll_after: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Failed starts in a row after which a roll-over is aborted: the generation "
        "before it stays; unset: the new one is tried again and again.",
    )
    cpus: int = Field(1, ge=1, le=1024, description="CPUs of one replica on each of its nodes.")
    memory_mib: int = Field(
        DEFAULT_MEMORY_MIB,
        ge=64,
        description="Host memory in MiB of one replica on each of its nodes; in a pool of "
        "llama.cpp it bounds its models, too.",
    )
    partition: Partition | None = Field(
        None, description="Slurm partition; unset: Slurm's default."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas: {self.min_replicas} is above max_replicas {self.max_replicas}; "
                f"allowed: 0 to {self.max_replicas}"
            )
        if (self.profile is None) == (self.need_gib is None):
            raise ValueError("profile, need_gib: give exactly one of the two")
        if self.max_queue_s is not None and self.p95_ms is not None:
            raise ValueError("max_queue_s, p95_ms: give at most one of the two")
        if self.gpus * self.nodes % self.layer_gpus:
            raise ValueError(
                f"tensor_parallel: {self.layer_gpus} does not divide the replica's "
                f"{self.gpus * self.nodes} GPUs"
            )
        return self

    @model_validator(mode="after")
    def _shared_replicas(self) -> Self:
        if self.pool is None:
            return self
        if self.nodes > 1:
            raise ValueError(f"nodes: replicas of a pool have one node, not {self.nodes}")
        for key in ("adapters", "model_file"):
            if getattr(self, key):
                raise ValueError(f"{key}, pool: give at most one of the two")
        if self.session_affinity != "none":
            raise ValueError(
                "session_affinity: a pool's models move between replicas, and take their sequences "
                "nowhere; leave it or pool out"
            )
        return self

    @model_validator(mode="after")
    def _container(self) -> Self:
        if (self.runtime == "bare") != (self.image is None):
            raise ValueError("image: needed with runtime apptainer or pyxis, and only there")
        # Both runtimes separate the parts of a mount by these characters.
        if self.runtime != "bare" and set(self.model_repository) & set(":,"):
            raise ValueError("model_repository: a container can't be given a path with : or ,")
        return self

    @property
    def replica_shape(self) -> ReplicaShape:
        """What one replica asks of Slurm; with need_gib its GPU type is still open."""
        return ReplicaShape(self.profile, self.gpus, self.nodes)

    @property
    def layer_gpus(self) -> int:
        """GPUs over which an engine that can splits each layer of the model."""
        return self.tensor_parallel or self.gpus

    @property
    def stages(self) -> int:
        """Groups of ``layer_gpus``, of which each holds a part of the layers."""
        return self.gpus * self.nodes // self.layer_gpus

    @property
    def largest_rank(self) -> int:
        """Largest rank of an adapter that a replica can load."""
        return self.adapter_rank or DEFAULT_RANK

    @property
    def time_limit_min(self) -> int:
        """The lease as Slurm's time limit, in minutes."""
        return limit_min(self.lease_s)

    @property
    def gives_back_s(self) -> int:
        """``gives_back_s`` of the service's lease."""
        return gives_back_s(self.lease_s)

    @property
    def times_tokens(self) -> bool:
        """Whether it has an objective of its tokens."""
        return self.ttft_ms is not None or self.tpot_ms is not None

    @property
    def fair_among(self) -> Literal["tenants", "persons"] | None:
        """Between whom its queue is fair; None: it is in the order of arrival."""
        return self.fair or ("tenants" if self.audience else None)

    def values(self) -> Mapping[str, str]:
        """Every key that is set, with its value as text, as directives have it."""
        tables = {"environment": self.environment, "adapters": self.adapters}
        dumped = self.model_dump(exclude_none=True, exclude={*tables, "weights"})
        values = {key: _plain(value) for key, value in dumped.items()}
        if self.weights:
            values["weights"] = weights_text(self.weights)
        return values | {key: encoded(pairs) for key, pairs in tables.items() if pairs}

    def directives(self) -> tuple[str, ...]:
        """The ``#SLICEWISE key=value`` lines of this service."""
        return tuple(f"{DIRECTIVE} {key}={value}" for key, value in self.values().items())


def limit_min(lease_s: int) -> int:
    """Slurm's time limit of a run with this lease, in minutes, rounded up."""
    return ceil(lease_s / 60)


def gives_back_s(lease_s: int) -> int:
    """Seconds of its time limit that are left when a replica's script ends the replica.

    The script does so unless the replica's lease is extended.
    """
    return max(15, min(60, lease_s // 4))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


_SHOWN = 200
"""Characters of a line, a key or a value that a refusal repeats at most."""

_LINE = re.compile(rf"^{DIRECTIVE}[ \t]+(?P<key>[a-z][a-z0-9_]*)=(?P<value>\S*)[ \t]*$")


def head_lines(script: str) -> Sequence[str]:
    """The lines of a script in which directives may stand: those of its first 64 KiB."""
    head = script[:_HEAD_BYTES].encode()[:_HEAD_BYTES]
    return head.decode(errors="replace").split("\n")


def directive_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines that ``directives_of_script`` reads."""
    return tuple(islice(_directive_lines(lines), _HEAD_DIRECTIVES))


def directives_of_script(lines: Iterable[str]) -> Mapping[str, str]:
    """The first 64 ``#SLICEWISE`` lines before a script's first command; {} if it has none.

    Raises InvalidInputError (SW-DIRECTIVE) for a line that is not ``#SLICEWISE key=value``, or is
    longer than 2048 bytes.
    """
    return dict(map(_directive, directive_lines(lines)))


def _directive_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        text = line.strip(whitespace)
        if text and not text.startswith("#"):
            return
        if text.startswith(DIRECTIVE):
            yield text


def _directive(text: str) -> tuple[str, str]:
    is_short = len(text.encode(errors="replace")) <= _DIRECTIVE_BYTES
    match = _LINE.match(text) if is_short else None
    if match is None:
        raise InvalidInputError(
            Code.DIRECTIVE,
            f"Line {text[:_SHOWN]!r} can't be read.",
            f"Write {DIRECTIVE} key=value, in at most {_DIRECTIVE_BYTES} bytes.",
        )
    return match["key"], match["value"]


@dataclass(frozen=True)
class JobDirectives:
    """What the ``#SLICEWISE`` lines of a job that is not a service say.

    Attributes:
        need_mib: GPU memory in MiB that each of its GPUs must have; None leaves that open.
        job_class: the class of its priority; None leaves that open.
    """

    need_mib: int | None = None
    job_class: JobClass | None = None


_SERVICE_LINE = re.compile(rf"{DIRECTIVE}[ \t]+name=")
_NEED_LINE = re.compile(rf"{DIRECTIVE}[ \t]+need=")
_CLASSES: Mapping[str, JobClass] = {name: name for name in get_args(JobClass)}
_NEED = re.compile(r"(?P<amount>[0-9]{1,7}(\.[0-9]{1,3})?)(?P<unit>GiB|MiB)")
_JOB_KEYS = (
    f"A job has need (such as 9.5GiB or 512MiB) and class ({', '.join(_CLASSES)}); "
    "a service has a name."
)


def is_service(lines: Iterable[str]) -> bool:
    """Whether these directives are a service's: one of them sets its name."""
    return any(_SERVICE_LINE.match(line) for line in lines)


def says_need(lines: Iterable[str]) -> bool:
    """Whether one of these directives sets the GPU memory that the job needs."""
    return any(_NEED_LINE.match(line) for line in lines)


def job_directives(values: Mapping[str, str]) -> JobDirectives:
    """Read the directives of a job that is not a service.

    Raises InvalidInputError (SW-DIRECTIVE) for an unknown key or a value that can't be read.
    """
    if unknown := sorted(values.keys() - {"need", "class"}):
        raise _bad_directive(f"{unknown[0]:.{_SHOWN}}: a job has no such key.")
    need, job_class = values.get("need"), values.get("class")
    return JobDirectives(
        None if need is None else _need_mib(need),
        None if job_class is None else _class(job_class),
    )


def _class(text: str) -> JobClass:
    if text not in _CLASSES:
        raise _bad_directive(f"class: {text!r:.{_SHOWN}} is not a class.")
    return _CLASSES[text]


def _need_mib(text: str) -> int:
    match = _NEED.fullmatch(text)
    amount = Fraction(match["amount"]) if match else Fraction(0)
    if match is None or not amount:
        raise _bad_directive(f"need: {text!r:.{_SHOWN}} is not an amount of memory.")
    return ceil(amount * (1024 if match["unit"] == "GiB" else 1))


def _bad_directive(problem: str) -> InvalidInputError:
    return InvalidInputError(Code.DIRECTIVE, problem, _JOB_KEYS)


def service_spec(values: Mapping[str, object]) -> ServiceSpec:
    """Validate a service's settings, from TOML or from directives (where every value is text).

    Raises InvalidInputError (SW-SERVICE) that names each bad key, what is allowed, what was given.
    """
    try:
        return ServiceSpec.model_validate(dict(values))
    except ValidationError as error:
        problems = error.errors()
        about_keys = any(item["type"] in {_MISSING, _UNKNOWN} for item in problems)
        # A key with values of several kinds has a problem with each.
        lines = list(dict.fromkeys(_problem(item) for item in problems[:_MOST_PROBLEMS]))
        if more := max(0, len(problems) - _MOST_PROBLEMS):
            lines.append(f"and {more} more")
        raise InvalidInputError(
            Code.SERVICE, f"{'; '.join(lines)}.", _KEYS if about_keys else ""
        ) from None


def values_of(directives: Mapping[str, str]) -> Mapping[str, str]:
    """Return the values of directives, with the defaults of keys that a script leaves out.

    Directives that can't be read are returned as they stand.
    """
    try:
        return service_spec(directives).values()
    except InvalidInputError:
        return directives


_GATEWAY_S = frozenset({"audience", "fair", "weights"})


def can_follow(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether replicas with the directives ``before`` need no successors with those of ``after``.

    They don't if only what the gateway minds has changed: the audience, and its shares. They load
    and unload adapters, if nothing else has changed and their servers were started for adapters.
    """
    old, new = values_of(before), values_of(after)
    differ = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    if adapters_of(before):
        return differ <= _GATEWAY_S | {"adapters"}
    return bool(differ) and differ <= _GATEWAY_S


def spec_of_directives(values: Mapping[str, str]) -> ServiceSpec:
    """Validate the directives of a new script: what reads its jobs later reads their text.

    Raises InvalidInputError: SW-SERVICE as ``service_spec`` does, and SW-DIRECTIVE for a value that
    could be written in another way, such as ``gpus=2.0``.
    """
    spec = service_spec(values)
    expected = spec.values()
    for key, text in values.items():
        if (plain := expected.get(key)) != text:
            raise InvalidInputError(
                Code.DIRECTIVE,
                f"{key}={text:.{_SHOWN}} has a simpler form.",
                f"Leave out {key}." if plain is None else f"Write {key}={plain:.{_SHOWN}}",
            )
    return spec


def whole_number(values: Mapping[str, str], key: str, default: int) -> int:
    """Read a directive of a job that is there already, whoever has admitted it.

    What is no number of 0 or more counts as ``default``: one owner's mistake spoils no list that
    others read, too.
    """
    try:
        number = float(values.get(key, default))
    except ValueError:
        return default
    return int(number) if 0 <= number < _MOST_WHOLE and number.is_integer() else default


_MOST_WHOLE = 2**53
"""Below this all whole numbers are floats, too."""
_MISSING, _UNKNOWN, _VALUE = "missing", "extra_forbidden", "value_error"
_MOST_PROBLEMS = 12
"""Problems that a refusal names at most. slurmctld waits for the answer, 10 ms for all of it, and
each guess at what a key should have been takes a tenth of a millisecond.
"""
_KEYS = f"Keys: {', '.join(ServiceSpec.model_fields)}."


def _message(item: Any) -> str:
    return str(item["msg"]).removeprefix("Value error, ")


def _problem(item: Any) -> str:
    if not item["loc"]:
        return _message(item)
    key = str(item["loc"][0])
    if item["type"] == _MISSING:
        return f"{key}: missing"
    if key in {"name", "tenant"} and item["type"] == _VALUE:
        return f"{key}: {_message(item)}"
    if item["type"] == _UNKNOWN:
        near = " or ".join(get_close_matches(key, ServiceSpec.model_fields))
        return f"{key:.{_SHOWN}}: no such key" + (f" (did you mean {near}?)" if near else "")
    return f"{key}: {allowed_words()[key]}, not {item['input']!r:.{_SHOWN}}"


def _allowed(schema: Mapping[str, Any]) -> str:
    kinds = (form for form in schema.get("anyOf", (schema,)) if form["type"] != "null")
    return " or ".join(map(_allowed_of_kind, kinds))


def _allowed_of_kind(form: Mapping[str, Any]) -> str:
    if words := form.get("enum", [form["const"]] if "const" in form else []):
        return " or ".join(words)
    if form["type"] == "boolean":
        return "true or false"
    kind = "a whole number" if form["type"] == "integer" else "a number"
    if "exclusiveMinimum" in form:
        most = f", at most {form['maximum']}" if "maximum" in form else ""
        return f"{kind} above {form['exclusiveMinimum']}{most}"
    if "maximum" in form:
        return f"{kind} from {form['minimum']} to {form['maximum']}"
    return f"{kind} from {form['minimum']} up"


_TEXTS = {
    "name": _NAME,
    "pool": _NAME,
    "tenant": _TENANT,
    "model_repository": _SAFE_PATH,
    "model": _MODEL_NAME,
    "model_file": _MODEL_FILE,
    "model_digest": _DIGEST,
    "profile": _GRES_TYPE,
    "partition": "1 to 63 letters, digits and _ . -",
    "image": _IMAGE,
    "media_domains": _MEDIA_DOMAINS,
    "measured": _MEASURED,
    "engine": ENGINE_NAME_WORDS,
    "environment": ENVIRONMENT,
    "adapters": ADAPTERS,
    "audience": AUDIENCE,
    "weights": WEIGHTS,
}


@cache
def allowed_words() -> Mapping[str, str]:
    """What each key may hold, in words."""
    schemas = ServiceSpec.model_json_schema()["properties"]
    return _TEXTS | {key: _allowed(schema) for key, schema in schemas.items() if key not in _TEXTS}
