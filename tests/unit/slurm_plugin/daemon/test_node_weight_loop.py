"""Tests the weights by which Slurm fills nodes: when they are set, and when no longer."""

from dataclasses import replace

import pytest
from builders.nodes import a_node
from stand_ins.scripted import ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import PlacementSettings
from slicewise.slurm_plugin.daemon.node_weight_loop import NodeWeightLoop
from slicewise.slurm_plugin.rules.mig.node_weights import changes, own_weights

pytestmark = pytest.mark.usefixtures("clock")

COSTS = {"1g.10gb": Millislices(1000)}
MANAGED = frozenset({"gpu"})
START_S = 1_000_000.0


@pytest.mark.parametrize(
    ("used", "own", "weight"),
    [
        (7, 1, 1_000_010),
        (4, 1, 1_000_010),
        (3, 1, 1_000_011),
        (1, 1, 1_000_011),
        (0, 1, 1_000_012),
        (0, 0, 1_000_002),
        (4, 99_999, 1_999_990),
    ],
)
def test_the_emptier_the_later_and_the_sites_own_weight_first(used: int, own: int, weight: int):
    one = a_node("a", held=used, weight=own)
    assert changes([one], MANAGED, COSTS) == {"a": weight}
    assert own_weights([replace(one, weight=weight)]) == {"a": own}


@pytest.mark.parametrize(
    "one",
    [
        a_node("a", held=7, weight=1_000_010),
        a_node("a", partitions=frozenset({"cpu"})),
        a_node("a", gpus={}),
        a_node("a", gpus={"9g.99gb": 1}),
    ],
)
def test_nothing_is_said_of_what_is_as_it_should_be_or_not_ours(one: NodeView):
    assert changes([one], MANAGED, COSTS) == {}


@pytest.mark.parametrize("own", [100_000, 2_000_000, 2**32 - 2])
def test_a_weight_that_leaves_no_room_stops_all(own: int):
    nodes = [a_node("a"), a_node("b", weight=own), a_node("c", weight=1_000_012)]
    assert changes(nodes, MANAGED, COSTS) == {"c": 1}
    assert changes(nodes[:2], MANAGED, COSTS) == own_weights(nodes[:2]) == {}


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, mode: str, is_wanted: bool) -> None:
        self.now_s = START_S
        for clock in ("time", "monotonic"):
            monkeypatch.setattr(f"time.{clock}", lambda: self.now_s)
        # Nodes change here without any job.
        monkeypatch.setattr("slicewise.slurm_plugin.state.observer._NODES_S", 0.0)
        self.slurm = ScriptedSlurm()
        self.cluster_state = sync_of(self.slurm, mode)
        placement = PlacementSettings(node_weights=is_wanted)
        asked = settings(mode).model_copy(update={"placement": placement})
        self.loop = NodeWeightLoop(asked, self.slurm, self.cluster_state)  # type: ignore[arg-type]

    async def turn(self, after_s: float, *nodes: NodeView) -> list[dict[str, int]]:
        """What Slurm is told."""
        self.now_s += after_s
        self.slurm.known_nodes = nodes or self.slurm.known_nodes
        self.slurm.done.clear()
        await self.cluster_state.turn()
        await self.loop.turn()
        return [told for what, told in self.slurm.done if what == "weigh_nodes"]


async def test_only_what_is_different_is_told_and_not_too_often(monkeypatch: pytest.MonkeyPatch):
    world = World(monkeypatch, mode="enforce", is_wanted=True)
    told = await world.turn(0, a_node("a", held=7), a_node("b"))
    assert told == [{"a": 1_000_010, "b": 1_000_012}]
    first, second = world.slurm.known_nodes
    assert await world.turn(10, first, replace(second, gpus_allotted={"1g.10gb": 1})) == [
        {"b": 1_000_011}
    ]
    assert await world.turn(9, a_node("a"), a_node("b")) == []
    assert await world.turn(1) == [{"a": 1_000_012, "b": 1_000_012}]


async def test_where_it_is_not_wanted_the_sites_own_weights_come_back(
    monkeypatch: pytest.MonkeyPatch,
):
    world = World(monkeypatch, mode="enforce", is_wanted=False)
    nodes = a_node("a", held=7, weight=1_000_030), a_node("b", weight=5)
    assert await world.turn(0, *nodes) == [{"a": 3}]
    assert await world.turn(10) == []


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_a_daemon_that_changes_nothing_weighs_nothing(
    monkeypatch: pytest.MonkeyPatch, mode: str
):
    assert await World(monkeypatch, mode=mode, is_wanted=True).turn(0, a_node("a")) == []
