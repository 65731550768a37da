"""Divides what a shared service's run used in an hour among those whose tokens it made.

All amounts are whole numbers, and what is divided is divided without a rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from slicewise.cluster.language.division import divided
from slicewise.cluster.language.units import MillisliceSeconds


class TimeKind(StrEnum):
    """For what a tenant has its part of an hour."""

    TOKENS = "tokens"
    """While requests were waited for or answered: by the weight of their tokens."""
    IDLE = "idle"
    """While there was none."""


class Share(NamedTuple):
    """Whose part of an hour it is, and for what."""

    tenant: str
    part: TimeKind


@dataclass(frozen=True)
class SharedHour:
    """An hour of a run, or what of it the run had.

    Attributes:
        owner: the tenant whose run it is.
        amount_millislice_s: what the run used in it.
        length_ms: how long that was; more than 0.
        busy_ms: how much of that time some request of the run had begun and not ended.
        tokens: the weight of the tokens that it made, by payer.
        idle: who bears the idle time, by weights; without any, the owner.
    """

    owner: str
    amount_millislice_s: MillisliceSeconds
    length_ms: int
    busy_ms: int
    tokens: Mapping[str, int] = field(hash=False)
    idle: Mapping[str, int] = field(default_factory=dict, hash=False)


def shares(hour: SharedHour) -> Mapping[Share, int]:
    """Millislice-seconds by tenant and part; they add up to what the run used in the hour.

    Busy time that made no token is idle time: nobody's tokens say whose it was.
    """
    tokens_weight, idle = sum(hour.tokens.values()), hour.idle
    if not sum(idle.values()):
        idle = {hour.owner: 1}
    idle_weight = sum(idle.values())
    busy_ms = min(hour.busy_ms, hour.length_ms) if tokens_weight else 0
    # Each part of the time has its own weights: multiplied by the others' sum, they compare.
    by_tokens = {
        Share(payer, TimeKind.TOKENS): busy_ms * weight * idle_weight
        for payer, weight in hour.tokens.items()
    }
    idle_ms, tokens_weight = hour.length_ms - busy_ms, max(tokens_weight, 1)
    by_quota = {
        Share(tenant, TimeKind.IDLE): idle_ms * weight * tokens_weight
        for tenant, weight in idle.items()
    }
    return divided(hour.amount_millislice_s, by_tokens | by_quota)
