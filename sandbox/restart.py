"""Starts servers of a sandbox again, with the configuration and data that they have."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host import process
from slicewise.sandbox.host.host import Host, Progress
from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.host.process import Process
from slicewise.sandbox.servers import haproxy, mariadb, munge, postgres, slicewise, slurm

_PATIENCE_S = 10.0

_STARTS: Mapping[str, Callable[[Host], Coroutine[object, object, None]]] = {
    "munged": munge.start,
    "mariadbd": mariadb.start,
    "slurmdbd": slurm.start_accounting,
    "slurmctld": slurm.up_controller,
    **{f"slurmd-{node.name}": partial(slurm.start_node, node=node.name) for node in NODES},
    "postgres": postgres.start,
    "haproxy": haproxy.up,
    "daemon": slicewise.up_daemon,
    "launcher": slicewise.up_launcher,
    "web": slicewise.up_web,
}
"""How to start each server; a server stands after those that it needs."""


def restore(host: Host, progress: Progress) -> Host:
    """Start every server that has ended.

    Raises SlicewiseError (SW-SANDBOX-FAILED) if one does not start; the others run on then.
    """
    names = ended(host.state.processes, process.is_alive)
    if not names:
        progress(f"it is up already in {host.layout.directory}")
        return host
    progress(f"starting again, with all data: {', '.join(names)}")
    try:
        asyncio.run(_start(host, names, progress))
    except SlicewiseError as error:
        raise SlicewiseError(
            error.refusal.code,
            error.refusal.message,
            "The rest runs on. Try again, or discard everything: slicewise sandbox up --anew",
        ) from None
    return host


def renew(host: Host, name: str) -> None:
    """End a server and start it again with the files as they are now; jobs run on."""
    process.end((host.state.processes[name],), patience_s=_PATIENCE_S)
    asyncio.run(_STARTS[name](host))


def ended(processes: Mapping[str, Process], is_alive: Callable[[Process], bool]) -> tuple[str, ...]:
    """The servers that were started and have ended, in the order in which to start them."""
    return tuple(name for name in _STARTS if name in processes and not is_alive(processes[name]))


async def _start(host: Host, names: Sequence[str], progress: Progress) -> None:
    for name in names:
        try:
            await timed(progress, name, _STARTS[name](host))
        except BaseException:
            # A server that is half started would count as running for the next ``up``.
            process.end((host.state.processes[name],), patience_s=1.0)
            raise


async def timed(progress: Progress, name: str, step: Coroutine[object, object, None]) -> None:
    """Take a step and say how long it took."""
    begin = time.monotonic()
    await step
    progress(f"{name} {time.monotonic() - begin:.1f} s")
