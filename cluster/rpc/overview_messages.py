"""Messages of one look at the whole cluster: ``slicewise overview`` and ``slicewise top``."""

from typing import Annotated, Literal

from pydantic import Field

from slicewise.cluster.language.findings import Severity
from slicewise.cluster.language.keep_warm import WarmDay
from slicewise.cluster.language.units import counted
from slicewise.cluster.rpc.message import Answer, Asks, Message, Request

Position = Annotated[int, Field(ge=0, le=10_000_000)]
"""Number of entries that come before."""
NodeCondition = Literal["up", "powering up", "powered down", "reserved", "draining", "down"]
"""up: Slurm starts jobs on the node. reserved: a reservation keeps it. draining: its jobs go on,
and nothing new starts. down: Slurm can't use it.
"""
ServiceCondition = Literal["asleep", "waking", "ready", "failing", "unpaid", "rolling", "ending"]
"""asleep: no replica runs or is wanted. waking: a first replica is wanted and is not ready. ready:
a replica serves. failing: starts fail, and no replica serves. unpaid: a budget is used up, so that
none can start. rolling: replicas of an older generation still run. ending: its owner has deleted
it.
"""


class SlicesByState(Message):
    """The slices of the managed GPUs, in millislices; the five states add up to the capacity.

    Attributes:
        used_millislices: held by jobs within their tenants' guaranteed quota, or outside all
            quotas.
        lent_millislices: held by jobs on quota that their tenants borrow.
        idle_millislices: free, also where a GPU is not cut as far as it could be.
        draining_millislices: free, and nothing starts there since the node is drained.
        down_millislices: on nodes that Slurm can't use.
    """

    capacity_millislices: int
    used_millislices: int
    lent_millislices: int
    idle_millislices: int
    draining_millislices: int
    down_millislices: int


class PowerNow(Message):
    """What boards with a meter draw now.

    Attributes:
        power_mw: of all of them, in milliwatts.
        boards: how many they are; ``metered_nodes``: on how many nodes.
        gpu_nodes: nodes with GPUs, with those that have no meter.
    """

    power_mw: int
    boards: int
    metered_nodes: int
    gpu_nodes: int

    @property
    def words(self) -> str:
        """``3.21 kW of 16 boards on 2 of 3 nodes``."""
        nodes = f"{self.metered_nodes:,} of {counted(self.gpu_nodes, 'node')}"
        return f"{self.power_mw / 1_000_000:,.2f} kW of {counted(self.boards, 'board')} on {nodes}"


class TenantNow(Message):
    """What a tenant and the tenants below it have, hold and wait for, in millislices.

    Attributes:
        depth: number of tenants above it that the reader sees.
        nominal_millislices: what operators have set for them together.
        borrowed_millislices, lent_millislices: loans that enter and that leave.
        limit_millislices: the most they may have in use now; None before limits were compiled.
        in_use_millislices: what their running jobs hold; ``on_loan``: of that, on borrowed quota.
        waiting_jobs: jobs and array tasks that could start if there were room.
        payer: the tenant with the budget that pays for its runs; "" without a budget.
        left_millislice_s: what this budget has left; None without one that has begun.
        resets_s: when its next period begins, in Unix seconds; None means never.
    """

    name: str
    depth: int
    nominal_millislices: int
    borrowed_millislices: int
    lent_millislices: int
    limit_millislices: int | None = None
    in_use_millislices: int
    on_loan_millislices: int
    waiting_jobs: int
    waiting_millislices: int
    payer: str = ""
    left_millislice_s: int | None = None
    resets_s: int | None = None


class OtherTenants(Message):
    """The sums of all tenants of which the reader may see nothing else, in millislices."""

    tenants: int
    nominal_millislices: int
    in_use_millislices: int
    waiting_jobs: int
    waiting_millislices: int


class ServiceNow(Message):
    """A service, all of its generations together.

    Attributes:
        ready, starting: replicas that serve, and that are on the way to it.
        min_replicas, max_replicas: as ordered, else as its file says.
        desired_replicas: replicas that the launcher wants; ``why`` says why this number. None and
            "" if it has told nothing lately, as all that follows.
        backlog: requests that wait; ``in_flight``: those that replicas work on.
        p95_ms: milliseconds within which 95 % of the last requests were answered; None without any.
        warm_replicas, warm_days: as in the launcher's report.
        note: why replicas that are wanted do not run; "" if all of them do.
    """

    tenant: str
    name: str
    user: str
    condition: ServiceCondition
    ready: int
    starting: int
    min_replicas: int
    max_replicas: int
    desired_replicas: int | None = None
    why: str = ""
    backlog: int | None = None
    in_flight: int | None = None
    rate_per_s: float | None = None
    p95_ms: float | None = None
    warm_replicas: float = 0.0
    warm_days: tuple[WarmDay, ...] = ()
    note: str = ""


class InstanceNow(Message):
    """A GPU, or a MIG instance, that Slurm gives to jobs.

    Attributes:
        size: memory slices that it takes of its board, of which ``GpuNow`` says the number.
        start: the first of them; None is not known.
        is_held: whether a job holds it. Of which job the rest tells; "" if the reader may not see
            the job, or Slurm does not show it.
    """

    gres_type: str
    size: int
    start: int | None = None
    is_held: bool = False
    job: str = ""
    tenant: str = ""
    service: str = ""
    is_borrowed: bool = False


