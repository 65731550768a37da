"""Tests what the launcher tells the gateway of fair queues."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from slicewise.launcher.process.fair_queues import FairQueues
from slicewise.launcher.rules.gateway.fair_queue import Position
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.gateway.usage_lines import TokenSums

USED = {
    ("site/chat", "law", "anna"): TokenSums(1, 100, 0, 100),
    ("site/chat", "law", "ben"): TokenSums(1, 300, 100, 50),
    ("site/other", "law", "ben"): TokenSums(9, 9, 9, 9),
}


class World:
    """A gateway that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, str]] = []
        self.asked = 0

    async def fair_positions(self) -> Mapping[str, Position]:
        self.asked += 1
        return {"site/chat": Position(1000.0 * self.asked, 1000.0 * self.asked)}

    async def set_priorities(self, entries: Mapping[str, str]) -> None:
        self.told.append(entries)


def plan(among: str | None, queued: int = 0) -> Any:
    spec = SimpleNamespace(fair_among=among, weights=(("law", 2.0),))
    service = SimpleNamespace(service="site/chat", spec=spec, load=Load(queued=queued))
    return SimpleNamespace(services=(service,))


async def test_tenants_or_persons_have_the_means_of_what_they_used():
    world = World()
    for among, law in (("tenants", "1520"), ("persons", "1520")):
        queues = FairQueues()
        queues.turned(plan(among))
        await queues.order(world, USED, 1000.0)
        assert world.told[-1]["site/chat"].endswith(among)
        assert world.told[-1]["site/chat/law"] == law
    assert world.told[-1]["site/chat/anna"] == "3000"
    assert world.told[-1]["site/chat/ben"] == "3100"
    assert world.asked == 0


async def test_an_answer_weighs_what_the_operator_says_it_does():
    """And a token that the engine had in its cache a tenth, as in shared hours."""
    world, queues = World(), FairQueues({"site/chat": 5.0})
    queues.turned(plan("persons"))
    await queues.order(world, USED, 1000.0)
    assert world.told[-1]["site/chat/anna"] == "6000"
    assert world.told[-1]["site/chat/ben"] == "4600"


async def test_a_service_that_is_fair_no_longer_is_taken_away_once():
    world, queues = World(), FairQueues()
    for among in ("tenants", None, None):
        queues.turned(plan(among))
        await queues.order(world, {}, 1000.0)
    assert [bool(entries) for entries in world.told] == [True, False]


async def test_while_requests_wait_the_pace_follows_the_clock():
    world, queues = World(), FairQueues()
    queues.turned(plan("tenants", queued=5))
    for second in range(1, 13):
        await queues.order(world, {}, 4000.0 * second)
    before, later = world.told[-1]["site/chat"].split(":")[1:3]
    assert int(later) > 2 * int(before)
