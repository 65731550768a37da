"""Chooses how to cut the rest of a GPU that is cut again: a full layout, where that is of use.

A GPU is drained for one new instance as for several, so its rest is cut at the same time: into
missing shapes that guarantees need, then into what serves most of the expected demand, then into
more of what is asked for now. The places of the asked instances are chosen together with that.

Slices stay uncut where they are worth more uncut: where a larger shape that is missing, or for
which a job waits in vain, could be placed once the jobs beside these slices have ended. An instance
cut there would be taken, and would be in the way by then.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.cluster.language.gpus.layouts import Geometry, Layout, Placement

_Worth = tuple[int, int, int, int]
"""Worth of shapes that could be placed later, of missing, of expected, of asked shapes."""


@dataclass(frozen=True)
class PossibleUses:
    """What could be of use besides the instances that are created anyway.

    Attributes:
        profiles: profiles that may be cut at all.
        missing: instances by profile that guarantees need and that no GPU has.
        awaited: profiles for which jobs wait in vain.
        gain: computes what the given further instances, by profile, would serve.
        costs_millislices: cost of an instance, by profile.
    """

    profiles: Collection[str]
    missing: Mapping[str, int]
    awaited: Collection[str]
    gain: Callable[[Mapping[str, int]], float] = field(hash=False)
    costs_millislices: Mapping[str, int] = field(hash=False)


def full(
    geometry: Geometry,
    stays: Collection[Placement],
    created: Collection[Placement],
    uses: PossibleUses,
) -> tuple[Placement, ...]:
    """All instances to create besides those that stay.

    Of each profile there are at least as many as in ``created``.
    """
    asked = Counter(placement.profile for placement in created)
    those = list(_open_to(geometry, frozenset(stays), asked.keys() | set(uses.profiles)))
    hoped = tuple(_hoped(geometry, stays, uses))
    options = (
        (_worth(geometry, base, new, hoped, uses), _places_left(geometry, (*stays, *new)), new)
        for base in those
        if Counter(placement.profile for placement in base) == asked
        for new in _on_top(geometry, base, those, hoped, uses)
    )
    # Of equal options the one with the lowest starts is taken.
    *_, best = max(
        options, key=lambda option: (option[0], option[1], sorted(option[2], reverse=True))
    )
    return tuple(sorted(best))


def _open_to(geometry: Geometry, stays: Layout, profiles: Collection[str]) -> Iterator[Layout]:
    """All sets of instances of these profiles that could be created besides those that stay."""
    for layout in geometry.layouts:
        if stays <= layout and all(placement.profile in profiles for placement in layout - stays):
            yield layout - stays


def _hoped(
    geometry: Geometry, stays: Collection[Placement], uses: PossibleUses
) -> Iterator[Placement]:
    """Places where a wanted shape could be if instances that stay were not there.

    For each shape, these are the places with the fewest slices in the way; none if the shape has a
    place now.
    """
    missing = {name for name, count in uses.missing.items() if count > 0}
    for profile in {*uses.awaited, *missing}:
        in_the_way = {
            place: sum(stay.size for stay in stays if stay in geometry.conflicts[place])
            for place in geometry.placements
            if place.profile == profile and place not in stays
        }
        least = min(in_the_way.values(), default=0)
        yield from (place for place, slices in in_the_way.items() if least and slices == least)


def _on_top(
    geometry: Geometry,
    base: Layout,
    those: Sequence[Layout],
    hoped: Collection[Placement],
    uses: PossibleUses,
) -> Iterator[Layout]:
    """Sets of instances that contain ``base`` and leave the hoped-for places of larger shapes free.

    ``base`` are the instances for which the GPU is cut.
    """
    costs = uses.costs_millislices
    kept = [placement for placement in hoped if geometry.conflicts[placement].isdisjoint(base)]
    for new in those:
        if base <= new and not any(
            costs[placement.profile] < costs[place.profile]
            and placement in geometry.conflicts[place]
            for placement in new - base
            for place in kept
        ):
            yield new


def _worth(
    geometry: Geometry, base: Layout, new: Layout, hoped: Collection[Placement], uses: PossibleUses
) -> _Worth:
    costs = uses.costs_millislices
    kept = {
        placement.profile for placement in hoped if geometry.conflicts[placement].isdisjoint(new)
    }
    more = Counter(placement.profile for placement in new - base)
    asked = {placement.profile for placement in base}
    return (
        sum(costs[name] for name in kept),
        sum(min(more[name], count) * costs[name] for name, count in uses.missing.items()),
        round(uses.gain(more)),
        sum(count * costs[name] for name, count in more.items() if name in asked),
    )


def _places_left(geometry: Geometry, layout: Collection[Placement]) -> int:
    """Number of placements that still fit beside the layout."""
    occupancy = geometry.occupancy(layout)
    return 0 if occupancy is None else len(geometry.fitting(occupancy))
