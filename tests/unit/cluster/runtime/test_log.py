"""Tests what a log line is, whatever is logged, and which ids it carries."""

import asyncio
import logging
import re
import time
from datetime import UTC, datetime

import pytest
from log_lines import lines, parse_logfmt

from slicewise.cluster.runtime.log import LINE_BYTES, TEXT_CHARACTERS, LogFormat, bound, emit

pytestmark = pytest.mark.usefixtures("clock")

LOG = logging.getLogger("slicewise.tests")


def say(event: str, **fields: object) -> None:
    emit(LOG, logging.WARNING, event, fields)


def test_a_line_of_logfmt_begins_with_time_level_program_and_event() -> None:
    with lines("logfmt") as caught:
        say("lent", loans=2, slices="1 1/7", none=None, ok=True, of=frozenset({2, 1}), empty=set())
    (line,) = caught.texts
    written, _, rest = line.partition(" ")
    assert re.fullmatch(r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", written)
    assert datetime.fromisoformat(written[5:]) == datetime.fromtimestamp(time.time(), UTC)
    assert rest == (
        'level=warning program=tests event=lent loans=2 slices="1 1/7" none=None ok=True of=1,2'
        " empty=-"
    )


def test_json_has_the_same_fields_with_numbers_as_numbers() -> None:
    with lines() as caught:
        say("lent", loans=2, share=0.5, none=None, ok=True, of=frozenset({2, 1}), odd=float("nan"))
    (found,) = caught.events()
    assert list(found)[:4] == ["time", "level", "program", "event"]
    head = {"level": "warning", "program": "tests", "event": "lent"}
    fields = {"loans": 2, "share": 0.5, "none": None, "ok": True, "of": "1,2", "odd": "nan"}
    assert {key: found[key] for key in list(found)[1:]} == head | fields


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_traceback_is_one_field(form: LogFormat) -> None:
    with lines(form) as caught:
        try:
            int("a\nlevel=info event=forged")
        except ValueError as error:
            emit(LOG, logging.ERROR, "round_failed", {"cycle": 7}, error)
    (line,) = caught.texts
    assert len(line.splitlines()) == 1
    found = caught.events()[0] if form == "json" else parse_logfmt(line)
    assert found["event"] == "round_failed"
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert "\nValueError: invalid literal for int()" in found["exception"]
    assert "event=forged" in found["exception"]


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_a_long_value_loses_its_middle(form: LogFormat) -> None:
    with lines(form) as caught:
        say("lent", text="a" * 5000 + "z" * 5000)
    found = caught.events()[0] if form == "json" else parse_logfmt(caught.texts[0])
    half = TEXT_CHARACTERS // 2
    assert found["text"] == f"{'a' * half}...(8000 characters)...{'z' * half}"


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_no_line_is_so_long_that_journald_cuts_it(form: LogFormat) -> None:
    with lines(form) as caught:
        say("lent", **{f"field{number}": "\U0001f600" * 3000 for number in range(24)}, last="z")
    (line,) = caught.texts
    assert len(line.encode()) <= LINE_BYTES
    found = caught.events()[0] if form == "json" else parse_logfmt(line)
    assert found["last"] == "z"


async def test_bound_ids_are_in_all_events_inside_tasks_and_threads() -> None:
    async def inner() -> None:
        say("of_task")

    with lines() as caught:
        with bound(request_id="a", cycle=1):
            say("direct")
            with bound(cycle=2, job_id=814):
                await asyncio.gather(inner(), asyncio.to_thread(say, "of_thread"))
            say("after")
        say("outside")
    ids = {
        one["event"]: [one.get(key) for key in ("request_id", "cycle", "job_id")]
        for one in caught.events()
    }
    assert ids == {
        "direct": ["a", 1, None],
        "of_task": ["a", 2, 814],
        "of_thread": ["a", 2, 814],
        "after": ["a", 1, None],
        "outside": [None, None, None],
    }


def test_an_events_own_field_comes_before_a_bound_one() -> None:
    with lines() as caught, bound(service="vision/chat"):
        say("decided", service="vision/bert")
    assert [one["service"] for one in caught.events()] == ["vision/bert"]


def test_without_a_configured_log_an_event_is_its_name_and_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    say("slurm_unreadable", record="job", text="a\nb")
    assert caplog.messages == ['slurm_unreadable record=job text="a\\nb"']


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_an_int_of_any_length_is_one_bounded_line(form: LogFormat) -> None:
    with lines(form) as caught:
        say("lent", huge=1 << 40_000, least=-(2**63) + 1)
    (line,) = caught.texts
    assert len(line) < 2 * TEXT_CHARACTERS
    found = caught.events()[0] if form == "json" else parse_logfmt(line)
    assert found["huge"].startswith("0x1000")
    assert int(found["least"]) == -(2**63) + 1


def test_a_field_of_json_does_not_replace_the_head() -> None:
    with lines() as caught:
        emit(LOG, logging.WARNING, "lent", {"program": "forged", "time": "never"})
    (found,) = caught.events()
    assert found["program"] == "tests"
    assert found["time"] != "never"
