"""Tests how long a request takes by Little's law, also where what users ask changes."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from slicewise.launcher.rules.autoscale.service_time import WorkDone, learn_work


def answered(known: WorkDone, count: int, each_s: float, at_once: int = 5) -> WorkDone:
    for _ in range(count // at_once):
        known = learn_work(known, at_once * each_s, at_once)
    return known


@pytest.mark.parametrize("ratio", [20.0, 1 / 20, 3.0, 1 / 3])
def test_where_lengths_change_the_last_answers_count_alone(ratio: float):
    before = answered(WorkDone(), 3000, 3.0)
    after = answered(before, 250, 3.0 * ratio)
    assert before.service_s == pytest.approx(3.0, rel=0.01)
    assert after.service_s == pytest.approx(3.0 * ratio, rel=0.2)


def test_where_they_change_little_all_answers_count():
    after = answered(answered(WorkDone(), 3000, 3.0), 50, 3.9)
    assert 3.0 < after.service_s < 3.2


def test_few_answers_are_no_change():
    known = learn_work(answered(WorkDone(), 3000, 3.0), 900.0, 5)
    started = learn_work(WorkDone(), 80.0, 20)
    assert started.service_s == pytest.approx(81 / 21, rel=0.01)
    assert known.service_s > 4.5


def test_chance_is_hardly_ever_taken_for_a_change():
    """Exponential times: one mean in a thousand of 50 is half as long again."""
    random, known, changed, looks = Random(7), answered(WorkDone(), 3000, 3.0), 0, 20_000  # noqa: S311
    for _ in range(looks):
        known = learn_work(known, 5 * 3.0 * sum(random.expovariate(1) for _ in range(5)) / 5, 5)
        changed += known.service_s != known.busy_s / known.answers
    assert changed / looks < 0.002


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 1000)), max_size=60))
def test_the_time_of_a_request_is_always_one(looks: list[tuple[float, int]]):
    known = WorkDone()
    for busy_s, count in looks:
        known = learn_work(known, busy_s, count)
        assert 0.001 <= known.service_s <= 1e6 * 61


def test_what_was_saved_before_is_read_and_counts():
    known = TypeAdapter(WorkDone).validate_python({"busy_s": 1500.0, "answers": 500.0})
    assert known.service_s == 3.0
    assert answered(known, 20, 60.0).service_s < 6.0
