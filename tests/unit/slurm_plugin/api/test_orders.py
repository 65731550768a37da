"""Tests owners' orders beside a service's script: kept before they hold, and over in time."""

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.language.leader import ALONE, Leader
from slicewise.cluster.rpc.order_messages import NO_ORDER, OrderRequest, ServiceOrder
from slicewise.slurm_plugin.api import rate_limit as rates
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.orders import ServiceOrders
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.rules.services.orders import (
    Ordered,
    ReplicaBounds,
    ordered,
    over,
    rolled_over,
)
from slicewise.slurm_plugin.rules.services.rate_limit import RateLimit

pytestmark = pytest.mark.usefixtures("clock")

ALICE = Principal(61001, "alice", frozenset({"vision"}))
BERT = ("vision", "bert")
SCRIPT = ReplicaBounds(min_replicas=1, max_replicas=4)
DOWN = UnreachableError("SW-DATABASE-DOWN", "The database 'slicewise' at db1 does not answer.")


def request(what: str, **bounds: int) -> OrderRequest:
    return OrderRequest.model_validate({"array_job_id": 814, "what": what, **bounds})


# What may be ordered


@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [({}, None, None), ({"max_replicas": 2}, None, 2), ({"min_replicas": 4}, 4, None)],
)
def test_scale_sets_both_bounds_and_nothing_else(bounds: Any, least: Any, most: Any) -> None:
    before = ServiceOrder(min_replicas=2, max_replicas=3, restart_s=7.0)
    after = ordered(before, request("scale", **bounds), SCRIPT, 100.0)
    assert after == ServiceOrder(min_replicas=least, max_replicas=most, restart_s=7.0)


@pytest.mark.parametrize(
    "bounds",
    [{"max_replicas": 5}, {"min_replicas": 5}, {"min_replicas": 3, "max_replicas": 2}],
)
def test_bounds_that_the_service_can_not_have_are_refused(bounds: Any) -> None:
    with pytest.raises(InvalidInputError, match="SW-VALUE"):
        ordered(NO_ORDER, request("scale", **bounds), SCRIPT, 100.0)


def test_a_bound_that_crosses_the_scripts_other_one_asks_for_both() -> None:
    script = ReplicaBounds(min_replicas=3, max_replicas=4)
    with pytest.raises(InvalidInputError, match="Give both"):
        ordered(NO_ORDER, request("scale", max_replicas=2), script, 100.0)
    both = request("scale", min_replicas=0, max_replicas=2)
    assert ordered(NO_ORDER, both, script, 100.0).max_replicas == 2


def test_restart_counts_anew_and_an_end_from_its_first_order_on() -> None:
    before = ServiceOrder(restart_s=7.0, delete_s=8.0)
    assert ordered(before, request("restart"), SCRIPT, 100.0).restart_s == 100.0
    assert ordered(before, request("end"), SCRIPT, 100.0) == before


# When it is over


SCALED = Ordered(ServiceOrder(max_replicas=2), 814)
ENDING = Ordered(ServiceOrder(delete_s=50.0), 814)


def arrays(*those: int) -> dict[Any, frozenset[int]]:
    return {BERT: frozenset(those)}


def test_an_order_ends_with_its_service() -> None:
    assert over({BERT: SCALED}, arrays(814)) == frozenset()
    assert over({BERT: SCALED}, {}) == {BERT}


def test_the_next_service_of_that_name_is_another() -> None:
    assert over({BERT: SCALED}, arrays(820)) == {BERT}
    assert rolled_over({BERT: SCALED}, arrays(820)) == {}


def test_a_newer_generation_takes_the_order_over_while_the_ordered_one_lives() -> None:
    assert rolled_over({BERT: SCALED}, arrays(814)) == {}
    taken = rolled_over({BERT: SCALED}, arrays(814, 817, 820))
    assert taken == {BERT: Ordered(SCALED.order, 820)}
    assert over(taken, arrays(820)) == frozenset()


def test_the_generation_before_takes_the_order_back_if_it_outlives_the_ordered_one() -> None:
    assert rolled_over({BERT: SCALED}, arrays(800)) == {BERT: Ordered(SCALED.order, 800)}
    assert over({BERT: Ordered(SCALED.order, 800)}, arrays(800)) == frozenset()


def test_an_end_is_over_when_its_last_array_is_gone_or_it_was_applied_again() -> None:
    orders = {BERT: ENDING}
    assert over(orders, arrays(814)) == frozenset()
    assert over(orders, {}) == {BERT}
    assert over(orders, arrays(814, 815)) == {BERT}
    assert rolled_over(orders, arrays(814, 815)) == {}


# Taken, kept, shown


class World:
    def __init__(self, leader: Leader = ALONE) -> None:
        self.slurm = ScriptedSlurm(job(0), job(1))
        self.ledger: Any = ScriptedLedger()
        self.cluster_state = sync_of(self.slurm)
        reads = Reads(settings(), self.slurm, self.ledger, self.cluster_state)
        rates = RateLimiter()
        self.orders = ServiceOrders(self.ledger, self.cluster_state, reads, leader, rates=rates)

    async def order(self, what: str, by: Principal = ALICE, **bounds: int) -> None:
        await self.orders.order(request(what, **bounds), self.cluster_state.service(814), by)

    @property
    def shown(self) -> ServiceOrder:
        return self.cluster_state.service(814).order


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(time, "time", lambda: 100.0)
    made = World()
    await made.cluster_state.turn()
    return made


