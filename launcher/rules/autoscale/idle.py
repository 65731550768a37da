"""How long a service is without any request, and whether its last replicas are worth keeping."""

from dataclasses import dataclass, replace
from math import inf, log
from typing import Annotated

from slicewise.launcher.rules.autoscale.histogram import added, of_length

EDGES_S = tuple(float(2**step) for step in range(17))
"""Edges of bins from a second to 18 hours, each twice the one before."""
PauseWeights = Annotated[tuple[float, ...], of_length(len(EDGES_S) + 1)]
_KEEP = 0.98
_ASSUMED: PauseWeights = (0.5,) * (len(EDGES_S) + 1)
"""Assumed before anything is known: all orders of magnitude are alike, so the longer the service
was idle the longer it will be."""


@dataclass(frozen=True)
class Pauses:
    """The distribution of pauses without any request.

    Attributes:
        since_s: when the current pause began, in Unix seconds; None if the service is not idle.
        pauses: weights of bins of pauses.
    """

    since_s: float | None = None
    pauses: PauseWeights = _ASSUMED

    def age_s(self, at_s: float) -> float:
        """Seconds for which the service has been idle; 0 if it is not."""
        return 0.0 if self.since_s is None else at_s - self.since_s


def learn_pause(known: Pauses, total: int, at_s: float) -> Pauses:
    """Learn from a look that saw ``total`` requests."""
    if not total:
        return known if known.since_s is not None else replace(known, since_s=at_s)
    if known.since_s is None:
        return known
    return Pauses(None, added(known.pauses, EDGES_S, at_s - known.since_s, _KEEP))


def is_worth_keeping(known: Pauses, at_s: float, start_costs_s: float) -> bool:
    """Whether to wait some time more for the next request costs less than to start again for it.

    For any time to wait, the chance that a request comes within it, times what a start costs, is
    compared with the slice-seconds until then. ``start_costs_s`` includes the harm to requests that
    wait for the start.
    """
    return start_costs_s > price_of_waiting(known.pauses, known.age_s(at_s))


def price_of_waiting(pauses: tuple[float, ...], age_s: float) -> float:
    """Return what the end of a pause of ``age_s`` must save, so that waiting for it pays.

    In slice-seconds; ``pauses`` are the weights of bins of earlier pauses, see
    ``is_worth_keeping``.
    """
    left = _left(pauses, age_s)
    total = sum(weight for weight, _, _ in left)
    least = inf
    if not total:
        # After tens of thousands of shorter pauses nothing is left of what was assumed.
        return least
    comes = idle_s = 0.0
    for weight, low_s, high_s in left:
        chance = weight / total
        idle_s += (1 - comes - chance / 2) * (high_s - low_s)
        comes += chance
        if comes:
            least = min(least, idle_s / comes)
    return least


def _left(pauses: tuple[float, ...], age_s: float) -> list[tuple[float, float, float]]:
    """Return the bins of longer pauses as weight, begin and end.

    The bin of the current pause counts with the part that is left of it.
    """
    found: list[tuple[float, float, float]] = []
    for weight, high_s in zip(pauses, (*EDGES_S, 2 * EDGES_S[-1]), strict=True):
        low_s = high_s / 2
        if high_s > age_s:
            begun_s = max(low_s, age_s)
            share = log(high_s / begun_s) / log(2)
            found.append((weight * share, begun_s, high_s))
    return found or [(1.0, age_s, 2 * age_s)]
