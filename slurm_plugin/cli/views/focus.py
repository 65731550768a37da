"""Writes charges in the columns of FOCUS 1.2 (FinOps Open Cost and Usage Specification).

https://focus.finops.org/focus-specification/v1-2/
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine

_MILLISLICE_S = Decimal("0.001")
_SLICE_HOUR = Decimal(3_600_000)
_HOURS_PLACES = Decimal("1e-9")

Value = str | Decimal | None
"""None is what FOCUS calls null."""


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


def focus_rows(lines: Iterable[ChargeLine], billing: Billing) -> list[Mapping[str, Value]]:
    """One row a line, with all columns in FOCUS's own order."""
    return [dict(sorted(_row(line, billing).items())) for line in lines]


def _row(line: ChargeLine, billing: Billing) -> dict[str, Value]:
    of, price = line.of, billing.slice_hour_price
    hours = (Decimal(line.used_millislice_s) / _SLICE_HOUR).quantize(_HOURS_PLACES)
    cost = None if price is None else hours * price
    costs = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
    names = ("InvoiceIssuerName", "ProviderName", "PublisherName")
    sku = " + ".join(of.gpu_types)
    kind = "Inference services" if of.service else "GPU jobs"
    return {
        **dict.fromkeys(costs, cost),
        **dict.fromkeys(names, billing.provider),
        **_service(of.tenant, of.service),
        "BillingAccountId": of.payer,
        "BillingAccountName": of.payer,
        "BillingAccountType": "Payer",
        "BillingCurrency": billing.currency or None,
        "BillingPeriodStart": _time(billing.from_s),
        "BillingPeriodEnd": _time(billing.until_s),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"{kind} of {of.user} on {sku}",
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


def focus_json(rows: Iterable[Mapping[str, Value]]) -> list[Mapping[str, str | float | None]]:
    """The rows with JSON's numbers, which hold 15 digits exactly."""
    return [
        {name: float(value) if isinstance(value, Decimal) else value for name, value in row.items()}
        for row in rows
    ]
