"""Tests the connection to the daemon: kept, replaced, closed, and given up in time."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import DENIED, ENOUGH_S, SUCCESS, Reply, answering, run_calls, run_case

JOB = {"job_desc": {"account": "vision", "tres_per_node": "gres:gpu:1g.10gb:1"}}
ADMIT = answering(action="admit", qos="q", tag="slicewise:1 token=TOKEN tenant=vision")
SHORT: dict[str, Any] = {"configure": {"timeout_s": 0.030}, "patience_s": 0}
OPENED = "no answer 3 times, asking again in 0.5 s"


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
    later = [JOB | {"after": daemon.closed(number)} for number in (1, 2)]
    results = run_calls(path, [JOB, *later])
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
    (hung,) = run_calls(path, [JOB], **SHORT)
    assert f"no answer from {path}: timeout" in hung["logged"]


RUBBISH: list[Reply] = [
    lambda _: b"rubbish\n",
    lambda _: b"\n",
    lambda _: b"[]\n",
    lambda _: b"null\n",
    lambda _: b"[" * 5000 + b"\n",
    lambda _: b'{"v":1,"action":"destroy"}\n',
    lambda _: b'{"v":1,"ok":false,"code":"SW-BUSY","message":"m"}\n',
    answering(action="admit", qos="q", tag="slicewise:1 token=0123456789abcdef tenant=vision"),
]


@pytest.mark.parametrize(
    ("reply", "waits"), [*((one, {}) for one in RUBBISH), (lambda _: b"no end of line", SHORT)]
)
def test_rubbish_is_no_answer_and_ends_the_connection(
    path: Path, listening: Any, reply: Reply, waits: dict[str, Any]
) -> None:
    daemon = listening(reply)
    results = run_calls(path, [JOB] * 2, **waits)
    for result in results:
        assert result["code"] == SUCCESS
        assert "undecided" in result["job_desc"]["admin_comment"]
        assert "no answer from" in result["logged"]
    assert daemon.accepted(2) == 2


def test_a_late_answer_is_never_read_for_another_question(path: Path, listening: Any) -> None:
    def late(question: dict[str, Any]) -> bytes | None:
        if question["name"] == "a":
            daemon.until_left()
        return answering(action="refuse", code="SW-X", message=question["name"])(question)

    daemon = listening(late)
    named = [{"job_desc": JOB["job_desc"] | {"name": name}} for name in ("a", "b")]
    second_has_time = named[1] | {"patience_s": ENOUGH_S}
    first, second = run_calls(path, [named[0], second_has_time], **SHORT)
    assert (first["code"], first["told"]) == (SUCCESS, "")
    assert (second["code"], second["told"].splitlines()[0]) == (DENIED, "b")


def test_what_nobody_asked_for_ends_the_connection(path: Path, listening: Any) -> None:
    def twice(question: dict[str, Any]) -> bytes:
        extra = answering(action="refuse", code="SW-X", message="extra")(question)
        return (ADMIT(question) or b"") + (extra or b"")

    daemon = listening(twice)
    results = run_calls(path, [JOB, JOB])
    assert all(map(is_admitted, results))
    assert daemon.accepted(2) == 2


def given_up(path: Path, result: dict[str, Any]) -> bool:
    return result["code"] == SUCCESS and f"no answer from {path}: timeout" in result["logged"]


def test_a_hanging_daemon_is_given_up(path: Path, listening: Any) -> None:
    listening(silent)
    assert given_up(path, run_case(path, **JOB, **SHORT))


def test_a_daemon_that_drips_without_end_is_given_up(path: Path, listening: Any) -> None:
    daemon = listening(lambda _: daemon.drip())
    assert given_up(path, run_case(path, **JOB, **SHORT))


def test_a_daemon_that_accepts_nobody_is_given_up(path: Path) -> None:
    """Its queue is full, as a stopped process's is."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(str(path))
        listener.listen(0)
        waiting.connect(str(path))
        result = run_case(path, **JOB, **SHORT)
    assert "undecided" in result["job_desc"]["admin_comment"]
    assert result["logged"].startswith("slicewise: no answer from")


@pytest.mark.parametrize("tick_s", [-3600, 3600])
def test_a_clock_that_is_set_lengthens_no_question(path: Path, listening: Any, tick_s: int) -> None:
    """At each look that slicewise.lua takes: set back, it would wait for hours."""
    listening(silent)
    assert given_up(path, run_case(path, **JOB, **SHORT, tick_s=tick_s))


def test_three_failures_open_the_breaker(path: Path, listening: Any) -> None:
    daemon = listening(silent)
    results = run_calls(path, [JOB] * 8, **SHORT)
    assert daemon.asked(3) == 3
    assert [OPENED in result["logged"] for result in results].index(True) == 2
    for result in results[3:]:
        assert "undecided" in result["job_desc"]["admin_comment"]
        assert result["logged"] == ""


def test_one_question_tries_whether_the_daemon_is_back(path: Path, listening: Any) -> None:
    """The clock is set on instead of waiting."""
    back = {"job_desc": JOB["job_desc"] | {"name": "back"}, "patience_s": ENOUGH_S}
    listening(lambda question: ADMIT(question) if question.get("name") == "back" else None)
    calls = [JOB] * 3 + [JOB | {"shift_s": 0.55}, JOB, JOB | {"shift_s": 0.6}, JOB]
    results = run_calls(path, [*calls, back | {"shift_s": 0.5}, back], **SHORT)
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
