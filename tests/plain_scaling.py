"""Decides turns with the simplest autoscaler: what the load needs now, or a remembered peak.

This is for tests of what a turn does with a number of replicas, whatever led to that number.
"""

from math import ceil
from unittest.mock import patch

from cluster.wire import ViewAnswer
from launcher.decide import services
from launcher.decide.autoscale import Memory
from launcher.decide.gateway import Gateway
from launcher.decide.replicas import Answers
from launcher.decide.scaling import Decision, Look, Scaling
from launcher.decide.services import Plan
from launcher.decide.state import State


def decide(
    view: ViewAnswer, gateway: Gateway, answers: Answers, state: State, now_s: float
) -> tuple[State, Plan] | None:
    with patch.object(services, "autoscale", _plain):
        return services.decide(view, gateway, answers, state, now_s)


def _plain(scaling: Scaling, memory: Memory, look: Look) -> tuple[Memory, Decision]:
    asked = ceil(look.load.total / scaling.concurrency)
    peak = max((one.replicas for one in memory.peaks if one.until_s > look.at_s), default=0)
    wanted = min(max(asked, peak, scaling.min_replicas), scaling.max_replicas)
    return memory, Decision(wanted, f"{wanted} wanted", ready_in_s=27.5)
