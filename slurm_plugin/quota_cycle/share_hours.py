"""Divides the hours of services' runs that are over among those who used them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Literal

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.token_weights import weights_of
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.lost_runs import live_runs
from slicewise.slurm_plugin.rules.accounting.shared_runs import (
    DueHour,
    SharedRun,
    division,
    due_hours,
    idle_weights,
)
from slicewise.slurm_plugin.rules.accounting.types import RunKey
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Policy

_MOST = 2000
"""Hours that are divided in one turn; the rest are in the next ones."""


@dataclass(frozen=True)
class SharedHours:
    """What became of hours that were due.

    Attributes:
        booked: how many are in the ledger.
        refused: runs of whose hours none is, with the error.
    """

    booked: int
    refused: Mapping[RunKey, OutsideError] = field(default_factory=dict)


def share_hours(
    ledger: Ledger,
    policy: Policy,
    idle_time: Literal["owner", "audience"],
    jobs: Sequence[JobView],
    now_s: int,
    *,
    zone: str,
    output_weights: Mapping[str, float] = MappingProxyType({}),
) -> SharedHours:
    """Book what is due at ``now_s`` (Unix seconds), when ``jobs`` were looked at.

    ``zone`` is the time zone of days.

    Safe to repeat, and to be killed at any point: the hours of a run are booked together, and each
    once for what is known of it. A run that the ledger refuses keeps no other back. Raises
    UnreachableError as the ledger does. ``output_weights`` are those of ``weights_of``.
    """
    live = live_runs(jobs)

    def due(run: SharedRun) -> Sequence[DueHour]:
        is_live = (run.key.job_id, run.key.start_s) in live
        return tuple(due_hours(run, now_s, is_live=is_live))

    paying, booked, refused = payers(policy), 0, dict[RunKey, OutsideError]()
    found = ledger.shares.due(now_s, due, _MOST)
    for key, hours in groupby(found, key=lambda hour: hour[0].run.key):
        divisions = [
            division(
                hour,
                use,
                paying,
                _idle(policy, idle_time, hour),
                weights_of(hour.run.service, output_weights),
            )
            for hour, use in hours
        ]
        try:
            booked += ledger.shares.book(divisions, zone)
        except OutsideError as error:
            refused[key] = error
    return SharedHours(booked, refused)


def share_pools(ledger: Ledger, now_s: int, *, zone: str) -> int:
    """Book which services of pools have used hours that were due at ``now_s`` (Unix seconds).

    After the hours were shared among tenants: it divides what its tenant bears of each. ``zone`` is
    the time zone of days. Safe to repeat, and to be killed at any point. Return how many hours were
    divided. Raises as the ledger does.
    """
    hours = ledger.pools.due(now_s, _MOST)
    ledger.pools.divide(hours, zone)
    ledger.pools.forget()
    return len(hours)


def _idle(policy: Policy, idle_time: str, hour: DueHour) -> Mapping[str, int]:
    if idle_time == "owner":
        return {}
    return idle_weights(policy, hour.run.audience(hour.hour_s), hour.run.tenant)
