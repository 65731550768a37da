"""Tests which nodes are drawn, and that a layout is drawn to scale."""

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.rpc.overview_messages import GpuNow, InstanceNow
from slicewise.slurm_plugin.rules.pages.cluster_map import layout_map, nodes_shown


def gpu(node: str, condition: str = "up", *, held: int = 0) -> GpuNow:
    instances = tuple(
        InstanceNow(gres_type="1g.10gb", size=1, start=start, is_held=start < held)
        for start in range(7)
    )
    return GpuNow(
        node=node,
        gpu=0,
        condition=condition,  # type: ignore[arg-type]
        memory_slices=8,
        instances=instances,
    )


def test_a_small_cluster_is_drawn_whole_by_name():
    shown = nodes_shown([gpu("b"), gpu("a", "down")], "")
    assert [one.node for one in shown.nodes] == ["a", "b"]
    assert (shown.matching, shown.whole) == (2, 2)


def test_of_a_large_cluster_trouble_comes_first_then_use():
    gpus = [gpu(f"node-{number:04}", held=number % 3) for number in range(1000)]
    gpus += [gpu("z-down", "down"), gpu("z-drained", "draining")]
    shown = nodes_shown(gpus, "")
    names = [one.node for one in shown.nodes]
    assert len(names) == 128
    assert {"z-down", "z-drained"} <= set(names)
    assert all(one.condition != "up" or one.gpus[0].instances[1].is_held for one in shown.nodes)
    assert shown.matching == shown.whole == 1002


def test_nodes_are_found_by_a_part_of_their_names():
    shown = nodes_shown([gpu("gpu01"), gpu("gpu02"), gpu("big01")], "GPU")
    assert [one.node for one in shown.nodes] == ["gpu01", "gpu02"]
    assert (shown.matching, shown.whole) == (2, 3)


def test_a_node_with_more_gpus_than_there_is_room_for_is_drawn():
    assert len(nodes_shown([gpu("a")] * 200, "").nodes[0].gpus) == 200


def test_a_layout_is_as_long_as_its_instances():
    placed = [
        Placement(profile="4g.40gb", start=0, size=4),
        Placement(profile="<b>", start=4, size=4),
    ]
    drawn = layout_map(placed)
    assert 'viewBox="0 0 320 24"' in drawn
    assert "4g.40gb" in drawn
    assert "<b>" not in drawn
