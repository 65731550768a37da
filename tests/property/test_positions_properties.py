"""Property: where devices go by Slurm's index, for any node and any jobs on it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.rules.slurm_config.gres import Device
from slicewise.slurm_plugin.rules.slurm_config.node_lines import Positions, positions


def kinds_of(found: Positions) -> list[str | None]:
    return [one and one.gres_type for one in found]


KINDS = st.sampled_from(("1g", "2g", "3g"))


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Positions, tuple[Device, ...], frozenset[int]]:
    """What is there, what will be, and what jobs hold of both."""
    size = draw(st.integers(1, 7))
    first = [Device(draw(KINDS), (f"/dev/{n}",)) for n in range(draw(st.integers(0, size)))]
    before = positions([None] * size, first, ())
    held = {i for i, one in enumerate(before) if one is not None and draw(st.booleans())}
    kept = [before[i] for i in sorted(held)]
    fresh = draw(st.integers(0, size - len(kept)))
    new = [Device(draw(KINDS), (f"/dev/new{n}",)) for n in range(fresh)]
    after = draw(st.permutations([*(one for one in kept if one is not None), *new]))
    return before, tuple(after), frozenset(held)


def is_one_run_each(kinds: Sequence[str | None]) -> bool:
    runs = [kind for kind, _ in groupby(kinds) if kind is not None]
    return len(runs) == len(set(runs))


def orders(size: int, counts: Mapping[str, int]) -> Iterator[Sequence[str | None]]:
    """Every one that Slurm can have."""
    for pads in combinations(range(size), size - sum(counts.values())):
        for kinds in permutations(counts):
            rest = [kind for kind in kinds for _ in range(counts[kind])]
            found = [None if index in pads else rest.pop(0) for index in range(size)]
            if is_one_run_each(found):
                yield found


@given(nodes())
def test_held_devices_stay_if_slurm_has_any_order_for_it(
    node: tuple[Positions, tuple[Device, ...], frozenset[int]],
) -> None:
    before, after, held = node
    wanted = {index: kind for index, kind in enumerate(kinds_of(before)) if index in held}
    possible = any(
        all(order[index] == kind for index, kind in wanted.items())
        for order in orders(len(before), Counter(one.gres_type for one in after))
    )
    if not possible:
        with pytest.raises(InvalidInputError, match="SW-REPARTITION-HELD"):
            positions(before, after, held)
        return
    found = positions(before, after, held)
    assert all(found[index] == before[index] for index in held)
    assert sorted(one.files for one in found if one) == sorted(one.files for one in after)
    assert is_one_run_each(kinds_of(found))


@given(nodes())
def test_nothing_held_always_goes(
    node: tuple[Positions, tuple[Device, ...], frozenset[int]],
) -> None:
    before, after, _ = node
    assert positions(before, after, ()).count(None) == len(before) - len(after)
