"""What the autoscaler has learnt of a service after a time in which it was at rest.

While a service has neither requests nor replicas and expects none, each look teaches the same. So
it need not be taught at each.
"""

from dataclasses import replace
from math import exp

from slicewise.launcher.rules.autoscale.arrivals import learn_silence
from slicewise.launcher.rules.autoscale.attainment import rested_attainment
from slicewise.launcher.rules.autoscale.forecasts import expects_nothing, learn_rest
from slicewise.launcher.rules.autoscale.policy import Memory, horizon_of, seen_enough_s


def is_at_rest(memory: Memory) -> bool:
    """Whether all further looks without a request and a replica teach the same."""
    return (
        memory.seen is not None
        and not memory.seen.in_flight
        and not any(peak.replicas for peak in memory.peaks)
        and not any(memory.arrivals.rates)
        and memory.attained.factor == memory.attained.goal
        and expects_nothing(memory.forecasts)
    )


def rested(memory: Memory, at_s: float, looks: int) -> Memory:
    """Return what is remembered after so many more looks at rest, the last of them at ``at_s``."""
    if memory.seen is None or looks < 1 or at_s <= memory.seen.at_s:
        return memory
    rested_s = at_s - memory.seen.at_s
    arrivals = learn_silence(memory.arrivals, looks, rested_s / looks)
    horizon_s = horizon_of(memory.delays)
    look_s = rested_s / looks
    forecast_s = min(rested_s - look_s, arrivals.seen_s - seen_enough_s(horizon_s))
    return replace(
        memory,
        seen=replace(memory.seen, at_s=at_s),
        arrivals=arrivals,
        forecasts=learn_rest(memory.forecasts, at_s, look_s, forecast_s, horizon_s),
        unqueued=memory.unqueued * exp(-rested_s / memory.service_s),
        rests=True,
        attained=rested_attainment(memory.attained, rested_s),
    )
