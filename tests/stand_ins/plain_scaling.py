"""Decides turns with the simplest autoscaler: what the load needs now, or a remembered peak.

This is for tests of what a turn does with a number of replicas, whatever led to that number.
"""

from math import ceil
from unittest.mock import patch

from slicewise.cluster.rpc.messages import ViewAnswer
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.autoscale.types import Scaling, ScalingDecision, ServiceLook
from slicewise.launcher.rules.gateway.types import Gateway
from slicewise.launcher.rules.turn import plan, pool_service, service
from slicewise.launcher.rules.turn.generations import Answers
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.service import NOTHING_HEARD, Heard
from slicewise.launcher.rules.turn.state import State


def decide(
    view: ViewAnswer,
    gateway: Gateway,
    answers: Answers,
    state: State,
    now_s: float,
    *,
    heard: Heard = NOTHING_HEARD,
) -> tuple[State, TurnPlan] | None:
    with (
        patch.object(service, "autoscale", _plain),
        patch.object(pool_service, "autoscale", _plain),
    ):
        return plan.decide(view, gateway, answers, state, now_s, heard=heard)


def _plain(scaling: Scaling, memory: Memory, look: ServiceLook) -> tuple[Memory, ScalingDecision]:
    asked = ceil(look.load.total / scaling.concurrency)
    peak = max((one.replicas for one in memory.peaks if one.until_s > look.at_s), default=0)
    wanted = min(max(asked, peak, scaling.min_replicas), scaling.max_replicas)
    return memory, ScalingDecision(wanted, f"{wanted} wanted", ready_in_s=27.5)
