"""Tests how urgent a backlog is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.turn.urgency import urgency

_counts = st.integers(0, 100_000)


@pytest.mark.parametrize(
    ("waiting", "places", "expected"),
    [
        (0, 0, 0.0),
        (0, 8, 0.0),
        (1, 0, 1.0),
        (500, 0, 1.0),
        (1, 100, 0.1),
        (8, 8, 0.5),
        (9, 1, 0.9),
        (90, 1, 1.0),
    ],
)
def test_of_those_that_wait_and_those_that_are_served(
    waiting: int, places: int, expected: float
) -> None:
    assert urgency(Load(in_flight=places, queued=waiting), places) == pytest.approx(expected)
    assert urgency(Load(held=waiting), places) == pytest.approx(expected)


@given(_counts, _counts, _counts)
def test_more_waiting_presses_more_and_more_places_less(
    waiting: int, more: int, places: int
) -> None:
    now = urgency(Load(queued=waiting), places)
    assert 0.0 <= now <= 1.0
    assert urgency(Load(queued=waiting + more), places) >= now
    assert urgency(Load(queued=waiting), places + more) <= now
