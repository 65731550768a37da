"""When windows of the calendar begin and end during a simulation."""

from collections.abc import Iterable

from cluster.language.periods import clock_times_s
from slurm_plugin.quota.calendar import Window

_DAY_S = 86_400


def window_times_s(
    windows: Iterable[Window], begin_s: float, end_s: float, zone: str
) -> tuple[int, ...]:
    """Every Unix second after ``begin_s``, up to ``end_s``, at which a window may begin or end."""
    windows = tuple(windows)
    if not windows:
        return ()
    minutes = {minute for one in windows for minute in (one.begin_min, one.end_min)}
    days = int((end_s - begin_s) // _DAY_S) + 2
    times = {*clock_times_s(minutes, begin_s, days, zone)}
    times |= {at_s for one in windows for at_s in (one.first_s, one.last_s) if at_s is not None}
    return tuple(sorted(at_s for at_s in times if begin_s < at_s <= end_s))
