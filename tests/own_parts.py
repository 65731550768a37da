"""Ledgers of tests that are each of the ledger's parts themselves."""

from typing import Any

from slurm_plugin.calendar_times import moment
from slurm_plugin.decide.books import Books

PARTS = (
    "tenants",
    "windows",
    "loans",
    "limits",
    "charges",
    "budgets",
    "audit",
    "orders",
    "keys",
    "recuts",
    "rebalances",
    "locks",
)


class OwnParts:
    """``ledger.charges.post`` is its own ``post``, and so with all the others.

    What it lacks of the books is empty.
    """

    def books(self, at_s: float, zone: str) -> Books:
        return Books(
            when=moment(at_s, zone),
            change_id=self._of("change_id", 0),
            compiled_id=getattr(self, "compiled_id", 0),
            tenants=self._of("policy", {}),
            windows=self._of("not_over", ()),
            loans=self._of("outstanding", ()),
            recalls=self._of("recalls", ()),
            balances=self._of("balances", {}),
            rolls=self._of("rolls", {}),
            reservations=self._of("open_reservations", ()),
            known=self._of("known", {}),
        )

    def _of(self, name: str, otherwise: Any) -> Any:
        return getattr(self, name)() if hasattr(self, name) else otherwise


def _self(self: OwnParts) -> OwnParts:
    return self


for _name in PARTS:
    setattr(OwnParts, _name, property(_self))
