"""Work on one node beside its jobs: Slurm's reservations, drains, restarts."""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence

from cluster.errors import OutsideError, UnreachableError
from cluster.slurm.node_command import run_on
from cluster.slurm.run import attempt, run

_RECONFIGURES_GRES = (24, 11)
"""Since then ``scontrol reconfigure`` takes other GRES of a node."""
_RESTART_S = 90.0
_POLL_S = 0.1
_END_S = 20.0
_NOT_THERE, _IN_USE = "Requested reservation is invalid", "Requested reservation is in use"
_SLURMD_START = re.compile(r"\bSlurmdStartTime=(\S+)")


async def reserve(name: str, node: str, minutes: int) -> None:
    """Let nothing start on the node for so long; what runs runs on.

    Called again, it prolongs: it ends that many minutes from now. Only root may use it.
    """
    end = f"EndTime=now+{minutes}minutes"
    reply = await attempt(("scontrol", "update", f"ReservationName={name}", end))
    if not reply.status:
        return
    who = ("Users=root", "Flags=MAINT,IGNORE_JOBS")
    where = (f"Nodes={node}", "StartTime=now", f"Duration={minutes}")
    await run(("scontrol", "create", f"ReservationName={name}", *where, *who))


async def release(name: str) -> None:
    """End a reservation, with commands in it that a killed caller left; nothing if it is gone."""
    await attempt(("scancel", "--quiet", f"--reservation={name}"))

    async def is_gone() -> bool:
        reply = await attempt(("scontrol", "delete", f"ReservationName={name}"))
        if reply.status and not any(words in reply.complaint for words in (_NOT_THERE, _IN_USE)):
            raise _failed(f"scontrol delete {name}", reply.complaint)
        return not reply.status or _NOT_THERE in reply.complaint

    await _until(is_gone, f"Reservation {name} is still in use", _END_S)


async def restart_controller(command: Sequence[str], version: tuple[int, ...], node: str) -> None:
    """Make slurmctld read its files anew: by that command, by ``scontrol reconfigure`` from 24.11.

    Returns when the node has registered there: before, its devices have no indices.
    """
    if version >= _RECONFIGURES_GRES:
        await run(("scontrol", "reconfigure"), deadline_s=_RESTART_S)
    else:
        await run(command, deadline_s=_RESTART_S)

    async def is_there() -> bool:
        return await _slurmd_start(node) is not None

    await _until(is_there, f"slurmctld does not answer, or not of {node}", _RESTART_S)


async def restart_node(node: str, reservation: str, command: Sequence[str]) -> None:
    """Restart the node's slurmd by that command, run there; returns when it has registered.

    Before ``restart_controller``, always: slurmctld with other files than slurmd makes the node
    INVALID, and nothing can be started there to restart its slurmd. The other way round slurmctld's
    restart makes it valid again.
    """
    before = await _slurmd_start(node)

    async def is_back() -> bool:
        return await _slurmd_start(node) not in {None, before}

    await run_on(node, reservation, command, _RESTART_S)
    await _until(is_back, f"slurmd of {node} does not answer", _RESTART_S)


async def drain(node: str, reason: str) -> None:
    """Let nothing new start on the node until somebody resumes it."""
    await run(("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"))


async def undrain(node: str, reasons: Sequence[str]) -> None:
    """Take back a drain for one of these reasons, by how they begin; nothing for any other."""
    # Not of scontrol, which prints texts of the node's own before it.
    if (await _sinfo(node, "%E")).startswith(tuple(reasons)):
        await run(("scontrol", "update", f"NodeName={node}", "State=RESUME"))


async def _sinfo(node: str, what: str) -> str:
    return await run(("sinfo", "--noheader", "--all", f"--nodes={node}", f"--format={what}"))


async def _shown(node: str) -> str:
    reply = await attempt(("scontrol", "--oneliner", "show", "node", node))
    return reply.output


async def _slurmd_start(node: str) -> str | None:
    """When the node's slurmd was started; None until slurmctld has heard of it."""
    started = _SLURMD_START.search(await _shown(node))
    return started[1] if started is not None and started[1] != "None" else None


async def _until(
    condition: Callable[[], Coroutine[None, None, bool]], otherwise: str, patience_s: float
) -> None:
    deadline = time.monotonic() + patience_s
    while not await _true(condition):
        if time.monotonic() > deadline:
            raise UnreachableError("SW-SLURM-DOWN", f"{otherwise} after {patience_s:g} s.")
        await asyncio.sleep(_POLL_S)


async def _true(condition: Callable[[], Coroutine[None, None, bool]]) -> bool:
    try:
        return await condition()
    except UnreachableError:
        return False


def _failed(what: str, words: str) -> OutsideError:
    return OutsideError("SW-SLURM-FAILED", f"{what}: {words}")
