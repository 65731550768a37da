"""Reads a moment as a person types it: a day, a time, or a span from now.

Options that take a moment take all of these forms, in local time. Only bounds of the calendar's
windows, days and times in the ledger's zone, have a reader of their own::

    2026-01  2026-01-31  2026-01-31T18:30  2026-01-31T18:30:05   and what else ISO 8601 has
    today  yesterday
    90s  30m (or 30min)  12h  7d  2w    before now; where the option looks ahead, after now
"""

import re
from contextlib import suppress
from datetime import datetime, timedelta
from datetime import time as time_of_day

FORMS = "2026-01-31, 2026-01-31T18:30, 2026-01, today, yesterday, or a span: 90s, 30m, 12h, 7d, 2w"
"""Examples of each form, for messages."""

_DAYS_AGO = {"today": 0, "yesterday": 1}
_SPAN_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(rf"([0-9]{{1,9}})({'|'.join(sorted(_SPAN_S, key=len, reverse=True))})")
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")


def moment_from_text(text: str, now: datetime, *, ahead: bool = False) -> datetime | None:
    """Return the moment that ``text`` names, with a time zone; None if it names none.

    A span is counted back from ``now``, to 1970 at most: no record is older. With ``ahead`` it is
    counted forward.
    """
    if text in _DAYS_AGO:
        day = now.date() - timedelta(days=_DAYS_AGO[text])
        return datetime.combine(day, time_of_day()).astimezone()
    if (span := _SPAN.fullmatch(text)) is not None:
        return _shifted(now, int(span[1]) * _SPAN_S[span[2]], ahead=ahead)
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text).astimezone()
    return None


def _shifted(now: datetime, seconds: int, *, ahead: bool) -> datetime | None:
    if not ahead:
        return datetime.fromtimestamp(max(now.timestamp() - seconds, 0)).astimezone()
    with suppress(OverflowError):
        return now + timedelta(seconds=seconds)
    return None
