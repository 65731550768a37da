"""Learns how many requests a replica may work on together so that the objective is kept.

A batching engine answers more requests a second when it has more of them, and each takes longer.
Samples say how long requests took (``service_s``) while a replica worked on so many. The curve
through them has two uses: the gateway gives each replica ``limit`` requests, and the autoscaler
reckons with the time that a request takes then.

It relies on one thing only: with more requests at a time an engine does not answer fewer of them a
second. Then time grows at most in proportion to the requests, which bounds what is tried next. Why
so, and what else was tried: docs/decisions/0031-learnt-concurrency.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, floor, inf, log2
from operator import attrgetter

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
_FADE_ANSWERS, _FADE_ROUNDS = 300.0, 20.0
"""Answers or, if that is longer, rounds that count at one step of the curve, the newest most."""
_STEPS_A_DOUBLING = 2
_ALONE = -2
"""The first step: half a request at a replica, or less."""
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
_AGAIN = 100.0
"""Times the answers of a sample, for each replica, after which what was too slow, or not worth it,
is tried again: a hundredth of all answers are given meanwhile."""


_LEAST_BUSY_S = 1e-9
"""Less than a clock can tell: figures of so little would divide by zero."""


@dataclass(frozen=True)
class Level:
    """What was seen while each replica worked on about so many requests; old parts fade away.

    Attributes:
        busy_s: seconds that requests spent in replicas, added up.
        replica_s: seconds of replicas, added up.
        answers: requests answered meanwhile.
        replicas: how many replicas that was, at most.
    """

    busy_s: float = 0.0
    replica_s: float = 0.0
    answers: float = 0.0
    replicas: int = 0

    @property
    def in_flight(self) -> float:
        """Mean number of requests at a replica."""
        return self.busy_s / self.replica_s

    @property
    def service_s(self) -> float:
        """Mean seconds that a request takes."""
        return self.busy_s / self.answers

    @property
    def rate(self) -> float:
        """Answers of a replica a second."""
        return self.answers / self.replica_s

    @property
    def rounds(self) -> float:
        """Answers for each place that was in use."""
        return self.answers / (max(1.0, self.in_flight) * max(1, self.replicas))

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
        full_s: seconds that a request takes then, as far as is known; None before any sample.
        levels: what was seen while replicas were full, by step: each is the requests at a replica
            times the square root of 2.
        lights: what was seen while they were not.
        full: what was seen since the last sample while requests waited, so replicas were full.
        light: what was seen while none waited.
        since_tried: answers since the limit was last raised.
    """

    limit: int = FIRST
    full_s: float | None = None
    levels: _Levels = field(default_factory=dict, hash=False)
    lights: _Levels = field(default_factory=dict, hash=False)
    full: CapacitySample = CapacitySample()
    light: CapacitySample = CapacitySample()
    since_tried: float = 0.0


@dataclass(frozen=True)
class CapacityBounds:
    """What a request may take in a replica.

    Attributes:
        most: requests that a replica may get together at most.
        service_s: mean seconds that a request may take; None if the objective names none.
        wait_s: seconds that a request may take longer than in a replica that has no other one.
    """

    most: int
    service_s: float | None = None
    wait_s: float = 5.0


def learn_capacity(
    known: ReplicaCapacity, seen: Level, bounds: CapacityBounds, *, is_full: bool
) -> ReplicaCapacity:
    """Learn from a look; ``seen`` is what replicas did since the look before.

    ``is_full``: requests waited at both looks, so each replica had as many as it may get.
    """
    sample = (known.full if is_full else known.light) + seen
    limit = min(known.limit, bounds.most)
    if not sample.is_enough:
        if is_full:
            return replace(known, limit=limit, full=sample)
        return replace(known, limit=limit, light=sample)
    levels, lights = _learnt(known, sample.seen, is_full=is_full)
    since_tried = known.since_tried + sample.seen.answers
    if since_tried >= _AGAIN * max(_ENOUGH_ANSWERS, _ENOUGH_ROUNDS * limit) * max(1, seen.replicas):
        levels, lights = _up_to(levels, limit), _up_to(lights, limit)
        since_tried = 0.0
    curve = _curve(levels, lights)
    found = _limit(curve, levels, limit, bounds) if curve else limit
    return ReplicaCapacity(
        found,
        _time_s(curve, found) if curve else None,
        levels,
        lights,
        CapacitySample() if is_full or found != limit else known.full,
        known.light if is_full else CapacitySample(),
        0.0 if found > limit else since_tried,
    )


def _up_to(levels: _Levels, limit: int) -> _Levels:
    return {step: one for step, one in levels.items() if one.in_flight <= limit + 0.5}


