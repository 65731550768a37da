"""What bursts of a service need, and how long it is until the next one, by their size.

A crest of a level is the time in which at least so many requests would be in parallel. Between two
crests of a high level there may be many of lower ones, so replicas are kept for as long as it pays
for each of the levels, as the last one is in ``idle.py``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Annotated

from pydantic import Field

from slicewise.launcher.rules.autoscale.histogram import added
from slicewise.launcher.rules.autoscale.idle import EDGES_S, PauseWeights, price_of_waiting

LEVELS: tuple[int, ...] = tuple(round(2.0 ** (step / 2)) for step in (0, *range(2, 25)))
"""Requests in parallel, each about 1.4 times the one before, up to 4,096."""
_KEEP = 0.98
"""Share of the old weights that stays with each crest: the last 50 or so count."""
_ENOUGH = 1.5
"""Crests that say what comes after them; the first one may have been the only one."""
_BEYOND = 4
"""Levels above the highest one reached for which there may be replicas, too: a crest four times as
large."""
_CHANCE = 2.0
"""By how much the square root of a steady load rises by chance at most: four deviations."""
_ASSUMED = (0.05,) * (len(EDGES_S) + 1)
"""Assumed weights: so little that one pause seen outweighs all of them."""


@dataclass(frozen=True)
class Crest:
    """Crests of one level; with pauses shorter than a start's delay between them they are one.

    Attributes:
        begun_s, last_s: when the newest one began, and when it was seen last, in Unix seconds.
        used_s: for how much of the start's delay that followed its beginning it lasted.
        count, total_used_s: number of crests before it, and sum of their ``used_s``; old ones fade.
        pauses: weights of bins of the pauses between crests.
    """

    begun_s: float
    last_s: float
    used_s: float = 0.0
    count: float = 0.0
    total_used_s: float = 0.0
    pauses: PauseWeights = _ASSUMED


Crests = Annotated[tuple[Crest, ...], Field(max_length=len(LEVELS))]
"""One of each level that was reached, the lowest first."""


def learn_crests(
    known: Crests, unqueued: float, at_s: float, elapsed_s: float, horizon_s: float
) -> Crests:
    """Learn from a look with ``unqueued`` requests in parallel; lowest level first."""
    reached = sum(level <= unqueued for level in LEVELS)
    seen = [_seen(crest, at_s, elapsed_s, horizon_s) for crest in known[:reached]]
    new = [Crest(at_s, at_s, min(elapsed_s, horizon_s)) for _ in range(len(known), reached)]
    return (*seen, *known[reached:], *new)


def _seen(known: Crest, at_s: float, elapsed_s: float, horizon_s: float) -> Crest:
    pause_s = at_s - known.last_s
    if pause_s > horizon_s:
        return Crest(
            at_s,
            at_s,
            min(elapsed_s, horizon_s),
            _KEEP * known.count + 1,
            _KEEP * known.total_used_s + known.used_s,
            added(known.pauses, EDGES_S, pause_s, _KEEP),
        )
    used_s = known.used_s + elapsed_s if at_s - known.begun_s < horizon_s else known.used_s
    return replace(known, last_s=at_s, used_s=min(used_s, horizon_s))


@dataclass(frozen=True)
class Stakes:
    """What a replica costs and saves, in slice-seconds.

    Attributes:
        late_s: price of one late request.
        most_late_s, most_s: what one and what a crest may cost at most.
        dearer: by what both are multiplied for levels that crests reach. Who missed the aim came at
            these, so nothing says that still larger crests deserve more than usual.
        start_s: what is saved besides where the replica is there and need not be started; None: it
            would be started now, not by the next crest, so that saves nothing.
    """

    late_s: float
    most_late_s: float
    most_s: float
    dearer: float
    start_s: float | None

    def saved_s(self, late: float, *, is_larger: bool) -> float:
        """Return what is saved where so many requests would be late in the next crest."""
        times = 1.0 if is_larger else self.dearer
        late_s = min(self.late_s, times * self.most_late_s)
        return min(late * late_s, times * self.most_s) + (self.start_s or 0.0)


def worth_having(
    known: Crests, at_s: float, service_s: float, concurrency: int, stakes: Stakes
) -> int:
    """Return the highest level whose places are worth being there for its next crest; 0: none.

    Without a replica of ``concurrency`` places, so many requests of ``service_s`` seconds are late
    as it would begin until a start for the crest ends: one for each place at least, as the crest
    reaches it. What is started now comes in time for the next crest only of levels whose crest goes
    on, and the forecast starts what that one needs.
    """
    for expected in _expected(known):
        level, of = expected.level, expected.of
        if stakes.start_s is None and (of.last_s < at_s or not expected.is_larger):
            continue
        late = max(1.0, expected.used_s / service_s) * min(level, concurrency)
        saved_s = stakes.saved_s(late, is_larger=expected.is_larger)
        if saved_s * expected.chance > price_of_waiting(of.pauses, at_s - of.last_s):
            return level
    return 0


@dataclass(frozen=True)
class _Expected:
    """The next crest of ``of`` reaches a level by ``chance``, and needs it for ``used_s``."""

    level: int
    of: Crest
    chance: float
    used_s: float

    @property
    def is_larger(self) -> bool:
        """Whether the level was hardly or never reached."""
        return self.chance < 1


def _expected(known: Crests) -> Iterator[_Expected]:
    """Yield what is expected of each level, the highest first.

    After n crests of a level the next one is larger than all of them with a chance of 1 / (n + 1),
    however their sizes are distributed. So a level that was hardly or never reached counts as a
    part of the crests of the highest level of which enough is known. How large a part of those
    never reached follows from how many crests go on to the next level, from the highest level on
    that half of them reached.

    The lowest levels of a steady load have hardly any crests, since they never end. Crests above
    that chance explains are no bursts, and nothing larger is expected of them.
    """
    counts = [crest.count + 1 for crest in known]
    enough = [index for index, count in enumerate(counts) if count >= _ENOUGH]
    if not enough:
        return
    highest = known[enough[-1]]
    often = [index for index, count in enumerate(counts) if count >= max(counts) / 2]
    half, steady = often[-1], LEVELS[often[0] - 1] if often[0] else 0
    tail = sum(counts[half:])
    share = (tail - counts[half] + 1) / (tail + 2)
    rarer = [*counts[enough[-1] + 1 :], *(counts[-1] * share**n for n in range(1, _BEYOND + 1))]
    used_s = sum(crest.total_used_s + crest.used_s for crest in known[half:]) / tail
    is_burst = sqrt(LEVELS[enough[-1]]) > sqrt(steady) + _CHANCE
    levels = list(zip(LEVELS[enough[-1] + 1 :], rarer, strict=False)) if is_burst else []
    for level, count in reversed(levels):
        yield _Expected(level, highest, count / (highest.count + 2), used_s)
    for index in reversed(enough):
        one = known[index]
        own_s = (one.total_used_s + one.used_s) / counts[index]
        yield _Expected(LEVELS[index], one, 1.0, own_s)


def reached_since(known: Crests, since_s: float) -> Sequence[tuple[int, float]]:
    """Return the levels that were reached since then, and how many seconds each lasted."""
    return [
        (level, crest.last_s - crest.begun_s)
        for level, crest in zip(LEVELS, known, strict=False)
        if crest.last_s >= since_s
    ]
