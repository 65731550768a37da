"""Tests the registry of pages: addresses, what each asks, links."""

from dataclasses import replace

import pytest
from stand_ins.web_answers import NOW_S

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.history_messages import HistoryRequest
from slicewise.cluster.rpc.key_messages import KeyCreateRequest, KeyRevokeRequest
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, RequestLimits
from slicewise.cluster.rpc.message import requests
from slicewise.cluster.rpc.new_key import NewApiKey
from slicewise.cluster.rpc.overview_messages import QueueRequest
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanRequest
from slicewise.slurm_plugin.common.ledger_requests import TenantsRequest
from slicewise.slurm_plugin.common.usage_requests import TokenUsageRequest
from slicewise.slurm_plugin.page.assets import TEMPLATES
from slicewise.slurm_plugin.page.key_forms import KeyForm, key_change
from slicewise.slurm_plugin.page.pages import PAGES, Page, PagePlace

WORDS = {"tenant": "vision", "service": "chat", "job": "814"}


def place(path: str = "/cluster", **query: str) -> PagePlace:
    return PagePlace(path, WORDS, query, NOW_S, "UTC")


def test_addresses_and_templates_are_there_once():
    assert len({page.pattern for page in PAGES}) == len(PAGES)
    for page in PAGES:
        assert (TEMPLATES / f"{page.template}.html.j2").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.pattern)
def test_each_page_asks_what_changes_nothing(page: Page):
    asked = [*page.asks(place()).values()]
    if page.form_asks is not None:
        asked += page.form_asks({"text": "[tenants.vision]"}).values()
    assert asked
    assert {type(one) for one in asked} <= set(requests())
    assert not any(one.changes for one in asked)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.pattern)
def test_what_only_operators_may_ask_is_on_their_pages(page: Page):
    asked = [*page.asks(place()).values()]
    asked += page.form_asks({}).values() if page.form_asks is not None else ()
    assert any(one.asker == "operators" for one in asked) == page.is_for_operators


def test_a_tenant_s_page_asks_for_this_tenant_also_if_it_is_called_cluster():
    (page,) = (one for one in PAGES if one.pattern == "/tenants/{tenant}")
    own = PagePlace("/tenants/cluster", {"tenant": "cluster"}, {}, NOW_S, "UTC")
    history = page.asks(own)["history"]
    assert isinstance(history, HistoryRequest)
    assert history.about == "cluster/"


def test_the_queue_goes_on_after_a_place_and_not_after_other_words():
    (page,) = (one for one in PAGES if one.pattern == "/queue")
    for asked, after in (("40", 40), ("x", 0), ("-1", 0)):
        found = page.asks(place(after=asked))["queue"]
        assert found == QueueRequest(after=after)


def test_a_form_s_text_is_asked_as_it_is():
    (page,) = (one for one in PAGES if one.form_asks is not None)
    assert page.form_asks is not None
    assert page.form_asks({"text": "a\nb"}) == {"plan": QuotaPlanRequest(text="a\nb")}


def sent(**fields: str) -> KeyForm:
    return KeyForm(fields, NewApiKey("a" * 12, "swk_x"), NOW_S, "UTC")


def test_the_forms_of_keys_ask_for_what_the_page_may_change():
    (page,) = (one for one in PAGES if one.change is not None)
    assert page.change is key_change
    made = key_change(sent(act="make", tenant="Vision", name="ci", last_day="2126-01-31"))
    assert made == KeyCreateRequest(
        key_id="a" * 12,
        tenant="vision",
        name="ci",
        sha256=NewApiKey("", "swk_x").sha256,
        expires_s=4_925_577_600,
        may_be_first=False,
    )
    limited = key_change(sent(act="limit", key_id="b" * 12, concurrent=" 2", tokens_per_month=""))
    assert limited == LimitChangeRequest(
        key_id="b" * 12,
        limits=RequestLimits(concurrent=2),
        lifted=frozenset({"requests_per_minute", "tokens_per_minute", "tokens_per_month"}),
    )
    ended = key_change(sent(act="end", key_id="b" * 12, sure="yes"))
    assert ended == KeyRevokeRequest(key_id="b" * 12)
    assert all(one.on_page for one in (made, limited, ended))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"act": "open", "tenant": "vision"},
        {"act": "end", "key_id": "b" * 12},
        {"act": "end", "sure": "yes"},
        {"act": "limit", "key_id": "b" * 12, "concurrent": "-1"},
        {"act": "limit", "key_id": "b" * 12, "concurrent": "\u0662"},
        {"act": "limit", "key_id": "b" * 12, "concurrent": "1" * 17},
        {"act": "limit", "concurrent": "1"},
        {"act": "make", "tenant": "vision", "name": "a b"},
        {"act": "make", "tenant": "vision", "name": "ci", "last_day": "2000-01-01"},
        {"act": "make", "tenant": "vision", "name": "ci", "last_day": "soon"},
        {"act": "make", "tenant": "v" * 65, "name": "ci"},
    ],
    ids=str,
)
def test_a_form_of_keys_that_can_not_be_meant_changes_nothing(fields: dict[str, str]):
    with pytest.raises(InvalidInputError) as raised:
        key_change(sent(**fields))
    assert raised.value.refusal.code == "SW-VALUE"


def test_the_tree_is_asked_for_where_tenants_are_shown():
    (page,) = (one for one in PAGES if one.pattern == "/tenants")
    assert page.asks(place()) == {"tree": TenantsRequest()}


def test_usage_is_one_s_own_unless_all_that_one_may_see_is_chosen():
    (page,) = (one for one in PAGES if one.pattern == "/usage")
    assert page.csv_asks is not None
    for query, person, by in (
        ({}, "alice", "day"),
        ({"by": "key"}, "alice", "key"),
        ({"whose": "all", "by": "nonsense"}, None, "day"),
        ({"whose": "bob"}, "alice", "day"),
    ):
        here = replace(place("/usage", month="2026-11", **query), user="alice")
        lines = page.csv_asks(here)
        assert isinstance(lines, TokenUsageRequest)
        assert (lines.person, lines.by) == (person, by)
        assert (lines.since_s, lines.until_s) == (1_793_491_200, 1_796_083_200)
        sums = [one for one in page.asks(here).values() if isinstance(one, TokenUsageRequest)]
        assert [(one.person, one.by) for one in sums] == [
            (person, about) for about in ("service", "day", "key")
        ]


def test_a_link_keeps_what_was_chosen_and_begins_at_the_first_page():
    here = place("/services", state="ready", page="7", name="a b&c")
    assert here.link(sort="p95") == "/services?state=ready&name=a+b%26c&sort=p95"
    assert here.link(state="", name="") == "/services"
    assert here.link(page="8") == "/services?state=ready&name=a+b%26c&page=8"
