"""Property: how many changes of a user are taken, however they are spaced."""

from effort import examples
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.services.rate_limit import (
    RateLimit,
    RateUse,
    after_change,
    wait_s,
)

RATE = RateLimit(at_once=5, every_s=10.0)
pauses = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=60)


@given(pauses)
@hypothesis_settings(max_examples=examples(200))
def test_in_no_stretch_of_time_more_than_the_rate_allows(pauses_s: list[float]) -> None:
    known, now_s, taken_s = RateUse(), 0.0, list[float]()
    for pause_s in pauses_s:
        now_s += pause_s
        if not wait_s(known, RATE, now_s):
            known = after_change(known, RATE, now_s)
            taken_s.append(now_s)
    for first, since_s in enumerate(taken_s):
        for last, until_s in enumerate(taken_s[first:], start=first):
            allowed = RATE.at_once + (until_s - since_s) / RATE.every_s
            assert last - first + 1 <= allowed + 1e-6


@given(pauses)
@hypothesis_settings(max_examples=examples(200))
def test_who_waits_as_long_as_he_is_told_is_always_let_in(pauses_s: list[float]) -> None:
    known, now_s = RateUse(), 0.0
    for pause_s in pauses_s:
        now_s += pause_s
        now_s += wait_s(known, RATE, now_s) + 1e-6
        assert wait_s(known, RATE, now_s) == 0.0
        known = after_change(known, RATE, now_s)


def test_so_many_at_once_and_one_more_in_time() -> None:
    known = RateUse()
    for _ in range(RATE.at_once):
        assert wait_s(known, RATE, 50.0) == 0.0
        known = after_change(known, RATE, 50.0)
    assert (wait_s(known, RATE, 50.0), wait_s(known, RATE, 57.5)) == (10.0, 2.5)
    assert wait_s(known, RATE, 60.0) == 0.0
