"""Reads what a replica's door says of the memory that the server takes."""

import re
from dataclasses import dataclass

MEMORY = "slicewise-memory"
"""The name by which ALPN calls what a door is asked for."""
_MEMORY = re.compile(rb"memory ([0-9]{1,9}) ([0-9]{1,9})\n")


@dataclass(frozen=True)
class ServerMemory:
    """Memory that a replica's server takes, in MiB; 0 is not known.

    Attributes:
        host_mib: of the node: what its processes have to themselves, without files that they map.
        gpu_mib: of its MIG instances.
    """

    host_mib: int = 0
    gpu_mib: int = 0


def server_memory(text: bytes) -> ServerMemory:
    """Read a door's one line; nothing is known by any other words, or none."""
    line = _MEMORY.fullmatch(text)
    return ServerMemory(*map(int, line.groups())) if line is not None else ServerMemory()
