"""Tests the model of an engine whose cache can be full, and what the launcher makes of it."""

from random import Random

import pytest

from studies.first_tokens import (
    PROMPT_S,
    RUNNING_S,
    STEP_S,
    Asked,
    Case,
    Counters,
    Engine,
    measured,
)


def engine(limit: int, cache: int = 2_000) -> Engine:
    return Engine(Case(cache, 100, 100), Random(1), limit)  # noqa: S311 -- seeded on purpose


def test_a_request_alone_takes_its_steps():
    found = engine(1)
    while not found.answered:
        found.until(found.now_s + 0.001)
    one = found.answered[0]
    step_s = STEP_S + RUNNING_S
    assert one.first_s == pytest.approx(step_s + PROMPT_S * one.prompt)
    assert found.token_s == pytest.approx((one.answer - 1) * step_s)


@pytest.mark.parametrize("limit", [1, 4, 40])
def test_what_runs_is_held_and_nothing_is_lost(limit: int):
    found = engine(limit)
    for second in range(1, 60):
        found.until(second)
        assert found.held == sum(one.held for one in found.running) <= 2_000
        assert len(found.running) + len(found.waiting) <= limit
    assert all(one.made == one.answer for one in found.answered)
    assert bool(found.waiting) == (limit == 40)


def test_a_full_cache_makes_first_tokens_late():
    few, many = engine(6), engine(40)
    for one in (few, many):
        one.until(120)
    assert max(one.first_s for one in few.answered) < 1 < many.answered[-1].first_s


def test_counters_say_what_has_ended():
    found, counters = engine(4), Counters()
    found.answered = [Asked(10, 5, 0.0, first_s=0.3), Asked(10, 7, 0.0, first_s=0.5)]
    said = counters.said(found, "servers")
    assert (said.first_s, said.tokens, said.requests, sum(said.firsts)) == (0.8, 12.0, 2.0, 2.0)
    assert counters.said(found, "sums").firsts == ()


def test_the_objective_is_kept_where_servers_tell_their_queue():
    runs = {
        tells: measured(Case(16_000, 300, 300), 3.0, tells, 600) for tells in ("sums", "servers")
    }
    assert runs["servers"]["late"] < 0.05 < runs["sums"]["late"]
    assert runs["servers"]["answers_per_s"] > runs["sums"]["answers_per_s"]
