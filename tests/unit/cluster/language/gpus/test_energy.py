"""Tests how a board's joules are divided among jobs, over hours, restarts and resets."""

from dataclasses import replace

import pytest

from slicewise.cluster.language.gpus.energy import (
    HOUR_MS,
    KEPT_MS,
    NOBODY,
    BoardHolding,
    BoardHourKey,
    BoardReading,
    EnergyMeasure,
    Metered,
    NodeMoment,
    Split,
    metered,
    pruned,
    shared,
)
from slicewise.cluster.language.gpus.energy import (
    EnergyPart as Part,
)

IDLE = Part(NOBODY, Split.IDLE)
BOARD = BoardReading("GPU-1", "H200-141GB", 0, 100_000, 80_000, ())
HOUR_S = 1_764_500_400
NOON_MS = HOUR_S * 1000


def at(up_s: float, boot: str = "a", wall_ms: int = NOON_MS) -> NodeMoment:
    return NodeMoment(wall_ms + round(up_s * 1000), round(up_s * 1000), boot)


def seen(*readings: tuple[float, int | None, tuple[BoardHolding, ...]]) -> Metered:
    """What a meter knows after these: second, counter, holdings."""
    known = Metered("m1")
    for up_s, counter_mj, holdings in readings:
        reading = replace(BOARD, counter_mj=counter_mj, holdings=holdings)
        known = metered(known, [reading], at(up_s))
    return known


def hour(
    known: Metered, hour_s: int = HOUR_S, measure: EnergyMeasure = EnergyMeasure.COUNTER
) -> dict:
    return dict(known.hours[BoardHourKey(hour_s, "GPU-1", EnergyMeasure(measure))].parts)


def test_an_idle_board_is_nobodys() -> None:
    assert shared(1000, 700, ()) == {IDLE: 1000}


def test_idle_joules_are_apart_however_many_hold_the_board() -> None:
    both = (BoardHolding(3, (7,)), BoardHolding(4, (8,)))
    assert shared(1000, 300, both) == {
        IDLE: 300,
        Part(7, Split.SLICES): 300,
        Part(8, Split.SLICES): 400,
    }


def test_activity_weighs_slices_if_it_is_known_of_all() -> None:
    both = (BoardHolding(3, (7,), 500_000), BoardHolding(1, (8,), 500_000))
    assert shared(400, 0, both) == {
        Part(7, Split.ACTIVITY): 300,
        Part(8, Split.ACTIVITY): 100,
    }
    one = (BoardHolding(3, (7,), 900_000), BoardHolding(1, (8,), None))
    assert shared(400, 0, one) == {
        Part(7, Split.SLICES): 300,
        Part(8, Split.SLICES): 100,
    }


def test_a_job_that_is_not_busy_has_none_of_the_work() -> None:
    both = (BoardHolding(3, (7,), 0), BoardHolding(1, (8,), 10))
    assert shared(400, 100, both) == {IDLE: 100, Part(8, Split.ACTIVITY): 300}


def test_without_any_activity_slices_count() -> None:
    both = (BoardHolding(3, (7,), 0), BoardHolding(1, (8,), 0))
    assert shared(400, 0, both) == {
        Part(7, Split.SLICES): 300,
        Part(8, Split.SLICES): 100,
    }


def test_jobs_of_one_instance_have_equal_parts_and_those_of_no_job_are_nobodys() -> None:
    both = (BoardHolding(2, (7, 8)), BoardHolding(1, (NOBODY,)))
    assert shared(900, 0, both) == {
        Part(7, Split.SLICES): 300,
        Part(8, Split.SLICES): 300,
        IDLE: 300,
    }


def test_a_job_alone_has_all_but_the_idle_part() -> None:
    both = (BoardHolding(2, (7,), 10), BoardHolding(1, (7,), 500_000))
    assert shared(900, 200, both) == {IDLE: 200, Part(7, Split.ALONE): 700}


def test_a_board_that_takes_less_than_idle_is_nobodys() -> None:
    assert shared(50, 80, (BoardHolding(7, (7,)),)) == {IDLE: 50}


def test_the_first_reading_says_nothing() -> None:
    assert not seen((0.001, 5_000_000, ())).hours


def test_what_the_counter_says_is_the_job_s_but_the_idle_part() -> None:
    known = seen((1, 1_000_000, ()), (11, 3_000_000, (BoardHolding(7, (9,)),)))
    assert hour(known) == {IDLE: 800_000, Part(9, Split.ALONE): 1_200_000}
    (one,) = known.hours.values()
    assert (one.energy_mj, one.covered_ms) == (2_000_000, 10_000)
    assert (one.checked_mj, one.power_mj) == (2_000_000, 1_000_000)


