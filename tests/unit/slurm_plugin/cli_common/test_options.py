"""Tests how options that operators' and users' commands share are read."""

from datetime import datetime, timedelta

import pytest
import typer

from slurm_plugin.cli_common.options import local_time


def test_a_time_is_a_date_a_word_or_a_span_before_now() -> None:
    now = datetime.now().astimezone()
    assert local_time("2026-01-31T18:30") == datetime(2026, 1, 31, 18, 30).astimezone()
    today, yesterday = local_time("today"), local_time("yesterday")
    assert (today.hour, today.minute, today.second) == (0, 0, 0)
    assert today <= local_time("0s")
    assert (today.date() - yesterday.date()) == timedelta(days=1)
    for text, seconds in (("90s", 90), ("30min", 1800), ("1h", 3600), ("7d", 7 * 86_400)):
        assert (
            timedelta(0)
            <= local_time(text) - (now - timedelta(seconds=seconds))
            < timedelta(hours=1)
        )


@pytest.mark.parametrize("text", ["", "h", "1 h", "-1h", "1y", "tomorrow", "999999999d"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time"):
        local_time(text)
