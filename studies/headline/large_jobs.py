"""How long jobs wait by their size, where tenants are small and jobs are not: a drawn load.

64 GPUs in eight nodes, of 20 tenants with three or four each; half of the jobs ask for one or two
GPUs, a tenth for half of the cluster. So most jobs of eight GPUs and more run on borrowed quota.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from slicewise.simulation.rules.runs.measure import wait_s
from slicewise.simulation.rules.runs.summary import mean, percentile
from slicewise.simulation.rules.site.records import SiteRecord
from studies.headline.loads import Load, whole_gpus_job
from studies.headline.systems import (
    FAIR_SHARE,
    FIFO,
    GPU_MILLISLICES,
    KUEUE,
    SLICEWISE,
    run,
)

TENANTS, GPUS = 20, 64
SIZES = (1, 1, 1, 1, 2, 2, 4, 8, 16, 32)
LIMITS_S = (3_600, 4 * 3_600, 12 * 3_600, 86_400)
_DAY_S, _HOUR_S = 86_400.0, 3_600.0
_LONGEST = 0.95
"""Of a job's time limit, at most: none runs into it."""


def drawn(seed: int, asked: float, days: float) -> Load:
    """A load that asks for this share of all GPU-hours; times come at random, evenly."""
    rng = random.Random(seed)  # noqa: S311 -- not for secrets
    end_s = days * _DAY_S
    runs: list[tuple[int, int, float]] = []
    left = asked * GPUS * end_s
    while left > 0:
        gpus, limit_s = rng.choice(SIZES), rng.choice(LIMITS_S)
        run_s = limit_s * min(_LONGEST, rng.expovariate(2.0))
        runs.append((gpus, limit_s, run_s))
        left -= gpus * run_s
    times = sorted(rng.random() * end_s for _ in runs)
    owns = {f"t{i:02}": GPUS // TENANTS + (i < GPUS % TENANTS) for i in range(TENANTS)}
    names = tuple(owns)
    jobs = (
        whole_gpus_job(number, rng.choice(names), at_s, gpus, run_s=run_s, limit_s=limit_s)
        for number, (at_s, (gpus, limit_s, run_s)) in enumerate(zip(times, runs, strict=True))
    )
    return Load("large_jobs", tuple(jobs), owns, 0.0, end_s)


def waits_by_size(record: SiteRecord) -> Mapping[int, Sequence[float]]:
    """Seconds to the first start of all jobs, in order, by their GPUs."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for job in record.jobs:
        size = job.cost_millislices // GPU_MILLISLICES
        found[size].append(wait_s(job, record.stopped_s))
    return {size: sorted(waits) for size, waits in sorted(found.items())}


def _words(waits: Sequence[float]) -> str:
    return f"{mean(waits) / _HOUR_S:.1f} / {percentile(waits, 99) / _HOUR_S:.1f}"


def main() -> None:
    """Print mean wait and 99th percentile by size, in hours, of each system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn")
    parser.add_argument("--asked", type=float, default=0.75, help="share of all GPU-hours")
    parser.add_argument("--days", type=float, default=28.0)
    options = parser.parse_args()
    load = drawn(options.seed, options.asked, options.days)
    sizes = sorted(set(SIZES))
    title = f"{len(load.jobs)} jobs: wait, mean / p99, in hours, by GPUs"
    table = Table(title=title, box=None, header_style="bold", title_justify="left")
    for column in ("system", "all", *map(str, sizes)):
        table.add_column(column, justify="left" if column == "system" else "right")
    for system in (FIFO, FAIR_SHARE, KUEUE, SLICEWISE):
        waits = waits_by_size(run(system, load))
        every = sorted(one for some in waits.values() for one in some)
        table.add_row(system, _words(every), *(_words(waits[size]) for size in sizes))
    Console().print(table)


if __name__ == "__main__":
    main()
