"""Tests which services are shown, and in which order."""

import pytest
from stand_ins.web_answers import Answers

from slicewise.slurm_plugin.rules.pages.services import SORTS, STATES, service_of, services_shown

MADE = Answers(8)
SERVICES = MADE.overview(None).services  # type: ignore[arg-type]


def names(text: str = "", state: str = "", sort: str = "") -> list[str]:
    return [one.tenant for one in services_shown(SERVICES, text, state, sort)]


def test_they_are_found_by_a_part_of_tenant_name_or_user():
    assert names("nlp/ch") == ["nlp"]
    assert len(names("alice")) == len(SERVICES)
    assert names("nobody") == []


def test_they_are_chosen_by_state():
    assert names(state="failing") == ["group-0005", "nlp"]


def test_without_a_known_order_they_are_by_name():
    assert names() == names(sort="<script>") == sorted(names())


@pytest.mark.parametrize("sort", [value for value, _ in SORTS if value])
def test_each_order_keeps_all(sort: str):
    assert sorted(names(sort=sort)) == names()


def test_the_largest_come_first_and_the_worst_states():
    assert names(sort="backlog")[0] == names(sort="p95")[0] == "group-0007"
    shown = services_shown(SERVICES, "", "", "state")
    ranks = [value for value, _ in STATES]
    found = [ranks.index(one.condition) for one in shown]
    assert found == sorted(found)


def test_one_service_is_found_by_its_whole_name():
    found = service_of(SERVICES, "nlp", "chat")
    assert found is not None
    assert found.tenant == "nlp"
    assert service_of(SERVICES, "nlp", "cha") is None
