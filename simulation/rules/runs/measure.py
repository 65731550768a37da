"""Measures a simulated site: sums over time, waits, and what was due to tenants' guarantees.

A job is within its tenant's guarantee while what the tenant's jobs hold, the jobs that it submitted
earlier and that fit, and the job itself are together no more than the tenant's guaranteed quota,
in slices and of the types that this names. Other limits on types are not looked at: a job that
waits for one may be late. This says nothing of QOS, so it is the same for every policy. Only the
first start is owed: Slurm itself lets a requeued job wait for two minutes.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, islice, zip_longest
from typing import NamedTuple

from slicewise.simulation.rules.cluster import Scheduling
from slicewise.simulation.rules.runs.node_figures import (
    failure_figures,
    joined_failures,
    joined_repartitions,
    repartition_figures,
)
from slicewise.simulation.rules.runs.run_figures import (
    ClusterSample,
    FailureFigures,
    RepartitionFigures,
)
from slicewise.simulation.rules.services.request_figures import (
    ServiceOutcome,
    joined_outcome,
    outcome,
)
from slicewise.simulation.rules.site.records import ReplayedJob, ReplayedRun, SiteRecord
from slicewise.slurm_plugin.rules.quota.demand import has_types, late_before_s, take_types
from slicewise.slurm_plugin.rules.quota.jobs import FIRST_TASKS

_SHORTEST_S = 10.0
"""Shorter runs count as that long in slowdowns: otherwise jobs of a second would outweigh all."""


@dataclass(frozen=True)
class Guarantee:
    """What is guaranteed to each tenant from ``since_s`` on, without those below it.

    Attributes:
        types: most instances that are, by tenant and GRES type.
    """

    since_s: float
    millislices: Mapping[str, int] = field(hash=False)
    types: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Yardstick:
    """By what a run is measured: the same for every policy that is compared.

    Attributes:
        start_s, end_s: jobs that come between these Unix seconds count, and so do the sums.
        guarantees: in order; the first holds from the beginning.
        grace_s: seconds of a recall.
        steps: points in time at which the cluster is sampled.
        requeue_wait_s: seconds for which Slurm does not start a requeued job again.
    """

    start_s: float
    end_s: float
    capacity_millislices: int
    guarantees: tuple[Guarantee, ...]
    grace_s: int
    steps: int = 200
    requeue_wait_s: float = Scheduling.requeue_wait_s


@dataclass(frozen=True)
class TenantSums:
    """One tenant's sums.

    Attributes:
        waits_s: of its jobs that counted, in order of their submission.
        slowdowns: their times from the submission to the end, in lengths of their runs.
    """

    waits_s: tuple[float, ...] = ()
    started: int = 0
    slowdowns: tuple[float, ...] = ()
    held_millislice_s: float = 0.0
    borrowed_millislice_s: float = 0.0
    lent_millislice_s: float = 0.0
    own_waited_s: float = 0.0
    late_jobs: int = 0


@dataclass(frozen=True)
class RunSums:
    """The sums of one run, or of several that follow one another.

    Attributes:
        seconds: how long was measured.
        idle_millislice_s, idle_wanted_millislice_s: what no job held, and the part of it for which
            jobs waited.
        replica_millislice_s: the part of what was held that services' replicas held.
        services: what became of the services' requests.
        repartitions, failures: as in ``Figures``.
    """

    start_s: float
    end_s: float
    seconds: float
    capacity_millislice_s: float
    held_millislice_s: float
    idle_millislice_s: float
    idle_wanted_millislice_s: float
    tenants: Mapping[str, TenantSums] = field(hash=False)
    steps: tuple[ClusterSample, ...] = ()
    replica_millislice_s: float = 0.0
    services: tuple[ServiceOutcome, ...] = ()
    repartitions: RepartitionFigures | None = None
    failures: FailureFigures | None = None


def measured(record: SiteRecord, by: Yardstick) -> RunSums:
    """Measure what counts of a run."""
    sweep = _Sweep(record, by)
    sweep.run()
    return sweep.result()


def joined(parts: Sequence[RunSums]) -> RunSums:
    """Join the measurements of parts that follow one another; there is at least one."""
    names = sorted({name for part in parts for name in part.tenants})
    return RunSums(
        start_s=parts[0].start_s,
        end_s=parts[-1].end_s,
        seconds=sum(part.seconds for part in parts),
        capacity_millislice_s=sum(part.capacity_millislice_s for part in parts),
        held_millislice_s=sum(part.held_millislice_s for part in parts),
        idle_millislice_s=sum(part.idle_millislice_s for part in parts),
        idle_wanted_millislice_s=sum(part.idle_wanted_millislice_s for part in parts),
        tenants={
            name: _together([part.tenants.get(name, TenantSums()) for part in parts])
            for name in names
        },
        steps=tuple(step for part in parts for step in part.steps),
        replica_millislice_s=sum(part.replica_millislice_s for part in parts),
        services=tuple(
            joined_outcome(
                [
                    service_part
                    for part in parts
                    for service_part in part.services
                    if service_part.service == service
                ]
            )
            for service in sorted({service.service for part in parts for service in part.services})
        ),
        repartitions=joined_repartitions(part.repartitions for part in parts),
        failures=joined_failures(part.failures for part in parts),
    )


def _together(sums: Sequence[TenantSums]) -> TenantSums:
    return TenantSums(
        waits_s=tuple(wait for part in sums for wait in part.waits_s),
        started=sum(part.started for part in sums),
        slowdowns=tuple(slowdown for part in sums for slowdown in part.slowdowns),
        held_millislice_s=sum(part.held_millislice_s for part in sums),
        borrowed_millislice_s=sum(part.borrowed_millislice_s for part in sums),
        lent_millislice_s=sum(part.lent_millislice_s for part in sums),
        own_waited_s=max(part.own_waited_s for part in sums),
        late_jobs=sum(part.late_jobs for part in sums),
    )


class _Event(NamedTuple):
    """A job that changes what it does: it ``holds``, ``waits``, or does neither any more.

    ``step`` numbers the events of one job.
    """

    at_s: float
    nth: int
    step: int
    holds: bool
    waits: bool


class _Sweep:
    """Goes through a run from event to event."""

    def __init__(self, record: SiteRecord, by: Yardstick) -> None:
        self._record, self._by = record, by
        self._jobs = (*record.jobs, *record.replicas)
        self._own: Mapping[str, int] = {}
        self._types: Mapping[str, Mapping[str, int]] = {}
        self._held_types: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._held: Counter[str] = Counter()
        self._holding: set[int] = set()
        self._ran: set[int] = set()
        self._waiting: dict[str, dict[int, int]] = {}
        self._wanted = 0
        self._at_s = record.begin_s
        # Since when each waiting job has been within its tenant's guarantee, by tenant.
        self._due: dict[str, dict[int, float]] = {}
        self._longest_s: defaultdict[str, float] = defaultdict(float)
        self._late: set[int] = set()
        self._total_s: defaultdict[str, float] = defaultdict(float)
        self._held_s: defaultdict[str, float] = defaultdict(float)
        self._borrowed_s: defaultdict[str, float] = defaultdict(float)
        self._lent_s: defaultdict[str, float] = defaultdict(float)
        self._steps: list[ClusterSample] = []

    def run(self) -> None:
        """Take every event in order, with the changes of guarantees between them."""
        later = deque(self._by.guarantees)
        events = sorted(_events(self._jobs, self._record.stopped_s, self._by.requeue_wait_s))
        for at_s, together in groupby(events, key=lambda sample: sample.at_s):
            self._follow(later, at_s)
            self._until(at_s)
            self._look_at({self._take(event) for event in together})
        self._follow(later, self._record.stopped_s)
        self._until(self._record.stopped_s)
        for tenant, due in self._due.items():
            for nth, since_s in due.items():
                self._note(tenant, nth, since_s)

    def _follow(self, later: deque[Guarantee], at_s: float) -> None:
        """Let the guarantees change that change until then."""
        while later and later[0].since_s <= at_s:
            guarantee = later.popleft()
            self._until(guarantee.since_s)
            self._own, self._types = guarantee.millislices, guarantee.types
            self._look_at(tuple(self._waiting))

    def _until(self, at_s: float) -> None:
        """Let the time pass in which nothing changes."""
        by = self._by
        self._sample(min(at_s, by.end_s))
        seconds = min(at_s, by.end_s) - max(self._at_s, by.start_s)
        self._at_s = max(self._at_s, at_s)
        if seconds <= 0:
            return
        held = self._held.total()
        idle = max(0, by.capacity_millislices - held)
        self._total_s["held"] += held * seconds
        self._total_s["idle"] += idle * seconds
        self._total_s["wanted"] += min(idle, self._wanted) * seconds
        for tenant, amount in self._held.items():
            self._held_s[tenant] += amount * seconds
        borrowed, lent = self._lending()
        for tenant, amount in borrowed.items():
            self._borrowed_s[tenant] += amount * seconds
        for tenant, share in lent.items():
            self._lent_s[tenant] += share * seconds

    def _lending(self) -> tuple[Mapping[str, int], Mapping[str, float]]:
        """What tenants hold beyond their guarantees, and whose unused guarantees that is.

        It is everybody's in proportion to what they leave unused, and nobody's in proportion to
        the capacity that is guaranteed to none.
        """
        own, held = self._own, self._held
        borrowed = {name: amount - own.get(name, 0) for name, amount in held.items()}
        borrowed = {name: amount for name, amount in borrowed.items() if amount > 0}
        unused = {name: amount - held[name] for name, amount in own.items() if amount > held[name]}
        nobodys = max(0, self._by.capacity_millislices - sum(own.values()))
        unused_slices = sum(unused.values()) + nobodys
        if not borrowed or not unused_slices:
            return borrowed, {}
        part = min(1.0, sum(borrowed.values()) / unused_slices)
        return borrowed, {name: amount * part for name, amount in unused.items()}

    def _sample(self, until_s: float) -> None:
        by = self._by
        apart_s = (by.end_s - by.start_s) / by.steps
        while (at_s := by.start_s + len(self._steps) * apart_s) <= until_s and (
            len(self._steps) < by.steps
        ):
            _, lent = self._lending()
            waiting = sum(len(jobs) for jobs in self._waiting.values())
            held = self._held.total()
            self._steps.append(
                ClusterSample(at_s, held, int(sum(lent.values())), self._wanted, waiting)
            )

    def _take(self, event: "_Event") -> str:
        """Let a job wait, hold, or do neither; return its tenant."""
        nth, job = event.nth, self._jobs[event.nth]
        tenant, cost = job.tenant, job.cost_millislices
        queue = self._waiting.setdefault(tenant, {})
        if event.waits and nth not in queue:
            queue[nth] = cost
            self._wanted += cost
        elif not event.waits and queue.pop(nth, None) is not None:
            self._wanted -= cost
            if (since_s := self._due.get(tenant, {}).pop(nth, None)) is not None:
                self._note(tenant, nth, since_s)
        if event.holds and nth not in self._holding:
            self._holding.add(nth)
            self._ran.add(nth)
            self._held[tenant] += cost
            self._held_types[tenant].update(job.gpus)
        elif not event.holds and nth in self._holding:
            self._holding.remove(nth)
            self._held[tenant] -= cost
            self._held_types[tenant].subtract(job.gpus)
        return tenant

    def _look_at(self, tenants: Iterable[str]) -> None:
        """Follow which of the tenants' waiting jobs are within their guarantees."""
        for tenant in tenants:
            queue, before = self._waiting.get(tenant, {}), self._due.get(tenant, {})
            left = self._own.get(tenant, 0) - self._held[tenant]
            held = self._held_types[tenant]
            types = {kind: n - held[kind] for kind, n in self._types.get(tenant, {}).items()}
            due: dict[int, float] = {}
            within = (nth for nth in queue if not types or has_types(types, self._jobs[nth].gpus))
            for nth in islice(within, FIRST_TASKS):
                cost = queue[nth]
                if left <= 0:
                    break
                if cost <= left and nth not in self._ran:
                    left -= cost
                    take_types(types, self._jobs[nth].gpus)
                    due[nth] = before.get(nth, self._at_s)
            for nth in before.keys() - due.keys():
                self._note(tenant, nth, before[nth])
            self._due[tenant] = due

    def _note(self, tenant: str, nth: int, since_s: float) -> None:
        if not _counts(self._jobs[nth], self._by):
            return
        self._longest_s[tenant] = max(self._longest_s[tenant], self._at_s - since_s)
        if since_s < late_before_s(self._at_s, self._by.grace_s):
            self._late.add(nth)

    def result(self) -> RunSums:
        """The sums, once all events were taken."""
        by, seconds = self._by, self._by.end_s - self._by.start_s
        counted: defaultdict[str, list[ReplayedJob]] = defaultdict(list)
        for job in self._jobs:
            if _counts(job, by):
                counted[job.tenant].append(job)
        late = Counter(self._jobs[nth].tenant for nth in self._late)
        stopped_s = self._record.stopped_s
        return RunSums(
            start_s=by.start_s,
            end_s=by.end_s,
            seconds=seconds,
            capacity_millislice_s=by.capacity_millislices * seconds,
            held_millislice_s=self._total_s["held"],
            idle_millislice_s=self._total_s["idle"],
            idle_wanted_millislice_s=self._total_s["wanted"],
            tenants={
                name: TenantSums(
                    waits_s=tuple(wait_s(job, stopped_s) for job in counted[name]),
                    started=sum(bool(job.runs) for job in counted[name]),
                    slowdowns=tuple(
                        slowdown
                        for job in counted[name]
                        if (slowdown := _slowdown(job, stopped_s)) is not None
                    ),
                    held_millislice_s=self._held_s[name],
                    borrowed_millislice_s=self._borrowed_s[name],
                    lent_millislice_s=self._lent_s[name],
                    own_waited_s=self._longest_s[name],
                    late_jobs=late[name],
                )
                for name in sorted({*counted, *self._held_s, *by_names(by)})
            },
            steps=tuple(self._steps),
            replica_millislice_s=_held_millislice_s(self._record.replicas, by),
            services=tuple(
                outcome(service, since_s=by.start_s, until_s=by.end_s)
                for service in self._record.services
            ),
            repartitions=repartition_figures(self._record, by.start_s, by.end_s),
            failures=failure_figures(self._record, by.start_s, by.end_s),
        )


