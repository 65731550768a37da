"""Versioned messages: slicewise.lua to the daemon, launcher and commands to the daemon.

Every message is one line of JSON, and so is its answer. ``v`` is the version of the protocol.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 2
"""Of submissions. 1 is answered as well: the daemon is upgraded before slicewise.lua."""
LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of one answer; those of requests are narrower, see the sockets."""


class Message(BaseModel):
    """Base: frozen; an unknown key is an error on the way in."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
running: ports known. ending: completing. gone: its task ended for good, the index is lost."""


class SlotView(Message):
    """One slot of a service as Slurm shows it."""

    index: int
    state: SlotState
    job_id: int | None = None
    reason: str = ""
    node: str = ""
    address: str = ""
    ports: tuple[int, ...] = ()
    start_s: int | None = None
    time_left_s: int | None = None


class ServiceView(Message):
    """One service (one job array that carries our tag)."""

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


class TenantView(Message):
    """A tenant's quota and what it holds now, in millislices."""

    name: str
    nominal_millislices: int
    used_millislices: int


class ViewRequest(Message):
    """What is there now? The launcher, root and SlurmUser see all, others their own tenants."""

    v: Literal[1] = 1
    op: Literal["view"] = "view"


class ViewAnswer(Message):
    """``observed_s``: Unix seconds of the look at Slurm; ``complete`` False means: don't act."""

    v: Literal[1] = 1
    observed_s: float
    complete: bool
    services: tuple[ServiceView, ...]
    tenants: tuple[TenantView, ...]


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


class DeleteRequest(Message):
    """Cancel a service's array; its owner, root or SlurmUser."""

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
        complete, observed_s: of its last look at Slurm.
        asked_s: when slicewise.lua asked last; None if it never has.
        module, module_mode: version and mode of the slicewise.lua that asked.
        decisions: by action, since the daemon began.
    """

    v: Literal[1] = 1
    version: str
    mode: str
    host: str
    leads: bool
    complete: bool
    observed_s: float
    asked_s: float | None = None
    module: str = ""
    module_mode: str = ""
    decisions: dict[str, int] = {}


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
