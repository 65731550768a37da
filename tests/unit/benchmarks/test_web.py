"""Tests the benchmark of the web pages: what it makes of events, turns and misses."""

from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from benchmarks import web
from benchmarks.web import Seen, Turns, events_of, pages, show, turns, turns_of

METRICS = """\
# TYPE slicewise_loop_duration_seconds summary
slicewise_loop_duration_seconds_count{loop="charging"} 4.0
slicewise_loop_duration_seconds_sum{loop="charging"} 2.0
# TYPE slicewise_loop_failures_total counter
slicewise_loop_failures_total{loop="charging"} 9.0
"""


async def keys(text: bytes) -> list[str]:
    async def lines() -> AsyncIterator[bytes]:
        for line in text.splitlines(keepends=True):
            yield line

    return [key async for key in events_of(lines())]


async def test_an_event_is_known_by_its_id_or_by_what_it_says():
    assert await keys(b"id: 7\nevent: queue\ndata: a\n\nid: 8\ndata: a\n\n") == ["7", "8"]
    one, other, again = await keys(b"data: a\ndata: b\n\ndata: c\n\r\ndata: a\ndata: b\n\n")
    assert one == again != other


async def test_a_comment_is_no_event_nor_is_one_that_has_not_ended():
    assert await keys(b": alive\n\nretry: 100\n\ndata: a") == []


def test_delays_count_from_the_first_viewer_and_only_of_later_events():
    seen = Seen()
    seen.arrivals_s["old", 0] += [9.0, 20.0]
    seen.arrivals_s["new", 0] += [11.5, 11.0, 13.0]
    assert seen.delays_s(10.0) == [0.5, 2.0]


def test_the_turns_are_read_by_loop_and_their_difference_is_told():
    found = turns_of(METRICS)
    assert found == Turns({"charging": 4.0}, {"charging": 2.0})
    assert found.since(Turns({"charging": 1.0}, {"charging": 1.5})).counts == {"charging": 3.0}


def test_the_daemon_s_turns_with_viewers_stand_beside_those_without():
    alone = [Turns({"a": 3.0, "b": 1.0, "c": 0.0}, {"a": 3.0, "b": 4.0, "c": 0.0})] * 3
    beside = [
        Turns({"a": 1.0, "b": 1.0, "c": 1.0}, {"a": a_s, "b": 5.0, "c": 9.0})
        for a_s in (1.1, 1.2, 9.7)
    ]
    found = turns(alone, beside)
    assert found.keys() == {"a", "b", "all"}
    assert found["a"] == {"alone_ms": 1000, "viewed_ms": 4000, "slower": 0.2}
    # (3 × 1.2 + 5) ÷ 4 beside (3 × 1 + 4) ÷ 4
    assert found["all"]["slower"] == round(8.6 / 7 - 1, 4)


@pytest.mark.parametrize(("p99_s", "viewed_s", "missed"), [(0.2, 1.05, 0), (0.4, 1.06, 3)])
def test_a_missed_aim_is_told(p99_s: float, viewed_s: float, missed: int):
    seen = Seen()
    seen.pages_s["/queue"] += [p99_s] * 3
    report = {
        "viewers": 200,
        "pause_s": 5.0,
        "aims": {"page_p99_ms": web.AIM_PAGE_MS, "turns_slower": web.AIM_SLOWER},
        "pages": pages(seen),
        "failed": {"/[queue]: 404": 2},
        "events": {"got": 1},
        "turns": turns([Turns({"a": 1.0}, {"a": 1.0})], [Turns({"a": 1.0}, {"a": viewed_s})]),
        "server": {"alone": {"first_mib": 1.0, "most_mib": 2.0, "cpu": 0.1}},
    }
    console = Console(width=120, record=True, quiet=False)
    show(report, console)
    shown = console.export_text()
    assert shown.count("missed") == missed
    assert "Failed 2 times: /[queue]: 404" in shown
