"""A made-up day that a ledger has the history of, written as the daemon writes what it sees."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from random import Random

from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.history import (
    HOUR_S,
    MINUTE_S,
    TEN_S,
    ClusterFigures,
    HistorySample,
    ServiceFigures,
    TenantFigures,
)

_SEED = 4_202
_DAY_S = 24 * HOUR_S
_QUARTER_S = 900
_QUIET_HOUR = 3
_DRAINING, _DOWN = range(780, 900), range(900, 930)
"""Minutes of the day at which a GPU drains, and at which it is down."""
_PER_REPLICA = 14.0
"""Requests that a replica answers each second."""
_SERVICE, _REPLICAS = "chat", 3


@dataclass(frozen=True)
class _Demand:
    """What a tenant wants for a quarter of an hour: slices, and requests each second."""

    slices: int
    requests: float


def write_past_day(ledger: Ledger, until_s: int, capacity: int, nominal: Mapping[str, int]) -> None:
    """Write the day up to a Unix second: looks of each minute, of its last hour each ten seconds.

    Of a cluster with so many slices, and of tenants with these: the first is busy by day and lends
    by night, when the others are busy.
    """
    until_s = until_s // MINUTE_S * MINUTE_S
    early, late_s = range(until_s - _DAY_S, until_s - HOUR_S, MINUTE_S), until_s - HOUR_S
    rng = Random(_SEED)  # noqa: S311 -- figures, no secrets
    before: Mapping[str, _Demand] = {}
    for quarter, times in groupby((*early, *range(late_s, until_s, TEN_S)), _quarter):
        wanted = {name: _demand(rng, quarter, name, nominal) for name in nominal}
        samples = [_sample(at_s, wanted, before or wanted, nominal, capacity) for at_s in times]
        ledger.history.add(samples)
        # By quarters, since one statement sums up no more; rows of a daemon that runs are later.
        ledger.history.sum_up(samples[-1].at_s + MINUTE_S)
        before = wanted


def _quarter(at_s: int) -> int:
    return at_s // _QUARTER_S


def _demand(rng: Random, quarter: int, name: str, nominal: Mapping[str, int]) -> _Demand:
    lender, *_ = nominal
    hour = quarter * _QUARTER_S % _DAY_S / HOUR_S
    from_quiet = 2 * math.pi * (hour - _QUIET_HOUR) / 24
    busy = 0.5 - 0.5 * math.cos(from_quiet + (0 if name == lender else math.pi))
    busy = max(0.02, busy + rng.uniform(-0.06, 0.06))
    least = 0.25 if name == lender else 0.7
    return _Demand(round(nominal[name] * (least + busy)), 38 * busy)


def _sample(
    at_s: int,
    wanted: Mapping[str, _Demand],
    before: Mapping[str, _Demand],
    nominal: Mapping[str, int],
    capacity: int,
) -> HistorySample:
    """What one look saw. ``before``: what was wanted in the quarter of an hour before."""
    minute = at_s % _DAY_S // MINUTE_S
    draining, down = 2 * (minute in _DRAINING), 2 * (minute in _DOWN)
    lender, *_ = nominal
    own = {name: min(one.slices, nominal[name]) for name, one in wanted.items()}
    own[lender] = min(own[lender], nominal[lender] - draining - down)
    spare = nominal[lender] - own[lender] - draining - down
    lent = dict.fromkeys(nominal, 0)
    for name, one in wanted.items():
        if name != lender:
            lent[name] = min(one.slices - own[name], spare)
            spare -= lent[name]
    used, whole_lent = sum(own.values()), sum(lent.values())
    idle = capacity - used - whole_lent - draining - down
    waiting = {name: one.slices - own[name] - lent[name] for name, one in wanted.items()}
    return HistorySample(
        at_s=at_s,
        cluster=ClusterFigures(
            used=1000 * used,
            lent=1000 * whole_lent,
            idle=1000 * idle,
            draining=1000 * draining,
            down=1000 * down,
            waiting=1000 * sum(waiting.values()),
            late=0,
        ),
        tenants=tuple(
            TenantFigures(
                name,
                nominal=1000 * nominal[name],
                in_use=1000 * (own[name] + lent[name]),
                borrowed=1000 * lent[name],
                lent=1000 * whole_lent if name == lender else 0,
                waiting=1000 * waiting[name],
                late=0,
                budget_left=None,
            )
            for name in nominal
        ),
        services=tuple(
            _service(name, one.requests, before[name].requests, at_s)
            for name, one in wanted.items()
        ),
    )


def _service(tenant: str, requests: float, before: float, at_s: int) -> ServiceFigures:
    """A replica that is wanted at the begin of a quarter is ready three minutes later."""
    wanted = _replicas(requests)
    is_starting = at_s % _QUARTER_S < 3 * MINUTE_S
    ready = min(wanted, _replicas(before)) if is_starting else wanted
    load = requests / _PER_REPLICA / ready
    return ServiceFigures(
        tenant=tenant,
        service=_SERVICE,
        ready=ready,
        desired=wanted,
        backlog=round(20 * max(0.0, load - 0.8)),
        requests=requests,
        p95=160 + 120 * load * load,
    )


def _replicas(requests: float) -> int:
    return min(_REPLICAS, max(1, math.ceil(requests / _PER_REPLICA)))
