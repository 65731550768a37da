"""Computes when windows of the calendar begin and end, by the clocks of a time zone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slicewise.cluster.language.periods import clock_times_s, weekday_and_minute
from slicewise.slurm_plugin.rules.quota.calendar import WEEK_DAYS, Moment, Window, holds

_DAY_S = 86_400


@dataclass(frozen=True)
class Span:
    """A time during which a window holds without a break, in Unix seconds; ``end_s`` None: for
    ever.

    The first span of a window that holds already begins at the start of the search.
    """

    begin_s: int
    end_s: int | None


def moment(at_s: float, zone: str) -> Moment:
    """The second ``at_s`` with what clocks in that time zone show."""
    return Moment(at_s, *weekday_and_minute(at_s, zone))


def moments(windows: Sequence[Window], since_s: float, zone: str) -> Iterator[Moment]:
    """``since_s``, and every later moment at which one of the windows may begin or end.

    Times that repeat weekly are given for one week, and for one week again after each first and
    last second of a window.
    """
    minutes = {minute for window in windows for minute in (window.begin_min, window.end_min)}
    bounds = {
        at_s for window in windows for at_s in (window.first_s, window.last_s) if at_s is not None
    }
    starts = [since_s, *sorted(at_s for at_s in bounds if at_s > since_s)]
    for start_s, next_s in pairwise((*starts, float("inf"))):
        yield moment(start_s, zone)
        yield from (moment(at_s, zone) for at_s in _between(minutes, start_s, next_s, zone))


def spans(window: Window, since_s: float, zone: str) -> Iterator[Span]:
    """Spans in which the window holds, within the time that ``moments`` covers: a week or more."""
    begin_s = None
    for moment in moments([window], since_s, zone):
        if begin_s is None and holds(window, moment):
            begin_s = int(moment.at_s)
        elif begin_s is not None and not holds(window, moment):
            yield Span(begin_s, int(moment.at_s))
            begin_s = None
    if begin_s is not None:
        yield Span(begin_s, None)


def _between(minutes: Iterable[int], start_s: float, next_s: float, zone: str) -> Iterator[int]:
    # The first and the last day are not whole.
    days = int(min(next_s - start_s, WEEK_DAYS * _DAY_S) // _DAY_S) + 2
    for at_s in clock_times_s(minutes, start_s, days, zone):
        if start_s < at_s < next_s:
            yield at_s
