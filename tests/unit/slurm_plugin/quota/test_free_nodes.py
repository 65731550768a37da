"""Tests that what is carried on of an earlier look at nodes is what a fresh look would find."""

from dataclasses import replace
from random import Random

from builders.nodes import a_node

from cluster.language.jobs import NodeView
from slurm_plugin.quota.free_nodes import FreeNodes

GPU = frozenset({"gpu"})


def node(number: int, held: int = 0, *states: str) -> NodeView:
    counts = {"a100": 8}
    return a_node(f"n{number}", *states, gpus=counts, gpus_allotted={"a100": held}, partitions=GPU)


def look(*nodes: NodeView) -> FreeNodes:
    return FreeNodes(nodes, GPU)


def test_a_node_that_changed_is_counted_anew() -> None:
    first, second = node(1), node(2, 3)
    before = look(first, second)
    assert before.by_name == {"n1": {"a100": 8}, "n2": {"a100": 5}}
    after = look(node(1, 2), second).knowing(before)
    assert after.by_name == {"n1": {"a100": 6}, "n2": {"a100": 5}}
    assert after.by_name["n2"] is before.by_name["n2"]


def test_a_node_that_goes_out_of_use_or_comes_back_is_as_at_a_fresh_look() -> None:
    there, down = (node(1), node(2)), (node(1, 0, "DOWN"), node(2))
    assert look(*down).knowing(look(*there)).by_name == {"n2": {"a100": 8}}
    assert list(look(*there).knowing(look(*down)).by_name) == ["n1", "n2"]


def test_other_partitions_or_nodes_are_counted_anew() -> None:
    before = look(node(1), node(2))
    assert FreeNodes(before.nodes, frozenset({"cpu"})).knowing(before).by_name == {}
    assert list(look(node(3), node(2)).knowing(before).by_name) == ["n3", "n2"]
    assert list(look(node(1)).knowing(before).by_name) == ["n1"]


def test_whatever_changes_a_look_that_knows_the_last_one_finds_the_same() -> None:
    draw = Random(7)  # noqa: S311 -- nodes, no secret
    nodes = [node(number) for number in range(10)]
    known = look(*nodes)
    for _ in range(200):
        for number in draw.sample(range(10), draw.randrange(4)):
            states = ("DOWN",) if draw.random() < 0.2 else ()
            nodes[number] = replace(node(number, draw.randrange(9)), states=frozenset(states))
        known, fresh = look(*nodes).knowing(known), look(*nodes)
        assert list(known.by_name.items()) == list(fresh.by_name.items())
