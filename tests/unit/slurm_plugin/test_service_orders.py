"""What owners order beside a service's script: kept before it holds, and over in time."""

from typing import Any

import pytest
from scripted import ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from cluster.errors import InvalidInputError, SlicewiseError, UnreachableError
from cluster.leadership import ALONE, Leader
from cluster.wire import NO_ORDER, OrderRequest, ServiceOrder
from slurm_plugin import service_orders
from slurm_plugin.decide.orders import (
    FORGOTTEN_S,
    Bounds,
    Ordered,
    missing_since,
    ordered,
    over,
)
from slurm_plugin.reader import Reader
from slurm_plugin.reads import Reads
from slurm_plugin.service_orders import ServiceOrders

ALICE = Reader(61001, "alice", frozenset({"vision"}))
BERT = ("vision", "bert")
SCRIPT = Bounds(min_replicas=1, max_replicas=4)
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
    with pytest.raises(InvalidInputError, match="SW-SERVICE-SCALE"):
        ordered(NO_ORDER, request("scale", **bounds), SCRIPT, 100.0)


def test_a_bound_that_crosses_the_scripts_other_one_asks_for_both() -> None:
    script = Bounds(min_replicas=3, max_replicas=4)
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


def test_an_order_ends_a_minute_after_its_service() -> None:
    orders = {BERT: SCALED}
    since = missing_since(orders, {}, {}, 100.0)
    assert since == {BERT: 100.0}
    assert over(orders, {}, missing_since(orders, {}, since, 130.0), 130.0) == frozenset()
    since = missing_since(orders, {}, since, 100.0 + FORGOTTEN_S)
    assert over(orders, {}, since, 100.0 + FORGOTTEN_S) == {BERT}


def test_a_service_that_is_there_again_has_not_ended() -> None:
    orders = {BERT: SCALED}
    since = missing_since(orders, {BERT: 820}, {BERT: 100.0}, 130.0)
    assert since == {}
    assert over(orders, {BERT: 820}, since, 130.0) == frozenset()


def test_an_end_is_over_when_its_last_array_is_gone_or_it_was_applied_again() -> None:
    orders = {BERT: ENDING}
    assert over(orders, {BERT: 814}, {}, 60.0) == frozenset()
    assert over(orders, {}, {BERT: 60.0}, 60.0) == {BERT}
    assert over(orders, {BERT: 815}, {}, 60.0) == {BERT}


# Taken, kept, shown


class World:
    def __init__(self, leader: Leader = ALONE, mode: str = "enforce") -> None:
        self.slurm = ScriptedSlurm(job(0), job(1))
        self.ledger: Any = ScriptedLedger()
        self.sync = sync_of(self.slurm)
        reads = Reads(settings(), self.slurm, self.ledger, self.sync)
        self.orders = ServiceOrders(mode, self.ledger, self.sync, reads, leader)

    async def order(self, what: str, **bounds: int) -> None:
        await self.orders.order(request(what, **bounds), self.sync.service(814), ALICE)

    @property
    def shown(self) -> ServiceOrder:
        return self.sync.service(814).order


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(service_orders.time, "time", lambda: 100.0)
    made = World()
    await made.sync.turn()
    return made


async def test_an_order_is_kept_with_its_author_and_shown_at_once_and_later(world: World) -> None:
    await world.order("restart")
    assert world.ledger.said == [(BERT, "restart", "alice")]
    assert world.shown == ServiceOrder(restart_s=100.0)
    await world.sync.turn()
    assert world.shown == ServiceOrder(restart_s=100.0)


async def test_a_service_scales_within_its_slots(world: World) -> None:
    await world.order("scale", min_replicas=2)
    assert world.shown.min_replicas == 2
    with pytest.raises(InvalidInputError, match=r"has 3 slots, not 4\..*SW-SERVICE-SCALE"):
        await world.order("scale", max_replicas=4)
    assert len(world.ledger.said) == 1


async def test_what_could_not_be_kept_does_not_hold(world: World) -> None:
    world.ledger.failures["set_order"] = [DOWN]
    with pytest.raises(UnreachableError) as raised:
        await world.order("restart")
    assert raised.value.refusal.code == "SW-DATABASE-DOWN"
    # Where the database is concerns operators only.
    assert "db1" not in str(raised.value)
    assert (world.shown, world.ledger.ordered) == (NO_ORDER, {})


async def test_another_daemons_orders_are_read_at_the_next_turn(world: World) -> None:
    world.ledger.ordered = {BERT: SCALED}
    await world.orders.turn()
    assert world.shown == SCALED.order


async def test_an_end_is_taken_back_by_applying_again(world: World) -> None:
    await world.order("end")
    await world.orders.turn()
    assert world.shown.delete_s == 100.0
    world.slurm.shown = (job(0), job(1, array_job_id=815))
    await world.sync.turn()
    await world.orders.turn()
    assert world.shown == NO_ORDER
    assert world.ledger.said[-1] == (BERT, "over", "slicewise")


async def test_on_standby_and_in_no_mode_but_enforce_nothing_is_ordered() -> None:
    class Standby:
        def leads(self) -> bool:
            return False

        def require(self) -> None:
            raise UnreachableError("SW-DAEMON-STANDBY", "no")

    for world, code in ((World(Standby()), "STANDBY"), (World(mode="advise"), "SERVICE-MODE")):
        await world.sync.turn()
        with pytest.raises(SlicewiseError, match=code):
            await world.order("end")
        assert world.ledger.said == []


async def test_while_slurm_is_not_seen_no_order_is_over(world: World) -> None:
    world.ledger.ordered = {("vision", "gone"): ENDING}
    world.sync.view = world.sync.view.model_copy(update={"complete": False})
    await world.orders.turn()
    assert world.ledger.said == []
