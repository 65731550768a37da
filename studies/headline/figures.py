"""The figures of a system, from what its simulation left behind.

An idle GPU-hour is recoverable where a virtual cluster waits while GPUs of others are idle, for no
more GPUs than it waits for. In a pool all idle GPUs count as others', so what keeps large jobs from
scattered GPUs counts as well.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from slicewise.simulation.rules.runs.measure import Guarantee, Yardstick, measured
from slicewise.simulation.rules.runs.run_figures import Figures
from slicewise.simulation.rules.runs.summary import figures
from slicewise.simulation.rules.site.records import ReplayedJob, SiteRecord
from studies.headline.changes import Change, changes_of
from studies.headline.loads import Load
from studies.headline.systems import GPU_MILLISLICES, SETTINGS

_HOUR_S = 3600.0


@dataclass(frozen=True)
class Idle:
    """GPU-hours that no job held.

    Attributes:
        while_wanted: those of virtual clusters, or of the pool, while another one had jobs waiting.
        wanted: of these, no more than the waiting jobs asked for: the recoverable ones.
    """

    all_hours: float
    while_wanted: float
    wanted: float


@dataclass(frozen=True)
class SystemFigures:
    """One system under one load. Waits are to the first start, in seconds.

    Attributes:
        used: GPU-hours of runs that ended well or went on at the end, as a share of the capacity.
        allocated: GPU-hours of all runs, as a share of the capacity.
        lost_hours: GPU-hours of runs that a preemption threw away.
        wait_worst_mean_s: the mean wait of the tenant that waits longest on average.
        worst_tenant: its name.
        starved_s: the longest wait of a job, to its first start.
        late_jobs, late_share: jobs within the guarantee that waited beyond the grace, and how many
            that is of all jobs. Limits on types and models count as none; no load has any.
        jain: fairness of the tenants' slowdowns; 1 is the same slowdown for all.
        unstarted: jobs that never started.
        preempted_runs: runs that were ended to make room.
    """

    system: str
    jobs: int
    used: float
    allocated: float
    lost_hours: float
    preempted_runs: int
    wait_mean_s: float
    wait_p99_s: float
    wait_worst_mean_s: float
    worst_tenant: str
    starved_s: float
    late_jobs: int
    late_share: float
    jain: float
    unstarted: int
    idle: Idle


def figures_of(system: str, record: SiteRecord, load: Load, *, is_pool: bool) -> SystemFigures:
    """Measure one system's run."""
    capacity = sum(load.gpus.values())
    shown = shared_figures(system, record, load)
    kept_s, lost_s, preempted = work(record.jobs, load.begin_s, load.end_s)
    seconds = load.end_s - load.begin_s
    worst = max(shown.tenants, key=lambda one: one.wait_mean_s)
    return SystemFigures(
        system=system,
        jobs=shown.jobs,
        used=kept_s / (capacity * seconds),
        allocated=(kept_s + lost_s) / (capacity * seconds),
        lost_hours=lost_s / _HOUR_S,
        preempted_runs=preempted,
        wait_mean_s=shown.wait_mean_s,
        wait_p99_s=shown.wait_p99_s,
        wait_worst_mean_s=worst.wait_mean_s,
        worst_tenant=worst.tenant,
        starved_s=max(one.wait_longest_s for one in shown.tenants),
        late_jobs=shown.late_jobs,
        late_share=shown.late_jobs / max(1, shown.jobs),
        jain=shown.jain,
        unstarted=shown.jobs - shown.started,
        idle=idle(record.jobs, load, is_pool=is_pool),
    )


def shared_figures(system: str, record: SiteRecord, load: Load) -> Figures:
    """What `slicewise simulate` would say, by the same guarantees for all systems."""
    own = {name: gpus * GPU_MILLISLICES for name, gpus in load.gpus.items()}
    capacity = sum(own.values())
    by = Yardstick(
        start_s=load.begin_s,
        end_s=load.end_s,
        capacity_millislices=capacity,
        guarantees=(Guarantee(load.begin_s, own),),
        grace_s=SETTINGS.lending.grace_s,
    )
    return figures(system, measured(record, by), capacity, own)


def work(
    jobs: Iterable[ReplayedJob],
    begin_s: float,
    end_s: float,
    unit_millislices: int = GPU_MILLISLICES,
) -> tuple[float, float, int]:
    """GPU-seconds between both times that came to something, and those lost; runs lost.

    A run came to something if it is its job's last one and the job does not wait again.
    ``unit_millislices`` is what one GPU is.
    """
    kept_s = lost_s = 0.0
    preempted = 0
    for job in jobs:
        gpus = job.cost_millislices / unit_millislices
        for run in job.runs:
            until_s = end_s if run.end_s is None else min(run.end_s, end_s)
            held_s = gpus * max(0.0, until_s - max(run.start_s, begin_s))
            if job.waits_again or run is not job.runs[-1]:
                lost_s += held_s
                preempted += 1
            else:
                kept_s += held_s
    return kept_s, lost_s, preempted


