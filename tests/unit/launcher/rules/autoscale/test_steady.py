"""Tests that a load without bursts does not pay for bursts, in a closed loop in virtual time."""

from collections.abc import Callable
from operator import attrgetter
from random import Random

import pytest

from slicewise.launcher.rules.autoscale import policy
from slicewise.launcher.rules.autoscale.policy import autoscale, initial
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests

pytestmark = pytest.mark.slow

SPAN_S, LOOK_S, START_S = 3 * 3600, 2, 28


def slice_hours(scaling: Scaling, rate: Callable[[float], float], service_s: float) -> float:
    """Return what three hours of Poisson arrivals cost; services last exponentially long."""
    rng, arrivals_s, at_s = Random(1), list[float](), 0.0  # noqa: S311 -- a load, no secrets
    while (at_s := at_s + rng.expovariate(rate(at_s))) < SPAN_S:
        arrivals_s.append(at_s)
    services_s = [rng.expovariate(1 / service_s) for _ in arrivals_s]
    requests = ServiceRequests(arrivals_s, services_s, scaling.concurrency)
    memory, starting, slice_s = initial(Supply(), 0.0), list[int](), 0
    for second in range(0, SPAN_S, LOOK_S):
        requests.pass_until(second)
        for _ in range(starting.count(second - START_S)):
            requests.open(RunningReplica())
        starting = [begun_s for begun_s in starting if begun_s > second - START_S]
        supply = Supply(starting=len(starting), ready=len(requests.ready))
        slice_s += LOOK_S * supply.coming
        waiting = len(requests.queue)
        queued, held = (waiting, 0) if supply.ready else (0, waiting)
        load = Load(requests.in_flight, queued, held, requests.arrived, requests.answered)
        look = ServiceLook(float(second), load, supply, serving=supply.ready)
        memory, decision = autoscale(scaling, memory, look)
        requests.in_time = decision.in_time
        starting += [second] * (decision.wanted - supply.coming)
        for _ in range(supply.coming - decision.wanted):
            if starting:
                starting.pop()
            else:
                requests.close(min(requests.ready, key=attrgetter("in_flight")))
    return slice_s / 3600


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_steady_load_does_not_pay_for_bursts_that_never_come(
    concurrency: int, monkeypatch: pytest.MonkeyPatch
):
    """What chance makes of it is no burst that the next one may exceed."""
    scaling = Scaling(0, 200, concurrency, max_queue_s=2.0, aim=0.99)
    cost = slice_hours(scaling, lambda _: 10.0, 1.0)
    monkeypatch.setattr(policy, "worth_having", lambda *_: 0)
    assert cost <= 1.02 * slice_hours(scaling, lambda _: 10.0, 1.0)


def test_one_crowd_that_nobody_could_expect_does_not_stay_dear():
    """Forty seconds of twelve times the load, and two hours as before."""

    def crowd(second: float) -> float:
        return 60.0 if 3600 < second < 3640 else 5.0

    scaling = Scaling(0, 200, 1, max_queue_s=2.0, aim=0.95)
    usual = slice_hours(scaling, lambda _: 5.0, 1.0)
    assert slice_hours(scaling, crowd, 1.0) < 3.5 * usual
