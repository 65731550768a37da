"""Makes tenants of the public traces: what each tenant wants to hold over time.

A client of ServeGen is a tenant with a service, which wants as many replicas as a plain rule says.
A base model of GenTD26 is a tenant with jobs, made of its requests; every other one never borrows.
The small clients or models of a trace are one tenant together.
"""

import csv
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import numpy as np

from slicewise.cluster.language.gpus.mig_profiles import board, cost_millislices
from studies.autoscale import servegen
from studies.autoscale.traces import opened
from studies.autoscale.workload import Floats

BOARD = board("H200-141GB")
KINDS = ("1g.18gb", "2g.35gb", "1g.18gb", "3g.71gb")
"""A tenant has one type: the largest tenant the first, the next the second, and so on in turn."""
COSTS: Mapping[str, int] = {
    kind: int(cost_millislices(BOARD, kind, Fraction(1))) for kind in sorted(set(KINDS))
}

SPAN_S = 43_200
_TENANTS = 20
_PLACES = 4
_TARGET = 0.75
"""A replica works on four requests at the same time, and is full enough with three."""
_LOOK_S, _HOLD_S = 10, 300
_BUSIEST_PLACES = 600.0
_MEAN_S = 12.0
_REASON_MEAN_S = 40.0
"""Mean seconds of a request, as in the replay of autoscaling."""
_DAY_S = 86_400
_EVERY, _STRETCH = 4, 60
"""GenTD26 is a sample: one request in four, of 23 s, becomes a job of 23 minutes."""


@dataclass(frozen=True)
class Ask:
    """One instance that a tenant wants.

    Attributes:
        submit_s: when the tenant begins to want it.
        lasts_s: seconds that a job runs; None for a replica.
        until_s: when a replica is wanted no longer; None for a job.
        level: the number of a replica among those of its tenant, from 1 on; 0 for a job.
    """

    submit_s: int
    lasts_s: int | None = None
    until_s: int | None = None
    level: int = 0


@dataclass(frozen=True)
class Wishes:
    """What one tenant asks for, in order of time.

    Attributes:
        group: the tenant above it.
        kind: GRES type of all its instances.
        drain_s: seconds that its replicas drain.
        borrows: whether it runs more than its own nominal if quota is lent to it.
    """

    name: str
    group: str
    kind: str
    asks: tuple[Ask, ...]
    drain_s: int
    borrows: bool = True

    def quantile(self, part: float) -> int:
        """The number of instances that suffices for that part of the time, if no ask waits."""
        changes: dict[int, int] = defaultdict(int)
        for ask in self.asks:
            changes[ask.submit_s] += 1
            changes[ask.submit_s + ask.lasts_s if ask.lasts_s else ask.until_s or 0] -= 1
        times = np.array(sorted(changes))
        levels = np.cumsum([changes[int(at_s)] for at_s in times])
        lasted = np.diff(np.append(times, SPAN_S)).clip(0)
        idle_s = max(0, SPAN_S - int(lasted.sum()))
        order = np.argsort(levels, kind="stable")
        passed = idle_s + np.cumsum(lasted[order])
        return int(
            levels[order][np.searchsorted(passed, part * SPAN_S - 1).clip(0, len(order) - 1)]
        )


def _services(group: str, path: Path, rng: np.random.Generator) -> Sequence[Wishes]:
    """The tenants of a ServeGen trace: clients' requests as wishes for replicas."""
    first_s, mean_s = _SERVEGEN[group]
    found = servegen.clients(path, first_s, SPAN_S)
    rate = _BUSIEST_PLACES / mean_s
    arrivals = servegen.arrivals_by_client(found, SPAN_S, rate, rng)
    return [
        Wishes(
            name=f"{group}-{number}",
            group=group,
            kind=KINDS[number % len(KINDS)],
            asks=tuple(levels(_replicas(times, rng, mean_s))),
            drain_s=round(2 * mean_s),
        )
        for number, times in enumerate(_largest(arrivals, len))
        if times.size
    ]


def _largest(parts: Sequence[Floats], size: Callable[[Floats], int]) -> Sequence[Floats]:
    """The largest parts, and all other parts as one."""
    order = sorted(parts, key=size, reverse=True)
    rest = np.sort(np.concatenate((np.zeros(0), *order[_TENANTS - 1 :])))
    return [*order[: _TENANTS - 1], rest]


