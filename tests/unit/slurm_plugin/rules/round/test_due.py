"""Tests when a round of quotas is due."""

import pytest

from slicewise.slurm_plugin.rules.round.due import NO_NEEDS, LastRound, RoundNeeds, is_due

GROWS = RoundNeeds(frozenset({("slicewise_nlp_borrowed", 2000)}))


@pytest.mark.parametrize(
    ("took_s", "wanted", "after_s", "due"),
    [
        (0.1, NO_NEEDS, 14.9, False),
        (0.1, NO_NEEDS, 15.0, True),
        (0.1, GROWS, 0.0, True),
        (0.1, RoundNeeds(recalls=frozenset()), 0.0, True),
        (1.0, GROWS, 3.9, False),
        (1.0, GROWS, 4.0, True),
        (6.0, NO_NEEDS, 15.0, False),
        (6.0, NO_NEEDS, 24.0, True),
        (40.0, GROWS, 60.0, True),
    ],
)
def test_a_round_comes_as_soon_as_somebody_waits_and_slurm_can_bear_it(
    took_s: float, wanted: RoundNeeds, after_s: float, *, due: bool
) -> None:
    assert is_due(LastRound(100.0, took_s), wanted, 100.0 + after_s) == due


@pytest.mark.parametrize(
    ("whole_s", "after_s", "due"),
    [(2.0, 0.0, True), (30.0, 29.0, False), (30.0, 30.0, True), (900.0, 60.0, True)],
)
def test_a_round_that_the_database_made_slow_is_followed_by_as_long_a_pause(
    whole_s: float, after_s: float, *, due: bool
) -> None:
    last = LastRound(100.0, 0.1, whole_s=whole_s)
    assert is_due(last, GROWS, 100.0 + after_s) == due


def test_what_a_round_could_not_do_is_left_to_the_regular_one() -> None:
    last = LastRound(100.0, 0.1, GROWS.limits)
    assert not is_due(last, GROWS, 101.0)
    assert is_due(last, GROWS, 115.0)
    more = RoundNeeds(GROWS.limits | {("slicewise_vision", 1000)})
    assert is_due(last, more, 101.0)
