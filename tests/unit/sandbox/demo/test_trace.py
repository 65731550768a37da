from itertools import pairwise
from statistics import mean, pstdev

import pytest

from slicewise.sandbox.demo.run import replay
from slicewise.sandbox.demo.scenario import COMPRESSION, SERVING
from slicewise.sandbox.demo.trace import TraceRow, arrivals, cut, draw, read_extract, share_at

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_cut_keeps_the_window_and_counts_from_its_begin() -> None:
    original = (
        HEADER,
        "2023-11-16 18:00:00.0000000,1,1",
        "2023-11-16 18:14:59.9900000,2,2",
        "2023-11-16 18:15:00.0000000,3,3",
        "2023-11-16 18:47:59.9900000,4,4",
        "2023-11-16 18:48:00.0000000,5,5",
    )
    assert list(cut(original)) == [
        "time_s,context_tokens,generated_tokens",
        "0.00,3,3",
        "1979.99,4,4",
    ]


def test_the_extract_is_what_its_attribution_says() -> None:
    rows = read_extract()
    assert len(rows) == 12_407
    assert rows[0] == TraceRow(0.16, 1014, 428)
    assert rows[-1] == TraceRow(1979.73, 1050, 411)
    assert all(a.time_s <= b.time_s for a, b in pairwise(rows))


def test_the_extract_has_a_ramp() -> None:
    times = [row.time_s for row in read_extract()]
    first = sum(time < 120 for time in times)
    peak = sum(720 <= time < 840 for time in times)
    assert peak > 1.6 * first


RISING = ((10.0, 0.0), (20.0, 0.5), (30.0, 0.5), (40.0, 0.1))


@pytest.mark.parametrize(
    ("at_s", "expected"),
    [(0, 0), (10, 0), (15, 0.25), (20, 0.5), (25, 0.5), (35, 0.3), (40, 0.1), (99, 0.1)],
)
def test_a_share_changes_linearly_between_the_points(at_s: float, expected: float) -> None:
    assert share_at(RISING, at_s) == pytest.approx(expected)


def test_without_a_point_a_service_gets_nothing() -> None:
    assert share_at((), 5.0) == 0
    assert arrivals([TraceRow(1.0, 1, 1)], 1.0, {"a": ()}) == ()


def test_a_row_goes_to_the_service_in_whose_share_its_draw_falls() -> None:
    rows = [TraceRow(float(number), number, 1) for number in range(200)]
    result = arrivals(rows, 2.0, {"a": ((0.0, 0.05),), "b": ((0.0, 0.1),)})
    assert [(x.at_s, x.service) for x in result] == [
        (number / 2, "a" if draw(number) < 0.05 else "b")
        for number in range(200)
        if draw(number) < 0.15
    ]
    assert {x.service for x in result} == {"a", "b"}


def test_a_share_is_of_the_time_after_compression() -> None:
    rows = [TraceRow(float(number), number, 1) for number in range(200)]
    result = arrivals(rows, 2.0, {"a": ((49.9, 0.0), (50.0, 1.0))})
    assert [x.context_tokens for x in result] == list(range(100, 200))


def test_the_whole_share_loses_nothing() -> None:
    rows = read_extract()[:500]
    everything = arrivals(rows, 1.0, {"all": ((0.0, 1.0),)})
    assert [x.at_s for x in everything] == [row.time_s for row in rows]


def test_the_draws_are_spread_evenly() -> None:
    draws = [draw(number) for number in range(10_000)]
    assert all(0 <= one < 1 for one in draws)
    assert mean(draws) == pytest.approx(0.5, abs=0.01)


def test_both_tenants_loads_rise_and_fall_in_turn() -> None:
    loads = {
        plan.service: [x.at_s for x in replay() if x.service == plan.service] for plan in SERVING
    }
    first, second = (loads[plan.service] for plan in SERVING)
    assert max(first) < 45
    assert min(second) > 35
    for times in (first, second):
        fifths = [min(times) + n * (max(times) - min(times)) / 5 for n in range(5)]
        counts = [sum(begin <= time < end for time in times) for begin, end in pairwise(fifths)]
        assert max(counts[1:]) > 1.5 * counts[0], "it rises"
        last = sum(time >= fifths[-1] for time in times)
        assert max(counts) > 1.5 * last, "it falls"


def test_replay_is_the_same_each_time_ordered_and_within_its_time() -> None:
    first = replay()
    assert first == replay()
    assert [x.at_s for x in first] == sorted(x.at_s for x in first)
    assert first[-1].at_s < 1980 / COMPRESSION


def test_thinning_keeps_the_trace_s_burstiness() -> None:
    rows = read_extract()
    whole = _variation([row.time_s for row in rows])
    thinned = arrivals(rows, COMPRESSION, {"a": ((0.0, 0.1),)})
    assert abs(_variation([x.at_s for x in thinned]) - whole) < 0.15
    assert _variation([row.time_s for row in rows[::10]]) < 0.5


def _variation(times: list[float]) -> float:
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return pstdev(gaps) / mean(gaps)
