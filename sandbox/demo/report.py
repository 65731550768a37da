"""Computes the demo's report from a recording."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from slicewise.cluster.language.errors import Refusal
from slicewise.sandbox.demo.record import (
    BatchJob,
    Chat,
    LoanChange,
    Recording,
    Repartition,
    RequestRecord,
    Sample,
    TaskRun,
    by_service,
    replicas_over_time,
    tasks_over_time,
)
from slicewise.sandbox.demo.scenario import FILLER_TASKS

P95_AIM_S = 2.0
"""Not a promise: on a machine with other work replicas start later, and all is shown anyway."""
REPLICAS_EXPECTED = 4
FILLED_EXPECTED = 4
LEDGER_TOLERANCE = 0.01
"""How far the ledger's slice-seconds may be from sacct's, as a share."""


@dataclass(frozen=True)
class ServiceReport:
    """One service's part of the report."""

    requests: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    replicas_max: int
    backlog_max: int
    borrowed_max: int
    """Most replicas that held GPUs on borrowed quota at one time."""


@dataclass(frozen=True)
class SliceSeconds:
    """What one tenant held, in slice-seconds, by the ledger and by sacct."""

    ledger: float
    sacct: float

    @property
    def deviation(self) -> float:
        """The ledger's deviation from sacct, as a share; if sacct has 0, it is 0 or infinite."""
        if self.sacct == 0:
            return 0.0 if self.ledger == 0 else float("inf")
        return abs(self.ledger - self.sacct) / self.sacct


@dataclass(frozen=True)
class ChatReport:
    """What OpenAI's client saw of the service that it asked for chats.

    Attributes:
        replicas_before: slots that held or asked for GPUs before the first chat.
        first_token_s: until the first chat, which woke it, had a token; None if it had none.
        next_first_token_s: the same of the slowest of the others.
        tokens: of all answers.
        replicas_end: as in ``Report``, of this service.
        slice_seconds: what the service alone was charged, by both books.
    """

    service: str
    requests: int
    failed: int
    replicas_before: int
    first_token_s: float | None
    next_first_token_s: float | None
    tokens: int
    replicas_end: int | None
    slice_seconds: SliceSeconds


@dataclass(frozen=True)
class FillerReport:
    """The batch job that fills what is idle.

    Attributes:
        most: most tasks that ran at one time, each on one slice.
        gave_way: runs that Slurm ended for another job, with the task back in the queue.
        tasks_done: tasks that did all their work, those that gave way included.
    """

    most: int
    gave_way: int
    tasks_done: int


@dataclass(frozen=True)
class Promise:
    """Something that each run of the demo must show.

    Attributes:
        shown: what was shown, with its figures.
        shortfall: what was not, to be read where it was not kept.
    """

    is_kept: bool
    shown: str
    shortfall: str


