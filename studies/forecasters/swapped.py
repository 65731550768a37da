"""The launcher's decision with another forecast in place of its own."""

from dataclasses import replace
from math import exp

from slicewise.launcher.rules.autoscale.arrivals import AVERAGED_S
from slicewise.launcher.rules.autoscale.policy import Memory, horizon_of
from slicewise.launcher.rules.autoscale.service_time import learn_work
from slicewise.launcher.rules.autoscale.start_delay import learn_starts
from studies.autoscale.policy import Seen
from studies.autoscale.slicewise import Slicewise
from studies.forecasters.forecaster import Forecaster

_CERTAIN_S = 1e9
"""Seconds of arrivals that stand for a rate that is told: what comes meanwhile changes nothing."""


class SwappedForecast(Slicewise):
    """The launcher's decision, whose three forecasts are all the one of another forecaster.

    All else is the product's: how far forecasts were off is learnt of this one, and the price of a
    late request, the backlog, holds and pauses stay.
    """

    def __init__(
        self, concurrency: int, target: float, forecaster: Forecaster, begin_s: int
    ) -> None:
        super().__init__(concurrency, target)
        self._forecaster, self._begin_s, self._arrived = forecaster, begin_s, 0

    def wanted(self, seen: Seen) -> int:
        """Decide with the forecaster's middle."""
        at_s, came = self._begin_s + int(seen.at_s), seen.arrived - self._arrived
        self._arrived = seen.arrived
        middle = self._forecaster.look(at_s, seen.load, came).middle
        if self._memory is not None:
            self._memory = told(self._memory, seen, middle)
        return super().wanted(seen)


def told(memory: Memory, seen: Seen, middle: float) -> Memory:
    """Return the memory with such rates that the next look makes the launcher expect ``middle``.

    Its forecast is what is left of the load and what a rate brings; so the rate follows.
    """
    before = memory.seen
    if before is None:
        return memory
    busy_s = (seen.at_s - before.at_s) * (before.in_flight + seen.in_flight) / 2
    service_s = learn_work(memory.work, busy_s, seen.answered - before.answered).service_s
    delays = learn_starts(memory.delays, tuple(seen.started))
    left = exp(-horizon_of(delays) / service_s)
    rate = (middle - seen.load * left) / (service_s * (1 - left))
    averages, known = len(AVERAGED_S), memory.arrivals
    counts = (*(rate * _CERTAIN_S,) * averages, *known.counts[averages:])
    spans = (*(_CERTAIN_S,) * averages, *known.spans[averages:])
    return replace(memory, arrivals=replace(known, counts=counts, spans=spans))
