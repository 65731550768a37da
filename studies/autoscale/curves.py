"""Computes a policy's cost at a given attainment, on the lower edge of its replayed settings."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, log
from typing import Any

from studies.autoscale.world import Outcome

ATTAINMENTS = (0.9, 0.95, 0.99, 0.999)
FIGURES = ("attainment", "slice_hours", "p95_ms", "wakes")
"""What a report says of each load."""
_LEAST_MISSED = 1e-6
"""Share of late requests that is assumed if none was late, as its logarithm is needed."""

Point = Mapping[str, Any]


def point_of(outcome: Outcome, target: float) -> Point:
    """Return what a report says of one replay with that target."""
    return {
        "target": target,
        "attainment": round(outcome.attainment, 6),
        "slice_hours": round(outcome.slice_s / 3600, 4),
        "changes": outcome.changes,
        "p95_ms": round(1000 * outcome.wait_p95_s),
        "wait_p99_s": round(outcome.wait_p99_s, 3),
        "longest_wait_s": round(outcome.longest_wait_s, 3),
        "wakes": int(outcome.wakes_s.size),
        "wake_p99_s": outcome.wake_p99_s and round(outcome.wake_p99_s, 3),
    }


def slice_hours_at(
    points: Iterable[Point], attainment: float, cost: str = "slice_hours"
) -> float | None:
    """The fewest slice-hours, or another ``cost``, for that attainment; None: none reaches it.

    Between two settings the value is linear in the logarithm of the share of late requests.
    """
    late = _late(attainment)
    edge = lower_edge(points, cost)
    for (more, cheap), (less, dear) in pairwise(edge):
        if less <= late < more:
            share = log(more / late) / log(more / less)
            return cheap + share * (dear - cheap)
    return edge[0][1] if edge and edge[0][0] <= late else None


def saving(
    policies: Mapping[str, Sequence[Point]], ours: str, others: Iterable[str]
) -> dict[str, float | None]:
    """Share of slice-hours that ``ours`` saves against the best of the others, by attainment in %.

    None if ours or all others miss the attainment in all settings.
    """
    return {
        f"{100 * attainment:g}": _saving_at(policies, ours, others, attainment)
        for attainment in ATTAINMENTS
    }


def _saving_at(
    policies: Mapping[str, Sequence[Point]], ours: str, others: Iterable[str], attainment: float
) -> float | None:
    mine = slice_hours_at(policies.get(ours, ()), attainment)
    found = (slice_hours_at(policies.get(other, ()), attainment) for other in others)
    costs = [cost for cost in found if cost is not None]
    return round(1 - mine / min(costs), 4) if mine is not None and costs else None


def one_setting(
    loads: Mapping[str, Sequence[Point]], is_stated: bool
) -> dict[str, dict[str, Any] | None]:
    """The cheapest setting for all loads together, by attainment in %, with what each load gets.

    It is the one with the fewest slice-hours, each load's beside its cheapest setting, of those
    that attain that share in the mean of the loads; None if none does. ``is_stated``: the setting
    is the share asked for, so nothing is chosen.
    """
    found: dict[str, dict[str, Any] | None] = {}
    least = {name: min(p["slice_hours"] for p in points) for name, points in loads.items()}
    for attainment in ATTAINMENTS[:3]:
        found[f"{100 * attainment:g}"] = None
        least_cost = inf
        for settings in zip(*loads.values(), strict=True):
            shares = [point["attainment"] for point in settings]
            target = settings[0]["target"]
            costs = zip(settings, least.values(), strict=True)
            cost = sum(point["slice_hours"] / hours for point, hours in costs)
            fits = target == attainment if is_stated else sum(shares) >= attainment * len(shares)
            if fits and cost < least_cost:
                least_cost = cost
                found[f"{100 * attainment:g}"] = {
                    "target": target,
                    **{
                        figure: {name: p[figure] for name, p in zip(loads, settings, strict=True)}
                        for figure in FIGURES
                    },
                }
    return found


def lower_edge(points: Iterable[Point], cost: str = "slice_hours") -> list[tuple[float, float]]:
    """(Share of late requests, cost) of points that none beats in both; latest first."""
    edge: list[tuple[float, float]] = []
    for late, hours in sorted((_late(p["attainment"]), p[cost]) for p in points):
        if not edge or hours < edge[-1][1]:
            edge.append((late, hours))
    return edge[::-1]


def _late(attainment: float) -> float:
    return max(1 - attainment, _LEAST_MISSED)
