"""Tests what HAProxy is told of fair queues, and what is read from its table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.gateway.fair_orders import (
    DIVISOR,
    back_ms,
    entries_of,
    positions_of,
)
from slicewise.launcher.rules.gateway.fair_queue import FairQueue, SubjectUse, TokenPace, with_uses

NOW_MS = 1_795_990_000_123.0


def shown(*entries: tuple[str, float]) -> str:
    """The table with these moments, in milliseconds from now; None: none yet."""
    lines = "".join(
        f"0x55d0: key={key} use=1 exp=599999 shard=0 conn_cur=3 "
        f"gpt0={round(100 * (NOW_MS + apart_ms)) % (1 << 30)}\n"
        for key, apart_ms in entries
    )
    return f"# table: fair, type: string, size:20480, used:{len(entries)}\n{lines}\n"


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_moments_are_read_as_they_were_counted(turn_ms: float, apart_ms: float):
    found = positions_of(shown(("t/a", turn_ms), ("t/a/anna", apart_ms)), NOW_MS)
    position = found["t/a"]
    assert position.turn_ms - NOW_MS == pytest.approx(turn_ms, abs=0.02)
    assert position.latest_ms - NOW_MS == pytest.approx(max(turn_ms, apart_ms), abs=0.02)


def test_a_service_whose_turn_has_not_begun_stands_now():
    text = "0x1: key=t/a use=0 exp=1 conn_cur=0 gpt0=0\n"
    assert positions_of(text, NOW_MS)["t/a"].turn_ms == NOW_MS
    assert positions_of("Unknown table", NOW_MS) == {}


def test_what_requests_count_divided_by_weights():
    queue = with_uses(
        FairQueue(), NOW_MS, {"physics": SubjectUse(2, 800.0), "law": SubjectUse(2, 200.0)}
    )
    found = entries_of("t/a", queue, {"physics": 2.0, "math": 5.0}, "tenants")
    assert found == {
        "t/a": "2500:100000:100000:0:tenants",
        "t/a/physics": "2000",
        "t/a/law": "1000",
        "t/a/math": "500",
    }


def test_another_pace_says_from_when_on():
    queue = FairQueue(pace=TokenPace(0.1, 0.5, NOW_MS))
    order = entries_of("t/a", queue, {}, "persons")["t/a"].split(":")
    assert order[1:3] == ["100000", "500000"]
    assert int(order[3]) == round(100 * NOW_MS) % (1 << 30)


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.floats(0.001, 1000))
def test_numbers_stay_within_what_haproxy_multiplies(tokens: float, pace: float, weight: float):
    queue = FairQueue(mean=tokens, pace=TokenPace(pace, pace))
    entries = entries_of("t/a", queue, {"law": weight}, "tenants")
    paces = [int(number) for number in entries["t/a"].split(":")[:3]]
    assert all(number >= 1 for number in paces)
    assert max(paces[0], int(entries["t/a/law"])) * max(paces[1:]) < 2**62 * DIVISOR


@pytest.mark.parametrize(("hold_s", "most"), [(1, 200_000), (300, 200_000), (480, 40_000)])
def test_what_has_waited_its_time_is_not_taken_for_what_is_to_come(hold_s: int, most: int):
    assert back_ms(hold_s) == most
    assert back_ms(hold_s) + 1000 * hold_s < 2**19
