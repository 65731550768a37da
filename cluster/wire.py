"""Versioned messages: slicewise.lua to the daemon, launcher and commands to the daemon.

Every message is one line of JSON, and so is its answer. ``v`` is the version of the protocol.
"""

from typing import Annotated, Literal

from pydantic import Field

from cluster.wire_message import Message
from cluster.wire_orders import NO_ORDER, ServiceOrder

VERSION = 2
"""Of submissions. 1 is answered as well: the daemon is upgraded before slicewise.lua."""
LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer (a view of 1,000 services has 3 MiB); those of requests are narrower, see the
sockets."""


Count = Annotated[int, Field(ge=0, lt=2**32)]


class SubmitRequest(Message):
    """slicewise.lua: a job is being submitted. The texts are Slurm's own, "" where unset.

    Attributes:
        token: made by slicewise.lua; the tag that is answered bears it.
        module: version of the slicewise.lua that slurmctld has loaded, and its mode.
        gres: tres_per_node.
        tasks, min_nodes, tasks_per_node, cpus_per_task: as asked for, None where unset.
        exclusive: whole nodes, with all of their GPUs.
        interactive: salloc or srun: there is no script.
        requeue: whether the job may be requeued; None is Slurm's default (JobRequeue).
        explain: its user wants to read the decision.
        directives: the script's ``#SLICEWISE`` lines, whole.
    """

    v: Literal[1, 2]
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
    """What slicewise.lua shall do.

    ``pass``: none of our business. ``admit``: set the fields that are not None. ``refuse``: show
    ``message``, ``hint`` and ``code`` to the user and return an error.

    Attributes:
        gres, tres_per_job, tres_per_socket, tres_per_task: the whole text that replaces the one
            asked for, in its own prefix.
        tag: appended to admin_comment.
        notice: told to every user: what he might not expect of the job.
        decision: told to users who want to read it, in one line.
    """

    v: Literal[1, 2] = 1
    action: Literal["pass", "admit", "refuse"]
    gres: str | None = None
    tres_per_job: str | None = None
    tres_per_socket: str | None = None
    tres_per_task: str | None = None
    qos: str | None = None
    site_factor: int | None = None
    tag: str | None = None
    hold: bool = False
    code: str = ""
    message: str = ""
    hint: str = ""
    notice: str = ""
    decision: str = ""


SlotState = Literal["held", "released", "starting", "running", "ending", "gone"]
"""held: costs nothing. released: pending, waits for Slurm. starting: allotted, ports not known yet.
running: ports known. ending: completing. gone: its task has ended; the daemon brings it back if
Slurm still has a record of it (``job_id``), else the index is lost for good."""


WHEN_REPLACED_S = 3600
"""``leaves_s`` of a slot on a drained node: it may stay until another one serves in its place."""
SOON_S = 240
"""So long before an announced end the launcher starts a successor."""


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
    """By which its replica proves that it is this run's: base64 of DER; "" while not known."""
    start_s: int | None = None
    time_left_s: int | None = None
    released_s: int | None = None
    """Unix seconds since when it may start: with ``start_s`` what it waited for Slurm."""
    leaves_s: int | None = None
    """Seconds until it must end, whatever is wished; None: its lease is extended while wished."""
    leaves_why: str = ""
    """Why it must end, for people: a preemption, a reservation, its node is drained, ..."""
    is_borrowed: bool = False
    """It runs or waits in the borrowed QOS: its lender may take it back."""
    said: str = ""
    """How its last run ended, if that failed: ``ended with 1``."""
    ended: str = ""
    """How its task ended if it is gone, in Slurm's word: CANCELLED, FAILED, TIMEOUT, ..."""
    node_held_millislices: int | None = None
    """What jobs hold of its node now, its own with them."""


class ServiceView(Message):
    """One generation of a service (one job array that carries our tag).

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
    """Of one replica."""
    slots: tuple[SlotView, ...]
    note: str = ""
    """Why slots do not run that should, for people: quota, else the launcher's note, else ""."""
    order: ServiceOrder = NO_ORDER
    """Of its owner: the same in all generations."""
    directory: str = ""
    """Where its user submitted it: its logs are there."""
    is_followed: bool = False
    """The launcher has wished for it: its address leads to it."""


SlotPlace = tuple[int, int]
"""Array job id and slot."""


class ServiceNews(Message):
    """What the launcher saw of a service last, and what it decided, for people.

    Attributes:
        in_flight, queued, held: requests that replicas work on, that wait for a place in one, and
            that wait for a first one.
        rate_per_s: requests that have come within the last seconds, per second.
        wanted: replicas; ``reason``: why so many.
        ready: replicas that get requests and pass their health checks.
        draining: those that finish what they have.
        failures: starts of the newest generation that failed in a row.
        next_start_s: Unix seconds before which no other is tried; None if none has failed.
    """

    tenant: str = Field(max_length=64)
    name: str = Field(max_length=64)
    in_flight: int
    queued: int
    held: int
    rate_per_s: float
    wanted: int
    reason: str = Field(max_length=500, pattern=r"^[ -~]*$")
    ready: tuple[SlotPlace, ...] = ()
    draining: tuple[SlotPlace, ...] = ()
    failures: int = 0
    next_start_s: float | None = None


