import pytest
from builders.nodes import a_node

from slicewise.cluster.language.slurm.node_states import (
    OUT_OF_USE,
    UNFIT,
    boots,
    is_asleep,
    is_drained,
    read_states,
)


@pytest.mark.parametrize(
    ("states", "drained"), [({"IDLE"}, False), ({"MIXED", "DRAIN"}, True), ({"DOWN"}, False)]
)
def test_a_drain_is_a_flag_beside_the_base_state(states: set[str], drained: bool) -> None:
    assert is_drained(a_node(states=frozenset(states), gpus={})) is drained


def test_where_nothing_starts_nothing_is_done_either() -> None:
    # DRAINED and DRAINING are sinfo's words for DRAIN beside a base state.
    assert OUT_OF_USE - set(UNFIT) == {"DRAINED", "DRAINING"}


@pytest.mark.parametrize(
    ("text", "is_usable", "sleeps", "boot"),
    [
        ("IDLE", True, False, False),
        ("MIXED+NOT_RESPONDING", False, False, False),
        ("IDLE+CLOUD+POWERED_DOWN", True, True, False),
        ("IDLE+POWERING_DOWN+NOT_RESPONDING", True, True, False),
        ("MIXED+NOT_RESPONDING+POWERING_UP", True, False, True),
        ("IDLE+POWERED_DOWN+POWERING_UP", True, False, True),
        # Its boot took longer than ResumeTimeout.
        ("DOWN+NOT_RESPONDING+POWERED_DOWN", False, True, False),
        ("IDLE+DRAIN+POWERED_DOWN", False, True, False),
    ],
)
def test_a_node_that_is_powered_down_or_boots_is_not_lost(
    text: str, is_usable: bool, sleeps: bool, boot: bool
) -> None:
    node = a_node(states=read_states(text.split("+")))
    assert node.states.isdisjoint(OUT_OF_USE) is is_usable
    assert (is_asleep(node), boots(node)) == (sleeps, boot)
