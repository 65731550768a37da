"""Ledgers for tests, where one object is also each of the ledger's parts."""

from typing import Any

from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.money_budgets import Spent
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook, TariffRecord
from slicewise.slurm_plugin.rules.accounting.tariff_file import EnteredTariff
from slicewise.slurm_plugin.rules.quota.calendar import Moment
from slicewise.slurm_plugin.rules.quota.calendar_times import moment

PARTS = (
    "tenants",
    "windows",
    "loans",
    "limits",
    "charges",
    "budgets",
    "audit",
    "orders",
    "generations",
    "keys",
    "request_limits",
    "guests",
    "repartitions",
    "rebalances",
    "locks",
    "observations",
)


def ledger_view_of(when: Moment, **parts: Any) -> LedgerView:
    """A ledger's view; parts that are not given are empty."""
    empty: dict[str, Any] = {
        "change_id": 0,
        "compiled_id": 0,
        "tenants": {},
        "windows": (),
        "loans": (),
        "recalls": (),
        "balances": {},
        "rollovers": {},
        "reservations": (),
        "known": {},
    }
    return LedgerView(when, **{**empty, **parts})


class NoShares:
    """No service is shared."""

    def due(self, *_: Any) -> tuple[()]:
        return ()

    def lines(self, *_: Any) -> tuple[()]:
        return ()

    def paid_since(self, *_: Any) -> int:
        return 0


class NoPools:
    """No replica is shared."""

    def due(self, *_: Any) -> tuple[()]:
        return ()

    def divide(self, *_: Any) -> int:
        return 0

    def forget(self) -> int:
        return 0


class KeptTariffs:
    """Tariffs, and nothing that was shared or asked."""

    def __init__(self, *found: TariffRecord) -> None:
        self.found = list(found)
        self.spent_sums: tuple[Spent, ...] = ()

    def enter(self, entered: EnteredTariff, author: str, reason: str, _zone: str) -> TariffRecord:
        place = len(self.found) + 1
        record = TariffRecord(place, entered.valid_from_s, entered.tariff, author, reason, 0)
        self.found.append(record)
        return record

    def records(self) -> tuple[TariffRecord, ...]:
        return tuple(self.found)

    def zone(self, ledger_zone: str) -> str:
        return ledger_zone

    def book(self, zone: str) -> PriceBook:
        return PriceBook(self.found, {}, zone)

    def spent(self, *_: Any) -> tuple[Spent, ...]:
        return self.spent_sums

    def passed_on(self, *_: Any) -> tuple[()]:
        return ()

    def pooled(self, *_: Any) -> tuple[()]:
        return ()

    def requests(self, *_: Any) -> tuple[()]:
        return ()


class LedgerParts:
    """A ledger that is each of its parts: ``ledger.charges.post`` is its own ``post``, and so on.

    Parts of the books that it lacks are empty.
    """

    shares = NoShares()
    pools = NoPools()
    tariffs = KeptTariffs()

    def view(self, at_s: float, zone: str) -> LedgerView:
        names = {
            "change_id": "change_id",
            "tenants": "policy",
            "windows": "not_over",
            "loans": "outstanding",
            "recalls": "recalls",
            "balances": "balances",
            "rollovers": "rollovers",
            "reservations": "open_reservations",
            "known": "known",
        }
        parts = {part: getattr(self, name)() for part, name in names.items() if hasattr(self, name)}
        return ledger_view_of(
            moment(at_s, zone), compiled_id=getattr(self, "compiled_id", 0), **parts
        )


def _self(self: LedgerParts) -> LedgerParts:
    return self


for _name in PARTS:
    setattr(LedgerParts, _name, property(_self))
