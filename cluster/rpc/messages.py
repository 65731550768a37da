"""Messages to the daemon from slicewise.lua, the launcher and commands, with answers.

A submission is one line of JSON, and so is its answer; ``v`` is the version of both. All else goes
by HTTP.
"""

from typing import Annotated, Literal

from pydantic import Field

from slicewise.cluster.language.jobs import RunOfJob
from slicewise.cluster.language.keep_warm import MOST_DAYS, WarmDay
from slicewise.cluster.language.starts import MOST_STARTS, ClassTimes, StartTrace
from slicewise.cluster.rpc.message import Answer, Asks, DoneAnswer, Message, Request, TenantText
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder

VERSION = 1
"""Version of submissions."""
ANSWER_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer (a view of 1,000 services has 3 MiB)."""
REQUEST_LIMIT = 224 * 1024
"""Most bytes of a request's body, which goes into one munge credential; the longest is a batch of
usage."""


Count = Annotated[int, Field(ge=0, lt=2**32)]


class SubmitRequest(Message):
    """slicewise.lua: a job is being submitted. The texts are Slurm's own, "" where unset.

    Attributes:
        token: made by slicewise.lua; the tag in the answer has it.
        module, mode: version of the slicewise.lua that slurmctld has loaded, and its mode.
        gres: tres_per_node.
        tasks, min_nodes, tasks_per_node, cpus_per_task: as asked for, None where unset.
        exclusive: whether the job asks for whole nodes, with all of their GPUs.
        interactive: whether the job comes from salloc or srun, and so has no script.
        requeue: whether the job may be requeued; None is Slurm's default (JobRequeue).
        explain: whether the user wants to read the decision.
        directives: the script's ``#SLICEWISE`` lines, whole.
    """

    v: Literal[1]
    op: Literal["submit"]
    token: str = Field("", max_length=64, pattern=r"^[0-9a-f]*$")
    module: str = Field("", max_length=64)
    mode: str = Field("", max_length=16)
    uid: int
    account: str = ""
    default_account: str = ""
    partition: str = ""
    qos: str = ""
    name: str = ""
    gres: str = ""
    tres_per_job: str = ""
    tres_per_socket: str = ""
    tres_per_task: str = ""
    tasks: Count | None = None
    min_nodes: Count | None = None
    tasks_per_node: Count | None = None
    cpus_per_task: Count | None = None
    exclusive: bool = False
    interactive: bool = False
    requeue: bool | None = None
    array: str = ""
    time_limit_min: Count | None = None
    explain: bool = False
    directives: tuple[str, ...] = ()


class SubmitAnswer(Message):
    """What slicewise.lua has to do.

    ``pass``: leave the job as it is, Slicewise does not manage it. ``admit``: set the fields that
    are not None. ``refuse``: show ``message``, ``hint`` and ``code`` to the user and return an
    error.

    Attributes:
        gres, tres_per_job, tres_per_socket, tres_per_task: the whole text that replaces the one
            asked for, in its own prefix.
        nodes: how many nodes each task of a service's array gets; None for one.
        tag: text to append to admin_comment.
        notice: what the user might not expect of the job; shown to users who ask, or to all, as
            the site has it.
        decision: one line, shown to users who ask.
    """

    v: Literal[1] = 1
    action: Literal["pass", "admit", "refuse"]
    gres: str | None = None
    tres_per_job: str | None = None
    tres_per_socket: str | None = None
    tres_per_task: str | None = None
    qos: str | None = None
    site_factor: int | None = None
    tag: str | None = None
    hold: bool = False
    nodes: Count | None = None
    code: str = ""
    message: str = ""
    hint: str = ""
    notice: str = ""
    decision: str = ""


SlotState = Literal["held", "released", "starting", "running", "ending", "gone"]
"""held: costs nothing. released: pending, waits for Slurm. starting: allotted, but the ports are
not known yet. running: the ports are known. ending: completing. gone: the slot's task has ended.
The daemon brings the task back if Slurm still has a record of it (``job_id``), else the index is
lost for good.
"""


WHEN_REPLACED_S = 3600
"""``ends_in_s`` of a slot on a drained node: it may stay until another slot serves in its place."""
SOON_S = 240
"""Seconds before an announced end at which the launcher starts a successor."""


class SlotView(Message):
    """One slot of a service as Slurm shows it."""

    index: int
    state: SlotState
    job_id: int | None = None
    reason: str = ""
    node: str = ""
    address: str = ""
    ports: tuple[int, ...] = ()
    certificate: str = ""
    """Certificate by which the replica proves that it is this run's: base64 of DER; "" while not
    known.
    """
    files_digest: str = ""
    """Digest of the model repository's files with which it started; "" while not known."""
    start_s: int | None = None
    time_left_s: int | None = None
    released_s: int | None = None
    """Unix seconds since when the slot may start; up to ``start_s`` it waited for Slurm."""
    ends_in_s: int | None = None
    """Seconds until the slot must end, whether it is desired or not; None: its lease is extended
    while it is desired.
    """
    ends_why: str = ""
    """Why the slot must end, for people: a preemption, a reservation, its node is drained, ..."""
    is_borrowed: bool = False
    """Whether the slot runs or waits in the borrowed QOS, so that its lender may take it back."""
    last_failure: str = ""
    """How the slot's last run ended, if it failed: ``ended with 1``."""
    slurm_state: str = ""
    """How the task of a gone slot ended, in Slurm's word: CANCELLED, FAILED, TIMEOUT, ..."""
    is_requeued: bool = False
    """Whether Slurm requeues the run that ends, or has just requeued it: by an operator's order,
    for a preemption, because its node failed. Such a run did not end by itself.
    """
    node_held_millislices: int | None = None
    """What jobs hold of the slot's node now, with the slot's own job."""
    is_configuring: bool = False
    """Whether Slurm still gets the slot's node ready: it boots a node that power saving had ended,
    and moves ``start_s`` to the end of the boot, or waits for a prolog.
    """


