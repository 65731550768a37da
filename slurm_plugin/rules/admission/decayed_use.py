"""Computes tenants' recent use, in which past use counts half after each half-life.

The result is the exact solution of dU/dt = held − λU with λ = ln 2 / half-life. So it is the same,
except for rounding, however finely time is divided and in whatever order runs are added.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.slurm_plugin.rules.admission.priority import share

HALF_LIVES = 10
"""Half-lives after which past use counts less than a thousandth, and may be left out."""


@dataclass(frozen=True)
class Holding:
    """Millislices that a run held from ``start_s`` to ``end_s``, which is None while it runs."""

    tenant: str
    amount_millislices: int
    start_s: float
    end_s: float | None


@dataclass(frozen=True)
class DecayedUse:
    """Decayed millislice-seconds by tenant, as of ``at_s``."""

    at_s: float
    millislice_s: Mapping[str, float] = field(default_factory=dict, hash=False)


def folded(use: DecayedUse, held: Mapping[str, int], at_s: float, half_life_s: float) -> DecayedUse:
    """Advance the use to ``at_s``, given that tenants held ``held`` millislices all the time since.

    If the clock was set back, no time passes.
    """
    passed_s = max(0.0, at_s - use.at_s)
    kept, gained_s = _kept(passed_s, half_life_s), _gained_s(passed_s, half_life_s)
    decayed = {tenant: amount * kept for tenant, amount in use.millislice_s.items()}
    for tenant, amount in held.items():
        decayed[tenant] = decayed.get(tenant, 0.0) + amount * gained_s
    return DecayedUse(at_s, decayed)


def recorded(holdings: Iterable[Holding], at_s: float, half_life_s: float) -> DecayedUse:
    """Compute the decayed use of the runs at ``at_s``."""
    use: dict[str, float] = {}
    for run in holdings:
        end_s = at_s if run.end_s is None else min(run.end_s, at_s)
        lasted_s = max(0.0, end_s - run.start_s)
        since = _kept(at_s - end_s, half_life_s)
        amount = run.amount_millislices * _gained_s(lasted_s, half_life_s) * since
        use[run.tenant] = use.get(run.tenant, 0.0) + amount
    return DecayedUse(at_s, use)


def shares(
    use: DecayedUse, guaranteed_quotas: Mapping[str, int], half_life_s: float
) -> Mapping[str, float]:
    """Compute the share term of each tenant in ``guaranteed_quotas`` (millislices), to four digits.

    It is rounded so that it changes seldom, and with it the messages that carry it.
    """
    return {
        tenant: round(share(use.millislice_s.get(tenant, 0.0), guaranteed_quota, half_life_s), 4)
        for tenant, guaranteed_quota in guaranteed_quotas.items()
    }


def averages(use: DecayedUse, half_life_s: float) -> Mapping[str, float]:
    """Compute the millislices that each tenant has held on average, unrounded: a job of seconds
    counts for less than one.

    A tenant that always held exactly its average would have the same decayed use.
    """
    whole_s = _gained_s(math.inf, half_life_s)
    return {tenant: amount / whole_s for tenant, amount in use.millislice_s.items()}


def _kept(passed_s: float, half_life_s: float) -> float:
    return float(2.0 ** -(passed_s / half_life_s))


def _gained_s(passed_s: float, half_life_s: float) -> float:
    """Return the decayed use, in millislice-seconds, of one millislice held until now."""
    rate = math.log(2) / half_life_s
    return -math.expm1(-rate * passed_s) / rate
