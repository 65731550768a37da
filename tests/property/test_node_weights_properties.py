"""Property: with node weights the site's order and its own values stay, whatever nodes do."""

from dataclasses import replace

from builders.nodes import a_node
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.mig.node_weights import changes, own_weights

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
MANAGED = frozenset({"gpu"})
SLICES = {"1g.10gb": 4, "3g.40gb": 1}
Use = dict[str, int]

OWN = st.integers(0, 99_999) | st.integers(0, 3)
USE = st.fixed_dictionaries({name: st.integers(0, count) for name, count in SLICES.items()})


@st.composite
def sites(draw: st.DrawFn) -> list[NodeView]:
    return [
        a_node(
            f"n{number}",
            "MIXED",
            gpus=SLICES if draw(st.booleans()) else {},
            partitions=frozenset({draw(st.sampled_from(["gpu", "cpu"]))}),
            weight=draw(OWN),
        )
        for number in range(draw(st.integers(0, 6)))
    ]


def used(node: NodeView) -> int:
    return sum(COSTS[name] * count for name, count in node.gpus_allotted.items())


def turned(nodes: list[NodeView], uses: list[Use]) -> list[NodeView]:
    """The nodes are used so, and then one turn is over."""
    now = [
        replace(node, gpus_allotted=use if node.gpus else {})
        for node, use in zip(nodes, uses, strict=True)
    ]
    told = changes(now, MANAGED, COSTS)
    return [replace(node, weight=told.get(node.name, node.weight)) for node in now]


@given(sites(), st.data())
def test_the_sites_order_stays_and_its_weights_come_back(
    site: list[NodeView], data: st.DataObject
) -> None:
    nodes = site
    for _ in range(data.draw(st.integers(1, 3))):
        nodes = turned(nodes, [data.draw(USE) for _ in site])
        assert changes(nodes, MANAGED, COSTS) == {}
    ours = [
        (before.weight, now)
        for before, now in zip(site, nodes, strict=True)
        if now.gpus and now.partitions == MANAGED
    ]
    for own, one in ours:
        for other_own, other in ours:
            assert own >= other_own or one.weight < other.weight
            if own == other_own and one.weight < other.weight:
                assert used(one) > used(other)
    assert all(now.weight < 2**24 for now in nodes)
    back = own_weights(nodes)
    assert [back.get(now.name, now.weight) for now in nodes] == [one.weight for one in site]
