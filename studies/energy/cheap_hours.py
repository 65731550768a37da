"""Jobs that can wait, begun in cheap or green hours by the product's rule: saved, and waited.

Jobs of a recorded cluster on as many GPUs as keep so busy, first come, first served. Some of them
may end a day later; these ask ``slicewise cheapest`` when to begin.
"""

import csv
import json
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from slicewise.slurm_plugin.rules.accounting.begin_times import BeginSpan, Rate, RateCurve
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    Tariff,
    TariffRecord,
    price_spans,
    slice_hour_price,
)
from studies import command_line
from studies.autoscale.traces import opened
from studies.command_line import save

_SEED = 20_261_201
_JOBS, _CLUSTER = "philly_elasticflow.csv.xz", "6214e9"
_ZONE = "Europe/Berlin"
_SHIFT = timedelta(weeks=156)
"""From the jobs' autumn of 2017 to that of the grams, weekdays as they are."""
_FIRST, _DAYS = datetime(2020, 10, 5, tzinfo=ZoneInfo(_ZONE)), 28
_TARIFF = """{"currency": "EUR", "prices": {"slice_hour": "1"},
 "windows": [{"name": "night", "begin": "22:00", "end": "06:00", "factor": "0.5"}]}"""
_BUSY = (0.1, 0.5, 0.7)
_SHARES = (0.1, 0.3)
_SLACK_S, _MARGIN_S, _HOUR_S = 24 * 3600, 3600, 3600


@dataclass(frozen=True)
class Job:
    """A job; its time limit is the next power of two of hours."""

    submit_s: int
    lasts_s: int
    gpus: int
    can_wait: bool = False

    @property
    def limit_s(self) -> int:
        """The least of 1, 2, 4, ... hours that is enough."""
        return _HOUR_S << max(0, (ceil(self.lasts_s / _HOUR_S) - 1).bit_length())

    @property
    def deadline_s(self) -> int:
        """When it is to have ended."""
        return self.submit_s + self.limit_s + _SLACK_S


def main() -> None:
    """Write build/reports/cheap_hours.json and print it."""
    parser = command_line.parser("cheap_hours", __doc__, _SEED)
    parser.add_argument("--grams", type=Path, required=True, help="ger_ci.csv of lets-wait-awhile")
    options = parser.parse_args()
    jobs = _jobs(command_line.cluster_traces_folder() / _JOBS)
    until_s = max(job.deadline_s for job in jobs) + 30 * 86_400
    rates = {"money": _money(until_s), "grams": _grams(options.grams)}
    used = sum(job.gpus * job.lasts_s for job in jobs) / (_DAYS * 86_400)
    report: dict[str, Any] = {"jobs": len(jobs), "seed": options.seed, "rows": []}
    for busy in _BUSY:
        gpus = max(ceil(used / busy), *(job.gpus for job in jobs))
        for share in _SHARES:
            drawn = np.random.default_rng(options.seed).random(len(jobs)) < share
            chosen = [
                replace(job, can_wait=bool(waits)) for job, waits in zip(jobs, drawn, strict=True)
            ]
            before = _figures(chosen, _started(chosen, gpus, {}), rates)
            for by, of_all in rates.items():
                begins = _begins(chosen, of_all)
                after = _figures(chosen, _started(chosen, gpus, begins), rates)
                row = {"busy": busy, "gpus": gpus, "share": share, "by": by}
                saved = {f"{key}_saved": round(1 - after[key] / before[key], 4) for key in rates}
                waits = {key: (before[key], after[key]) for key in after if key not in rates}
                report["rows"].append({**row, **saved, **waits})
    save(report, options.report)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _jobs(path: Path) -> list[Job]:
    """Four weeks of one cluster, at the local times of the grams."""
    jobs = []
    with opened(path) as text:
        for row in csv.DictReader(text):
            shown = datetime.fromisoformat(row["timestamp"]) + _SHIFT
            submit_s = int(shown.replace(tzinfo=_FIRST.tzinfo).timestamp())
            after_s = submit_s - _FIRST.timestamp()
            if row["cluster"] == _CLUSTER and 0 <= after_s < _DAYS * 86_400:
                lasts_s = max(60, round(float(row["duration"])))
                jobs.append(Job(submit_s, lasts_s, int(row["num_gpus"])))
    return sorted(jobs, key=lambda job: job.submit_s)


