"""Writes charges in the columns of FOCUS 1.2 (FinOps Open Cost and Usage Specification).

https://focus.finops.org/focus-specification/v1-2/
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import PlainSerializer

from slicewise.cluster.language.meters import (
    CACHED_PROMPT_TOKENS,
    ENERGY,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    SHARED_ENERGY,
    SLICES,
)
from slicewise.slurm_plugin.rules.accounting.charge_lines import Charged, ChargeLine
from slicewise.slurm_plugin.rules.accounting.invoice import priced_lines
from slicewise.slurm_plugin.rules.accounting.tariff import MILLIONTHS, UNITS

_MILLISLICE_S = Decimal("0.001")
_PLACES = Decimal("1e-9")

Value = str | Decimal | None
"""None is what FOCUS calls null."""
Number = Annotated[Decimal, PlainSerializer(float, return_type=float)]
"""JSON's numbers hold 15 digits exactly."""


@dataclass(frozen=True)
class FocusRow:
    """A row of a statement for billing, in the columns of FOCUS 1.2; null without a price."""

    BilledCost: Number | None
    BillingAccountId: str
    BillingAccountName: str
    BillingAccountType: str
    BillingCurrency: str | None
    BillingPeriodEnd: str
    BillingPeriodStart: str
    ChargeCategory: str
    ChargeClass: None
    ChargeDescription: str
    ChargeFrequency: str
    ChargePeriodEnd: str
    ChargePeriodStart: str
    ConsumedQuantity: Number
    ConsumedUnit: str
    ContractedCost: Number | None
    ContractedUnitPrice: Number | None
    EffectiveCost: Number | None
    InvoiceIssuerName: str
    ListCost: Number | None
    ListUnitPrice: Number | None
    PricingQuantity: Number
    PricingUnit: str
    ProviderName: str
    PublisherName: str
    ResourceId: str | None
    ResourceName: str | None
    ResourceType: str | None
    ServiceCategory: str
    ServiceName: str
    ServiceSubcategory: str
    SkuId: str
    SubAccountId: str
    SubAccountName: str
    SubAccountType: str
    Tags: str


@dataclass(frozen=True)
class Billing:
    """What all charges of a billing period have in common.

    Attributes:
        provider: name of the cluster.
        from_s, until_s: begin and exclusive end of the billing period, in Unix seconds.
        currency: "" without a tariff; then costs are null.
    """

    provider: str
    from_s: int
    until_s: int
    currency: str


def focus_rows(lines: Iterable[ChargeLine], billing: Billing) -> list[FocusRow]:
    """One row a line; ``lines`` are ``merged``. Requests and tokens without a price have none."""
    return [FocusRow(**_row(line, billing)) for line in priced_lines(lines)]


def _row(line: ChargeLine, billing: Billing) -> dict[str, Any]:
    of, price = line.of, line.of.price
    cost = None if price is None else Decimal(line.millionths or 0) / MILLIONTHS
    quantity = (Decimal(line.amount) / UNITS[of.meter]).quantize(_PLACES)
    listed = price if of.list_price is None else of.list_price
    names = ("InvoiceIssuerName", "ProviderName", "PublisherName")
    sku, consumed, unit = _SKUS.get(of.meter) or (
        " + ".join(of.gpu_types) if of.kind == "run" else "share",
        "Slice-Seconds",
        "Slice-Hours",
    )
    is_slices = of.meter == SLICES.name
    return {
        **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost"), cost),
        **dict.fromkeys(names, billing.provider),
        **_service(of.owner or of.tenant, of.service),
        "BillingAccountId": of.payer,
        "BillingAccountName": of.payer,
        "BillingAccountType": "Payer",
        "BillingCurrency": billing.currency or None,
        "BillingPeriodStart": _time(billing.from_s),
        "BillingPeriodEnd": _time(billing.until_s),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": _about(of, sku),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _time(of.start_s),
        "ChargePeriodEnd": _time(of.end_s),
        "ConsumedQuantity": line.amount * _MILLISLICE_S if is_slices else Decimal(line.amount),
        "ConsumedUnit": consumed,
        "ContractedUnitPrice": price,
        "ListCost": cost if of.list_price is None else listed and listed * quantity,
        "ListUnitPrice": listed,
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "SkuId": sku,
        "SubAccountId": of.tenant,
        "SubAccountName": of.tenant,
        "SubAccountType": "Tenant",
        "Tags": json.dumps({"slicewise/user": of.user}),
    }


_SKUS: Mapping[str, tuple[str, str, str]] = {
    **{
        meter.name: (meter.name, "Tokens", "Million Tokens")
        for meter in (PROMPT_TOKENS, CACHED_PROMPT_TOKENS, OUTPUT_TOKENS)
    },
    REQUESTS.name: (REQUESTS.name, "Requests", "Thousand Requests"),
    ENERGY.name: ("kwh", "Millijoules", ENERGY.unit),
    SHARED_ENERGY.name: ("shared-kwh", "Millijoules", SHARED_ENERGY.unit),
}
"""SkuId, ConsumedUnit and PricingUnit of meters of usage."""


def _about(charged: Charged, sku: str) -> str:
    match charged.kind:
        case "run":
            what = "Inference services" if charged.service else "GPU jobs"
            return f"{what} of {charged.user} on {sku}"
        case "energy":
            return f"Energy of {charged.user}'s jobs"
        case "request":
            return f"{sku.replace('-', ' ').capitalize()} of {charged.user}"
        case _:
            return "Shares of a service's hours"


def _service(tenant: str, service: str) -> dict[str, Value]:
    """The columns of a service, or of jobs that are none."""
    if service:
        return {
            "ResourceId": f"{tenant}/{service}",
            "ResourceName": service,
            "ResourceType": "Inference service",
            "ServiceCategory": "AI and Machine Learning",
            "ServiceName": "Inference services",
            "ServiceSubcategory": "Machine Learning",
        }
    return {
        "ResourceId": None,
        "ResourceName": None,
        "ResourceType": None,
        "ServiceCategory": "Compute",
        "ServiceName": "GPU jobs",
        "ServiceSubcategory": "Other (Compute)",
    }


def _time(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
