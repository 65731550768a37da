"""Which share of requests began in time lately, and what a late one shall cost therefore.

The gateway counts how many requests have come and how many wait. Who of them is served next follows
from its order, so how long each has waited is known to the length of a look.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import exp, sqrt
from operator import attrgetter

_SPAN_S = 1800.0
"""Seconds over which the share is taken."""
_ENOUGH = 50.0
"""Requests of which it is not asked what chance makes of their share in time."""
_CHANCE = 2.0
"""Deviations by which late ones of fewer exceed what is permitted if that is said."""
_MISSED = 0.01
"""Share by which the aim is missed if that is said."""
_LATELY = exp(-1)
"""What a late request counts after a span; less is no longer said of that span."""
_FEW_LATE = 50.0
"""So many late requests, and others as the aim permits, are assumed besides, so that a few say
little: with an aim of 0.99, hundreds in time don't show that fewer replicas would do."""
_FRAME_S = 20.0
"""As at the gateway: of requests beyond those that can wait in time, the newest of a frame is
served first."""
_MOST_COHORTS = 32
_GAIN = 1.0
"""How much the logarithm of the price moves within the requests of a span, at most."""
LEAST, HIGHEST = 1 / 4, 8.0
"""Bounds of the price's factor."""
_MOST_PER_S = 0.006
"""How much its logarithm moves in a second, at most: 12 % in 20 s."""


@dataclass(frozen=True)
class Cohort:
    """Requests that came at the same look and wait; the smallest ``key_s`` is served first."""

    key_s: float
    at_s: float
    count: int


@dataclass(frozen=True)
class Attainment:
    """What is known of requests that have got a place; old ones fade away.

    Attributes:
        waiting: those that have none yet, in the order in which they get it.
        begun, late: number of those that have, and of those of them that waited too long.
        short: number of late ones while all replicas that may run served.
        factor: by what the price of a late request is multiplied.
        goal: what the factor moves to, slowly: a crowd that nobody could expect is no reason to
            expect more of them at once.
    """

    waiting: tuple[Cohort, ...] = ()
    begun: float = 0.0
    late: float = 0.0
    short: float = 0.0
    factor: float = 1.0
    goal: float = 1.0

    def missed(self, aim: float) -> float | None:
        """Return the share in time if it misses the aim by more than a point.

        None if it does not, or by no more than chance makes of a few.
        """
        permitted = (1 - aim) * self.begun
        by_chance = _CHANCE * sqrt(permitted) if self.begun < _ENOUGH else 0.0
        is_missed = self.late > permitted + max(_MISSED * self.begun, by_chance)
        return 1 - self.late / self.begun if is_missed and self.late >= _LATELY else None


@dataclass(frozen=True)
class Passing:
    """What a look saw of requests that wait.

    Attributes:
        came, waiting: requests since the last look, and those that have no place now.
        elapsed_s: seconds since the last look.
        within_s: seconds within which a place is in time.
        in_time: how many may wait in the order in which they came; None: all.
        is_full: whether all replicas that may run serve: then a higher price changes nothing.
    """

    at_s: float
    elapsed_s: float
    came: int
    waiting: int
    within_s: float
    in_time: int | None
    is_full: bool = False


def learn_attainment(known: Attainment, seen: Passing, aim: float) -> Attainment:
    """Learn from a look; ``aim`` is the share that shall begin in time."""
    before = sum(cohort.count for cohort in known.waiting)
    came = max(seen.came, seen.waiting - before)
    waits = sorted([*known.waiting, *_newest(seen, before, came)], key=_KEY)
    begun, left = _split(waits, before + came - seen.waiting)
    begun_s = seen.at_s - seen.elapsed_s / 2
    count = sum(cohort.count for cohort in begun)
    late = sum(_late(cohort, begun_s, seen) for cohort in begun)
    found = rested_attainment(known, seen.elapsed_s)
    found = replace(
        found,
        waiting=_merged(left),
        begun=found.begun + count,
        late=found.late + late,
        short=found.short + (late if seen.is_full else 0),
    )
    return replace(found, goal=_moved(found, count, 0 if seen.is_full else late, aim))


def rested_attainment(known: Attainment, elapsed_s: float) -> Attainment:
    """Return what counts after so many seconds without a request."""
    keep, most = exp(-elapsed_s / _SPAN_S), exp(_MOST_PER_S * elapsed_s)
    return replace(
        known,
        begun=keep * known.begun,
        late=keep * known.late,
        short=keep * known.short,
        factor=min(max(known.goal, known.factor / most), known.factor * most),
    )


def _late(begun: Cohort, begun_s: float, seen: Passing) -> float:
    """Return how many of the requests that have got a place in this look waited too long.

    Both ends of a wait are known to the length of a look, so near the bound a share of them did.
    Whether those that came in this look have waited at all is not known: they count as in time.
    """
    waited_s = begun_s - begun.at_s
    if not waited_s:
        return 0.0
    share = 0.5 + (waited_s - seen.within_s) / seen.elapsed_s
    return begun.count * min(max(share, 0.0), 1.0)


def _newest(seen: Passing, before: int, came: int) -> Iterable[Cohort]:
    at_s = seen.at_s - seen.elapsed_s / 2
    prompt = came if seen.in_time is None else min(came, max(0, max(seen.in_time, 1) - before))
    if prompt:
        yield Cohort(at_s, at_s, prompt)
    if came > prompt:
        yield Cohort(at_s - 2 * (at_s % _FRAME_S), at_s, came - prompt)


def _split(waits: list[Cohort], begun: int) -> tuple[list[Cohort], list[Cohort]]:
    """Return the first ``begun`` requests, and the others."""
    first: list[Cohort] = []
    for index, wait in enumerate(waits):
        if wait.count > begun:
            left = [replace(wait, count=wait.count - begun), *waits[index + 1 :]]
            return ([*first, replace(wait, count=begun)] if begun else first), left
        first.append(wait)
        begun -= wait.count
    return first, []


def _merged(waits: list[Cohort]) -> tuple[Cohort, ...]:
    """Return the cohorts; where there are too many, the last of them as one."""
    if len(waits) <= _MOST_COHORTS:
        return tuple(waits)
    *first, last = waits[:_MOST_COHORTS]
    return (*first, replace(last, count=last.count + sum(w.count for w in waits[_MOST_COHORTS:])))


def _moved(known: Attainment, count: int, late: float, aim: float) -> float:
    """Return the goal after ``count`` more requests have begun, ``late`` of them too late.

    Its logarithm is the integral of what was late beyond what the aim permits, so in the long run
    neither more nor less is. A span whose requests are all in time lowers it by ``_GAIN``.
    """
    permitted = 1 - aim
    beyond = (late - permitted * count) / (permitted * known.begun + _FEW_LATE)
    return min(max(known.goal * exp(_GAIN * min(beyond, 1.0)), LEAST), HIGHEST)


_KEY = attrgetter("key_s")
