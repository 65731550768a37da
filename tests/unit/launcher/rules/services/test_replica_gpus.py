"""Tests which shapes of a replica an engine is given, and what is offered instead of others."""

from types import SimpleNamespace
from typing import Any

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.replica_shape import ReplicaShape
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.rules.engines.engine import Parallelism
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.rules.services.replica_gpus import require_split, require_usable

A100 = {"types": ["1g.10gb", "3g.40gb", "7g.80gb"], "whole": ["a100"]}
H200 = {"types": ["1g.18gb"], "whole": ["h200"], "weight": "2"}
MIG, WHOLE = "1g.10gb", "a100"


def settings(**gpus: Any) -> Settings:
    sections = {"A100-80GB": A100, "H200-141GB": H200} | gpus
    cluster = {"name": "c", "partitions": ["gpu"]}
    return Settings.model_validate({"cluster": cluster, "gpus": sections})


def engine(**can: bool) -> Any:
    return SimpleNamespace(title="Toy", parallelism=Parallelism(**can))


def refusal(one: Any, shape: ReplicaShape, given: Settings | None = None) -> tuple[str, str]:
    """Message and hint."""
    with pytest.raises(InvalidInputError) as caught:
        require_usable(one, shape, given or settings())
    assert caught.value.refusal.code == "SW-SERVICE"
    return caught.value.refusal.message, caught.value.refusal.hint


@pytest.mark.parametrize("one", ENGINES.values(), ids=ENGINES.keys())
@pytest.mark.parametrize("kind", [MIG, WHOLE, None])
def test_each_engine_takes_one_gpu(one: Any, kind: str | None) -> None:
    require_usable(one, ReplicaShape(kind), settings())


@pytest.mark.parametrize("one", [Triton(), LlamaCpp()])
def test_triton_and_llama_cpp_use_several_whole_gpus_of_one_node(one: Any) -> None:
    require_usable(one, ReplicaShape(WHOLE, gpus=8), settings())
    message, hint = refusal(one, ReplicaShape(WHOLE, gpus=8, nodes=2))
    assert message == f"nodes: {one.title} serves a model from one node, not from 2."
    assert hint == "Write nodes = 1. For more requests at a time raise max_replicas."
    message, _ = refusal(one, ReplicaShape(MIG, gpus=2))
    assert message.startswith("profile: 2 × 1g.10gb are MIG instances, which can't copy memory to")


def test_an_engine_of_one_gpu_is_given_no_more() -> None:
    message, _ = refusal(engine(), ReplicaShape(WHOLE, gpus=2))
    assert message == "gpus: Toy serves a model from one GPU, not from 2."
    require_usable(engine(nodes=True), ReplicaShape(WHOLE, nodes=2), settings())


def test_only_an_engine_that_says_so_is_given_several_mig_instances() -> None:
    for shape in (ReplicaShape(MIG, gpus=2), ReplicaShape(MIG, nodes=2)):
        refusal(engine(gpus=True, nodes=True), shape)
        require_usable(engine(gpus=True, nodes=True, instances=True), shape, settings())


@pytest.mark.parametrize(
    ("shape", "instead"),
    [
        # 1g.10gb has 9.6 GiB, 3g.40gb 39.25, 7g.80gb and a100 78.5.
        (ReplicaShape(MIG, gpus=2), '19 GiB) has profile = "3g.40gb" or profile = "a100".'),
        (ReplicaShape(MIG, gpus=7), '67 GiB) has profile = "7g.80gb" or profile = "a100".'),
        (ReplicaShape("3g.40gb", gpus=2, nodes=2), 'profile = "a100", gpus = 2.'),
    ],
)
def test_the_refusal_names_the_cheapest_shapes_with_as_much_memory(
    shape: ReplicaShape, instead: str
) -> None:
    _, hint = refusal(engine(gpus=True, nodes=True), shape)
    assert instead in hint


def test_without_whole_gpus_or_known_memory_it_says_so() -> None:
    only = settings(**{"A100-80GB": {"types": [MIG]}, "H200-141GB": {"types": ["1g.18gb"]}})
    _, hint = refusal(engine(gpus=True), ReplicaShape(MIG, gpus=3), only)
    assert hint.startswith("No instance and no whole GPU of slicewise.toml has 29 GiB.")


def test_only_an_engine_that_splits_layers_is_told_how():
    values = {"name": "a", "tenant": "nlp", "model_repository": "/m", "model": "m", "gpus": 4}
    plain = ServiceSpec.model_validate(values | {"profile": WHOLE})
    split = plain.model_copy(update={"tensor_parallel": 2})
    require_split(engine(layers=True), split)
    require_split(engine(), plain)
    with pytest.raises(InvalidInputError) as caught:
        require_split(engine(), split)
    assert caught.value.refusal.code == "SW-SERVICE"
    assert caught.value.refusal.hint == "Leave tensor_parallel out."