def _money(until_s: int) -> Sequence[Rate]:
    tariff = Tariff.model_validate_json(_TARIFF)
    since_s = int(_FIRST.timestamp())
    book = PriceBook([TariffRecord(1, since_s, tariff, "", "", 0)], {}, _ZONE)
    return [
        Rate(span.start_s, span.end_s, Fraction(slice_hour_price(book, span, "", ()) or Decimal()))
        for span in price_spans(book.records, since_s, until_s, _ZONE)
    ]


def _grams(path: Path) -> Sequence[Rate]:
    with path.open(encoding="utf-8", newline="") as file:
        values = [
            (int(datetime.fromisoformat(row["Time"] + "+00:00").timestamp()), row)
            for row in csv.DictReader(file)
        ]
    return [
        Rate(start_s, end_s, Fraction(row["Carbon Intensity"]))
        for (start_s, row), (end_s, _) in pairwise(values)
    ]


def _begins(jobs: Iterable[Job], rates: Sequence[Rate]) -> Mapping[Job, int]:
    """When those that can wait begin, by the rule of ``slicewise cheapest``."""
    ends_s = [rate.end_s for rate in rates]
    begins = {}
    for job in jobs:
        if job.can_wait:
            last_s = job.deadline_s - job.limit_s - _MARGIN_S
            first = bisect_left(ends_s, job.submit_s)
            last = bisect_left(ends_s, last_s + job.limit_s)
            span = BeginSpan(job.submit_s, last_s, job.limit_s)
            begins[job] = RateCurve(rates[first : last + 1]).best(span) or job.submit_s
    return begins


def _started(jobs: Sequence[Job], gpus: int, begins: Mapping[Job, int]) -> Sequence[int]:
    """When each job starts: in the order of begins, none before the one ahead of it."""
    eligible = [begins.get(job, job.submit_s) for job in jobs]
    starts, free, now_s = [0] * len(jobs), gpus, 0
    ends: list[tuple[int, int]] = []
    for place in sorted(range(len(jobs)), key=eligible.__getitem__):
        now_s = max(now_s, eligible[place])
        while ends and (ends[0][0] <= now_s or free < jobs[place].gpus):
            end_s, freed = heappop(ends)
            now_s, free = max(now_s, end_s), free + freed
        starts[place], free = now_s, free - jobs[place].gpus
        heappush(ends, (now_s + jobs[place].lasts_s, jobs[place].gpus))
    return starts


def _figures(
    jobs: Sequence[Job], starts: Sequence[int], rates: Mapping[str, Sequence[Rate]]
) -> dict[str, float]:
    """Of those that can wait, what they cost; hours that they and the others waited."""
    begun = [*zip(jobs, starts, strict=True)]
    waiting = [(job, start_s) for job, start_s in begun if job.can_wait]
    figures: dict[str, float] = {}
    for name, of_all in rates.items():
        costs = RateCurve(of_all)
        spent = (job.gpus * (costs.cost(at_s, at_s + job.lasts_s) or 0) for job, at_s in waiting)
        figures[name] = float(sum(spent))
    for name, group in (
        ("waiters", waiting),
        ("others", [(job, start_s) for job, start_s in begun if not job.can_wait]),
    ):
        waits = np.array([start_s - job.submit_s for job, start_s in group]) / _HOUR_S
        figures[f"{name}_mean_h"] = round(float(waits.mean()), 2)
        figures[f"{name}_p95_h"] = round(float(np.quantile(waits, 0.95)), 2)
    late = [at_s + job.lasts_s > job.deadline_s for job, at_s in waiting]
    figures["late"] = round(float(np.mean(late)), 4)
    return figures


if __name__ == "__main__":
    main()
