"""Tests the adapters of a service file, and which changes of them need no other replicas."""

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.adapters import MOST_ADAPTERS, adapters_of, model_name
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import (
    ServiceSpec,
    can_follow,
    spec_of_directives,
)

VALUES = {"name": "chat", "tenant": "nlp", "model_repository": "/m", "model": "m"}


def spec(**change: object) -> ServiceSpec:
    return a_spec(**({"profile": "h200", "engine": "vllm"} | change))


def test_adapters_stand_in_one_directive_which_is_read_again():
    one = spec(adapters={"tax": "lora/tax", "Legal.v2": "legal"}, adapter_rank=32)
    assert "#SLICEWISE adapters=Legal.v2=legal&tax=lora/tax" in one.directives()
    assert "#SLICEWISE adapter_rank=32" in one.directives()
    assert spec_of_directives(one.values()) == one
    assert adapters_of(one.values()) == {"Legal.v2": "legal", "tax": "lora/tax"}
    assert model_name(one.name, "tax") == "chat:tax"


def test_a_service_without_adapters_has_no_directive_of_them():
    assert not any("adapter" in line for line in spec().directives())
    assert spec().largest_rank == 16
    assert adapters_of({}) == adapters_of({"adapters": "oops"}) == {}


@pytest.mark.parametrize(
    "adapters",
    [
        {"": "a"},
        {"a:b": "a"},
        {"a/b": "a"},
        {"-a": "a"},
        {"a\n": "a"},
        {"a b": "a"},
        {"a" * 64: "a"},
        {"a": ""},
        {"a": "/etc"},
        {"a": "../other"},
        {"a": "x/../../other"},
        {"a": "./x"},
        {"a": "x//y"},
        {"a": "$(id)"},
        {"a": "x'y"},
        {"a": "x" * 256},
        {"a": 7},
        {f"a{number}": "x" for number in range(MOST_ADAPTERS + 1)},
        {f"a{number}": "x" * 200 for number in range(20)},
        ["a"],
        "a",
        "a=x&a=y",
    ],
)
def test_names_and_paths_that_could_mean_anything_else_are_refused(adapters: object):
    with pytest.raises(InvalidInputError, match="adapters: a table of at most 32") as caught:
        spec(adapters=adapters)
    assert caught.value.refusal.code == "SW-SERVICE"


def test_replicas_stay_if_only_adapters_differ_and_their_server_can_load_some():
    one, two, none = spec(adapters={"a": "x"}), spec(adapters={"b": "y"}), spec()
    assert can_follow(one.values(), two.values())
    assert can_follow(one.values(), none.values())
    assert can_follow(one.values(), one.values())
    assert not can_follow(none.values(), one.values())
    other = spec(adapters={"a": "x"}, adapter_rank=64)
    assert not can_follow(one.values(), other.values())


def test_a_key_that_an_older_script_leaves_out_counts_with_its_default():
    """An upgrade that adds a key would replace replicas that apply has said to stay."""
    one, two = spec(adapters={"a": "x"}).values(), spec(adapters={"b": "y"}).values()
    older = {key: text for key, text in one.items() if key != "memory_mib"}
    assert older != one
    assert can_follow(older, two)
    assert not can_follow(older, dict(two) | {"memory_mib": "77"})
    unreadable = dict(one) | {"of_another_version": "1"}
    assert can_follow(unreadable, dict(two) | {"of_another_version": "1"})
    assert not can_follow(unreadable, two)
