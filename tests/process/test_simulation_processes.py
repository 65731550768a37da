"""Whole experiments: parts, processes, the self-check, notes."""

from dataclasses import replace

from builders.site_world import (
    experiment,
    past,
    slicewise,
    tenants,
)

from slicewise.simulation.rules.runs.run_figures import SimulationResult
from slicewise.simulation.runs.simulate import simulate

FOUR_DAYS = [
    past("ab"[n % 3 == 0], 1 + n % 4, n * 9000.0, 2000.0 + 997 * (n % 13), job_id=n)
    for n in range(40)
]


def timeless(result: SimulationResult) -> SimulationResult:
    return replace(result, seconds=0.0)


def test_the_number_of_processes_changes_nothing() -> None:
    changed = slicewise(tenants(a=4, b=4))
    one = experiment(*FOUR_DAYS, changed=changed, offsets=2, warm_up_s=3600.0)
    told: list[float] = []
    alone = simulate(one, processes=1, progress=told.append)
    assert timeless(alone) == timeless(simulate(one, processes=2))
    assert told == sorted(told)
    assert told[-1] == 1.0
