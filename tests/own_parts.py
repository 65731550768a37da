"""Ledgers of tests that are each of the ledger's parts themselves."""

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
    """``ledger.charges.post`` is its own ``post``, and so with all the others."""


def _self(self: OwnParts) -> OwnParts:
    return self


for _name in PARTS:
    setattr(OwnParts, _name, property(_self))
