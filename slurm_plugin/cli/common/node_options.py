"""Options that commands on a GPU node share, and the node's name."""

import os
import socket
from pathlib import Path
from typing import Annotated

import typer

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
    typer.Option("--node", help="The node's name in slurm.conf; this host's name if left out."),
]


def node_name() -> str:
    """Return this host's name in slurm.conf."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