class ServiceView(Message):
    """One generation of a service (one job array that carries Slicewise's tag).

    Applying a service again submits a new array: the one with the largest ``array_job_id`` is the
    newest generation, which replaces the older ones of the same tenant and name.
    """

    array_job_id: int
    tenant: str
    name: str
    user: str
    submit_s: int
    directives: dict[str, str]
    profile: str
    cost_millislices: int
    """Cost of one replica."""
    slots: tuple[SlotView, ...]
    note: str = ""
    """Why slots that should run do not, for people: quota, else the launcher's note, else ""."""
    order: ServiceOrder = NO_ORDER
    """What the service's owner ordered: the same in all generations."""
    directory: str = ""
    """The directory from which its user submitted it: its logs are there."""
    is_followed: bool = False
    """Whether the launcher has sent desired slots of this generation: the service's address leads
    to it.
    """
    memory_mib: int | None = None
    """Memory of one of a replica's GPUs; None where no source gives it."""
    wakes_node: bool = False
    """Whether its next replica has to wait for a boot: only on powered-down nodes are GPUs free."""


MOST_AVOIDED = 16
"""Nodes that a service may ask to avoid."""
NodeName = Annotated[str, Field(max_length=253, pattern=r"^[A-Za-z0-9_.-]+$")]

SlotPlace = tuple[int, int]
"""Array job id and slot."""


class ServiceQuality(Message):
    """How well a service answered lately. Streams are not counted.

    Attributes:
        span_s: seconds that the figures cover.
        answered: requests whose answer the gateway passed on.
        p50_ms, p95_ms: milliseconds within which half and 95 % of these were answered, waiting
            included; None without any.
        objective_met_share: share of these that met the objective, from 0 to 1; None without an
            objective.
        errors: answers that say that the server failed.
        unanswered: other requests that have ended: given up by the gateway, lost with their
            replica, or left by their client. What the gateway did not let in (429, ...) is not
            counted.
        cold_starts: how often requests had to wait because no replica was ready.
    """

    span_s: int
    answered: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    objective_met_share: float | None = None
    errors: int = 0
    unanswered: int = 0
    cold_starts: int = 0


