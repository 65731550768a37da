"""Tests objectives of tokens: what was counted, and how many requests a replica then gets."""

from bisect import bisect
from collections.abc import Callable
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.tokens import TokensDone, learn_tokens
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, TokenCounts
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load

SCALING = Scaling(0, 1, 64, learns=True)
TOKENS = 50


def token_s(requests: int) -> float:
    """10 ms with one request at a time, and 1 ms for each other one."""
    return 0.009 + 0.001 * requests


def first_s(requests: int) -> float:
    return 0.1 * requests


def chunks_s(requests: int) -> float:
    """A prompt is computed in 30 steps, of which each gives the other requests a token."""
    return 30 * token_s(requests)


def lived(
    scaling: Scaling,
    seconds: int = 900,
    *,
    is_timed: bool = True,
    has_tail: bool = False,
    first_s: Callable[[int], float] = first_s,
    tells_queue: bool = True,
    memory: Memory | None = None,
) -> Memory:
    """A service with one replica that is always full."""
    memory, arrived, answered, begun_s = memory or initial(Supply(ready=1), 0.0), 500.0, 0.0, 0
    if memory.seen is not None:
        arrived, answered = float(memory.seen.arrived), float(memory.seen.answered)
        begun_s = int(memory.seen.at_s) + 1
    firsts_s, tokens, tokens_s = 0.0, 0.0, 0.0
    firsts: tuple[float, ...] = bins(1.0, 0.0) if has_tail else ()
    for second in range(begun_s, begun_s + seconds):
        places = min(memory.capacity.limit, scaling.concurrency)
        took_s = first_s(places) + TOKENS * token_s(places)
        done = places / took_s
        arrived, answered = arrived + done, answered + done
        firsts_s += done * first_s(places)
        tokens += done * TOKENS
        tokens_s += done * TOKENS * token_s(places)
        if has_tail:
            late, others = bins(3 * first_s(places), done / 10), bins(first_s(places), done)
            firsts = tuple(map(sum, zip(firsts, late, others, strict=True)))
        told = TokenCounts(firsts_s, tokens, tokens_s, None, firsts) if is_timed else None
        load = Load(places, 500, 0, int(arrived), int(answered))
        look = ServiceLook(float(second), load, Supply(ready=1), serving=1, tokens=told)
        if has_tail and tells_queue:
            look = replace(look, servers=ServersLoad(places, 0))
        memory, _ = autoscale(scaling, memory, look)
    return memory


def test_a_replica_gets_as_many_as_keep_the_time_of_a_token():
    """With 20 requests at a time a token takes 29 ms."""
    memory = lived(replace(SCALING, tpot_s=0.030))
    assert 14 <= memory.capacity.limit <= 22
    assert memory.tokens.per_token_s == pytest.approx(token_s(memory.capacity.limit), rel=0.15)


def test_a_replica_gets_as_many_as_keep_the_time_to_the_first_token():
    """With 4 requests at a time it takes a third of 1.2 s; the rest is for waiting."""
    assert 3 <= lived(replace(SCALING, ttft_s=1.2)).capacity.limit <= 5


@pytest.mark.slow
def test_where_it_is_known_the_slowest_of_20_have_two_thirds_of_the_objective():
    """Here one in ten takes three times the mean: 2.7 s with 21 requests."""
    asked = replace(SCALING, ttft_s=4.0)
    even = lived(asked, first_s=chunks_s)
    some = lived(asked, has_tail=True, first_s=chunks_s)
    assert even.tokens.first_p95_s is None
    assert some.tokens.first_p95_s == pytest.approx(3 * chunks_s(some.capacity.limit), rel=0.5)
    assert 17 <= some.capacity.limit <= 25
    assert some.capacity.limit < even.capacity.limit
    untold = lived(asked, has_tail=True, first_s=chunks_s, tells_queue=False)
    assert untold.capacity.limit == pytest.approx(even.capacity.limit, abs=2)


def test_prompts_too_long_for_the_objective_leave_what_takes_twice_as_long_as_one():
    """Alone the slowest have their first token in 0.9 s: fewer requests are no help."""
    found = lived(replace(SCALING, ttft_s=0.5), has_tail=True, first_s=chunks_s)
    assert 10 <= found.capacity.limit <= 15


def test_what_was_long_ago_fades_from_the_histogram():
    slow, quick = bins(4.5, 1000.0), bins(0.3, 100_000.0)
    known = learn_tokens(TokensDone(), counts(0.0, ()), 0)
    known = learn_tokens(known, counts(0.0, bins(0.3, 0.0)), 0)
    assert known.first_p95_s is None
    known = learn_tokens(known, counts(1000.0, slow), 0)
    assert known.first_p95_s == pytest.approx(5.0, abs=0.06)
    both = tuple(one + two for one, two in zip(slow, quick, strict=True))
    known = learn_tokens(known, counts(101_000.0, both), 0)
    assert known.first_p95_s == pytest.approx(0.4, abs=0.01)


