"""One forecaster on one trace: what its quantiles cost, and what the product costs with it."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import ceil
from time import process_time
from typing import Any

import numpy as np

from slicewise.launcher.rules.autoscale.forecasts import AFTER
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import Workload
from studies.autoscale.world import replay
from studies.forecasters.averages import ProductAverages
from studies.forecasters.errors import LearntErrors, pinball
from studies.forecasters.forecaster import NEEDED, Forecaster
from studies.forecasters.holt_winters import HoltWinters
from studies.forecasters.hybrid_histogram import HybridHistogram
from studies.forecasters.nets import RecurrentNet
from studies.forecasters.recurrent import GruCell, LstmCell
from studies.forecasters.seasonal import SeasonalQuantile
from studies.forecasters.series import STEP_S, LoadSeries, counted_part
from studies.forecasters.simple import HeldPeak, LastValue, ToldFuture
from studies.forecasters.swapped import SwappedForecast
from studies.forecasters.verdict import PRODUCT

FORECASTERS: Mapping[str, Callable[[], Forecaster]] = {
    "last_value": LastValue,
    "peak_hold": HeldPeak,
    PRODUCT: ProductAverages,
    "holt_winters": HoltWinters,
    "seasonal_quantile": SeasonalQuantile,
    "hybrid_histogram": HybridHistogram,
    "gru": lambda: RecurrentNet(GruCell()),
    "lstm": lambda: RecurrentNet(LstmCell()),
}
"""Forecasters, the simplest first: by what they must remember, and then by what must be trained."""


@dataclass(frozen=True)
class ForecastQuality:
    """What a forecaster's quantiles cost in the part of a trace that counts.

    Attributes:
        learnt: mean pinball loss of its middle with errors learnt, in shares of the mean peak.
        own: the same of what it says itself; None if it says none.
        exceeded: share of the peaks that were above the learnt quantile.
    """

    learnt: float
    own: float | None
    exceeded: float


def quality(series: LoadSeries, forecaster: Forecaster, share: float = NEEDED) -> ForecastQuality:
    """Forecast each ``STEP_S`` seconds, as if no request ever had to wait, and compare."""
    peaks, last = series.peaks, int(series.load.size - AFTER * series.horizon_s)
    after_s, errors = STEP_S * ceil(AFTER * series.horizon_s / STEP_S), LearntErrors()
    middles: dict[int, float] = {}
    found: list[tuple[float, float, float]] = []
    for at_s in range(series.begin_s, last):
        load, arrived = int(series.load[at_s]), int(series.arrived[at_s])
        made = forecaster.look(at_s, load, arrived)
        if at_s % STEP_S:
            continue
        if (due_s := at_s - after_s) in middles:
            errors.learn(middles.pop(due_s), float(peaks[due_s]))
        middles[at_s] = made.middle
        if at_s >= series.split_s:
            high = np.nan if made.high is None else made.high
            found.append((float(peaks[at_s]), errors.quantile(made.middle, share), high))
    came, learnt, own = np.array(found).T
    return ForecastQuality(
        pinball(learnt, came, share) / float(came.mean()),
        None if np.isnan(own).any() else pinball(own, came, share) / float(came.mean()),
        float((came > learnt).mean()),
    )


def fitted(name: str, series: LoadSeries, rng: np.random.Generator) -> tuple[Forecaster, float]:
    """Return a forecaster that has learnt from the first part, and the CPU seconds it took."""
    controls: Mapping[str, Callable[[], Forecaster]] = {
        "told": lambda: ToldFuture(series.peaks),
        "product_again": ProductAverages,
    }
    forecaster = (FORECASTERS.get(name) or controls[name])()
    began_s = process_time()
    forecaster.fit(series.trained, rng)
    return forecaster, process_time() - began_s


def effect(
    name: str, workload: Workload, series: LoadSeries, forecaster: Forecaster, aim: float
) -> Mapping[str, Any]:
    """Replay the product's decision with a copy of the forecaster, or with its own forecast."""
    part = counted_part(workload, series)
    policy = (
        Slicewise(part.concurrency, aim)
        if name == PRODUCT
        else SwappedForecast(part.concurrency, aim, deepcopy(forecaster), series.begin_s)
    )
    outcome = replay(part, policy, lambda: policy.in_time)
    return {
        "target": aim,
        "attainment": round(outcome.attainment, 6),
        "slice_hours": round(outcome.slice_s / 3600, 4),
        "changes": outcome.changes,
    }
