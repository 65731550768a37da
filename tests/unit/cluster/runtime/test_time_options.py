"""Tests the one way in which options take moments, and the forms that each had before."""

import time
from datetime import UTC, datetime, timedelta

import pytest
import typer

from slicewise.cluster.runtime.time_options import local_time

pytestmark = pytest.mark.usefixtures("clock")

SPANS = {
    "90s": 90,
    "30m": 1800,
    "30min": 1800,
    "1h": 3600,
    "7d": 7 * 86_400,
    "2w": 14 * 86_400,
}


def test_a_time_is_a_date_a_word_or_a_span_before_now() -> None:
    now = datetime.fromtimestamp(time.time(), UTC).astimezone()
    assert local_time("2026-01-31T18:30") == datetime(2026, 1, 31, 18, 30).astimezone()
    today, yesterday = local_time("today"), local_time("yesterday")
    assert (today.hour, today.minute, today.second) == (0, 0, 0)
    assert today <= local_time("0s")
    assert (today.date() - yesterday.date()) == timedelta(days=1)
    for text, seconds in SPANS.items():
        assert (
            timedelta(0)
            <= local_time(text) - (now - timedelta(seconds=seconds))
            < timedelta(hours=1)
        )


@pytest.mark.parametrize(("text", "seconds"), SPANS.items())
def test_ahead_a_span_counts_from_now_on(text: str, seconds: int) -> None:
    now = datetime.fromtimestamp(time.time(), UTC).astimezone()
    shift = local_time(text, ahead=True) - now - timedelta(seconds=seconds)
    assert timedelta(0) <= shift < timedelta(hours=1)


def test_a_month_begins_with_its_first_day() -> None:
    assert local_time("2026-11") == local_time("2026-11-01")


def test_iso_times_with_zones_are_read() -> None:
    assert local_time("2026-01-01T00:10:00+00:00").timestamp() == 1767226200


def test_a_span_longer_than_all_records_reaches_to_their_begin() -> None:
    for text in ("999999d", "999999999d"):
        assert local_time(text).timestamp() == 0


@pytest.mark.parametrize("text", ["", "h", "1 h", "-1h", "1y", "tomorrow", "90", "2026-13"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        local_time(text)


def test_what_is_too_far_ahead_is_no_time() -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        local_time("999999999d", ahead=True)
