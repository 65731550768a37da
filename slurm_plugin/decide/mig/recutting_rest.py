"""What becomes of the rest of a GPU that is cut anew: a layout that is full, if that is of use.

A GPU is drained for one instance as for all of them, so the rest is cut with it: into shapes that
guarantees need and that are missing, then into what serves most of what is expected, then into
more of what is asked for now. Where the asked ones lie is chosen with that.

Slices stay uncut where they are worth more so: where a larger shape that is missing, or for which
somebody waits in vain, could be if it were not for those who hold the slices beside them now. What
is cut there would be taken, and be in its way when they are gone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.mig.layouts import Geometry, Layout, Placement

_Worth = tuple[int, int, int, int]
"""Of shapes that could be there once, of missing, of expected ones, of those asked for."""


@dataclass(frozen=True)
class Wishes:
    """What there could be use of, beside what is created anyway.

    Attributes:
        profiles: that may be cut at all.
        missing: instances of each that guarantees need and that are nowhere.
        awaited: those for which somebody waits in vain.
        gain: what so many more of each would serve.
    """

    profiles: Collection[str]
    missing: Mapping[str, int]
    awaited: Collection[str]
    gain: Callable[[Mapping[str, int]], float] = field(hash=False)
    costs_millislices: Mapping[str, int] = field(hash=False)


def full(
    found: Geometry, stays: Collection[Placement], created: Collection[Placement], wishes: Wishes
) -> tuple[Placement, ...]:
    """All to create beside those that stay; of each profile at least as many as are ``created``."""
    asked = Counter(one.profile for one in created)
    those = list(_open_to(found, frozenset(stays), asked.keys() | set(wishes.profiles)))
    hoped = tuple(_hoped(found, stays, wishes))
    options = (
        (_worth(found, base, new, hoped, wishes), _places_left(found, (*stays, *new)), new)
        for base in those
        if Counter(one.profile for one in base) == asked
        for new in _on_top(found, base, those, hoped, wishes)
    )
    # Of equal ones that with the lowest starts.
    *_, best = max(options, key=lambda one: (one[0], one[1], sorted(one[2], reverse=True)))
    return tuple(sorted(best))


def _open_to(found: Geometry, stays: Layout, profiles: Collection[str]) -> Iterator[Layout]:
    """All that could be created beside those that stay."""
    for layout in found.layouts:
        if stays <= layout and all(one.profile in profiles for one in layout - stays):
            yield layout - stays


def _hoped(found: Geometry, stays: Collection[Placement], wishes: Wishes) -> Iterator[Placement]:
    """Where a shape that is in want could be but for those that stay, with the least in its way.

    Nowhere if it could be somewhere as it is.
    """
    missing = {name for name, count in wishes.missing.items() if count > 0}
    for profile in {*wishes.awaited, *missing}:
        in_the_way = {
            place: sum(one.size for one in stays if one in found.conflicts[place])
            for place in found.placements
            if place.profile == profile and place not in stays
        }
        least = min(in_the_way.values(), default=0)
        yield from (place for place, slices in in_the_way.items() if least and slices == least)


def _on_top(
    found: Geometry,
    base: Layout,
    those: Sequence[Layout],
    hoped: Collection[Placement],
    wishes: Wishes,
) -> Iterator[Layout]:
    """What may be created with ``base``, for the sake of which all of it is done."""
    costs = wishes.costs_millislices
    kept = [one for one in hoped if found.conflicts[one].isdisjoint(base)]
    for new in those:
        if base <= new and not any(
            costs[one.profile] < costs[place.profile] and one in found.conflicts[place]
            for one in new - base
            for place in kept
        ):
            yield new


def _worth(
    found: Geometry, base: Layout, new: Layout, hoped: Collection[Placement], wishes: Wishes
) -> _Worth:
    costs = wishes.costs_millislices
    kept = {one.profile for one in hoped if found.conflicts[one].isdisjoint(new)}
    more = Counter(one.profile for one in new - base)
    asked = {one.profile for one in base}
    return (
        sum(costs[name] for name in kept),
        sum(min(more[name], count) * costs[name] for name, count in wishes.missing.items()),
        round(wishes.gain(more)),
        sum(count * costs[name] for name, count in more.items() if name in asked),
    )


def _places_left(found: Geometry, layout: Collection[Placement]) -> int:
    """Where one more could be put."""
    occupancy = found.occupancy(layout)
    return 0 if occupancy is None else len(found.fitting(occupancy))
