"""Tests which nodes are drawn, that layouts and bars are to scale, and that labels fit."""

import re

import pytest

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.rpc.overview_messages import GpuNow, InstanceNow, TenantNow
from slicewise.slurm_plugin.rules.pages.cluster_map import (
    board_map,
    layout_map,
    nodes_shown,
    share_bar,
)


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
    assert 'viewBox="0 0 416 24"' in drawn
    assert "4g.40gb" in drawn
    assert "<b>" not in drawn


def bar_of(in_use: int, on_loan: int, limit: int | None, borrowed: int = 3000) -> str:
    one = TenantNow(
        name="nlp",
        depth=0,
        nominal_millislices=4000,
        borrowed_millislices=borrowed,
        lent_millislices=0,
        limit_millislices=limit,
        in_use_millislices=in_use,
        on_loan_millislices=on_loan,
        waiting_jobs=0,
        waiting_millislices=0,
    )
    return str(share_bar(one))


@pytest.mark.parametrize(
    ("in_use", "on_loan", "limit", "widths"),
    [
        (3000, 1000, 7000, {"used": 286, "lent": 143, "idle": 571}),
        (3000, 0, 7000, {"used": 429, "idle": 571}),
        (8000, 3000, 7000, {"used": 625, "lent": 375}),
        (1000, 0, None, {"used": 250, "idle": 750}),
        (0, 0, 0, {}),
    ],
)
def test_a_bar_has_what_is_used_of_a_loan_and_not_what_was_granted(
    in_use: int, on_loan: int, limit: int | None, widths: dict[str, int]
):
    drawn = re.findall(
        r'class="(\w+)" x="[\d.]+" y="0.0" width="([\d.]+)"', bar_of(in_use, on_loan, limit)
    )
    assert {name: round(float(width)) for name, width in drawn} == widths


def test_a_bar_says_in_words_what_is_on_loan():
    assert 'aria-label="2 used, 1 on loan, 4 idle"' in bar_of(3000, 1000, 7000)


def labels(*instances: InstanceNow) -> list[str]:
    board = GpuNow(node="a", gpu=0, condition="up", memory_slices=8, instances=instances)
    return re.findall(r"<text[^>]*>([^<]*)</text>", str(board_map(board)))


def test_labels_of_instances_are_as_long_as_there_is_room():
    held = {"gres_type": "1g.10gb", "size": 1, "is_held": True}
    assert labels(
        InstanceNow(gres_type="a100_1g.10gb", size=1, start=0),
        InstanceNow(gres_type="a100_3g.40gb", size=4, start=1),
        InstanceNow(**held, start=5, service="vision/classify-many-images"),
        InstanceNow(**held, start=6, job="814"),
    ) == ["1g", "3g.40gb", "class…", "814"]
