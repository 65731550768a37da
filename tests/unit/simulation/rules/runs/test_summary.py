"""Figures of what was measured."""

from dataclasses import replace

import pytest

from slicewise.simulation.rules.runs.measure import RunSums, TenantSums
from slicewise.simulation.rules.runs.run_figures import (
    ESTIMATED,
    Estimate,
    Figures,
    ReplayedService,
)
from slicewise.simulation.rules.runs.summary import (
    estimate,
    estimates,
    figures,
    jain,
    percentile,
    service_difference_estimates,
    service_estimates,
)

SUMS = RunSums(
    start_s=0.0,
    end_s=100.0,
    seconds=100.0,
    capacity_millislice_s=1000.0,
    held_millislice_s=250.0,
    idle_millislice_s=750.0,
    idle_wanted_millislice_s=75.0,
    tenants={
        "a": TenantSums((1.0, 3.0), 2, (1.0, 3.0), own_waited_s=9.0, late_jobs=1),
        "b": TenantSums((8.0,), 0, (), late_jobs=2),
    },
)


def test_figures_are_of_all_tenants_and_of_each() -> None:
    found = figures("now", SUMS, 10, {"a": 4})
    assert (found.jobs, found.started, found.late_jobs) == (3, 2, 3)
    assert (found.utilisation, found.idle_wanted_share) == (0.25, 0.1)
    assert (found.wait_mean_s, found.wait_p50_s, found.wait_p99_s) == (4.0, 3.0, 8.0)
    assert found.jain == 1.0
    first, second = found.tenants
    assert (first.tenant, first.wait_mean_s, first.wait_longest_s) == ("a", 2.0, 3.0)
    assert (first.guaranteed_millislices, second.guaranteed_millislices) == (4, 0)
    assert first.own_waited_s == 9.0


def test_percentiles_are_values_that_there_are() -> None:
    values = [float(n) for n in range(1, 201)]
    assert (percentile(values, 50), percentile(values, 99)) == (100.0, 198.0)
    assert percentile([7.0], 50) == 7.0
    assert percentile([], 99) == 0.0


def test_jain_says_how_equal_shares_are() -> None:
    assert jain([2.0, 2.0, 2.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([]) == 1.0


def test_an_interval_is_as_wide_as_the_values_differ() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    # 3.182 × 1.291 / 2
    assert found.high - found.mean == pytest.approx(2.054, abs=1e-3)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert estimate([5.0]) == Estimate(5.0, 5.0, 5.0)
    assert estimate([3.0] * 40).high == 3.0


def test_every_estimated_field_has_an_estimate() -> None:
    found = estimates([figures("now", SUMS, 10, {})])
    assert tuple(found) == ESTIMATED
    assert found["late_jobs"] == Estimate(3.0, 3.0, 3.0)


def _part(**shares: float | None) -> Figures:
    """A part with services by their share in time; None had no requests."""
    services = tuple(
        ReplayedService(name, 0 if share is None else 10, share or 0.0, 2.0, 0.0, 0)
        for name, share in shares.items()
    )
    return replace(figures("now", SUMS, 10, {}), services=services)


def test_services_have_estimates_over_the_parts_with_requests() -> None:
    present = [_part(a=0.8, b=0.5), _part(a=1.0, b=None), _part(a=None, b=None)]
    found = service_estimates(present)
    assert found.keys() == {"a"}
    assert found["a"]["attainment"] == estimate([0.8, 1.0])
    assert found["a"]["wait_p99_s"] == Estimate(2.0, 2.0, 2.0)
    changed = [_part(a=0.9, b=0.5), _part(a=0.9), _part(a=0.1)]
    steps = service_difference_estimates(present, changed)
    assert steps.keys() == {"a"}
    assert steps["a"]["attainment"] == estimate([0.9 - 0.8, 0.9 - 1.0])
