"""Reads a tariff as operators write it, in TOML, and says whether it may be entered."""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.periods import clock_text, midnight_s
from slicewise.cluster.language.toml_text import read_toml
from slicewise.slurm_plugin.rules.accounting.tariff import (
    ANY_SERVICE,
    Tariff,
    TariffRecord,
    document,
    in_force,
)

EXAMPLE = """\
# What use costs from a midnight on, by [ledger] time_zone: the whole tariff, not only what changes.
# Prices have at most six decimals. What has no price costs nothing.
valid_from = 2027-01-01
currency = "EUR"

[prices]
slice_hour = 0.35
slice_hour_by_type = { "3g.40gb" = 0.40 }
# Tokens and requests are charged beside slice-hours: price either those or these of a service.
# million_prompt_tokens = 0.10
# million_cached_prompt_tokens = 0.02
# million_output_tokens = 0.40
# thousand_requests = 0.05
# What meters measured of boards that a job had for itself, and of a job's part of others, which is
# an estimate. What boards take idle is charged to nobody.
# kwh = 0.30
# shared_kwh = 0.30

# Tenants with prices of their own, and all below them; what is left out is as above. A class's
# slice_hour is for each type that it does not name, its million_prompt_tokens for cached ones, too.
# [classes.external]
# tenants = ["acme"]
# prices = { slice_hour = 0.90, slice_hour_by_type = { "3g.40gb" = 1.00 } }

# Hours in which slice-hours cost a multiple of their price. Of several the first counts.
# [[windows]]
# name = "weekend"
# days = "sat-sun"
# factor = 0.6

# [[windows]]
# name = "night"
# begin = "22:00"
# end = "06:00"
# factor = 0.5

# What a million tokens of a service would cost elsewhere: shown beside yours. "*" is all others.
# [list_prices]
# "science/chat" = 0.60

# What a tenant and those below it should not exceed: an alarm, nothing ends for it.
# [budgets.vision]
# amount = 500
# period = "month"
# warn_at = 0.8
"""

_HINT = "See: slicewise tariff apply --example"
_VALID_FROM = "valid_from"
_ZONE = "time_zone"
_MOST_FAULTS = 20


@dataclass(frozen=True)
class EnteredTariff:
    """A tariff and the midnight from which on it is to hold, in Unix seconds."""

    valid_from_s: int
    tariff: Tariff


def read_tariff(file: str, text: str, zone: str) -> EnteredTariff:
    """Read a file's text. Raises InvalidInputError (SW-INPUT-FILE) with all that is wrong."""
    try:
        content = dict(read_toml(text, parse_float=Decimal))
    except ValueError as error:
        raise _refused(file, f"it is not TOML: {error}.") from None
    valid_from_s = midnight_s(content.pop(_VALID_FROM, None), zone)
    if valid_from_s is None:
        raise _refused(file, f"{_VALID_FROM}: give a date, such as 2027-01-01.")
    if _ZONE in content:
        raise _refused(file, f"{_ZONE}: it is that of the ledger, leave it out.")
    try:
        tariff = Tariff.model_validate({**content, _ZONE: zone})
    except ValidationError as error:
        raise _refused(file, "; ".join(_faults(error, content)) + ".") from None
    return EnteredTariff(valid_from_s, tariff)


_WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such key",
    "tuple_type": 'write a list, such as ["acme"]',
    "mapping_type": "write a table",
    "model_type": "write a table",
}
"""By pydantic's kind of fault, where its own words are for programmers."""


def _faults(error: ValidationError, content: Mapping[str, Any]) -> Iterator[str]:
    for fault in error.errors()[:_MOST_FAULTS]:
        place = ".".join(_named(fault["loc"], content))
        message = _WORDS.get(fault["type"], str(fault["msg"]).removeprefix("Value error, "))
        message = re.sub(r"^(Decimal i|I)nput should", "it should", message)
        yield f"{place}: {message}" if place else message


