"""What became of a service's requests, and what its replicas held for that."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, inf

from simulation.services.gateway import ServiceGateway
from simulation.services.service import SimulatedService

_TAIL = 0.99


@dataclass(frozen=True)
class ServiceOutcome:
    """One service between two moments.

    Attributes:
        service: ``tenant/service``.
        requests: that came then.
        attainment: share of them that met the service's aim; 1 without requests. One that still
            waited at the end, and not for too long yet, does not count.
        wait_p99_s: 99th percentile of their waits for a place in a replica; one that has none yet
            has waited until the end.
        slice_s: slice-seconds that replicas held, from the allotment to the end of their jobs.
        changes: how often a replica was released, withdrawn or told to end.
        lost: requests whose replica ended while it worked on them.
    """

    service: str
    requests: int
    attainment: float
    wait_p99_s: float
    slice_s: float
    changes: int
    lost: int


def outcome(
    service: SimulatedService,
    gateway: ServiceGateway,
    changes_s: Iterable[float],
    cost_millislices: int,
    *,
    since_s: float,
    until_s: float,
) -> ServiceOutcome:
    """Return the figures of what came between two moments; the second is now or earlier."""
    requests = gateway.requests
    first, last = (bisect_left(requests.arrivals, at_s) for at_s in (since_s, until_s))
    arrivals = requests.arrivals[first:last]
    waits, answers = requests.waits[first:last], requests.answers[first:last]
    within_s, by_answer = service.within_s, service.spec.p95_ms is not None
    judged = in_time = lost = 0
    for at_s, wait_s, answer_s in zip(arrivals, waits, answers, strict=True):
        is_lost = wait_s < inf == answer_s
        lost += is_lost
        if wait_s == inf and until_s - at_s <= within_s:
            continue
        judged += 1
        in_time += not is_lost and (answer_s - at_s if by_answer else wait_s) <= within_s
    waited = [min(wait_s, until_s - at_s) for at_s, wait_s in zip(arrivals, waits, strict=True)]
    runs = [*gateway.past, *((run.began_s, until_s) for run in gateway.runs.values())]
    held_s = sum(max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for begin_s, end_s in runs)
    return ServiceOutcome(
        service=service.key,
        requests=len(arrivals),
        attainment=in_time / judged if judged else 1.0,
        wait_p99_s=sorted(waited)[ceil(_TAIL * len(waited)) - 1] if waited else 0.0,
        slice_s=held_s * cost_millislices / 1000,
        changes=sum(since_s <= at_s < until_s for at_s in changes_s),
        lost=lost,
    )
