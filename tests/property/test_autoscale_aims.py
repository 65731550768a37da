"""A property of the autoscaler in a closed loop: a higher aim attains no less, costs no less."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from effort import examples
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from stand_ins.scaled_service import Life, lived_through

from slicewise.launcher.rules.autoscale.types import Scaling

SPAN_S = 3600
NOISE, COST_NOISE = 0.02, 0.05


@dataclass(frozen=True)
class Bursts:
    """A load: bursts of so many requests, each so many seconds after the one before."""

    seed: int
    gap_s: float
    lasts_s: float
    rate: float
    spread: float
    service_s: float

    def arrivals_s(self) -> Sequence[float]:
        """Draw when requests come."""
        rng = Random(self.seed)  # noqa: S311 -- a load, no secrets
        at_s, found = 0.0, list[float]()
        while at_s < SPAN_S:
            lasts_s, rate = (self._drawn(rng, one) for one in (self.lasts_s, self.rate))
            for _ in range(min(400, round(lasts_s * rate))):
                insort(found, at_s + rng.uniform(0, lasts_s))
            at_s += lasts_s + self._drawn(rng, self.gap_s)
        return found[: bisect_right(found, SPAN_S)]

    def _drawn(self, rng: Random, median: float) -> float:
        return median * rng.lognormvariate(0, self.spread)


LOADS = st.builds(
    Bursts,
    seed=st.integers(0, 10_000),
    gap_s=st.floats(1, 200),
    lasts_s=st.floats(2, 60),
    rate=st.floats(0.5, 6),
    spread=st.floats(0, 0.8),
    service_s=st.floats(0.3, 4),
)


@pytest.mark.slow
@settings(max_examples=examples(10, nightly=200), phases=(Phase.explicit, Phase.generate))
@example(Bursts(6915, 14.7, 44.2, 0.8, 0.23, 3.7), (0.95, 0.99))
@given(LOADS, st.sampled_from([(0.9, 0.95), (0.9, 0.99), (0.95, 0.99), (0.99, 0.999)]))
def test_a_higher_aim_attains_no_less_and_costs_no_less(load: Bursts, aims: tuple[float, float]):
    """But for what is noise: a burst more or less that a replica's end or start has met."""

    def life(aim: float) -> Life:
        scaling = Scaling(0, 40, 1, max_queue_s=2.0, aim=aim)
        return lived_through(scaling, load.arrivals_s(), load.service_s, SPAN_S)

    modest, ambitious = map(life, aims)
    assert ambitious.share >= modest.share - NOISE
    assert ambitious.slice_s >= modest.slice_s * (1 - COST_NOISE)
