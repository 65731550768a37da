"""Learns how many requests a replica may work on together so that the objectives are kept.

A batching engine answers more requests a second when it has more of them, and each takes longer.
Samples say how long requests, and each of their tokens, took while a replica worked on so many. The
curves through them have two uses: the gateway gives each replica ``limit`` requests, and the
autoscaler plans with as many as they expect to keep the objectives.

It relies on one thing only: with more requests at a time an engine does not answer fewer of them a
second. Then time grows at most in proportion to the requests, which bounds what is tried next. Why
so, and what else was tried: docs/decisions/0031-learnt-concurrency.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import ceil, floor, inf, log2
from operator import attrgetter

from slicewise.launcher.rules.autoscale.curve import Points, Prior

MOST = 1024
"""Requests that one replica gets together at most."""
FIRST = 2
"""Requests that a replica gets together before anything was learnt: with one at a time, nothing
could be learnt."""
_ENOUGH_ANSWERS, _ENOUGH_ROUNDS, _ENOUGH_LOOKS = 20.0, 4.0, 3
"""Answers, rounds and looks that make a sample. In a round each request at a replica gets its
answer: those of a batch take the same time, so they say no more than one."""
_LONG_S, _LONG_ANSWERS, _LONG_ROUNDS = 10.0, 4.0, 2.0
"""Seconds after which fewer answers and rounds make one."""
_ENOUGH_TOKENS = 20.0
"""Tokens of each request that make one, where servers tell how long they take."""
_FADE_ANSWERS, _FADE_ROUNDS = 300.0, 20.0
"""Answers or, if that is longer, rounds that count at one step of the curve, the newest most."""
_STEPS_A_DOUBLING = 2
_ALONE = -2
"""The first step: half a request at a replica, or less."""
_APART = 2 ** (1 / _STEPS_A_DOUBLING)
"""How far apart two steps are."""
_NOISE = 0.1
"""Relative error of a sample below which it is taken to agree with another one."""
_MIXED = 0.6
"""The same of a sample while no request waits, by which others may take less: a request that comes
while a batch is worked on waits for it to end."""
_WORTH = 0.95
"""Share of the highest throughput with which fewer requests at a time are as good."""
_TRIED = 4
"""Times as many requests that must have been seen to be no better. Two may be no better than one:
while one is worked on, the other waits alone for the next batch."""
_GROWTH, _CAREFUL_GROWTH = 2.0, 1.5
"""Largest steps beyond what was seen: where time can't exceed the bound, and where it is not
expected to."""
_KINK = 2.0
"""How much steeper the curve is assumed to be beyond what was seen: a batch may be full there."""
_USUAL_BATCH = 8.0
"""Requests that are expected to take twice as long as hardly any, before two numbers of them were
seen."""
_EXPECTED_GROWTH = 2.0
"""Times as many as were seen that are expected to be kept at most."""
_LEAST_TIMES = 2.0
"""Times as long as alone that tokens may always take, however late first tokens are."""
_AGAIN = 100.0
"""Times the answers of a sample, for each replica, after which what was too slow, or not worth it,
is tried again: a hundredth of all answers are given meanwhile."""


_LEAST_BUSY_S = 1e-9
"""Less than a clock can tell: figures of so little would divide by zero."""


@dataclass(frozen=True)
class Timed:
    """How long each of some things took: seconds added up, and their number."""

    total_s: float = 0.0
    count: float = 0.0

    @property
    def mean_s(self) -> float | None:
        """The mean; None of nothing."""
        return self.total_s / self.count if self.count and self.total_s > _LEAST_BUSY_S else None

    def __add__(self, more: "Timed") -> "Timed":
        """Add others."""
        return Timed(self.total_s + more.total_s, self.count + more.count)

    def faded(self, keep: float) -> "Timed":
        """Return a share of it."""
        return Timed(keep * self.total_s, keep * self.count)


@dataclass(frozen=True)
class Level:
    """What was seen while each replica worked on about so many requests; old parts fade away.

    Attributes:
        busy_s: seconds that requests spent in replicas, added up.
        replica_s: seconds of replicas, added up.
        answers: requests answered meanwhile.
        replicas: how many replicas that was, at most.
        token: tokens after the first ones of requests.
    """

    busy_s: float = 0.0
    replica_s: float = 0.0
    answers: float = 0.0
    replicas: int = 0
    token: Timed = Timed()

    @property
    def in_flight(self) -> float:
        """Mean number of requests at a replica."""
        return self.busy_s / self.replica_s

    @property
    def service_s(self) -> float:
        """Mean seconds that a request takes."""
        return self.busy_s / self.answers

    @property
    def rounds(self) -> float:
        """Answers for each place that was in use."""
        return self.answers / self.places

    @property
    def places(self) -> float:
        """Places of all replicas that were in use, one in each at least."""
        return max(1.0, self.in_flight) * max(1, self.replicas)

    @property
    def is_known(self) -> bool:
        """Whether it says anything."""
        return self.answers > 0 and self.busy_s > _LEAST_BUSY_S and self.replica_s > 0

    def __add__(self, more: "Level") -> "Level":
        """Add what was seen beside it."""
        return Level(
            self.busy_s + more.busy_s,
            self.replica_s + more.replica_s,
            self.answers + more.answers,
            max(self.replicas, more.replicas),
            self.token + more.token,
        )


_Levels = Mapping[int, Level]


@dataclass(frozen=True)
class CapacitySample:
    """What several looks have seen together, until it is enough to learn from."""

    seen: Level = Level()
    looks: int = 0

    @property
    def is_enough(self) -> bool:
        """Whether something can be learnt from it."""
        seen = self.seen
        if self.looks < _ENOUGH_LOOKS or not seen.is_known:
            return False
        if seen.token.count >= _ENOUGH_TOKENS * seen.places and seen.answers >= _LONG_ANSWERS:
            return True
        if seen.replica_s >= _LONG_S * max(1, seen.replicas):
            return seen.answers >= _LONG_ANSWERS and seen.rounds >= _LONG_ROUNDS
        return seen.answers >= _ENOUGH_ANSWERS and seen.rounds >= _ENOUGH_ROUNDS

    def __add__(self, seen: Level) -> "CapacitySample":
        """Add a look."""
        return CapacitySample(self.seen + seen, self.looks + 1)


@dataclass(frozen=True)
class ReplicaCapacity:
    """What is known of a service's replicas; ``ReplicaCapacity()`` is nothing yet.

    Attributes:
        limit: requests that each replica may get together.
        expected: requests with which a replica is expected to keep the objectives, if so many are
            tried.
        full_s: seconds that a request takes then, as far as is known; None before any sample.
        levels: what was seen while replicas were full, by step: each is the requests at a replica
            times the square root of 2.
        lights: what was seen while they were not.
        full: what was seen since the last sample while requests waited, so replicas were full.
        light: what was seen while none waited.
        since_tried: answers since the limit was last raised.
        prior: what was measured elsewhere, while this service's own samples do not cover it.
    """

    limit: int = FIRST
    expected: int = 0
    full_s: float | None = None
    levels: _Levels = field(default_factory=dict, hash=False)
    lights: _Levels = field(default_factory=dict, hash=False)
    full: CapacitySample = CapacitySample()
    light: CapacitySample = CapacitySample()
    since_tried: float = 0.0
    prior: Prior | None = None

    @property
    def planned(self) -> int:
        """Requests with which replicas are planned."""
        return max(self.limit, self.expected)

    @property
    def is_sampled(self) -> bool:
        """Whether this service's own replicas have shown anything."""
        return bool(self.levels or self.lights)

    @property
    def source(self) -> str:
        """Where the limit comes from, if it is above what own replicas have shown; or ""."""
        own = (level.in_flight for level in (*self.levels.values(), *self.lights.values()))
        is_own = self.limit <= max(own, default=0.0) * _APART
        return "" if self.prior is None or is_own else self.prior.source

    @property
    def is_settled(self) -> bool:
        """Whether replicas get as many as are expected to do."""
        return self.full_s is not None and self.limit >= self.planned * (1 - _NOISE)


