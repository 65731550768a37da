"""Tests which keys and sums a person sees."""

from typing import Any

from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.slurm_plugin.rules.pages.usage import (
    key_name,
    limited,
    own_keys,
    own_limits,
)

NOW_S = 1_795_752_000
DAY_S = 86_400


def a_key(key_id: str, age_days: float = 1, by: str = "alice", **more: Any) -> KeyView:
    created_s = NOW_S - age_days * DAY_S
    return KeyView(
        key_id=key_id,
        tenant="nlp",
        name=f"{key_id}-name",
        created_by="root",
        person=by,
        created_s=created_s,
        **more,
    )


def test_a_person_sees_own_keys_valid_ones_first_and_ended_ones_for_a_month():
    keys = (
        a_key("old", 90),
        a_key("new", 1),
        a_key("others", 1, by="bob"),
        a_key("revoked", 50, revoked_s=NOW_S - 29 * DAY_S),
        a_key("expired", 51, expires_s=NOW_S - DAY_S, revoked_s=NOW_S - 2),
        a_key("forgotten", 80, revoked_s=NOW_S - 31 * DAY_S),
    )
    own = own_keys(keys, "alice", NOW_S)
    assert [key.key_id for key in own] == ["new", "old", "revoked", "expired"]


def test_a_key_is_called_by_its_name_where_that_is_known():
    keys = (a_key("1"),)
    assert (key_name("1", keys), key_name("2", keys), key_name("-", ())) == ("1-name", "2", "-")


def test_limits_are_shown_that_hold_for_the_own_keys():
    def subject(**whose: str) -> SubjectLimits:
        return SubjectLimits(limits=RequestLimits(concurrent=1), **whose)

    keys = (a_key("1"),)
    holding = (
        subject(tenant="nlp"),
        subject(tenant="nlp", person="alice"),
        subject(tenant="nlp", key_id="1"),
    )
    others = (
        subject(tenant="vision"),
        subject(tenant="nlp", person="bob"),
        subject(tenant="nlp", key_id="2"),
    )
    assert own_limits(holding + others, keys, "alice") == [*holding]
    assert [limited(one, keys) for one in holding] == [
        "all of nlp together",
        "you in nlp",
        "key 1-name",
    ]
