"""Adds charges up to invoices: by person, service, tenant, day, and what a payer owes in all."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Literal, get_args

from slicewise.cluster.language.currencies import minor_digits
from slicewise.cluster.language.meters import (
    CACHED_PROMPT_TOKENS,
    ENERGY,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    SHARED_ENERGY,
    SLICES,
)
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine
from slicewise.slurm_plugin.rules.accounting.tariff import MILLIONTHS, money

_TOKENS = frozenset({PROMPT_TOKENS.name, CACHED_PROMPT_TOKENS.name, OUTPUT_TOKENS.name})
InvoiceGroup = Literal["person", "service", "tenant", "day", "month"]
INVOICE_GROUPS: tuple[InvoiceGroup, ...] = get_args(InvoiceGroup)


@dataclass(frozen=True)
class InvoiceSum:
    """The sum of a payer's charges that are of one person, service, tenant, day or month.

    Attributes:
        key: what they have in common; "" for jobs of no service.
        millislice_s: of slices, shares and pools included.
        prompt_tokens: cached ones included, which are a part of them.
        millionths: of the currency; None if there was no tariff for any of it.
        priced_tokens: tokens for which there was a tariff.
        list_millionths: what its tokens would cost by list prices; None without a list price.
        listed_tokens: tokens that have a list price.
        energy_mj: runs' joules that have a price, in millijoules.
    """

    payer: str
    key: str
    millislice_s: MillisliceSeconds
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    millionths: int | None
    priced_tokens: int = 0
    list_millionths: int | None = None
    listed_tokens: int = 0
    energy_mj: int = 0


@dataclass(frozen=True)
class Payable:
    """What a payer owes in all.

    Attributes:
        millionths: the sum of its lines.
        rounding_millionths: what is added to come to whole minor units, half to even.
        payable: in the currency, as ``1234.50``.
    """

    payer: str
    millionths: int
    rounding_millionths: int
    payable: str


@dataclass(frozen=True)
class Invoice:
    """What charges add up to.

    Attributes:
        sums: by what they are about.
        payables: what each payer owes.
        free_days: on how many days something was used for which there was no tariff.
    """

    sums: Mapping[InvoiceGroup, tuple[InvoiceSum, ...]] = field(hash=False)
    payables: tuple[Payable, ...]
    free_days: int


def invoice_of(lines: Sequence[ChargeLine], currency: str) -> Invoice:
    """Add up by everything. ``lines`` are ``merged``."""
    return Invoice(
        {by: invoice_sums(lines, by) for by in INVOICE_GROUPS},
        payables(lines, currency),
        free_days(lines),
    )


def invoice_sums(lines: Iterable[ChargeLine], by: InvoiceGroup) -> tuple[InvoiceSum, ...]:
    """One for each payer and what the lines are about, in order; they add up to the payables.

    ``lines`` are ``merged``.
    """
    parts: dict[tuple[str, str], list[ChargeLine]] = defaultdict(list)
    for line in lines:
        parts[line.of.payer, _key(line, by)].append(line)
    return tuple(_sum(payer, key, parts[payer, key]) for payer, key in sorted(parts))


def _key(line: ChargeLine, by: InvoiceGroup) -> str:
    charged = line.of
    keys: Mapping[InvoiceGroup, str] = {
        "person": charged.user,
        "service": f"{charged.owner or charged.tenant}/{charged.service}"
        if charged.service
        else "",
        "tenant": charged.tenant,
        "day": charged.day,
        "month": charged.day[: len("2026-01")],
    }
    return keys[by]


def _sum(payer: str, key: str, lines: Sequence[ChargeLine]) -> InvoiceSum:
    amounts: dict[str, int] = defaultdict(int)
    for line in lines:
        amounts[line.of.meter] += line.amount
    priced = [line for line in lines if line.of.price is not None]
    listed = [
        (line, money(line.of.meter, line.amount, line.of.list_price))
        for line in lines
        if line.of.list_price is not None
    ]
    cached = amounts[CACHED_PROMPT_TOKENS.name]
    return InvoiceSum(
        *(payer, key, MillisliceSeconds(amounts[SLICES.name]), amounts[REQUESTS.name]),
        *(amounts[PROMPT_TOKENS.name] + cached, cached, amounts[OUTPUT_TOKENS.name]),
        sum(line.millionths or 0 for line in priced) if priced else None,
        _tokens(priced),
        sum(costs for _, costs in listed) if listed else None,
        _tokens(line for line, _ in listed),
        amounts[ENERGY.name] + amounts[SHARED_ENERGY.name],
    )


def _tokens(lines: Iterable[ChargeLine]) -> int:
    return sum(line.amount for line in lines if line.of.meter in _TOKENS)


def payables(lines: Iterable[ChargeLine], currency: str) -> tuple[Payable, ...]:
    """What each payer owes, by name: the sum of its lines, rounded once."""
    sums: dict[str, int] = defaultdict(int)
    for line in lines:
        sums[line.of.payer] += line.millionths or 0
    return tuple(_payable(payer, sums[payer], currency) for payer in sorted(sums))


def _payable(payer: str, millionths: int, currency: str) -> Payable:
    unit = Decimal(1).scaleb(-minor_digits(currency))
    owed = (Decimal(millionths) / MILLIONTHS).quantize(unit, ROUND_HALF_EVEN)
    # Adding 0 makes an amount that is rounded up to nothing 0.00, not -0.00.
    return Payable(payer, millionths, int(owed * MILLIONTHS) - millionths, f"{owed + 0:f}")


def priced_lines(lines: Iterable[ChargeLine]) -> tuple[ChargeLine, ...]:
    """Without what was asked of meters that have no price."""
    return tuple(line for line in lines if line.of.kind != "request" or line.of.price)


def free_days(lines: Iterable[ChargeLine]) -> int:
    """On how many days something was used for which there was no tariff."""
    return len({line.of.day for line in lines if line.of.price is None})


INVOICE_FIELDS = ("month", "currency", *(each.name for each in fields(InvoiceSum)), "payer_payable")
"""Columns of an invoice's CSV."""


def invoice_rows(
    sums: Iterable[InvoiceSum], payables: Iterable[Payable], month: str, currency: str
) -> Iterator[Mapping[str, object]]:
    """The CSV's rows: each sum, with what its payer owes in all."""
    owed = {each.payer: each.payable for each in payables}
    for each in sums:
        of_all = {"month": month, "currency": currency}
        yield {**of_all, **vars(each), "payer_payable": owed[each.payer]}


def money_text(millionths: int, places: int = 2) -> str:
    """An exact amount in the currency, as ``1,234.50`` or ``0.000125``, with so many decimals or
    more.
    """
    whole, part = f"{Decimal(millionths) / MILLIONTHS:,.6f}".split(".")
    return f"{whole}.{part[:places]}{part[places:].rstrip('0')}"


def money_places(amounts: Iterable[int | None]) -> int:
    """The most decimals that one of these amounts has in ``money_text``."""
    texts = (money_text(amount or 0) for amount in amounts)
    return max((len(text.partition(".")[2]) for text in texts), default=2)


def per_million_tokens(line: InvoiceSum) -> int | None:
    """Millionths of the currency that a million tokens cost; None where none were counted."""
    return _per_million(line.millionths, line.priced_tokens)


def list_per_million_tokens(line: InvoiceSum) -> int | None:
    """The same by list prices; None without one."""
    return _per_million(line.list_millionths, line.listed_tokens)


def _per_million(millionths: int | None, tokens: int) -> int | None:
    return (
        round(Decimal(millionths) * 10**6 / tokens) if tokens and millionths is not None else None
    )