class ReplicaLoad(Message):
    """What the servers of a service's replicas say of themselves.

    Attributes:
        running, waiting: requests that they work on, and that wait in them.
        kv_cache_share: share of the cache of keys and values in use where it is fullest; None is
            not known.
        preemptions: how often they have set a request back since their cache was full, while this
            launcher led; None is not known.
        prefix_cache_hit_share: share of the prompts' tokens that their caches had, lately; None is
            not known.
    """

    running: int
    waiting: int
    kv_cache_share: float | None = None
    preemptions: int | None = None
    prefix_cache_hit_share: float | None = None


class AdapterReport(Message):
    """What the launcher saw of one LoRA adapter of a service.

    Attributes:
        model: the name by which requests ask for it.
        requests: that have named it and were let in, since the launcher has counted.
        loaded: replicas that have it; ``replicas`` is how many are to have it.
        why: why one of them has not loaded it; "" if none has refused.
    """

    model: str = Field(max_length=128)
    requests: int = 0
    loaded: int = 0
    replicas: int = 0
    why: str = Field("", max_length=200, pattern=r"^[ -~]*$")


MOST_REFUSALS = 8
"""Replicas of a pool of which it is told that they could not load a service's model."""


class ModelRefusal(Message):
    """A replica of a service's pool that could not load the service's model, and has not since.

    Attributes:
        array_job_id, slot: the replica; it may be of another service.
        why: what its server said.
    """

    array_job_id: int
    slot: int
    why: str = Field(max_length=200, pattern=r"^[ -~]*$")


class ModelPlace(Message):
    """A replica of a pool that has a service's model, or is to have it.

    Attributes:
        array_job_id, slot: the replica; it may be of another service.
        state: ready: it has it. loading: it was told to have it. leaving: it finishes its requests
            for it, then it goes.
        in_flight: requests for this model that the replica works on.
        load_s: seconds that its last load there took; None of a model with which it started.
    """

    array_job_id: int
    slot: int
    state: Literal["ready", "loading", "leaving"]
    in_flight: int = 0
    load_s: float | None = None


class ServiceReport(Message):
    """What the launcher saw of a service last, and what it decided, for people.

    Attributes:
        in_flight, queued, held: requests that replicas work on, requests that wait for a place in a
            replica, and requests that wait for a first replica.
        rate_per_s: requests that have come within the last seconds, per second.
        desired_replicas: number of replicas; ``reason``: why this number.
        ready: slots of replicas that get requests and pass their health checks.
        draining: slots of replicas that only finish the requests that they have.
        shared_replicas: replicas of other services of its pool that serve it.
        warm_replicas: replicas that serve while no present request needs them; not whole in a pool.
        warm_days: what was kept so on the last days, the newest last, rounded down to
            tenths of slice-hours.
        failed_starts: starts of the newest generation that failed in a row.
        next_start_s: Unix seconds before which no other start is tried; None if none has failed.
        is_unpaid: whether a budget is used up, so that no replica can start.
        quality: None without requests lately.
        is_routed: whether the gateway leads the service's address to it.
        array_job_id: generation that ``failed_starts`` counts; None is not known.
        concurrency: requests that each replica gets at the same time; None is not known.
        ttft_ms: mean milliseconds in a replica until a request's first token, lately; None is not
            known.
        ttft_p95_ms: the same within which 95 % of the requests had it; None if the engine has no
            histogram of that.
        tpot_ms: mean milliseconds from one token to the next, lately; None is not known.
        is_concurrency_learnt: whether the launcher has learnt that number; if not, the service's
            file says it.
        concurrency_source: where it comes from, in words, if not from its own requests yet; or "".
        engine_load: what the replicas' servers say that they work on; None is not known.
        adapters: its LoRA adapters.
        refusals: replicas of its pool that could not load its model.
        places: replicas of its pool that have its model, or are to have it.
        old_engine: engine and version of a replica, if it has holes that a newer one mends; or "".
        starts: its last starts, the newest last; None are those that were reported before. Who
            reads reports of many services gets the newest one.
        start_classes: how long its last starts took, by where the weights were: the daemon adds it.
    """

    tenant: str = Field(max_length=64)
    name: str = Field(max_length=64)
    in_flight: int
    queued: int
    held: int
    rate_per_s: float
    desired_replicas: int
    reason: str = Field(max_length=500, pattern=r"^[ -~]*$")
    ready: tuple[SlotPlace, ...] = ()
    draining: tuple[SlotPlace, ...] = ()
    shared_replicas: int = 0
    warm_replicas: float = 0.0
    warm_days: tuple[WarmDay, ...] = Field((), max_length=MOST_DAYS)
    failed_starts: int = 0
    next_start_s: float | None = None
    is_unpaid: bool = False
    quality: ServiceQuality | None = None
    is_routed: bool = True
    array_job_id: int | None = None
    concurrency: int | None = None
    is_concurrency_learnt: bool = False
    concurrency_source: str = Field("", max_length=100, pattern=r"^[ -~]*$")
    ttft_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_ms: float | None = None
    engine_load: ReplicaLoad | None = None
    adapters: tuple[AdapterReport, ...] = ()
    refusals: tuple[ModelRefusal, ...] = Field((), max_length=MOST_REFUSALS)
    places: tuple[ModelPlace, ...] = ()
    old_engine: str = Field("", max_length=100, pattern=r"^[ -~]*$")
    starts: tuple[StartTrace, ...] | None = Field(None, max_length=MOST_STARTS)
    start_classes: tuple[ClassTimes, ...] = Field((), max_length=MOST_STARTS)


