"""Chooses a GPU type for jobs that leave the choice to Slicewise."""

from collections.abc import Iterable, Mapping

from slicewise.slurm_plugin.rules.admission.snapshot import GpuType


def choose_type(
    types: Iterable[GpuType],
    *,
    count: int,
    need_mib: int | None,
    limits: Mapping[str, int],
    partitions: frozenset[str],
) -> GpuType | None:
    """Choose the type for ``count`` instances of at least ``need_mib`` each; None if none fits.

    A type fits if a node in one of the partitions has it, the cluster has ``count`` instances, and
    the tenant's ``limits`` (instances by type) allow as many. With a need, the type's memory must
    be known. The cheapest type that fits is chosen. Ties are decided by these rules, in this order:

    - types with ``count`` free instances come first
    - if too few are free, the type with the fewest instances waited for, relative to its total
    - the least memory, which leaves larger types to jobs that need them
    - the most free instances
    - the name
    """
    fitting = (
        candidate
        for candidate in types
        if not partitions.isdisjoint(candidate.partitions)
        and has_memory(candidate, need_mib)
        and count <= min(candidate.total, limits.get(candidate.name, count))
    )
    return min(fitting, key=lambda candidate: _rank(candidate, count), default=None)


def has_memory(candidate: GpuType, need_mib: int | None) -> bool:
    """Whether an instance is known to have that much memory; True if there is no need (None)."""
    return need_mib is None or (
        candidate.memory_mib is not None and candidate.memory_mib >= need_mib
    )


def _rank(candidate: GpuType, count: int) -> tuple[int, bool, float, float, int, str]:
    memory_mib = float("inf") if candidate.memory_mib is None else candidate.memory_mib
    is_short = candidate.free < count
    queue = candidate.waiting / candidate.total if is_short else 0.0
    return candidate.cost_millislices, is_short, queue, memory_mib, -candidate.free, candidate.name
