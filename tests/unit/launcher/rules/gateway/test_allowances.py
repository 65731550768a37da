import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.rpc.usage_messages import TokenAllowance
from slicewise.launcher.rules.gateway.allowances import (
    TakenTokens,
    bounds,
    expired,
    parse_taken,
    wanted,
)
from slicewise.launcher.rules.gateway.subjects import named, subjects_of

COUNTS = st.integers(0, 10_000)


def test_a_request_meets_limits_of_its_tenant_person_and_key():
    assert subjects_of("nlp", "carol", "key1") == ("nlp", "nlp/carol", "nlp//key1")
    assert subjects_of("nlp", "-", "-") == ("nlp",)
    names = [named(subject) for subject in subjects_of("nlp", "carol@b.ch", "key1")]
    assert names == [("nlp", "", ""), ("nlp", "carol@b.ch", ""), ("nlp", "", "key1")]


def test_what_threads_have_taken_is_added_up():
    shown = {"nlp@1": "5/2", "nlp@2": "6/0", "nlp/a@b.ch@1": "1/1"}
    assert parse_taken(shown) == {"nlp": TakenTokens(11, 2), "nlp/a@b.ch": TakenTokens(1, 1)}


def test_each_subject_wants_by_its_name():
    taken = {subject: TakenTokens(100, 10) for subject in subjects_of("nlp", "carol", "key1")}
    subjects = [(wish.tenant, wish.person, wish.key_id) for wish in wanted(taken, {"nlp": 7})]
    assert subjects == [("nlp", "", ""), ("nlp", "carol", ""), ("nlp", "", "key1")]
    first, second, _ = (wish.tokens for wish in wanted(taken, {"nlp": 7}))
    assert first - second == 7


@given(ended=COUNTS, unposted=COUNTS, held=COUNTS, allowed=COUNTS, is_exact=st.booleans())
def test_held_and_unposted_tokens_together_never_exceed_what_was_allowed(
    ended: int, unposted: int, held: int, allowed: int, is_exact: bool
):
    """A request begins as long as fewer were taken in all than the entry says."""
    allowance = TokenAllowance(tenant="nlp", person="carol", tokens=allowed, is_exact=is_exact)
    entries = bounds(
        [allowance], {"nlp/carol": TakenTokens(ended, held)}, {"nlp/carol": unposted}, 9, "gw-17-5"
    )
    bound, until, kind, *_ = entries["nlp/carol"].split("/")
    posted = max(0, ended - unposted)
    left = int(bound) - ended - held
    assert (ended - posted) + held + left == allowed
    assert (until, kind) == ("9", "exact" if is_exact else "open")


def test_haproxy_begins_with_what_has_expired():
    allowance = TokenAllowance(
        tenant="nlp", key_id="k", tokens=0, is_exact=True, limit="tokens_per_month", retry_s=5
    )
    entries = bounds([allowance], {}, {}, 9, "gw-17-5")
    assert entries == {"nlp//k": "0/9/exact/5/tokens_per_month/-/-/gw-17-5"}
    assert expired(entries) == {"nlp//k": "0/0/exact/1/tokens/-/-/-"}


@pytest.mark.parametrize(
    ("payer", "until", "written"),
    [
        ("lab", "2025-12-01", "lab/2025-12-01"),
        ("lab", "", "lab/?"),
        ("lab", None, "lab/-"),
        ("x; shutdown sessions", None, "-/-"),
        ("a/b", None, "-/-"),
    ],
)
def test_of_a_budget_it_is_said_whose_it_is_and_until_when_it_is_used_up(
    payer: str, until: str | None, written: str
):
    allowance = TokenAllowance(
        tenant="nlp",
        tokens=0,
        is_exact=True,
        limit="token_budget",
        payer=payer,
        used_up_until=until,
    )
    entries = bounds([allowance], {}, {}, 9, "gw-17-5")
    assert entries == {"nlp": f"0/9/exact/1/token_budget/{written}/gw-17-5"}


def test_a_name_that_can_be_none_costs_itself_alone():
    allowances = [
        TokenAllowance(tenant="nlp", person=person, tokens=1, is_exact=True)
        for person in ("x; shutdown sessions", "x y", "carol@b.ch")
    ]
    assert set(bounds(allowances, {}, {}, 9, "gw-17-5")) == {"nlp/carol@b.ch"}
