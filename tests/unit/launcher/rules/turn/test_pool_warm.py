"""Tests what a pool keeps warm: whose it is, and what its replicas have loaded."""

from collections import Counter
from dataclasses import replace

import pytest
from stand_ins import plain_scaling
from stand_ins.pool_world import LOAD_TICKS, a_pool_world

from slicewise.launcher.rules.autoscale.keep_warm import KeptWarm
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.autoscale.types import Scaling, ScalingDecision, ServiceLook
from slicewise.launcher.rules.turn.slots import Phase

PLAIN = plain_scaling._plain


def all_is_kept(
    scaling: Scaling, memory: Memory, look: ServiceLook
) -> tuple[Memory, ScalingDecision]:
    ready = look.supply.ready
    decided, decision = PLAIN(scaling, memory, look)
    return decided, replace(decision, kept_warm=KeptWarm(ready, 1.0 * ready, 5))


def test_each_service_has_the_part_of_its_own_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_scaling, "_plain", all_is_kept)
    world, seconds = a_pool_world([60, 60, 20], quota=4, work=3), Counter[str]()
    world.turn()
    for second in range(40):
        world.pass_second({"a": 3, "b": 1} if second < 20 else {})
        for planned in world.turn().services:
            serving = [slot.phase for slot in planned.slots].count(Phase.SERVING)
            seconds[planned.service] += serving
            assert planned.decision.kept_warm.replicas == pytest.approx(serving)
    assert len(+seconds) > 1
    for key, replica_s in seconds.items():
        warm = world.state[key].warm
        assert warm.millislice_s == pytest.approx(1000 * replica_s, abs=len(range(40)))
        assert [day.spared for day in warm.days] == [None] * len(warm.days)


def test_the_autoscaler_is_told_what_the_replicas_have_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refills_s: list[float] = []

    def told(scaling: Scaling, memory: Memory, look: ServiceLook) -> tuple[Memory, ScalingDecision]:
        if look.supply.ready == 1:
            refills_s.append(scaling.refill_s)
        return PLAIN(scaling, memory, look)

    monkeypatch.setattr(plain_scaling, "_plain", told)
    world = a_pool_world([40, 20, 20], quota=1, work=3)
    for second in range(40):
        world.pass_second({"a": int(second % 3 == 0)})
        world.turn()
    assert [*dict.fromkeys(refills_s)] == [0.0, LOAD_TICKS, 2 * LOAD_TICKS]