def _replicas(arrivals_s: Floats, rng: np.random.Generator, mean_s: float) -> Sequence[int]:
    """Replicas wanted at each look: enough for the most requests at a time in the last minutes."""
    ends = np.sort(arrivals_s + servegen.service_times(arrivals_s.size, mean_s, rng))
    looks = np.arange(0, SPAN_S, _LOOK_S)
    at_once = np.searchsorted(arrivals_s, looks, "right") - np.searchsorted(ends, looks, "right")
    held = np.concatenate((np.zeros(_HOLD_S // _LOOK_S - 1, dtype=int), at_once))
    most = np.lib.stride_tricks.sliding_window_view(held, _HOLD_S // _LOOK_S).max(axis=1)
    return [int(count) for count in np.ceil(most / (_PLACES * _TARGET))]


def levels(replicas: Sequence[int]) -> Iterator[Ask]:
    """Make asks of the numbers of replicas: the replica that was added last goes first."""
    began: list[int] = []
    found: list[Ask] = []
    for look, count in enumerate((*replicas, 0)):
        at_s = look * _LOOK_S
        while len(began) > count:
            level = len(began)
            found.append(Ask(began.pop(), until_s=at_s, level=level))
        began += [at_s] * (count - len(began))
    yield from sorted(found, key=lambda ask: (ask.submit_s, ask.level))


def _jobs(group: str, path: Path, rng: np.random.Generator) -> Sequence[Wishes]:
    """The tenants of GenTD26: image requests of 23 days, folded into a day's busiest 12 hours."""
    with opened(path) as text:
        rows = [row for row in csv.DictReader(text) if row["exec_time_seconds"]][::_EVERY]
    times = np.array([datetime.fromisoformat(row["gmt_create"]).timestamp() for row in rows])
    days = (times - times.min() + rng.uniform(0, 1, times.size)) % _DAY_S
    first_s = _busiest_half(days)
    jobs: dict[str, list[Ask]] = defaultdict(list)
    for row, at_s in zip(rows, (days - first_s) % _DAY_S, strict=True):
        if at_s < SPAN_S:
            lasts_s = max(1, round(float(row["exec_time_seconds"]) * _STRETCH))
            jobs[row["checkpoint_model_version_id"]].append(Ask(int(at_s), lasts_s=lasts_s))
    order = sorted(jobs.values(), key=len, reverse=True)
    parts = [*order[: _TENANTS - 1], [ask for rest in order[_TENANTS - 1 :] for ask in rest]]
    return [
        Wishes(
            name=f"{group}-{number}",
            group=group,
            kind=KINDS[number % len(KINDS)],
            asks=tuple(sorted(asks, key=lambda ask: ask.submit_s)),
            drain_s=0,
            borrows=number % 2 == 0,
        )
        for number, asks in enumerate(parts)
    ]


def _busiest_half(days_s: Floats) -> int:
    hours = np.bincount((days_s // 3600).astype(int), minlength=24)
    sums = [np.roll(hours, -hour)[:12].sum() for hour in range(24)]
    return int(np.argmax(sums)) * 3600


def backlog(instances: Mapping[str, int]) -> Sequence[Wishes]:
    """Services without quota, one of each type, which would take all instances."""
    return [
        Wishes(
            name=f"backlog-{kind}",
            group="backlog",
            kind=kind,
            asks=tuple(Ask(0, until_s=SPAN_S, level=level) for level in range(1, count + 1)),
            drain_s=round(2 * _MEAN_S),
        )
        for kind, count in sorted(instances.items())
    ]


FILES: Mapping[str, str] = {
    "servegen-large": "servegen_language-m-large-trace.tar.xz",
    "servegen-small": "servegen_language-m-small-trace.tar.xz",
    "servegen-reason": "servegen_reason-deepseek-r1-trace.tar.xz",
    "gentd26": "alibaba_gentd26_lora_request_trace.csv.xz",
}
_SERVEGEN: Mapping[str, tuple[int, float]] = {
    "servegen-large": (8 * _DAY_S, _MEAN_S),
    "servegen-small": (_DAY_S + 4 * 3600, _MEAN_S),
    "servegen-reason": (6 * 3600, _REASON_MEAN_S),
}
"""The span's first second, and the mean seconds of service of a request."""


def tenants(name: str, traces: Path, seed: int) -> Sequence[Wishes]:
    """The tenants of one trace. Raises TraceError if the trace is not there."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    path = traces / FILES[name]
    if name in _SERVEGEN:
        return _services(name, path, rng)
    return _jobs(name, path, rng)
