"""Policies that nobody trains: the order of arrival, areas, published rules, and Slicewise's."""

from dataclasses import replace

import numpy as np

from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority import (
    Formula,
    PriorityTerms,
    full_wait_s,
    site_factor,
    smallness,
)
from studies.autoscale.workload import Floats
from studies.headline.systems import GPU_MILLISLICES, SETTINGS
from studies.priorities.queues import Queue

_FORMULA = formula_of(SETTINGS.priority)
_DAY_S = 86_400.0


def fifo(queue: Queue) -> Floats:
    """First come, first served."""
    return -queue.came_s


def area(queue: Queue) -> Floats:
    """GPU-seconds that each job asked for."""
    found: Floats = queue.gpus * queue.limit_s
    return found


def saf(queue: Queue) -> Floats:
    """Smallest area first."""
    return -area(queue)


def saf_bounded(queue: Queue) -> Floats:
    """First who has waited as long as Slicewise's formula lets him; before that, smallest area."""
    bounds_s = np.array([full_wait_s(limit_s, _FORMULA) for limit_s in queue.limit_s.tolist()])
    return np.where(queue.waited_s >= bounds_s, 0.0, saf(queue))


def wfp3(queue: Queue) -> Floats:
    """Tang et al. (Cluster 2009): (wait ÷ requested time)³ × GPUs."""
    found: Floats = (queue.waited_s / queue.limit_s) ** 3 * queue.gpus
    return found


def f1(queue: Queue) -> Floats:
    """Carastan-Santos and de Camargo's F1 (SC 2017): log₁₀(time) · size + 870 · log₁₀(arrival)."""
    arrived = np.log10(np.maximum(1.0, queue.came_s))
    found: Floats = -(np.log10(queue.limit_s) * queue.gpus + 870.0 * arrived)
    return found


def slicewise(queue: Queue) -> Floats:
    """Slicewise's formula with its default settings, for jobs of class normal."""
    return _formula(queue, _FORMULA)


def slicewise_24h(queue: Queue) -> Floats:
    """The same with one bound for all, a day, as it was until 2026-11-29."""
    return _formula(queue, replace(_FORMULA, wait_full_s=_DAY_S, wait_full_limits=0.0))


def slicewise_72h(queue: Queue) -> Floats:
    """The same with one bound for all, three days."""
    return _formula(queue, replace(_FORMULA, wait_full_s=3 * _DAY_S, wait_full_limits=0.0))


def slicewise_sizeless(queue: Queue) -> Floats:
    """The same without its term for what a job asks for."""
    return _formula(queue, replace(_FORMULA, smallness_weight=0))


def _formula(queue: Queue, formula: Formula) -> Floats:
    asked = zip(queue.gpus.tolist(), queue.limit_s.tolist(), strict=True)
    small = (smallness(round(gpus * GPU_MILLISLICES), limit_s) for gpus, limit_s in asked)
    found = zip(
        *(queue.share.tolist(), small, queue.waited_s.tolist(), queue.limit_s.tolist()), strict=True
    )
    terms = (PriorityTerms(share=a, smallness=b, wait_s=c, time_limit_s=d) for a, b, c, d in found)
    return np.array([float(site_factor(one, formula)) for one in terms])
