"""Chooses which borrowed runs end when a lender needs its quota again."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from slicewise.cluster.language.jobs import RunOfJob
from slicewise.cluster.language.units import slices_words
from slicewise.slurm_plugin.rules.quota.jobs import JobKey, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.search import all_served, some_served
from slicewise.slurm_plugin.rules.reclaim.startable import ready
from slicewise.slurm_plugin.rules.reclaim.subset_sum import covering
from slicewise.slurm_plugin.rules.reclaim.whom_for import beneficiaries, why_no_room

_NAMED = 3
"""Most jobs that one line names."""
_LEFT = "would have to go: left to Slurm's preemption"
_TOO_LITTLE = "what is free or lent is not enough for all waiting jobs"
_IN_TERM = "what it needs is held by jobs in their term, which ends in {} s at the earliest"
_WITHIN = "the tenants that hold what it needs hold too little above their guaranteed quota"


@dataclass(frozen=True)
class ReclaimInput:
    """The input of reclaiming.

    Attributes:
        wanting: waiting jobs of lenders.
        running: runs that hold what could be reclaimed.
        free: GPU instances that no job holds, by node and type; only of nodes that Slurm can use.
        above_nominal_millislices: what each tenant holds beyond its guaranteed quota; 0 if absent.
        shrink: millislices that tenants must give up, in instances of any shape.
        leaving: runs that have been told to end, or that end anyway.
        weights: weights of tenants; 1 if absent.
        now_s: Unix seconds.
        term_s: seconds after its start for which a run is left alone.
        recalled: millislices that were lent to tenants and are recalled: the tenants start nothing
            in place of runs that end for these.
        late: lenders whose grace is over before a batch job that is requeued now must have ended:
            theirs are left to Slurm.
    """

    wanting: tuple[WaitingJob, ...]
    running: tuple[Running, ...]
    free: Mapping[str, Mapping[str, int]] = field(hash=False)
    above_nominal_millislices: Mapping[str, int] = field(hash=False)
    shrink: Mapping[str, int] = field(hash=False)
    leaving: frozenset[RunOfJob]
    weights: Mapping[str, int] = field(hash=False)
    now_s: float
    term_s: int
    recalled: Mapping[str, int] = field(default_factory=dict, hash=False)
    late: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Reclaim:
    """The result of reclaiming.

    Attributes:
        victims: runs of replicas to drain now, with the reason for people to read. Replicas that
            are leaving already are included while their end is needed. A job that was requeued
            since is none of them.
        requeues: runs of batch jobs to requeue now, with the reason likewise, without those that
            are leaving already.
        ready: millislices of each tenant's waiting jobs that fit into what is free now.
        missing: why ending replicas would not let a waiting job start, by its job id.
        places: the nodes of jobs that need more than a single instance, by job id.
    """

    victims: Mapping[RunOfJob, str] = field(hash=False)
    requeues: Mapping[RunOfJob, str] = field(hash=False)
    ready: Mapping[str, int] = field(hash=False)
    missing: Mapping[int, str] = field(hash=False)
    places: Mapping[int, tuple[str, ...]] = field(default_factory=dict, hash=False)


NOBODY = Reclaim(victims={}, requeues={}, ready={}, missing={})


def reclaim(reclaim_input: ReclaimInput) -> Reclaim:
    """The smallest set of borrowed runs whose end lets the lenders' waiting jobs start.

    Waiting jobs are served by Slurm's priority. Jobs that fit into what is free are ready. For the
    others the set has the fewest millislices possible, then the fewest runs. Of equal sets it is
    the one to which this order of victims leads: first runs of tenants that must shrink or from
    which loans are recalled, up to that amount; then runs of the tenant with the largest share
    above its guaranteed quota, which falls with each of its victims; then runs that lose the least
    work (a replica loses none); then the youngest. Runs in their term are never chosen, and no
    tenant is brought below its guaranteed quota. Runs that are leaving count as victims already, so
    a second call with the victims leaving changes nothing.

    Batch jobs lose work, so they are in the set only where replicas alone make no room: those that
    may be requeued first, and others only where these do not suffice either. Where a set has others
    in it, its replicas are drained, and all of its batch jobs are left to Slurm's preemption. So
    are those for a lender that is ``late``.

    A tenant that must shrink gives up replicas that cover the amount, with the least beyond it.
    ``search.py`` says when the set is certain to be the smallest, ``subset_sum.py`` when the excess
    over an amount is certain to be the least.
    """
    jobs = sorted(reclaim_input.wanting, key=lambda job: job.place)
    by_key = {job.key: job for job in jobs}
    runs = _sorted(reclaim_input)
    plan = _plan(reclaim_input, runs, jobs)
    now = ready(jobs, reclaim_input.free, plan.places)
    waiting = [job for job in jobs if job.key not in now | plan.out]
    goes_for = beneficiaries(waiting or jobs, plan.places, reclaim_input.free, plan.gone)
    late = {job.key for job in jobs if job.tenant in reclaim_input.late}
    left = _left_to_slurm(runs, plan, goes_for, late)
    missing = left | _without_room(reclaim_input, runs, plan, jobs)
    why = _reasons(reclaim_input, plan, {run: by_key[key] for run, key in goes_for.items()})
    asked = [run for run in reclaim_input.running if run.job_id in why]
    leaving = reclaim_input.leaving
    return Reclaim(
        victims={run.run: why[run.job_id] for run in asked if run.is_replica},
        requeues={
            run.run: why[run.job_id]
            for run in asked
            if run.may_requeue and run.run not in leaving and goes_for[run.job_id] not in left
        },
        ready=_millislices(by_key[key] for key in now),
        missing={job_id: why for (job_id, _), why in missing.items()},
        places={job_id: nodes for (job_id, _), nodes in plan.places.items()},
    )


def may_give(reclaim_input: ReclaimInput) -> Mapping[str, int]:
    """Millislices that each tenant's runs may free.

    They count its runs that are leaving, and its replicas that may be drained, the replicas up to
    what it holds above its guaranteed quota.
    """
    runs = _sorted(reclaim_input)
    given: Counter[str] = Counter()
    for run in runs.replicas:
        given[run.tenant] += run.cost_millislices
    given &= runs.above
    for run in runs.leaving:
        given[run.tenant] += run.cost_millislices
    return given


def _millislices(jobs: Iterable[WaitingJob]) -> Mapping[str, int]:
    amounts: Counter[str] = Counter()
    for job in jobs:
        amounts[job.tenant] += job.cost_millislices
    return amounts


@dataclass
class _Runs:
    """All runs, grouped by whether they may end.

    Attributes:
        leaving: runs that have been told to end, or that end anyway.
        replicas, batch: runs that may be ended: replicas, and batch jobs that may be requeued.
        left: batch jobs that only Slurm may end.
        young: runs in their term.
        within: runs that cost more than their tenants hold above their guaranteed quota.
        above, shrink, called: millislices by tenant: what it holds above its guaranteed quota, must
            give up, and should give before other tenants (the larger of what must shrink and what
            is recalled). Each is less the runs that are leaving.
    """

    leaving: list[Running] = field(default_factory=list)
    replicas: list[Running] = field(default_factory=list)
    batch: list[Running] = field(default_factory=list)
    left: list[Running] = field(default_factory=list)
    young: list[Running] = field(default_factory=list)
    within: list[Running] = field(default_factory=list)
    above: Counter[str] = field(default_factory=Counter)
    shrink: Counter[str] = field(default_factory=Counter)
    called: Counter[str] = field(default_factory=Counter)


def _sorted(reclaim_input: ReclaimInput) -> _Runs:
    runs = _Runs(
        above=Counter(reclaim_input.above_nominal_millislices),
        shrink=Counter(reclaim_input.shrink),
        called=Counter(reclaim_input.recalled) | Counter(reclaim_input.shrink),
    )
    for run in reclaim_input.running:
        if run.run in reclaim_input.leaving:
            runs.leaving.append(run)
            for amounts in (runs.above, runs.shrink, runs.called):
                amounts[run.tenant] -= run.cost_millislices
    for run in reclaim_input.running:
        if run.run not in reclaim_input.leaving:
            _group(runs, run, reclaim_input).append(run)
    return runs


def _group(runs: _Runs, run: Running, reclaim_input: ReclaimInput) -> list[Running]:
    if run.age_s(reclaim_input.now_s) < reclaim_input.term_s:
        return runs.young
    if run.cost_millislices > runs.above[run.tenant]:
        return runs.within
    if run.is_replica:
        return runs.replicas
    return runs.batch if run.may_requeue else runs.left


@dataclass(frozen=True)
class _Plan:
    """The runs that are to end, and the jobs for which they end.

    Attributes:
        gone: runs that end for jobs, including batch jobs and runs that are leaving and needed.
        shrunk: further replicas that end because their tenants must shrink.
        places: the nodes of jobs that need more than a single instance, by key.
        out: keys of jobs without room.
    """

    gone: Sequence[Running]
    shrunk: Sequence[Running]
    places: Mapping[JobKey, tuple[str, ...]]
    out: frozenset[JobKey]


def _plan(reclaim_input: ReclaimInput, runs: _Runs, jobs: Sequence[WaitingJob]) -> _Plan:
    kinds = {gres_type for job in jobs for gres_type, _ in job.shape}
    may_go = [*runs.replicas]
    room = _room(reclaim_input, runs, _with(kinds, may_go))
    got = all_served(room, jobs)
    for more in (runs.batch, runs.left):
        if got is None and more:
            may_go += more
            room = _room(reclaim_input, runs, _with(kinds, may_go))
            got = all_served(room, jobs)
    got = got or some_served(room, jobs)
    gone = [*room.taken.values()]
    shrunk = [*_more(runs, gone, room.above, reclaim_input.now_s)]
    for run in shrunk:
        room.leave(run)
    going = sorted((*gone, *runs.leaving), key=lambda run: run.rank(reclaim_input.now_s))
    needed = _needed(room, going)
    ids = {run.job_id for run in needed}
    kept = _kept(reclaim_input, [r for r in going if r.job_id not in ids], [*needed, *shrunk])
    return _Plan(needed, [*shrunk, *kept], got.places, got.out)


def _room(reclaim_input: ReclaimInput, runs: _Runs, candidates: Iterable[Running]) -> Capacity:
    room = Capacity(
        reclaim_input.free,
        candidates,
        runs.above,
        reclaim_input.weights,
        runs.called,
        now_s=reclaim_input.now_s,
    )
    for run in runs.leaving:
        room.leave(run)
    return room


def _with(kinds: Collection[str], runs: Iterable[Running]) -> Iterator[Running]:
    """Runs that hold an instance of one of these types."""
    return (run for run in runs if any(gres_type in kinds for gres_type, _ in run.total))


def _more(
    runs: _Runs, gone: Sequence[Running], above: Mapping[str, int], now_s: float
) -> Iterator[Running]:
    """Further replicas of tenants that must give up more than runs in ``gone`` or leaving cover."""
    ids = {run.job_id for run in gone}
    for tenant, left in runs.shrink.items():
        amount = left - sum(run.cost_millislices for run in gone if run.tenant == tenant)
        if amount > 0:
            own = [r for r in runs.replicas if r.tenant == tenant and r.job_id not in ids]
            own.sort(key=lambda run: run.rank(now_s))
            chosen = covering([run.cost_millislices for run in own], amount, above[tenant])
            yield from (own[nth] for nth in chosen)


def _kept(
    reclaim_input: ReclaimInput, spared: Iterable[Running], going: Iterable[Running]
) -> Iterator[Running]:
    """Runs of ``spared`` that no job needs, but without which a tenant would not shrink enough."""
    left = Counter(reclaim_input.shrink)
    for run in going:
        left[run.tenant] -= run.cost_millislices
    for run in spared:
        if left[run.tenant] > 0:
            left[run.tenant] -= run.cost_millislices
            yield run


def _needed(room: Capacity, runs: Sequence[Running]) -> Sequence[Running]:
    """Runs without which some job would have no room; the last in order are spared first."""
    needed: list[Running] = []
    for run in reversed(runs):
        if room.is_needless(run):
            room.leave(run, -1)
        else:
            needed.append(run)
    return needed[::-1]


def _reasons(
    reclaim_input: ReclaimInput, plan: _Plan, goes_for: Mapping[int, WaitingJob]
) -> Mapping[int, str]:
    """Why each run of the plan ends, for people, by job id."""
    why: dict[int, str] = {}
    for run in plan.shrunk:
        amount = slices_words(reclaim_input.shrink[run.tenant])
        why[run.job_id] = f"{run.tenant} has to give back {amount}"
    for run in plan.gone:
        job = goes_for[run.job_id]
        amount, task = slices_words(run.cost_millislices), job.task or job.job_id
        why[run.job_id] = f"{job.tenant} takes back {amount}: job {task} waits"
    return why


def _left_to_slurm(
    runs: _Runs, plan: _Plan, goes_for: Mapping[int, JobKey], late: Collection[JobKey]
) -> dict[JobKey, str]:
    """Explanations for jobs that need batch jobs to end which only Slurm may end, by key.

    For those in ``late`` that is any batch job.
    """
    ids, batch = {run.job_id for run in runs.left}, {run.job_id for run in runs.batch}
    named_runs: dict[JobKey, list[int]] = defaultdict(list)
    for run in plan.gone:
        if run.job_id in ids or (run.job_id in batch and goes_for[run.job_id] in late):
            named_runs[goes_for[run.job_id]].append(run.job_id)
    return {key: f"{_named(named)} {_LEFT}" for key, named in named_runs.items()}


def _named(batch: Sequence[int]) -> str:
    jobs = "batch job" if len(batch) == 1 else "batch jobs"
    named = ", ".join(map(str, sorted(batch)[:_NAMED]))
    more = f" and {len(batch) - _NAMED} more" if len(batch) > _NAMED else ""
    return f"{jobs} {named}{more}"


def _without_room(
    reclaim_input: ReclaimInput, runs: _Runs, plan: _Plan, jobs: Iterable[WaitingJob]
) -> dict[JobKey, str]:
    """Explanations for jobs for which no runs that may end make room, by key."""
    out = [job for job in jobs if job.key in plan.out]
    ends_s = [
        reclaim_input.term_s - run.age_s(reclaim_input.now_s) for run in reclaim_input.running
    ]
    soonest_s = ceil(min((left_s for left_s in ends_s if left_s > 0), default=0))
    may = (*runs.leaving, *runs.replicas, *runs.batch, *runs.left)
    layers = (
        ([reclaim_input.free, *(run.instances for run in may)], _TOO_LITTLE),
        ([run.instances for run in runs.young], _IN_TERM.format(soonest_s)),
        ([run.instances for run in runs.within], _WITHIN),
    )
    why = why_no_room({job.alike for job in out}, layers) if out else {}
    return {job.key: why[job.alike] for job in out}
