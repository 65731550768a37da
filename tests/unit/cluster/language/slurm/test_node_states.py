import pytest
from builders.nodes import a_node

from slicewise.cluster.language.slurm.node_states import OUT_OF_USE, UNFIT, is_drained


@pytest.mark.parametrize(
    ("states", "drained"), [({"IDLE"}, False), ({"MIXED", "DRAIN"}, True), ({"DOWN"}, False)]
)
def test_a_drain_is_a_flag_beside_the_base_state(states: set[str], drained: bool) -> None:
    assert is_drained(a_node(states=frozenset(states), gpus={})) is drained


def test_where_nothing_starts_nothing_is_done_either() -> None:
    # DRAINED and DRAINING are sinfo's words for DRAIN beside a base state.
    assert OUT_OF_USE - set(UNFIT) == {"DRAINED", "DRAINING"}
