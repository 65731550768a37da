"""Writes charges in the columns of FOCUS 1.2 (FinOps Open Cost and Usage Specification).

https://focus.finops.org/focus-specification/v1-2/
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

from pydantic import PlainSerializer

from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine

_MILLISLICE_S = Decimal("0.001")
_SLICE_HOUR = Decimal(3_600_000)
_HOURS_PLACES = Decimal("1e-9")

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
        slice_hour_price: None if the site has no price; then costs are null.
        currency: "" without a price.
    """

    provider: str
    from_s: int
    until_s: int
    slice_hour_price: Decimal | None
    currency: str


def focus_rows(lines: Iterable[ChargeLine], billing: Billing) -> list[FocusRow]:
    """One row a line."""
    return [FocusRow(**_row(line, billing)) for line in lines]


def _row(line: ChargeLine, billing: Billing) -> dict[str, Any]:
    of, price = line.of, billing.slice_hour_price
    hours = (Decimal(line.used_millislice_s) / _SLICE_HOUR).quantize(_HOURS_PLACES)
    cost = None if price is None else hours * price
    costs = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
    names = ("InvoiceIssuerName", "ProviderName", "PublisherName")
    sku = " + ".join(of.gpu_types) or "share"
    kind = "Inference services" if of.service else "GPU jobs"
    about = f"{kind} of {of.user} on {sku}" if of.gpu_types else "Shares of a service's hours"
    return {
        **dict.fromkeys(costs, cost),
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
        "ChargeDescription": about,
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _time(of.start_s),
        "ChargePeriodEnd": _time(of.end_s),
        "ConsumedQuantity": line.used_millislice_s * _MILLISLICE_S,
        "ConsumedUnit": "Slice-Seconds",
        "ContractedUnitPrice": price,
        "ListUnitPrice": price,
        "PricingQuantity": hours,
        "PricingUnit": "Slice-Hours",
        "SkuId": sku,
        "SubAccountId": of.tenant,
        "SubAccountName": of.tenant,
        "SubAccountType": "Tenant",
        "Tags": json.dumps({"slicewise/user": of.user}),
    }


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
