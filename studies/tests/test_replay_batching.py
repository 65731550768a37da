"""Tests the model of a server that batches against what can be worked out by hand."""

import numpy as np
import pytest

from slicewise.simulation.rules.services.request_queue import RunningReplica
from studies.autoscale import llm
from studies.autoscale.batching import BatchingRequests, Server
from studies.autoscale.llm import Talk, Talks
from studies.autoscale.workload import Starts

SERVER = Server(0.030, 0.0001, 1e-7, 0.00023)


def requests(
    tokens: list[tuple[int, int]], server: Server = SERVER, concurrency: int = 256
) -> BatchingRequests:
    found = BatchingRequests([0.0] * len(tokens), tokens, server, concurrency)
    found.open(RunningReplica())
    return found


def test_a_request_alone_takes_its_chunks_and_then_a_step_for_each_token():
    found = requests([(1000, 3)])
    found.pass_until(60.0)
    chunks_s = 2 * (0.030 + 0.0001 + 1e-7 * 1000) + 0.00023 * 1000
    assert found.first_s[0] == pytest.approx(chunks_s)
    steps_s = 2 * (0.030 + 0.0001) + 1e-7 * (1001 + 1002)
    assert found.end_s[0] == pytest.approx(chunks_s + steps_s)


def test_many_that_always_run_take_as_long_as_is_worked_out():
    running, prompt, answer = 20, 512, 200
    count = 40 * running
    found = requests([(prompt, answer)] * count, concurrency=running)
    found.pass_until(2000.0)
    spans = np.array(found.end_s) - np.array(found.first_s)
    tpot_s = float(spans[count // 4 : -2 * running].mean()) / (answer - 1)
    assert tpot_s == pytest.approx(SERVER.steady_tpot_s(running, prompt, answer), rel=0.05)


def test_what_the_cache_does_not_hold_waits_for_its_first_token():
    found = requests([(400, 100)] * 4, Server(0.01, 0.0, 0.0, 0.0, cache=1000))
    found.pass_until(0.1)
    (engine,) = found.engines.values()
    tokens, load = engine.said(1000)
    assert (load.running, load.waiting, tokens.requests) == (2, 2, 2)
    found.pass_until(60.0)
    assert all(np.isfinite(found.end_s))
    assert found.answered == 4
    assert (engine.held, engine.waiting, engine.making) == (0, type(engine.waiting)(), {})


def test_one_that_is_set_back_goes_on_with_what_it_had():
    found = requests([(480, 100)] * 2, Server(0.01, 0.0, 0.0, 0.0, cache=1000))
    found.pass_until(60.0)
    (engine,) = found.engines.values()
    assert engine.requests == 2
    assert engine.prompts > 2 * 480
    assert engine.held == 0
    assert all(np.isfinite(found.end_s))


def test_the_product_learns_on_it_and_a_number_stays():
    arrivals = np.arange(0.0, 240.0, 0.2)
    tokens = np.tile([[500, 100]], (arrivals.size, 1))
    load = Talks(arrivals, tokens, Starts(np.full(50, 1.0), np.full(50, 5.0)))
    learnt, fixed = Talk(load, None).run(), Talk(load, 8).run()
    assert learnt.memory.capacity.limit > 8
    assert {limit for limit, _, _ in fixed.seconds} == {8}
    for talk in (learnt, fixed):
        found = talk.figures()
        assert found["ttft_attainment"] > 0.9
        assert found["slice_hours"] > 0
    assert llm.known(load) > 8