def by_names(by: Yardstick) -> frozenset[str]:
    """All tenants that are ever guaranteed something."""
    return frozenset(
        name for guarantee in by.guarantees for name, own in guarantee.millislices.items() if own
    )


def _events(
    jobs: Iterable[ReplayedJob], stopped_s: float, requeue_wait_s: float
) -> Iterator[_Event]:
    """What each job does when. A requeued one may not start at first: it waits once it may."""
    for nth, job in enumerate(jobs):
        steps = count()
        yield _Event(job.submit_s, nth, next(steps), holds=False, waits=True)
        for run, following in zip_longest(job.runs, job.runs[1:]):
            yield _Event(run.start_s, nth, next(steps), holds=True, waits=False)
            if run.end_s is not None:
                yield _Event(run.end_s, nth, next(steps), holds=False, waits=False)
                again_s = run.end_s + requeue_wait_s
                if following is not None:
                    # Of a run that goes on, Slurm shows the start in whole seconds.
                    again_s = min(again_s, following.start_s)
                may_wait = job.waits_again or following is not None
                if may_wait and again_s < _over_s(job, stopped_s):
                    yield _Event(again_s, nth, next(steps), holds=False, waits=True)
        if job.given_up_s is not None:
            yield _Event(job.given_up_s, nth, next(steps), holds=False, waits=False)


