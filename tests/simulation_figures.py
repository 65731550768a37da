"""Figures of simulated runs, made up: two tenants and one with a hostile name, for thirty days."""

import math
from dataclasses import replace

from slicewise.simulation.rules.runs.run_figures import (
    ClusterSample,
    Estimate,
    Figures,
    ReplayedService,
    ReplayedTenant,
    SelfCheck,
    SimulationResult,
)

START_S, DAY_S = 1_790_805_600, 86_400
END_S = START_S + 30 * DAY_S
HOSTILE = "</svg><script>alert(1)</script>\u202e{{7*7}}"
CHECK = SelfCheck(
    jobs=98_123,
    wait_error_s=41.0,
    wait_mean_of_history_s=720.0,
    wait_mean_s=660.0,
    wait_p99_of_history_s=12_000.0,
    wait_p99_s=11_000.0,
    utilisation_of_history=0.72,
    utilisation=0.712,
    start_order=0.86,
    never_started=0,
    queue_order=0.93,
)


def tenant(name: str, wait_s: float, *, jobs: int = 1000, slices: float = 100.0) -> ReplayedTenant:
    held = slices * 1000 * (END_S - START_S)
    return ReplayedTenant(
        tenant=name,
        jobs=jobs,
        started=jobs,
        wait_mean_s=wait_s,
        wait_p50_s=wait_s / 3,
        wait_p99_s=wait_s * 9,
        wait_longest_s=wait_s * 12,
        held_millislice_s=held,
        borrowed_millislice_s=held / 4,
        lent_millislice_s=held / 5,
        guaranteed_millislices=int(slices * 900),
        own_waited_s=wait_s / 2,
        late_jobs=0,
    )


def figures(*tenants: ReplayedTenant, use: float = 0.7, wait_s: float = 660.0) -> Figures:
    steps = tuple(
        ClusterSample(
            at_s=START_S + number * (END_S - START_S) / 200,
            held_millislices=int(896_000 * use * (1 + 0.2 * math.sin(number / 7))),
            lent_millislices=int(90_000 * use * (1 + math.sin(number / 9))),
            waiting_millislices=int(60_000 * (1 + math.sin(number / 5)) / use),
            waiting_jobs=20,
        )
        for number in range(200)
    )
    return Figures(
        name="a policy",
        start_s=START_S,
        end_s=END_S,
        capacity_millislices=896_000,
        jobs=sum(one.jobs for one in tenants),
        started=sum(one.started for one in tenants),
        utilisation=use,
        idle_wanted_share=0.9 - use,
        wait_mean_s=wait_s,
        wait_p50_s=wait_s / 10,
        wait_p99_s=wait_s * 16,
        jain=use,
        late_jobs=0,
        tenants=tenants,
        steps=steps,
    )


PRESENT = figures(tenant("vision", 2460.0, slices=300), tenant("nlp", 240.0), tenant(HOSTILE, 60.0))
CHANGED = figures(
    tenant("vision", 720.0, slices=340),
    replace(tenant("nlp", 900.0, slices=80), late_jobs=12),
    tenant(HOSTILE, 66.0),
    use=0.78,
    wait_s=480.0,
)
SERVICE = ReplayedService(HOSTILE, 12_000, 0.991, 1.4, 720_000.0, 91)


def around(value: float, spread: float) -> Estimate:
    return Estimate(value, value - spread, value + spread)


def result(*, compared: bool = True, offsets: int = 1) -> SimulationResult:
    spreads = {"utilisation": 0.01, "wait_mean_s": 200.0, "late_jobs": 1.0}
    present, changed = (
        {name: around(getattr(run, name), spread) for name, spread in spreads.items()}
        for run in (PRESENT, CHANGED)
    )
    steps = {
        name: around(changed[name].mean - present[name].mean, spread)
        for name, spread in spreads.items()
    }
    return SimulationResult(
        cluster="lab",
        seed=7,
        offsets=offsets,
        self_check=CHECK,
        present=PRESENT,
        changed=CHANGED if compared else None,
        estimates=present,
        changed_estimates=changed if compared else {},
        difference_estimates=steps if compared else {},
        seconds=251.0,
        notes=("12 jobs of more GPUs than the cluster has were left out.", f"A note on {HOSTILE}."),
    )
