"""Reads days of the week and times of day in operators' words."""

import re
from collections.abc import Iterator

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.rules.quota.calendar import DAYS, WEEK_DAYS

_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_MIDNIGHT = "24:00"


def days_from_text(text: str) -> frozenset[int]:
    """Read ``mon-fri``, ``sat,sun`` or ``fri-mon``; 0 is Monday.

    Raises InvalidInputError (SW-VALUE).
    """
    return frozenset(day for part in text.lower().split(",") for day in _days(part.strip()))


def _days(part: str) -> Iterator[int]:
    first, _, last = part.partition("-")
    if first not in DAYS or (last or first) not in DAYS or part.endswith("-"):
        raise InvalidInputError(
            Code.VALUE,
            f"{part!r} is not a day of the week.",
            f"Write {', '.join(DAYS)}, or mon-fri.",
        )
    begin, end = DAYS.index(first), DAYS.index(last or first)
    yield from ((begin + number) % WEEK_DAYS for number in range((end - begin) % WEEK_DAYS + 1))


def minute_from_text(text: str, key: str, *, ends: bool) -> int:
    """Read ``08:30`` as minutes of the day; 24:00, as 0, is allowed only if it ``ends`` a window.

    Raises InvalidInputError (SW-VALUE) naming ``key``.
    """
    match = _CLOCK.fullmatch(text)
    if match is None and not (ends and text == _MIDNIGHT):
        raise InvalidInputError(
            Code.VALUE, f"{key} {text!r} is not a time of day.", "Write it as 08:30."
        )
    return int(match[1]) * 60 + int(match[2]) if match else 0
