"""Simulates one part of an experiment under one plan, and measures it."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.experiment import Experiment
from slicewise.simulation.rules.runs.measure import Guarantee, RunSums, Yardstick, measured
from slicewise.simulation.rules.runs.parts import Part, parts_of
from slicewise.simulation.rules.runs.run_figures import Figures
from slicewise.simulation.rules.runs.spending import spent_before
from slicewise.simulation.rules.runs.summary import figures
from slicewise.simulation.rules.site.failures import Outage
from slicewise.simulation.rules.site.node_capacity import capacity_millislices
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.past_use import earlier_runs
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan
from slicewise.simulation.rules.site.simulated_site import Site
from slicewise.simulation.rules.site.window_times import window_times_s
from slicewise.simulation.runs.outages import outages
from slicewise.slurm_plugin.rules.quota.calendar import in_force
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits

_STEPS = 200
_OBJECTS = 100_000
"""How many more objects there are before Python looks for cycles again; by default it is 700."""


@dataclass(frozen=True)
class PartRun:
    """What one part gave.

    Attributes:
        figures: of this part alone.
        starts_s: first starts of the jobs that counted, by their number in the history.
        never_started: numbers of the jobs that counted and did not start, refused ones too.
        refused: jobs that counted and that admission refused, by account and the error's code.
    """

    measured: RunSums
    figures: Figures
    starts_s: Mapping[int, float] = field(hash=False)
    never_started: frozenset[int]
    refused: Mapping[tuple[str, str], int] = field(hash=False)


def span_s(experiment: Experiment) -> tuple[float, float]:
    """From when to when jobs count."""
    submits = [job.submit_s for job in experiment.jobs]
    start_s = min(submits, default=0.0) if experiment.start_s is None else experiment.start_s
    # The last job counts, too.
    end_s = max(submits, default=0.0) + 1.0 if experiment.end_s is None else experiment.end_s
    return start_s, max(end_s, start_s + 1.0)


def all_parts(experiment: Experiment) -> tuple[Part, ...]:
    """The parts of the experiment, in order."""
    start_s, end_s = span_s(experiment)
    return parts_of(
        start_s,
        end_s,
        known_from_s=start_s if experiment.known_from_s is None else experiment.known_from_s,
        offsets=experiment.offsets,
        warm_up_s=experiment.warm_up_s,
        tail_s=experiment.tail_s,
    )


def plan_of(experiment: Experiment, *, is_changed: bool) -> SitePlan:
    """The present plan, or the changed one."""
    changed = experiment.changed
    return changed if is_changed and changed is not None else experiment.present


def judging_plan(experiment: Experiment) -> SlicewisePlan | None:
    """The plan whose guarantees both runs are measured by: the changed one if it has any."""
    for plan in (experiment.changed, experiment.present):
        if isinstance(plan, SlicewisePlan):
            return plan
    return None


def guarantees(plan: SlicewisePlan | None, begin_s: float, end_s: float) -> tuple[Guarantee, ...]:
    """What is guaranteed to each tenant from ``begin_s`` on, as the calendar has it."""
    if plan is None:
        return ()
    zone, guarantees = plan.settings.ledger.time_zone, []
    before: Guarantee | None = None
    for at_s in (begin_s, *window_times_s(plan.windows, begin_s, end_s, zone)):
        policy = in_force(plan.tenants, plan.windows, moment(at_s, zone))
        types = own_type_limits(policy, plan.settings.costs, plan.settings.models)
        guarantee = Guarantee(at_s, guaranteed_quota(policy), types)
        if before is None or guarantee != replace(before, since_s=at_s):
            guarantees.append(guarantee)
            before = guarantee
    return tuple(guarantees)


def part_run(
    experiment: Experiment,
    number: int,
    *,
    is_changed: bool,
    progress: Callable[[float], None] | None = None,
) -> PartRun:
    """Simulate the part of that number, and measure it."""
    part, plan = all_parts(experiment)[number], plan_of(experiment, is_changed=is_changed)
    times, cluster, costs = part.times, experiment.cluster, experiment.costs
    can = Replayable(cluster, costs)
    numbered = tuple(enumerate(experiment.jobs))
    replayed = replays(numbered, can, begin_s=times.begin_s, end_s=times.last_s)
    earlier = earlier_runs(numbered, can, times.begin_s)
    if isinstance(plan, SlicewisePlan):
        plan = replace(plan, spent=spent_before(plan, experiment.jobs, can, times.begin_s))
    down = _down(experiment, part)
    with _collected_seldom():
        site = Site(cluster, plan, costs, replayed, times, earlier=earlier, down=down)
        record = site.run(progress)
    judge = judging_plan(experiment)
    owed = guarantees(judge, times.begin_s, times.last_s)
    capacity = capacity_millislices(cluster, costs)
    by = Yardstick(
        start_s=part.start_s,
        end_s=times.end_s,
        capacity_millislices=capacity,
        guarantees=owed,
        grace_s=experiment.grace_s if judge is None else judge.settings.lending.grace_s,
        steps=max(1, _STEPS // len(all_parts(experiment))),
        requeue_wait_s=cluster.scheduling.requeue_wait_s,
    )
    sums = measured(record, by)
    counts = _counted(experiment.jobs, part)
    counted = [job for job in record.jobs if job.number in counts]
    refused = [(number, code) for number, code in record.refused if number in counts]
    return PartRun(
        measured=sums,
        figures=replace(
            figures(plan.name, sums, capacity, owed[0].millislices if owed else {}),
            refused=len(refused),
        ),
        starts_s={job.number: job.runs[0].start_s for job in counted if job.runs},
        never_started=frozenset(
            (*(job.number for job in counted if not job.runs), *(number for number, _ in refused))
        ),
        refused=Counter((experiment.jobs[number].account, code) for number, code in refused),
    )


@contextmanager
def _collected_seldom() -> Iterator[None]:
    """Let Python seldom look for cycles: a site leaves hardly any, and looks take long."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _down(experiment: Experiment, part: Part) -> tuple[Outage, ...] | None:
    """The outages of nodes, the same whichever plan is simulated; None where no node ever fails."""
    cluster, times = experiment.cluster, part.times
    if cluster.failures is None:
        return None
    first_s = all_parts(experiment)[0].times.begin_s
    seed, begin_s, end_s = experiment.seed, times.begin_s, times.last_s
    return outages(cluster, seed, first_s=first_s, begin_s=begin_s, end_s=end_s)


def _counted(jobs: tuple[HistoryJob, ...], part: Part) -> frozenset[int]:
    """The numbers of the jobs that count in this part."""
    return frozenset(
        number for number, job in enumerate(jobs) if part.start_s <= job.submit_s < part.times.end_s
    )
