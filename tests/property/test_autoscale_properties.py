"""The autoscaler under any load."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.service import ServiceSpec
from launcher.decide.autoscale import Peak, autoscale
from launcher.decide.gateway import Load
from launcher.decide.slots import Phase, Slot, plan_slots, supply

COUNTS = st.integers(0, 500)
LOADS = st.builds(Load, COUNTS, COUNTS, COUNTS)
STEPS = st.lists(st.tuples(st.floats(0.1, 30), LOADS), min_size=1, max_size=40)


@st.composite
def specs(draw: st.DrawFn) -> ServiceSpec:
    most = draw(st.integers(1, 64))
    return ServiceSpec(
        name="a",
        tenant="t",
        model_repository="/m",
        model="m",
        profile="1g.10gb",
        min_replicas=draw(st.integers(0, most)),
        max_replicas=most,
        concurrency=draw(st.integers(1, 64)),
        keep_alive_s=draw(st.floats(0, 60)),
    )


@given(specs(), STEPS)
def test_it_is_the_largest_need_of_the_last_keep_alive_within_its_bounds(
    spec: ServiceSpec, steps: list[tuple[float, Load]]
):
    peaks: tuple[Peak, ...] = ()
    history: list[tuple[float, int]] = []
    now_s = 0.0
    for pause_s, load in steps:
        now_s += pause_s
        peaks, decision = autoscale(spec, peaks, load, 64, now_s)
        history.append((now_s, -(-load.total // spec.concurrency)))
        recent = [n for at_s, n in history[:-1] if at_s > now_s - spec.keep_alive_s]
        need = max([*recent, history[-1][1]])
        assert decision.wanted == min(max(need, spec.min_replicas), spec.max_replicas)
        assert decision.wanted > 0 or load.total == 0


@given(specs(), STEPS)
def test_its_memory_stays_small(spec: ServiceSpec, steps: list[tuple[float, Load]]):
    peaks: tuple[Peak, ...] = ()
    now_s = 0.0
    for pause_s, load in steps:
        now_s += pause_s
        peaks, _ = autoscale(spec, peaks, load, 64, now_s)
        falling = [peak.replicas for peak in peaks]
        assert falling == sorted(set(falling), reverse=True)


@st.composite
def slot_sets(draw: st.DrawFn) -> tuple[Slot, ...]:
    phases = draw(st.lists(st.sampled_from(Phase), min_size=1, max_size=24))
    busy = st.integers(0, 5)
    return tuple(
        Slot(
            index,
            phase,
            in_flight=draw(busy) if phase in {Phase.SERVING, Phase.DRAINING} else 0,
            up=draw(st.booleans()),
        )
        for index, phase in enumerate(phases)
    )


@given(slot_sets(), st.integers(0, 24), st.booleans())
def test_the_wish_never_drops_a_slot_that_the_gateway_still_sends_to(
    slots: tuple[Slot, ...], wanted: int, may_start: bool
):
    plan = plan_slots(slots, wanted, may_start=may_start, drained_out=frozenset())
    at_gateway = {s.index for s in slots if s.phase in {Phase.SERVING, Phase.DRAINING}}
    assert at_gateway <= plan.run
    working = {s.index for s in slots if s.in_flight}
    assert working <= set(plan.modes)


@given(slot_sets(), st.integers(0, 24))
def test_no_more_is_started_than_is_missing(slots: tuple[Slot, ...], wanted: int):
    plan = plan_slots(slots, wanted, may_start=True, drained_out=frozenset())
    draining = sum(slot.phase is Phase.DRAINING for slot in slots)
    held = {slot.index for slot in slots if slot.phase is Phase.HELD}
    started = plan.run & held
    assert len(started) == min(len(held), max(0, wanted - supply(slots) - draining))
    assert not plan.run & {slot.index for slot in slots if slot.phase is Phase.OUT}


@given(slot_sets(), st.integers(0, 24))
def test_a_plan_is_stable(slots: tuple[Slot, ...], wanted: int):
    """The same look gives the same plan: nothing flaps."""
    first = plan_slots(slots, wanted, may_start=True, drained_out=frozenset())
    second = plan_slots(slots[::-1], wanted, may_start=True, drained_out=frozenset())
    assert (first.run, first.modes) == (second.run, second.modes)