@dataclass(frozen=True)
class Report:
    """``demo.json``.

    Attributes:
        requests: number of all requests; ``wake_requests`` are those among them that are not of the
            trace but woke a service.
        failed: requests without a right answer in time; nothing is retried.
        p50_ms, p95_ms: nearest-rank percentiles over the answered requests, from the time they were
            due, waking from zero included.
        replicas_max: most replicas ready at one time, all services together.
        replicas_end: replicas ready, starting or draining in the last samples; None without any.
        woke_from_zero: whether every wake request found no replica and was answered.
        first_response_after_wake_s: latency of the slowest wake request; None without any.
        errors: how often each kind of failure occurred.
        replicas_woken: replicas that the last wake request started; None without samples of that.
        loans: every change of a loan, in order of time; 0 millislices end the loan.
        lent_at_the_end: millislices that are lent after the last of them.
        chat: None if no chat was asked for.
        no_wait_share: the share of samples, from the first request to the last answer, in which no
            request waited for a replica; None without any.
    """

    requests: int
    wake_requests: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    replicas_max: int
    replicas_end: int | None
    woke_from_zero: bool
    first_response_after_wake_s: float | None
    refused_over_quota: Refusal | None
    ledger_imbalance: int
    slice_seconds_by_tenant: Mapping[str, SliceSeconds]
    services: Mapping[str, ServiceReport]
    errors: Mapping[str, int]
    duration_s: float
    facts: Mapping[str, str]
    replicas_woken: int | None
    loans: tuple[LoanChange, ...]
    lent_at_the_end: int
    batch_jobs: tuple[BatchJob, ...]
    repartitions: tuple[Repartition, ...]
    chat: ChatReport | None
    filler: FillerReport
    no_wait_share: float | None

    def as_json(self) -> dict[str, object]:
        """Ready for ``json.dumps``; ``facts`` become keys of their own."""
        values = asdict(self)
        facts = values.pop("facts")
        promises = [asdict(promise) for promise in self.promises()]
        return {**values, "promises": promises, **facts}

    def shortfalls(self) -> tuple[str, ...]:
        """Say what this run failed to show; () if it showed everything."""
        return tuple(promise.shortfall for promise in self.promises() if not promise.is_kept)

    def promises(self) -> tuple[Promise, ...]:
        """Return everything that each run must show, with whether this one did."""
        return (
            *self._of_requests(),
            *self._of_sharing(),
            *self._of_the_chat(),
            *self._of_the_books(),
        )

    def _of_requests(self) -> Iterator[Promise]:
        yield Promise(
            self.requests > 0 and self.failed == 0,
            f"all {self.requests} requests were answered",
            f"{self.failed} requests failed",
        )
        yield Promise(
            self.replicas_max >= REPLICAS_EXPECTED,
            f"replicas followed the load, up to {self.replicas_max} at one time",
            f"at most {self.replicas_max} replicas ran, fewer than {REPLICAS_EXPECTED}",
        )
        yield Promise(
            self.replicas_end == 0,
            "every replica was given back",
            f"replicas at the end: {self.replicas_end}",
        )
        yield Promise(
            self.woke_from_zero,
            "a request to a service without a replica waited for one and was answered",
            "a service did not wake from zero",
        )

    def _of_sharing(self) -> Iterator[Promise]:
        for name, service in self.services.items():
            if self.chat is not None and name == self.chat.service:
                continue  # Its tenant neither lends nor borrows.
            yield Promise(
                service.borrowed_max > 0,
                f"{name} ran on lent quota, with up to {service.borrowed_max} replicas",
                f"{name} never ran on borrowed quota",
            )
        yield Promise(
            self.lent_at_the_end == 0,
            f"loans changed {len(self.loans)} times, and all were given back",
            f"{self.lent_at_the_end} millislices are still lent at the end",
        )
        waits = [
            batch_job.waited_s for batch_job in self.batch_jobs if batch_job.waited_s is not None
        ]
        yield Promise(
            len(waits) == len(self.batch_jobs) and max(waits, default=0) > 0,
            f"{len(waits)} batch jobs ran, of which one waited {max(waits, default=0):.0f} s",
            f"of {len(self.batch_jobs)} batch jobs {len(waits)} started, or none had to wait",
        )
        filler = self.filler
        yield Promise(
            filler.most >= FILLED_EXPECTED
            and filler.gave_way > 0
            and filler.tasks_done == FILLER_TASKS,
            f"a batch job filled up to {filler.most} idle slices, {filler.gave_way} of its tasks "
            f"gave way and ran again, and all {filler.tasks_done} ended",
            f"the batch job that fills what is idle had at most {filler.most} slices, gave way "
            f"{filler.gave_way} times, and ended {filler.tasks_done} of {FILLER_TASKS} tasks",
        )
        done = [repartition for repartition in self.repartitions if repartition.state == "done"]
        yield Promise(
            bool(done),
            "; ".join(f"the GPU of {act.node} was repartitioned under load" for act in done),
            "no GPU was repartitioned",
        )
        yield Promise(
            self.refused_over_quota is not None,
            "a tenant without quota was refused, with the reason",
            "the tenant without quota was not refused",
        )

    def _of_the_chat(self) -> Iterator[Promise]:
        chat = self.chat
        if chat is None:
            yield Promise(False, "", "no chat was asked for")
            return
        first_s = chat.first_token_s
        yield Promise(
            chat.replicas_before == 0 and first_s is not None and chat.failed == 0,
            f"{chat.service} woke for the openai client: first token after {first_s or 0:.1f} s",
            f"{chat.service}, with {chat.replicas_before} replicas, failed {chat.failed} of "
            f"{chat.requests} chats",
        )
        use = chat.slice_seconds
        yield Promise(
            chat.replicas_end == 0 and use.ledger > 0 and use.deviation <= LEDGER_TOLERANCE,
            f"it streamed {chat.tokens} tokens, rested, and both books charge it "
            f"{use.ledger:g} slice-seconds",
            f"{chat.service} has {chat.replicas_end} replicas at the end; ledger {use.ledger:g} "
            f"and sacct {use.sacct:g} slice-seconds",
        )

    def _of_the_books(self) -> Iterator[Promise]:
        yield Promise(
            self.ledger_imbalance == 0,
            "the ledger is in balance",
            f"the ledger is off balance by {self.ledger_imbalance}",
        )
        free = [service for service in self.services if not self._charged(service) > 0]
        yield Promise(
            not free,
            "every service was charged for what it used",
            f"{', '.join(free)} answered requests and was not charged",
        )
        books = self.slice_seconds_by_tenant
        apart = [name for name, use in books.items() if not use.deviation <= LEDGER_TOLERANCE]
        yield Promise(
            not apart,
            f"ledger and sacct agree on what {', '.join(books)} used",
            "; ".join(
                f"{name}: ledger {books[name].ledger} and sacct {books[name].sacct} slice-seconds"
                " differ"
                for name in apart
            ),
        )

    def _charged(self, service: str) -> float:
        use = self.slice_seconds_by_tenant.get(service.partition("/")[0])
        return use.ledger if use is not None else 0.0


