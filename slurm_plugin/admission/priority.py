"""Computes site_factor, by which Slicewise adds to Slurm's own priority formula.

The formula, and why no job starves with it: docs/explanation/priority.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.language.job_class import JobClass

_DIGITS = 6
"""Decimal places beyond which differences are rounding errors."""
CLASS_VALUES: Mapping[JobClass, float] = {"low": 0.0, "normal": 0.5, "high": 1.0}


@dataclass(frozen=True)
class Formula:
    """A site's formula, from [priority] of its settings.

    Attributes:
        class_weight, share_weight, urgency_weight: weights of the terms, relative to one another.
        max: highest site_factor; the lowest is 0.
        wait_full_s: seconds of waiting after which a job has the maximum.
        quantum: smaller changes of a pending job's site_factor are not written.
    """

    class_weight: int
    share_weight: int
    urgency_weight: int
    max: int
    wait_full_s: float
    quantum: int


@dataclass(frozen=True)
class PriorityTerms:
    """The terms of the formula for one job.

    Attributes:
        share: how little its tenant has used lately, in 0..1; see ``share``.
        urgency: urgency of a service's backlog, in 0..1; 0 for a plain job.
        wait_s: seconds for which the job could have started.
    """

    job_class: JobClass = "normal"
    share: float = 0.0
    urgency: float = 0.0
    wait_s: float = 0.0


def site_factor(terms: PriorityTerms, formula: Formula) -> int:
    """The site_factor of a job, in 0..max: ``max × (x + (1 − x) · a)``, rounded down.

    x is the weighted mean of class, share and urgency; a is the part of ``wait_full_s`` that the
    job has waited, at most 1. So waiting closes the gap to the maximum, from wherever a job begins:
    whatever the terms of other jobs are, none is above a job that has waited ``wait_full_s``.
    """
    missing = _missing(terms, formula) * (1.0 - _waited(terms, formula))
    # The missing part is exactly 0.0 after wait_full_s; the sum of both parts might not be 1.0.
    return formula.max - math.ceil(round(formula.max * missing, _DIGITS))


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


def _missing(terms: PriorityTerms, formula: Formula) -> float:
    """1 − x; 1 if all weights are 0."""
    weights = formula.class_weight + formula.share_weight + formula.urgency_weight
    if not weights:
        return 1.0
    reached = (
        formula.class_weight * CLASS_VALUES[terms.job_class]
        + formula.share_weight * terms.share
        + formula.urgency_weight * terms.urgency
    )
    return max(0.0, weights - reached) / weights


def _waited(terms: PriorityTerms, formula: Formula) -> float:
    return min(1.0, max(0.0, terms.wait_s) / formula.wait_full_s)
