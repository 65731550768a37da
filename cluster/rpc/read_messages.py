"""Messages that only read: what a service was, why a job waits, what its priority is made of."""

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.starts import StartTrace
from slicewise.cluster.rpc.message import NO_CONTROLS, Answer, Asks, Message, Request, TenantText


class GenerationRecord(Message):
    """What was submitted as a generation of a service.

    ``author`` is the user who runs it, ``directives`` its script's keys.
    """

    array_job_id: int
    submitted_s: int
    tenant: str
    name: str
    author: str
    directives: dict[str, str]


class GenerationsAnswer(Answer):
    """Generations of services of that name, the newest 100 of each tenant, the newest first."""

    generations: tuple[GenerationRecord, ...]


class GenerationsRequest(Request, Asks[GenerationsAnswer], get="service-generations"):
    """Asks what was submitted of services of a name, also of such that have ended.

    Of a tenant, or of all that the user may read.
    """

    name: TenantText
    tenant: TenantText | None = None


class ServiceEvent(Message):
    """What happened to a replica of a service.

    Attributes:
        at_s: when it was seen, in Unix seconds.
        node: None if none is known.
        what: "refused": in a pool, it could not load the service's model.
        why: for whom or why it must end, how it failed; None if there is nothing to say.
    """

    at_s: int
    array_job_id: int
    slot: int
    node: str | None = None
    what: Literal["started", "ready", "told to end", "drains", "ended", "failed", "lost", "refused"]
    why: str | None = None


class ServiceEvents(Message):
    """The last events of one service, the newest last."""

    tenant: str
    name: str
    events: tuple[ServiceEvent, ...]


class ServiceEventsAnswer(Answer):
    """The events of services of that name since this daemon began, the last 100 of each."""

    services: tuple[ServiceEvents, ...]


class ServiceEventsRequest(Request, Asks[ServiceEventsAnswer], get="service-events"):
    """Asks what happened to the replicas of services of a name that are there now.

    Of a tenant, or of all that the user may read.
    """

    name: TenantText
    tenant: TenantText | None = None


class ServiceStarts(Message):
    """The last starts of one service, the newest last."""

    tenant: str
    name: str
    starts: tuple[StartTrace, ...]


class ServiceStartsAnswer(Answer):
    """The starts of services of that name, as the launcher has reported them."""

    services: tuple[ServiceStarts, ...]


class ServiceStartsRequest(Request, Asks[ServiceStartsAnswer], get="service-starts"):
    """Asks how the replicas of services of a name have started, the last 20 of each service.

    Of a tenant, or of all that the user may read.
    """

    name: TenantText
    tenant: TenantText | None = None


class PooledModelNow(Message):
    """A model of a pool in one of its replicas.

    Attributes:
        service: the service of the same tenant whose model it is.
        array_job_id, slot, node: the replica; None, and "", of a model that no replica has.
        state: refused: its last load there failed. absent: no replica has it, or is to have it.
        in_flight: requests for it that the replica works on.
        load_s: seconds that its last load there took; None of a model with which it started.
        why: why it was refused; "" if it was not.
    """

    service: str
    model: str
    array_job_id: int | None = None
    slot: int | None = None
    node: str = ""
    state: Literal["ready", "loading", "leaving", "refused", "absent"] = "absent"
    in_flight: int = 0
    load_s: float | None = None
    why: str = ""


class PoolModelsAnswer(Answer):
    """What the replicas have that a service shares; nothing of a service that shares none."""

    models: tuple[PooledModelNow, ...]


class PoolModelsRequest(Request, Asks[PoolModelsAnswer], get="pool-models"):
    """Asks which replica of a service's pool has which model."""

    name: TenantText
    tenant: TenantText


class WhyRow(Message):
    """A line of a table, such as a tenant's jobs, what they hold and until when.

    ``amount_millislices`` is None where it is not a matter of slices; ``ends_s`` are Unix seconds.
    """

    what: str
    gpus: str = ""
    amount_millislices: int | None = None
    ends_s: int | None = None
    note: str = ""


