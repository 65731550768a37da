"""Times as sbatch reads them: what it would take otherwise is refused, not guessed."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from slicewise.cluster.language.slurm.submit_times import begin_text, limit_s, moment_s

BERLIN = ZoneInfo("Europe/Berlin")


def local_s(text: str, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp())


NOW_S = local_s("2026-10-24T12:30:20")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        *(("90", 90), ("90:00", 90), ("1:30:00", 90), ("0:30", 1), ("2:00:01", 121)),
        *(("1-0", 1440), ("1-12", 2160), ("1-12:30", 2190), ("1-12:30:15", 2191)),
    ],
)
def test_a_time_limit_is_whole_minutes(text: str, minutes: int) -> None:
    assert limit_s(text) == minutes * 60


@pytest.mark.parametrize(
    "text", ["", "0", "0:00", "UNLIMITED", "4h", "1:2:3:4", "-1", "1-", "367-0", "1.5", " 5", "٣"]
)
def test_what_is_no_time_limit_is_none(text: str) -> None:
    assert limit_s(text) is None


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("12:31", "2026-10-24T12:31:00"),
        # The next one: sbatch looks at the minute, not at its seconds.
        ("12:30:59", "2026-10-25T12:30:59"),
        ("8:00", "2026-10-25T08:00:00"),
        ("2026-12-01", "2026-12-01T00:00:00"),
        ("2026-12-01T18:30", "2026-12-01T18:30:00"),
        ("2026-12-01T18:30:05", "2026-12-01T18:30:05"),
        ("now+90", "2026-10-24T12:31:50"),
        ("now+2hours", "2026-10-24T14:30:20"),
        # The day has 25 hours.
        ("now+1day", "2026-10-25T11:30:20"),
        # Twice on that night's clocks: the first.
        ("2026-10-25T02:30", "2026-10-25T02:30:00"),
    ],
)
def test_a_deadline_is_read_as_sbatch_does(text: str, moment: str) -> None:
    assert moment_s(text, NOW_S, BERLIN) == local_s(moment)


@pytest.mark.parametrize(
    "text",
    [
        *("", "24:00", "1200", "1201", "12/01", "8h", "today", "noon", "8:00 PM", "now-1hour"),
        *("2026-13-01", "2026-12-01T18:30Z", "now+1month", "2026-12-01 18:30"),
    ],
)
def test_a_deadline_of_another_form_is_none(text: str) -> None:
    assert moment_s(text, NOW_S, BERLIN) is None


def test_a_begin_is_a_text_that_means_that_moment_alone() -> None:
    assert begin_text(NOW_S, NOW_S, BERLIN) == "now"
    assert begin_text(local_s("2026-10-24T22:00"), NOW_S, BERLIN) == "2026-10-24T22:00:00"
    for fold in (0, 1):
        twice_s = local_s("2026-10-25T02:30", fold)
        assert begin_text(twice_s, NOW_S, BERLIN) == f"now+{twice_s - NOW_S}"
