"""Tests a turn: gateway before slots, failures contained; the loop outlives failed turns."""

from stand_ins.turn_world import World, service

from slicewise.cluster.rpc.messages import SlotView
from slicewise.launcher.process.turn import turn
from slicewise.launcher.rules.gateway.types import Server, ServerMode

NOWHERE = Server("127.0.0.1", 1, ServerMode.MAINT, up=False, in_flight=0, queued=0)


RUNNING = SlotView(
    index=0,
    state="running",
    job_id=9,
    address="10.0.0.1",
    ports=(5, 6, 7),
    certificate="CCCC",
    start_s=1,
)


async def test_a_node_name_is_resolved_as_the_gateway_needs_it():
    named = RUNNING.model_copy(update={"address": "localhost"})
    world = World(service(7, "a", named))
    await turn(world, world, world, {})
    assert [replica.address for replica in world.asked] == ["127.0.0.1"]
