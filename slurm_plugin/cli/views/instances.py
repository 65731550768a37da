"""Which instances serve which service, for people and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.gpus.layouts import Layout
from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.cluster.language.service import MAX_SLOTS
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.slurm_plugin.cli.views.mig import bar, counts_text
from slicewise.slurm_plugin.rules.mig.instances import InstancePlan, Measured, ServiceLoad

_MOST_CONCURRENCY = 1024
"""The largest ``concurrency`` in a service's file."""


@dataclass(frozen=True)
class ChosenInstances:
    """A plan for loads on one board.

    Attributes:
        types: the GRES types that were measured, by profile.
        costs: millislices by profile.
        token_services: those of language models, whose batch is the requests at a time.
    """

    board: Board
    plan: InstancePlan
    loads: Mapping[str, ServiceLoad]
    types: Mapping[str, str]
    costs: Mapping[str, int]
    token_services: frozenset[str]

    @property
    def rows(self) -> Sequence[tuple[str, Measured, int]]:
        """Service, measured configuration, and number of instances."""
        plan = self.plan.instances
        return [(name, row, count) for name in plan for row, count in plan[name].items()]

    @property
    def cost_millislices(self) -> int:
        """Cost of all instances together."""
        return sum(self.costs[row.profile] * count for _, row, count in self.rows)

    @property
    def layouts(self) -> Sequence[tuple[Layout, int]]:
        """Each layout with the number of GPUs that are cut that way, the most frequent first."""
        return sorted(self.plan.layouts.items(), key=lambda one: (-one[1], sorted(one[0])))


def as_json(chosen: ChosenInstances) -> Mapping[str, object]:
    """The plan as ``--json`` prints it."""
    return {
        "board": chosen.board.model,
        "gpus": chosen.plan.gpus,
        "at_least": chosen.plan.at_least,
        "cost_millislices": chosen.cost_millislices,
        "instances": [
            {
                "service": name,
                "type": chosen.types[row.profile],
                "count": count,
                "batch": row.batch,
                "processes": row.processes,
                "throughput_mrps": row.throughput_mrps,
                "latency_us": row.latency_us,
                "cost_millislices": chosen.costs[row.profile],
            }
            for name, row, count in chosen.rows
        ],
        "layouts": [
            {"gpus": count, "instances": [asdict(one) for one in sorted(layout)]}
            for layout, count in chosen.layouts
        ],
    }


def report(chosen: ChosenInstances) -> RenderableType:
    """Instances, GPUs, and what goes into the services' files."""
    gpus = chosen.plan.gpus
    counted = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    cost = slices_words(chosen.cost_millislices)
    return Group(
        _instances_table(chosen),
        Text(f"{counted} of {chosen.board.model} hold them; they cost {cost}."),
        _layouts_table(chosen),
        *(Text(line) for line in _file_lines(chosen)),
    )


def _instances_table(chosen: ChosenInstances) -> FittingTable:
    rows = chosen.rows
    costs = [chosen.costs[row.profile] for _, row, _ in rows]
    return FittingTable(
        (
            column("service", (name for name, _, _ in rows)),
            column("instances", (f"{n} × {chosen.types[row.profile]}" for _, row, n in rows)),
            column("batch", (row.batch for _, row, _ in rows), right=True),
            column("processes", (row.processes for _, row, _ in rows), right=True),
            column("serve/s", (_rate(row, n) for _, row, n in rows), right=True),
            column("of", (_asked(chosen.loads[name]) for name, _, _ in rows), right=True, rank=2),
            column("p95 ms", (f"{row.latency_us / 1000:,.1f}" for _, row, _ in rows), right=True),
            column("slices each", map(slices_text, costs), right=True, rank=1),
        )
    )


def _rate(row: Measured, count: int) -> str:
    return f"{row.throughput_mrps * count / 1000:,.1f}"


def _asked(load: ServiceLoad) -> str:
    return f"{load.rate_mrps / 1000:,.1f}"


def _layouts_table(chosen: ChosenInstances) -> FittingTable:
    slices = chosen.board.memory_slices
    return FittingTable(
        (
            column("GPUs", (count for _, count in chosen.layouts), right=True),
            column("memory slices", (bar(slices, layout) for layout, _ in chosen.layouts)),
            column("instances", (counts_text(layout) for layout, _ in chosen.layouts)),
        )
    )


def _file_lines(chosen: ChosenInstances) -> Sequence[str]:
    """Lines for services' files, a block for each configuration.

    All replicas of a service have the same type: if several types serve a load, each needs a
    service of its own.
    """
    lines = []
    for name, row, count in chosen.rows:
        concurrency = min(_MOST_CONCURRENCY, row.batch * row.processes)
        parts = f"  # batch {row.batch} × processes {row.processes}"
        lines += [
            f"# {name}",
            f'profile = "{chosen.types[row.profile]}"',
            _slots_line(count),
            f"concurrency = {concurrency}{'' if name in chosen.token_services else parts}",
        ]
    return lines


def _slots_line(count: int) -> str:
    several = f"  # of {count}: several services" if count > MAX_SLOTS else ""
    return f"max_replicas = {min(count, MAX_SLOTS)}{several}"
