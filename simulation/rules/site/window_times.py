"""When windows of the calendar begin and end during a simulation, and budgets' periods begin."""

from collections.abc import Iterable

from slicewise.cluster.language.periods import clock_times_s, next_start_s
from slicewise.slurm_plugin.rules.quota.calendar import Window
from slicewise.slurm_plugin.rules.quota.types import Policy

_DAY_S = 86_400


def window_times_s(
    windows: Iterable[Window], begin_s: float, end_s: float, zone: str
) -> tuple[int, ...]:
    """Every Unix second after ``begin_s``, up to ``end_s``, at which a window may begin or end."""
    windows = tuple(windows)
    if not windows:
        return ()
    minutes = {minute for window in windows for minute in (window.begin_min, window.end_min)}
    days = int((end_s - begin_s) // _DAY_S) + 2
    times = {*clock_times_s(minutes, begin_s, days, zone)}
    times |= {
        at_s for window in windows for at_s in (window.first_s, window.last_s) if at_s is not None
    }
    return tuple(sorted(at_s for at_s in times if begin_s < at_s <= end_s))


def period_times_s(policy: Policy, begin_s: float, end_s: float, zone: str) -> tuple[int, ...]:
    """Every Unix second after ``begin_s``, up to ``end_s``, at which a budget begins again."""
    times: set[int] = set()
    for period in {tenant.budget.period for tenant in policy.values() if tenant.budget}:
        at_s = next_start_s(period, int(begin_s), zone)
        while at_s is not None and at_s <= end_s:
            times.add(at_s)
            at_s = next_start_s(period, at_s, zone)
    return tuple(sorted(times))
