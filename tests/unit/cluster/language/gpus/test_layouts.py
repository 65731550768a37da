"""Tests the layouts of every board against an enumeration that knows only the driver's rules."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import pytest

from slicewise.cluster.language.gpus.layouts import Geometry, Layout, Placement, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, board, boards

BOARDS = sorted(boards())
Counts = tuple[tuple[str, int], ...]


@cache
def enumerated(model: str) -> frozenset[Layout]:
    """From the first memory slice to the last: something begins there, or nothing does."""
    on = board(model)

    def from_slice(first: int) -> Iterator[tuple[Placement, ...]]:
        if first >= on.memory_slices:
            yield ()
            return
        yield from from_slice(first + 1)
        for profile in on.profiles.values():
            if first in profile.starts:
                one = Placement(profile.name, first, profile.memory_slices)
                for others in from_slice(first + one.size):
                    yield (one, *others)

    return frozenset(frozenset(found) for found in from_slice(0) if keeps_engines(on, found))


def keeps_engines(on: Board, instances: tuple[Placement, ...]) -> bool:
    """As many as the driver gives; one engine for optical flow; all media engines to one.

    On AMD's boards all partitions have one mode.
    """
    names = [one.profile for one in instances]
    if on.vendor == "AMD":
        return len(set(names)) <= 1
    with_media = [name for name in names if not name.endswith("-me")]
    return (
        all(count <= on.profiles[name].max_instances for name, count in Counter(names).items())
        and sum("+me" in name for name in names) <= 1
        and not (any(name.endswith("+me.all") for name in names) and len(with_media) > 1)
    )


@pytest.mark.parametrize("model", BOARDS)
def test_the_layouts_are_exactly_those_that_the_rules_allow(model: str):
    found = geometry(board(model))
    assert len(found.layouts) == len(set(found.layouts))
    assert set(found.layouts) == enumerated(model)


@pytest.mark.parametrize("model", BOARDS)
def test_an_instance_fits_exactly_where_it_makes_a_layout(model: str):
    found, every = geometry(board(model)), enumerated(model)
    for layout in found.layouts:
        occupancy = found.occupancy(layout)
        assert occupancy is not None
        joining = {one for one in found.placements if layout | {one} in every and one not in layout}
        assert set(found.fitting(occupancy)) == joining


@pytest.mark.parametrize("model", BOARDS)
def test_no_layout_has_more_compute_slices_than_the_board(model: str):
    on = board(model)
    for layout in geometry(on).layouts:
        assert sum(on.profiles[one.profile].compute_slices for one in layout) <= on.compute_slices


def test_two_placements_conflict_exactly_if_no_layout_has_both():
    for model in ("A30-24GB", "RTX-PRO-6000-Blackwell-96GB"):
        conflicts = geometry(board(model)).conflicts
        together = {(a, b) for layout in enumerated(model) for a in layout for b in layout - {a}}
        for one, against in conflicts.items():
            assert {other for other in conflicts if (one, other) not in together} == against


def plain(model: str, *, double_memory: bool = True) -> Geometry:
    on = board(model)
    kept = {
        name: profile
        for name, profile in on.profiles.items()
        if not ("+" in name or "-" in name)
        and (double_memory or profile.compute_slices > 1 or profile.memory_slices == 1)
    }
    return geometry(replace(on, profiles=kept))


def counts_of(found: Geometry) -> Mapping[str, int]:
    """As the table's own arithmetic counts them."""
    multisets = {counted(one) for one in found.layouts}
    growing = {shrunk for one in multisets for shrunk in without_one(one)}
    return {
        "layouts": len(found.layouts),
        "maximal_layouts": len(found.maximal),
        "multisets_of_maximal_layouts": len({counted(one) for one in found.maximal}),
        "multisets": len(multisets),
        "multisets_nothing_can_join": len(multisets - growing),
    }


def counted(layout: Layout) -> Counts:
    return tuple(sorted(Counter(one.profile for one in layout).items()))


def without_one(counts: Counts) -> Iterator[Counts]:
    for name, _ in counts:
        yield tuple(sorted((Counter(dict(counts)) - Counter([name])).items()))


@pytest.mark.parametrize(
    ("table", "kind", "found"),
    [
        ("seven_slice_boards", "plain", plain("A100-80GB")),
        ("seven_slice_boards", "plain", plain("H200-141GB")),
        (
            "seven_slice_boards",
            "plain_without_double_memory",
            plain("A100-80GB", double_memory=False),
        ),
        ("A30", "plain", plain("A30-24GB")),
        ("RTX_PRO_6000", "plain", plain("RTX-PRO-6000-Blackwell-96GB")),
    ],
)
def test_there_are_as_many_as_the_table_of_profiles_says(table: str, kind: str, found: Geometry):
    text = (
        resources.files("slicewise.cluster.language.gpus")
        .joinpath("mig_profiles.json")
        .read_text(encoding="utf-8")
    )
    expected = json.loads(text)["enumeration"][table][kind]
    assert counts_of(found).items() <= expected.items()


def test_what_is_not_of_the_board_is_no_layout():
    found = geometry(board("A30-24GB"))
    assert found.occupancy([Placement("3g.20gb", 0, 4)]) is None
    assert found.occupancy([Placement("2g.12gb", 1, 2)]) is None


def test_a_profile_with_fewer_instances_than_room_ends_at_its_number():
    on = board("A30-24GB")
    two = replace(on.profiles["1g.6gb"], max_instances=2)
    found = geometry(replace(on, profiles={"1g.6gb": two}))
    assert Counter(len(layout) for layout in found.layouts) == {0: 1, 1: 4, 2: 6}
