"""Whatever a node's boards do, the parts of their hours add up to what their counters say."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.energy import (
    NOBODY,
    BoardHolding,
    BoardReading,
    Metered,
    NodeMoment,
    metered,
    shared,
)

PPM = st.one_of(st.none(), st.integers(0, 1_000_000))
JOBS = st.lists(st.integers(NOBODY, 5), max_size=4, unique=True).map(tuple)
HOLDINGS = st.lists(st.builds(BoardHolding, st.integers(1, 7), JOBS, PPM), max_size=7).map(tuple)
STEPS = st.lists(
    st.tuples(
        st.integers(1, 20_000_000),
        st.integers(-7_200_000, 7_200_000),
        st.integers(0, 2000),
        HOLDINGS,
    ),
    max_size=8,
)


@given(st.integers(0, 10**12), st.integers(0, 10**12), HOLDINGS)
def test_parts_add_up(energy_mj: int, idle_mj: int, holdings: tuple[BoardHolding, ...]) -> None:
    parts = shared(energy_mj, idle_mj, holdings)
    assert sum(parts.values()) == energy_mj
    assert all(part_mj > 0 for part_mj in parts.values())


@given(STEPS)
def test_hours_add_up_to_the_counter(
    steps: list[tuple[int, int, int, tuple[BoardHolding, ...]]],
) -> None:
    """Whoever comes and goes, however long the gaps, and however the clock is set."""
    board = BoardReading("GPU-1", "H200-141GB", 0, None, 80_000, ())
    at = NodeMoment(1_764_500_400_000, 1, "a")
    known = metered(Metered("m1"), [board], at)
    counter_mj = 0
    for elapsed_ms, set_ms, power_w, holdings in steps:
        counter_mj += elapsed_ms * power_w
        at = NodeMoment(at.wall_ms + elapsed_ms + set_ms, at.up_ms + elapsed_ms, "a")
        known = metered(known, [replace(board, counter_mj=counter_mj, holdings=holdings)], at)
    assert sum(hour.energy_mj for hour in known.hours.values()) == counter_mj
    for hour in known.hours.values():
        assert sum(hour.parts.values()) == hour.energy_mj
