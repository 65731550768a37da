"""Loads of many services at once: requests by base model, and by client."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from studies.autoscale import servegen, traces
from studies.autoscale.shared import NODES, SharedLoad
from studies.autoscale.traces import Requests
from studies.autoscale.workload import Floats, draw_starts, enough

WARM_S = 1200
"""Seconds of each replay that do not count: policies learn, nodes fill."""
SPAN_S = 5400
_STARTS = 20_000
_DAY_S = 86_400
_BUSY_S = 4 * 3600
"""Where the busiest hours of GenTD26's day begin."""


def pool_words(size: int) -> str:
    """What a report adds to a policy's name for pools of so many services; 0: one of all."""
    return {1: "", 0: ", one pool"}.get(size, f", pools of {size}")


@dataclass(frozen=True)
class Fleet:
    """Services of one owner, which may share replicas.

    Attributes:
        services: arrivals and seconds of work of each, in an order that says nothing.
        concurrency: requests that a replica works on at a time, of whichever service.
        load_s: seconds that models take to load, as measured.
    """

    name: str
    services: Sequence[Requests]
    concurrency: int
    load_s: Floats
    seed: int

    def pools(self, size: int, *, cached: bool) -> list[SharedLoad]:
        """Return the loads of pools of so many services; 0: one pool of all."""
        size = size or len(self.services)
        firsts = range(0, len(self.services), size)
        return [replace(self._pool(first, size), cached=cached) for first in firsts]

    def _pool(self, first: int, size: int) -> SharedLoad:
        members = self.services[first : first + size]
        arrivals, work = (np.concatenate(parts) for parts in zip(*members, strict=True))
        models = np.repeat(np.arange(len(members)), [times.size for times, _ in members])
        order = np.argsort(arrivals, kind="stable")
        arrivals, work, models = arrivals[order], work[order], models[order]
        rng = np.random.default_rng([self.seed, zlib.crc32(self.name.encode()), first])
        return SharedLoad(
            name=f"{self.name} {first}",
            arrivals_s=arrivals,
            service_s=work,
            duration_s=SPAN_S,
            concurrency=self.concurrency,
            starts=draw_starts(self.load_s, rng),
            first_replicas=enough(arrivals, work, self.concurrency, WARM_S),
            warm_s=WARM_S,
            models=models,
            count=len(members),
            nodes=rng.integers(NODES, size=_STARTS),
            cached=False,
        )


def _gentd26(folder: Path, rng: np.random.Generator) -> list[Requests]:
    """GenTD26 by base model: a busy hour and a half of its 23 days, folded into one."""
    path = folder / traces.STORED["gentd26"][0]
    times, work, models = traces.gentd26_by_model(path, rng)
    return _by_model(times % _DAY_S - _BUSY_S, work, models)


def _by_model(times: Floats, work: Floats, models: np.ndarray) -> list[Requests]:
    order = np.argsort(times, kind="stable")
    order = order[(times[order] >= 0) & (times[order] < SPAN_S)]
    return [
        (times[order[models[order] == model]], work[order[models[order] == model]])
        for model in np.unique(models)
    ]


def _servegen(name: str) -> Callable[[Path, np.random.Generator], list[Requests]]:
    """ServeGen's clients, each of them a service with a model of its own."""

    def read(folder: Path, rng: np.random.Generator) -> list[Requests]:
        mean_s, first_s, _ = traces.SERVEGEN_SPANS[name]
        path = folder / traces.STORED[name][0]
        traces.require(path)
        clients = servegen.clients(path, first_s, SPAN_S)
        busiest = servegen.BUSIEST_PLACES / mean_s
        parts = servegen.arrivals_by_client(clients, SPAN_S, busiest, rng)
        return [(part, servegen.service_times(part.size, mean_s, rng)) for part in parts]

    return read


FLEETS: Mapping[str, tuple[int, Callable[[Path, np.random.Generator], list[Requests]]]] = {
    "gentd26": (1, _gentd26),
    "servegen-large": (4, _servegen("servegen-large")),
    "servegen-reason": (4, _servegen("servegen-reason")),
}
"""Requests that a replica works on at a time, and how the requests are read."""


def fleet(name: str, folder: Path, seed: int) -> Fleet:
    """Return a load of ``FLEETS``; services without a request in the span are left out."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    concurrency, read = FLEETS[name]
    services = [part for part in read(folder, rng) if part[0].size]
    order = rng.permutation(len(services))
    loads_s = traces.loads_s(folder)
    return Fleet(name, [services[index] for index in order], concurrency, loads_s, seed)
