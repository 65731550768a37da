"""Policies that nobody trains: the order of arrival, areas, published rules, and Slicewise's."""

import numpy as np

from benchmarks.autoscale.workload import Floats
from benchmarks.headline.systems import SETTINGS
from benchmarks.priorities.queues import Queue
from slurm_plugin.admission.priority import PriorityTerms, site_factor
from slurm_plugin.state.formula import formula_of

_FORMULA = formula_of(SETTINGS.priority)
_HOUR_S, _DAY_S = 3600.0, 86_400.0
_AREA_WEIGHT = 5.0
"""Weight of the term for areas that is tried in Slicewise's formula: as much as share's."""
_CLASS = 0.5
"""The class term of a job of class normal."""


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
    pairs = zip(queue.share.tolist(), queue.waited_s.tolist(), strict=True)
    terms = (PriorityTerms(share=share, wait_s=wait_s) for share, wait_s in pairs)
    return np.array([float(site_factor(one, _FORMULA)) for one in terms])


def slicewise_area(queue: Queue) -> Floats:
    """The same formula with a fourth term: 1 for one GPU-hour or less, 0 for the pool for a day.

    So its bound stays: who has waited its full time goes before all newer jobs.
    """
    largest = np.log(queue.pool_gpus * _DAY_S / _HOUR_S)
    small = 1.0 - np.clip(np.log(area(queue) / _HOUR_S) / largest, 0.0, 1.0)
    weights = _FORMULA.class_weight + _FORMULA.share_weight + _FORMULA.urgency_weight
    reached = _FORMULA.class_weight * _CLASS + _FORMULA.share_weight * queue.share
    begin = (reached + _AREA_WEIGHT * small) / (weights + _AREA_WEIGHT)
    waited = np.minimum(1.0, queue.waited_s / _FORMULA.wait_full_s)
    # Exactly 1 once the time is full.
    found: Floats = 1.0 - (1.0 - begin) * (1.0 - waited)
    return found
