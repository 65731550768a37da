"""Forecasts how many requests there are at the same time when a start ends, and learns its errors.

Numbers are compared by twice the difference of their square roots. Where requests come at random,
that has a deviation of 1 at any rate (Anscombe, 1948), so one distribution of surprises serves a
service that gets a request a minute and one that gets a thousand a second. What is not random
(bursts, drift, long requests) makes the distribution wider, and is learnt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, exp, floor, sqrt
from operator import add
from typing import Annotated

from slicewise.launcher.rules.autoscale.arrivals import AVERAGED_S
from slicewise.launcher.rules.autoscale.histogram import added, of_length

_STEPS = 8
"""Number of steps in a start's delay; each begins a forecast."""
AFTER = 1.25
"""Until this multiple of a start's delay a start that is ordered now must carry the load; later
starts carry what follows."""
_COMPARED_S = 600.0
_SURPRISE_S = 3600.0
_WAKES_KEEP = 0.97
"""Share of the old weights that stays with each time that a request wakes the service: the last 30
or so count, however long ago they were."""
_EDGES = (-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 13, 17)
_LOWS = (_EDGES[0] - 1, *_EDGES)
_BODY = (0.4, 2.8, 3.0, 3.8, 3.8, 3.0, 1.8, 0.8, 0.4)
_TAIL = (0.12, 0.06, 0.02, 0.01, 0.004, 0.002, 0.001, 0.0004, 0.0002)
"""Assumed weights of surprises, added to those seen: nearly at random, with a heavier upper tail,
from which bursts come."""
_Weights = Annotated[tuple[float, ...], of_length(len(_LOWS))]
_NOTHING: _Weights = (0.0,) * len(_LOWS)
QUIET = 1.0
"""Requests in parallel below which a forecast counts as one of a quiet service."""
_CALM = 0.375
"""Added under the square root; makes the deviation 1 at small numbers, too."""


@dataclass(frozen=True)
class SeenLoad:
    """How many requests there are at a look.

    Attributes:
        present: in flight or waiting.
        unqueued: how many of them would be there if none had had to wait.
    """

    present: int
    unqueued: int

    def most(self, other: "SeenLoad") -> "SeenLoad":
        """Return the larger of each number."""
        return SeenLoad(max(self.present, other.present), max(self.unqueued, other.unqueued))


@dataclass(frozen=True)
class ForecastStep:
    """An eighth of a start's delay: the forecasts made at its beginning, and its most requests.

    Attributes:
        wakes: whether it began with the request that woke the service from rest.
    """

    at_s: float
    forecasts: Annotated[tuple[float, ...], of_length(len(AVERAGED_S))]
    most: SeenLoad
    wakes: bool = False


@dataclass(frozen=True)
class Surprises:
    """Weights of how far the requests in parallel were from a forecast; old ones fade away.

    Attributes:
        within: of the peak until a start would have ended.
        after: of the peak when it would have ended.
    """

    within: _Weights = _NOTHING
    after: _Weights = _NOTHING

    def added(self, within: float, after: float, keep: float) -> "Surprises":
        """Add one of each; ``keep`` is the share of the previous weights that stays."""
        return Surprises(
            added(self.within, _EDGES, within, keep), added(self.after, _EDGES, after, keep)
        )


@dataclass(frozen=True)
class Errors:
    """How far one average's forecasts were off.

    Attributes:
        weight, total, squares: number, sum and sum of squares of its surprises; old ones fade away.
        busy: surprises where at least one request was expected.
        quiet: surprises where less was expected. What a busy service's load does says little of
            what follows one request to a service at rest. Requests that waited are not counted
            here: they wait because the service was at rest, not because so many come.
        waking: surprises like the quiet ones, but of the moment only in which a request woke the
            service from rest: one for each time. What quiet moments at other times were followed by
            says little of it.
    """

    weight: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    busy: Surprises = Surprises()
    quiet: Surprises = Surprises()
    waking: Surprises = Surprises()

    def of(self, forecast: float, *, wakes: bool) -> Surprises:
        """Return the surprises that apply to a forecast; ``wakes`` is soon after a rest."""
        if forecast >= QUIET:
            return self.busy
        return self.waking if wakes else self.quiet

    @property
    def spread(self) -> float:
        """Scatter of the surprises around their mean; the mean itself is in the distributions."""
        return self.squares - self.total * self.total / self.weight if self.weight else 0.0


_OfEach = Annotated[tuple[Errors, ...], of_length(len(AVERAGED_S))]


@dataclass(frozen=True)
class Forecasts:
    """Forecasts under way (``under_way``), and the errors of those before, by average."""

    under_way: tuple[ForecastStep, ...] = ()
    errors: _OfEach = (Errors(),) * len(AVERAGED_S)

    @property
    def best(self) -> int:
        """Index of the average with the least scatter of its errors."""
        spreads = [errors.spread for errors in self.errors]
        return spreads.index(min(spreads))


def expected(load: int, rate: float, horizon_s: float, service_s: float) -> float:
    """Return the requests expected after ``horizon_s``: those left of ``load``, and new ones."""
    left = exp(-horizon_s / service_s)
    return load * left + rate * service_s * (1 - left)


def learn_forecasts(
    known: Forecasts,
    load: SeenLoad,
    at_s: float,
    horizon_s: float,
    forecasts: tuple[float, ...] | None,
    *,
    wakes: bool = False,
) -> Forecasts:
    """Learn from a look: ``load`` is how many requests there are, ``forecasts`` what comes next.

    ``forecasts`` is None if too little is known to forecast anything. ``wakes`` says that the look
    is the first one with a request after a rest. What is judged now does not depend on ``load``.
    """
    while known.under_way and at_s - known.under_way[0].at_s >= AFTER * horizon_s:
        known = _judged(known, at_s, horizon_s)
    steps = known.under_way
    if steps and not wakes and at_s - steps[-1].at_s < horizon_s / _STEPS:
        newest = replace(steps[-1], most=steps[-1].most.most(load))
        return replace(known, under_way=(*steps[:-1], newest))
    if forecasts is None:
        return known
    return replace(known, under_way=(*steps, ForecastStep(at_s, forecasts, load, wakes)))


