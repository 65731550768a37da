import json
from dataclasses import replace

import pytest

from slicewise.cluster.language.errors import Refusal
from slicewise.sandbox.demo.record import (
    Acts,
    BatchJob,
    Chat,
    LedgerView,
    LoanChange,
    Recording,
    Repartition,
    Replicas,
    RequestRecord,
    Sample,
    ServiceState,
    TaskRun,
    Wake,
    tasks_over_time,
)
from slicewise.sandbox.demo.report import SliceSeconds, build, percentile_ms, slice_seconds
from slicewise.sandbox.demo.scenario import FILLER_TASKS

A, B, C = "vision/captions", "nlp/chat", "guest/talk"


def answered(service: str, latency_s: float) -> RequestRecord:
    return RequestRecord(service, 0.0, 0.0, latency_s)


def sample(t_s: float, service: str, replicas: Replicas, backlog: int = 0) -> Sample:
    return Sample(t_s, ServiceState(service, backlog, replicas, 0, 1000), 0, None, None)


JOB = BatchJob(10, "carol", "guest", "3g.40gb", 0.0, 12.0, 20.0)
CUT = Repartition("gpu01", "1g.10gb@0", "3g.40gb@4", "done", 1.0, 12.0)
FILLED = (
    TaskRun("26_1", 1.0, 3.0, gave_way=True),
    *(TaskRun(f"26_{nth}", 1.0, 5.0, is_done=True) for nth in range(2, FILLER_TASKS + 1)),
    TaskRun("26_1", 7.0, 9.0, is_done=True),
)
CHATS = (Chat(answered(C, 1.9), 1.8, 100, 0), Chat(answered(C, 0.2), 0.05, 90, 1))
LEDGER = LedgerView(0, {"vision": 100_000, "nlp": 50_000, "guest": 70_000}, {C: 9000})
GOOD = Recording(
    requests=(answered(A, 0.1), answered(A, 0.3), answered(B, 0.2)),
    samples=(
        sample(1, A, Replicas(ready=3, own=2, borrowed=1), backlog=7),
        sample(1, B, Replicas(ready=2, own=1, borrowed=1)),
        sample(2, A, Replicas(ready=4, starting=1)),
        sample(2, B, Replicas()),
        sample(3, A, Replicas(held=8)),
        sample(3, B, Replicas(held=6)),
        sample(2, C, Replicas(ready=1, own=1)),
        sample(3, C, Replicas(held=1)),
    ),
    wakes=(Wake(A, 0, answered(A, 2.5)), Wake(B, 0, answered(B, 1.5))),
    loans=(LoanChange(1.0, "vision", "nlp", 1000), LoanChange(2.0, "vision", "nlp", 0)),
    acts=Acts(
        (BatchJob(9, "carol", "guest", "3g.40gb", 0.0, 0.0), JOB),
        (CUT,),
        FILLED,
    ),
    refusal=Refusal("SW-QUOTA-NONE", "guest has no quota."),
    ledger=LEDGER,
    sacct_millislice_s_by_tenant={"vision": 100_500, "nlp": 50_000, "guest": 70_000},
    duration_s=12.34,
    facts={"command": "demo"},
    chats=CHATS,
    sacct_millislice_s_of_chat=9000,
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


def test_tasks_that_run_at_the_same_time_are_counted() -> None:
    runs = (*FILLED[:3], TaskRun("26_9", 4.0, None))
    assert tasks_over_time(runs) == ((1.0, 3), (3.0, 2), (4.0, 3), (5.0, 1))


def test_the_share_of_time_in_which_nobody_waits_is_of_all_services_while_there_is_load() -> None:
    late = sample(9, A, Replicas(), backlog=3)
    requests = (answered(A, 3.0),)
    assert build(replace(GOOD, requests=requests, samples=(*GOOD.samples, late))).no_wait_share == (
        0.667
    )
    assert build(replace(GOOD, samples=())).no_wait_share is None


def test_replicas_max_is_of_one_moment_not_of_maxima() -> None:
    # A's 4 and B's 2 are of different moments: 6 were never ready at once.
    assert build(GOOD).replicas_max == 5


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"requests": (RequestRecord(A, 0, 0, 1, "status 503"),)}, "failed"),
        ({"requests": ()}, "failed"),
        ({"samples": (sample(1, A, Replicas(ready=4)),)}, "replicas at the end: 4"),
        ({"samples": (sample(1, A, Replicas(draining=1)),)}, "replicas at the end: 1"),
        ({"samples": ()}, "replicas at the end: None"),
        ({"wakes": ()}, "wake"),
        ({"wakes": (Wake(A, 1, answered(A, 1)),)}, "wake"),
        ({"wakes": (Wake(A, 0, RequestRecord(A, 0, 0, 60, "no answer in 60 s")),)}, "wake"),
        ({"refusal": None}, "refused"),
        ({"samples": (sample(1, A, Replicas(ready=4, own=4)),)}, "never ran on borrowed"),
        ({"loans": (LoanChange(1.0, "vision", "nlp", 1000),)}, "1000 millislices are still lent"),
        ({"acts": Acts((JOB,), (CUT,))}, "had at most 0 slices, gave way 0 times, and ended 0 of"),
        ({"acts": Acts((JOB,), (CUT,), FILLED[:-1])}, "gave way 1 times, and ended 15 of 16"),
        ({"acts": Acts((JOB,), (CUT,), FILLED[1:])}, "gave way 0 times"),
        ({"acts": Acts((JOB, replace(JOB, started_s=None)), (CUT,))}, "of 2 batch jobs 1 started"),
        ({"acts": Acts((replace(JOB, started_s=0.0),), (CUT,))}, "none had to wait"),
        ({"acts": Acts((JOB,), (replace(CUT, state="rolled back"),))}, "no GPU was repartitioned"),
        ({"ledger": LedgerView(3, {"vision": 100_000})}, "off balance by 3"),
        ({"ledger": LedgerView(0, {}), "sacct_millislice_s_by_tenant": {}}, "was not charged"),
        ({"ledger": LedgerView(0, {"vision": 99_000})}, "differ"),
        ({"sacct_millislice_s_by_tenant": {}}, "differ"),
        ({"ledger": LedgerView(0, {})}, "differ"),
        ({"chats": ()}, "no chat was asked for"),
        ({"chats": (replace(CHATS[0], replicas_before=1),)}, "guest/talk, with 1 replicas"),
        ({"chats": (replace(CHATS[0], first_token_s=None),)}, "of 1 chats"),
        (
            {"chats": (CHATS[0], Chat(RequestRecord(C, 0, 0, 1, "status 503"), None, 0, 1))},
            "failed 1 of 2 chats",
        ),
        (
            {"samples": (*GOOD.samples, sample(4, C, Replicas(draining=1)))},
            "guest/talk has 1 replicas at the end",
        ),
        ({"sacct_millislice_s_of_chat": 8000}, "ledger 9 and sacct 8 slice-seconds"),
        ({"ledger": replace(LEDGER, millislice_s_by_service={})}, "ledger 0 and sacct 9"),
    ],
)
def test_each_shortfall_is_said(change: dict[str, object], word: str) -> None:
    shortfalls = build(replace(GOOD, **change)).shortfalls()  # type: ignore[arg-type]
    assert any(word in text for text in shortfalls), shortfalls