class GpuNow(Message):
    """A GPU with its instances.

    Attributes:
        gpu: its index on the node; None if the node was not surveyed: these are then all the
            instances of the node, and where they lie is not known.
        memory_slices: of a whole board; 0 if the node was not surveyed.
    """

    node: str
    gpu: int | None = None
    condition: NodeCondition
    memory_slices: int = 0
    instances: tuple[InstanceNow, ...]


class WaitingNow(Message):
    """A job, or tasks of an array, that could start if there were room.

    Attributes:
        job: as ``slicewise why`` takes it.
        gpus: GPU instances that it asks for, each task.
        cost_millislices: of all tasks together.
        since_s: Unix seconds; None if Slurm does not say.
        reason: Slurm's word.
    """

    job: str
    tenant: str
    user: str
    service: str = ""
    gpus: dict[str, int]
    tasks: int
    cost_millislices: int
    since_s: int | None = None
    reason: str = ""


class LoanNow(Message):
    """What a tenant lends to another, or takes back from it.

    Attributes:
        lender, borrower: "" stands for all tenants together that the reader may not read.
        back_s: Unix seconds by which the part that the lender takes back is its own again; None
            means that it does not take it back.
        lender_waits_millislices: what jobs of the lender, and of tenants below it, wait for.
        released, starting, running, ending: the borrower's replicas on all of its loans that wait
            for Slurm, that are on the way, that run, and that go.
    """

    lender: str
    borrower: str
    amount_millislices: int
    back_s: int | None = None
    lender_waits_millislices: int
    released: int
    starting: int
    running: int
    ending: int


class AttentionItem(Message):
    """Something that somebody should look at.

    Attributes:
        code: as docs/reference/errors.md explains it.
        about: the node, service, tenant or job that it is about; "" for the site.
        what: what is wrong, in one sentence without the full stop.
        command: the command that mends it, or that says what does.
    """

    severity: Severity
    code: str
    about: str = ""
    what: str
    command: str


class TenantThisMonth(Message):
    """What a tenant's own use came to since the month began.

    Attributes:
        tenant: "" for what is nobody's: what boards take idle, and jobs that the ledger lacks.
        millionths: of the currency, whoever pays; None without a tariff.
        energy_mj: what boards took for it, in millijoules; None if it is not known.
        measured_mj: the part of it that meters saw; the rest is by the table of boards' watts.
    """

    tenant: str
    millionths: int | None = None
    energy_mj: int | None = None
    measured_mj: int = 0


class MonthNow(Message):
    """The running month, as the ledger had it within the last ten minutes.

    Attributes:
        month: as 2026-11, by days of ``zone``: the tariffs', without one the ledger's.
        currency: "" without a tariff.
        seen_s: up to when running jobs are counted, in Unix seconds.
        tenants: by name.
    """

    month: str
    zone: str
    currency: str
    seen_s: int
    tenants: tuple[TenantThisMonth, ...]


class OverviewAnswer(Answer):
    """The cluster as its reader may see it.

    Attributes:
        observed_s: Unix seconds of the last complete look at Slurm.
        complete: False if the look after it failed: all is as it was then.
        mode: the daemon's.
        power: None without a meter, and for who is no operator.
        others: sums of the tenants that the reader may not read; None if there is none.
        other_services: number of services that the reader may not see.
        waiting: of the jobs that the reader may see those that go first.
        loans: of tenants that the reader may read, those first that come back.
        attention: the worst first.
        month: money and joules of tenants that the reader may read; None if there are none, or the
            ledger was not read yet.
    """

    cluster: str
    observed_s: float
    complete: bool
    mode: str
    slices: SlicesByState
    power: PowerNow | None = None
    tenants: tuple[TenantNow, ...]
    others: OtherTenants | None = None
    services: tuple[ServiceNow, ...]
    other_services: int = 0
    gpus: tuple[GpuNow, ...]
    waiting: tuple[WaitingNow, ...]
    loans: tuple[LoanNow, ...] = ()
    attention: tuple[AttentionItem, ...]
    month: MonthNow | None = None


class OverviewRequest(Request, Asks[OverviewAnswer], get="overview"):
    """Asks how the cluster stands: own tenants in full, the others as sums.

    The daemon answers from memory, also while Slurm or the ledger is down. While someone asks, it
    reads surveys once a minute, and asks Slurm once for each run that shares a GPU type on a node
    with others, which instance it has.
    """


class QueuedNow(WaitingNow):
    """One that waits, with its place in the queue.

    Attributes:
        position: number of its place, 1 goes first; jobs that the reader may not see count, too.
        why: why it waits, in words that follow "waits:".
        start_s: Unix seconds at which it is to start, by ``start``; None without an estimate.
        start: what the estimate rests on, or why there is none.
    """

    position: int
    why: str
    start_s: int | None = None
    start: str


class QueueAnswer(Answer):
    """One page of the queue.

    Attributes:
        observed_s: Unix seconds of the last complete look at Slurm.
        complete: False if the look after it failed: all is as it was then.
        rows: jobs that the reader may see, those first that go first.
        other_jobs, other_millislices: number and cost of the jobs and tasks that the reader may not
            see.
        more: ``after`` of the next page; None after the last page.
    """

    observed_s: float
    complete: bool
    rows: tuple[QueuedNow, ...]
    other_jobs: int
    other_millislices: int
    more: int | None = None


class QueueRequest(Request, Asks[QueueAnswer], get="queue"):
    """Asks which jobs wait that could start if there were room, why, and when each is to start.

    Own jobs and those of own tenants in full, of the others sums. ``after`` is ``more`` of an
    earlier answer. The daemon answers from memory, also while Slurm or the ledger is down; so a job
    that waits for quota has no estimate here, but with ``why``.
    """

    after: Position = 0
