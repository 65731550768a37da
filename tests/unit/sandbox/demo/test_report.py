import json
from dataclasses import replace

import pytest

from cluster.language.errors import Refusal
from sandbox.demo.record import (
    LedgerView,
    Recording,
    Replicas,
    RequestRecord,
    Sample,
    ServiceState,
    Wake,
)
from sandbox.demo.report import SliceSeconds, build, percentile_ms

A, B = "vision/captions", "nlp/chat"


def answered(service: str, latency_s: float) -> RequestRecord:
    return RequestRecord(service, 0.0, 0.0, latency_s)


def sample(t_s: float, service: str, replicas: Replicas, backlog: int = 0) -> Sample:
    return Sample(t_s, ServiceState(service, backlog, replicas, 0, 1000), 0, None, None)


GOOD = Recording(
    requests=(answered(A, 0.1), answered(A, 0.3), answered(B, 0.2)),
    samples=(
        sample(1, A, Replicas(ready=3), backlog=7),
        sample(1, B, Replicas(ready=2)),
        sample(2, A, Replicas(ready=4, starting=1)),
        sample(2, B, Replicas()),
        sample(3, A, Replicas(held=8)),
        sample(3, B, Replicas(held=6)),
    ),
    wakes=(Wake(A, 0, answered(A, 2.5)), Wake(B, 0, answered(B, 1.5))),
    refusal=Refusal("SW-QUOTA-NONE", "guest has no quota."),
    ledger=LedgerView(0, {"vision": 100_000, "nlp": 50_000}),
    sacct_millislice_s_by_tenant={"vision": 100_500, "nlp": 50_000},
    duration_s=12.34,
    facts={"command": "demo"},
)


def test_a_good_recording_has_no_shortfalls() -> None:
    report = build(GOOD)
    assert report.shortfalls() == ()
    assert (report.requests, report.failed, report.p50_ms, report.p95_ms) == (3, 0, 200.0, 300.0)
    assert report.wake_requests == 2
    assert (report.replicas_max, report.replicas_end) == (5, 0)
    assert (report.woke_from_zero, report.first_response_after_wake_s) == (True, 2.5)
    assert report.services[A].replicas_max == 4
    assert report.services[A].backlog_max == 7


def test_replicas_max_is_of_one_moment_not_of_maxima() -> None:
    # A's 4 and B's 2 are of different moments: 6 were never ready at once.
    assert build(GOOD).replicas_max == 5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"requests": (RequestRecord(A, 0, 0, 1, "status 503"),)}, "failed"),
        ({"requests": ()}, "failed"),
        ({"samples": (sample(1, A, Replicas(ready=4)),)}, "replicas_end is 4"),
        ({"samples": (sample(1, A, Replicas(draining=1)),)}, "replicas_end is 1"),
        ({"samples": ()}, "replicas_end is None"),
        ({"wakes": ()}, "wake"),
        ({"wakes": (Wake(A, 1, answered(A, 1)),)}, "wake"),
        ({"wakes": (Wake(A, 0, RequestRecord(A, 0, 0, 60, "no answer in 60 s")),)}, "wake"),
        ({"refusal": None}, "refused"),
        ({"ledger": LedgerView(3, {"vision": 100_000})}, "off balance by 3"),
        ({"ledger": LedgerView(0, {}), "sacct_millislice_s_by_tenant": {}}, "was not charged"),
        ({"ledger": LedgerView(0, {"vision": 99_000})}, "differ"),
        ({"sacct_millislice_s_by_tenant": {}}, "differ"),
        ({"ledger": LedgerView(0, {})}, "differ"),
    ],
)
def test_each_shortfall_is_said(change: dict[str, object], word: str) -> None:
    shortfalls = build(replace(GOOD, **change)).shortfalls()  # type: ignore[arg-type]
    assert any(word in text for text in shortfalls), shortfalls


def test_books_within_one_percent_pass_and_beyond_do_not() -> None:
    assert SliceSeconds(101.0, 100.0).deviation == pytest.approx(0.01)
    assert SliceSeconds(0.0, 0.0).deviation == 0
    assert SliceSeconds(1.0, 0.0).deviation == float("inf")


def test_failed_requests_are_counted_by_kind_and_kept_out_of_latency() -> None:
    requests = (answered(A, 0.1), *(RequestRecord(A, 0, 0, 60, "no answer in 60 s"),) * 2)
    report = build(replace(GOOD, requests=requests))
    assert (report.failed, report.errors, report.p95_ms) == (2, {"no answer in 60 s": 2}, 100.0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 5.0), (95, 10.0), (1, 1.0), (100, 10.0)])
def test_percentiles_are_nearest_rank(percent: int, expected: float) -> None:
    assert percentile_ms([answered(A, n / 1000) for n in range(10, 0, -1)], percent) == expected


def test_json_has_the_promised_keys_and_facts_beside_them() -> None:
    values = json.loads(json.dumps(build(GOOD).as_json()))
    assert values["slice_seconds_by_tenant"]["vision"] == {"ledger": 100.0, "sacct": 100.5}
    assert values["refused_over_quota"]["code"] == "SW-QUOTA-NONE"
    assert values["command"] == "demo"
    assert "facts" not in values
    assert {"requests", "failed", "p50_ms", "p95_ms", "replicas_max", "replicas_end"} <= set(values)
    assert {"woke_from_zero", "first_response_after_wake_s", "ledger_imbalance"} <= set(values)
