"""Amounts of slices, counted in integer thousandths (millislices), and their text form."""

import re
from decimal import Decimal
from typing import NewType

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

Millislices = NewType("Millislices", int)
"""Thousandths of a slice; a slice is one seventh of a GPU of weight 1."""

MillisliceSeconds = NewType("MillisliceSeconds", int)
"""Millislices times seconds: the exact unit in which the ledger counts use."""

GPU_MILLISLICES = Millislices(7000)
"""Millislices of a whole GPU of weight 1."""


_SLICES = re.compile(r"[0-9]{1,7}(\.[0-9]{1,3})?")


def millislices_from_text(text: str, key: str) -> Millislices:
    """Convert slices as a user writes them ("3.5") exactly into millislices.

    Raises InvalidInputError (SW-VALUE) naming ``key`` for anything that is not a number of slices
    with at most three decimals.
    """
    if not _SLICES.fullmatch(text):
        raise InvalidInputError(
            Code.VALUE,
            f"{key}: {text!r} is not a number of slices.",
            "Give slices from 0 to 1000000 with at most three decimals, such as 3.5 (a GPU has 7).",
        )
    return Millislices(int(Decimal(text) * 1000))


def slices_text(amount: int) -> str:
    """Format millislices as slices without trailing zeros: 3500 is "3.5", 4000 is "4"."""
    text = f"{Decimal(amount) / 1000:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def slices_words(amount_millislices: int) -> str:
    """Format millislices with the unit's name: ``1 slice``, ``3.5 slices``."""
    text = slices_text(amount_millislices)
    return f"{text} slice" if text == "1" else f"{text} slices"


def counted(count: int, noun: str) -> str:
    """A count with its noun: ``1 job``, ``1,200 jobs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bytes_text(amount: float) -> str:
    """Format bytes in the largest unit of which they are one at least: ``4.4 GiB``, ``12 B``."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if amount >= size:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:.0f} B"
