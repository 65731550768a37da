"""Sums up the contests: each forecaster beside the product's own, and which one to take."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from studies.autoscale.curves import slice_hours_at

ATTAINMENTS = (0.95, 0.99)
_WITHIN = 1.02
PRODUCT = "product"
CONTROLS = "told", "product_again"
"""No candidates: one that is told what will come, and the product's own forecast put in its own
place, whose difference from the product is noise."""

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Standing:
    """How one forecaster stands beside the product's.

    Attributes:
        pinball: mean loss with learnt errors by trace, in shares of the mean peak.
        own_pinball: the same of what it says itself; None if it says nothing of that.
        pinball_ratio: mean over traces of the loss beside the product's.
        hours: slice-hours beside the product's by trace, where both attain as much; None: nowhere.
        all_hours: mean of those.
        by_seed: the same for each seed.
        missed, asked: attainments that it reached with no aim, of those that the product reached.
        trained_min: CPU minutes of training, all traces and seeds together.
    """

    forecaster: str
    pinball: Mapping[str, float]
    own_pinball: Mapping[str, float | None]
    pinball_ratio: float
    hours: Mapping[str, float | None]
    all_hours: float | None
    by_seed: Sequence[float]
    missed: int
    asked: int
    trained_min: float


@dataclass(frozen=True)
class _Ratio:
    trace: str
    seed: int
    ratio: float | None


def standings(results: Sequence[Result]) -> list[Standing]:
    """Return how all forecasters stand, the one with the fewest slice-hours first."""
    names = {result["forecaster"] for result in results}
    found = [_standing(name, results) for name in names]
    return sorted(found, key=lambda one: (one.missed > 0, one.all_hours or 0.0, one.forecaster))


def _standing(name: str, results: Sequence[Result]) -> Standing:
    mine = [result for result in results if result["forecaster"] == name]
    products = {
        (result["trace"], result["seed"]): result
        for result in results
        if result["forecaster"] == PRODUCT
    }
    ratios = [
        _Ratio(one["trace"], one["seed"], ratio)
        for one in mine
        for ratio in _ratios(one, products[one["trace"], one["seed"]])
    ]
    traces = sorted({one["trace"] for one in mine})
    losses = {
        trace: fmean(one["pinball"]["learnt"] for one in mine if one["trace"] == trace)
        for trace in traces
    }
    by_seed = (
        _mean(one.ratio for one in ratios if one.seed == seed)
        for seed in sorted({one["seed"] for one in mine})
    )
    hours = {trace: _mean(one.ratio for one in ratios if one.trace == trace) for trace in traces}
    return Standing(
        forecaster=name,
        pinball=losses,
        own_pinball={
            trace: _mean(one["pinball"]["own"] for one in mine if one["trace"] == trace)
            for trace in traces
        },
        pinball_ratio=fmean(
            one["pinball"]["learnt"] / products[one["trace"], one["seed"]]["pinball"]["learnt"]
            for one in mine
        ),
        hours=hours,
        all_hours=_mean(hours.values()),
        by_seed=[mean for mean in by_seed if mean is not None],
        missed=sum(one.ratio is None for one in ratios),
        asked=len(ratios),
        trained_min=sum(one["trained_s"] for one in mine) / 60,
    )


def _ratios(mine: Result, product: Result) -> Iterable[float | None]:
    """Slice-hours beside the product's at each attainment that it reaches; None if not reached."""
    for attainment in ATTAINMENTS:
        beside = slice_hours_at(product["points"], attainment)
        if beside is not None:
            hours = slice_hours_at(mine["points"], attainment)
            yield None if hours is None else hours / beside


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def chosen(found: Sequence[Standing], simplest_first: Sequence[str]) -> str:
    """Return the simplest forecaster within 2 % of the fewest slice-hours.

    One that misses an attainment which the product reaches is none, nor is a control.
    """
    hours = {
        one.forecaster: one.all_hours
        for one in found
        if one.all_hours is not None and not one.missed and one.forecaster not in CONTROLS
    }
    best = min(hours.values())
    return next(name for name in simplest_first if hours.get(name, 2 * best) <= _WITHIN * best)
