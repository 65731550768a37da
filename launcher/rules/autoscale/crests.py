"""What bursts of a service need, and how long it is until the next one, by their size.

A crest of a level is the time in which at least so many requests would be in parallel. Between two
crests of a high level there may be many of lower ones, so replicas are kept for as long as it pays
for each of the levels, as the last one is in ``idle.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
    seen = [_seen(one, at_s, elapsed_s, horizon_s) for one in known[:reached]]
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
        most_s: what a crest may cost at most.
        start_s: what is saved besides where the replica is there and need not be started; None: it
            would be started now, not by the next crest, so that saves nothing.
    """

    late_s: float
    most_s: float
    start_s: float | None


def worth_having(
    known: Crests, at_s: float, service_s: float, concurrency: int, stakes: Stakes
) -> int:
    """Return the highest level whose places are worth being there for its next crest; 0: none.

    Without a replica of ``concurrency`` places, so many requests of ``service_s`` seconds are late
    as it would begin until a start for the crest ends. It is compared with the wait for the next
    crest of any lower level that was seen more often, which is one of this level by chance. What is
    started now comes in time for the next crest only of levels whose crest goes on.
    """
    prices = [
        (one.count + 1, price_of_waiting(one.pauses, at_s - one.last_s))
        for one in known
        if one.count + 1 >= _ENOUGH and (stakes.start_s is not None or one.last_s == at_s)
    ]
    for level, count, used_s in _expected(known) if prices else ():
        late = used_s * min(level, concurrency) / service_s
        saved_s = min(late * stakes.late_s, stakes.most_s) + (stakes.start_s or 0.0)
        if any(saved_s * count / (n + 1) > price_s for n, price_s in prices if n >= count):
            return level
    return 0


def _expected(known: Crests) -> Iterator[tuple[int, float, float]]:
    """Yield levels, the highest first, how many crests they had, and how long these last.

    After n crests the next one is larger than all of them with a chance of 1 / (n + 1), however
    their sizes are distributed. So levels that were not reached yet count, too, by the share of the
    crests that go on to the next level, from the highest level on that half of them reached.
    """
    counts = [one.count + 1 for one in known]
    half = max(index for index, count in enumerate(counts) if count >= max(counts) / 2)
    tail = sum(counts[half:])
    share = (tail - counts[half] + 1) / (tail + 2)
    tail_used_s = sum(one.total_used_s + one.used_s for one in known[half:]) / tail
    beyond = list(enumerate(LEVELS[len(known) : len(known) + _BEYOND], 1))
    for steps, level in reversed(beyond):
        yield level, counts[-1] * share**steps, tail_used_s
    for level, count, one in reversed(list(zip(LEVELS, counts, known, strict=False))):
        yield level, count, (one.total_used_s + one.used_s) / count


def highest_since(known: Crests, since_s: float) -> int:
    """Return the highest level that was reached since then; 0: none."""
    reached = [level for level, one in zip(LEVELS, known, strict=False) if one.last_s >= since_s]
    return max(reached, default=0)
