"""Measures the sharing anomaly: how much longer tenants wait on a shared cluster than alone.

Alone, each tenant has a partition of its own.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.lending.cluster import Alone, Cluster, alone, packed
from studies.lending.shared import Shared
from studies.lending.tenants import FILES, SPAN_S, Wishes, backlog, tenants
from studies.lending.wants import Terms, Want

TOGETHER = "together"
"""Name of the replay of all traces on one cluster."""
NOMINALS: Mapping[str, float] = {"peak": 1.0, "p90": 0.9}
"""Rules for a tenant's nominal: what suffices for that part of the time."""


@dataclass(frozen=True)
class Cell:
    """One replay: all worlds of a trace's tenants, with nominals by a rule of ``NOMINALS``."""

    trace: str
    nominal: str


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}

CELLS = (
    Cell(TOGETHER, "p90"),
    *(Cell(trace, rule) for trace in FILES for rule in NOMINALS),
)
"""All replays; the one that takes longest comes first."""


def replayed(cell: Cell, traces: Path, seed: int, terms: Terms) -> Mapping[str, Any]:
    """Replay tenants alone, sharing, and sharing with a backlog that takes all that is lent."""
    names = tuple(FILES) if cell.trace == TOGETHER else (cell.trace,)
    wishes = [one for name in names for one in tenants(name, traces, seed)]
    nominal = [one.quantile(NOMINALS[cell.nominal]) for one in wishes]
    cluster = _cluster(wishes, nominal)
    partitions = [alone(one, count) for one, count in zip(wishes, nominal, strict=True)]
    fillers = backlog(sum(map(Counter, cluster.instances.values()), Counter[str]()))
    worlds = {
        "shared": Shared(wishes, nominal, cluster, terms),
        "with_backlog": Shared(
            [*wishes, *fillers], [*nominal, *(0 for _ in fillers)], cluster, terms
        ),
    }
    found = {}
    for name, world in worlds.items():
        world.run()
        found[name] = _compared(world, wishes, partitions, cluster, terms)
    held = sum(one.held_millislice_s for one in partitions)
    return {
        "tenants": len(wishes),
        "asks": sum(len(one.asks) for one in wishes),
        "gpus": cluster.gpus,
        "alone": {
            "utilisation": _share(held, cluster),
            "replica_seconds_served": _served_alone(wishes, nominal),
            "wait_s": _distribution(
                [w for one in partitions for w in one.waits_s if w is not None]
            ),
        },
        "worlds": found,
    }


def _cluster(wishes: Sequence[Wishes], nominal: Sequence[int]) -> Cluster:
    needed: Counter[str] = Counter()
    for one, count in zip(wishes, nominal, strict=True):
        needed[one.kind] += count
    return packed(needed)


def _share(held_millislice_s: int, cluster: Cluster) -> float:
    return round(held_millislice_s / (cluster.millislices * SPAN_S), 4)


def _compared(
    world: Shared,
    wishes: Sequence[Wishes],
    partitions: Sequence[Alone],
    cluster: Cluster,
    terms: Terms,
) -> Mapping[str, Any]:
    pairs = list(_pairs(world, partitions))
    within = [(want, alone_s) for want, alone_s in pairs if not _borrows(want, wishes)]
    beyond = [(want, alone_s) for want, alone_s in pairs if _borrows(want, wishes)]
    more_s = [want.waited_s - alone_s - terms.grace_s for want, alone_s in within]
    return {
        "anomaly_max_s": max(more_s, default=-terms.grace_s),
        "anomaly_s": _distribution(more_s),
        "within_nominal": len(within),
        "beyond_grace": sum(each > 0 for each in more_s),
        "wait_s": _distribution([want.waited_s for want, _ in within]),
        "borrowers": _borrowers(beyond, terms),
        "replica_seconds_served": _served(w for w in world.wants if w.tenant < len(partitions)),
        "utilisation": _share(world.counts.held_millislice_s, cluster),
        **vars(world.counts),
    }


def _borrows(want: Want, wishes: Sequence[Wishes]) -> bool:
    """Whether the ask is a job of a borrower: work that was sent away is redone before it."""
    return want.ask.level == 0 and wishes[want.tenant].borrows


def _pairs(world: Shared, partitions: Sequence[Alone]) -> Iterator[tuple[Want, int]]:
    """Asks that start on their tenant's partition within the span, and the seconds waited there.

    A replica waits while it is wanted and does not run. A job waits while it has not run, and
    before it runs again.
    """
    waits = [iter(one.waits_s) for one in partitions]
    for want in world.wants:
        if want.tenant < len(partitions):
            alone_s = next(waits[want.tenant])
            if alone_s is not None and want.submit_s + alone_s < SPAN_S:
                yield want, alone_s


def _borrowers(pairs: Sequence[tuple[Want, int]], terms: Terms) -> Mapping[str, float]:
    """Figures of borrowing tenants' jobs: what borrowing brings them, and costs them at worst."""
    if not pairs:
        return {}
    ends_s = [(_end_s(want), alone_s) for want, alone_s in pairs]
    later = [shared_s - alone_s - terms.grace_s for shared_s, alone_s in ends_s]
    return {
        "jobs": len(pairs),
        "mean_wait_alone_s": round(statistics.mean(alone_s for _, alone_s in pairs), 1),
        "mean_wait_s": round(statistics.mean(shared_s for shared_s, _ in ends_s), 1),
        "later_than_alone_share": round(sum(each > 0 for each in later) / len(later), 4),
        "later_max_s": max(later),
        "sent_away": sum(want.sent_away > 0 for want, _ in pairs),
    }


def _end_s(want: Want) -> int:
    """Seconds from submission to the start of the last run; to the span's end if it never ran."""
    started_s = want.last_start_s
    return (SPAN_S if started_s is None else started_s) - want.submit_s


def _served(wants: Iterable[Want]) -> float | None:
    """The share of wanted replica-seconds in which replicas ran; None if there are only jobs."""
    wanted = waited = 0
    for want in wants:
        if want.ask.until_s is not None:
            wanted += want.ask.until_s - want.submit_s
            waited += want.waited_s
    return round(1 - waited / wanted, 4) if wanted else None


def _served_alone(wishes: Sequence[Wishes], nominal: Sequence[int]) -> float | None:
    """The same share on partitions, where the first replicas run and the others never."""
    wanted = ran = 0
    for one, count in zip(wishes, nominal, strict=True):
        for ask in one.asks:
            if ask.until_s is not None:
                wanted += ask.until_s - ask.submit_s
                ran += (ask.until_s - ask.submit_s) * (ask.level <= count)
    return round(ran / wanted, 4) if wanted else None


def _distribution(seconds: Sequence[int]) -> Mapping[str, float]:
    if not seconds:
        return {}
    found = {name: float(np.quantile(seconds, part)) for name, part in _QUANTILES.items()}
    return {**found, "max": max(seconds)}
