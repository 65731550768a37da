"""Decides when a replica of a pool is worn: servers don't give back all memory of their models."""

from dataclasses import replace

from slicewise.launcher.rules.pools.server_memory import ServerMemory
from slicewise.launcher.rules.pools.types import ReplicaModels, Told

MOST_LOADS = 100
"""Loads after which a replica is replaced: TorchScript kept 1 GB of GPU memory in 50 loads
(triton-inference-server/server#5841), others memory of the node (#7727)."""
MOST_LEFT = 0.25
"""Share of a replica's memory, beyond what its models account for, from which on it is replaced:
with less, models that placing counts on still fit, and a kernel has killed no server yet."""
SETTLES_S = 3600.0
"""Seconds for which all that a replica takes is what it takes at first: what fills with its first
requests, as caches do, would have each successor replaced as well."""


def with_wear(
    told: Told, heard: ReplicaModels, others_mib: int | None, most: ServerMemory, now_s: float
) -> Told:
    """Take over what a replica has said of its loads and memory, and whether it is worn by them.

    ``others_mib`` is the memory of the models that it has beside its own. Any of them may be in the
    node's memory or in the GPU's: each is taken to explain that much of both. None is not known:
    then nothing is learnt from its memory. ``most`` is what the replica has: 0 is not known.
    """
    loads = max(told.loads, heard.loads)
    told = replace(told, loads=loads, is_worn=told.is_worn or loads > MOST_LOADS)
    if others_mib is None:
        return told
    seen, is_settled = heard.memory, now_s - told.start_s >= SETTLES_S
    first = ServerMemory(
        _first_mib(told.first.host_mib, seen.host_mib, others_mib, is_settled=is_settled),
        _first_mib(told.first.gpu_mib, seen.gpu_mib, others_mib, is_settled=is_settled),
    )
    is_full = any(
        have_mib and more_mib - others_mib > MOST_LEFT * have_mib
        for more_mib, have_mib in (
            (seen.host_mib - first.host_mib, most.host_mib),
            (seen.gpu_mib - first.gpu_mib, most.gpu_mib),
        )
    )
    return replace(told, first=first, is_worn=told.is_worn or (is_settled and is_full))


def _first_mib(first_mib: int, seen_mib: int, others_mib: int, *, is_settled: bool) -> int:
    """Return what a replica takes at first: until it settles, the most beyond other models.

    Never less than what it has said first: models that lie in the other memory explain too much.
    """
    first_mib = first_mib or seen_mib
    return first_mib if is_settled else max(first_mib, seen_mib - others_mib)
