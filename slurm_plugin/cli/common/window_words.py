"""Reads and writes windows of the calendar in operators' words."""

from collections.abc import Sequence
from datetime import UTC, datetime
from datetime import time as clock_time
from zoneinfo import ZoneInfo

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.moments import FORMS, moment_from_text
from slicewise.cluster.language.periods import clock_text as date_and_clock_text
from slicewise.cluster.language.periods import weekday_and_minute
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.rules.quota.amounts import limit_text
from slicewise.slurm_plugin.rules.quota.calendar import (
    ALL,
    DAY_MIN,
    DAYS,
    WEEK_DAYS,
    Window,
    WindowKind,
    clock_text,
)
from slicewise.slurm_plugin.rules.quota.calendar_times import Span

_KINDS = {
    WindowKind.NOMINAL: "nominal",
    WindowKind.BORROWING: "borrowing limit",
    WindowKind.LENDING: "lending limit",
    WindowKind.CAP: "cap",
}


def bound_from_text(text: str, key: str, zone: str, *, ends: bool) -> int:
    """Read a moment in ``zone`` as Unix seconds; a day that ``ends`` a window is all in it.

    Raises InvalidInputError (SW-VALUE) naming ``key``.
    """
    now = datetime.fromtimestamp(wall_s(), UTC)
    found = moment_from_text(text, now, ahead=True, ends=ends, zone=ZoneInfo(zone))
    if found is None:
        raise InvalidInputError(
            Code.VALUE, f"{key} {text!r} is not a time.", f"Write it as {FORMS} from now."
        )
    try:
        shown = found.astimezone(UTC).astimezone(found.tzinfo)
    except OverflowError:
        raise InvalidInputError(
            Code.VALUE, f"{key} {text!r} is before the year 1 of UTC.", "Give a later day."
        ) from None
    # A day whose midnight is skipped begins with its first moment.
    if found.time() != clock_time(0) and shown.replace(tzinfo=None) != found.replace(tzinfo=None):
        raise InvalidInputError(
            Code.VALUE,
            f"{key} {text!r}: the clocks of {zone} skip that time.",
            f"That night they go forward. Write {shown:%Y-%m-%dT%H:%M}, or another time.",
        )
    return int(found.timestamp())


def what_text(window: Window) -> str:
    """Return what the window sets: ``borrowing limit 4``."""
    return f"{_KINDS[window.kind]} {limit_text(window.amount_millislices)}"


def whose_text(window: Window) -> str:
    """Return the window's tenant, or ``all together``."""
    return "all together" if window.tenant == ALL else window.tenant


def when_text(window: Window, zone: str) -> str:
    """Return when it holds: ``mon-fri 08:00-18:00``, ``until 2026-12-06 00:00``, ``always``."""
    words = [_days_text(window.days), _hours_text(window), _bounds_text(window, zone)]
    return " ".join(filter(None, words)) or "always"


def spans_text(coming: Sequence[Span], zone: str, *, in_force: bool) -> str:
    """``It holds from Mon 2026-11-23 08:00 to 18:00, then from Tue 2026-11-24 08:00 to 18:00.``

    ``in_force``: whether the first span has begun.
    """
    if not coming:
        return "It is over."
    first, *later = coming
    if in_force:
        words = f"It is in force now{_until_text(first, zone)}"
    else:
        words = f"It holds {_span_text(first, zone)}"
    return ", then ".join((words, *(_span_text(span, zone) for span in later))) + "."


def _until_text(span: Span, zone: str) -> str:
    return ", without an end" if span.end_s is None else f", until {_day_text(span.end_s, zone)}"


def _span_text(span: Span, zone: str) -> str:
    begin = _day_text(span.begin_s, zone)
    if span.end_s is None:
        return f"from {begin} on"
    end = _day_text(span.end_s, zone)
    day = begin.rpartition(" ")[0]
    return f"from {begin} to {end.removeprefix(f'{day} ')}"


def _day_text(at_s: float, zone: str) -> str:
    """``Mon 2026-11-23 08:00``."""
    weekday, _ = weekday_and_minute(at_s, zone)
    return f"{DAYS[weekday].capitalize()} {date_and_clock_text(at_s, zone)}"


def _days_text(days: frozenset[int]) -> str:
    """Return days as ranges: ``mon-fri,sun``; "" for all days."""
    if len(days) in {0, WEEK_DAYS}:
        return ""
    firsts = sorted(day for day in days if (day - 1) % WEEK_DAYS not in days)
    return ",".join(_run_text(days, first) for first in firsts)


def _run_text(days: frozenset[int], first: int) -> str:
    last = first
    while (last + 1) % WEEK_DAYS in days:
        last = (last + 1) % WEEK_DAYS
    return DAYS[first] if last == first else f"{DAYS[first]}-{DAYS[last]}"


def _hours_text(window: Window) -> str:
    if window.begin_min == window.end_min == 0:
        return ""
    end = clock_text(window.end_min or DAY_MIN)
    return f"{clock_text(window.begin_min)}-{end}"


def _bounds_text(window: Window, zone: str) -> str:
    first, last = (
        "" if at_s is None else date_and_clock_text(at_s, zone)
        for at_s in (window.first_s, window.last_s)
    )
    if first and last:
        return f"{first} to {last}"
    return f"from {first}" if first else f"until {last}" if last else ""