@dataclass(frozen=True)
class CapacityBounds:
    """What a request may take in a replica.

    Attributes:
        most: requests that a replica may get together at most.
        service_s: mean seconds that a request may take; None if the objective names none.
        wait_s: seconds that a request may take longer than in a replica that has no other one,
            where no objective names a time.
        token_s: mean seconds that each token may take; None if that is no objective.
        first_token_s: the same so that first tokens are in time; None if that is no objective.
        steps: times as long as a token that a request takes; None if that is not known.
    """

    most: int
    service_s: float | None = None
    wait_s: float = 5.0
    token_s: float | None = None
    first_token_s: float | None = None
    steps: float | None = None


def learn_capacity(
    known: ReplicaCapacity, seen: Level, bounds: CapacityBounds, *, is_full: bool
) -> ReplicaCapacity:
    """Learn from a look; ``seen`` is what replicas did since the look before.

    ``is_full``: requests waited at both looks, so each replica had as many as it may get.
    """
    sample = (known.full if is_full else known.light) + seen
    limit = min(known.limit, bounds.most)
    if not sample.is_enough:
        known = replace(known, limit=limit, expected=min(known.expected, bounds.most))
        return replace(known, full=sample) if is_full else replace(known, light=sample)
    levels, lights = _learnt(known, sample.seen, is_full=is_full)
    prior = _moved(known.prior, sample.seen, levels, lights, is_full=is_full)
    since_tried = known.since_tried + sample.seen.answers
    if since_tried >= _AGAIN * max(_ENOUGH_ANSWERS, _ENOUGH_ROUNDS * limit) * max(1, seen.replicas):
        levels, lights = _up_to(levels, limit), _up_to(lights, limit)
        prior = None
        since_tried = 0.0
    curves = _curves(levels, lights, bounds.steps, prior)
    if is_full:
        bounds = _while_full(bounds, curves, limit)
    if curves.service:
        found, expected = _limit(curves, limit, bounds), _expected_limit(curves, bounds)
    else:
        found = expected = limit
    return ReplicaCapacity(
        found,
        expected,
        _expected_s(curves.service, max(found, expected)) if curves.service else None,
        levels,
        lights,
        CapacitySample() if is_full or found != limit else known.full,
        known.light if is_full else CapacitySample(),
        0.0 if found > limit else since_tried,
        prior,
    )


