"""Says in sentences what a simulation leaves out, and why."""

from collections import Counter
from collections.abc import Iterator, Mapping

from slicewise.cluster.language.codes import Code
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.experiment import Experiment
from slicewise.simulation.rules.site.node_capacity import capacity_millislices
from slicewise.simulation.rules.site.past_requests import ANY_TYPE, Replayable
from slicewise.simulation.rules.site.plans import SlicewisePlan
from slicewise.simulation.runs.part_run import all_parts, span_s
from slicewise.slurm_plugin.rules.quota.calendar import loosest
from slicewise.slurm_plugin.rules.quota.overcommitment import over_words
from slicewise.slurm_plugin.rules.quota.tenants import overcommitted_millislices

_SHOWN = 5

Refusals = Mapping[tuple[str, str], int]
"""Numbers of refused jobs, by account and the error's code."""


def notes(experiment: Experiment, present: Refusals, changed: Refusals) -> tuple[str, ...]:
    """What was left out of the replay of either plan, and what it does not say."""
    return (
        *_overcommitted(experiment),
        *lost_jobs(experiment, present, changed),
        *_untyped(experiment),
        *_repartitions(experiment),
        *(_of_history(experiment) if experiment.jobs else ()),
    )


def _of_history(experiment: Experiment) -> tuple[str, ...]:
    return (
        *_beginning(experiment),
        "Users would have reacted to other waits; the replay submits each job when it came.",
        "A job that is requeued begins anew: how much of its work a checkpoint keeps is not known.",
    )


def _overcommitted(experiment: Experiment) -> Iterator[str]:
    """By how much the quotas of either plan exceed the cluster, at some hour."""
    whole = capacity_millislices(experiment.cluster, experiment.costs)
    for plan in (experiment.present, experiment.changed):
        if not isinstance(plan, SlicewisePlan):
            continue
        highest = loosest(plan.tenants, plan.windows) if plan.windows else plan.tenants
        if above := overcommitted_millislices(highest, whole):
            words = over_words(above, whole)
            yield f"{plan.name}: {words} ({Code.QUOTA_CAPACITY}): jobs may contend within them."


def lost_jobs(experiment: Experiment, present: Refusals, changed: Refusals) -> tuple[str, ...]:
    """Which jobs that came are in no figure, and why."""
    return (
        *_left_out(experiment),
        *_refused(experiment.present.name, present),
        *(_refused(experiment.changed.name, changed) if experiment.changed else ()),
    )


def _left_out(experiment: Experiment) -> Iterator[str]:
    start_s, end_s = span_s(experiment)
    can = Replayable(experiment.cluster, experiment.costs)
    reasons: Counter[str] = Counter()
    for number, job in enumerate(experiment.jobs):
        if start_s <= job.submit_s < end_s:
            decision = can.of(number, job, job.submit_s)
            if isinstance(decision, str):
                reasons[decision] += 1
    for why, count in sorted(reasons.items()):
        yield f"{_jobs(count)} left out: {why}."


def _untyped(experiment: Experiment) -> Iterator[str]:
    """Only where there is a choice of types."""
    kinds = {kind for node in experiment.cluster.nodes for kind in node.gpus}
    count = sum(ANY_TYPE in job.gpus for job in _counting(experiment))
    if count and len(kinds) > 1:
        yield (
            f"{_jobs(count)} asked for GPUs without a type: Slurm gives them any, Slicewise chooses"
            " one, and both are counted as the cheapest."
        )


def _repartitions(experiment: Experiment) -> Iterator[str]:
    plans = (experiment.present, experiment.changed)
    if any(isinstance(plan, SlicewisePlan) for plan in plans) and any(
        node.boards is not None for node in experiment.cluster.nodes
    ):
        yield (
            "GPUs are cut again as by etc/slicewise.cron. For a site that does not run it there is"
            " --no-repartitions."
        )


def _counting(experiment: Experiment) -> Iterator[HistoryJob]:
    start_s, end_s = span_s(experiment)
    return (job for job in experiment.jobs if start_s <= job.submit_s < end_s)


def _refused(plan: str, refusals: Refusals) -> Iterator[str]:
    by_code: dict[str, Counter[str]] = {}
    for (account, code), count in refusals.items():
        by_code.setdefault(code, Counter())[account] += count
    for code, accounts in sorted(by_code.items()):
        names = sorted(accounts)
        more = ", ..." if len(names) > _SHOWN else ""
        yield (
            f"{plan}: {_jobs(accounts.total())} refused ({code}), of "
            f"{', '.join(names[:_SHOWN])}{more}."
        )


def _beginning(experiment: Experiment) -> Iterator[str]:
    """Of the first part: what of its past is not known."""
    first = all_parts(experiment)[0]
    begin_s = first.times.begin_s
    warm_up_s = first.start_s - begin_s
    if warm_up_s < experiment.warm_up_s:
        words = f"{warm_up_s / 3600:.1f} h of warm-up" if warm_up_s else "no warm-up"
        yield (
            "The history begins too late for a day of warm-up before the first part: it has"
            f" {words}, and its first hours may be emptier than they were."
        )
    plans = (experiment.present, experiment.changed)
    counts_use = experiment.cluster.scheduling.weights.fair_share > 0 or any(
        isinstance(plan, SlicewisePlan) for plan in plans
    )
    is_known = any(job.started_s is not None and job.started_s < begin_s for job in experiment.jobs)
    if counts_use and not is_known:
        yield "The history has no runs from before: past use, which priorities follow, begins at 0."


def _jobs(count: int) -> str:
    return f"{count} job{'s were' if count != 1 else ' was'}"
