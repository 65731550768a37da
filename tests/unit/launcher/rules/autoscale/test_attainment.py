"""Tests which share of requests is found to begin in time, and what follows from it."""

from collections.abc import Iterable
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.autoscale.attainment import (
    HIGHEST,
    LEAST,
    Attainment,
    Passing,
    learn_attainment,
    rested_attainment,
)


def looked_at(
    looks: Iterable[tuple[int, int]],
    *,
    aim: float = 0.9,
    in_time: int | None = None,
    is_full: bool = False,
    begun: Attainment | None = None,
) -> Attainment:
    """A look a second, each with what came and what waits; a place is in time within 2 s."""
    known = begun or Attainment()
    for second, (came, waiting) in enumerate(looks):
        seen = Passing(1000.0 + second, 1.0, came, waiting, 2.0, in_time, is_full=is_full)
        known = learn_attainment(known, seen, aim)
    return known


def test_who_never_waits_is_in_time():
    known = looked_at([(10, 0)] * 20)
    assert known.begun == pytest.approx(200, rel=0.01)
    assert known.late == 0
    assert known.waiting == ()


def test_of_ten_that_come_at_once_those_that_begin_after_the_objective_are_late():
    """Two begin at each look: four within 2 s, two after 1 to 3 s, four after 2 s and more."""
    known = looked_at([(10, 8), (0, 6), (0, 4), (0, 2), (0, 0)])
    assert known.late == pytest.approx(5, rel=0.01)
    assert known.begun == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("looks_waited", range(5))
def test_in_the_mean_as_many_are_found_late_as_are(looks_waited: int):
    """They come, and begin, spread over the time between two looks."""
    known = looked_at([(1000, 1000), *[(0, 1000)] * (looks_waited - 1), (0, 0)])
    moments = [(one + 0.5) / 50 for one in range(50)]
    late = mean(looks_waited + b - a > 2 for a in moments for b in moments)
    assert known.late == pytest.approx(1000 * late if looks_waited else 0, rel=0.03)


def test_those_that_come_in_the_look_in_which_they_begin_are_in_time():
    seen = Passing(1000.0, 1.0, came=100, waiting=0, within_s=0.0, in_time=None)
    assert not learn_attainment(Attainment(), seen, 0.9).late


def test_a_few_requests_hardly_move_the_price():
    """Of a hundred in time nobody can tell whether one in a hundred is late, nor of one late."""
    prompt = looked_at([(1, 0)] * 100, aim=0.99)
    assert prompt.goal == pytest.approx(1, abs=0.03)
    wakes = looked_at([(1, 1), *[(0, 1)] * 30, (0, 0)], aim=0.99)
    assert wakes.late == pytest.approx(1, rel=0.05)
    assert 1 < wakes.goal < 1.05


def test_with_the_newest_first_those_that_are_late_anyway_wait_longer():
    """Each second two come and one begins: in the order of arrival nearly all are late."""
    looks = [(2, waiting) for waiting in range(1, 31)]
    in_order, newest_first = (looked_at(looks, in_time=most) for most in (None, 2))
    assert newest_first.late < in_order.late - 5


def test_what_begins_too_late_makes_a_late_request_dearer_and_only_slowly():
    late = [(10, 10), (0, 10), (0, 10), (0, 0)] * 50
    known = looked_at(late)
    assert 1 < known.factor <= 1.004**1200
    assert known.goal > known.factor
    assert LEAST <= known.factor <= HIGHEST
    prompt = looked_at([(10, 0)] * 200)
    assert prompt.factor < 1


def test_in_the_long_run_as_many_are_late_as_the_aim_permits():
    """One in ten: whatever comes first, the price ends where it began."""
    in_turn = looked_at([*[(9, 0)] * 3, (3, 3), (0, 3), (0, 3), (0, 0)] * 200)
    assert in_turn.late / in_turn.begun == pytest.approx(0.1, abs=0.001)
    assert in_turn.missed(0.9) is None
    assert in_turn.goal == pytest.approx(1, abs=0.2)


def test_while_all_replicas_serve_that_may_run_a_higher_price_is_no_help():
    late = [(10, 10), (0, 10), (0, 10), (0, 0)] * 50
    known = looked_at(late, is_full=True)
    assert known.short == known.late > 0
    assert known.goal < 1


@pytest.mark.parametrize(
    ("begun", "late", "aim", "share"),
    [
        # Beyond chance: a request that waited for a start, of which none of a hundred may.
        (1.0, 1.0, 0.99, 0.0),
        (1.0, 1.0, 0.9, 0.0),
        (20.0, 1.0, 0.99, None),
        (20.0, 3.0, 0.99, 0.85),
        (20.0, 4.0, 0.9, None),
        # Of enough the share alone says it, of more than half an hour ago nothing does.
        (1000.0, 19.0, 0.99, None),
        (1000.0, 21.0, 0.99, 0.979),
        (0.3, 0.3, 0.99, None),
    ],
)
def test_an_aim_is_missed_by_more_than_a_point_and_than_chance_makes_of_a_few(
    begun: float, late: float, aim: float, share: float | None
):
    assert Attainment(begun=begun, late=late).missed(aim) == share


COUNTS = st.integers(0, 200)


@given(st.lists(st.tuples(COUNTS, COUNTS), max_size=60), st.none() | COUNTS, st.floats(0, 0.99999))
def test_it_stays_small_and_within_its_bounds(
    looks: list[tuple[int, int]], in_time: int | None, aim: float
):
    known = looked_at(looks, aim=aim, in_time=in_time)
    assert len(known.waiting) <= 32
    assert sum(one.count for one in known.waiting) == (looks[-1][1] if looks else 0)
    assert 0 <= known.short <= known.late <= known.begun
    assert LEAST <= known.goal <= HIGHEST


def test_a_rest_is_as_many_looks_that_see_nothing():
    known = looked_at([(10, 10), (0, 10), (0, 10), (0, 0)] * 20)
    one_by_one, at_once = looked_at([(0, 0)] * 30, begun=known), rested_attainment(known, 30.0)
    assert one_by_one.late == pytest.approx(at_once.late)
    assert one_by_one.factor == pytest.approx(at_once.factor)
