"""Reads a moment as a person types it: a day, a time, or a span from now.

Options that take a moment take all of these forms, in local time or, for the calendar's windows, in
the ledger's zone::

    2026-01  2026-01-31  2026-01-31T18:30  2026-01-31T18:30:05   and what else ISO 8601 has
    today  yesterday
    90s  30m (or 30min)  12h  7d  2w    before now; where the option looks ahead, after now
"""

import re
from contextlib import suppress
from datetime import date, datetime, timedelta, tzinfo

FORMS = "2026-01-31, 2026-01-31T18:30, 2026-01, today, yesterday, or a span: 90s, 30m, 12h, 7d, 2w"
"""Examples of each form, for messages."""

_DAYS_AGO = {"today": 0, "yesterday": 1}
_SPAN_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(rf"([0-9]{{1,9}})({'|'.join(sorted(_SPAN_S, key=len, reverse=True))})")
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")
_LONGEST_MONTH = timedelta(days=31)


def moment_from_text(
    text: str,
    now: datetime,
    *,
    ahead: bool = False,
    ends: bool = False,
    zone: tzinfo | None = None,
) -> datetime | None:
    """Return the moment that ``text`` names, with a time zone; None if it names none.

    A span is counted back from ``now``, to 1970 at most: no record is older. With ``ahead`` it is
    counted forward. A day or month is its begin, or what comes after it if it ``ends`` something:
    it is all in that. What names no zone is of ``zone``; None is this host's.
    """
    if (span := _SPAN.fullmatch(text)) is not None:
        return _shifted(now, int(span[1]) * _SPAN_S[span[2]], ahead=ahead)
    with suppress(ValueError, OverflowError):
        days = _days(text, now.astimezone(zone).date())
        if days is None:
            return _in(datetime.fromisoformat(text), zone)
        day = days[ends]
        return _in(datetime(day.year, day.month, day.day), zone)  # noqa: DTZ001 -- _in adds it
    return None


def _days(text: str, today: date) -> tuple[date, date] | None:
    """Return the first day of the day or month that is named, and the one after its last.

    None if ``text`` names neither. Raises ValueError for a month that there is not, OverflowError
    after the last year.
    """
    if text in _DAYS_AGO:
        day = today - timedelta(days=_DAYS_AGO[text])
    elif _MONTH.fullmatch(text):
        day = date.fromisoformat(f"{text}-01")
        return day, (day + _LONGEST_MONTH).replace(day=1)
    else:
        try:
            day = date.fromisoformat(text)
        except ValueError:
            return None
    return day, day + timedelta(days=1)


def _in(moment: datetime, zone: tzinfo | None) -> datetime:
    if zone is None or moment.tzinfo is not None:
        return moment.astimezone(zone)
    return moment.replace(tzinfo=zone)


def _shifted(now: datetime, seconds: int, *, ahead: bool) -> datetime | None:
    if not ahead:
        return datetime.fromtimestamp(max(now.timestamp() - seconds, 0)).astimezone()
    with suppress(OverflowError):
        return now + timedelta(seconds=seconds)
    return None
