from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.gateway.usage_lines import (
    MOST_TOKENS,
    HeardLines,
    TokenSums,
    UsageLine,
    parse_usage_line,
    with_usage,
)

DIGEST = "0a" * 32
LINE = f"usage gw-1.x-17-1795 129 nlp carol - nlp/chat {DIGEST} 1000 1900 1200 9 5 7 whole usage"


def line(place: int, thread: int = 1, boot: str = "gw-17-5") -> UsageLine:
    words = LINE.replace("129", str(64 * place + thread)).replace("gw-1.x-17-1795", boot)
    parsed = parse_usage_line(words)
    assert parsed is not None
    return parsed


def test_a_line_says_who_has_used_what():
    parsed = parse_usage_line(LINE)
    assert parsed is not None
    assert asdict(parsed) == {
        "boot": "gw-1.x-17-1795",
        "number": 129,
        "payer": "nlp",
        "person": "carol",
        "key_id": "-",
        "service": "nlp/chat",
        "replica": DIGEST,
        "start_ms": 1000,
        "end_ms": 1900,
        "first_ms": 1200,
        "prompt_tokens": 9,
        "cached_tokens": 5,
        "output_tokens": 7,
        "outcome": "whole",
        "is_exact": True,
    }
    assert (parsed.thread, parsed.place) == (1, 2)


def test_a_request_without_an_answer_has_no_replica():
    failed = LINE.replace(DIGEST, "-").replace(" 1200 9 5 7 whole usage", " - 0 0 0 failed chunks")
    parsed = parse_usage_line(failed)
    assert parsed is not None
    assert (parsed.replica, parsed.first_ms, parsed.outcome, parsed.is_exact) == (
        *("", None, "failed"),
        False,
    )


@pytest.mark.parametrize(
    "text",
    [
        "held triton1",
        "",
        LINE + " more",
        LINE.replace("9 5 7", "9 5"),
        LINE.replace("9 5 7", "9 5 -7"),
        LINE.replace("whole", "well"),
        LINE.replace("carol", "a b"),
        LINE.replace("carol", "x" * 200),
        LINE.replace("129", "1" * 30),
        LINE.replace(DIGEST, "r1"),
    ],
)
def test_another_line_is_none(text: str):
    assert parse_usage_line(text) is None


def test_counts_are_bounded():
    parsed = parse_usage_line(LINE.replace(" 9 5 7 ", " 9999999999 5 7 "))
    assert parsed is not None
    assert parsed.prompt_tokens == MOST_TOKENS


def test_sums_are_of_each_service_payer_and_person():
    other = LINE.replace("nlp carol", "vision dave")
    parsed = [read for text in (LINE, LINE, other) if (read := parse_usage_line(text))]
    assert with_usage({}, parsed) == {
        ("nlp/chat", "nlp", "carol"): TokenSums(2, 18, 10, 14),
        ("nlp/chat", "vision", "dave"): TokenSums(1, 9, 5, 7),
    }


def heard(*lines: UsageLine) -> tuple[HeardLines, int]:
    """What was heard, and how many of these lines were new."""
    before, new = HeardLines({}), 0
    for told in lines:
        after = before.hears(told)
        if after is not None:
            before, new = after, new + 1
    return before, new


def test_a_line_is_heard_once():
    after, new = heard(line(0), line(1), line(0), line(1), line(2))
    assert (new, after.missed) == (3, 0)


def test_what_is_not_heard_is_missed():
    after, new = heard(line(0), line(3), line(0, thread=2))
    assert (new, after.missed) == (3, 2)


def test_of_a_process_that_was_not_heard_before_nothing_is_missed():
    """The launcher before may have read it."""
    assert heard(line(5), line(9, boot="gw-18-6"))[0].missed == 0


def test_of_processes_that_ended_long_ago_nothing_is_kept():
    after, _ = heard(*(line(0, boot=f"gw-17-{start}") for start in range(100)))
    assert len(after.next_places) < 20
    assert after.hears(line(1, boot="gw-17-99")) is not None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3))))
def test_each_line_is_heard_once_or_missed(told: list[tuple[int, int]]):
    after, new = heard(*(line(place, thread) for place, thread in told))
    firsts: dict[int, int] = {}
    for place, thread in told:
        firsts.setdefault(thread, place)
    ends = {thread: max(place for place, one in told if one == thread) for thread in firsts}
    assert new + after.missed == sum(ends[thread] + 1 - firsts[thread] for thread in firsts)
