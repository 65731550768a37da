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
"""Seconds for which a replica is not replaced for its memory: what fills with its first requests,
as caches do, would have each successor replaced as well."""


def with_wear(
    told: Told, heard: ReplicaModels, others_mib: int, most: ServerMemory, now_s: float
) -> Told:
    """Take over what a replica has said of its loads and memory, and whether it is worn by them.

    ``others_mib`` is the memory of the models that it has beside its own. Any of them may be in the
    node's memory or in the GPU's: each is taken to explain that much of both. ``most`` is what the
    replica has: 0 is not known.
    """
    seen, loads = heard.memory, max(told.loads, heard.loads)
    first = ServerMemory(told.first.host_mib or seen.host_mib, told.first.gpu_mib or seen.gpu_mib)
    is_settled = now_s - told.start_s >= SETTLES_S
    is_full = any(
        have_mib and more_mib - others_mib > MOST_LEFT * have_mib
        for more_mib, have_mib in (
            (seen.host_mib - first.host_mib, most.host_mib),
            (seen.gpu_mib - first.gpu_mib, most.gpu_mib),
        )
    )
    is_worn = told.is_worn or loads > MOST_LOADS or (is_settled and is_full)
    return replace(told, loads=loads, first=first, is_worn=is_worn)