def begun(prior: Prior, bounds: CapacityBounds) -> ReplicaCapacity:
    """Begin with what was measured elsewhere: as many as kept these bounds there.

    Nothing beyond what was seen there is tried before there are own samples.
    """
    curves = _curves({}, {}, prior.curve.steps, prior)
    if not curves.service:
        return ReplicaCapacity()
    most = min(max(1, floor(curves.service[-1][0] + _NOISE)), bounds.most)
    objectives = _objectives(curves, bounds)
    found = min(_largest(partial(_time_s, curve), within_s, most) for curve, within_s in objectives)
    limit = _enough(curves, found)
    return ReplicaCapacity(limit, limit, _time_s(curves.service, limit), prior=prior)


def points_of(known: ReplicaCapacity) -> tuple[Points, Points]:
    """Return what requests, and tokens, take by the number of requests at a replica."""
    curves = _curves(known.levels, known.lights, None, known.prior)
    return curves.service, curves.token


def _moved(
    prior: Prior | None, seen: Level, levels: _Levels, lights: _Levels, *, is_full: bool
) -> Prior | None:
    """Bring what was measured elsewhere to what a sample says; None once samples cover it.

    Other replicas, or longer requests, are slower or faster at each number alike: one sample tells
    how much.
    """
    if prior is None:
        return None
    below = _NOISE if is_full else _MIXED
    step = _step(seen)
    now = levels[step] if is_full else lights[step]

    def factor(points: Points, now_s: float | None) -> float:
        if not points or now_s is None:
            return 1.0
        at = min(max(now.in_flight, points[0][0]), points[-1][0])
        there_s = _time_s(points, at)
        return _nearer(at / now.in_flight, below, there_s, now_s) / there_s

    curve = prior.curve
    times = factor(curve.service, now.service_s), factor(curve.token, now.token.mean_s)
    found = replace(prior, curve=curve.slower(*times))
    is_used = any(
        _beside(points, [*levels.values(), *lights.values()], time_of)
        for points, time_of in zip((curve.service, curve.token), _TIMES, strict=True)
    )
    return found if is_used else None


