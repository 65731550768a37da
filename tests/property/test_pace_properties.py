"""Whatever happens, looks at Slurm keep their bounds."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slicewise.slurm_plugin.rules.services.pace import (
    LONGEST_S,
    Allowance,
    Looked,
    Pace,
    next_look_s,
    spent,
)

PACES = st.builds(
    Pace,
    moving_s=st.floats(0.1, 15),
    waiting_s=st.floats(0.1, 15),
    rest_s=st.floats(0.1, 15),
    requests_per_min=st.floats(60, 6000),
)
TIMES_S = st.floats(0, 60)
LOOKS = st.builds(
    Looked,
    ended_s=st.just(100.0),
    took_s=st.floats(0, 20),
    answered_s=st.floats(0, 20),
    moves=st.booleans(),
    waits=st.booleans(),
    stirred_s=st.none() | st.floats(100, 130),
    stirred_last_s=st.just(float("-inf")) | st.floats(80, 130),
    acted=st.booleans(),
)
ALLOWANCES = st.builds(Allowance, left=st.floats(-3000, 6000), at_s=st.just(100.0))


@given(LOOKS, ALLOWANCES, PACES)
def test_no_look_comes_before_the_last_one_is_over_or_much_later(
    looked: Looked, allowance: Allowance, pace: Pace
) -> None:
    assert 0 <= next_look_s(looked, allowance, pace) - looked.ended_s <= LONGEST_S


@given(LOOKS, PACES)
def test_unless_something_was_changed_slurmctld_answers_looks_a_fifth_of_the_time_at_most(
    looked: Looked, pace: Pace
) -> None:
    """And half of the time is for other things than looks."""
    looked = replace(looked, acted=False)
    pause_s = next_look_s(looked, Allowance(6000, 100.0), pace) - looked.ended_s
    assert pause_s >= min(5 * looked.answered_s, LONGEST_S) - 1e-9
    assert pause_s >= min(looked.took_s, LONGEST_S) - 1e-9
    assert pause_s >= min(pace.moving_s, LONGEST_S) - 1e-9


@given(LOOKS, ALLOWANCES, PACES)
def test_what_happens_makes_a_look_earlier_never_later(
    looked: Looked, allowance: Allowance, pace: Pace
) -> None:
    quiet = replace(looked, moves=False, stirred_s=None, stirred_last_s=float("-inf"), acted=False)
    later_s = next_look_s(quiet, allowance, pace)
    assert next_look_s(replace(looked, stirred_s=None), allowance, pace) <= later_s
    assert next_look_s(replace(looked, acted=True), allowance, pace) <= later_s


@given(PACES, st.lists(st.tuples(TIMES_S, st.integers(0, 200)), max_size=40))
def test_looks_that_wait_for_the_allowance_keep_it(
    pace: Pace, others: list[tuple[float, int]]
) -> None:
    """However many looks are wanted, at most a minute's requests and what has come since are made.

    Others (commands that answer a person) may take more; looks then make up for it.
    """
    allowance, now_s, made = Allowance(pace.requests_per_min, 0.0), 0.0, 0
    for pause_s, more in others:
        due_s = next_look_s(Looked(now_s, 0.0, 0.0, acted=True), allowance, pace)
        is_affordable = due_s - now_s < LONGEST_S - 1e-6
        now_s = max(due_s, now_s + pause_s)
        allowance = spent(allowance, 0, pace, now_s)
        if is_affordable:
            assert allowance.left >= 4 - 1e-6
        allowance, made = spent(allowance, 4 + more, pace, now_s), made + 4 + more
        assert allowance.left <= pace.requests_per_min
        assert (
            made <= pace.requests_per_min * (1 + now_s / 60) - allowance.left + 1e-3 * made + 1e-3
        )
