"""Tests the connection to the daemon: kept, replaced, closed, and never slower than its budget."""

import json
import socket
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from lua_slurmctld import DENIED, SUCCESS, Reply, answering, run_calls, run_case

JOB = {"job_desc": {"account": "vision", "tres_per_node": "gres:gpu:1g.10gb:1"}}
ADMIT = answering(action="admit", qos="q", tag="slicewise:1 token=TOKEN tenant=vision")
SHORT = {"timeout_s": 0.030}
ENOUGH = {"timeout_s": 0.200}
"""Some of the calls are answered within it, on a busy machine too."""
OPENED = "no answer 3 times, asking again in 0.5 s"
SLACK_S = 0.200
"""What a busy machine takes for itself."""


def silent(_: Any) -> None:
    """As a daemon that hangs."""


def is_admitted(result: dict[str, Any]) -> bool:
    return bool(result["job_desc"].get("qos") == "q")


def test_one_connection_serves_all_questions(path: Path, listening: Any) -> None:
    daemon = listening(ADMIT)
    assert all(map(is_admitted, run_calls(path, [JOB] * 20)))
    assert (daemon.connections, len(daemon.questions)) == (1, 20)


def test_a_connection_that_was_closed_meanwhile_is_replaced(path: Path, listening: Any) -> None:
    """As by a daemon that was restarted."""
    daemon = listening(ADMIT, closes=True)
    results = run_calls(path, [JOB, JOB | {"sleep_s": 0.1}, JOB | {"sleep_s": 0.1}])
    assert all(map(is_admitted, results))
    assert (daemon.connections, len(daemon.questions)) == (3, 3)


def test_a_connection_that_closes_on_the_question_is_replaced_once(
    path: Path, listening: Any
) -> None:
    def at_first_then_never(_: Any) -> bytes | None:
        if len(daemon.questions) == 1:
            return ADMIT(daemon.questions[0])
        daemon.closes = True
        return None

    daemon = listening(at_first_then_never)
    first, second = run_calls(path, [JOB, JOB])
    assert is_admitted(first)
    assert not is_admitted(second)
    assert second["logged"].count("no answer from") == 1
    assert len(daemon.questions) == 3
    assert daemon.questions[1] == daemon.questions[2]


def test_the_log_says_why_there_was_no_answer(path: Path, listening: Any) -> None:
    """As where the daemon is away, where it has died, and where it hangs."""
    (away,) = run_calls(path, [JOB])
    assert f"no answer from {path}: No such file or directory" in away["logged"]
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    (refused,) = run_calls(path, [JOB])
    assert f"no answer from {path}: connection refused" in refused["logged"].lower()
    path.unlink()
    listening(silent)
    (hung,) = run_calls(path, [JOB], configure=SHORT)
    assert f"no answer from {path}: timeout" in hung["logged"]


RUBBISH: list[Reply] = [
    lambda _: b"rubbish\n",
    lambda _: b"\n",
    lambda _: b"[]\n",
    lambda _: b"null\n",
    lambda _: b"[" * 5000 + b"\n",
    lambda _: b'{"v":1,"action":"destroy"}\n',
    lambda _: b'{"v":1,"ok":false,"code":"SW-BUSY","message":"m"}\n',
    lambda _: b"no end of line",
    answering(action="admit", qos="q", tag="slicewise:1 token=0123456789abcdef tenant=vision"),
]


@pytest.mark.parametrize("reply", RUBBISH)
def test_rubbish_is_no_answer_and_ends_the_connection(
    path: Path, listening: Any, reply: Reply
) -> None:
    daemon = listening(reply)
    results = run_calls(path, [JOB] * 2, configure=SHORT)
    for result in results:
        assert result["code"] == SUCCESS
        assert "undecided" in result["job_desc"]["admin_comment"]
        assert "no answer from" in result["logged"]
    assert daemon.accepted(2) == 2


def test_a_late_answer_is_never_read_for_another_question(path: Path, listening: Any) -> None:
    def late(question: dict[str, Any]) -> bytes | None:
        if len(daemon.questions) == 1:
            time.sleep(0.4)
        return answering(action="refuse", code="SW-X", message=question["name"])(question)

    daemon = listening(late)
    named = [{"job_desc": JOB["job_desc"] | {"name": name}} for name in ("a", "b")]
    first, second = run_calls(path, [named[0], named[1] | {"sleep_s": 0.5}], configure=ENOUGH)
    assert (first["code"], first["told"]) == (SUCCESS, "")
    assert (second["code"], second["told"].splitlines()[0]) == (DENIED, "b")


def test_what_nobody_asked_for_ends_the_connection(path: Path, listening: Any) -> None:
    def twice(question: dict[str, Any]) -> bytes:
        extra = answering(action="refuse", code="SW-X", message="extra")(question)
        return (ADMIT(question) or b"") + (extra or b"")

    daemon = listening(twice)
    results = run_calls(path, [JOB, JOB | {"sleep_s": 0.05}])
    assert all(map(is_admitted, results))
    assert daemon.accepted(2) == 2


