"""Commands on a GPU node: what it has, and what Slurm should be told of it."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cluster.console import console, print_json
from cluster.errors import SlicewiseError
from cluster.jobs import NodeView
from cluster.mig.checks import faults, table_differences
from cluster.mig.inventory import Inventory
from cluster.mig.nvml import ROOT, read_inventory
from cluster.settings import Settings, load_settings, settings_file
from cluster.slurm.commands import CommandSlurm
from slurm_plugin.cli.parts import Json
from slurm_plugin.cli.present_mig import node_report
from slurm_plugin.decide import slurm_gres

node_app = typer.Typer(no_args_is_help=True, help="A GPU node: what is in it, by its driver.")

HostRoot = Annotated[
    Path,
    typer.Option(
        envvar="SLICEWISE_HOST_ROOT",
        help="Where the node's /proc and /dev are, if this runs in a container.",
        show_default=False,
    ),
]
NodeName = Annotated[
    str | None,
    typer.Option("--node", help="Its name in slurm.conf; this host's if left out."),
]


@dataclass(frozen=True)
class Diagnosis:
    """What is to be said of a node.

    Attributes:
        faults: to be seen to.
        notes: to be known.
    """

    faults: tuple[str, ...]
    notes: tuple[str, ...]


@node_app.command(epilog="Examples: slicewise node probe | slicewise node probe --json")
def probe(host_root: HostRoot = ROOT, as_json: Json = False) -> None:
    """Show the node's GPUs: how they are cut, who holds what, whether they are well.

    Memory slices in brackets are an instance; a dot is a free one. Nothing is changed. Root sees
    the kernel's errors (Xid) too.
    """
    inventory = read_inventory(host_root)
    found = Diagnosis(faults(inventory), _differences(inventory))
    if as_json:
        print_json({**asdict(inventory), **asdict(found)})
        return
    console().print(node_report(inventory))
    _print_diagnosis(found)


def _differences(inventory: Inventory) -> tuple[str, ...]:
    boards = {gpu.board.model: gpu.board for gpu in inventory.gpus if gpu.board is not None}
    return tuple(
        f"{model}: {text}." for model, board in boards.items() for text in table_differences(board)
    )


@node_app.command(epilog="Examples: slicewise node gres | slicewise node gres --node gpu07 --json")
def gres(node: NodeName = None, host_root: HostRoot = ROOT, as_json: Json = False) -> None:
    """Print the lines of gres.conf and slurm.conf for the node as it is cut.

    Types are those that slicewise.toml has for a profile; without one the full name, such as
    nvidia_h200_1g.18gb. Each instance is let at its own capability devices only. Slurm's own
    detection is off on these lines: it finds types by a part of their name. The node's faults are
    printed as comments: what can't be reached or has no capability device has no line.
    """
    inventory = read_inventory(host_root)
    found, wrong = _devices(inventory, _settings()), faults(inventory)
    name = node or _node_name()
    lines = slurm_gres.gres_conf(name, found)
    if as_json:
        gres = slurm_gres.node_gres(found)
        print_json({"gres.conf": lines, "slurm.conf": gres, "faults": wrong})
        return
    sys.stdout.writelines(f"# {fault}\n" for fault in wrong)
    sys.stdout.write("# gres.conf\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.write(f"# slurm.conf\nNodeName={name} Gres={slurm_gres.node_gres(found)}\n")


def _devices(inventory: Inventory, settings: Settings | None) -> tuple[slurm_gres.Device, ...]:
    types = {} if settings is None else slurm_gres.types_by_kind(settings.boards_by_type)
    return slurm_gres.devices(inventory, types)


def _settings() -> Settings | None:
    """A node may have none."""
    return load_settings() if settings_file().exists() else None


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def doctor(node: NodeName = None, host_root: HostRoot = ROOT, as_json: Json = False) -> None:
    """Compare a node's GPUs with what Slurm and slicewise.toml say of them.

    Run it on the GPU node; it exits 1 at a fault. It looks at the boards' health, at how they are
    cut, at the counts that slurmctld has, and at the table of MIG profiles.
    """
    found = _diagnosis(node or _node_name(), host_root)
    if as_json:
        print_json(asdict(found))
    else:
        _print_diagnosis(found)
        if not found.faults:
            console().print(Text("The node is well, and as Slurm has it.", style="green"))
    if found.faults:
        raise typer.Exit(1)


def _diagnosis(name: str, host_root: Path) -> Diagnosis:
    inventory, settings = read_inventory(host_root), _settings()
    devices = _devices(inventory, settings)
    return Diagnosis(
        faults=(*faults(inventory), *_slurm_faults(name, devices)),
        notes=(
            *_differences(inventory),
            *(slurm_gres.unmanaged(devices, settings.costs) if settings is not None else ()),
        ),
    )


def _slurm_faults(name: str, devices: tuple[slurm_gres.Device, ...]) -> tuple[str, ...]:
    try:
        nodes = asyncio.run(CommandSlurm().nodes())
    except SlicewiseError as error:
        first_line, _, _ = error.refusal.message.partition("\n")
        return (f"Slurm does not say what it has: {first_line}",)
    return slurm_gres.gres_faults(name, _named(nodes, name), devices)


def _named(nodes: Iterable[NodeView], name: str) -> NodeView | None:
    return next((one for one in nodes if one.name == name), None)


def _print_diagnosis(found: Diagnosis) -> None:
    for fault in found.faults:
        console().print(Text(fault, style="red"), soft_wrap=True)
    for note in found.notes:
        console().print(Text(note, style="yellow"), soft_wrap=True)
