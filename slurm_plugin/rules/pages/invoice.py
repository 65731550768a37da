"""Lines of an invoice in words."""

from collections.abc import Iterable, Mapping, Sequence

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.rpc.overview_messages import TenantThisMonth
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    Charged,
    ChargeKind,
    ChargeLine,
    ChargeMeter,
)
from slicewise.slurm_plugin.rules.accounting.invoice import InvoiceSum
from slicewise.slurm_plugin.rules.pages.words import hours_text, kwh_text

_KINDS: Mapping[ChargeKind, str] = {"share": "share", "pool": "pool"}
_UNITS: Mapping[ChargeMeter, tuple[str, str]] = {
    "slice-seconds": ("slice-hours", "a slice-hour"),
    "prompt-tokens": ("prompt tokens", "a million"),
    "cached-prompt-tokens": ("cached tokens", "a million"),
    "output-tokens": ("output tokens", "a million"),
    "requests": ("requests", "a thousand"),
    "millijoules": ("energy", "a kWh"),
    "shared-millijoules": ("energy of shared boards", "a kWh"),
}
"""By meter: of what an amount is, and what has the price."""


def has_others(sums: Iterable[InvoiceSum]) -> bool:
    """Whether somebody pays for another tenant, of sums by tenant."""
    return any(each.payer != each.key for each in sums)


def most_spent(tenants: Iterable[TenantThisMonth]) -> Sequence[TenantThisMonth]:
    """Those that cost most first, then those that took most; what is nobody's comes last."""
    return sorted(
        tenants,
        key=lambda each: (
            not each.tenant,
            -(each.millionths or 0),
            -(each.energy_mj or 0),
            each.tenant,
        ),
    )


def charged_words(of: Charged) -> str:
    """For what a line is: GPU types, of shares and pools with that word, or what was asked."""
    if of.kind in {"request", "energy"}:
        return _UNITS[of.meter][0]
    types = " + ".join(of.gpu_types)
    return f"{_KINDS[of.kind]} of {types}" if of.kind in _KINDS else types


def amount_words(line: ChargeLine) -> str:
    """``2.500 slice-hours``, ``1,000``: what is counted says ``charged_words`` of the others."""
    if line.of.meter == SLICES.name:
        return f"{hours_text(line.amount)} {_UNITS[line.of.meter][0]}"
    if line.of.kind == "energy":
        return f"{kwh_text(line.amount)} kWh"
    return f"{line.amount:,}"


def price_words(of: Charged) -> str:
    """``0.35 a slice-hour``; "" without a tariff."""
    return "" if of.price is None else f"{of.price.normalize():f} {_UNITS[of.meter][1]}"
