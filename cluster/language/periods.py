"""Names the periods of budgets, and calculates when they begin, by a time zone's calendar."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class Period(StrEnum):
    """How often a budget begins again: a day from midnight, a week from Monday; NONE is never.

    A further one also needs a migration that widens the ledger's constraint ``period_known``.
    """

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    NONE = "none"


RENEWED = tuple(period for period in Period if period is not Period.NONE)
"""Periods after which a budget begins again."""
DAYS_YEARS = range(1971, 2301)
"""Years of days that people name: those before and after have no Unix seconds in every zone."""
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
LENGTH_S = {Period.DAY: 86_400, Period.WEEK: 7 * 86_400, Period.MONTH: 30 * 86_400}
"""Seconds of a period for rates, whatever the calendar has: a month is 30 days."""


def period_start_s(period: Period, at_s: int, zone: str) -> int:
    """The Unix second at which the period began that contains ``at_s``; 0 for NONE."""
    if period is Period.NONE:
        return 0
    tz = _zone(zone)
    return _midnight_s(_first_day(period, datetime.fromtimestamp(at_s, tz).date()), tz)


def next_start_s(period: Period, at_s: int, zone: str) -> int | None:
    """The Unix second at which the next period begins; None for NONE."""
    if period is Period.NONE:
        return None
    tz = _zone(zone)
    first = _first_day(period, datetime.fromtimestamp(at_s, tz).date())
    return _midnight_s(_first_day(period, first + _LONGER[period]), tz)


def midnight_s(day: object, zone: str) -> int | None:
    """The Unix second at which a day begins in the zone; None for what is no date alone, or not of
    ``DAYS_YEARS``.
    """
    if not isinstance(day, date) or isinstance(day, datetime) or day.year not in DAYS_YEARS:
        return None
    return _midnight_s(day, _zone(zone))


def day_start_s(day: str, zone: str) -> int:
    """The Unix second at which a day such as 2026-11-01 begins; ValueError for other text."""
    return _midnight_s(date.fromisoformat(day), _zone(zone))


def next_day_s(day: str, zone: str) -> int:
    """The Unix second at which the day after that begins."""
    return _midnight_s(date.fromisoformat(day) + timedelta(days=1), _zone(zone))


def weekday_and_minute(at_s: float, zone: str) -> tuple[int, int]:
    """What clocks in the zone show: the weekday, 0 being Monday, and minutes since midnight."""
    local_time = datetime.fromtimestamp(at_s, _zone(zone))
    return local_time.weekday(), local_time.hour * 60 + local_time.minute


def clock_times_s(minutes: Iterable[int], since_s: float, days: int, zone: str) -> list[int]:
    """When the zone's clocks come to one of these minutes of the day, or are changed.

    Unix seconds in order, for a number of days that begin with the day of ``since_s``.
    """
    tz = _zone(zone)
    first = datetime.fromtimestamp(since_s, tz).date()
    times = [time(minute // 60, minute % 60) for minute in minutes]
    moments_s: set[int] = set()
    for day in (first + timedelta(days=number) for number in range(days)):
        for shown in (datetime.combine(day, clock, tz) for clock in times):
            moments_s.update(_seconds(shown, tz))
        moments_s.update(_change_of_clocks_s(day, tz))
    return sorted(moments_s)


def clock_text(at_s: float, zone: str) -> str:
    """The date and time in the zone, such as 2026-11-01 08:30."""
    return f"{datetime.fromtimestamp(at_s, _zone(zone)):%Y-%m-%d %H:%M}"


def date_text(at_s: int, zone: str) -> str:
    """The date in the zone, such as 2026-11-01."""
    return datetime.fromtimestamp(at_s, _zone(zone)).date().isoformat()


def check_zone(zone: str) -> str:
    """Return the zone; raises ValueError if this host knows no such time zone."""
    try:
        _zone(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError('write a time zone such as "UTC" or "Europe/Berlin"') from None
    return zone


_LONGER = {
    Period.DAY: timedelta(days=1),
    Period.WEEK: timedelta(weeks=1),
    Period.MONTH: timedelta(days=31),
}
"""Leads from the first day of a period into the next period, never beyond it."""


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _first_day(period: Period, day: date) -> date:
    starts = {
        Period.DAY: day,
        Period.WEEK: day - timedelta(days=day.weekday()),
        Period.MONTH: day.replace(day=1),
    }
    return starts[period]


def _seconds(shown: datetime, tz: tzinfo) -> Iterator[int]:
    """Unix seconds at which clocks show this time: two, or none, where clocks are changed."""
    for fold in (0, 1):
        at_s = int(shown.replace(fold=fold).timestamp())
        if datetime.fromtimestamp(at_s, tz).replace(fold=0) == shown:
            yield at_s


def _change_of_clocks_s(day: date, tz: tzinfo) -> Iterator[int]:
    seconds = range(_midnight_s(day, tz), _midnight_s(day + timedelta(days=1), tz) + 1)

    def offset(at_s: int) -> timedelta | None:
        return datetime.fromtimestamp(at_s, tz).utcoffset()

    before = offset(seconds[0])
    if before != offset(seconds[-1]):
        yield seconds[bisect_left(seconds, True, key=lambda at_s: offset(at_s) != before)]


def _midnight_s(day: date, tz: tzinfo) -> int:
    """The Unix second of midnight.

    Where clocks jump over midnight, it is the moment of the jump; where midnight comes twice, the
    first.
    """
    return int(datetime.combine(day, time(), tz).timestamp())


def age_text(seconds: float) -> str:
    """``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    if seconds < _MINUTE_S:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.1f} d"
