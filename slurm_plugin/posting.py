"""Posts charges; one that the ledger refuses keeps no other back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.errors import OutsideError
from slurm_plugin.decide.model import Charge, RunKey

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger

_MOST_REFUSED = 16
"""Where more are refused than that, it is not for what they say."""


@dataclass(frozen=True)
class Posted:
    """What became of charges.

    Attributes:
        booked: runs that they changed.
        refused: those that can't be booked, and why; of their runs nothing was written.
    """

    booked: frozenset[RunKey]
    refused: Mapping[RunKey, OutsideError] = field(default_factory=dict)


def post(ledger: "Ledger", charges: Sequence[Charge]) -> Posted:
    """All at once; if that is refused, in halves, until those are alone that can't be booked.

    Raises UnreachableError as ``Charges.post`` does, and OutsideError if it refuses very many.
    """
    booked: set[RunKey] = set()
    refused: dict[RunKey, OutsideError] = {}
    left = [charges]
    while left:
        some = left.pop()
        try:
            booked |= ledger.charges.post(some)
        except OutsideError as error:
            if len(some) > 1:
                half = len(some) // 2
                left += [some[half:], some[:half]]
                continue
            refused[some[0].run.key] = error
            if len(refused) > _MOST_REFUSED:
                raise
    return Posted(frozenset(booked), refused)