_SEEN_NOTHING = SeenLoad(0, 0)
_NEARLY = 1e-6


def expects_nothing(known: Forecasts) -> bool:
    """Whether all forecasts under way are 0, and no request has come since."""
    return all(not any(s.forecasts) and s.most == _SEEN_NOTHING for s in known.under_way)


def learn_rest(
    known: Forecasts, at_s: float, look_s: float, forecast_s: float, horizon_s: float
) -> Forecasts:
    """Learn from looks every ``look_s`` that saw nothing, as was expected, until ``at_s``.

    It is what ``learn_forecasts`` learns from one after the other; forecasts were made in the last
    ``forecast_s`` seconds of that time.
    """
    step_s = horizon_s / _STEPS
    apart_s = look_s * ceil(step_s / look_s - _NEARLY)
    steps = known.under_way
    first_s = at_s - look_s * floor(forecast_s / look_s + _NEARLY)
    first_s = steps[-1].at_s + apart_s if steps else first_s
    more = floor((at_s - first_s) / apart_s + _NEARLY) + 1 if at_s >= first_s else 0
    nothing = (0.0,) * len(AVERAGED_S)
    steps = (
        *steps,
        *(ForecastStep(first_s + n * apart_s, nothing, _SEEN_NOTHING) for n in range(more)),
    )
    left = tuple(step for step in steps if at_s - step.at_s < AFTER * horizon_s)
    judged = len(steps) - len(left)
    return Forecasts(left, tuple(_with_rest(error, judged, step_s) for error in known.errors))


def _with_rest(known: Errors, judged: int, step_s: float) -> Errors:
    fade, keep = exp(-step_s / _COMPARED_S), exp(-step_s / _SURPRISE_S)
    faded, kept = fade**judged, keep**judged
    none = added(_NOTHING, _EDGES, 0.0, 1.0)
    often = (1 - kept) / (1 - keep)

    def quiet(weights: Sequence[float]) -> tuple[float, ...]:
        return tuple(w * kept + often * n for w, n in zip(weights, none, strict=True))

    return Errors(
        known.weight * faded + (1 - faded) / (1 - fade),
        known.total * faded,
        known.squares * faded,
        known.busy,
        Surprises(quiet(known.quiet.within), quiet(known.quiet.after)),
        known.waking,
    )


def _judged(known: Forecasts, at_s: float, horizon_s: float) -> Forecasts:
    """Judge the oldest forecast, which is due; after a pause in looking, drop all of them."""
    oldest, *later = known.under_way
    if at_s - oldest.at_s > 2 * AFTER * horizon_s:
        return replace(known, under_way=())
    until_s = oldest.at_s + horizon_s
    within = _most(step.most for step in known.under_way if step.at_s < until_s)
    ended = [step.most for step in later if step.at_s >= until_s]
    after = _most(ended) if ended else within
    judged = zip(known.errors, oldest.forecasts, strict=True)
    peaks = (within, after)
    errors = tuple(_with(e, f, peaks, horizon_s / _STEPS, wakes=oldest.wakes) for e, f in judged)
    return Forecasts(tuple(later), errors)


def _most(loads: Iterable[SeenLoad]) -> SeenLoad:
    return reduce(SeenLoad.most, loads)


def _with(
    known: Errors, forecast: float, peaks: tuple[SeenLoad, SeenLoad], step_s: float, *, wakes: bool
) -> Errors:
    """Add how far a forecast was from the peaks within a start's delay and after it."""
    fade, keep = exp(-step_s / _COMPARED_S), exp(-step_s / _SURPRISE_S)
    is_quiet = forecast < QUIET
    within, after = (
        _surprise(forecast, most.unqueued if is_quiet else most.present) for most in peaks
    )
    found = replace(
        known,
        weight=known.weight * fade + 1,
        total=known.total * fade + after,
        squares=known.squares * fade + after * after,
    )
    if not is_quiet:
        return replace(found, busy=known.busy.added(within, after, keep))
    if wakes:
        return replace(found, waking=known.waking.added(within, after, _WAKES_KEEP))
    return replace(found, quiet=known.quiet.added(within, after, keep))


def _surprise(forecast: float, came: int) -> float:
    return 2 * (sqrt(came + _CALM) - sqrt(forecast + _CALM))


def at_once(
    surprises: Sequence[float], bursts: float, forecast: float, worth_per_s: float
) -> float:
    """Return the number of requests at the same time up to which a replica still pays.

    By the newsvendor's rule: in the cases with more requests, those that come meanwhile and would
    be late cost just as much as one replica. ``bursts`` is the part of the assumed bursts that
    counts: a burst lasts for about a request's time. ``worth_per_s`` is how many replicas it is
    worth to have one request more in time, each second.
    """
    always = [*_BODY, *(bursts * weight for weight in _TAIL)]
    weights = [*map(add, surprises, always)]
    calm, share = sqrt(forecast + _CALM), worth_per_s / sum(weights)
    costs = 0.0
    for low, weight in zip(reversed(_LOWS), reversed(weights), strict=True):
        case = max(0.0, max(0.0, calm + low / 2 + 0.125) ** 2 - _CALM)
        costs += weight * share * case
        if costs >= 1:
            return case
    return 0.0