class NewsRequest(Message):
    """The launcher: what there is new of these services."""

    v: Literal[1] = 1
    op: Literal["news"] = "news"
    services: tuple[ServiceNews, ...]


class TenantView(Message):
    """A tenant's quota and what it holds now, in millislices."""

    name: str
    nominal_millislices: int
    used_millislices: int
    ceiling_millislices: int | None = None
    """What its jobs may hold together now: its quota and what is lent to it; None is unknown."""


class ViewRequest(Message):
    """What is there now? The launcher, root and SlurmUser see all, others their own tenants."""

    v: Literal[1] = 1
    op: Literal["view"] = "view"


class ViewAnswer(Message):
    """What there is.

    Attributes:
        observed_s: Unix seconds of the look at Slurm.
        complete: False means: don't act.
        news: of these services, as far as the launcher has told lately; not told to itself.
    """

    v: Literal[1] = 1
    observed_s: float
    complete: bool
    services: tuple[ServiceView, ...]
    tenants: tuple[TenantView, ...]
    news: tuple[ServiceNews, ...] = ()


class WishRequest(Message):
    """The launcher's wish for one service: these slots shall run, every other one shall be held.

    The daemon holds the slots that it does not name; those must have been drained before. ``note``
    is shown to the service's users while the daemon has nothing of its own to say.
    """

    v: Literal[1] = 1
    op: Literal["wish"] = "wish"
    array_job_id: int
    run: tuple[int, ...]
    note: str = Field("", max_length=500, pattern=r"^[ -~]*$")
    urgency: float = Field(0.0, ge=0, le=1)
    """Of the service's backlog: 0 none waits, 1 as bad as counts. Part of its slots' priority."""


class WishAnswer(Message):
    """What was done of a wish; ``kept_back`` slots were not released, ``note`` says why."""

    v: Literal[1] = 1
    released: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    kept_back: tuple[int, ...] = ()
    note: str = ""


class RetireRequest(Message):
    """The launcher: cancel an array of which no slot is under way.

    Only if a newer generation replaces it, or its owner has ordered its end.
    """

    v: Literal[1] = 1
    op: Literal["retire"] = "retire"
    array_job_id: int


class LeaveRequest(Message):
    """Root or SlurmUser: let these replicas go, each once another one serves in its place.

    It holds for the run that goes on now, and for half a minute: whoever still wants it asks again.
    Jobs that are no replicas stay as they are.
    """

    v: Literal[1] = 1
    op: Literal["leave"] = "leave"
    job_ids: tuple[int, ...] = Field(max_length=1024)
    why: str = Field(max_length=200, pattern=r"^[ -~]+$")


class DeleteRequest(Message):
    """Cancel a service's arrays at once, whatever is in flight; its owner, root or SlurmUser."""

    v: Literal[1] = 1
    op: Literal["delete"] = "delete"
    array_job_id: int


class CheckRequest(Message):
    """What would the answer to this submission be? Nothing is left behind."""

    v: Literal[1] = 1
    op: Literal["check"] = "check"
    tenant: str
    directives: tuple[str, ...]


class StatusRequest(Message):
    """How are the daemon and slicewise.lua? Everybody may ask."""

    v: Literal[1] = 1
    op: Literal["status"] = "status"


class StatusAnswer(Message):
    """The daemon's state.

    Attributes:
        version: of the daemon's program.
        leads: whether it acts on Slurm; another daemon does if not.
        is_uninstalled: whether Slicewise was taken out of Slurm: it changes nothing there.
        complete, observed_s: of its last look at Slurm.
        asked_s, module, module_mode: of the slicewise.lua that asked last; None, "" if none has.
        decisions: by action, since the daemon began.
        unadmitted, unadmitted_s: jobs without its mark; when the newest was submitted.
    """

    v: Literal[1] = 1
    version: str
    mode: str
    host: str
    leads: bool
    is_uninstalled: bool = False
    complete: bool
    observed_s: float
    asked_s: float | None = None
    module: str = ""
    module_mode: str = ""
    decisions: dict[str, int] = Field(default_factory=dict)
    unadmitted: int = 0
    unadmitted_s: float | None = None


class DoneAnswer(Message):
    """It was done."""

    v: Literal[1] = 1
    ok: Literal[True] = True


class FailureAnswer(Message):
    """The request was refused or failed."""

    v: Literal[1] = 1
    ok: Literal[False] = False
    code: str
    message: str
    hint: str = ""
