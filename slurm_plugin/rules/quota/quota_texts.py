"""Writes quotas and budgets as operators read them."""

from collections.abc import Iterable, Mapping
from typing import Literal

from slicewise.cluster.language.meters import BUDGETED, Meter, meter_named
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.attributes import ATTRIBUTES
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    Budget,
    Policy,
    Quota,
    Tenant,
    TenantUpdate,
)


def change_words(name: str, before: Tenant | None, after: Tenant | None) -> str:
    """``vision: nominal 6 slices (was 4 slices), below nlp (was at the top)``."""
    if after is None:
        return f"{name}: removed"
    words = [quota_words(before.quota if before else None, after.quota)]
    for meter in BUDGETED:
        was, now = (_budget(tenant, meter) for tenant in (before, after))
        if now != was:
            words.append(f"budget {now} (was {was})")
    if before and before.parent != after.parent:
        words.append(f"{_place(after)} (was {_place(before)})")
    return f"{name}: {', '.join(words)}"


def _place(tenant: Tenant) -> str:
    return f"below {tenant.parent}" if tenant.parent else "at the top"


def _budget(tenant: Tenant | None, meter: str) -> str:
    budget = tenant.budget_on(meter) if tenant else None
    return budget_text(budget) if budget else "none"


def types_beyond_text(types: Mapping[str, int], instances: Mapping[str, int]) -> str:
    """``9 instances of 1g.10gb (the cluster has 7)``; ``instances`` are those of the cluster."""
    return ", ".join(
        f"{count} instances of {gres_type} (the cluster has {instances.get(gres_type, 0)})"
        for gres_type, count in sorted(types.items())
    )


def quota_words(before: Quota | None, after: Quota) -> str:
    """The nominal, and what else is new: ``nominal 6 slices (was 4 slices), weight 2 (was 1)``."""
    old = quota_texts(before or Quota(Millislices(0)))
    return ", ".join(
        f"{noun} {text}" + (f" (was {old[noun]})" if before and text != old[noun] else "")
        for noun, text in quota_texts(after).items()
        if text != old[noun] or noun == "nominal"
    )


def calendar_words(as_set: Quota, now: Quota) -> str:
    """What the calendar changes: ``nominal 8 slices (otherwise 10 slices)``; "" if nothing."""
    usual = quota_texts(as_set)
    return ", ".join(
        f"{noun} {text} (otherwise {usual[noun]})"
        for noun, text in quota_texts(now).items()
        if text != usual[noun]
    )


def calendar_notes(policy: Policy, now: Policy) -> Iterable[str]:
    """``By the calendar vision has now: nominal 8 slices (otherwise 10 slices)``.

    One for each tenant of ``policy``, the quotas as they were set, of which ``now`` has another.
    """
    for name, tenant in policy.items():
        if words := calendar_words(tenant.quota, now[name].quota):
            yield f"By the calendar {name} has now: {words}."


def quota_texts(quota: Quota | TenantUpdate) -> Mapping[str, str]:
    """Each attribute of a quota in words, by its noun, or those that an update sets."""
    return {
        attribute.noun: attribute.text(value)
        for attribute in ATTRIBUTES
        if (value := getattr(quota, attribute.field)) is not None
    }


def budget_text(budget: Budget | Literal["off"]) -> str:
    """``1,000 slice-hours a month, carries over 100, overdraft 50``."""
    if budget == "off":
        return "none"
    meter = meter_named(budget.meter)
    words = [f"{meter.text(budget.amount)} {meter.unit}{_every(budget.period)}"]
    if budget.carry_over:
        words.append(f"carries over {_most(budget.carry_over, 'all', meter)}")
    if budget.overdraft:
        words.append(f"overdraft {_most(budget.overdraft, 'unlimited', meter)}")
    return ", ".join(words)


def _every(period: Period) -> str:
    return " once" if period is Period.NONE else f" a {period}"


def _most(amount: int, word: str, meter: Meter) -> str:
    return word if amount == MAX_BUDGET_MILLISLICE_S else meter.text(amount)
