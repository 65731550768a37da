from itertools import pairwise
from statistics import mean, pstdev

from sandbox.demo.run import replay
from sandbox.demo.scenario import COMPRESSION, SERVING
from sandbox.demo.trace import BUCKETS, TraceRow, arrivals, bucket, cut, read_extract

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


def test_a_row_goes_to_the_service_that_has_its_bucket() -> None:
    rows = [TraceRow(float(number), number, 1) for number in range(200)]
    result = arrivals(rows, 2.0, {"a": {0}, "b": {1, 2}})
    assert [(x.at_s, x.service) for x in result] == [
        (number / 2, "a" if bucket(number) == 0 else "b")
        for number in range(200)
        if bucket(number) < 3
    ]


def test_all_buckets_together_lose_nothing() -> None:
    rows = read_extract()[:500]
    everything = arrivals(rows, 1.0, {"all": range(BUCKETS)})
    assert [x.at_s for x in everything] == [row.time_s for row in rows]


def test_replay_is_the_same_each_time_ordered_and_within_its_time() -> None:
    first = replay()
    assert first == replay()
    assert [x.at_s for x in first] == sorted(x.at_s for x in first)
    assert first[-1].at_s < 1980 / COMPRESSION


def test_thinning_keeps_the_trace_s_burstiness() -> None:
    rows = read_extract()
    whole = _variation([row.time_s for row in rows])
    for plan in SERVING:
        thinned = [x.at_s for x in replay() if x.service == plan.service]
        assert abs(_variation(thinned) - whole) < 0.15
    assert _variation([row.time_s for row in rows[::10]]) < 0.5


def _variation(times: list[float]) -> float:
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return pstdev(gaps) / mean(gaps)
