"""Explains what a waiting job's priority is made of, and how many jobs go before it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import WAITING, JobTag, JobView
from slicewise.cluster.rpc.read_messages import PriorityAnswer, PriorityFactor, PriorityTerm
from slicewise.slurm_plugin.rules.admission.priority import (
    CLASS_VALUES,
    Formula,
    PriorityTerms,
    full_wait_s,
    site_factor,
)
from slicewise.slurm_plugin.rules.admission.priority_changes import Ranked


@dataclass(frozen=True)
class InSlurm:
    """A job's priority in Slurm's own formula.

    Attributes:
        site: its site_factor; None if Slurm shows no priority of it now.
        priority: the sum of all factors; None as well then.
        parts: what each factor adds, by sprio's names in lower case.
        weights: weights of these factors in slurm.conf; "" if it sets none.
        others_at_most: most that all factors but age, which favours older jobs, can add to another
            job.
    """

    site: int | None = None
    priority: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)
    weights: Mapping[str, str] = field(default_factory=dict, hash=False)
    others_at_most: int = 0


def not_waiting(about: str, jobs: Iterable[JobView]) -> InvalidInputError:
    """Build the error for jobs that are all not in the queue: SW-NOTHING."""
    job = next(iter(jobs))
    why = (
        "Slicewise has not admitted it"
        if JobTag.find(job.admin_comment) is None
        else "it is held"
        if job.held
        else "it may not start yet"
        if job.state in WAITING
        else f"it is {job.state}"
    )
    return InvalidInputError(
        Code.NOTHING,
        f"Job {about} has no priority of Slicewise now: {why}.",
        f"More about it: slicewise why {about}",
    )


def explained(
    ranked: Ranked, jobs: Iterable[JobView], formula: Formula, now_s: float, slurm: InSlurm
) -> PriorityAnswer:
    """Explain a job's priority. ``jobs`` are all jobs that Slurm knows."""
    job, terms = ranked.job, ranked.terms
    full_s = full_wait_s(terms.time_limit_s, formula)
    before = [other for other in jobs if _is_before(other, job)]
    return PriorityAnswer(
        job=job.task,
        tenant=job.account,
        tasks=job.tasks,
        job_class=terms.job_class,
        wait_s=int(terms.wait_s),
        terms=_terms(terms, formula),
        site_factor=ranked.site_factor,
        site_factor_in_slurm=slurm.site,
        factors=_factors(slurm),
        priority=slurm.priority,
        max=formula.max,
        quantum=formula.quantum,
        wait_full_s=int(full_s),
        full_s=int(now_s - terms.wait_s + full_s),
        ahead=sum(other.tasks for other in before),
        ahead_own=sum(other.tasks for other in before if other.account == job.account),
        others_at_most=slurm.others_at_most,
    )


_ATTRIBUTES = {"class": "job_class", "wait": "wait_s", "passed_over": "is_passed_over"}
"""Terms whose attributes have other names."""


def _terms(terms: PriorityTerms, formula: Formula) -> tuple[PriorityTerm, ...]:
    """The terms with their points: what each adds to those before it. So points add up exactly."""
    waited = min(1.0, terms.wait_s / full_wait_s(terms.time_limit_s, formula))
    named = (
        ("class", CLASS_VALUES[terms.job_class], formula.class_weight),
        ("share", terms.share, formula.share_weight),
        ("urgency", terms.urgency, formula.urgency_weight),
        ("smallness", terms.smallness, formula.smallness_weight),
        ("wait", waited, None),
        *((("passed_over", 1.0, None),) if terms.is_passed_over else ()),
    )
    so_far = PriorityTerms("low", time_limit_s=terms.time_limit_s)
    parts: list[PriorityTerm] = []
    for name, value, weight in named:
        attribute = _ATTRIBUTES.get(name, name)
        further = replace(so_far, **{attribute: getattr(terms, attribute)})
        points = site_factor(further, formula) - site_factor(so_far, formula)
        parts.append(
            PriorityTerm.model_validate(
                {"name": name, "value": round(value, 4), "weight": weight, "points": points}
            )
        )
        so_far = further
    return tuple(parts)


def _factors(slurm: InSlurm) -> tuple[PriorityFactor, ...]:
    return tuple(
        PriorityFactor(name=name, weight=slurm.weights.get(name, ""), points=points)
        for name, points in slurm.parts.items()
    )


def _is_before(other: JobView, job: JobView) -> bool:
    """Whether the other job is before this one in a partition's queue: by priority, then number."""
    if other.state not in WAITING or other.held or other.job_id == job.job_id:
        return False
    shared = set(other.partition.split(",")) & set(job.partition.split(","))
    return bool(shared) and (-other.priority, other.job_id) < (-job.priority, job.job_id)
