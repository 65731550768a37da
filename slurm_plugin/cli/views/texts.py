"""Texts and columns that the operator's tables share."""

from collections.abc import Iterable
from decimal import Decimal

from rich.text import Text

from slicewise.cluster.language.meters import SLICES, Meter
from slicewise.cluster.language.units import slices_text
from slicewise.cluster.runtime.console import Column, column, time_text

NOTHING = Text("–", style="dim")

_TIME, _BRIEF_TIME = "%Y-%m-%d %H:%M:%S", "%m-%d %H:%M:%S"


def took_text(took_s: float | None, digits: int = 1) -> object:
    """Write how many seconds something took; nothing while it is under way."""
    return NOTHING if took_s is None else f"{took_s:.{digits}f}"


def reset_text(second: int | None) -> str:
    """Write when a budget's next period begins, as local time with its zone, or ``never``.

    An example: ``2026-12-01 00:00 UTC``.
    """
    return "never" if second is None else time_text(second, "%Y-%m-%d %H:%M %Z")


def times_column(heading: str, seconds: Iterable[int | None], rank: int = 0) -> Column:
    """A column of times; None, the end of a running job, is ``running``.

    Narrow terminals leave the year out.
    """
    known = tuple(seconds)
    whole, brief = (
        ["running" if second is None else time_text(second, form) for second in known]
        for form in (_TIME, _BRIEF_TIME)
    )
    return column(heading, whole, brief=brief, rank=rank)


def slice_seconds_text(amount_millislice_s: int) -> str:
    """Slice-seconds to the millislice-second: ``12,345.500``."""
    return f"{Decimal(amount_millislice_s) / 1000:,.3f}"


def slice_hours_text(amount_millislice_s: int) -> str:
    """Slice-hours, rounded: ``3.43``."""
    return f"{Decimal(amount_millislice_s) / SLICES.scale:,.2f}"


def amount_change_text(amount: int, meter: Meter) -> str:
    """``100 slice-hours more`` or ``2.5 slice-hours less``."""
    direction = "more" if amount > 0 else "less"
    return f"{meter.text(abs(amount))} {meter.unit} {direction}"


def amount_text(amount: int, meter: Meter) -> str:
    """Slice-hours, rounded: ``3.43``; whole tokens: ``1,000``."""
    return slice_hours_text(amount) if meter is SLICES else meter.text(amount)


def amount_cell(amount: int, meter: Meter) -> Text:
    """The same, red below zero."""
    return Text(amount_text(amount, meter), style="red" if amount < 0 else "")


def hours_cell(amount_millislice_s: int) -> Text:
    """Slice-hours, red below zero."""
    return amount_cell(amount_millislice_s, SLICES)


def slices_cells(amounts_millislices: Iterable[int]) -> Iterable[str]:
    """Slices, one cell each."""
    return map(slices_text, amounts_millislices)
