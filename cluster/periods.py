"""When the periods of budgets begin, by the calendar of a time zone."""

from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


def period_start_s(period: str, at_s: int, zone: str) -> int:
    """The Unix second at which the period began that contains ``at_s``.

    ``period`` is day (from midnight), week (from Monday) or month; of "none" it is 0.
    """
    if period == "none":
        return 0
    tz = _zone(zone)
    return _midnight_s(_first_day(period, datetime.fromtimestamp(at_s, tz).date()), tz)


def next_start_s(period: str, at_s: int, zone: str) -> int | None:
    """The Unix second at which the next period begins; None if there is none."""
    if period == "none":
        return None
    tz = _zone(zone)
    first = _first_day(period, datetime.fromtimestamp(at_s, tz).date())
    return _midnight_s(_first_day(period, first + _LONGER[period]), tz)


def date_text(at_s: int, zone: str) -> str:
    """The date there, such as 2026-11-01."""
    return datetime.fromtimestamp(at_s, _zone(zone)).date().isoformat()


def check_zone(zone: str) -> str:
    """Return it; raises ValueError if it is no time zone that this host knows."""
    try:
        _zone(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError('write a time zone such as "UTC" or "Europe/Berlin"') from None
    return zone


_LONGER = {"day": timedelta(days=1), "week": timedelta(weeks=1), "month": timedelta(days=31)}
"""From the first day of a period: into the next one, never beyond it."""


def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _first_day(period: str, day: date) -> date:
    starts = {
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
    }
    return starts[period]


def _midnight_s(day: date, tz: tzinfo) -> int:
    """Where clocks jump over midnight, the moment of the jump; where it comes twice, the first."""
    return int(datetime.combine(day, time(), tz).timestamp())
