"""``slicewise mig``: profiles, layouts, costs, and the files of NVIDIA's mig-parted."""

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import computed_field
from rich.text import Text

from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.gpu.nvml import read_inventory
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus import parted
from slicewise.cluster.language.gpus.layouts import Layout, Placement, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, board, boards, profile_of, sources
from slicewise.cluster.runtime.console import FittingTable, column, console, print_json
from slicewise.cluster.runtime.input_file import input_text
from slicewise.cluster.runtime.output_options import Json
from slicewise.slurm_plugin.cli.commands.costs import costs_app
from slicewise.slurm_plugin.cli.commands.mig_instances import instances
from slicewise.slurm_plugin.cli.common.node_options import HostRoot
from slicewise.slurm_plugin.cli.views.mig import bar, counts_text, layouts_table, profiles_table

mig_app = typer.Typer(
    no_args_is_help=True,
    help="How GPUs can be cut: profiles, layouts, costs.",
    epilog="Examples: slicewise mig profiles H200-141GB | slicewise mig costs",
)
mig_app.add_typer(costs_app)


def _complete_model(incomplete: str) -> list[str]:
    return sorted(name for name in boards() if name.startswith(incomplete))


@dataclass(frozen=True)
class ShownBoards:
    """Boards with their MIG profiles, and where the numbers are from."""

    boards: Sequence[Board]
    sources: Mapping[str, Any]


Model = Annotated[
    str,
    typer.Argument(
        help="A GPU model of the table.", show_default=False, autocompletion=_complete_model
    ),
]
AnyModel = Annotated[
    str | None,
    typer.Argument(
        help="A GPU model of the table; all if left out.",
        show_default=False,
        autocompletion=_complete_model,
    ),
]


@mig_app.command(
    epilog="Examples: slicewise mig profiles H200-141GB | slicewise mig profiles --json"
)
def profiles(model: AnyModel = None, as_json: Json = False) -> None:
    """Show the MIG profiles of a GPU model: what each takes, and where it may start.

    Starts are memory slices. The table is only a fallback: on a node, what its driver says counts
    (slicewise node probe shows where they differ).
    """
    shown = [board(model)] if model else list(boards().values())
    if as_json:
        print_json(ShownBoards(shown, sources()))
        return
    rows = [(board, profile) for board in shown for profile in board.profiles.values()]
    console().print(profiles_table(rows))


