"""Tests what a trace of requests is for a service: when each comes and how long it takes."""

from typing import Any

import pytest
from builders.simulated_services import a_service
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.service import ServiceSpec
from slicewise.simulation.rules.history.traced_request import TracedRequest
from slicewise.simulation.rules.services.service import EngineModel
from slicewise.simulation.rules.services.traffic import EngineFigures, traffic

NOT_MEASURED = EngineFigures()


def spec(**keys: Any) -> ServiceSpec:
    return a_service([], spec=keys).spec


def alone_s(trace: list[TracedRequest], figures: EngineFigures) -> list[float]:
    """Seconds that each request takes in a replica that has nothing else to do."""
    found = traffic(trace, figures, spec(), 0.0)
    return [pytest.approx(size * found.engine.service_s[0]) for size in found.sizes]


def test_seconds_of_the_trace_are_those_of_its_requests_whatever_was_measured():
    trace = [TracedRequest(0.0, service_s=1.0), TracedRequest(9.0, service_s=3.0)]
    measured = EngineFigures((7.0,), {1: 10.0, 2: 15.0})
    assert alone_s(trace, NOT_MEASURED) == alone_s(trace, measured) == [1.0, 3.0]
    assert traffic(trace, measured, spec(), 0.0).engine == EngineModel((7.0,), (2.0, 3.0))


def test_tokens_take_their_time_or_are_shares_of_what_was_measured():
    trace = [TracedRequest(0.0, 1000, 10), TracedRequest(9.0, 0, 50)]
    assert alone_s(trace, NOT_MEASURED) == [0.5, 1.5]
    assert alone_s(trace, EngineFigures((), {1: 4.0})) == [2.0, 6.0]


def test_requests_of_which_nothing_is_known_are_alike():
    trace = [TracedRequest(0.0), TracedRequest(9.0)]
    assert alone_s(trace, NOT_MEASURED) == [1.0, 1.0]
    assert alone_s(trace, EngineFigures((), {2: 4.0})) == [4.0, 4.0]


def test_a_request_without_seconds_among_others_takes_their_mean():
    trace = [TracedRequest(at_s, service_s=of_s) for at_s, of_s in ((0, 1.0), (1, None), (9, 3.0))]
    assert alone_s(trace, NOT_MEASURED) == [1.0, 2.0, 3.0]


def test_what_was_not_measured_is_said():
    trace = [TracedRequest(0.0, 10, 10)]
    said = traffic(trace, NOT_MEASURED, spec(start_timeout_s=45), 0.0).assumed
    assert said == (
        "a replica loads for 45 s, and a request takes 0.2 ms for each token of its prompt and"
        " 30 ms for each of its answer, however many others its replica works on"
    )
    assert traffic(trace, EngineFigures((9.0,), {1: 1.0}), spec(), 0.0).assumed == ""
    assert (
        "as long as its trace says"
        in traffic([TracedRequest(0.0, service_s=1.0)], EngineFigures((9.0,)), spec(), 0.0).assumed
    )
    assert traffic([], EngineFigures((9.0,)), spec(), 0.0).assumed.startswith(
        "a request takes 1 s,"
    )


def test_a_trace_begins_with_the_simulated_time_and_moments_are_spread():
    trace = [TracedRequest(at_s) for at_s in (0.0, 0.0, 0.0, 3.0, 10.0, 10.0, 10.5)]
    arrivals_s = traffic(trace, NOT_MEASURED, spec(), 100.0).arrivals_s
    assert arrivals_s == (100.0, 101.0, 102.0, 103.0, 110.0, 110.25, 110.5)


@given(st.lists(st.integers(0, 50).map(float), max_size=40).map(sorted))
def test_spread_requests_stay_in_order_and_within_a_tick(times_s: list[float]):
    trace = [TracedRequest(at_s) for at_s in times_s]
    arrivals_s = traffic(trace, NOT_MEASURED, spec(), 0.0).arrivals_s
    assert list(arrivals_s) == sorted(arrivals_s)
    assert all(0 <= new - old < 3.0 for old, new in zip(times_s, arrivals_s, strict=True))
