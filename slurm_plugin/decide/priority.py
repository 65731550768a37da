"""Priority: what Slicewise adds to Slurm's own formula, by way of site_factor.

The formula, and why nobody starves by it: docs/priority.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.jobs import JobClass

_DIGITS = 6
"""Below that a difference is one of rounding."""
CLASS_VALUES: Mapping[JobClass, float] = {"low": 0.0, "normal": 0.5, "high": 1.0}


@dataclass(frozen=True)
class Formula:
    """A site's choice, from [priority] of its settings.

    Attributes:
        class_weight, share_weight, urgency_weight: of the terms, against one another.
        max: site_factor is 0 to this.
        wait_full_s: a job that has waited for so long has the maximum.
        quantum: smaller changes of a pending job's site_factor are not worth writing.
    """

    class_weight: int
    share_weight: int
    urgency_weight: int
    max: int
    wait_full_s: float
    quantum: int


@dataclass(frozen=True)
class Terms:
    """What counts for one job.

    Attributes:
        share: how little its tenant has used lately, in 0..1; see ``share``.
        urgency: of a service's backlog, in 0..1; 0 for a plain job.
        wait_s: for how long it could have started.
    """

    job_class: JobClass = "normal"
    share: float = 0.0
    urgency: float = 0.0
    wait_s: float = 0.0


def site_factor(terms: Terms, formula: Formula) -> int:
    """In 0..max. With x the weighted mean of class, share and urgency, and a the part of
    ``wait_full_s`` that has been waited (1 at most): ``max × (x + (1 − x) · a)``, rounded down.

    So waiting closes the gap to the maximum, from wherever a job begins: whatever the terms of
    others are, none is above one that has waited ``wait_full_s``.
    """
    missing = _missing(terms, formula) * (1.0 - _waited(terms, formula))
    # What is missing is 0.0 exactly after wait_full_s; the sum of both parts might not be 1.0.
    return formula.max - math.ceil(round(formula.max * missing, _DIGITS))


def share(used_decayed_millislice_s: float, own_part: int, half_life_s: float) -> float:
    """1 for a tenant that has used nothing lately; 1/2 for one that has always used its own part.

    ``2 ** (−U / S)``, with U the decayed use and S what it would be if the tenant had always held
    exactly ``own_part`` millislices. 0 for a tenant without a part of its own.
    """
    if own_part <= 0:
        return 0.0
    always = own_part * half_life_s / math.log(2)
    return float(2.0 ** -(max(0.0, used_decayed_millislice_s) / always))


def _missing(terms: Terms, formula: Formula) -> float:
    """1 − x; 1 if nothing has any weight."""
    weights = formula.class_weight + formula.share_weight + formula.urgency_weight
    if not weights:
        return 1.0
    reached = (
        formula.class_weight * CLASS_VALUES[terms.job_class]
        + formula.share_weight * terms.share
        + formula.urgency_weight * terms.urgency
    )
    return max(0.0, weights - reached) / weights


def _waited(terms: Terms, formula: Formula) -> float:
    return min(1.0, max(0.0, terms.wait_s) / formula.wait_full_s)
