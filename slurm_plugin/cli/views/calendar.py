"""Windows of the calendar, for people and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from slicewise.cluster.language.periods import clock_text
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.slurm_plugin.cli.common.window_words import what_text, when_text, whose_text
from slicewise.slurm_plugin.cli.views.texts import NOTHING, time_text, times_column
from slicewise.slurm_plugin.rules.quota.calendar import DAYS, Window, WindowRecord

if TYPE_CHECKING:
    from slicewise.slurm_plugin.cli.common.json_shapes import (
        PastWindowJson,
        ShownWindowJson,
        WindowJson,
    )

_LEVELS = " ▁▂▃▄▅▆▇"


@dataclass(frozen=True)
class Shown:
    """A window as it is now.

    Attributes:
        next_change_s: when it next begins or ceases to hold, in Unix seconds; None if never.
    """

    window: Window
    in_force: bool
    next_change_s: int | None


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


def windows_table(shown: Sequence[Shown], zone: str) -> FittingTable:
    """One line per window, in the order in which they were set."""
    windows = [one.window for one in shown]
    return FittingTable(
        (
            column("id", (one.window_id for one in windows), right=True),
            column("tenant", map(whose_text, windows)),
            column("what", map(what_text, windows)),
            column("when", (when_text(one, zone) for one in windows), folds=True),
            column("now", (_now(one) for one in shown)),
            column("next change", (_change(one, zone) for one in shown), rank=1),
            column("why", (one.reason or NOTHING for one in windows), folds=True, rank=2),
        )
    )


def _now(one: Shown) -> Text:
    return Text("in force", style="green") if one.in_force else NOTHING


def _change(one: Shown, zone: str) -> str:
    return "never" if one.next_change_s is None else clock_text(one.next_change_s, zone)


def weeks_table(weeks: Sequence[Week]) -> FittingTable:
    """One line per tenant: bars of its nominal, relative to its largest in these days."""
    first = weeks[0].first_day
    names = [*DAYS[first:], *DAYS[:first]]
    return FittingTable(
        (
            column("tenant", (one.tenant for one in weeks)),
            *(
                column(name, (_bar(one, number) for one in weeks))
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
    windows = [one.window for one in records]
    return FittingTable(
        (
            column("id", (one.window_id for one in windows), right=True),
            column("tenant", map(whose_text, windows)),
            column("what", map(what_text, windows)),
            column("when", (when_text(one, zone) for one in windows), folds=True),
            times_column("set", (one.set_s for one in records), rank=2),
            column("by", (one.author for one in records), rank=1),
            column("why", (one.window.reason or NOTHING for one in records), folds=True, rank=3),
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


def window_json(window: Window) -> "WindowJson":
    """Days as words, times of the day in minutes, bounds in Unix seconds."""
    return {
        "id": window.window_id,
        "tenant": window.tenant or None,
        "kind": window.kind,
        "amount_millislices": window.amount_millislices,
        "days": [DAYS[day] for day in sorted(window.days)] or list(DAYS),
        "begin_min": window.begin_min,
        "end_min": window.end_min,
        "first_s": window.first_s,
        "last_s": window.last_s,
        "reason": window.reason,
    }


def shown_json(one: Shown) -> "ShownWindowJson":
    """A window, and whether it is in force."""
    return {
        **window_json(one.window),
        "in_force": one.in_force,
        "next_change_s": one.next_change_s,
    }


def record_json(one: WindowRecord) -> "PastWindowJson":
    """A window with its history."""
    return {
        **window_json(one.window),
        "author": one.author,
        "set_s": one.set_s,
        "ended_by": one.ended_by or None,
        "ended_s": one.ended_s,
        "ended_why": one.ended_why,
    }