def _named(place: Sequence[str | int], content: Any) -> Iterator[str]:
    """The place's keys; an entry of a list goes by its name where it has one."""
    for key in place:
        try:
            content = content[key]
        except (LookupError, TypeError):
            content = None
        name = content.get("name") if isinstance(content, Mapping) else None
        yield name if isinstance(key, int) and isinstance(name, str) else str(key)


def _refused(file: str, why: str) -> InvalidInputError:
    return InvalidInputError(Code.INPUT_FILE, f"{file}: {why}", f"Nothing was changed. {_HINT}")


def check_entry(
    entered: EnteredTariff, records: Sequence[TariffRecord], now_s: float, zone: str
) -> None:
    """Raise InvalidInputError (SW-VALUE) if it would price anew what was used, or have another
    currency or time zone than those from other moments on. Tariffs that were replaced don't count.
    """
    if records and entered.valid_from_s < now_s:
        raise InvalidInputError(
            Code.VALUE,
            f"{_VALID_FROM} is {clock_text(entered.valid_from_s, zone)}, which is past: only a"
            " cluster's first tariff may begin in the past.",
            "Nothing that was used is priced anew: give tomorrow or a later day.",
        )
    moments = {record.valid_from_s for record in records} - {entered.valid_from_s}
    held = [record.tariff for at_s in moments if (record := in_force(records, at_s))]
    if zones := {tariff.time_zone for tariff in held} - {entered.tariff.time_zone, ""}:
        raise InvalidInputError(
            Code.VALUE,
            f"[ledger] time_zone is {entered.tariff.time_zone}, and the cluster's tariffs go by"
            f" {', '.join(sorted(zones))}: what was used has its days and nights by that.",
            "Set [ledger] time_zone back.",
        )
    if others := {tariff.currency for tariff in held} - {entered.tariff.currency}:
        raise InvalidInputError(
            Code.VALUE,
            f"currency is {entered.tariff.currency}, and the cluster's tariffs are in"
            f" {', '.join(sorted(others))}: amounts of two currencies have no sum.",
            "Give prices in that one. Another currency begins with another cluster name.",
        )


@dataclass(frozen=True)
class TariffChange:
    """A key that differs; None is no value."""

    key: str
    before: str | None
    after: str | None


def changes(entered: EnteredTariff, records: Sequence[TariffRecord]) -> tuple[TariffChange, ...]:
    """How it differs from what would hold then without it, key by key, in order."""
    record = in_force(records, entered.valid_from_s)
    before = flat(record.tariff) if record else {}
    after = flat(entered.tariff)
    return tuple(
        TariffChange(key, before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def flat(tariff: Tariff) -> Mapping[str, str]:
    """Every value of a tariff by its key, such as ``windows.night.factor``."""
    return dict(_flat({key: it for key, it in document(tariff).items() if key != _ZONE}))


def unknown_names(
    tariff: Tariff, tenants: Container[str], types: Container[str]
) -> tuple[str, ...]:
    """Names of tenants and GPU types by which nothing will be priced now, each with its place."""
    priced = [("prices", tariff.prices)]
    priced += [(f"classes.{name}.prices", each.prices) for name, each in tariff.classes.items()]
    named = [(f"classes.{name}", each.tenants) for name, each in tariff.classes.items()]
    named += [("budgets", (*tariff.budgets,)), ("list_prices", (*tariff.list_prices,))]
    return (
        *(
            f"{where}: {name}"
            for where, each in priced
            for name in each.slice_hour_by_type
            if name not in types
        ),
        *(
            f"{where}: {name}"
            for where, names in named
            for name in names
            if name != ANY_SERVICE and name.partition("/")[0] not in tenants
        ),
    )


def _flat(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for item in value:
            yield from _flat(
                {key: it for key, it in item.items() if key != "name"}, f"{at}.{item['name']}"
            )
    elif isinstance(value, list):
        if value:
            yield at, ", ".join(map(str, value))
    else:
        yield at, str(value)
