"""What tenants have used lately: use that counts half after each half-life.

Exactly the solution of dU/dt = held − λU with λ = ln 2 / half-life: however finely the time is
cut, and in whatever order runs are added, the result is the same but for rounding.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_plugin.decide.priority import share

HALF_LIVES = 10
"""What ended longer ago counts less than a thousandth."""


@dataclass(frozen=True)
class Holding:
    """Millislices that a run held: from ``start_s`` to ``end_s``; None while it runs."""

    tenant: str
    amount_millislices: int
    start_s: int
    end_s: int | None


@dataclass(frozen=True)
class DecayedUse:
    """Decayed millislice-seconds by tenant, as of ``at_s``."""

    at_s: float
    millislice_s: Mapping[str, float] = field(default_factory=dict, hash=False)


def folded(use: DecayedUse, held: Mapping[str, int], at_s: float, half_life_s: float) -> DecayedUse:
    """That use at ``at_s``, if ``held`` millislices were held all the time since.

    A clock that was set back makes no time pass.
    """
    passed_s = max(0.0, at_s - use.at_s)
    kept, gained_s = _kept(passed_s, half_life_s), _gained_s(passed_s, half_life_s)
    found = {tenant: amount * kept for tenant, amount in use.millislice_s.items()}
    for tenant, amount in held.items():
        found[tenant] = found.get(tenant, 0.0) + amount * gained_s
    return DecayedUse(at_s, found)


def recorded(holdings: Iterable[Holding], at_s: float, half_life_s: float) -> DecayedUse:
    """The use at ``at_s`` of these runs alone."""
    found: dict[str, float] = {}
    for run in holdings:
        end_s = at_s if run.end_s is None else min(run.end_s, at_s)
        lasted_s = max(0.0, end_s - run.start_s)
        since = _kept(at_s - end_s, half_life_s)
        amount = run.amount_millislices * _gained_s(lasted_s, half_life_s) * since
        found[run.tenant] = found.get(run.tenant, 0.0) + amount
    return DecayedUse(at_s, found)


def shares(
    use: DecayedUse, own_parts: Mapping[str, int], half_life_s: float
) -> Mapping[str, float]:
    """The share term of each of these tenants, by its own part in millislices; four digits of it.

    Rounded, it changes seldom, and so do the messages that carry it.
    """
    return {
        tenant: round(share(use.millislice_s.get(tenant, 0.0), own_part, half_life_s), 4)
        for tenant, own_part in own_parts.items()
    }


def averages(use: DecayedUse, half_life_s: float) -> Mapping[str, int]:
    """Millislices that each tenant has held on average: who holds as much all the time has used so
    much.
    """
    whole_s = _gained_s(math.inf, half_life_s)
    return {tenant: int(amount / whole_s) for tenant, amount in use.millislice_s.items()}


def _kept(passed_s: float, half_life_s: float) -> float:
    return float(2.0 ** -(passed_s / half_life_s))


def _gained_s(passed_s: float, half_life_s: float) -> float:
    """Decayed seconds of one millislice that was held until now."""
    rate = math.log(2) / half_life_s
    return -math.expm1(-rate * passed_s) / rate
