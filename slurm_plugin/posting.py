"""Posts charges; one that the ledger refuses keeps no other back."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.errors import OutsideError
from slurm_plugin.decide.model import Charge, RunKey

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger

_MOST_REFUSED = 16
"""Where more of one tenant are refused, the rest of them wait for the next time."""

_MOST_TENANTS = 16
"""Where so many tenants are refused and none is booked, it is not for what the charges say."""


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

    A tenant's refused charges keep no other tenant's back. To find one takes statements by the
    logarithm of how many charges there are; once ``_MOST_REFUSED`` of a tenant are found, its
    others are not tried, and have the last one's reason. Raises UnreachableError as
    ``Charges.post`` does, and OutsideError if ``_MOST_TENANTS`` are refused and nothing is booked.
    """
    booked: set[RunKey] = set()
    refused: dict[RunKey, OutsideError] = {}
    by_tenant: Counter[str] = Counter()
    last: dict[str, OutsideError] = {}
    left = [sorted(charges, key=lambda one: (one.run.tenant, one.run.key))]
    while left:
        some = left.pop()
        given_up = [one for one in some if by_tenant[one.run.tenant] >= _MOST_REFUSED]
        refused |= {one.run.key: last[one.run.tenant] for one in given_up}
        some = [one for one in some if one.run.key not in refused]
        if not some:
            continue
        try:
            booked |= ledger.charges.post(some)
        except OutsideError as error:
            if len(some) > 1:
                half = len(some) // 2
                left += [some[half:], some[:half]]
                continue
            tenant = some[0].run.tenant
            refused[some[0].run.key] = last[tenant] = error
            by_tenant[tenant] += 1
            if len(by_tenant) >= _MOST_TENANTS and not booked:
                raise
    return Posted(frozenset(booked), refused)
