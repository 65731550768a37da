"""Computes the site_factor of pending jobs, and which changes to write to Slurm first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.priority import (
    Formula,
    PriorityTerms,
    site_factor,
    smallness,
)
from slicewise.slurm_plugin.rules.common.costs import job_cost

_PENDING = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})

UPDATES_PER_S = 20.0
"""Changes of priorities a second in Slurm, on average: slurmctld holds its job lock for each."""


@dataclass(frozen=True)
class Ranked:
    """A pending job that could start, or an array's untouched tasks, with its terms."""

    job: JobView
    terms: PriorityTerms
    site_factor: int


@dataclass(frozen=True)
class PriorityInput:
    """What counts for jobs besides their own records.

    Attributes:
        shares: ``priority.share`` by tenant; an absent tenant has 0.
        urgencies: urgency of services' backlogs, by array job id.
        costs: of an instance, by GPU type.
        passed_over: ids of jobs, and of arrays, that Slurm passes over though their GPUs are free.
    """

    shares: Mapping[str, float]
    urgencies: Mapping[int, float]
    costs: Mapping[str, Millislices]
    formula: Formula
    passed_over: frozenset[int] = frozenset()


def ranked(jobs: Iterable[JobView], now_s: float, standing: PriorityInput) -> tuple[Ranked, ...]:
    """The jobs with Slicewise's tag that wait and may start, each with its site_factor.

    Waiting counts from when a job could have started: neither a hold nor a dependency nor a later
    begin time makes a job older. Slurm resets that time when it requeues a job. Waiting never
    counts from before the job's submission, whatever begin time its user has named.
    """
    terms_by_job = ((job, terms_of(job, now_s, standing)) for job in jobs)
    return tuple(
        Ranked(job, terms, site_factor(terms, standing.formula))
        for job, terms in terms_by_job
        if terms is not None
    )


def terms_of(job: JobView, now_s: float, standing: PriorityInput) -> PriorityTerms | None:
    """Terms of a job; None if it does not wait, or does not have Slicewise's tag."""
    tag = JobTag.find(job.admin_comment)
    waits = job.state in _PENDING and not job.held
    if tag is None or not waits or job.eligible_s is None or job.eligible_s > now_s:
        return None
    return PriorityTerms(
        tag.job_class,
        standing.shares.get(tag.tenant, 0.0),
        standing.urgencies.get(job.array_job_id or job.job_id, 0.0) if tag.service else 0.0,
        smallness(max(job_cost(job, standing.costs), tag.whole_millislices), job.time_limit_s),
        now_s - max(job.eligible_s, job.submit_s or 0),
        job.time_limit_s,
        (job.array_job_id or job.job_id) in standing.passed_over,
    )


def changes(
    wanted: Sequence[Ranked], factors: Mapping[int, int], formula: Formula, most: int
) -> tuple[Ranked, ...]:
    """At most ``most`` jobs whose site_factor in Slurm (``known``, by job id) must change.

    Jobs that have waited their full time come first, however small the difference: neither the
    quantum nor a queue of changes may keep them below others. Then come the largest differences,
    the oldest jobs first.
    """
    due = (each for each in wanted if _is_due(each, factors, formula))
    return tuple(sorted(due, key=lambda each: _urgency(each, factors, formula))[:most])


def _is_due(each: Ranked, factors: Mapping[int, int], formula: Formula) -> bool:
    now = factors.get(each.job.job_id)
    if now is None or now == each.site_factor:
        return False
    return each.site_factor == formula.max or abs(each.site_factor - now) >= formula.quantum


def _urgency(each: Ranked, factors: Mapping[int, int], formula: Formula) -> tuple[bool, int, int]:
    job_id = each.job.job_id
    return each.site_factor != formula.max, -abs(each.site_factor - factors[job_id]), job_id
