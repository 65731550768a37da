"""Which GPU type a job gets that leaves the choice to us."""

from collections.abc import Iterable, Mapping

from slurm_plugin.decide.snapshot import GpuType


def choose_type(
    types: Iterable[GpuType],
    *,
    count: int,
    need_mib: int | None,
    limits: Mapping[str, int],
    partitions: frozenset[str],
) -> GpuType | None:
    """The type for ``count`` instances of at least ``need_mib`` each; None if none fits.

    The cheapest; among those one of which as many are free now; if there is none, the one for which
    the fewest wait per instance; then the one with the least memory, which leaves the larger ones
    to those who need them; then the freer one; then by name. A type fits if a node of one of the
    partitions has it, and if there are as many that its tenant may have. One of unknown memory fits
    only where no need is said.
    """
    fitting = (
        one
        for one in types
        if not partitions.isdisjoint(one.partitions)
        and has_memory(one, need_mib)
        and count <= min(one.total, limits.get(one.name, count))
    )
    return min(fitting, key=lambda one: _rank(one, count), default=None)


def has_memory(one: GpuType, need_mib: int | None) -> bool:
    """Whether an instance is known to have that much."""
    return need_mib is None or (one.memory_mib is not None and one.memory_mib >= need_mib)


def _rank(one: GpuType, count: int) -> tuple[int, bool, float, float, int, str]:
    memory_mib = float("inf") if one.memory_mib is None else one.memory_mib
    is_short = one.free < count
    queue = one.waiting / one.total if is_short else 0.0
    return one.cost_millislices, is_short, queue, memory_mib, -one.free, one.name
