"""Tests when periods begin, by the calendar and over changes of the clock."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.periods import (
    RENEWED,
    Period,
    check_zone,
    clock_text,
    clock_times_s,
    date_text,
    next_start_s,
    period_start_s,
    weekday_and_minute,
)

BERLIN = "Europe/Berlin"
ZONES = st.sampled_from(sorted(available_timezones()))
PERIODS = st.sampled_from(RENEWED)
SINCE_2015 = st.integers(1_420_070_400, 2_208_988_800)
"""Until 2040."""


def second(text: str, zone: str = BERLIN) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


@pytest.mark.parametrize(
    ("period", "begins", "next_begins"),
    [
        (Period.DAY, "2026-10-31T00:00", "2026-11-01T00:00"),
        (Period.WEEK, "2026-10-26T00:00", "2026-11-02T00:00"),
        (Period.MONTH, "2026-10-01T00:00", "2026-11-01T00:00"),
    ],
)
def test_by_the_calendar_of_the_zone(period: Period, begins: str, next_begins: str):
    last_s = second("2026-10-31T23:59:59")
    assert period_start_s(period, last_s, BERLIN) == second(begins)
    assert next_start_s(period, last_s, BERLIN) == second(next_begins)


def test_none_began_once_and_never_begins_again():
    assert period_start_s(Period.NONE, 10**9, BERLIN) == 0
    assert next_start_s(Period.NONE, 10**9, BERLIN) is None


def test_a_day_on_which_clocks_change_is_longer_or_shorter():
    for date, hours in (("2026-03-29", 23), ("2026-10-25", 25), ("2026-10-26", 24)):
        noon_s = second(f"{date}T12:00")
        next_s = next_start_s(Period.DAY, noon_s, BERLIN)
        assert next_s is not None
        assert next_s - period_start_s(Period.DAY, noon_s, BERLIN) == hours * 3600


def test_where_there_is_no_midnight_the_day_begins_with_the_jump():
    # Clocks went from 0:00 to 1:00.
    noon_s = second("2024-04-26T12:00", "Africa/Cairo")
    begins_s = period_start_s(Period.DAY, noon_s, "Africa/Cairo")
    assert begins_s == second("2024-04-26T01:00", "Africa/Cairo")
    assert date_text(begins_s, "Africa/Cairo") == "2024-04-26"


@given(PERIODS, SINCE_2015, ZONES)
def test_every_second_is_in_one_period(period: Period, at_s: int, zone: str):
    start_s, next_s = period_start_s(period, at_s, zone), next_start_s(period, at_s, zone)
    assert next_s is not None
    assert start_s <= at_s < next_s
    for inside_s in (start_s, next_s - 1):
        assert period_start_s(period, inside_s, zone) == start_s
        assert next_start_s(period, inside_s, zone) == next_s
    assert period_start_s(period, next_s, zone) == next_s


@given(PERIODS, SINCE_2015, ZONES)
def test_a_period_begins_at_midnight_or_where_the_clock_jumps_over_it(
    period: Period, at_s: int, zone: str
):
    begins = datetime.fromtimestamp(period_start_s(period, at_s, zone), UTC)
    here, before = (
        moment.astimezone(ZoneInfo(zone)) for moment in (begins, begins - timedelta(seconds=1))
    )
    assert here.date() != before.date()
    assert (
        (period, here.weekday()) == (Period.WEEK, 0)
        or (period, here.day) == (Period.MONTH, 1)
        or (period is Period.DAY)
    )


@pytest.mark.parametrize("zone", ["", "Mars", "../UTC", "/etc/passwd", "Europe", "\x00"])
def test_what_is_no_zone(zone: str):
    with pytest.raises(ValueError, match="write a time zone"):
        check_zone(zone)


def test_zones():
    assert [check_zone(zone) for zone in ("UTC", BERLIN)] == ["UTC", BERLIN]


# Clocks


def test_clocks_show_a_weekday_and_a_minute():
    assert weekday_and_minute(second("2026-11-23T08:30"), BERLIN) == (0, 510)
    assert weekday_and_minute(second("2026-11-23T08:30"), "UTC") == (0, 450)
    assert clock_text(second("2026-11-23T08:30"), BERLIN) == "2026-11-23 08:30"


def test_times_of_the_day_come_in_order_on_every_day():
    noon_s = second("2026-11-23T12:00")
    found = clock_times_s({510, 0}, noon_s, 2, BERLIN)
    days = ("2026-11-23", "2026-11-24")
    assert found == [second(f"{day}T{clock}") for day in days for clock in ("00:00", "08:30")]


def test_a_change_of_clocks_is_among_them_and_what_is_shown_twice_comes_twice():
    at_s = [
        clock_times_s({150}, second(f"{day}T12:00"), 1, BERLIN)
        for day in (
            "2027-03-28",
            "2026-10-25",
            "2026-10-26",
        )
    ]
    jump_s, back_s = second("2027-03-28T01:00") + 3600, second("2026-10-25T02:30")
    assert at_s == [[jump_s], [back_s, back_s + 1800, back_s + 3600], [second("2026-10-26T02:30")]]


@given(SINCE_2015, ZONES, st.integers(0, 1439))
def test_clocks_show_what_they_come_to(since_s: int, zone: str, minute: int):
    change = set(clock_times_s((), since_s, 3, zone))
    shown = [at_s for at_s in clock_times_s({minute}, since_s, 3, zone) if at_s not in change]
    assert all(weekday_and_minute(at_s, zone)[1] == minute for at_s in shown)
    assert len(shown) + len(change) >= 3
