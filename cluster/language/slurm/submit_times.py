"""Reads and writes times as options of sbatch have them."""

import re
from datetime import datetime, time, timedelta, tzinfo

DEADLINE_FORMS = "08:00, 2026-01-31, 2026-01-31T18:30 or now+8hours"
"""Forms of ``--begin`` and ``--deadline`` that are read here; sbatch has others."""
TIME_FORMS = "minutes, 1:30:00, 1-12 or 1-12:30:00"
"""Forms of ``--time``."""

_NUMBER = "([0-9]{1,9})"
_LIMIT = re.compile(f"{_NUMBER}(?::{_NUMBER})?(?::{_NUMBER})?")
_DAYS_LIMIT = re.compile(f"{_NUMBER}-{_NUMBER}(?::{_NUMBER})?(?::{_NUMBER})?")
_CLOCK = re.compile("([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?)?")
_SPAN = re.compile(rf"now\+{_NUMBER}(second|minute|hour|day|week)?s?")
_UNIT_S = {None: 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_LONGEST_MIN = 366 * 24 * 60


def limit_s(text: str) -> int | None:
    """Seconds of a ``--time``, in whole minutes as Slurm has them; None for what is no such text.

    A limit of 0, which is none, or of more than a year is no such text either.
    """
    if (match := _DAYS_LIMIT.fullmatch(text)) is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    elif (match := _LIMIT.fullmatch(text)) is not None:
        first, second, third = match.groups()
        # One number is minutes, two are minutes and seconds.
        clock = (first, second, third) if third is not None else ("0", first, second)
        days, (hours, minutes, seconds) = 0, (int(part or 0) for part in clock)
    else:
        return None
    whole_min = (days * 24 + hours) * 60 + minutes + -(-seconds // 60)
    return whole_min * 60 if 0 < whole_min <= _LONGEST_MIN else None


def moment_s(text: str, now_s: float, zone: tzinfo | None = None) -> int | None:
    """The Unix second that a ``--deadline`` names; None for what names none.

    As sbatch reads it: a time of day is the next one, and a date alone is its midnight; in a zone,
    or else in this host's. Of a time that clocks show twice it is the first.
    """
    now = datetime.fromtimestamp(now_s, zone)
    try:
        if (match := _SPAN.fullmatch(text)) is not None:
            return int(now_s) + int(match[1]) * _UNIT_S[match[2]]
        if (match := _CLOCK.fullmatch(text)) is not None:
            hour, minute, second = (int(part or 0) for part in match.groups())
            is_today = (hour, minute) > (now.hour, now.minute)
            day = now.date() + timedelta(days=not is_today)
            return int(datetime.combine(day, time(hour, minute, second), zone).timestamp())
        if _DATE.fullmatch(text):
            return int(datetime.fromisoformat(text).replace(tzinfo=zone).timestamp())
    except (ValueError, OverflowError, OSError):
        return None
    return None


def begin_text(at_s: int, now_s: int, zone: tzinfo | None = None) -> str:
    """A moment as ``--begin`` takes it: ``now``, or as ``2026-01-31T22:00:00``.

    Where clocks show that time twice, Slurm would choose: then it is ``now+SECONDS``.
    """
    if at_s <= now_s:
        return "now"
    shown = datetime.fromtimestamp(at_s, zone)
    if shown.replace(fold=0).timestamp() != shown.replace(fold=1).timestamp():
        return f"now+{at_s - now_s}"
    return f"{shown:%Y-%m-%dT%H:%M:%S}"
