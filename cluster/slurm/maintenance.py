"""Work on one node beside its jobs: Slurm's reservations, commands there, restarts."""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence

from cluster.errors import OutsideError, UnreachableError
from cluster.slurm.run import Reply, attempt, run

_RECONFIGURES_GRES = (24, 11)
"""Since then ``scontrol reconfigure`` takes other GRES of a node."""
_RESTART_S = 90.0
_POLL_S = 0.1
_END_S = 20.0
_NOT_THERE, _IN_USE = "Requested reservation is invalid", "Requested reservation is in use"
_CODE = re.compile(r"SW-[A-Z0-9-]{1,40}")
_WORDS_LENGTH = 1000
_MOST_BYTES = 1 << 22
"""Of what a command on a node prints: whoever is root there decides what it says."""
_EXPORTED = "PATH,LC_ALL,TZ"
"""Of this process's variables, with Slurm's own: whoever is root on the node reads them, and an
operator's shell may have the ledger's URL."""
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


async def run_on(node: str, reservation: str, argv: Sequence[str], deadline_s: float) -> str:
    """What a command prints that runs on the node as this user, within that reservation if any.

    Raises UnreachableError (SW-SLURM-DOWN), or OutsideError with the command's own code where it
    is one of Slicewise's, else SW-SLURM-FAILED; so, too, if Slurm has no core free in time.
    """
    partition = await _partition(node)
    limit_minutes = int(deadline_s // 60) + 1
    options = (
        *((f"--reservation={reservation}",) if reservation else ()),
        *(f"--partition={partition}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
        *("--cpus-per-task=1", "--mem=1", f"--time={limit_minutes}", "--chdir=/", "--input=none"),
        f"--export={_EXPORTED}",
        *(f"--immediate={int(deadline_s // 2)}", "--job-name=slicewise-recut"),
    )
    command = ("srun", *options, *argv)
    reply = await attempt(command, deadline_s=deadline_s, most_bytes=_MOST_BYTES)
    if reply.status:
        raise _own_words(node, argv, reply)
    return reply.output


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


async def _partition(node: str) -> str:
    """One that the node is in: the default one may be without it."""
    found = (await _sinfo(node, "%R")).split()
    if not found:
        raise OutsideError("SW-SLURM-FAILED", f"Slurm has no node {node} in any partition.")
    return found[0]


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


def _own_words(node: str, argv: Sequence[str], reply: Reply) -> OutsideError:
    """What the command said, without what srun says of its end."""
    lines = [one for one in reply.complaint.splitlines() if not one.startswith("srun:")]
    code = next((one for one in reversed(lines) if _CODE.fullmatch(one)), None)
    words = " ".join(one for one in lines if one != code)
    if code is None:
        return _failed(f"{argv[0]} on {node}", _printable(words or reply.complaint))
    return OutsideError(code, f"{node}: {_printable(words)}")


def _printable(words: str) -> str:
    """Text of a node for a terminal, a log and the reason of a drain: one line, no control."""
    line = " ".join(words[:_WORDS_LENGTH].split())
    return "".join(one if one.isprintable() else "?" for one in line)


def _failed(what: str, words: str) -> OutsideError:
    return OutsideError("SW-SLURM-FAILED", f"{what}: {words}")
