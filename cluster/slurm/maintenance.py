"""Reserves, drains and restarts one node while its jobs go on."""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.slurm.node_command import run_on
from slicewise.cluster.slurm.run_command import attempt, run

_RECONFIGURES_GRES = (24, 11)
"""From this version on, ``scontrol reconfigure`` takes over changed GRES of a node."""
_RESTART_S = 90.0
_POLL_S = 0.1
_END_S = 20.0
_NOT_THERE, _IN_USE = "Requested reservation is invalid", "Requested reservation is in use"
_SLURMD_START = re.compile(r"\bSlurmdStartTime=(\S+)")


async def reserve(name: str, node: str, minutes: int) -> None:
    """Reserve the node for root for some minutes: nothing else starts there; running jobs go on.

    Called again, it moves the end to that many minutes from now.
    """
    end = f"EndTime=now+{minutes}minutes"
    reply = await attempt(("scontrol", "update", f"ReservationName={name}", end))
    if not reply.status:
        return
    who = ("Users=root", "Flags=MAINT,IGNORE_JOBS")
    where = (f"Nodes={node}", "StartTime=now", f"Duration={minutes}")
    await run(("scontrol", "create", f"ReservationName={name}", *where, *who))


async def release(name: str) -> None:
    """End a reservation, with jobs in it that a killed caller left; do nothing if it is gone."""
    await attempt(("scancel", "--quiet", f"--reservation={name}"))

    async def is_gone() -> bool:
        reply = await attempt(("scontrol", "delete", f"ReservationName={name}"))
        if reply.status and not any(words in reply.complaint for words in (_NOT_THERE, _IN_USE)):
            raise _failed(f"scontrol delete {name}", reply.complaint)
        return not reply.status or _NOT_THERE in reply.complaint

    await _until(is_gone, f"Reservation {name} is still in use", _END_S)


async def restart_controller(command: Sequence[str], version: tuple[int, ...], node: str) -> None:
    """Make slurmctld read its files again; returns when the node has registered there.

    Runs this command, from 24.11 on ``scontrol reconfigure``. Before the node has registered, its
    devices have no indices.
    """
    if version >= _RECONFIGURES_GRES:
        await run(("scontrol", "reconfigure"), deadline_s=_RESTART_S)
    else:
        await run(command, deadline_s=_RESTART_S)

    async def is_there() -> bool:
        return await _slurmd_start(node) is not None

    await _until(is_there, f"slurmctld does not answer, or {node} has not registered", _RESTART_S)


async def restart_node(node: str, reservation: str, command: Sequence[str]) -> None:
    """Restart the node's slurmd by running this command there; returns when it has registered.

    Always call it before ``restart_controller``: slurmctld with other files than slurmd makes the
    node INVALID, and then nothing can be started there to restart its slurmd. In this order,
    slurmctld's restart makes the node valid again.
    """
    before = await _slurmd_start(node)

    async def is_back() -> bool:
        return await _slurmd_start(node) not in {None, before}

    await run_on(node, reservation, command, _RESTART_S)
    await _until(is_back, f"slurmd of {node} does not answer", _RESTART_S)


async def drain(node: str, reason: str) -> None:
    """Let nothing new start on the node until it is resumed."""
    await run(("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"))


async def undrain(node: str, reasons: Sequence[str]) -> None:
    """Resume the node if the reason of its drain begins with one of these; else do nothing."""
    # Not from scontrol, which prints text of the node's own before the reason.
    if (await _sinfo(node, "%E")).startswith(tuple(reasons)):
        await run(("scontrol", "update", f"NodeName={node}", "State=RESUME"))


async def _sinfo(node: str, what: str) -> str:
    return await run(("sinfo", "--noheader", "--all", f"--nodes={node}", f"--format={what}"))


async def _shown(node: str) -> str:
    reply = await attempt(("scontrol", "--oneliner", "show", "node", node))
    return reply.output


async def _slurmd_start(node: str) -> str | None:
    """When the node's slurmd was started; None until it has registered with slurmctld."""
    started = _SLURMD_START.search(await _shown(node))
    return started[1] if started is not None and started[1] != "None" else None


async def _until(
    condition: Callable[[], Coroutine[None, None, bool]], otherwise: str, patience_s: float
) -> None:
    deadline = time.monotonic() + patience_s
    while not await _true(condition):
        if time.monotonic() > deadline:
            raise UnreachableError(Code.SLURM_DOWN, f"{otherwise} after {patience_s:g} s.")
        await asyncio.sleep(_POLL_S)


async def _true(condition: Callable[[], Coroutine[None, None, bool]]) -> bool:
    try:
        return await condition()
    except UnreachableError:
        return False


def _failed(what: str, words: str) -> OutsideError:
    return OutsideError(Code.SLURM_FAILED, f"{what}: {words}")