@mig_app.command(
    epilog="Examples: slicewise mig layouts A100-80GB"
    " | slicewise mig layouts H200-141GB --with 3g.71gb --with 1g.35gb"
)
def layouts(
    model: Model,
    wanted: Annotated[
        list[str] | None,
        typer.Option("--with", help="Only layouts with this profile; may be given several times."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="Also layouts to which an instance could be added.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show how a GPU can be cut: the layouts to which nothing can be added.

    Profiles that differ from another profile only in their media or graphics engines are left out,
    unless --with names them.
    """
    least = Counter(profile_of(board(model), name).name for name in wanted or ())
    on = _plain(board(model), besides=least)
    found = geometry(on)
    shown = [
        layout for layout in (found.layouts if every else found.maximal) if _has(layout, least)
    ]
    if as_json:
        print_json([sorted(layout, key=_start) for layout in shown])
        return
    console().print(layouts_table(on, shown).or_say("No layout has these profiles."))
    console().print(Text(f"{len(shown)} layouts"))


def _plain(on: Board, besides: Collection[str]) -> Board:
    shown = {
        name: profile
        for name, profile in on.profiles.items()
        if not profile.extension or name in besides
    }
    return replace(on, profiles=shown)


def _has(layout: Layout, least: Counter[str]) -> bool:
    return least <= Counter(placement.profile for placement in layout)


def _start(placement: Placement) -> int:
    return placement.start


mig_app.command(
    epilog="Examples: slicewise mig instances bert.profile.json --rate 400 --slo-ms 100"
    " | slicewise mig instances --service chat=bert.profile.json,400,100"
    " --service search=resnet50.csv,90,250 --board A100-80GB"
)(instances)


@mig_app.command(
    epilog="Examples: slicewise mig export"
    " | slicewise mig export --config-label today > config.yaml"
)
def export(
    config_label: Annotated[str, typer.Option(help="The configuration's name.")] = "current",
    host_root: HostRoot = ROOT,
) -> None:
    """Print how the node's GPUs are cut, as a configuration file of mig-parted.

    Such a file says how many instances there are, not where they lie.
    """
    sys.stdout.write(parted.text_of(config_label, read_inventory(host_root).gpus))


@dataclass(frozen=True)
class ModelLayout:
    """One entry of a mig-parted file, applied to one GPU model.

    Attributes:
        model: None is any model, or without a layout no model of the table.
        layout: where the instances could lie; None if they don't fit.
    """

    config: str
    entry: Annotated[parted.Entry, HIDDEN]
    board: Annotated[Board | None, HIDDEN]
    layout: Sequence[Placement] | None

    @computed_field
    @property
    def model(self) -> str | None:
        """The GPU model."""
        return None if self.board is None else self.board.model

    @computed_field
    @property
    def devices(self) -> tuple[int, ...] | None:
        """The GPUs to which the entry applies; null is all."""
        return self.entry.devices

    @computed_field
    @property
    def mig(self) -> bool:
        """Whether MIG is on there."""
        return self.entry.mig


@mig_app.command(
    "import",
    epilog="Examples: slicewise mig import config.yaml --selected-config all-balanced"
    " | slicewise mig import config.yaml --model H200-141GB --json",
)
def import_(
    file: Annotated[
        Path, typer.Argument(help="A configuration file of mig-parted; - for standard input.")
    ],
    selected_config: Annotated[
        str | None, typer.Option(help="One of the file's configurations; all if left out.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Only this GPU model.", autocompletion=_complete_model),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a configuration file of mig-parted, and show where its instances would lie.

    Nothing is cut. An entry without a device-filter is shown for each model that has its profiles,
    or for --model. Exits 1 if instances of an entry don't fit beside each other, if a model that is
    shown lacks one of the profiles, or if no model has them.
    """
    found = list(_model_layouts(_chosen(parted.parse(input_text(file)), selected_config), model))
    if as_json:
        print_json(found)
    else:
        console().print(_layouts_table(found))
    if any(layout.layout is None for layout in found):
        raise typer.Exit(1)


def _chosen(configs: parted.Configs, name: str | None) -> Iterable[tuple[str, parted.Entry]]:
    if name is not None and name not in configs:
        raise InvalidInputError(
            Code.INPUT_FILE,
            f"The file has no configuration {name!r}.",
            f"It has: {', '.join(configs)}.",
        )
    chosen = configs if name is None else {name: configs[name]}
    return [(each, entry) for each, entries in chosen.items() for entry in entries]


def _model_layouts(
    entries: Iterable[tuple[str, parted.Entry]], model: str | None
) -> Iterator[ModelLayout]:
    models = [board(model)] if model else list(boards().values())
    for config, entry in entries:
        if not entry.counts and not entry.pci_device_ids:
            yield ModelLayout(config, entry, None, ())
            continue
        about = [on for on in models if entry.concerns(on)]
        named = model or entry.pci_device_ids
        shown = [on for on in about if named or not _lacking(entry, on)]
        for on in shown:
            layout = parted.placed(on, entry.counts)
            placed = None if layout is None else sorted(layout, key=_start)
            yield ModelLayout(config, entry, on, placed)
        if not shown and not model:
            yield ModelLayout(config, entry, None, None if entry.counts else ())


def _lacking(entry: parted.Entry, on: Board) -> tuple[str, ...]:
    return parted.lacking(on, entry.counts)


def _layouts_table(model_layouts: Sequence[ModelLayout]) -> FittingTable:
    return FittingTable(
        (
            column("configuration", (model_layout.config for model_layout in model_layouts)),
            column("GPU model", map(_model, model_layouts)),
            column("GPUs", map(_devices, model_layouts), rank=1),
            column("memory slices", map(_bar, model_layouts), brief=map(_brief, model_layouts)),
            column("instances", map(_instances, model_layouts), rank=2),
        )
    )


def _model(model_layout: ModelLayout) -> str:
    if model_layout.board is not None:
        return model_layout.board.model
    return "none" if model_layout.layout is None else "any"


def _devices(model_layout: ModelLayout) -> str:
    devices = model_layout.entry.devices
    return "all" if devices is None else ",".join(map(str, devices))


def _bar(model_layout: ModelLayout) -> Text:
    if not model_layout.entry.mig:
        return Text("MIG is off", style="dim")
    if model_layout.layout is None:
        return Text(_refusal(model_layout), style="red")
    if model_layout.board is None:
        return Text("nothing is cut", style="dim")
    return bar(model_layout.board.memory_slices, model_layout.layout)


def _brief(model_layout: ModelLayout) -> object:
    return counts_text(model_layout.layout) if model_layout.layout else _bar(model_layout)


def _refusal(model_layout: ModelLayout) -> str:
    if model_layout.board is None:
        return f"no such GPU model is known to have {', '.join(model_layout.entry.counts)}"
    lacking = _lacking(model_layout.entry, model_layout.board)
    return f"has no {', '.join(lacking)}" if lacking else "does not fit"


def _instances(model_layout: ModelLayout) -> object:
    return "" if model_layout.layout is None else counts_text(model_layout.layout)