def test_a_chat_is_judged_by_itself_and_need_not_borrow() -> None:
    report = build(GOOD)
    assert report.chat is not None
    assert (report.chat.first_token_s, report.chat.next_first_token_s) == (1.8, 0.05)
    assert (report.chat.requests, report.chat.failed, report.chat.tokens) == (2, 0, 190)
    assert report.chat.slice_seconds == SliceSeconds(9.0, 9.0)
    shown = [one.shown for one in report.promises() if C in one.shown]
    assert shown == ["guest/talk woke for the openai client: first token after 1.8 s"]


def test_a_tenant_without_any_use_has_no_book() -> None:
    assert set(slice_seconds({"vision": 1, "root": 0}, {"nlp": 2, "root": 0})) == {"vision", "nlp"}


def test_replicas_woken_are_those_since_the_last_wake() -> None:
    woke = replace(answered(A, 0.5), due_s=2.5)
    samples = (
        *GOOD.samples,
        sample(2.6, A, Replicas(starting=4)),
        sample(2.7, A, Replicas(ready=1, starting=1, own=2)),
        sample(2.7, B, Replicas(ready=5, own=5)),
    )
    report = build(replace(GOOD, samples=samples, wakes=(*GOOD.wakes, Wake(A, 0, woke))))
    assert report.replicas_woken == 2
    assert build(replace(GOOD, wakes=())).replicas_woken is None


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
    assert all(one["is_kept"] for one in values["promises"])
    assert [job["user"] for job in values["batch_jobs"]] == ["carol", "carol"]
    assert values["loans"][-1]["millislices"] == 0
    assert values["services"][A]["borrowed_max"] == 1
    assert {"woke_from_zero", "first_response_after_wake_s", "ledger_imbalance"} <= set(values)
