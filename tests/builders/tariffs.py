"""Tariffs and what is priced by them."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from slicewise.cluster.language.toml_text import read_toml
from slicewise.slurm_plugin.api import charge_reads
from slicewise.slurm_plugin.common.tariff_requests import ChargeCursor
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    PriceSpan,
    Tariff,
    TariffRecord,
)

BERLIN = "Europe/Berlin"


def local_s(text: str, zone: str = BERLIN) -> int:
    """The Unix second of a local time such as ``2026-10-25 00:00``."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def tariff(text: str = "", slice_hour: str = "0.36") -> Tariff:
    """A tariff in euros: further TOML than the price of a slice-hour."""
    head: dict[str, Any] = {"currency": "EUR", "prices": {"slice_hour": slice_hour}}
    return Tariff.model_validate({**head, **read_toml(text, parse_float=Decimal)})


def record(tariff_id: int, valid_from_s: int, found: Tariff) -> TariffRecord:
    return TariffRecord(tariff_id, valid_from_s, found, "olga", "prices", 0)


def all_charges(
    ledger: Ledger, wanted: WantedCharges, spans: Sequence[PriceSpan], book: PriceBook, now_s: int
) -> Iterator[ChargeLine]:
    """What pages of charges have together."""
    for lines, _ in charge_pages(ledger, wanted, spans, book, now_s):
        yield from lines


def charge_pages(
    ledger: Ledger, wanted: WantedCharges, spans: Sequence[PriceSpan], book: PriceBook, now_s: int
) -> Iterator[tuple[Sequence[ChargeLine], ChargeCursor | None]]:
    """Each page of charges, and where it ends."""
    after: ChargeCursor | None = ChargeCursor(part="runs", now_s=now_s)
    while after is not None:
        lines, after = charge_reads._page(charge_reads._Read(ledger, wanted, spans, book), after)
        yield lines, after


def book_of(*found: tuple[int, Tariff], zone: str = BERLIN) -> PriceBook:
    """Tariffs with the moments from which on they hold, and no tenant below another."""
    records = [record(place, at_s, each) for place, (at_s, each) in enumerate(found, 1)]
    return PriceBook(records, {}, zone)