def _held_millislice_s(jobs: Iterable[ReplayedJob], by: Yardstick) -> float:
    return sum(
        job.cost_millislices * max(0.0, _ended_s(run, by) - max(by.start_s, run.start_s))
        for job in jobs
        for run in job.runs
    )


def _ended_s(run: ReplayedRun, by: Yardstick) -> float:
    return by.end_s if run.end_s is None else min(by.end_s, run.end_s)


def _over_s(job: ReplayedJob, stopped_s: float) -> float:
    """From when on a job does not wait any more, whatever happens."""
    return stopped_s if job.given_up_s is None else min(stopped_s, job.given_up_s)


def _counts(job: ReplayedJob, by: Yardstick) -> bool:
    return job.number >= 0 and by.start_s <= job.submit_s < by.end_s


def wait_s(job: ReplayedJob, stopped_s: float) -> float:
    """Seconds from the submission to the first start, or to the end of waiting without one."""
    if job.runs:
        return job.runs[0].start_s - job.submit_s
    return (stopped_s if job.given_up_s is None else job.given_up_s) - job.submit_s


def _slowdown(job: ReplayedJob, stopped_s: float) -> float | None:
    """From the submission to the end, in lengths of the run; None if it gave up waiting."""
    if job.given_up_s is not None:
        return None
    last = job.runs[-1] if job.runs else None
    if last is not None and last.end_s is not None and not job.waits_again:
        took_s = last.end_s - job.submit_s
    else:
        began_s = stopped_s if last is None or last.end_s is not None else last.start_s
        took_s = began_s - job.submit_s + job.run_s
    return max(1.0, took_s / max(job.run_s, _SHORTEST_S))