def _up_to(levels: _Levels, limit: int) -> _Levels:
    return {step: level for step, level in levels.items() if level.in_flight <= limit + 0.5}


def _learnt(known: ReplicaCapacity, seen: Level, *, is_full: bool) -> tuple[_Levels, _Levels]:
    """Add a sample to what was seen while replicas were full, and while they were not.

    While no request waits a replica has now more and now fewer requests, and those that it has do
    not say what it could answer: only that it takes no longer with as many.
    """
    step = _step(seen)
    if is_full:
        levels = _followed(known.levels, step, seen)
        return _agreeing(levels, levels[step], _NOISE), known.lights
    lights = _followed(known.lights, step, seen)
    return _agreeing(known.levels, seen, _MIXED), _agreeing(lights, lights[step], _NOISE)


def _step(seen: Level) -> int:
    return max(_ALONE, round(_STEPS_A_DOUBLING * log2(max(seen.in_flight, 0.1))))


def _followed(levels: _Levels, step: int, sample: Level) -> _Levels:
    before = levels.get(step, Level())
    keep = 1 / (1 + min(sample.answers / _FADE_ANSWERS, sample.rounds / _FADE_ROUNDS))
    faded = Level(
        before.busy_s * keep,
        before.replica_s * keep,
        before.answers * keep,
        token=before.token.faded(keep),
    )
    return {**levels, step: faded + sample}


def _agreeing(levels: _Levels, now: Level, below: float) -> _Levels:
    """Return the levels so that none contradicts the newest sample.

    What clients ask for changes with time. With more requests each takes no less time, and with
    fewer no more; and time grows at most in proportion to the requests. ``below`` is the share by
    which they may be quicker than that.
    """
    found: dict[int, Level] = {}
    for step, level in levels.items():
        times = level.in_flight / now.in_flight
        nearer = partial(_nearer, times, below)
        found[step] = replace(
            level,
            answers=level.busy_s / nearer(level.service_s, now.service_s),
            token=_agreed(level.token, now.token, nearer),
        )
    return found


def _nearer(times: float, below: float, known_s: float, now_s: float) -> float:
    """Bring what was seen with ``times`` as many requests to what the newest sample allows."""
    low_s, high_s = sorted((now_s, now_s * times))
    return min(max(known_s, low_s / (1 + below)), high_s * (1 + _NOISE))


def _agreed(known: Timed, now: Timed, nearer: Callable[[float, float], float]) -> Timed:
    known_s, now_s = known.mean_s, now.mean_s
    if known_s is None or now_s is None:
        return known
    return replace(known, count=known.total_s / nearer(known_s, now_s))


@dataclass(frozen=True)
class _Curves:
    """The times of a request, and of a token.

    Attributes:
        own: the most requests that a replica of this service has had.
        full: numbers of requests at which replicas were full: their answers a second are known.
    """

    service: Points
    token: Points
    own: float = 0.0
    full: tuple[float, ...] = ()

    @property
    def last(self) -> float:
        """The most requests for which times are known, from wherever."""
        return max(self.service[-1][0], 1.0)


_Time = Callable[[Level], float | None]
_TIMES: tuple[_Time, ...] = tuple(map(attrgetter, ("service_s", "token.mean_s")))


