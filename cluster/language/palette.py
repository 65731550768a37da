"""The one table of colours and words: of the page, of reports, of the terminal and of Grafana.

A thing has the same word and the same hue wherever people see it. Keys are the names that answers
and history have for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


@dataclass(frozen=True)
class Colour:
    """A hue as CSS writes it, for a light and for a dark ground."""

    light: str
    dark: str


@dataclass(frozen=True)
class Look:
    """How an amount is called and drawn.

    Attributes:
        word: what people read.
        style: Rich's, in a terminal; "" where none draws it.
        dashes: lengths of strokes and gaps of its line, in pixels; () is one stroke.
    """

    word: str
    colour: Colour
    style: str = ""
    dashes: tuple[int, ...] = ()


class Tone(StrEnum):
    """What a word about the state of something wants of its reader."""

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"
    QUIET = "quiet"


GROUNDS: Mapping[str, Colour] = MappingProxyType(
    {
        "ground": Colour("#fbfbfa", "#14181b"),
        "raised": Colour("#ffffff", "#1b2024"),
        "text": Colour("#1d2226", "#e4e8eb"),
        "line": Colour("#d9dde0", "#333b41"),
        "link": Colour("#175a8a", "#7fbdea"),
        "accent": Colour("#24506e", "#9ccbec"),
        "uncut": Colour("#eceff1", "#262d32"),
        "shade": Colour("#b4bdc4", "#56636d"),
        "on-part": Colour("#0c0e10", "#0c0e10"),
    }
)
"""What pages are made of beside that. ``on-part`` is text on a part of a bar."""

TONES: Mapping[Tone, Look] = MappingProxyType(
    {
        Tone.GOOD: Look("good", Colour("#1f6b3a", "#7fd19d"), "green"),
        Tone.NOTE: Look("note", Colour("#175a8a", "#7fbdea"), "cyan"),
        Tone.WARNING: Look("warning", Colour("#80560a", "#e6b95c"), "yellow"),
        Tone.ERROR: Look("error", Colour("#a3222b", "#f0898f"), "bold red"),
        Tone.QUIET: Look("quiet", Colour("#59626a", "#a3adb5"), "dim"),
    }
)

STATES: Mapping[str, Look] = MappingProxyType(
    {
        "used": Look("used", Colour("#d99a10", "#e0a526"), "yellow"),
        "lent": Look("on loan", Colour("#9a63c7", "#b98ae0"), "magenta"),
        "idle": Look("idle", Colour("#bfe3cb", "#3f7f57"), "green"),
        "draining": Look("draining", Colour("#8fc1d6", "#3f7890"), "cyan"),
        "down": Look("down", Colour("#c9545a", "#d0686d"), "red"),
    }
)
"""Where slices are, as parts of a whole. ``lent`` are those that jobs hold on borrowed quota: what
is lent and not held is idle.
"""

_BLUE, _ROSE = Colour("#175a8a", "#7fbdea"), Colour("#b3261e", "#ff8a80")
_GREY = Colour("#59626a", "#a3adb5")
FIGURES: Mapping[str, Look] = MappingProxyType(
    {
        "nominal": Look("nominal", _BLUE),
        "limit": Look("limit", _GREY, dashes=(12, 4)),
        "highest_limit": Look("highest limit", _GREY, dashes=(2, 4)),
        "in_use": Look("in use", Colour("#a86f00", "#e0a526")),
        "borrowed": Look("borrowed", Colour("#8650b8", "#b98ae0"), dashes=(7, 3)),
        "lent": Look("lent", Colour("#00796b", "#4cd6ac"), dashes=(2, 3)),
        "waiting": Look("waiting", _ROSE, dashes=(9, 3, 2, 3)),
        "budget_left": Look("budget left", _BLUE),
        "even_use": Look("left if used evenly", _GREY, dashes=(7, 3)),
        "ready": Look("ready", Colour("#1f6b3a", "#7fd19d")),
        "desired": Look("desired", _BLUE, dashes=(7, 3)),
        "backlog": Look("backlog", _ROSE),
        "in_flight": Look("in flight", _BLUE, dashes=(7, 3)),
        "p95": Look("95 %", Colour("#5b5fc7", "#a9acff")),
        "requests": Look("requests", _BLUE),
    }
)
"""Amounts over time, each a line: a tenant's in slices or slice-hours, a service's."""

START_PHASES: Mapping[str, Look] = MappingProxyType(
    {
        "notice": Look("notice", Colour("#a9cbe6", "#2f5f86"), "bright_blue"),
        "decide": Look("decide", Colour("#6ba3d0", "#4a86b8"), "blue"),
        "grant": Look("grant", Colour("#175a8a", "#7fbdea"), "cyan"),
        "queue": Look("queue", Colour("#e5bd62", "#8a6414"), "yellow"),
        "boot": Look("boot", Colour("#c2711c", "#d9a441"), "red"),
        "launch": Look("launch", Colour("#d99a10", "#b98418"), "bright_yellow"),
        "copy": Look("copy", Colour("#2f9c95", "#2f8f8a"), "bright_cyan"),
        "step": Look("step", Colour("#80560a", "#f0cf83"), "bright_red"),
        "load": Look("load", Colour("#1f6b3a", "#7fd19d"), "green"),
        "check": Look("check", Colour("#7cc596", "#3f7f57"), "bright_green"),
        "route": Look("route", Colour("#c7a3e2", "#70489a"), "bright_magenta"),
        "answer": Look("answer", Colour("#8650b8", "#b98ae0"), "magenta"),
        "ended": Look("ended", Colour("#b3261e", "#ff8a80"), "red"),
    }
)
"""Phases of a replica's start, as parts of a bar: one hue each for the launcher, Slurm, the copy of
the model, the engine and the gateway."""

SERIES: tuple[Look, ...] = (
    Look("", Colour("#0072b2", "#56b4e9")),
    Look("", Colour("#d55e00", "#ffa94d"), dashes=(7, 3)),
    Look("", Colour("#009e73", "#4cd6ac"), dashes=(2, 3)),
    Look("", Colour("#cc79a7", "#f0a6cc"), dashes=(9, 3, 2, 3)),
    Look("", Colour("#8a6d00", "#f0e442"), dashes=(4, 4)),
    Look("", Colour("#b3261e", "#ff8a80")),
    Look("", Colour("#5b5fc7", "#a9acff"), dashes=(1, 4)),
    Look("", Colour("#6b7075", "#b9bec4"), dashes=(12, 4)),
)
"""What has no look of its own, by its number: colours that the colour-blind tell apart, too."""

_WORDS: Mapping[Tone, tuple[str, ...]] = MappingProxyType(
    {
        Tone.GOOD: ("up", "ready", "done", "newest"),
        Tone.NOTE: ("hint", "reserved"),
        Tone.WARNING: (
            *("warning", "draining", "drains", "waking", "rolling", "starting", "started"),
            *("being replaced", "running", "abandoned", "rolled back", "recalled", "too fast"),
            *("loading", "leaving", "powering up"),
        ),
        Tone.ERROR: (
            *("error", "down", "failing", "failed", "unpaid", "no address", "gone", "lost"),
            *("stuck", "refused"),
        ),
        Tone.QUIET: (
            *("asleep", "held", "ending", "ended", "told to end", "skipped", "closed", "absent"),
            "powered down",
        ),
    }
)
CONDITIONS: Mapping[str, Tone] = MappingProxyType(
    {word: tone for tone, words in _WORDS.items() for word in words}
)
"""The tone of each word that says how a node, a service, a replica, a run or a loan stands."""


def style_of(condition: str) -> str:
    """Rich's style of a word of CONDITIONS."""
    return TONES[CONDITIONS[condition]].style
