"""Posts charges so that one which the ledger refuses keeps no other back."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from slicewise.cluster.language.errors import OutsideError
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import Charge, RunKey

_MOST_REFUSED = 16
"""Refused charges of one tenant after which its other charges wait for the next time."""

_MOST_PAYERS = 16
"""Budgets with refused charges, and none booked, after which the cause may not be what the charges
say: one charge of each other tenant is then tried to find out."""


@dataclass(frozen=True)
class Posted:
    """The result of posting charges.

    Attributes:
        booked: runs that the charges changed.
        refused: runs that can't be booked, with the error; nothing of them was written.
    """

    booked: frozenset[RunKey]
    refused: Mapping[RunKey, OutsideError] = field(default_factory=dict)


def post(ledger: Ledger, charges: Sequence[Charge]) -> Posted:
    """Post all charges together; if that is refused, post halves, down to the refused charges.

    A tenant's refused charges keep no other tenant's back. Finding one takes a number of statements
    logarithmic in the number of charges; once ``_MOST_REFUSED`` of a tenant are found, its others
    are not tried and get the last one's error. Raises UnreachableError as ``Charges.post`` does,
    and OutsideError if charges of ``_MOST_PAYERS`` payers, and one of each other tenant, are
    refused and nothing is booked.
    """
    booked: set[RunKey] = set()
    refused: dict[RunKey, OutsideError] = {}
    by_tenant: Counter[str] = Counter()
    payers: set[str] = set()
    last: dict[str, OutsideError] = {}
    left = [sorted(charges, key=lambda charge: (charge.run.tenant, charge.run.key))]
    while left:
        some = left.pop()
        given_up = [charge for charge in some if by_tenant[charge.run.tenant] >= _MOST_REFUSED]
        refused |= {charge.run.key: last[charge.run.tenant] for charge in given_up}
        some = [charge for charge in some if charge.run.key not in refused]
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
            payers.add(some[0].run.payer)
            if len(payers) >= _MOST_PAYERS and not booked:
                booked |= _first_booked(ledger, charges, by_tenant)
                if not booked:
                    raise
    return Posted(frozenset(booked), refused)


def _first_booked(
    ledger: Ledger, charges: Sequence[Charge], tried: Collection[str]
) -> frozenset[RunKey]:
    """Try one charge of each tenant not in ``tried``; what the first success booked, if any."""
    untried = {charge.run.tenant: charge for charge in charges if charge.run.tenant not in tried}
    for run in untried.values():
        with suppress(OutsideError):
            if booked := ledger.charges.post([run]):
                return booked
    return frozenset()
