"""Tests checks of a node against a planned repartition."""

from dataclasses import replace

import pytest
from builders.nodes import a_node
from stand_ins.repartition_world import AFTER, BEFORE, GPU, NODE, inventory_of

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.jobs import NodeView
from slicewise.slurm_plugin.rules.mig import node_checks as looks
from slicewise.slurm_plugin.rules.mig.planner import GpuPlan
from slicewise.slurm_plugin.rules.slurm_config.gres import Device

A, B, C = (Device("1g.10gb", (f"/dev/{name}",)) for name in "abc")
NODE_VIEW = a_node(NODE, gpus={"1g.10gb": 2, "pad2": 5})


def test_a_step_of_the_plan_names_the_whole_layout_before_and_after() -> None:
    step = GpuPlan(GPU, NODE, ("vision/bert",), BEFORE[4:], AFTER[4:], 9, 4, "3g more", ())
    planned = looks.planned(step, BEFORE[::-1])
    assert (planned.before, planned.after) == (BEFORE, AFTER)
    assert (planned.moves, planned.gpu) == (("vision/bert",), GPU)


def test_a_layout_is_one_gpu_s_in_the_order_of_its_slices() -> None:
    assert looks.layout_of(inventory_of(reversed(AFTER)), GPU) == AFTER
    assert looks.layout_of(inventory_of(AFTER), "GPU-of-another-node") == ()


def test_an_instance_that_is_not_made_yet_has_capabilities_that_nobody_has() -> None:
    before = inventory_of(BEFORE)
    (gpu,) = looks.with_layout(before, GPU, AFTER).gpus
    assert gpu.instances[:4] == before.gpus[0].instances[:4]
    new = gpu.instances[4]
    assert new.placement == Placement("3g.40gb", 4, 4)
    known = {one.minor for one in before.gpus[0].instances}
    assert {new.minor, new.computes[0].minor}.isdisjoint(known)


def test_slurm_s_numbers_go_by_files_and_pads_have_none() -> None:
    assert looks.indices_of((A, None, B, C), (C, A)) == {0, 3}


def test_a_node_that_is_as_it_was_told_has_no_differences() -> None:
    assert list(looks.differences(NODE_VIEW, (A, B, *[None] * 5))) == []


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (None, "Slurm has no such node"),
        (replace(NODE_VIEW, states=frozenset({"IDLE", "DRAIN"})), "DRAIN"),
        (replace(NODE_VIEW, gpus={"1g.10gb": 3}), "Slurm has gpu:1g.10gb:3, not gpu:1g.10gb:2"),
        (replace(NODE_VIEW, gpus={"pad0": 7}), "Slurm has no GPU, not gpu:1g.10gb:2"),
    ],
)
def test_what_differs_is_said(node: NodeView | None, words: str) -> None:
    assert list(looks.differences(node, (A, B, *[None] * 5))) == [words]


def test_indices_are_not_known_while_slurm_names_fewer_than_it_has_given() -> None:
    held = replace(NODE_VIEW, gpus_allotted={"1g.10gb": 2}, gpus_held=frozenset({0}))
    assert not looks.are_indices_known(held)
    assert looks.are_indices_known(replace(held, gpus_held=frozenset({0, 1})))


def test_a_change_is_what_goes_and_what_comes() -> None:
    assert looks.change_text(BEFORE, AFTER) == "3 1g.10gb to 3g.40gb@4"
    assert looks.change_text((), BEFORE[:1]) == "free slices to 1g.10gb@0"
