"""slurmdbd, slurmctld and the slurmd of every node."""

import asyncio
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sandbox import inventory
from sandbox.host import HEAD, Host, wrapper_environment
from sandbox.inventory import NODES, EmulatedNode
from sandbox.layout import Layout
from sandbox.packages import SEARCH_PATH
from sandbox.probes import port_answers
from sandbox.process import MARK
from sandbox.render import render

_NVIDIA_MAJOR = 195
_ANSWER_TIMEOUT_S = 3.0
_CGROUP_DISABLED_SINCE = (24, 11)


def configure(host: Host) -> None:
    """Write every file that Slurm reads; make the emulated devices where that is possible."""
    layout = host.layout
    values = {
        "layout": layout,
        "head": HEAD,
        "inventory": inventory,
        "slurm_user": host.user("slurm").name,
        "slurmd_user": host.user("root").name,
        "reserved_ports": f"{layout.reserved_ports[0]}-{layout.reserved_ports[-1]}",
        "environment": {
            **wrapper_environment(layout),
            "SLURM_CONF": str(layout.slurm_conf),
            MARK: str(layout.directory),
        },
    }
    host.file(layout.slurm_conf, render("slurm.conf.j2", **values))
    host.file(layout.etc / "gres.conf", gres_conf(layout))
    host.file(layout.etc / "cgroup.conf", cgroup_conf(_slurmd_version()))
    host.file(
        layout.etc / "slurmdbd.conf", render("slurmdbd.conf.j2", **values), role="slurm", mode=0o600
    )
    host.file(layout.etc / "task_prolog.sh", render("task_prolog.sh.j2", **values), mode=0o755)
    host.file(
        layout.etc / "job_submit.lua",
        render(
            "job_submit.lua.j2",
            layout=layout,
            module=_lua_module(host),
            partition=inventory.PARTITION,
        ),
    )
    host.directory(layout.lib / "slurmctld", "slurm", 0o700)
    for node in NODES:
        host.directory(layout.lib / "slurmd" / node.name, "root", 0o755)
        make_devices(layout, node, nodes=host.state.device_nodes)


def _lua_module(host: Host) -> Path:
    return host.state.program.project / "slurm_plugin" / "slicewise.lua"


def device_paths(layout: Layout, node: EmulatedNode) -> Mapping[str, tuple[Path, ...]]:
    """A node's device nodes by MIG profile, numbered through as in slurm.conf."""
    place = layout.devices / node.name
    paths: dict[str, tuple[Path, ...]] = {}
    number = 0
    for profile, count in node.slices.items():
        paths[profile] = tuple(place / f"mig{number + i}" for i in range(count))
        number += count
    return paths


def make_devices(layout: Layout, node: EmulatedNode, *, nodes: bool) -> None:
    """Character devices for Slurm to count: nothing answers there.

    With ``nodes`` they are device nodes with NVIDIA's major number. Without (only root may make
    such, and not in every container) they are links to /dev/null: slurmd ignores a GPU that is not
    a character device, and jobs get their CUDA_VISIBLE_DEVICES from the number in its name.
    """
    (layout.devices / node.name).mkdir(parents=True, exist_ok=True)
    paths = (path for profile in device_paths(layout, node).values() for path in profile)
    for minor, path in enumerate(paths, start=16 * NODES.index(node)):
        if nodes:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, minor))
        else:
            path.symlink_to("/dev/null")


def device_nodes_work(directory: Path) -> bool:
    """Whether device nodes can be made here."""
    probe = directory / ".device"
    try:
        os.mknod(probe, 0o600 | stat.S_IFCHR, os.makedev(_NVIDIA_MAJOR, 0))
    except OSError:
        return False
    probe.unlink()
    return True


def gres_conf(layout: Layout) -> str:
    """Every slice is a device of its own."""
    lines = (
        f"NodeName={node.name} Name=gpu Type={profile} File={','.join(map(str, paths))}"
        for node in NODES
        for profile, paths in device_paths(layout, node).items()
    )
    return "\n".join(lines) + "\n"


