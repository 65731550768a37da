"""``slicewise node``: what a GPU node has, and what Slurm has to know of it."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field
from rich.text import Text

from slicewise.cluster.gpu.apply import cut as cut_gpu
from slicewise.cluster.gpu.driver import read_inventory
from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, error, hint
from slicewise.cluster.language.gpus.gpu_faults import faults, table_differences
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.runtime.console import console, print_json
from slicewise.cluster.runtime.output_options import Json
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import devices_directory, load_settings, settings_file
from slicewise.slurm_plugin.cli.commands.node_meter import meter
from slicewise.slurm_plugin.cli.common.node_options import HostRoot, NodeName, node_name
from slicewise.slurm_plugin.cli.views.mig import node_report
from slicewise.slurm_plugin.rules.slurm_config import gres as slurm_gres
from slicewise.slurm_plugin.rules.slurm_config import node_lines

node_app = typer.Typer(
    no_args_is_help=True,
    help="A GPU node: what is in it, by its driver.",
    epilog="Examples: slicewise node probe | slicewise node gres",
)
node_app.command(epilog="Examples: slicewise node meter | slicewise node meter --node gpu07")(meter)


@dataclass(frozen=True, kw_only=True)
class ProbedNode(Inventory):
    """A node with findings about it.

    Attributes:
        faults: what has to be repaired.
        notes: what operators should know.
    """

    faults: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class NodeLines:
    """Lines of gres.conf and the node's Gres in slurm.conf."""

    gres_conf: Annotated[Sequence[str], Field(serialization_alias="gres.conf")]
    slurm_conf: Annotated[str, Field(serialization_alias="slurm.conf")]
    faults: tuple[str, ...]


@node_app.command(epilog="Examples: slicewise node probe | slicewise node probe --json")
def probe(host_root: HostRoot = ROOT, as_json: Json = False) -> None:
    """Show the node's GPUs: how they are cut, which jobs hold what, and their health.

    Memory slices in brackets form an instance; a dot is a free memory slice. Nothing is changed.
    Root also sees the kernel's GPU errors (Xid).
    """
    inventory = read_inventory(host_root)
    node = ProbedNode(**vars(inventory), faults=faults(inventory), notes=_differences(inventory))
    if as_json:
        print_json(node)
        return
    console().print(node_report(inventory))
    _print_diagnosis(node)


def _differences(inventory: Inventory) -> tuple[str, ...]:
    boards = {gpu.board.model: gpu.board for gpu in inventory.gpus if gpu.board is not None}
    return tuple(
        f"{model}: {text}." for model, board in boards.items() for text in table_differences(board)
    )


@node_app.command(epilog="Examples: slicewise node gres | slicewise node gres --node gpu07 --json")
def gres(node: NodeName = None, host_root: HostRoot = ROOT, as_json: Json = False) -> None:
    """Print the lines of gres.conf and slurm.conf for the node as it is cut now.

    A type is the name that slicewise.toml has for a profile; without one it is the full name, such
    as nvidia_h200_1g.18gb. Each instance has access to its own capability devices only. Slurm's own
    detection is off on these lines, since it matches types by a part of their name. The node's
    faults are printed as comments: a device that can't be reached or that has no capability device
    gets no line.

    Types pad0 to pad55 stand for instances that could be cut but are not: Slurm lets jobs survive a
    repartition only if the node keeps its number of devices. No job can use them. They lie between
    the types, so that each can become more, where slicewise.toml has mode = "enforce"; elsewhere
    behind them, since a job without a type gets the first device that is free.
    """
    inventory, name = read_inventory(host_root), node or node_name()
    wrong, settings = faults(inventory), _settings()
    found = _with_pads(inventory, settings, name)
    lines = slurm_gres.gres_conf(name, found)
    if as_json:
        print_json(NodeLines(lines, slurm_gres.node_gres(found), wrong))
        return
    sys.stdout.writelines(f"# {fault}\n" for fault in wrong)
    sys.stdout.write("# gres.conf\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.write(f"# slurm.conf\nNodeName={name} Gres={slurm_gres.node_gres(found)}\n")


@node_app.command(
    epilog="Examples: slicewise node cut GPU-5a7... --old 1g.10gb@0,1g.10gb@1 --new 2g.20gb@0"
)
def cut(
    gpu_uuid: Annotated[
        str, typer.Argument(help="The GPU's UUID, as slicewise node probe --json shows it.")
    ],
    before: Annotated[str, typer.Option("--old", help="The instances that the GPU has now.")],
    after: Annotated[str, typer.Option("--new", help="The instances that it gets.")],
    host_root: HostRoot = ROOT,
) -> None:
    """Repartition one GPU of this node, as root; print the result as JSON.

    Instances that are in both lists stay. If a process holds an instance that would go, nothing is
    done. If a step fails, the GPU is cut as before. If the command is killed, run it again, or with
    both lists swapped to go back. MIG mode is never switched. Slurm is not told of the change:
    `slicewise repartition run`, which calls this command on the node, does that.
    """
    print_json(cut_gpu(gpu_uuid, before, after, host_root))


def _with_pads(
    inventory: Inventory, settings: Settings | None, name: str
) -> tuple[slurm_gres.Device, ...]:
    devices = _devices(inventory, settings, name)
    nothing = [None] * max(len(devices), node_lines.room(inventory))
    enforces = settings is not None and settings.daemon.mode == "enforce"
    arranged = node_lines.positions(nothing, devices, (), pads_between=enforces)
    return node_lines.padded(arranged, inventory.vendor, devices_directory(name))


def _devices(
    inventory: Inventory, settings: Settings | None, name: str, in_slurm: Iterable[str] = ()
) -> tuple[slurm_gres.Device, ...]:
    """Return the node's devices; without settings, types are called as Slurm calls them."""
    types = (
        slurm_gres.types_in_slurm(inventory, in_slurm)
        if settings is None
        else slurm_gres.types_by_kind(settings.boards_by_type, settings.whole_types)
    )
    return slurm_gres.devices(inventory, types, devices_directory(name))


def _settings() -> Settings | None:
    """Return the settings; None if this node has no slicewise.toml."""
    return load_settings() if settings_file().exists() else None


def node_findings(
    name: str, host_root: Path, settings: Settings | None, nodes: Iterable[NodeView] | None
) -> tuple[Finding, ...]:
    """Compare this node's GPUs with what slurmctld and slicewise.toml say of them.

    ``nodes`` is None if slurmctld does not say. Raises what ``read_inventory`` raises.
    """
    inventory = read_inventory(host_root)
    seen = _named(nodes, name) if nodes is not None else None
    devices = _devices(inventory, settings, name, seen.gpus if seen is not None else ())
    return (
        *(error(Code.NODE_GPU, fault.removesuffix(".")) for fault in faults(inventory)),
        *(slurm_gres.gres_findings(name, seen, devices) if nodes is not None else ()),
        *(
            hint(Code.NODE_TABLE, difference.removesuffix("."))
            for difference in _differences(inventory)
        ),
        *(slurm_gres.unmanaged(devices, settings.costs) if settings is not None else ()),
    )


def _named(nodes: Iterable[NodeView], name: str) -> NodeView | None:
    return next((node for node in nodes if node.name == name), None)


def _print_diagnosis(found: ProbedNode) -> None:
    for fault in found.faults:
        console().print(Text(fault, style="red"), soft_wrap=True)
    for note in found.notes:
        console().print(Text(note, style="yellow"), soft_wrap=True)
