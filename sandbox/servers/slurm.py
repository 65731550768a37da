"""slurmdbd, slurmctld and the slurmd of every node."""

import asyncio
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slicewise.sandbox.host import inventory
from slicewise.sandbox.host.host import HEAD, Host, wrapper_environment
from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.packages import SEARCH_PATH, has_tokens
from slicewise.sandbox.host.probes import port_answers
from slicewise.sandbox.host.process import MARK
from slicewise.sandbox.host.render import render
from slicewise.sandbox.servers import gpus
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS
from slicewise.slurm_plugin.rules.slurm_config.gres import gres_conf, node_gres

_ANSWER_TIMEOUT_S = 3.0
_CGROUP_DISABLED_SINCE = (24, 11)
_CORE_STATE = (
    *("assoc_usage", "fed_mgr_state", "job_state"),
    *("node_state", "resv_state", "trigger_state"),
)


def configure(host: Host) -> None:
    """Make the emulated GPUs, and write every file that Slurm reads."""
    layout = host.layout
    slots = gpus.make(layout, device_nodes=host.state.device_nodes)
    values = {
        "layout": layout,
        "head": HEAD,
        "gres": {name: node_gres(slot) for name, slot in slots.items()},
        "nvml": gpus.library_directory(layout),
        "inventory": inventory,
        "gate": GATE_QOS,
        "slurm_user": host.user("slurm").name,
        "slurmd_user": host.user("root").name,
        "has_tokens": has_tokens(),
        "reserved_ports": f"{layout.reserved_ports[0]}-{layout.reserved_ports[-1]}",
        "environment": {
            **wrapper_environment(layout),
            "SLURM_CONF": str(layout.slurm_conf),
            MARK: str(layout.directory),
        },
    }
    host.file(layout.slurm_conf, render("slurm.conf.j2", **values))
    # Each of Slurm's commands would complain on stderr about an empty file.
    host.file(layout.site_conf, "# Lines of the site's own.\n")
    lines = (line for name, slot in slots.items() for line in gres_conf(name, slot))
    host.file(layout.etc / "gres.conf", "\n".join((*lines, "")))
    host.file(layout.etc / "cgroup.conf", cgroup_conf(slurmd_version()))
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
    host.directory(_state(layout), "slurm", 0o700)
    if has_tokens():
        host.file(layout.jwt_key, secrets.token_hex(32), role="slurm", mode=0o600)
    for node in NODES:
        host.directory(layout.lib / "slurmd" / node.name, "root", 0o755)


def _lua_module(host: Host) -> Path:
    return host.state.program.project / "slicewise" / "slurm_plugin" / "lua" / "slicewise.lua"


def cgroup_conf(slurmd_version: tuple[int, ...]) -> str:
    """Return a cgroup.conf with which slurmd does not touch cgroups, whatever this machine has.

    By default slurmd looks at /sys/fs/cgroup and ends if it can't use what it finds (in
    containers). Before 24.11 there is no "disabled"; the v1 plugin, named explicitly, looks at
    nothing as long as no other plugin uses it.
    """
    plugin = "disabled" if slurmd_version >= _CGROUP_DISABLED_SINCE else "cgroup/v1"
    return f"CgroupPlugin={plugin}\n"


def slurmd_version() -> tuple[int, ...]:
    """The version of the slurmd that the sandbox starts: (22, 5, 8) of ``slurm-wlm 22.05.8``."""
    shown = subprocess.run(
        ("slurmd", "-V"),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": SEARCH_PATH},
    ).stdout
    return tuple(int(part) for part in shown.split()[-1].split(".") if part.isdecimal())


def account_commands(host: Host) -> str:
    """Commands that add cluster, accounts and users, for the standard input of one sacctmgr.

    ``sacctmgr load`` is not used, since it refuses a SlurmUser who is not in the database yet.
    """
    accounts = ",".join(inventory.ACCOUNTS)
    users = (
        f"add user {host.user(role).name} account={account}"
        for account, role in inventory.ACCOUNTS.items()
    )
    return "\n".join(
        (
            f"add cluster {inventory.CLUSTER}",
            f"add account {accounts}",
            *users,
            # slurmctld does not start if a partition's QOS does not exist.
            f"add qos {GATE_QOS}",
            "quit",
            "",
        )
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
    host.spawn("slurmctld", "slurm", slurmctld_command(_state(layout)), extra=environment)
    await host.ready(
        "slurmctld", lambda: port_answers(layout.head_address, layout.port("slurmctld"))
    )


def slurmctld_command(state: Path) -> tuple[str, ...]:
    """Return the command that starts slurmctld; ``state`` is its state directory.

    Since 25.05 slurmctld starts a second time only if all its core state files exist, and it writes
    some of them only when it ends. After it was killed it is told to start without them (-i).
    """
    is_whole = all((state / name).exists() for name in _CORE_STATE)
    return ("slurmctld", "-D", *(() if is_whole else ("-i",)))


def _state(layout: Layout) -> Path:
    return layout.lib / "slurmctld"


async def up_nodes(host: Host) -> None:
    """Start the slurmd of every node; slurmctld must run."""
    await asyncio.gather(*(start_node(host, node.name) for node in NODES))


async def start_node(host: Host, node: str, *, boots: bool = False) -> None:
    """Start a node's slurmd and wait until slurmctld hears from it; jobs there may run on.

    ``boots``: as if the node had booted just now, which slurmctld asks of one that it has woken.
    """
    layout, name = host.layout, f"slurmd-{node}"
    host.spawn(
        name,
        "root",
        ("slurmd", "-D", *(("-b",) if boots else ()), "-N", node),
        extra={**wrapper_environment(layout, node), **gpus.environment(layout, node)},
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
    """Cancel the jobs of all users before slurmctld stops, so that accounting knows their ends.

    It gives up if slurmctld does not answer in time: the processes are found in other ways.
    """
    names = dict.fromkeys(user.name for user in host.state.users.values())
    try:
        for name in names:
            argv = ("scancel", "--quiet", f"--user={name}")
            host.run("slurm", argv, check=False, timeout_s=_ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return
