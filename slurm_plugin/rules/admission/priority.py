"""Computes site_factor, by which Slicewise adds to Slurm's own priority formula.

The formula, and why no job starves with it: docs/explanation/priority.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.language.job_class import JobClass

_DIGITS = 6
"""Decimal places beyond which differences are rounding errors."""
_MILLISLICES, _HOUR_S = 1000, 3600.0
_LONGEST_LIMIT_S = 7 * 86_400.0
_POWERS = 5
"""Powers of ten from the smallest area that counts to the largest."""
CLASS_VALUES: Mapping[JobClass, float] = {"low": 0.0, "normal": 0.5, "high": 1.0}


@dataclass(frozen=True)
class Formula:
    """A site's formula, from [priority] of its settings.

    Attributes:
        class_weight, share_weight, urgency_weight, smallness_weight: weights of the terms, against
            one another.
        max: highest site_factor; the lowest is 0.
        wait_full_s: seconds of waiting after which a job has the maximum, and
        wait_full_limits: how many times its time limit comes on top of them.
        quantum: smaller changes of a pending job's site_factor are not written.
    """

    class_weight: int
    share_weight: int
    urgency_weight: int
    smallness_weight: int
    max: int
    wait_full_s: float
    wait_full_limits: float
    quantum: int


@dataclass(frozen=True)
class PriorityTerms:
    """The terms of the formula for one job.

    Attributes:
        share: how little its tenant has used lately, in 0..1; see ``share``.
        urgency: urgency of a service's backlog, in 0..1; 0 for a plain job.
        smallness: how little the job asks for, in 0..1; see ``smallness``.
        wait_s: seconds for which the job could have started.
        time_limit_s: seconds that it asks for; None is unlimited.
        is_passed_over: whether the job has GPUs and quota, and Slurm keeps it waiting for others
            that want none of these (``round.standstill``).
    """

    job_class: JobClass = "normal"
    share: float = 0.0
    urgency: float = 0.0
    smallness: float = 0.0
    wait_s: float = 0.0
    time_limit_s: float | None = 0.0
    is_passed_over: bool = False


def site_factor(terms: PriorityTerms, formula: Formula) -> int:
    """The site_factor of a job, in 0..max: ``max × (x + (1 − x) · a)``, rounded down.

    x is the weighted mean of class, share, urgency and smallness; a is the cube of the part of its
    full wait (``full_wait_s``) that the job has waited, at most 1. So waiting closes the gap to the
    maximum, slowly at first, from wherever a job begins: whatever the terms of other jobs are, none
    is above a job that has waited its full wait. A job that is passed over has the maximum, too.
    The cube of the wait in lengths of the request is Tang et al.'s (Cluster 2009).
    """
    if terms.is_passed_over:
        return formula.max
    missing = _missing(terms, formula) * (1.0 - _waited(terms, formula) ** 3)
    # The missing part is exactly 0.0 after the full wait; the sum of both parts might not be 1.0.
    return formula.max - math.ceil(round(formula.max * missing, _DIGITS))


def full_wait_s(time_limit_s: float | None, formula: Formula) -> float:
    """Seconds of waiting after which a job with this time limit has the maximum.

    Who asks for long waits longer: in lengths of what is asked for all wait alike. Limits count up
    to a week, and none at all (None) as a week, so that there is a bound for every job.
    """
    limit_s = _LONGEST_LIMIT_S if time_limit_s is None else min(time_limit_s, _LONGEST_LIMIT_S)
    return formula.wait_full_s + formula.wait_full_limits * limit_s


def share(used_decayed_millislice_s: float, guaranteed_quota: int, half_life_s: float) -> float:
    """How little a tenant has used lately: ``2 ** (−U / S)``.

    U is the decayed use, S what it would be if the tenant had always held exactly
    ``guaranteed_quota`` millislices. So the share is 1 for a tenant that has used nothing lately,
    and 1/2 for one that has always used its guaranteed quota. It is 0 for a tenant without a part
    of its own.
    """
    if guaranteed_quota <= 0:
        return 0.0
    always = guaranteed_quota * half_life_s / math.log(2)
    return float(2.0 ** -(max(0.0, used_decayed_millislice_s) / always))


def smallness(cost_millislices: int, time_limit_s: float | None) -> float:
    """How little a job asks for, by slices × time limit, on a logarithmic scale.

    It is 1 for a slice-hour or less, and falls by a fifth with each power of ten: so it is 0 for
    100,000 slice-hours, a day of 600 GPUs, and for a job without a time limit (None).
    """
    if time_limit_s is None:
        return 0.0
    slice_hours = cost_millislices / _MILLISLICES * time_limit_s / _HOUR_S
    return 1.0 - min(1.0, math.log10(max(1.0, slice_hours)) / _POWERS)


def _missing(terms: PriorityTerms, formula: Formula) -> float:
    """1 − x; 1 if all weights are 0."""
    weights = (
        formula.class_weight
        + formula.share_weight
        + formula.urgency_weight
        + formula.smallness_weight
    )
    if not weights:
        return 1.0
    reached = (
        formula.class_weight * CLASS_VALUES[terms.job_class]
        + formula.share_weight * terms.share
        + formula.urgency_weight * terms.urgency
        + formula.smallness_weight * terms.smallness
    )
    return max(0.0, weights - reached) / weights


def _waited(terms: PriorityTerms, formula: Formula) -> float:
    return min(1.0, max(0.0, terms.wait_s) / full_wait_s(terms.time_limit_s, formula))
