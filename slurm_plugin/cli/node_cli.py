"""Commands on a GPU node: what it has, and what Slurm should be told of it."""

import asyncio
import os
import socket
import sys
from collections.abc import Collection, Iterable, Mapping
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
from cluster.mig.recut import cut as cut_gpu
from cluster.recut_settings import RecutSettings
from cluster.settings import Settings, load_settings, settings_file
from cluster.slurm.commands import CommandSlurm
from slurm_plugin.cli.parts import Json
from slurm_plugin.cli.present_mig import node_report
from slurm_plugin.decide import slurm_files, slurm_gres
from slurm_plugin.decide.isolation import isolation_faults
from slurm_plugin.decide.qos_names import is_ours
from slurm_plugin.decide.slurm_conf import closed_to_qos

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

    Types pad0 to pad55 stand for instances that could be cut and are not: Slurm lets jobs live
    through another cut only if the node keeps its number of devices. Nobody can use them.
    """
    inventory, name = read_inventory(host_root), node or _node_name()
    wrong, settings = faults(inventory), _settings()
    found = _with_pads(inventory, settings, name)
    lines = slurm_gres.gres_conf(name, found)
    if as_json:
        gres = slurm_gres.node_gres(found)
        print_json({"gres.conf": lines, "slurm.conf": gres, "faults": wrong})
        return
    sys.stdout.writelines(f"# {fault}\n" for fault in wrong)
    sys.stdout.write("# gres.conf\n")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.write(f"# slurm.conf\nNodeName={name} Gres={slurm_gres.node_gres(found)}\n")


@node_app.command(
    epilog="Examples: slicewise node cut GPU-5a7... --from 1g.10gb@0,1g.10gb@1 --to 2g.20gb@0"
)
def cut(
    gpu_uuid: Annotated[str, typer.Argument(help="As slicewise node probe --json has it.")],
    before: Annotated[str, typer.Option("--from", help="The instances that it has.")],
    after: Annotated[str, typer.Option("--to", help="Those that it gets.")],
    host_root: HostRoot = ROOT,
) -> None:
    """Cut a GPU anew, for root; print it as JSON. `slicewise recut run` calls this on the node.

    Instances of both lists stay. What a process holds is not destroyed: then nothing is done. If a
    step fails, the GPU is cut as before; killed, the command is given again, or with both lists
    swapped. MIG mode is never switched. Slurm is not told.
    """
    print_json(asdict(cut_gpu(gpu_uuid, before, after, host_root)))


def _with_pads(
    inventory: Inventory, settings: Settings | None, name: str
) -> tuple[slurm_gres.Device, ...]:
    found = _devices(inventory, settings, name)
    nothing = [None] * max(len(found), slurm_files.room(inventory))
    arranged = slurm_files.positions(nothing, found, ())
    return slurm_files.padded(arranged, _directory(settings, name))


def _devices(
    inventory: Inventory, settings: Settings | None, name: str
) -> tuple[slurm_gres.Device, ...]:
    types = (
        {}
        if settings is None
        else slurm_gres.types_by_kind(settings.boards_by_type, settings.whole_types)
    )
    return slurm_gres.devices(inventory, types, _directory(settings, name))


def _directory(settings: Settings | None, name: str) -> str:
    return (settings.recut if settings is not None else RecutSettings()).devices_of(name)


def _settings() -> Settings | None:
    """A node may have none."""
    return load_settings() if settings_file().exists() else None


def _node_name() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def doctor(node: NodeName = None, host_root: HostRoot = ROOT, as_json: Json = False) -> None:
    """Compare a node's GPUs with what Slurm and slicewise.toml say of them.

    Run it on the GPU node; it exits 1 at a fault. It looks at the boards' health, at how they are
    cut, at the counts that slurmctld has, at whether the managed partitions take the tenants' QOS
    (AllowQos), at whether Slurm keeps jobs off each other's devices, and at the table of MIG
    profiles.
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
    devices = _devices(inventory, settings, name)
    wrong, open_to_all = _by_slurm(name, devices, settings)
    return Diagnosis(
        faults=(*faults(inventory), *wrong),
        notes=(
            *open_to_all,
            *_differences(inventory),
            *(slurm_gres.unmanaged(devices, settings.costs) if settings is not None else ()),
        ),
    )


def _by_slurm(
    name: str, devices: tuple[slurm_gres.Device, ...], settings: Settings | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where slurmctld's node is another one, or its partitions do not take the tenants' jobs; and
    what of its settings leaves devices open.
    """
    managed = settings.cluster.partitions if settings is not None else ()
    try:
        nodes, config, closed = asyncio.run(_asked(managed))
    except SlicewiseError as error:
        first_line, _, _ = error.refusal.message.partition("\n")
        return (f"Slurm does not say what it has: {first_line}",), ()
    wrong = slurm_gres.gres_faults(name, _named(nodes, name), devices)
    return (*wrong, *closed), isolation_faults(config)


async def _asked(
    managed: Collection[str],
) -> tuple[tuple[NodeView, ...], Mapping[str, str], tuple[str, ...]]:
    """Nodes, slurm.conf, and which of the ``managed`` partitions do not take all tenants' QOS."""
    slurm = CommandSlurm()
    nodes, config, partitions = await asyncio.gather(
        slurm.nodes(), slurm.config(), slurm.partitions()
    )
    views = [view for view in partitions if view.name in managed]
    if all(view.allow_qos is None and not view.deny_qos for view in views):
        # slurmdbd need not be asked, which may not be within reach of the node.
        return nodes, config, ()
    ours = {qos for row in await slurm.associations() for qos in row.qos if is_ours(qos)}
    return nodes, config, closed_to_qos(partitions, managed, ours)


def _named(nodes: Iterable[NodeView], name: str) -> NodeView | None:
    return next((one for one in nodes if one.name == name), None)


def _print_diagnosis(found: Diagnosis) -> None:
    for fault in found.faults:
        console().print(Text(fault, style="red"), soft_wrap=True)
    for note in found.notes:
        console().print(Text(note, style="yellow"), soft_wrap=True)
