"""Tests what a marketplace's agent is told of usage, and which keys are its own."""

from typing import Any

import pytest

from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.slurm_plugin.rules.services.marketplace import (
    AGENT,
    KeyUse,
    daily_activity,
    is_of_marketplace,
)

HOUR = 3_600_000


def line(day: str, key_id: str, service: str, millislice_s: int) -> KeyUse:
    return KeyUse(
        day=day,
        key_id=key_id,
        service=service,
        requests=1,
        prompt_tokens=10,
        cached_prompt_tokens=4,
        output_tokens=3,
        millislice_s=millislice_s,
    )


LINES = (
    line("2026-11-30", "b", "a/chat", 2 * HOUR),
    line("2026-11-29", "a", "a/chat", HOUR),
    line("2026-11-29", "a", "a/code", HOUR // 2),
    line("2026-11-29", "b", "a/chat", 0),
    line("2026-11-29", "-", "a/chat", 99 * HOUR),
)


def metrics(spend: float, requests: int) -> dict[str, float]:
    return {
        "spend": spend,
        "prompt_tokens": 10 * requests,
        "completion_tokens": 3 * requests,
        "cache_read_input_tokens": 4 * requests,
        "total_tokens": 13 * requests,
        "api_requests": requests,
    }


def cost(use: KeyUse) -> int:
    """Of 0.40 a slice-hour."""
    return use.millislice_s * 400_000 // HOUR


def test_usage_adds_up_by_day_key_and_model() -> None:
    first, second = daily_activity(LINES, {"a": "order-1", "b": "order-2"}, cost)
    assert (first["date"], second["date"]) == ("2026-11-29", "2026-11-30")
    assert first["metrics"] == metrics(0.6, 3)
    assert second["metrics"] == metrics(0.8, 1)
    breakdown: Any = first["breakdown"]
    assert breakdown["api_keys"] == {
        "a": {"metrics": metrics(0.6, 2), "metadata": {"key_alias": "order-1"}},
        "b": {"metrics": metrics(0.0, 1), "metadata": {"key_alias": "order-2"}},
    }
    assert breakdown["models"]["a/code"] == {
        "metrics": metrics(0.2, 1),
        "api_key_breakdown": {
            "a": {"metrics": metrics(0.2, 1), "metadata": {"key_alias": "order-1"}}
        },
    }
    assert breakdown["models"]["a/chat"]["metrics"] == metrics(0.4, 2)


def test_without_a_price_nothing_is_spent_and_without_keys_there_is_no_usage() -> None:
    (only,) = daily_activity(LINES[:1], {"b": "order-2"}, lambda _: 0)
    assert only["metrics"] == metrics(0.0, 1)
    assert daily_activity(LINES, {}, cost) == []


@pytest.mark.parametrize(
    ("tenant", "author", "person", "is_own"),
    [
        ("vision", AGENT, "-", True),
        ("nlp", AGENT, "-", False),
        ("vision", "alice", "-", False),
        ("vision", AGENT, "alice", False),
    ],
)
def test_only_keys_that_it_made_are_the_agents(
    tenant: str, author: str, person: str, is_own: bool
) -> None:
    key = KeyView(
        key_id="a" * 12,
        tenant=tenant,
        name="order-1",
        created_by=author,
        created_s=1.0,
        person=person,
    )
    assert is_of_marketplace(key, "vision") is is_own