def cgroup_conf(slurmd_version: tuple[int, ...]) -> str:
    """Whatever cgroups this machine has, or none: slurmd does not touch them.

    Left to itself slurmd looks for /sys/fs/cgroup and ends if it is not to its liking (containers).
    Before 24.11 there is no "disabled"; the v1 plugin that is named outright looks at nothing as
    long as no other plugin uses it.
    """
    plugin = "disabled" if slurmd_version >= _CGROUP_DISABLED_SINCE else "cgroup/v1"
    return f"CgroupPlugin={plugin}\n"


def _slurmd_version() -> tuple[int, ...]:
    """``slurm-wlm 22.05.8``"""
    shown = subprocess.run(
        ("slurmd", "-V"),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": SEARCH_PATH},
    ).stdout
    return tuple(int(part) for part in shown.split()[-1].split(".") if part.isdecimal())


def account_commands(host: Host) -> str:
    """Cluster, accounts, users: commands that one sacctmgr reads from its standard input.

    ``sacctmgr load`` would do, too, but refuses a SlurmUser who is not in the database yet.
    """
    accounts = ",".join(inventory.ACCOUNTS)
    users = (
        f"add user {host.user(role).name} account={account}"
        for account, role in inventory.ACCOUNTS.items()
    )
    return "\n".join(
        (f"add cluster {inventory.CLUSTER}", f"add account {accounts}", *users, "quit", "")
    )


async def up_accounting(host: Host) -> None:
    """Start slurmdbd and load the accounts; munged and MariaDB must run."""
    await start_accounting(host)
    await host.command("slurm", ("sacctmgr", "-i"), stdin=account_commands(host))


async def start_accounting(host: Host) -> None:
    """Start slurmdbd with the accounts that it has."""
    layout = host.layout
    host.spawn(
        "slurmdbd",
        "slurm",
        ("slurmdbd", "-D"),
        # The client library takes its socket from here; slurmdbd.conf has no key for it.
        extra={
            **wrapper_environment(layout, HEAD),
            "MYSQL_UNIX_PORT": str(layout.mariadb_socket),
        },
    )
    await host.ready("slurmdbd", lambda: port_answers(layout.head_address, layout.port("slurmdbd")))


async def up_controller(host: Host) -> None:
    """Start slurmctld; slurmdbd must run."""
    layout = host.layout
    environment = wrapper_environment(layout, HEAD)
    host.spawn("slurmctld", "slurm", ("slurmctld", "-D"), extra=environment)
    await host.ready(
        "slurmctld", lambda: port_answers(layout.head_address, layout.port("slurmctld"))
    )


async def up_nodes(host: Host) -> None:
    """Start the slurmd of every node; slurmctld must run."""
    await asyncio.gather(*(start_node(host, node.name) for node in NODES))


async def start_node(host: Host, node: str) -> None:
    """Start a node's slurmd and wait until slurmctld hears from it; jobs there may run on."""
    layout, name = host.layout, f"slurmd-{node}"
    host.spawn(
        name,
        "root",
        ("slurmd", "-D", "-N", node),
        extra=wrapper_environment(layout, node),
    )
    address, port = layout.node_addresses[node], layout.port("slurmd")
    await host.ready(
        name, lambda: port_answers(address, port) and responds(node_states(host).get(node, ""))
    )


def responds(node_state: str) -> bool:
    """Whether slurmctld hears from a node in that state: "*" marks one that does not answer."""
    return node_state not in {"", "down", "unknown"} and not node_state.endswith("*")


def node_states(host: Host) -> Mapping[str, str]:
    """State of every node, as sinfo shows it; empty if slurmctld does not answer."""
    argv = ("sinfo", "-h", "-N", "-o", "%N %T")
    try:
        answer = host.run("root", argv, check=False, timeout_s=_ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {}
    return dict(line.split() for line in answer.stdout.splitlines() if line.strip())


def cancel_jobs(host: Host) -> None:
    """Kill every job and see it end, so that accounting knows before slurmctld stops.

    Without slurmctld's answer in time it gives up: the processes are found otherwise.
    """
    names = dict.fromkeys(user.name for user in host.state.users.values())
    try:
        for name in names:
            argv = ("scancel", "--quiet", f"--user={name}")
            host.run("slurm", argv, check=False, timeout_s=_ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return
