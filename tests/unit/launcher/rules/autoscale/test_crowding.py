"""Tests how many requests a replica gets whose server lets some wait before their first token."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from slicewise.launcher.rules.autoscale.crowding import Crowding, learn_crowding, room_of
from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S, TokenCounts
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load

HOLDS = 16
"""Requests that a replica's cache holds."""
TOKENS, FIRST_S, NEVER = 50, 0.05, 10**9


def seen(
    known: Crowding,
    seconds: int,
    running: int,
    waiting: int,
    *,
    replicas: int = 1,
    answers: int = 2,
) -> Crowding:
    for _ in range(seconds):
        load = ServersLoad(running, waiting, replicas=replicas)
        known = learn_crowding(known, load, 1.0, answers)
    return known


def test_what_waits_in_servers_says_how_many_they_can_work_on():
    found = seen(Crowding(), 20, 40, 10, replicas=2)
    assert (found.most, found.is_new) == (20, True)
    assert not seen(found, 1, 40, 0, replicas=2).is_new


@pytest.mark.parametrize(("running", "waiting"), [(40, 4), (3, 1), (40, 0)])
def test_few_that_wait_for_a_moment_say_nothing(running: int, waiting: int):
    assert seen(Crowding(), 60, running, waiting).most is None


def test_requests_that_wait_for_prompts_before_theirs_say_nothing():
    """Chunks of prompts wait for each other while the cache has room."""
    known = Crowding()
    for _ in range(60):
        known = learn_crowding(known, ServersLoad(20, 10, 0.4), 1.0, 2)
    assert known.most is None
    for _ in range(20):
        known = learn_crowding(known, ServersLoad(20, 10, 0.98), 1.0, 2)
    assert known.most == 20


def test_the_fullest_cache_says_how_many_it_holds():
    assert room_of(ServersLoad(20, 0, 0.5, replicas=2)) == 20
    assert room_of(ServersLoad(20, 0)) is None
    assert room_of(ServersLoad(0, 0, 0.0)) is None


def test_neither_a_moment_nor_a_few_answers_are_a_sample():
    assert seen(Crowding(), 19, 4, 90).most is None
    assert seen(Crowding(), 60, 4, 90, answers=0).most is None
    assert seen(Crowding(), 60, 0, 0, replicas=0).most is None
    assert seen(seen(Crowding(), 2, 16, 9), 18, 9, 0).most is None


def test_after_many_answers_more_are_tried_again():
    found = seen(Crowding(), 20, 5, 10)
    assert seen(found, 980, 5, 0).most == 5
    assert seen(found, 1020, 5, 0).most is None


def told(firsts: list[float], answered: float) -> TokenCounts:
    firsts_s = FIRST_S * sum(firsts)
    return TokenCounts(firsts_s, TOKENS * answered, answered, sum(firsts), tuple(firsts))


def lived(seconds: int = 1500, *, ttft_s: float | None = 1.0, says: bool = True) -> Memory:
    """A replica as vLLM: what its cache does not hold waits for its first token, seconds long."""
    scaling = Scaling(1, 1, 64, ttft_s=ttft_s, learns=True)
    memory, answered, firsts = initial(Supply(ready=1), 0.0), 0.0, [0.0] * (len(FIRST_TOKEN_S) + 1)
    for second in range(seconds):
        places = memory.capacity.limit
        running = min(places, HOLDS)
        waits_s = 2.0 * (places - running) / HOLDS
        done = running / 2.0
        answered += done
        late = next(n for n, edge_s in enumerate(FIRST_TOKEN_S) if edge_s >= FIRST_S + waits_s)
        firsts[late] += done
        load = Load(places, 50, 0, NEVER, int(answered))
        servers = ServersLoad(running, places - running) if says else None
        look = ServiceLook(
            *(float(second), load, Supply(ready=1)),
            serving=1,
            tokens=told(firsts, answered),
            servers=servers,
        )
        memory, _ = autoscale(scaling, memory, look)
    return memory


def test_with_an_objective_of_first_tokens_a_replica_gets_as_many_as_its_cache_holds():
    found = lived()
    assert found.crowding.most == HOLDS
    assert found.capacity.limit == HOLDS
    assert found.tokens.first_p95_s == pytest.approx(0.06, abs=0.01)


def test_without_one_what_waits_in_servers_does_not_count():
    """It costs no time that it would not take at the gateway, and the cache stays full."""
    assert lived(ttft_s=None) == lived(ttft_s=None, says=False)


def test_it_is_saved_and_a_state_without_it_is_read():
    memory, adapter = lived(60), TypeAdapter(Memory)
    assert adapter.validate_json(adapter.dump_json(memory)) == memory
    saved = adapter.dump_python(memory)
    del saved["crowding"]
    assert adapter.validate_python(saved) == replace(memory, crowding=Crowding())