def test_a_hanging_daemon_costs_the_budget_only(path: Path, listening: Any) -> None:
    listening(silent)
    result = run_case(path, **JOB, configure={"timeout_s": 0.010})
    assert result["code"] == SUCCESS
    assert result["elapsed_s"] < 0.010 + SLACK_S


def test_a_dripping_daemon_costs_the_budget_only(path: Path, listening: Any) -> None:
    def drip(_: Any) -> None:
        for _i in range(100):
            time.sleep(0.005)
            daemon.send(b"x")

    daemon = listening(drip)
    result = run_case(path, **JOB, configure={"timeout_s": 0.050})
    assert result["elapsed_s"] < 0.050 + SLACK_S


def test_a_daemon_that_accepts_nobody_costs_the_budget_only(path: Path) -> None:
    """Its queue is full, as a stopped process's is."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        result = run_case(path, **JOB, configure={"timeout_s": 0.020})
    assert "undecided" in result["job_desc"]["admin_comment"]
    assert result["elapsed_s"] < 0.020 + SLACK_S


@pytest.mark.parametrize("shift_s", [-3600, 3600])
def test_a_clock_that_is_set_changes_no_budget(path: Path, listening: Any, shift_s: int) -> None:
    listening(silent)
    results = run_calls(path, [JOB, JOB | {"shift_s": shift_s}], configure={"timeout_s": 0.020})
    for result in results:
        assert result["elapsed_s"] < 0.020 + SLACK_S


def test_three_failures_open_the_breaker(path: Path, listening: Any) -> None:
    daemon = listening(silent)
    results = run_calls(path, [JOB] * 8, configure=ENOUGH)
    assert daemon.asked(3) == 3
    assert [OPENED in result["logged"] for result in results].index(True) == 2
    assert median(result["elapsed_s"] for result in results[3:]) < 0.005
    for result in results[3:]:
        assert "undecided" in result["job_desc"]["admin_comment"]
        assert result["logged"] == ""


def test_one_question_tries_whether_the_daemon_is_back(path: Path, listening: Any) -> None:
    """The clock is set on instead of waiting."""

    def back_after_four(question: dict[str, Any]) -> bytes | None:
        return None if len(daemon.questions) <= 4 else ADMIT(question)

    daemon = listening(back_after_four)
    calls = [JOB] * 3 + [JOB | {"shift_s": 0.55}, JOB, JOB | {"shift_s": 0.6}, JOB]
    late = JOB | {"shift_s": 0.5}
    results = run_calls(path, [*calls, late, JOB], configure=ENOUGH)
    asked = [bool(r["logged"]) or is_admitted(r) for r in results]
    assert asked == [True] * 4 + [False] * 3 + [True, True]
    assert [is_admitted(result) for result in results] == [False] * 7 + [True, True]
    logged = "\n".join(result["logged"] for result in results)
    assert logged.count("asking again") == 1
    assert logged.count("answers again") == 1


def test_it_asks_every_five_seconds_at_least(path: Path) -> None:
    """The clock is set on instead of waiting: a pause never grows beyond that."""
    trials = [JOB | {"shift_s": 5.1}] * 6
    results = run_calls(path, [JOB] * 3 + trials + [JOB | {"shift_s": 4.5}])
    assert [bool(result["logged"]) for result in results] == [True] * 9 + [False]


def test_a_clock_set_back_does_not_keep_the_breaker_open(path: Path, listening: Any) -> None:
    first, *_, last = run_calls(path, [*[JOB] * 4, JOB | {"shift_s": -3600}])
    assert "no answer" in first["logged"]
    assert "no answer" in last["logged"]


@pytest.mark.parametrize("code", ["SW-WIRE", "SW-INTERNAL"])
def test_a_question_that_the_daemon_can_not_answer_opens_no_breaker(
    path: Path, listening: Any, code: str
) -> None:
    """Else one user's strange job would be everybody's trouble."""
    failure = json.dumps({"v": 1, "ok": False, "code": code, "message": "m"}).encode() + b"\n"
    daemon = listening(lambda _: failure)
    results = run_calls(path, [JOB] * 6)
    assert len(daemon.questions) == 6
    assert all(code in result["logged"] for result in results)


def test_a_success_ends_the_count(path: Path, listening: Any) -> None:
    def every_third(question: dict[str, Any]) -> bytes:
        answers = len(daemon.questions) % 3 == 0
        return (ADMIT(question) or b"") if answers else b"rubbish\n"

    daemon = listening(every_third)
    results = run_calls(path, [JOB] * 12)
    assert sum(map(is_admitted, results)) == 4
    assert len(daemon.questions) == 12