class ServiceReportRequest(Request, Asks[DoneAnswer], post="service-reports", asker="launcher"):
    """The launcher: reports of these services."""

    services: tuple[ServiceReport, ...]


class BudgetView(Message):
    """What a budget leaves, as Slurm's limits have it.

    Attributes:
        payer: the tenant that has it.
        run_millislice_min: what running and new jobs together may still use up.
        resets_s: Unix seconds at which its next period begins; None means never.
    """

    payer: str
    run_millislice_min: int
    resets_s: int | None = None


class TenantView(Message):
    """A tenant's quota and what it holds now, in millislices.

    Attributes:
        nominal_millislices: what operators have set for the tenant and the tenants below it
            together.
        in_use_millislices: what running jobs of the tenant and of the tenants below it hold.
        own_in_use_millislices: what its own running jobs hold.
        limit_millislices: the most the tenant and those below it may have in use now: their
            nominal, less what is lent, plus what is borrowed; None if limits were not compiled yet.
        budget: the budget that leaves its jobs the least, its own or one above; None without one,
            or if limits were not compiled yet.
    """

    name: str
    nominal_millislices: int
    in_use_millislices: int
    own_in_use_millislices: int
    limit_millislices: int | None = None
    budget: BudgetView | None = None

    @property
    def effective_limit_millislices(self) -> int:
        """The limit; the nominal while the limit is not known."""
        limit = self.limit_millislices
        return self.nominal_millislices if limit is None else limit

    @property
    def room_millislices(self) -> int:
        """What may still start below the limit; negative if more is in use."""
        return self.effective_limit_millislices - self.in_use_millislices


class ViewAnswer(Answer):
    """Services and tenants as they are now.

    Attributes:
        observed_s: Unix seconds of the look at Slurm.
        complete: False means that the receiver must not act.
        service_reports: the launcher's recent reports of these services; not sent to the launcher.
        desired_slots_versions: by array job id, the number of the last request for the array's
            slots that the daemon took; of an array of which it has taken none yet, a number that no
            request had. Sent only to the launcher.
    """

    observed_s: float
    complete: bool
    services: tuple[ServiceView, ...]
    tenants: tuple[TenantView, ...]
    service_reports: tuple[ServiceReport, ...] = ()
    desired_slots_versions: dict[int, int] = Field(default_factory=dict)


