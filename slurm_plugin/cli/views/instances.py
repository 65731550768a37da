"""Which instances serve which service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import computed_field
from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.cluster.language.service import MAX_SLOTS
from slicewise.cluster.language.units import counted, slices_text, slices_words
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.slurm_plugin.cli.views.mig import bar, counts_text
from slicewise.slurm_plugin.rules.mig.instances import InstancePlan, ServiceLoad

_MOST_CONCURRENCY = 1024
"""The largest ``concurrency`` in a service's file."""


@dataclass(frozen=True)
class ChosenInstance:
    """Instances of one type that serve a service; each costs ``cost_millislices``."""

    service: str
    type: str
    count: int
    batch: int
    processes: int
    throughput_mrps: int
    latency_us: int
    cost_millislices: int


@dataclass(frozen=True)
class ChosenLayout:
    """A layout, and how many GPUs get it."""

    gpus: int
    instances: Sequence[Placement]


@dataclass(frozen=True)
class ChosenInstances:
    """Which instances of one board carry the loads."""

    on: Annotated[Board, HIDDEN]
    plan: Annotated[InstancePlan, HIDDEN]
    loads: Annotated[Mapping[str, ServiceLoad], HIDDEN]
    types: Annotated[Mapping[str, str], HIDDEN]
    """The GRES types that were measured, by profile."""
    costs: Annotated[Mapping[str, int], HIDDEN]
    """Millislices by profile."""
    token_services: Annotated[frozenset[str], HIDDEN]
    """Those of language models, whose batch is the requests at a time."""

    @computed_field
    @property
    def board(self) -> str:
        """The GPU model."""
        return self.on.model

    @computed_field
    @property
    def gpus(self) -> int:
        """GPUs that hold them."""
        return self.plan.gpus

    @computed_field
    @property
    def at_least(self) -> int:
        """GPUs that are needed at least."""
        return self.plan.at_least

    @computed_field
    @property
    def instances(self) -> Sequence[ChosenInstance]:
        """What serves each service."""
        return [
            ChosenInstance(
                name,
                self.types[row.profile],
                count,
                row.batch,
                row.processes,
                row.throughput_mrps,
                row.latency_us,
                self.costs[row.profile],
            )
            for name, found in self.plan.instances.items()
            for row, count in found.items()
        ]

    @computed_field
    @property
    def cost_millislices(self) -> int:
        """Cost of all instances together."""
        return sum(instance.cost_millislices * instance.count for instance in self.instances)

    @computed_field
    @property
    def layouts(self) -> Sequence[ChosenLayout]:
        """How GPUs are cut, the most frequent first."""
        found = sorted(self.plan.layouts.items(), key=lambda pair: (-pair[1], sorted(pair[0])))
        return [ChosenLayout(count, sorted(layout)) for layout, count in found]


def report(chosen: ChosenInstances) -> RenderableType:
    """Instances, GPUs, and what goes into the services' files."""
    cost = slices_words(chosen.cost_millislices)
    return Group(
        _instances_table(chosen),
        Text(f"{counted(chosen.gpus, 'GPU')} of {chosen.board} hold them; they cost {cost}."),
        _layouts_table(chosen),
        *(Text(line) for line in _file_lines(chosen)),
    )


def _instances_table(chosen: ChosenInstances) -> FittingTable:
    rows = chosen.instances
    return FittingTable(
        (
            column("service", (row.service for row in rows)),
            column("instances", (f"{row.count} × {row.type}" for row in rows)),
            column("batch", (row.batch for row in rows), right=True),
            column("processes", (row.processes for row in rows), right=True),
            column("serve/s", map(_rate, rows), right=True),
            column("of", (_asked(chosen.loads[row.service]) for row in rows), right=True, rank=2),
            column("p95 ms", (f"{row.latency_us / 1000:,.1f}" for row in rows), right=True),
            column(
                "slices each",
                (slices_text(row.cost_millislices) for row in rows),
                right=True,
                rank=1,
            ),
        )
    )


def _rate(row: ChosenInstance) -> str:
    return f"{row.throughput_mrps * row.count / 1000:,.1f}"


def _asked(load: ServiceLoad) -> str:
    return f"{load.rate_mrps / 1000:,.1f}"


def _layouts_table(chosen: ChosenInstances) -> FittingTable:
    slices, layouts = chosen.on.memory_slices, chosen.layouts
    return FittingTable(
        (
            column("GPUs", (layout.gpus for layout in layouts), right=True),
            column("memory slices", (bar(slices, layout.instances) for layout in layouts)),
            column("instances", (counts_text(layout.instances) for layout in layouts)),
        )
    )


def _file_lines(chosen: ChosenInstances) -> Sequence[str]:
    """Lines for services' files, a block for each configuration.

    All replicas of a service have the same type: if several types serve a load, each needs a
    service of its own.
    """
    lines = []
    for row in chosen.instances:
        concurrency = min(_MOST_CONCURRENCY, row.batch * row.processes)
        parts = f"  # batch {row.batch} × processes {row.processes}"
        lines += [
            f"# {row.service}",
            f'profile = "{row.type}"',
            _slots_line(row.count),
            f"concurrency = {concurrency}{'' if row.service in chosen.token_services else parts}",
        ]
    return lines


def _slots_line(count: int) -> str:
    several = f"  # of {count}: several services" if count > MAX_SLOTS else ""
    return f"max_replicas = {min(count, MAX_SLOTS)}{several}"