def _changes(jobs: Iterable[ReplayedJob]) -> Iterator[Change]:
    for job in jobs:
        yield from changes_of(job, job.tenant, job.cost_millislices // GPU_MILLISLICES)


def idle(jobs: Iterable[ReplayedJob], load: Load, *, is_pool: bool) -> Idle:
    """Sum up idle GPU-hours between the load's begin and end, event by event."""
    held: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    total = wanted = any_wanted = 0.0
    at_s = load.begin_s
    changes = sorted(_changes(jobs), key=lambda one: one.at_s)
    for when_s, together in groupby(
        (*changes, Change(load.end_s, "", 0, 0)), key=lambda one: one.at_s
    ):
        seconds = min(when_s, load.end_s) - at_s
        if seconds > 0:
            every, some, asked = _idle_now(load.gpus, held, waiting, is_pool=is_pool)
            total += every * seconds
            any_wanted += some * seconds
            wanted += asked * seconds
            at_s = min(when_s, load.end_s)
        for one in together:
            held[one.name] += one.held
            waiting[one.name] += one.waiting
    return Idle(total / _HOUR_S, any_wanted / _HOUR_S, wanted / _HOUR_S)


def _idle_now(
    gpus: Mapping[str, int], held: Mapping[str, int], waiting: Mapping[str, int], *, is_pool: bool
) -> tuple[int, int, int]:
    """Idle GPUs; those while another virtual cluster waits; and of them those asked for."""
    asked = {name: amount for name, amount in waiting.items() if amount > 0}
    if is_pool:
        free = sum(gpus.values()) - sum(held.values())
        return free, free if asked else 0, min(free, sum(asked.values()))
    left = {name: max(0, own - held.get(name, 0)) for name, own in gpus.items()}
    others = sum(amount for name, amount in left.items() if any(other != name for other in asked))
    return sum(left.values()), others, min(others, sum(asked.values()))


def recovered(before: Idle, system: Idle) -> float:
    """The share of the recoverable GPU-hours before that is left no more."""
    return 1.0 - system.wanted / before.wanted if before.wanted else 1.0


@dataclass(frozen=True)
class ReplayError:
    """The replay of static partitions beside what was recorded, in GPUs at a minute.

    Attributes:
        running, waiting: mean absolute difference over minutes and virtual clusters, as a share of
            the recorded mean.
        running_recorded, waiting_recorded: recorded means of the whole cluster.
        running_replayed, waiting_replayed: the same of the replay.
        idle_recorded: recoverable GPU-hours by the recorded minutes.
    """

    running: float
    waiting: float
    running_recorded: float
    running_replayed: float
    waiting_recorded: float
    waiting_replayed: float
    idle_recorded: Idle


def replay_error(record: SiteRecord, load: Load) -> ReplayError | None:
    """Compare minute by minute; None where nothing was recorded."""
    if not load.recorded:
        return None
    minutes = int((load.end_s - load.begin_s) // 60)
    by_tenant: defaultdict[str, list[Change]] = defaultdict(list)
    for change in _changes(record.jobs):
        by_tenant[change.name].append(change)
    sums: Counter[str] = Counter()
    for name, recorded in load.recorded.items():
        replayed = _sampled(by_tenant[name], minutes, load.begin_s)
        for was, (held, waits) in zip(recorded, replayed, strict=False):
            sums["running"] += was.running_gpus
            sums["waiting"] += was.waiting_gpus
            sums["held"] += held
            sums["waits"] += waits
            sums["running_off"] += abs(held - was.running_gpus)
            sums["waiting_off"] += abs(waits - was.waiting_gpus)
    return ReplayError(
        running=sums["running_off"] / max(1, sums["running"]),
        waiting=sums["waiting_off"] / max(1, sums["waiting"]),
        running_recorded=sums["running"] / minutes,
        running_replayed=sums["held"] / minutes,
        waiting_recorded=sums["waiting"] / minutes,
        waiting_replayed=sums["waits"] / minutes,
        idle_recorded=_idle_recorded(load, minutes),
    )


def _sampled(changes: Sequence[Change], minutes: int, begin_s: float) -> Iterator[tuple[int, int]]:
    """GPUs held and waited for at the end of each minute."""
    ordered = sorted(changes, key=lambda one: one.at_s)
    times = [one.at_s for one in ordered]
    held = waiting = place = 0
    for minute in range(minutes):
        until = bisect_left(times, begin_s + 60.0 * (minute + 1), lo=place)
        for one in ordered[place:until]:
            held, waiting = held + one.held, waiting + one.waiting
        place = until
        yield held, waiting


def _idle_recorded(load: Load, minutes: int) -> Idle:
    total = some = asked = 0
    for minute in range(minutes):
        now = {name: of[minute] for name, of in load.recorded.items() if minute < len(of)}
        held = {name: one.running_gpus for name, one in now.items()}
        waiting = {name: one.waiting_gpus for name, one in now.items()}
        each = _idle_now(load.gpus, held, waiting, is_pool=False)
        total, some, asked = total + each[0], some + each[1], asked + each[2]
    return Idle(total / 60, some / 60, asked / 60)
