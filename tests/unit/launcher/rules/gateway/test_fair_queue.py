"""Tests what a request counts in a fair queue, and how fast the queue's turn goes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.launcher.rules.gateway.fair_queue import (
    GUESSED_TOKENS,
    MOST_SUBJECTS,
    FairQueue,
    Position,
    SubjectUse,
    tokens_of,
    with_pace,
    with_uses,
)

USES = st.dictionaries(
    st.sampled_from(["physics", "biology", "law"]),
    st.builds(SubjectUse, st.integers(1, 50), st.floats(1, 1e6)),
    max_size=3,
)


def test_before_anything_has_ended_all_count_the_same_for_their_weight():
    others, own = tokens_of(FairQueue(), {"physics": 4.0})
    assert (others, own) == (GUESSED_TOKENS, {"physics": GUESSED_TOKENS / 4})


def test_a_subject_counts_what_its_own_requests_use_and_a_new_one_the_mean_of_all():
    uses = {"physics": SubjectUse(1, 100.0), "biology": SubjectUse(3, 900.0)}
    others, own = tokens_of(with_uses(FairQueue(), 0.0, uses), {})
    assert (others, own) == (250.0, {"physics": 100.0, "biology": 300.0})


@given(st.lists(USES, max_size=20))
def test_a_mean_is_between_the_least_and_the_most_that_was_used(looks: list[dict[str, SubjectUse]]):
    queue = FairQueue()
    for number, uses in enumerate(looks):
        queue = with_uses(queue, 1000.0 * number, uses)
    for name in {name for uses in looks for name in uses}:
        each = [uses[name].tokens / uses[name].requests for uses in looks if name in uses]
        mean = queue.means[name].tokens
        assert min(each) * (1 - 1e-9) <= mean <= max(each) * (1 + 1e-9)


def test_who_changes_is_known_after_some_requests():
    queue = with_uses(FairQueue(), 0.0, {"physics": SubjectUse(100, 10_000.0)})
    queue = with_uses(queue, 1000.0, {"physics": SubjectUse(60, 60_000.0)})
    assert queue.means["physics"].tokens == pytest.approx(1_000, rel=0.05)


@pytest.mark.parametrize("use", [SubjectUse(0, 10.0), SubjectUse(2, 0.0), SubjectUse(-1, -1.0)])
def test_what_can_be_no_use_changes_nothing(use: SubjectUse):
    assert with_uses(FairQueue(), 0.0, {"physics": use}) == FairQueue()


def test_those_who_ended_a_request_last_are_remembered():
    names = [f"tenant{number}" for number in range(MOST_SUBJECTS + 5)]
    queue = FairQueue()
    for number, name in enumerate(names):
        queue = with_uses(queue, float(number), {name: SubjectUse(1, 1.0)})
    assert sorted(queue.means) == sorted(names[5:])


def test_who_has_gone_for_an_hour_is_forgotten():
    queue = with_uses(FairQueue(), 0.0, {"physics": SubjectUse(1, 1.0)})
    queue = with_uses(queue, 3_600_000.0, {"biology": SubjectUse(1, 1.0)})
    assert list(queue.means) == ["biology"]


def test_while_nobody_waits_the_pace_stays():
    queue = FairQueue()
    for second in range(100):
        queue = with_pace(queue, 1000.0 * second, None)
    assert queue == FairQueue()


@settings(max_examples=30)
@given(st.floats(1.0, 30.0), st.floats(0.0, 60.0))
def test_the_turn_comes_to_go_by_the_clock(per_ms: float, wait_s: float):
    """``per_ms``: tokens that each who waits is served in a millisecond."""
    queue, start_ms = FairQueue(), 1_000_000.0
    turn_ms = start_ms
    for second in range(1, 601):
        pace = queue.pace.before if turn_ms < queue.pace.from_ms else queue.pace.then
        turn_ms += 1000 * per_ms * pace
        latest_ms = turn_ms + 1000 * wait_s * per_ms * pace
        now_ms = start_ms + 1000.0 * second
        queue = with_pace(queue, now_ms, Position(turn_ms, latest_ms))
        assert -200_000 < turn_ms - now_ms < 300_000


def test_another_pace_begins_after_all_that_waits():
    queue = with_pace(FairQueue(), 0.0, Position(0.0, 40_000.0))
    queue = with_pace(queue, 10_000.0, Position(1_000.0, 41_000.0))
    assert queue.pace.before == FairQueue().pace.then
    assert queue.pace.then == 4 * queue.pace.before
    assert queue.pace.from_ms > 41_000.0
    waiting = with_pace(queue, 11_000.0, Position(2_000.0, 42_000.0))
    assert (waiting.pace, waiting.since) == (queue.pace, None)
