"""Tests the most instances of a type, by limits on it or its model and by guarantees."""

from builders.tenants import tenant

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.type_limits import binding_type_limits, own_type_limits

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
MODELS = dict.fromkeys(COSTS, "A100-80GB")


def test_limits_on_types_bind_those_below_too() -> None:
    policy = {
        "lab": tenant("lab", type_limits={"1g.10gb": 2}),
        "a": tenant("a", parent="lab", type_limits={"1g.10gb": 3}),
        "b": tenant("b", parent="a", model_limits={"A100-80GB": Millislices(1000)}),
        "c": tenant("c"),
    }
    assert binding_type_limits(policy, COSTS, MODELS) == {
        "lab": {"1g.10gb": 2},
        "a": {"1g.10gb": 2},
        "b": {"1g.10gb": 1, "3g.40gb": 0},
        "c": {},
    }


def test_no_more_of_a_type_is_guaranteed_than_a_limit_on_its_model_allows() -> None:
    """Also one of a tenant above. What nobody is guaranteed by type is no matter of types."""
    small = {"1g.10gb": 4, "3g.40gb": 1}
    limits = {"A100-80GB": Millislices(3000)}
    policy = {
        "lab": tenant("lab", model_limits=limits),
        "a": tenant("a", 9000, "lab", type_nominals=small),
        "c": tenant("c", 9000, type_nominals=small),
    }
    own = own_type_limits(policy, COSTS, MODELS)
    assert own == {"a": {"1g.10gb": 3, "3g.40gb": 0}, "c": small}
    assert own_type_limits(policy, COSTS, {})["a"] == small
    assert own_type_limits({"lab": policy["lab"]}, COSTS, MODELS) == {}
