"""Tariffs and what is priced by them."""

from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from slicewise.cluster.language.toml_text import read_toml
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook, Tariff, TariffRecord

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


def book_of(*found: tuple[int, Tariff], zone: str = BERLIN) -> PriceBook:
    """Tariffs with the moments from which on they hold, and no tenant below another."""
    records = [record(place, at_s, each) for place, (at_s, each) in enumerate(found, 1)]
    return PriceBook(records, {}, zone)
