"""Tests how many services the gateway carries, in all and of one tenant."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.service_places import ServicePlaces
from slicewise.cluster.settings.gateway import GatewaySettings

EIGHT = ServicePlaces(8, per_tenant=4)


def test_eight_services_of_one_tenant_do_not_take_all_places() -> None:
    assert EIGHT.why_none("vision", {"vision": 3}) == ""
    assert "'vision' has 4 services and may have at most 4" in EIGHT.why_none(
        "vision", {"vision": 4}
    )
    assert EIGHT.why_none("nlp", {"vision": 4}) == ""


def test_the_last_quarter_is_for_who_has_none() -> None:
    held = {"vision": 4, "nlp": 2}
    assert "the last 2 of the gateway's 8 places are kept" in EIGHT.why_none("nlp", held)
    assert EIGHT.why_none("audio", held) == ""


def test_a_full_gateway_takes_nobody() -> None:
    held = {str(number): 1 for number in range(8)}
    assert "all 8 places of the gateway are taken" in EIGHT.why_none("audio", held)


def test_a_tenant_gets_half_of_the_backends_unless_it_is_said() -> None:
    assert GatewaySettings().places == ServicePlaces(512, 256)
    assert GatewaySettings(services=1, backends=1).places == ServicePlaces(1, 1)
    assert GatewaySettings(services=64, services_per_tenant=3).places == ServicePlaces(64, 3)
    # As many as can have replicas are there in any case.
    fewer = GatewaySettings(services=8, backends=64)
    assert (fewer.places, fewer.idle_backends) == (ServicePlaces(64, 32), 0)
    assert GatewaySettings(services=65, backends=64).idle_backends == 65


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.sampled_from("abcdef"), max_size=60))
def test_whoever_asks_the_bounds_hold(total: int, per_tenant: int, asked: list[str]) -> None:
    places, held = ServicePlaces(total, per_tenant), Counter[str]()
    for tenant in asked:
        if not places.why_none(tenant, held):
            held[tenant] += 1
    assert held.total() <= total
    assert max(held.values(), default=0) <= per_tenant
    # Who has none is refused only once nothing is left, or all that is left went to such.
    if held.total() < total:
        assert places.why_none("a newcomer", held) == ""


def test_a_part_of_the_places_has_bounds_of_its_own():
    assert ServicePlaces(512, 256).part(32) == ServicePlaces(32, 16)
    # Few services of a tenant may all be busy; a tenant that may have all services may use all.
    assert ServicePlaces(512, 10).part(32) == ServicePlaces(32, 16)
    assert ServicePlaces(512, 512).part(32) == ServicePlaces(32, 32)
    assert ServicePlaces(2, 1).part(1) == ServicePlaces(1, 1)
