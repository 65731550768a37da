import pytest

from slicewise.cluster.language.gres import GpuRequest
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import service_spec
from slicewise.cluster.language.units import Millislices

SPEC = {"name": "chat", "tenant": "vision", "model_repository": "/models", "model": "m"}
COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}


def test_a_replica_has_one_gpu_of_its_profile() -> None:
    shape = service_spec(SPEC | {"profile": "1g.10gb"}).replica_shape
    assert shape == ReplicaShape("1g.10gb", gpus=1, nodes=1)
    assert (shape.gres, shape.request) == ("gpu:1g.10gb:1", GpuRequest("1g.10gb", 1))
    assert shape.cost_millislices(COSTS) == 1000


def test_with_a_need_the_type_is_open_and_has_no_cost_yet() -> None:
    shape = service_spec(SPEC | {"need_gib": 8}).replica_shape
    assert shape == ReplicaShape(None, gpus=1, nodes=1)
    assert shape.cost_millislices(COSTS) == 0


@pytest.mark.parametrize(
    ("gpus", "nodes", "words"),
    [
        (1, 1, "a100"),
        (2, 1, "2 × a100"),
        (1, 2, "2 nodes × 1 × a100"),
        (4, 2, "2 nodes × 4 × a100"),
    ],
)
def test_its_words_name_what_is_more_than_one(gpus: int, nodes: int, words: str) -> None:
    spec = service_spec(SPEC | {"profile": "a100", "gpus": gpus, "nodes": nodes})
    assert spec.replica_shape.words == words


@pytest.mark.parametrize(
    ("instances", "fits"), [((2, 2, 2), True), ((2, 2), False), ((6,), False), ((2, 1, 4, 3), True)]
)
def test_it_fits_where_enough_nodes_have_its_gpus(instances: tuple[int, ...], fits: bool) -> None:
    assert ReplicaShape("a100", gpus=2, nodes=3).fits_on(instances) is fits


def test_slurm_counts_by_node_and_the_price_is_of_all() -> None:
    shape = ReplicaShape("3g.40gb", gpus=2, nodes=3)
    assert shape.gres == "gpu:3g.40gb:2"
    assert shape.request == GpuRequest("3g.40gb", 6)
    assert shape.cost_millislices(COSTS) == 21_000


@pytest.mark.parametrize("gres_type", ["7g.80gb", ""])
def test_a_type_without_a_price_costs_nothing(gres_type: str) -> None:
    assert ReplicaShape(gres_type).cost_millislices(COSTS) == 0
