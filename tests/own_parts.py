"""Ledgers for tests, where one object is also each of the ledger's parts."""

from typing import Any

from slurm_plugin.accounting.ledger_view import Books
from slurm_plugin.quota.calendar import Moment
from slurm_plugin.quota.calendar_times import moment

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


def books_of(when: Moment, **parts: Any) -> Books:
    """A ledger's books; parts that are not given are empty."""
    empty: dict[str, Any] = {
        "change_id": 0,
        "compiled_id": 0,
        "tenants": {},
        "windows": (),
        "loans": (),
        "recalls": (),
        "balances": {},
        "rolls": {},
        "reservations": (),
        "known": {},
    }
    return Books(when, **{**empty, **parts})


class OwnParts:
    """A ledger that is each of its parts: ``ledger.charges.post`` is its own ``post``, and so on.

    Parts of the books that it lacks are empty.
    """

    def books(self, at_s: float, zone: str) -> Books:
        names = {
            "change_id": "change_id",
            "tenants": "policy",
            "windows": "not_over",
            "loans": "outstanding",
            "recalls": "recalls",
            "balances": "balances",
            "rolls": "rolls",
            "reservations": "open_reservations",
            "known": "known",
        }
        parts = {part: getattr(self, name)() for part, name in names.items() if hasattr(self, name)}
        return books_of(moment(at_s, zone), compiled_id=getattr(self, "compiled_id", 0), **parts)


def _self(self: OwnParts) -> OwnParts:
    return self


for _name in PARTS:
    setattr(OwnParts, _name, property(_self))
