"""Windows of the calendar, for people and programs."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from slicewise.cluster.language.periods import clock_text
from slicewise.cluster.runtime.console import FittingTable, column, time_text
from slicewise.slurm_plugin.cli.common.window_words import what_text, when_text, whose_text
from slicewise.slurm_plugin.cli.views.texts import NOTHING, times_column
from slicewise.slurm_plugin.rules.quota.calendar import DAYS, Window, WindowRecord
from slicewise.slurm_plugin.rules.quota.calendar_times import Span

_LEVELS = " ▁▂▃▄▅▆▇"


@dataclass(frozen=True)
class WindowNow:
    """A window as it is now.

    Attributes:
        next_change_s: when it next begins or ceases to hold, in Unix seconds; None if never.
    """

    window: Window
    in_force: bool
    next_change_s: int | None


@dataclass(frozen=True, kw_only=True)
class NewWindow(WindowNow):
    """A window with the next times at which it holds."""

    spans: Sequence[Span]


@dataclass(frozen=True)
class Week:
    """A tenant's nominal over the seven days that begin with today.

    Attributes:
        first_day: today's weekday; 0 is Monday.
        days: the nominal in millislices at even intervals, for each day.
    """

    tenant: str
    first_day: int
    days: Sequence[Sequence[int]]


def windows_table(shown: Sequence[WindowNow], zone: str) -> FittingTable:
    """One line per window, in the order in which they were set."""
    windows = [window.window for window in shown]
    return FittingTable(
        (
            column("id", (window.window_id for window in windows), right=True),
            column("tenant", map(whose_text, windows)),
            column("what", map(what_text, windows)),
            column("when", (when_text(window, zone) for window in windows), folds=True),
            column("now", (_now(window) for window in shown)),
            column("next change", (_change(window, zone) for window in shown), rank=1),
            column("why", (window.reason or NOTHING for window in windows), folds=True, rank=2),
        )
    )


def _now(shown: WindowNow) -> Text:
    return Text("in force", style="green") if shown.in_force else NOTHING


def _change(shown: WindowNow, zone: str) -> str:
    return "never" if shown.next_change_s is None else clock_text(shown.next_change_s, zone)


def weeks_table(weeks: Sequence[Week]) -> FittingTable:
    """One line per tenant: bars of its nominal, relative to its largest in these days."""
    first = weeks[0].first_day
    names = [*DAYS[first:], *DAYS[:first]]
    return FittingTable(
        (
            column("tenant", (week.tenant for week in weeks)),
            *(
                column(name, (_bar(week, number) for week in weeks))
                for number, name in enumerate(names)
            ),
        )
    )


def _bar(week: Week, number: int) -> str:
    """The bars of one day; a nominal above zero draws at least the lowest bar."""
    most = max(1, *(amount for day in week.days for amount in day))
    steps = len(_LEVELS) - 1
    marks = (max(amount > 0, round(amount * steps / most)) for amount in week.days[number])
    return "".join(_LEVELS[mark] for mark in marks)


def history_table(records: Sequence[WindowRecord], zone: str) -> FittingTable:
    """One line per window that was ever set, newest first."""
    windows = [record.window for record in records]
    return FittingTable(
        (
            column("id", (window.window_id for window in windows), right=True),
            column("tenant", map(whose_text, windows)),
            column("what", map(what_text, windows)),
            column("when", (when_text(window, zone) for window in windows), folds=True),
            times_column("set", (record.set_s for record in records), rank=2),
            column("by", (record.author for record in records), rank=1),
            column(
                "why", (record.window.reason or NOTHING for record in records), folds=True, rank=3
            ),
            column("removed", map(_ended, records), brief=map(_ended_briefly, records), folds=True),
        )
    )


def _ended(record: WindowRecord) -> object:
    if record.ended_s is None:
        return NOTHING
    why = f": {record.ended_why}" if record.ended_why else ""
    return f"{time_text(record.ended_s)} by {record.ended_by}{why}"


def _ended_briefly(record: WindowRecord) -> object:
    return NOTHING if record.ended_s is None else time_text(record.ended_s, "%m-%d %H:%M")
