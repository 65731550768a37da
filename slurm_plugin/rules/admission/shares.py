"""Computes the CPUs and memory that a job may have for each of its GPUs.

A job with one slice and all CPUs of a node keeps other jobs from all slices of the node, and is
charged for one. With these bounds a node runs out of neither before its slices.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.nodes import node_capacity

PerSlice = float | Literal["any"] | None
"""A setting: the most for each slice, "any", or None for each slice's part of its node."""

_SLICE = 1000
_NO_MEMORY_MIB = 1
"""The memory that Slurm shows for a node for which slurm.conf gives none."""


@dataclass(frozen=True)
class GpuSize:
    """The size of a GRES type.

    Attributes:
        model: model of its GPU; "" for a part of a shared GPU, whatever that is.
        millislices: its part of a GPU; a whole GPU is 7000, whatever weight the model has.
        board: the board that a MIG instance is a part of; None for a whole GPU, and for an instance
            of a board that is never repartitioned.
    """

    model: str
    millislices: Millislices
    board: WholeBoard | None = None


@dataclass(frozen=True)
class _Rate:
    """What a node has for each slice; CPUs count in whole cores of ``threads`` each."""

    model: str
    cores: Fraction
    threads: int
    memory_mib: Fraction


def shares(
    sizes: Mapping[str, GpuSize],
    nodes: Iterable[NodeView],
    cpus_per_slice: PerSlice,
    memory_mib_per_slice: PerSlice,
) -> Mapping[str, Mapping[str, int]]:
    """The ``cpus`` and ``memory_mib`` that a job may have for one instance, by GRES type.

    Unbounded ones are left out. With a bound on CPUs comes the most ``threads`` that a core of its
    nodes has, if more than one: Slurm gives a job all threads of each core that it uses.

    Values from the settings are rounded up. Values from nodes are rounded down to whole cores and
    MiB, at least one, and the poorest node of a model counts. So jobs that hold all slices of a
    node, each with its whole share, fit on the node, however its GPUs are cut.
    """
    rates = tuple(_rates(nodes, sizes))
    bounds_by_type = {}
    for gres_type, size in sizes.items():
        slices = Fraction(size.millislices, _SLICE)
        own = [rate for rate in rates if rate.model == size.model]
        cpus = [max(1, floor(rate.cores * slices)) * rate.threads for rate in own if rate.cores]
        memory = [max(1, floor(rate.memory_mib * slices)) for rate in own if rate.memory_mib]
        bounds = {
            "cpus": _bound(cpus_per_slice, slices, cpus),
            "memory_mib": _bound(memory_mib_per_slice, slices, memory),
        }
        if set_bounds := {what: most for what, most in bounds.items() if most is not None}:
            threads = max((rate.threads for rate in own), default=1)
            if "cpus" in set_bounds and threads > 1:
                set_bounds["threads"] = threads
            bounds_by_type[gres_type] = set_bounds
    return bounds_by_type


def _rates(nodes: Iterable[NodeView], sizes: Mapping[str, GpuSize]) -> Iterator[_Rate]:
    """The rates of each node, one for each model that it has."""
    costs = {gres_type: size.millislices for gres_type, size in sizes.items()}
    boards = {gres_type: size.board for gres_type, size in sizes.items() if size.board is not None}
    for node in nodes:
        slices = Fraction(node_capacity(node, costs, boards), _SLICE)
        kinds = [
            gres_type for gres_type, count in (*node.gpus.items(), *node.shared.items()) if count
        ]
        models = (
            {sizes[gres_type].model for gres_type in kinds if gres_type in sizes} if slices else ()
        )
        has_memory = node.memory_mib > _NO_MEMORY_MIB
        for model in models:
            cores = node.cpus // node.threads_per_core / slices
            memory_mib = Fraction(node.memory_mib * has_memory) / slices
            yield _Rate(model, cores, node.threads_per_core, memory_mib)


def _bound(per_slice: PerSlice, slices: Fraction, of_nodes: list[int]) -> int | None:
    if per_slice == "any":
        return None
    return min(of_nodes, default=None) if per_slice is None else ceil(Fraction(per_slice) * slices)