def test_an_interval_is_divided_among_the_hours_it_lies_in() -> None:
    known = metered(Metered("m1"), [BOARD], at(1, wall_ms=NOON_MS - 6000))
    after = replace(BOARD, counter_mj=1001, holdings=(BoardHolding(7, (9,)),))
    known = metered(known, [replace(after, idle_mw=0)], at(11, wall_ms=NOON_MS - 6000))
    assert hour(known, HOUR_S - 3600) == {Part(9, Split.ALONE): 501}
    assert hour(known) == {Part(9, Split.ALONE): 500}


def test_a_gap_is_nobodys_and_nothing_of_it_is_lost() -> None:
    holding = (BoardHolding(7, (9,)),)
    known = seen((1, 0, holding), (11, 1_000_000, holding), (400, 40_000_000, holding))
    assert hour(known)[IDLE] == 800_000 + 39_000_000
    assert hour(known)[Part(9, Split.ALONE)] == 200_000
    (one,) = known.hours.values()
    assert one.checked_mj == 1_000_000


def test_a_counter_begins_again_with_the_boot() -> None:
    known = seen((1000, 50_000_000, ()))
    after = replace(BOARD, counter_mj=60_000_000, holdings=(BoardHolding(7, (9,)),))
    known = metered(known, [after], at(1800, boot="b"))
    assert hour(known) == {IDLE: 60_000_000}


def test_a_counter_that_fell_was_loaded_again() -> None:
    known = seen((1, 50_000_000, ()), (11, 700, (BoardHolding(7, (9,)),)))
    assert hour(known) == {IDLE: 700}


def test_without_a_counter_power_times_time_counts_and_a_gap_is_unknown() -> None:
    holding = (BoardHolding(7, (9,)),)
    known = seen((1, None, holding), (11, None, holding), (400, None, holding))
    assert hour(known, measure=EnergyMeasure.POWER) == {
        IDLE: 800_000,
        Part(9, Split.ALONE): 200_000,
    }


def test_a_gap_longer_than_hours_are_kept_counts_as_far_as_they_are() -> None:
    known = metered(Metered("m1"), [BOARD], at(1))
    gap_ms = 2 * KEPT_MS
    later = NodeMoment(NOON_MS + 1000 + gap_ms, 1000 + gap_ms, "a")
    known = metered(known, [replace(BOARD, counter_mj=1_000_000)], later)
    assert sum(one.energy_mj for one in known.hours.values()) == 500_000
    assert len(known.hours) == KEPT_MS // HOUR_MS + 1


def test_a_clock_that_was_set_loses_nothing() -> None:
    known = metered(Metered("m1"), [BOARD], at(1))
    for up_s, wall_ms in ((11, NOON_MS - 7_200_000), (21, NOON_MS + 7_200_000)):
        reading = replace(BOARD, counter_mj=up_s * 1000)
        known = metered(known, [reading], at(up_s, wall_ms=wall_ms))
    assert sum(one.energy_mj for one in known.hours.values()) == 21_000


@pytest.mark.parametrize(
    ("later_s", "kept"), [(0, 2), (3600, 2), (7200, 1), (KEPT_MS // 1000 + 7200, 0)]
)
def test_hours_are_kept_until_they_are_told_and_over(later_s: int, kept: int) -> None:
    known = metered(Metered("m1"), [BOARD], at(1, wall_ms=NOON_MS - 6000))
    known = metered(known, [replace(BOARD, counter_mj=1000)], at(11, wall_ms=NOON_MS - 6000))
    told = {key: one for key, one in known.hours.items() if key.hour_s < HOUR_S}
    if later_s == 0:
        told = {}
    assert len(pruned(known, told, NOON_MS + later_s * 1000).hours) == kept


def test_an_hour_is_kept_until_its_board_was_read_after_it() -> None:
    """A board may be lost over the end of an hour: what its counter then has is added to both."""
    known = metered(Metered("m1"), [BOARD], at(1, wall_ms=NOON_MS - 60_000))
    known = metered(known, [replace(BOARD, counter_mj=1000)], at(11, wall_ms=NOON_MS - 60_000))
    known = pruned(known, known.hours, NOON_MS + 4 * HOUR_MS)
    late = at(60 + 4 * 3600, wall_ms=NOON_MS - 60_000)
    known = metered(known, [replace(BOARD, counter_mj=9_000_000)], late)
    assert sum(one.energy_mj for one in known.hours.values()) == 9_000_000
    assert hour(known, HOUR_S - 3600)[IDLE] > 1000
    assert len(pruned(known, known.hours, late.wall_ms).hours) == 2


def test_a_counter_that_is_silent_once_loses_nothing() -> None:
    holding = (BoardHolding(7, (9,)),)
    known = seen((1, 0, holding), (11, None, holding), (21, 4_000_000, holding))
    assert hour(known) == {IDLE: 1_600_000, Part(9, Split.ALONE): 2_400_000}
    assert {key.measure for key in known.hours} == {EnergyMeasure.COUNTER}