def build(recording: Recording) -> Report:
    """Judge a recording."""
    failures = [request for request in recording.requests if request.error]
    wakes = recording.wakes
    return Report(
        requests=len(recording.requests),
        wake_requests=len(wakes),
        failed=len(failures),
        p50_ms=percentile_ms(recording.requests, 50),
        p95_ms=percentile_ms(recording.requests, 95),
        replicas_max=max(replicas_over_time(recording.samples), default=0),
        replicas_end=_replicas_end(recording.samples),
        woke_from_zero=bool(wakes)
        and all(wake.replicas_before == 0 and not wake.request.error for wake in wakes),
        first_response_after_wake_s=max(
            (round(wake.request.latency_s, 3) for wake in wakes), default=None
        ),
        refused_over_quota=recording.refusal,
        ledger_imbalance=recording.ledger.imbalance,
        slice_seconds_by_tenant=slice_seconds(
            recording.ledger.millislice_s_by_tenant, recording.sacct_millislice_s_by_tenant
        ),
        services=_services(recording),
        errors=dict(Counter(request.error for request in failures)),
        duration_s=round(recording.duration_s, 1),
        facts=recording.facts,
        replicas_woken=_replicas_woken(recording),
        loans=recording.loans,
        lent_at_the_end=lent_now(recording.loans),
        batch_jobs=recording.acts.batch_jobs,
        repartitions=recording.acts.repartitions,
        chat=_chat(recording),
        filler=_filler(recording.acts.filler_runs),
        no_wait_share=_no_wait_share(recording),
    )