def counts(requests: float, firsts: tuple[float, ...]) -> TokenCounts:
    return TokenCounts(requests, requests, requests, requests, firsts)


def bins(at_s: float, count: float) -> tuple[float, ...]:
    """A histogram with that many at one time."""
    at = bisect(FIRST_TOKEN_S, at_s)
    return tuple(count * (index == at) for index in range(len(FIRST_TOKEN_S) + 1))


def test_the_strictest_objective_counts():
    both = replace(SCALING, ttft_s=1.2, tpot_s=0.030, p95_s=600.0)
    assert lived(both).capacity.limit <= 5


def test_while_no_replica_tells_its_times_no_more_is_tried_than_at_first():
    assert lived(replace(SCALING, tpot_s=0.030), 60, is_timed=False).capacity.limit == 2
    assert lived(SCALING, 60).capacity.limit > 2


def busy(memory: Memory, scaling: Scaling) -> str:
    assert memory.seen is not None
    load = Load(memory.capacity.limit, 9, 0, memory.seen.arrived, memory.seen.answered)
    look = ServiceLook(memory.seen.at_s + 1, load, Supply(ready=1), serving=1)
    return autoscale(scaling, memory, look)[1].reason


def test_an_objective_of_tokens_that_is_added_leaves_what_was_learnt():
    """Until its figures come."""
    before = lived(SCALING, 300, is_timed=False)
    limit = before.capacity.limit
    assert limit > 8
    after = lived(replace(SCALING, ttft_s=90.0), 10, is_timed=False, memory=before)
    assert after.capacity.limit == limit


def test_an_objective_whose_figures_never_come_does_not_count_and_the_decision_says_so():
    both = replace(SCALING, ttft_s=1.2, tpot_s=0.030)
    early, late = (lived(both, seconds, is_timed=False) for seconds in (60, 900))
    assert "ttft_ms" not in busy(early, both)
    said = "; ttft_ms and tpot_ms can't be kept: replicas do not tell such times"
    assert said in busy(late, both)
    assert late.capacity.limit == pytest.approx(lived(SCALING, 900).capacity.limit, abs=2)
    told = lived(both, 900, memory=late)
    assert told.capacity.limit <= 5
    assert "ttft_ms" not in busy(told, both)


def test_the_reason_tells_what_is_expected_from_what_replicas_get():
    memory = replace(initial(Supply(), 0.0), capacity=ReplicaCapacity(limit=8, expected=16))
    look = ServiceLook(0.0, Load(40), Supply(ready=1))
    _, decision = autoscale(replace(SCALING, max_replicas=20), memory, look)
    assert "a replica takes 16 at a time (expected; it gets 8 so far)" in decision.reason


def test_a_number_that_is_learnt_counts_up_to_what_the_gateway_gives():
    """The engine got fewer places than it had when the number was learnt."""
    memory = replace(initial(Supply(), 0.0), capacity=ReplicaCapacity(limit=32))
    few = replace(SCALING, max_replicas=20, concurrency=4)
    _, decision = autoscale(few, memory, ServiceLook(0.0, Load(40), Supply(ready=1)))
    assert "a replica takes 4 at a time (learnt)" in decision.reason


def test_requests_that_the_engine_counts_are_not_guessed():
    known = learn_tokens(TokensDone(), TokenCounts(1.0, 10.0, 1.0, 5.0), 0)
    known = learn_tokens(known, TokenCounts(3.0, 30.0, 2.0, 9.0), answered=100)
    assert known.to_first_s == pytest.approx(2 / 4)
    assert known.per_token_s == pytest.approx(1 / 20)


def test_counters_that_start_again_teach_nothing():
    known = learn_tokens(TokensDone(), TokenCounts(5.0, 10.0, 1.0), 0)
    known = learn_tokens(known, TokenCounts(1.0, 2.0, 0.1), 3)
    assert (known.to_first_s, known.per_token_s) == (None, None)
    assert learn_tokens(known, None, 3) is known


def test_what_was_timed_is_saved():
    memory = lived(replace(SCALING, tpot_s=0.030), 60, has_tail=True)
    adapter = TypeAdapter(Memory)
    assert adapter.validate_json(adapter.dump_json(memory)) == memory


def test_what_was_saved_before_there_were_histograms_is_read():
    adapter = TypeAdapter(TokensDone)
    saved = adapter.dump_python(lived(replace(SCALING, tpot_s=0.030), 60).tokens)
    del saved["firsts"], saved["seen"]["firsts"]
    assert adapter.validate_python(saved).per_token_s is not None