class WhyTable(Message):
    """Rows under a heading."""

    heading: str
    rows: tuple[WhyRow, ...]


class WhyAnswer(Answer):
    """One screen about a job, an array such as that of a service, or a tenant.

    Attributes:
        about: the job or tenant.
        state: state of a job; "" for an array with several records and for a tenant.
        reason: Slurm's own word, "" if it has none.
        headline, sentences: the answer in words, with numbers.
        start_s: Unix seconds at which the job is to start, by ``start``; None without an estimate.
        start: what the estimate rests on, or why there is none; "" for what does not wait.
        hints: what can be done.
    """

    about: str
    state: str = ""
    reason: str = ""
    headline: str
    sentences: tuple[str, ...] = ()
    tables: tuple[WhyTable, ...] = ()
    start_s: int | None = None
    start: str = ""
    hints: tuple[str, ...] = ()


class WhyRequest(Request, Asks[WhyAnswer], get="why"):
    """Asks why a job waits, or how a service or tenant stands; for users who may see it.

    ``about``: ``814``, ``814_3``, a tenant's name, or a service as NAME or TENANT/NAME.
    """

    about: Annotated[str, Field(max_length=96, pattern=NO_CONTROLS), AfterValidator(account_name)]


class PriorityTerm(Message):
    """A term of site_factor.

    Attributes:
        value: in 0..1.
        weight: weight against the other terms; None for the wait, which closes the gap that they
            leave, and for a job that is passed over, which has the maximum.
        points: the term's part of site_factor; those of all terms add up to it.
    """

    name: Literal["class", "share", "urgency", "smallness", "wait", "passed_over"]
    value: float
    weight: int | None = None
    points: int


class PriorityFactor(Message):
    """A factor of Slurm's own formula: its weight in slurm.conf, and what it adds now."""

    name: str
    weight: str
    points: int


class PriorityAnswer(Answer):
    """The priority of one waiting job.

    Attributes:
        tasks: number of an array's untouched tasks, if the record is of these; else 1.
        job_class: low, normal or high.
        site_factor: by the formula, now.
        site_factor_in_slurm, factors, priority: as Slurm has them; None and () if it shows none.
        max, quantum: the site's settings.
        wait_full_s: seconds of waiting after which this job, with its time limit, has the maximum;
            full_s: Unix seconds of then.
        ahead: number of jobs and tasks that go before it; ``ahead_own``: those of its own tenant.
        others_at_most: what Slurm's own factors, but for age, can add to another job.
    """

    job: str
    tenant: str
    tasks: int
    job_class: str
    wait_s: int
    terms: tuple[PriorityTerm, ...]
    site_factor: int
    site_factor_in_slurm: int | None = None
    factors: tuple[PriorityFactor, ...]
    priority: int | None = None
    max: int
    quantum: int
    wait_full_s: int
    full_s: int
    ahead: int
    ahead_own: int
    others_at_most: int


class PriorityRequest(Request, Asks[PriorityAnswer], get="priority"):
    """Asks what a waiting job's priority is made of; for users who may see the job.

    ``job``: ``814``, or ``814_3``; of an array, the record that is ahead of its others.
    """

    job: str = Field(max_length=64, pattern=NO_CONTROLS)


class SlicePriceAnswer(Answer):
    """What a slice costs while it is held, in decimal numbers; all None and "" without a tariff.

    Attributes:
        hour: of an hour, as it is now.
        day: of the 24 hours from now on, in which nights may cost less.
    """

    currency: str = ""
    hour: Decimal | None = None
    day: Decimal | None = None


class SlicePriceRequest(Request, Asks[SlicePriceAnswer], get="slice-price"):
    """Asks what a slice of that GPU type costs a tenant."""

    tenant: TenantText
    gres_type: str = Field(max_length=128, pattern=NO_CONTROLS)
