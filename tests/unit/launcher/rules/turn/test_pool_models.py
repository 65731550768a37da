"""Tests what placement is told of a pool's models."""

from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.rules.turn.pool_models import FIRST_LOAD_S, load_s

FAR = ReplicaModels(load_s={"m": 40.0, "n": 9.0})
NEAR = ReplicaModels(load_s={"m": 7.0}, from_node=frozenset({"m"}))


def test_a_load_takes_as_long_as_the_last_ones():
    assert load_s("m", []) == FIRST_LOAD_S
    assert load_s("n", [FAR, NEAR]) == 9.0
    assert load_s("m", [ReplicaModels(load_s={"m": 3.0}), FAR]) == 40.0


def test_once_a_node_has_had_it_the_loads_from_there_tell():
    assert load_s("m", [FAR, NEAR]) == 7.0