def _curves(
    levels: _Levels, lights: _Levels, steps: float | None, prior: Prior | None = None
) -> _Curves:
    """Draw both curves.

    Of requests whose tokens are told, the time is that of their tokens: it is known long before
    the first of them has ended, and follows at once where answers get longer.
    """
    elsewhere = ((), ()) if prior is None else (prior.curve.service, prior.curve.token)
    service, token = (
        _curve(time_of, levels, lights, points)
        for time_of, points in zip(_TIMES, elsewhere, strict=True)
    )
    if token and steps is not None:
        service = tuple((at, steps * each_s) for at, each_s in token)
    seen = [level.in_flight for level in (*levels.values(), *lights.values())]
    full = [level.in_flight for level in levels.values()]
    more = [at for points in elsewhere for at, _ in points if at > max(seen, default=0.0)]
    return _Curves(service, token, max(seen, default=0.0), tuple(sorted({*full, *more})))


def _beside(points: Points, levels: Iterable[Level], time_of: _Time) -> Points:
    """Return the points of others that lie outside of what this service's own samples cover."""
    own = [level.in_flight for level in levels if time_of(level)]
    if not own:
        return points
    low, high = min(own) / _APART, max(own) * _APART
    return tuple(point for point in points if not low <= point[0] <= high)


def _curve(time_of: _Time, levels: _Levels, lights: _Levels, elsewhere: Points) -> Points:
    """Join what was seen of full replicas, of others at steps not seen full, and elsewhere."""
    full = sorted(levels.values(), key=_in_flight)
    found = [(level.in_flight, time_of(level)) for level in full]
    for step, light in lights.items():
        if any(near in levels and time_of(levels[near]) for near in (step - 1, step, step + 1)):
            continue
        # With as many as a full replica that has more, a request takes no longer than there.
        above_s = [time_of(two) or inf for two in full if two.in_flight > light.in_flight]
        found.append((light.in_flight, min(time_of(light) or inf, *above_s, inf)))
    found += _beside(elsewhere, (*levels.values(), *lights.values()), time_of)
    points: list[tuple[float, float]] = []
    for in_flight, seen_s in sorted((at, seen_s) for at, seen_s in found if seen_s):
        if seen_s < inf and (not points or in_flight > points[-1][0]):
            points.append((in_flight, max(seen_s, points[-1][1] if points else 0.0)))
    return tuple(points)


_in_flight = attrgetter("in_flight")


def alone_s(known: ReplicaCapacity) -> tuple[float | None, float | None]:
    """Return the seconds that a request, and each of its tokens, takes in a replica with no other.

    None where no replica had so few. Servers that tell tokens batch, so that a token takes hardly
    longer with two requests; but two requests may be worked on one after the other.
    """
    service, token = points_of(known)
    return (
        service[0][1] if service and service[0][0] <= 1 + _NOISE else None,
        token[0][1] if token and token[0][0] <= FIRST else None,
    )


def _time_s(curve: Points, in_flight: float, kink: float = _KINK) -> float:
    """Return the seconds that something takes; beyond what was seen, what it may be expected to.

    ``kink``: how much steeper the curve is assumed to be there.
    """
    if in_flight <= curve[0][0]:
        return curve[0][1]
    for (low, low_s), (high, high_s) in pairwise(curve):
        if in_flight <= high:
            return low_s + (high_s - low_s) * (in_flight - low) / (high - low)
    last, last_s = curve[-1]
    in_proportion_s = last_s * in_flight / last
    if len(curve) == 1:
        return in_proportion_s
    before, before_s = curve[max(0, len(curve) - 3)]
    slope = (last_s - before_s) / (last - before)
    return min(in_proportion_s, last_s + kink * slope * (in_flight - last))


def _expected_s(curve: Points, in_flight: float) -> float:
    """Return the seconds that something is expected to take with so many requests."""
    if len(curve) == 1 and in_flight > curve[0][0]:
        last, last_s = curve[0]
        return last_s * (_USUAL_BATCH + in_flight) / (_USUAL_BATCH + last)
    return _time_s(curve, in_flight, 1.0)


_Objectives = tuple[tuple[Points, float], ...]
"""Curves, and what they may reach."""


