"""Tests which GPUs a job could have now."""

import pytest
from builders.nodes import a_node

from slicewise.slurm_plugin.rules.common.free_instances import free_instances


@pytest.mark.parametrize(
    ("state", "blocked", "free"),
    [
        ("IDLE", "", 5),
        ("MIXED", "", 5),
        ("MIXED", "it is kept for one user", 0),
        ("ALLOCATED", "all of its CPUs are taken", 0),
        ("DOWN", "", 0),
    ],
)
def test_what_nobody_can_have_is_not_free(state: str, blocked: str, free: int) -> None:
    node = a_node(
        "n", states=frozenset({state}), gpus={"a": 7}, gpus_allotted={"a": 2}, blocked=blocked
    )
    assert free_instances([node]) == {"a": free}
