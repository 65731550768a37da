"""Shapes of what commands about services and keys print with ``--json``.

Types of the code's own, such as a message of the daemon, are named where they are used:
``json_outputs.py``.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import GetPydanticSchema
from typing_extensions import TypedDict

from slicewise.cluster.language.findings import SectionReport
from slicewise.cluster.language.measurements import Measurement
from slicewise.cluster.rpc.messages import ReplicaLoad, ServiceQuality
from slicewise.launcher.cli.service_wait import Started
from slicewise.launcher.rules.services.history import Stands
from slicewise.launcher.services.overview import Condition, State

QualityJson = Annotated[
    Mapping[str, object], GetPydanticSchema(lambda _, handler: handler(ServiceQuality))
]
"""A ``ServiceQuality`` as its fields."""


ReplicaLoadJson = Annotated[
    Mapping[str, object], GetPydanticSchema(lambda _, handler: handler(ReplicaLoad))
]
"""A ``ReplicaLoad`` as its fields."""


class GenerationJson(TypedDict):
    """A generation of a service: its array job, and its slots by state."""

    array_job_id: int
    slots: Mapping[State, Sequence[int]]


class ReplicaJson(TypedDict):
    """A replica; times are in seconds, null where not known."""

    array_job_id: int
    slot: int
    state: State
    node: str
    age_s: int | None
    lease_left_s: int | None
    is_borrowed: bool
    is_outdated: bool
    has_other_files: bool
    why: str
    last_log_line: str


class AdapterJson(TypedDict):
    """A LoRA adapter of a service: the model's name, the replicas that have loaded it, of how many;
    why one of them has refused it, "" if none has.
    """

    model: str
    requests: int
    loaded: int
    replicas: int
    why: str


class ServiceJson(TypedDict):
    """A service as it is now; null stands for what is not known."""

    service: str
    tenant: str
    name: str
    array_job_id: int
    user: str
    state: Condition
    url: str
    profile: str
    gpus: int
    nodes: int
    min_replicas: int
    max_replicas: int
    is_scaled: bool
    is_ending: bool
    backlog: int | None
    in_flight: int | None
    rate_per_s: float | None
    desired_replicas: int | None
    reason: str | None
    failed_starts: int | None
    next_start_s: float | None
    concurrency: int | None
    is_concurrency_learnt: bool | None
    objective: str | None
    token_objective: str | None
    ttft_ms: float | None
    ttft_p95_ms: float | None
    tpot_ms: float | None
    engine_load: ReplicaLoadJson | None
    old_engine: str | None
    adapters: Sequence[AdapterJson]
    quality: QualityJson | None
    slots: Mapping[State, Sequence[int]]
    generations: list[GenerationJson]
    replicas: list[ReplicaJson]
    nominal_millislices: int | None
    limit_millislices: int | None
    in_use_millislices: int | None
    note: str
    loss: str


class GoneJson(TypedDict):
    """A service that ``service wait`` has waited for until it was gone."""

    service: str
    state: Literal["gone"]


class AppliedJson(TypedDict):
    """What ``service apply`` or ``service rollback`` did."""

    array_job_id: int | None
    url: str
    action: Literal["create", "roll over", "nothing"]
    notes: list[str]


class AwaitedJson(AppliedJson):
    """What it did with ``--wait``, and how the service is now."""

    state: Condition | Literal["gone"]


class StartedJson(AppliedJson):
    """What it did with ``--start``, and the replica that was started."""

    started: Started


class KeyChangeJson(TypedDict):
    """A key of the service file that would change; null where it is not set."""

    key: str
    before: str | None
    after: str | None


class ModelJson(TypedDict):
    """What a model needs, as its directory says; ``parts`` are other models that it runs."""

    name: str
    backend: str | None
    instances: int
    kinds: list[str]
    versions: list[int]
    files: list[str]
    inputs: list[str]
    outputs: list[str]
    has_sequences: bool
    is_decoupled: bool
    parts: list[str]


class ReplicaCostJson(TypedDict):
    """What a replica has and costs; ``hour_price`` is a decimal number as text, null without one.

    ``gpu_model`` is null for parts of any GPU.
    """

    gres_type: str
    gpus: int
    gpu_model: str | None
    cost_millislices: int
    hour_price: str | None
    currency: str | None


class PlanJson(TypedDict):
    """What ``service apply`` would do.

    ``model`` is null where the model was not checked, ``replica`` where its GPU type is open.
    """

    service: str
    url: str
    action: Literal["create", "roll over", "nothing"]
    array_job_id: int | None
    changes: list[KeyChangeJson]
    notes: list[str]
    model: ModelJson | None
    replica: ReplicaCostJson | None


class PastGenerationJson(TypedDict):
    """A generation of a service, what it has changed, and its script's keys."""

    service: str
    array_job_id: int
    submitted_s: int
    user: str
    state: Stands
    changes: list[KeyChangeJson]
    directives: dict[str, str]


class ServiceEventJson(TypedDict):
    """What happened to a replica, and when that was seen."""

    at_s: int
    array_job_id: int
    slot: int
    node: str | None
    what: Literal["started", "ready", "told to end", "drains", "ended", "failed", "lost"]
    why: str | None


class DraftJson(TypedDict):
    """The file that ``service init`` wrote, and why the engine could not load it."""

    file: str
    problems: list[str]


class FileKeyJson(TypedDict):
    """A key of the service file."""

    key: str
    type: str
    required: bool
    default: str | int | float | bool | None
    meaning: str | None


class OrderedJson(TypedDict):
    """The service and the array job of its newest generation."""

    service: str
    array_job_id: int


class ScaledJson(OrderedJson):
    """The bounds after ``service scale``."""

    min_replicas: int
    max_replicas: int


class RestartedJson(OrderedJson):
    """How many replicas will be replaced."""

    replicas: int


class DeletedJson(OrderedJson):
    """Whether the service has ended."""

    ended: bool


class UrlJson(TypedDict):
    """A service's address."""

    service: str
    url: str


class LogLineJson(TypedDict):
    """A line of a replica's log."""

    slot: int
    line: str


class NewKeyJson(TypedDict):
    """An API key; ``key`` is shown only once. ``service`` is "" if it opens all of the tenant's."""

    key_id: str
    tenant: str
    service: str
    name: str
    expires_s: int | None
    key: str


class CheapestJson(TypedDict):
    """Where a million output tokens cost the least."""

    type: str
    concurrency: int
    millislice_s: int


class MeasuredJson(TypedDict):
    """What ``profile`` has measured, the file that has it, and the cheapest of models of tokens."""

    file: str
    measurements: list[Measurement]
    cheapest: CheapestJson | None


class FindingsJson(TypedDict):
    """What the doctor found: each finding's text, and the same by section with what mends it."""

    faults: Sequence[str]
    notes: Sequence[str]
    sections: Sequence[SectionReport]
    accepted: Sequence[str]
