"""Tests the accounting clock: which steps of the host's clock it follows, and when."""

from itertools import pairwise

import pytest

from slicewise.slurm_plugin.rules.common.clock import (
    IDLE_S,
    SETTLED_S,
    STEP_S,
    Clock,
    distrusted,
    followed,
)

WALL_S = 1_000_000.0
MONOTONIC_S = 500.0
TRUSTED = Clock(WALL_S - MONOTONIC_S)


def time_after(*steps: tuple[float, float]) -> tuple[float, float]:
    """The trusted time less what passed, and the step that is not believed, after ``steps``.

    Each step says how many seconds later both clocks are read, and by how many the host's was set.
    """
    clock, passed_s, set_s = TRUSTED, 0.0, 0.0
    for later_s, more_s in steps:
        passed_s, set_s = passed_s + later_s, set_s + more_s
        clock = followed(clock, WALL_S + passed_s + set_s, MONOTONIC_S + passed_s)
    return clock.offset_s + MONOTONIC_S - WALL_S, clock.stepped_s


@pytest.mark.parametrize(
    ("steps", "follows_s", "stepped_s"),
    [
        ([(1, 0)], 0, 0),
        ([(1, STEP_S)], STEP_S, 0),
        ([(1, -STEP_S)], -STEP_S, 0),
        ([(1, STEP_S + 1)], 0, STEP_S + 1),
        ([(1, -STEP_S - 1)], 0, -STEP_S - 1),
        ([(1, -7200)], 0, -7200),
        ([(1, -7200), (SETTLED_S - 1, 0)], 0, -7200),
        ([(1, -7200), (SETTLED_S, 0)], -7200, 0),
        ([(1, 7200), (SETTLED_S - 1, 0)], 0, 7200),
        ([(1, 7200), (SETTLED_S, 0)], 7200, 0),
        ([(1, -7200), (60, 7200)], 0, 0),
        ([(1, -7200), (SETTLED_S - 1, -7200), (SETTLED_S - 1, 0)], 0, -14_400),
        ([(1, -7200), (SETTLED_S - 1, STEP_S), (1, 0)], -7200 + STEP_S, 0),
    ],
)
def test_a_large_step_either_way_is_followed_only_once_it_has_stayed_for_an_hour(
    steps: list[tuple[float, float]], follows_s: float, stepped_s: float
) -> None:
    assert time_after(*steps) == (follows_s, stepped_s)


def test_without_a_history_the_wall_clock_is_believed() -> None:
    assert followed(None, WALL_S, MONOTONIC_S) == TRUSTED


def test_a_clock_that_is_slewed_is_followed_all_the_time() -> None:
    clocks = [TRUSTED]
    for minute in range(1, 120):
        slewed_s = WALL_S + minute * (60 - STEP_S)
        clocks.append(followed(clocks[-1], slewed_s, MONOTONIC_S + minute * 60))
    assert all(after.offset_s - before.offset_s == -STEP_S for before, after in pairwise(clocks))


@pytest.mark.parametrize(
    ("database_s", "known_s", "words"),
    [
        (WALL_S, [], ""),
        (WALL_S + STEP_S, [WALL_S], ""),
        (WALL_S - STEP_S, [WALL_S], ""),
        (WALL_S + STEP_S + 1, [WALL_S], "clock is -61 s ahead of PostgreSQL's"),
        (WALL_S - STEP_S - 1, [WALL_S], "clock is +61 s ahead of PostgreSQL's"),
        (WALL_S, [None, WALL_S - IDLE_S], ""),
        (WALL_S, [None, WALL_S - IDLE_S - 1], "newest row is 100 days old"),
        (WALL_S, [WALL_S - IDLE_S - 1, WALL_S - 1], ""),
    ],
)
def test_a_process_without_a_history_compares_the_wall_clock_with_the_ledger(
    database_s: float, known_s: list[float | None], words: str
) -> None:
    found = distrusted(WALL_S, database_s, known_s)
    assert (words in found) if words else (found == "")