async def test_an_order_is_kept_with_its_author_and_shown_at_once_and_later(world: World) -> None:
    await world.order("restart")
    assert world.ledger.said == [(BERT, "restart", "alice")]
    assert world.shown == ServiceOrder(restart_s=100.0)
    await world.cluster_state.turn()
    assert world.shown == ServiceOrder(restart_s=100.0)


async def test_a_service_scales_within_its_slots(world: World) -> None:
    await world.order("scale", min_replicas=2)
    assert world.shown.min_replicas == 2
    with pytest.raises(InvalidInputError, match=r"has 3 slots, not 4\..*SW-VALUE"):
        await world.order("scale", max_replicas=4)
    assert len(world.ledger.said) == 1


async def test_what_could_not_be_kept_does_not_hold(world: World) -> None:
    world.ledger.failures["write"] = [DOWN]
    with pytest.raises(UnreachableError) as raised:
        await world.order("restart")
    assert raised.value.refusal.code == "SW-DATABASE-DOWN"
    # Where the database is concerns operators only.
    assert "db1" not in str(raised.value)
    assert (world.shown, world.ledger.ordered) == (NO_ORDER, {})


async def test_another_daemons_orders_are_read_at_the_next_turn(world: World) -> None:
    await world.orders.turn()
    world.ledger.orders.write(BERT, "scale", SCALED, "alice")
    await world.orders.turn()
    assert world.shown == SCALED.order


async def test_orders_are_read_again_only_if_there_is_a_new_one(world: World) -> None:
    await world.orders.turn()
    world.ledger.failures["standing"] = [DOWN]
    await world.orders.turn()
    world.ledger.orders.write(BERT, "scale", SCALED, "alice")
    with pytest.raises(UnreachableError):
        await world.orders.turn()
    await world.orders.turn()
    assert world.shown == SCALED.order


async def test_an_order_that_changes_nothing_is_not_kept(world: World) -> None:
    for _ in range(3):
        await world.order("scale", max_replicas=2)
    await world.order("end")
    await world.order("end")
    assert [what for _, what, _ in world.ledger.said] == ["scale", "end"]


async def taken(world: World, by: Principal) -> int:
    """How many of ten orders of that user were taken."""
    before = len(world.ledger.said)
    for _ in range(10):
        with suppress(InvalidInputError):
            await world.order("scale", by, max_replicas=2 if world.shown.max_replicas == 1 else 1)
    return len(world.ledger.said) - before


async def test_a_user_and_a_tenant_order_at_a_bounded_rate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "OF_USER", RateLimit(4, 3600.0))
    monkeypatch.setattr(rates, "OF_TENANT", RateLimit(7, 3600.0))
    bob, operator = replace(ALICE, uid=61002), replace(ALICE, uid=0, tenants=None)
    assert [await taken(world, by) for by in (ALICE, ALICE, bob, operator)] == [4, 0, 3, 10]
    with pytest.raises(InvalidInputError, match=r"You have .* 4 times .*\[SW-RATE\]"):
        await world.order("end")
    with pytest.raises(InvalidInputError, match=r"vision has .* 7 times .*\[SW-RATE\]"):
        await world.order("end", replace(ALICE, uid=61003))


async def test_bounds_are_those_of_the_newest_generation(world: World) -> None:
    """Whichever of them was named."""
    smaller = world.slurm.script.replace("max_replicas=3", "max_replicas=1")
    world.slurm.scripts = {815: smaller}
    world.slurm.shown = (job(0), job(0, array_job_id=815))
    await world.cluster_state.turn()
    with pytest.raises(InvalidInputError, match="has 1 slots, not 2"):
        await world.order("scale", max_replicas=2)


async def test_a_scale_order_goes_on_with_the_next_generation_and_ends_with_the_service(
    world: World,
) -> None:
    await world.order("scale", max_replicas=2)
    for those in ((job(0), job(0, array_job_id=815)), (job(0, array_job_id=815),)):
        world.slurm.shown = those
        await world.cluster_state.turn()
        await world.orders.turn()
        assert world.cluster_state.service(815).order.max_replicas == 2
    world.slurm.shown = (job(0, array_job_id=820),)
    await world.cluster_state.turn()
    await world.orders.turn()
    assert world.cluster_state.service(820).order == NO_ORDER


async def test_an_end_is_taken_back_by_applying_again(world: World) -> None:
    await world.order("end")
    await world.orders.turn()
    assert world.shown.delete_s == 100.0
    world.slurm.shown = (job(0), job(1, array_job_id=815))
    await world.cluster_state.turn()
    await world.orders.turn()
    assert world.shown == NO_ORDER
    assert world.ledger.said[-1] == (BERT, "over", "slicewise")


async def test_on_standby_and_once_slicewise_is_taken_out_nothing_is_ordered() -> None:
    class Standby:
        def leads(self) -> bool:
            return False

        def require(self) -> None:
            raise UnreachableError("SW-DAEMON-STANDBY", "no")

    out = World()
    out.cluster_state.is_uninstalled = True
    for world, code in ((World(Standby()), "STANDBY"), (out, "SW-UNINSTALLED")):
        await world.cluster_state.turn()
        with pytest.raises(SlicewiseError, match=code):
            await world.order("end")
        assert world.ledger.said == []


async def test_while_slurm_is_not_seen_no_order_is_over(world: World) -> None:
    world.ledger.ordered = {("vision", "gone"): ENDING}
    world.cluster_state.view = world.cluster_state.view.model_copy(update={"complete": False})
    await world.orders.turn()
    assert world.ledger.said == []
