"""Servers and nodes of a sandbox, as rows for a table or for JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.process import Process
from slicewise.sandbox.host.state import State


@dataclass(frozen=True)
class ServerRow:
    """One program.

    Attributes:
        place: address and port, or socket; empty for a program that has none.
        since: start, seconds since 1970.
        state: ``running`` or ``ended``.
    """

    name: str
    user: str
    pid: int
    place: str
    since: float
    state: str


@dataclass(frozen=True)
class NodeRow:
    """One node; ``state`` as sinfo shows it, ``unknown`` if slurmctld does not answer."""

    name: str
    gpu: str
    slices: Mapping[str, int]
    address: str
    state: str


@dataclass(frozen=True)
class SandboxStatus:
    """What ``sandbox status --json`` prints."""

    directory: str
    gateway_url: str
    servers: Sequence[ServerRow]
    nodes: Sequence[NodeRow]


def server_rows(state: State, is_alive: Callable[[Process], bool]) -> tuple[ServerRow, ...]:
    """One row for each program that ``up`` or ``start`` started."""
    places = server_places(state.layout)
    return tuple(
        ServerRow(
            program.name,
            program.user,
            program.pid,
            places.get(program.name, ""),
            program.since,
            "running" if is_alive(program) else "ended",
        )
        for program in state.processes.values()
    )


def server_places(layout: Layout) -> Mapping[str, str]:
    """Where each server listens; sockets as paths in the sandbox's directory."""
    sockets = {
        "munged": layout.munge_socket,
        "mariadbd": layout.mariadb_socket,
        "postgres": layout.postgres_directory,
        "daemon": layout.run_dir,
    }
    head = layout.head_address
    nodes = {
        f"slurmd-{name}": f"{address}:{layout.port('slurmd')}"
        for name, address in layout.node_addresses.items()
    }
    return {
        **{name: str(path.relative_to(layout.directory)) for name, path in sockets.items()},
        "slurmdbd": f"{head}:{layout.port('slurmdbd')}",
        "slurmctld": f"{head}:{layout.port('slurmctld')}",
        **nodes,
        "haproxy": f"{head}:{layout.port('gateway')}",
        "web": layout.web_address,
    }


def node_rows(
    layout: Layout, states: Mapping[str, str], slices: Mapping[str, Mapping[str, int]]
) -> tuple[NodeRow, ...]:
    """One row for each node; ``slices`` are its MIG instances now, by profile name."""
    return tuple(
        NodeRow(
            node.name,
            node.gpu,
            slices[node.name],
            layout.node_addresses[node.name],
            states.get(node.name, "unknown"),
        )
        for node in NODES
    )