def _objectives(curves: _Curves, bounds: CapacityBounds) -> _Objectives:
    found: list[tuple[Points, float]] = []
    if bounds.service_s is not None:
        found.append((curves.service, bounds.service_s))
    if bounds.token_s is not None and curves.token:
        found.append((curves.token, bounds.token_s))
    if bounds.first_token_s is not None and curves.token:
        # A long prompt takes long in an empty replica, too: fewer requests are no help there.
        least_s = _LEAST_TIMES * _time_s(curves.token, 1.0)
        found.append((curves.token, max(bounds.first_token_s, least_s)))
    return tuple(found) or ((curves.service, curves.service[0][1] + bounds.wait_s),)


def _while_full(bounds: CapacityBounds, curves: _Curves, limit: int) -> CapacityBounds:
    """Return the bounds while requests wait at the gateway.

    There they have no first token either, and fewer at a replica are answered later: it keeps what
    it gets, and gets no more.
    """
    if bounds.first_token_s is None or not curves.token:
        return bounds
    kept_s = _time_s(curves.token, limit) / (1 + _NOISE)
    return replace(bounds, first_token_s=max(bounds.first_token_s, kept_s))


def _expected_limit(curves: _Curves, bounds: CapacityBounds) -> int:
    """Return with how many requests the objectives are expected to be kept."""
    highest = max(curves.last, _EXPECTED_GROWTH * max(1.0, min(curves.own, curves.last)))
    most = min(max(floor(highest), FIRST), bounds.most)
    found = min(
        _largest(partial(_expected_s, curve), within_s, most)
        for curve, within_s in _objectives(curves, bounds)
    )
    return _enough(curves, found)


def _limit(curves: _Curves, limit: int, bounds: CapacityBounds) -> int:
    objectives = _objectives(curves, bounds)
    found = min(_within(curve, within_s, bounds.most, curves.own) for curve, within_s in objectives)
    worth = _enough(curves, found)
    last = max(1.0, min(curves.own, curves.last))
    if worth == found < bounds.most and worth - 0.5 <= last < worth + 0.5:
        # It was full, and in time, and more were never tried: one more shows whether it can.
        return worth + 1
    # A sample near the bound says now this and now that.
    is_near = all(_time_s(curve, limit) <= most_s * (1 + _NOISE) for curve, most_s in objectives)
    if worth < limit and is_near:
        rates = [requests / _time_s(curves.service, requests) for requests in (limit, worth)]
        return limit if rates[0] * _WORTH > rates[1] else worth
    return worth


def _within(curve: Points, within_s: float, most: int, own: float) -> int:
    """Return how many requests may be tried by one objective.

    Only beyond what this service's own replicas had: not beyond what others had.
    """
    last, last_s = max(curve[-1][0], 1.0), curve[-1][1]
    careful = ceil(max(1.0, min(own, last)) * _CAREFUL_GROWTH)
    growth = _GROWTH if own * _APART >= last else 1.0
    safe = floor(min(last * growth, last * within_s / last_s) + 1e-9)
    return _largest(partial(_time_s, curve), within_s, min(max(careful, safe, FIRST), most))


def _largest(time_s: Callable[[int], float], within_s: float, most: int) -> int:
    """Return the most requests, 1 at least, of which each takes at most ``within_s``."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        if time_s(middle) <= within_s:
            low = middle
        else:
            high = middle - 1
    return low


def _enough(curves: _Curves, most: int) -> int:
    """Return the fewest requests, at most ``most``, with nearly as many answers a second.

    What was seen to be no better above is not used.
    """
    rates = ((at, at / _time_s(curves.service, at)) for at in curves.full)
    seen = sorted((max(1, ceil(at - _NOISE)), rate) for at, rate in rates)
    usable = [(count, rate) for count, rate in seen if count <= most]
    if not usable:
        return most
    best = max(rate for _, rate in usable)
    fewest = next(count for count, rate in usable if rate >= _WORTH * best)
    return fewest if fewest * _TRIED <= usable[-1][0] else most
