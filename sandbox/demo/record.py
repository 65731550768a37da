"""What the demo records while it runs: plain values, which ``report.py`` judges later."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Protocol

from slicewise.cluster.language.errors import Refusal


@dataclass(frozen=True)
class Replicas:
    """A service's slots, counted by state of their replica; ``starting`` includes Slurm's queue.

    Attributes:
        own, borrowed: replicas that hold GPUs now, on the tenant's own quota and on borrowed quota.
        borrowed_ready: how many of ``ready`` are on borrowed quota.
    """

    ready: int = 0
    starting: int = 0
    draining: int = 0
    held: int = 0
    own: int = 0
    borrowed: int = 0
    borrowed_ready: int = 0

    @property
    def own_not_ready(self) -> int:
        """How many replicas hold GPUs of the own quota and start or end."""
        return max(0, self.own - (self.ready - self.borrowed_ready))

    @property
    def costing(self) -> int:
        """How many slots hold or ask for GPUs."""
        return self.ready + self.starting + self.draining


@dataclass(frozen=True)
class ServiceState:
    """One service at one moment.

    Attributes:
        service: ``tenant/name``, as in its address.
        backlog: requests that wait for a replica, at the gateway or in Triton.
        used_millislices, nominal_millislices: in use and nominal of its tenant.
    """

    service: str
    backlog: int
    replicas: Replicas
    used_millislices: int
    nominal_millislices: int


class Observer(Protocol):
    """Looks at the running system."""

    async def sample(self) -> tuple[ServiceState, ...]:
        """Return every service as it is now.

        Raises UnreachableError or OutsideError if the system does not answer, so that this is not
        taken for "nothing runs".
        """
        ...


@dataclass(frozen=True)
class Sample:
    """A service's state with what the clients saw since the last sample.

    Attributes:
        t_s: seconds since the first request.
        arrivals: requests that came due since the last sample.
        p50_ms, p95_ms: latency of requests that were answered in the last seconds; None without
            any.
    """

    t_s: float
    state: ServiceState
    arrivals: int
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True)
class RequestRecord:
    """One request as its client saw it.

    Attributes:
        due_s: when it should be sent, in seconds since the first request; latency counts from
            here, so a client that falls behind can't hide it.
        sent_s: when it was sent.
        latency_s: until the whole answer was there, or until it failed.
        error: "" if it was answered with as many tokens as asked.
    """

    service: str
    due_s: float
    sent_s: float
    latency_s: float
    error: str = ""


@dataclass(frozen=True)
class Wake:
    """A request to a service that had no replica."""

    service: str
    replicas_before: int
    request: RequestRecord


@dataclass(frozen=True)
class Chat:
    """One chat as OpenAI's client saw it.

    Attributes:
        request: the chat among all requests.
        first_token_s: from when it was due until the first token came; None if none did.
        tokens: how many came, as its end says; 0 without that.
        replicas_before: slots of its service that held or asked for GPUs before.
    """

    request: RequestRecord
    first_token_s: float | None
    tokens: int
    replicas_before: int


@dataclass(frozen=True)
class LoanChange:
    """What a tenant lends to another from ``t_s`` on; 0 millislices end the loan."""

    t_s: float
    lender: str
    borrower: str
    millislices: int


@dataclass(frozen=True)
class BatchJob:
    """A job that a user submitted with plain sbatch.

    Attributes:
        profile: the MIG profile of which it asked for one instance.
        submitted_s, started_s, ended_s: seconds since the first request; None: not (yet) known.
    """

    job_id: int
    user: str
    tenant: str
    profile: str
    submitted_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def waited_s(self) -> float | None:
        """Seconds from its submission to its start; None if it did not start."""
        if self.started_s is None or self.submitted_s is None:
            return None
        return self.started_s - self.submitted_s


@dataclass(frozen=True)
class TaskRun:
    """One run of a task of an array, on one MIG instance.

    Attributes:
        ended_s: None: it runs.
        gave_way: whether Slurm ended it for another job and put the task back into the queue.
        is_done: whether the task did all its work in it.
    """

    task: str
    started_s: float
    ended_s: float | None
    gave_way: bool = False
    is_done: bool = False


@dataclass(frozen=True)
class Repartition:
    """One GPU that was cut again; layouts as ``slicewise repartition`` writes them.

    Attributes:
        begun_s, ended_s: seconds since the first request.
    """

    node: str
    before: str
    after: str
    state: str
    begun_s: float
    ended_s: float


@dataclass(frozen=True)
class Acts:
    """What users and the operator did beside the load.

    Attributes:
        filler_runs: of the array that fills what is idle; seconds since the first request.
    """

    batch_jobs: tuple[BatchJob, ...] = ()
    repartitions: tuple[Repartition, ...] = ()
    filler_runs: tuple[TaskRun, ...] = ()


@dataclass(frozen=True)
class LedgerView:
    """What the ledger says at the end; ``imbalance`` is the sum of all its entries."""

    imbalance: int
    millislice_s_by_tenant: Mapping[str, int]
    millislice_s_by_service: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """Everything recorded of one run of the demo.

    Attributes:
        sacct_millislice_s_by_tenant: what the same jobs used by Slurm's accounting.
        chats: in order of time; their service slept before the first one.
        sacct_millislice_s_of_chat: what the jobs of the chats' service used, by the same.
        loans: every change of a loan, in order of time.
        facts: what a reader needs to repeat it: command, rules, machine, start, versions.
    """

    requests: tuple[RequestRecord, ...]
    samples: tuple[Sample, ...]
    wakes: tuple[Wake, ...]
    refusal: Refusal | None
    ledger: LedgerView
    sacct_millislice_s_by_tenant: Mapping[str, int]
    duration_s: float
    facts: Mapping[str, str] = field(default_factory=dict)
    loans: tuple[LoanChange, ...] = ()
    acts: Acts = Acts()
    chats: tuple[Chat, ...] = ()
    sacct_millislice_s_of_chat: int = 0


def by_service(samples: Iterable[Sample]) -> Mapping[str, tuple[Sample, ...]]:
    """Each service's samples in order of time."""
    ordered = sorted(samples, key=lambda sample: (sample.state.service, sample.t_s))
    return {
        service: tuple(group)
        for service, group in groupby(ordered, key=lambda sample: sample.state.service)
    }


def tasks_over_time(runs: Iterable[TaskRun]) -> tuple[tuple[float, int], ...]:
    """From when on how many of these runs there are at the same time."""
    changes: Counter[float] = Counter()
    for run in runs:
        changes[run.started_s] += 1
        if run.ended_s is not None:
            changes[run.ended_s] -= 1
    times = sorted(changes)
    return tuple(zip(times, accumulate(changes[at_s] for at_s in times), strict=True))


def replicas_over_time(samples: Iterable[Sample]) -> tuple[int, ...]:
    """Ready replicas of all services together, at each moment of sampling."""
    ordered = sorted(samples, key=lambda sample: sample.t_s)
    return tuple(
        sum(sample.state.replicas.ready for sample in group)
        for _, group in groupby(ordered, key=lambda sample: sample.t_s)
    )
