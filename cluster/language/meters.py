"""What the ledger counts: a meter is declared here once; all are booked and verified alike.

Amounts are whole numbers of a meter's own unit, so that no sum is ever rounded.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError

MOST = 36 * 10**14
"""Of one budget or transfer, on any meter; a bigint holds thousands of such amounts."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{1,9})?")


@dataclass(frozen=True)
class Meter:
    """One thing that is counted.

    Attributes:
        name: in the ledger's rows, which keep it for ever.
        unit: in which people read and write amounts.
        scale: so many of the ledger's units are one of these.
    """

    name: str
    unit: str
    scale: int

    def amount(self, text: str, key: str) -> int:
        """Read an amount exactly, which may have a sign. Raises InvalidInputError (SW-VALUE)."""
        exact = Fraction(text) * self.scale if _NUMBER.fullmatch(text) else None
        if exact is None or exact.denominator != 1:
            raise InvalidInputError(
                Code.VALUE,
                f"{key}: {text!r} is not a number of {self.unit}.",
                f"Give {self.unit} in digits, such as 1000; the least is 1/{self.scale:,}.",
            )
        if abs(exact) > MOST:
            raise InvalidInputError(
                Code.VALUE,
                f"{key}: {text} {self.unit} are out of range.",
                f"At most {MOST // self.scale:,}.",
            )
        return exact.numerator

    def text(self, amount: int) -> str:
        """``1,000``, ``0.5``; five decimals at most."""
        text = f"{Decimal(amount) / self.scale:,.5f}"
        return text.rstrip("0").rstrip(".")


SLICES = Meter("slice-seconds", "slice-hours", 3_600_000)
"""What runs hold of GPUs, in millislice-seconds; Slurm's accounting says how long."""

PROMPT_TOKENS = Meter("prompt-tokens", "tokens", 1)
"""Tokens of prompts, those that the engine had in its cache included."""
CACHED_PROMPT_TOKENS = Meter("cached-prompt-tokens", "tokens", 1)
"""The part of them that the engine had in its cache."""
OUTPUT_TOKENS = Meter("output-tokens", "tokens", 1)
TOKENS = Meter("tokens", "tokens", 1)
"""Tokens of prompts and answers together, as limits count them: what a budget of tokens is of."""
REQUESTS = Meter("requests", "requests", 1)

ENERGY = Meter("millijoules", "kWh", 3_600_000_000)
"""What boards took for a run that held all that was held of them."""
SHARED_ENERGY = Meter("shared-millijoules", "kWh", 3_600_000_000)
"""A run's part of boards that several held: an estimate."""

USAGE = (PROMPT_TOKENS, CACHED_PROMPT_TOKENS, OUTPUT_TOKENS, TOKENS, REQUESTS)
"""What each record of usage is counted on. Another is declared here, and says in the ledger's
``slicewise.use_tokens`` what a record has of it; balances, seals and ``verify`` are then its own.
"""

BUDGETED = {meter.name: meter for meter in (SLICES, TOKENS)}
"""Of what a tenant may have a budget, by name."""


def meter_named(name: str) -> Meter:
    """Of what a budget is; of a newer release's meter the amount is shown as the ledger has it."""
    return BUDGETED.get(name) or Meter(name, name, 1)
