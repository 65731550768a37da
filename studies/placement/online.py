"""Replays requests that come one by one and hold an instance; one that fits nowhere is refused."""

from collections.abc import Sequence
from heapq import heappop, heappush

from studies.placement.pods import SLICES, Request
from studies.placement.policies import Choice, Cluster, Policy


def replay(requests: Sequence[Request], gpus: int, policy: Policy, warm: float) -> float:
    """Slice-hours accepted ÷ asked for; the first ``warm`` part of the time only fills the GPUs."""
    cluster, ends = Cluster(gpus), list[tuple[float, int, Choice]]()
    from_s = warm * requests[-1].at_s
    asked = accepted = 0.0
    for number, request in enumerate(requests):
        _end(cluster, policy, ends, request.at_s)
        choice = policy.choose(cluster, request.profile)
        slice_s = SLICES[request.profile] * request.held_s * (request.at_s >= from_s)
        asked += slice_s
        if choice is not None:
            accepted += slice_s
            cluster.place(choice.gpu, choice.placement, request.at_s)
            policy.changed(cluster, choice.gpu)
            heappush(ends, (request.at_s + request.held_s, number, choice))
    return accepted / asked


def _end(
    cluster: Cluster, policy: Policy, ends: list[tuple[float, int, Choice]], until_s: float
) -> None:
    while ends and ends[0][0] <= until_s:
        choice = heappop(ends)[2]
        cluster.free(choice.gpu, choice.placement)
        policy.changed(cluster, choice.gpu)