def _learnt(known: ReplicaCapacity, seen: Level, *, is_full: bool) -> tuple[_Levels, _Levels]:
    """Add a sample to what was seen while replicas were full, and while they were not.

    While no request waits a replica has now more and now fewer requests, and those that it has do
    not say what it could answer: only that it takes no longer with as many.
    """
    step = max(_ALONE, round(_STEPS_A_DOUBLING * log2(max(seen.in_flight, 0.1))))
    if is_full:
        levels = _followed(known.levels, step, seen)
        return _agreeing(levels, levels[step], _NOISE), known.lights
    lights = _followed(known.lights, step, seen)
    return _agreeing(known.levels, seen, _MIXED), _agreeing(lights, lights[step], _NOISE)


def _followed(levels: _Levels, step: int, sample: Level) -> _Levels:
    before = levels.get(step, Level())
    keep = 1 / (1 + min(sample.answers / _FADE_ANSWERS, sample.rounds / _FADE_ROUNDS))
    faded = Level(before.busy_s * keep, before.replica_s * keep, before.answers * keep)
    return {**levels, step: faded + sample}


def _agreeing(levels: _Levels, now: Level, below: float) -> _Levels:
    """Return the levels so that none contradicts the newest sample.

    What clients ask for changes with time. With more requests each takes no less time, and with
    fewer no more; and time grows at most in proportion to the requests. ``below`` is the share by
    which they may be quicker than that.
    """
    found: dict[int, Level] = {}
    for step, one in levels.items():
        in_proportion_s = now.service_s * one.in_flight / now.in_flight
        low_s, high_s = sorted((now.service_s, in_proportion_s))
        low_s, high_s = low_s / (1 + below), high_s * (1 + _NOISE)
        agreed_s = min(max(one.service_s, low_s), high_s)
        found[step] = replace(one, answers=one.busy_s / agreed_s)
    return found


_Curve = tuple[tuple[float, float], ...]
"""Requests at a replica and the seconds that each takes, ascending in both."""


def _curve(levels: _Levels, lights: _Levels) -> _Curve:
    """Join what was seen of full replicas, and of others at steps that were not seen full."""
    full = sorted(levels.values(), key=_in_flight)
    found = list(full)
    for step, one in lights.items():
        if levels.keys() & {step - 1, step, step + 1}:
            continue
        # With as many as a full replica that has more, a request takes no longer than there.
        above_s = (two.service_s for two in full if two.in_flight > one.in_flight)
        found.append(replace(one, answers=one.busy_s / min(one.service_s, *above_s, inf)))
    points: list[tuple[float, float]] = []
    for one in sorted(found, key=_in_flight):
        slowest_s = max(one.service_s, points[-1][1] if points else 0.0)
        if not points or one.in_flight > points[-1][0]:
            points.append((one.in_flight, slowest_s))
    return tuple(points)


_in_flight = attrgetter("in_flight")


def _time_s(curve: _Curve, in_flight: float) -> float:
    """Return the seconds that a request takes; beyond what was seen, what it may be expected to."""
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
    return min(in_proportion_s, last_s + _KINK * slope * (in_flight - last))


def _limit(curve: _Curve, levels: _Levels, limit: int, bounds: CapacityBounds) -> int:
    last, last_s = max(curve[-1][0], 1.0), curve[-1][1]
    within_s = curve[0][1] + bounds.wait_s if bounds.service_s is None else bounds.service_s
    careful = ceil(last * _CAREFUL_GROWTH)
    safe = floor(min(last * _GROWTH, last * within_s / last_s) + 1e-9)
    most = min(max(careful, safe, FIRST), bounds.most)
    found = _largest(curve, within_s, most)
    worth = _enough(levels, found)
    if worth == found < bounds.most and worth - 0.5 <= last < worth + 0.5:
        # It was full, and in time, and more were never tried: one more shows whether it can.
        return worth + 1
    # A sample near the bound says now this and now that.
    if worth < limit and _time_s(curve, limit) <= within_s * (1 + _NOISE):
        is_worth = limit / _time_s(curve, limit) * _WORTH > worth / _time_s(curve, worth)
        return limit if is_worth else worth
    return worth


def _largest(curve: _Curve, within_s: float, most: int) -> int:
    """Return the most requests, 1 at least, of which each takes at most ``within_s``."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        if _time_s(curve, middle) <= within_s:
            low = middle
        else:
            high = middle - 1
    return low


def _enough(levels: _Levels, most: int) -> int:
    """Return the fewest requests, at most ``most``, with nearly as many answers a second.

    What was seen to be no better above is not used.
    """
    seen = sorted((max(1, ceil(one.in_flight - _NOISE)), one.rate) for one in levels.values())
    usable = [(count, rate) for count, rate in seen if count <= most]
    if not usable:
        return most
    best = max(rate for _, rate in usable)
    fewest = next(count for count, rate in usable if rate >= _WORTH * best)
    return fewest if fewest * _TRIED <= usable[-1][0] else most
