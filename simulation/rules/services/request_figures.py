"""What became of a service's requests, and what its replicas held for that."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from slicewise.simulation.rules.services.service import SimulatedService

_TAIL = 0.99
MINUTE_S = 60.0


@dataclass(frozen=True)
class ServiceRecord:
    """What a service left behind, up to some moment.

    Attributes:
        waits_s: seconds that each request waited for its place in a replica; ``inf`` if it had none
            yet.
        answers_s: when each was or will be answered, in Unix seconds; ``inf`` if that is not known,
            or if it was lost with its replica.
        runs: from when to when each replica held its slices; ``inf`` if it still did.
        changes_s: when a replica was released, withdrawn or told to end.
        cost_millislices: of one replica.
        loads_s: when replicas that ran began to load its model, in Unix seconds.
        pooled: slice-seconds of other services' replicas that it has used, by when that minute
            began; below 0 others of its own.
    """

    service: SimulatedService
    waits_s: Sequence[float]
    answers_s: Sequence[float]
    runs: Sequence[tuple[float, float]]
    changes_s: Sequence[float]
    cost_millislices: int
    loads_s: Sequence[float] = ()
    pooled: Mapping[float, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ServiceOutcome:
    """One service between two moments, or over several such times that follow one another.

    Attributes:
        service: ``tenant/service``.
        waits_s: of the requests that came then, for a place in a replica; one that had none yet
            has waited until the end.
        judged, in_time: how many of these requests can be judged, and how many of those met the
            service's aim. One that still waited, and not for too long yet, is not judged.
        slice_s: slice-seconds that replicas held, from the allotment to the end of their jobs. In a
            pool what it used of others' replicas counts, and what others used of its own does not:
            together they come to what all their replicas held.
        changes: how often a replica was released, withdrawn or told to end.
        lost: requests whose replica ended while it worked on them.
        loads: how often a replica that ran loaded its model, in a pool.
    """

    service: str
    waits_s: tuple[float, ...]
    judged: int
    in_time: int
    slice_s: float
    changes: int
    lost: int
    loads: int = 0

    @property
    def requests(self) -> int:
        """How many requests came."""
        return len(self.waits_s)

    @property
    def attainment(self) -> float:
        """Share of the requests that met the service's aim; 1 without requests."""
        return self.in_time / self.judged if self.judged else 1.0

    @property
    def wait_p99_s(self) -> float:
        """99th percentile of the waits; 0 without requests."""
        return sorted(self.waits_s)[ceil(_TAIL * len(self.waits_s)) - 1] if self.waits_s else 0.0


def joined_outcome(parts: Sequence[ServiceOutcome]) -> ServiceOutcome:
    """Join what became of one service in times that follow one another; there is at least one."""
    return ServiceOutcome(
        service=parts[0].service,
        waits_s=tuple(wait_s for part in parts for wait_s in part.waits_s),
        judged=sum(part.judged for part in parts),
        in_time=sum(part.in_time for part in parts),
        slice_s=sum(part.slice_s for part in parts),
        changes=sum(part.changes for part in parts),
        lost=sum(part.lost for part in parts),
        loads=sum(part.loads for part in parts),
    )


def outcome(of: ServiceRecord, *, since_s: float, until_s: float) -> ServiceOutcome:
    """Return the figures of the requests that came between two moments.

    The record may go on after the second one: what is known later of these requests counts.
    """
    service = of.service
    first, last = (bisect_left(service.arrivals_s, at_s) for at_s in (since_s, until_s))
    arrivals = service.arrivals_s[first:last]
    waits, answers = of.waits_s[first:last], of.answers_s[first:last]
    within_s, by_answer = service.within_s, service.spec.p95_ms is not None
    judged = in_time = lost = 0
    for at_s, wait_s, answer_s in zip(arrivals, waits, answers, strict=True):
        is_lost = wait_s < inf == answer_s
        lost += is_lost
        if wait_s == inf and until_s - at_s <= within_s:
            continue
        judged += 1
        in_time += not is_lost and (answer_s - at_s if by_answer else wait_s) <= within_s
    held_s = sum(
        max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for begin_s, end_s in of.runs
    )
    return ServiceOutcome(
        service=service.key,
        waits_s=tuple(
            until_s - at_s if wait_s == inf else wait_s
            for at_s, wait_s in zip(arrivals, waits, strict=True)
        ),
        judged=judged,
        in_time=in_time,
        slice_s=held_s * of.cost_millislices / 1000
        + sum(
            slice_s for at_s, slice_s in of.pooled.items() if since_s - MINUTE_S < at_s < until_s
        ),
        changes=sum(since_s <= at_s < until_s for at_s in of.changes_s),
        lost=lost,
        loads=sum(since_s <= at_s < until_s for at_s in of.loads_s),
    )
