"""Property: a replica's node only decides between replicas that are otherwise alike."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.turn.slots import Goal, Phase, Slot, SlotId, SlotPlan, plan_slots

ARRAY = 814
LIVE = (Phase.SERVING, Phase.WARM, Phase.DRAINING, Phase.STARTING)


@st.composite
def slots(draw: st.DrawFn) -> list[Slot]:
    count = draw(st.integers(0, 12))
    return [
        Slot(
            SlotId(ARRAY, index),
            draw(st.sampled_from((*LIVE, Phase.HELD))),
            in_flight=draw(st.integers(0, 2)),
            up=draw(st.booleans()),
            allotted=True,
            is_borrowed=draw(st.booleans()),
            node_held_millislices=draw(st.integers(0, 4)) * 1000,
        )
        for index in range(count)
    ]


def anonymous(slot: Slot) -> Slot:
    return replace(slot, id=SlotId(ARRAY, 0), node_held_millislices=0)


def outcome(found: Iterable[Slot], plan: SlotPlan) -> Counter[tuple[Slot, bool, ServerMode | None]]:
    return Counter((anonymous(s), s.id in plan.run, plan.modes.get(s.id)) for s in found)


@given(slots(), st.integers(0, 12))
def test_it_is_a_tie_break_and_no_more(found: list[Slot], wanted: int) -> None:
    goal = Goal(wanted, ARRAY)
    unknown = [replace(slot, node_held_millislices=0) for slot in found]
    assert outcome(found, plan_slots(found, goal)) == outcome(unknown, plan_slots(unknown, goal))


@given(slots(), st.integers(0, 12))
def test_of_replicas_that_are_alike_none_stays_on_an_emptier_node(
    found: list[Slot], wanted: int
) -> None:
    modes = plan_slots(found, Goal(wanted, ARRAY)).modes
    serving = [slot for slot in found if slot.phase is Phase.SERVING]
    gone = [slot for slot in serving if modes[slot.id] is ServerMode.DRAIN]
    kept = [slot for slot in serving if modes[slot.id] is ServerMode.READY]
    assert all(
        one.node_held_millislices <= other.node_held_millislices
        for one in gone
        for other in kept
        if anonymous(one) == anonymous(other)
    )
