"""Writes quotas and budgets as operators read them."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Literal

from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, slices_words
from slicewise.slurm_plugin.rules.quota.amounts import SLICE_HOUR_MILLISLICE_S, limit_text
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    Budget,
    Policy,
    Quota,
    Tenant,
)


def change_words(name: str, before: Tenant | None, after: Tenant | None) -> str:
    """``vision: nominal 6 slices (was 4 slices), below nlp (was at the top)``."""
    if after is None:
        return f"{name}: removed"
    words = [quota_words(before.quota if before else None, after.quota)]
    was, now = (_budget(tenant) if tenant else "none" for tenant in (before, after))
    if now != was:
        words.append(f"budget {now} (was {was})")
    if before and before.parent != after.parent:
        words.append(f"{_place(after)} (was {_place(before)})")
    return f"{name}: {', '.join(words)}"


def _place(tenant: Tenant) -> str:
    return f"below {tenant.parent}" if tenant.parent else "at the top"


def _budget(tenant: Tenant) -> str:
    return budget_text(tenant.budget) if tenant.budget else "none"


def limits_text(quota: Quota) -> str:
    """``2 × 3g.40gb, 7 slices on H200-141GB``."""
    return ", ".join(filter(None, (types_text(quota.type_limits), models_text(quota.model_limits))))


def types_text(limits: Mapping[str, int]) -> str:
    """``2 × 3g.40gb``."""
    return ", ".join(f"{count} × {name}" for name, count in sorted(limits.items()))


def types_beyond_text(types: Mapping[str, int], instances: Mapping[str, int]) -> str:
    """``9 instances of 1g.10gb (the cluster has 7)``; ``instances`` are those of the cluster."""
    return ", ".join(
        f"{count} instances of {gres_type} (the cluster has {instances.get(gres_type, 0)})"
        for gres_type, count in sorted(types.items())
    )


def models_text(limits: Mapping[str, int]) -> str:
    """``7 slices on H200-141GB``."""
    return ", ".join(f"{slices_words(n)} on {name}" for name, n in sorted(limits.items()))


def quota_words(before: Quota | None, after: Quota) -> str:
    """The nominal, and what else is new: ``nominal 6 slices (was 4 slices), weight 2 (was 1)``."""
    old, new = quota_texts(before or Quota(Millislices(0))), quota_texts(after)
    words = []
    for name in {**new, **old}:
        text, was = new.get(name, _ANY_TYPES), old.get(name, _ANY_TYPES)
        if text != was or name == "nominal":
            words.append(f"{name} {text}" + (f" (was {was})" if before and text != was else ""))
    return ", ".join(words)


def calendar_notes(policy: Policy, now: Policy) -> Iterable[str]:
    """``By the calendar vision has now: nominal 8 slices (otherwise 10 slices)``.

    One for each tenant of ``policy``, the quotas as they were set, of which ``now`` has another.
    """
    for name, tenant in policy.items():
        as_set, now_texts = quota_texts(tenant.quota), quota_texts(now[name].quota)
        words = [
            f"{key} {text} (otherwise {as_set[key]})"
            for key, text in now_texts.items()
            if text != as_set[key]
        ]
        if words:
            yield f"By the calendar {name} has now: {', '.join(words)}."


def quota_texts(quota: Quota) -> Mapping[str, str]:
    """Each part of a quota in words, by its name; guarantees by type only where there are some."""
    types = types_text(quota.type_nominals)
    return {
        "nominal": slices_words(quota.nominal_millislices),
        "borrowing limit": limit_text(quota.borrowing_limit_millislices),
        "lending limit": limit_text(quota.lending_limit_millislices),
        "weight": str(quota.weight),
        "at most": limits_text(quota) or "anything",
        **({_TYPE_NOMINALS: types} if types else {}),
    }


_TYPE_NOMINALS, _ANY_TYPES = "guaranteed by type", "any"


def budget_text(budget: Budget | Literal["off"]) -> str:
    """``1,000 slice-hours a month, carries over 100, overdraft 50``."""
    if budget == "off":
        return "none"
    words = [f"{short_hours_text(budget.amount_millislice_s)} slice-hours{_every(budget.period)}"]
    if budget.carry_over_millislice_s:
        words.append(f"carries over {_most(budget.carry_over_millislice_s, 'all')}")
    if budget.overdraft_millislice_s:
        words.append(f"overdraft {_most(budget.overdraft_millislice_s, 'unlimited')}")
    return ", ".join(words)


def _every(period: Period) -> str:
    return " once" if period is Period.NONE else f" a {period}"


def _most(amount_millislice_s: int, word: str) -> str:
    all_of_it = amount_millislice_s == MAX_BUDGET_MILLISLICE_S
    return word if all_of_it else short_hours_text(amount_millislice_s)


def short_hours_text(amount_millislice_s: int) -> str:
    """Slice-hours as an operator writes them: ``1,000``, ``0.5``; five decimals at most."""
    text = f"{Decimal(amount_millislice_s) / SLICE_HOUR_MILLISLICE_S:,.5f}"
    return text.rstrip("0").rstrip(".")
