"""A service in virtual time, for which the autoscaler's decisions are carried out each second."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from slicewise.launcher.rules.autoscale.policy import autoscale, initial
from slicewise.launcher.rules.autoscale.types import (
    ReplicaStart,
    Scaling,
    ScalingDecision,
    ServiceLook,
    Supply,
)
from slicewise.launcher.rules.gateway.types import Load
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests

START_S = 25


@dataclass(frozen=True)
class Life:
    """What became of a service.

    Attributes:
        share: of its requests that got a place in time.
        slice_s: slice-seconds of its replicas.
        decisions: one a second.
    """

    share: float
    slice_s: float
    decisions: Sequence[ScalingDecision]


def lived_through(
    scaling: Scaling, arrivals_s: Sequence[float], service_s: float, span_s: int
) -> Life:
    """Let requests come that take ``service_s`` each; starts take ``START_S``."""
    requests = ServiceRequests(arrivals_s, [service_s] * len(arrivals_s), scaling.concurrency)
    memory, starting, draining = initial(Supply(), 0.0), list[int](), list[RunningReplica]()
    slice_s, decisions = 0.0, list[ScalingDecision]()
    for second in range(span_s):
        requests.pass_until(second)
        begun = starting.count(second - START_S)
        for _ in range(begun):
            requests.open(RunningReplica())
        starting = starting[begun:]
        draining = [one for one in draining if one.in_flight]
        slice_s += len(starting) + len(requests.ready) + len(draining)
        waiting = len(requests.queue)
        queued, held = (waiting, 0) if requests.ready else (0, waiting)
        supply = Supply(0, len(starting), len(requests.ready), len(draining))
        counts = requests.arrived, requests.answered
        look = ServiceLook(
            *(float(second), Load(requests.in_flight, queued, held, *counts), supply),
            starts=(ReplicaStart(0.0, START_S),) * begun,
        )
        memory, decision = autoscale(scaling, memory, look)
        decisions.append(decision)
        requests.in_time = decision.in_time
        starting += [second] * (decision.wanted - supply.coming)
        for _ in range(supply.coming - decision.wanted):
            if starting:
                starting.pop()
                continue
            draining.append(min(requests.ready, key=attrgetter("in_flight")))
            requests.close(draining[-1])
    within_s = scaling.max_queue_s or 0.0
    waits = requests.waits[: bisect_right(arrivals_s, span_s - within_s)]
    share = sum(one <= within_s for one in waits) / max(1, len(waits))
    return Life(share, slice_s, decisions)
