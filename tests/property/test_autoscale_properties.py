"""Properties of the autoscaler under any load."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.types import (
    ReplicaStart,
    Scaling,
    ScalingDecision,
    ServiceLook,
    Supply,
)
from slicewise.launcher.rules.gateway.types import Load

COUNTS = st.integers(0, 500)
REPLICAS = st.integers(0, 20)
LOADS = st.builds(Load, COUNTS, COUNTS, COUNTS, st.integers(0, 5000), st.integers(0, 5000))
STARTS = st.builds(ReplicaStart, st.floats(0, 10_000), st.floats(0, 10_000))
SUPPLIES = st.builds(Supply, REPLICAS, REPLICAS, REPLICAS, REPLICAS)
STEPS = st.lists(
    st.tuples(st.floats(0, 3000), LOADS, SUPPLIES, st.lists(STARTS, max_size=3), st.booleans()),
    min_size=1,
    max_size=40,
)
AS_JSON = TypeAdapter(Memory)


keep_alives_s = st.integers(0, 60_000).map(lambda milliseconds: milliseconds / 1000)
"""Less than what two moments can differ by would be nothing at all."""


@st.composite
def scalings(draw: st.DrawFn) -> Scaling:
    most = draw(st.integers(1, 64))
    return Scaling(
        min_replicas=draw(st.integers(0, most)),
        max_replicas=most,
        concurrency=draw(st.integers(1, 64)),
        max_queue_s=draw(st.none() | st.floats(0, 100)),
        p95_s=draw(st.none() | st.floats(0.01, 100)),
        keep_alive_s=draw(st.none() | keep_alives_s),
        aim=draw(st.floats(0, 0.99999)),
    )


def gone_through(
    scaling: Scaling, steps: list[tuple[float, Load, Supply, list[ReplicaStart], bool]]
) -> tuple[Memory, list[tuple[ServiceLook, ScalingDecision]]]:
    memory, now_s, found = Memory(), 1e9, []
    for pause_s, load, supply, starts, is_known in steps:
        now_s += pause_s
        look = ServiceLook(now_s, load, supply, tuple(starts), is_known=is_known)
        memory, decision = autoscale(scaling, memory, look)
        found.append((look, decision))
    return memory, found


@given(scalings(), STEPS)
def test_it_stays_within_its_bounds_and_wakes_for_any_request(
    scaling: Scaling, steps: list[tuple[float, Load, Supply, list[ReplicaStart], bool]]
):
    _, found = gone_through(scaling, steps)
    for look, decision in found:
        assert scaling.min_replicas <= decision.wanted <= scaling.max_replicas
        assert decision.wanted > 0 or not look.is_known or look.load.total == 0
        assert decision.ready_in_s is None or decision.ready_in_s >= 0
        assert decision.in_time is None or decision.in_time >= 0


@given(scalings(), STEPS)
def test_its_memory_stays_small_and_survives_as_json(
    scaling: Scaling, steps: list[tuple[float, Load, Supply, list[ReplicaStart], bool]]
):
    memory, _ = gone_through(scaling, steps)
    text = AS_JSON.dump_json(memory)
    assert AS_JSON.validate_json(text) == memory
    assert len(text) < 20_000
    assert all(one.replicas > other.replicas for one, other in pairwise(memory.peaks))


@given(scalings(), STEPS, LOADS, COUNTS)
def test_more_that_waits_never_wants_fewer(
    scaling: Scaling,
    steps: list[tuple[float, Load, Supply, list[ReplicaStart], bool]],
    load: Load,
    more: int,
):
    memory, found = gone_through(scaling, steps)
    look = ServiceLook(found[-1][0].at_s + 1, load, Supply(1, 1, 1))
    fuller = replace(look, load=replace(load, queued=load.queued + more))
    assert (
        autoscale(scaling, memory, look)[1].wanted <= autoscale(scaling, memory, fuller)[1].wanted
    )


@given(scalings(), STEPS, st.floats(0, 0.999999))
def test_a_higher_aim_never_wants_fewer(
    scaling: Scaling,
    steps: list[tuple[float, Load, Supply, list[ReplicaStart], bool]],
    other: float,
):
    memory, found = gone_through(scaling, steps)
    look = replace(found[-1][0], at_s=found[-1][0].at_s + 1)
    less, more = sorted((scaling.aim, other))
    modest, ambitious = (
        autoscale(replace(scaling, aim=aim), memory, look)[1].wanted for aim in (less, more)
    )
    assert modest <= ambitious


@given(scalings(), STEPS, SUPPLIES)
def test_the_same_look_again_wants_the_same(
    scaling: Scaling,
    steps: list[tuple[float, Load, Supply, list[ReplicaStart], bool]],
    supply: Supply,
):
    """Nothing flaps: with what it wanted there, it wants no fewer at once."""
    memory, found = gone_through(scaling, steps)
    look = replace(found[-1][0], supply=supply, starts=(), is_known=True)
    again, first = autoscale(scaling, memory, look)
    _, second = autoscale(scaling, again, replace(look, supply=Supply(ready=first.wanted)))
    assert second.wanted >= first.wanted or scaling.keep_alive_s == 0


@given(scalings(), st.integers(0, 20), st.lists(st.floats(0, 5), max_size=10))
def test_a_restart_never_shrinks_at_once(scaling: Scaling, running: int, pauses: list[float]):
    memory, now_s = initial(Supply(ready=running), 1000.0), 1000.0
    for pause_s in pauses:
        now_s += pause_s
        memory, decision = autoscale(
            scaling, memory, ServiceLook(now_s, Load(), Supply(ready=running))
        )
        assert decision.wanted >= min(running, scaling.max_replicas)