def percentile_ms(requests: Iterable[RequestRecord], percent: int) -> float | None:
    """Nearest-rank percentile of the answered requests' latency; None if none was answered."""
    latencies = sorted(request.latency_s for request in requests if not request.error)
    if not latencies:
        return None
    rank = -(-len(latencies) * percent // 100)
    return round(latencies[max(rank, 1) - 1] * 1000, 1)


def _replicas_woken(recording: Recording) -> int | None:
    """Return the most replicas that the last wake's service had at one time since."""
    if not recording.wakes:
        return None
    wake = recording.wakes[-1]
    since = [
        sample.state.replicas
        for sample in recording.samples
        if sample.state.service == wake.service and sample.t_s >= wake.request.due_s
    ]
    return max((replicas.own + replicas.borrowed for replicas in since), default=None)


def _replicas_end(samples: Sequence[Sample]) -> int | None:
    last = [group[-1] for group in by_service(samples).values()]
    return sum(sample.state.replicas.costing for sample in last) if last else None


def lent_now(loans: Iterable[LoanChange]) -> int:
    """Return how many millislices are lent after these changes, which are in order of time."""
    amounts = {(loan.lender, loan.borrower): loan.millislices for loan in loans}
    return sum(amounts.values())


def slice_seconds(ledger: Mapping[str, int], sacct: Mapping[str, int]) -> dict[str, SliceSeconds]:
    """Put both books side by side for every tenant in either.

    The books are given in millislice-seconds, the result is in slice-seconds. A tenant that used
    nothing by both is left out: its jobs asked for no GPU.
    """
    sides = {
        tenant: SliceSeconds(ledger.get(tenant, 0) / 1000, sacct.get(tenant, 0) / 1000)
        for tenant in sorted(ledger.keys() | sacct.keys())
    }
    return {tenant: use for tenant, use in sides.items() if use.ledger or use.sacct}


def _chat(recording: Recording) -> ChatReport | None:
    if not recording.chats:
        return None
    first, *others = recording.chats
    service = first.request.service
    last = [sample for sample in recording.samples if sample.state.service == service]
    ledger = recording.ledger.millislice_s_by_service.get(service, 0)
    return ChatReport(
        service=service,
        requests=len(recording.chats),
        failed=sum(bool(chat.request.error) for chat in recording.chats),
        replicas_before=first.replicas_before,
        first_token_s=_slowest_first_token_s([first]),
        next_first_token_s=_slowest_first_token_s(others),
        tokens=sum(chat.tokens for chat in recording.chats),
        replicas_end=_replicas_end(last),
        slice_seconds=SliceSeconds(ledger / 1000, recording.sacct_millislice_s_of_chat / 1000),
    )


def _slowest_first_token_s(chats: Iterable[Chat]) -> float | None:
    took_s = [chat.first_token_s for chat in chats if chat.first_token_s is not None]
    return round(max(took_s), 3) if took_s else None


def _filler(runs: Sequence[TaskRun]) -> FillerReport:
    return FillerReport(
        most=max((tasks for _, tasks in tasks_over_time(runs)), default=0),
        gave_way=sum(run.gave_way for run in runs),
        tasks_done=len({run.task for run in runs if run.is_done}),
    )


def _no_wait_share(recording: Recording) -> float | None:
    ends = (request.due_s + request.latency_s for request in recording.requests)
    waiting: Counter[float] = Counter()
    last_s = max(ends, default=0.0)
    for sample in recording.samples:
        if 0 <= sample.t_s <= last_s:
            waiting[sample.t_s] += sample.state.backlog
    if not waiting:
        return None
    return round(sum(not backlog for backlog in waiting.values()) / len(waiting), 3)


def _services(recording: Recording) -> dict[str, ServiceReport]:
    return {
        service: _service(
            [request for request in recording.requests if request.service == service], samples
        )
        for service, samples in by_service(recording.samples).items()
    }


def _service(requests: Sequence[RequestRecord], samples: Sequence[Sample]) -> ServiceReport:
    return ServiceReport(
        requests=len(requests),
        failed=sum(bool(request.error) for request in requests),
        p50_ms=percentile_ms(requests, 50),
        p95_ms=percentile_ms(requests, 95),
        replicas_max=max(sample.state.replicas.ready for sample in samples),
        backlog_max=max(sample.state.backlog for sample in samples),
        borrowed_max=max(sample.state.replicas.borrowed for sample in samples),
    )