class ViewRequest(Request, Asks[ViewAnswer], get="view"):
    """Asks for services and tenants as they are now.

    The launcher, root and SlurmUser see all, other users those of their own tenants.
    """


class DesiredSlotsAnswer(Answer):
    """What the daemon did; ``kept_back`` slots were not released, ``note`` says why."""

    released: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    kept_back: tuple[int, ...] = ()
    note: str = ""


class DesiredSlotsRequest(
    Request, Asks[DesiredSlotsAnswer], post="desired-slots", asker="launcher"
):
    """The slots of one service that the launcher desires to run; every other one is to be held.

    The daemon holds the slots that ``slots`` does not name; they must have been drained before.
    ``note`` is shown to the service's users while the daemon has nothing of its own to say.
    ``avoid_nodes`` are nodes on which slots that are released now are rather not to start, those
    first that matter most.
    """

    array_job_id: int
    slots: tuple[int, ...]
    note: str = Field("", max_length=500, pattern=r"^[ -~]*$")
    urgency: float = Field(0.0, ge=0, le=1)
    """Urgency of the service's backlog: 0 if no request waits, 1 is as bad as counts. Part of its
    slots' priority.
    """
    avoid_nodes: tuple[NodeName, ...] = Field((), max_length=MOST_AVOIDED)
    replaces_version: int
    """Number of the last request for this array's slots that the daemon had taken when the launcher
    looked to decide this one: the array's in ``desired_slots_versions`` of that view. If the daemon
    has taken another one since, it refuses this one (SW-SERVICE-CHANGED).
    """


class RetireRequest(Request, Asks[DoneAnswer], post="service-retire", asker="launcher"):
    """The launcher: cancel an array that has no slot under way.

    Allowed only if a newer generation replaces the array, or its owner has ordered its end; also if
    an older generation stays in its place, where the array's file sets ``abort_roll_after``.
    """

    array_job_id: int


class EvictRequest(Request, Asks[DoneAnswer], post="evict", asker="operators"):
    """Root or SlurmUser: let these replicas end, each once another one serves in its place.

    A run is its job's id with its start in Unix seconds (null where Slurm names none), so a run of
    the job that came since stays. The request is valid for half a minute: a caller that still wants
    it asks again. Jobs that are no replicas stay as they are.
    """

    runs: tuple[RunOfJob, ...] = Field(max_length=1024)
    why: str = Field(max_length=200, pattern=r"^[ -~]+$")


class DeleteRequest(Request, Asks[DoneAnswer], post="service-delete"):
    """Cancels a service's arrays immediately, whatever is in flight.

    For the service's owner, root or SlurmUser.
    """

    array_job_id: int


class CheckRequest(Request, Asks[SubmitAnswer], post="admission-check", changes=False):
    """Asks what the answer to this submission would be; leaves nothing behind."""

    tenant: TenantText
    directives: tuple[str, ...]


class StatusAnswer(Answer):
    """The daemon's state.

    Attributes:
        version: version of the daemon's program.
        is_leader: whether this daemon acts on Slurm; another daemon does if not.
        is_uninstalled: whether Slicewise was taken out of Slurm: it changes nothing there.
        complete, observed_s: whether its last look at Slurm was complete; Unix seconds of it.
        module_asked_s, module, module_mode: Unix seconds at which slicewise.lua asked last, its
            version and its mode; None, "" if none has asked.
        decisions: number of decisions by action, since the daemon began.
        unadmitted, unadmitted_s: number of jobs without Slicewise's mark; Unix seconds at which
            the newest was submitted.
    """

    version: str
    mode: str
    host: str
    is_leader: bool
    is_uninstalled: bool = False
    complete: bool
    observed_s: float
    module_asked_s: float | None = None
    module: str = ""
    module_mode: str = ""
    decisions: dict[str, int] = Field(default_factory=dict)
    unadmitted: int = 0
    unadmitted_s: float | None = None


class StatusRequest(Request, Asks[StatusAnswer], get="status"):
    """Asks for the state of the daemon and slicewise.lua. Every user may ask."""
