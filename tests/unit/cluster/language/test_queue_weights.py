"""Tests the weights of those who share a service, in its file and in its directives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec, can_follow, service_spec

SERVICE = {
    "name": "chat",
    "tenant": "site",
    "model_repository": "/models",
    "model": "m",
    "profile": "1g.10gb",
}
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,30}", fullmatch=True)


def spec(**more: object) -> ServiceSpec:
    return service_spec({**SERVICE, **more})


@given(st.dictionaries(NAMES, st.integers(1, 1000), max_size=20))
def test_directives_say_the_weights_of_the_file(weights: dict[str, int]) -> None:
    found = spec(weights=weights)
    assert dict(found.weights) == weights
    assert service_spec(found.values()) == found


@pytest.mark.parametrize(
    "weights",
    [
        {"law": 0},
        {"law": 1001},
        {"law": 1.5},
        {"law": True},
        {"law": "2"},
        {"a b": 2},
        {"": 2},
        {"a,b": 2},
        "law",
        "law=02",
        "law=1,law=2",
        "law=1,",
        {f"t{number}": 1 for number in range(65)},
        {"x" * 127 + str(number): 1 for number in range(20)},
    ],
)
def test_other_weights_are_refused(weights: object) -> None:
    with pytest.raises(InvalidInputError, match="weights"):
        spec(weights=weights)


def test_a_service_with_an_audience_is_fair_between_tenants_unless_it_says_persons() -> None:
    assert spec().fair_among is None
    assert spec(audience="*").fair_among == "tenants"
    assert spec(audience="*", fair="persons").fair_among == "persons"
    assert spec(fair="persons").fair_among == "persons"


def test_shares_change_without_new_replicas() -> None:
    before = spec(audience="*").values()
    assert can_follow(before, spec(audience="*", weights={"law": 2}).values())
    assert can_follow(before, spec(audience="*", fair="persons").values())
    assert not can_follow(before, spec(audience="*", weights={"law": 2}, gpus=2).values())
    assert not can_follow(before, before)
