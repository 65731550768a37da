"""Runs Slurm's commands. Besides ``submit``, no other module does."""

import asyncio
import os
import secrets
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.slurm.asked import ASKED, waited
from slicewise.cluster.runtime.together import together

DEADLINE_S = 10.0
CHANGE_DEADLINE_S = 30.0
"""For many changes together, and for reading all limits that slurmdbd has."""

SQUEUE = ("squeue", "--noheader", "--all", "--local")
IDS = "--format=%i"
"""For ``SQUEUE``: jobs, tasks and steps as a person names them."""

_DEFAULTS_OF_COMMANDS = (
    *("SACCT_", "SACCTMGR_", "SBATCH_", "SCANCEL_", "SCONTROL_", "SINFO_", "SPRIO_", "SQUEUE_"),
    # Those of a job that this process may run in; and the one that names another cluster.
    *("SLURM_JOB", "SLURM_STEP", "SLURM_CLUSTERS"),
)
"""Variables that would change what a command shows or does."""

_PLAIN = {
    "LC_ALL": "C",
    "TZ": "UTC",
    "SLURM_TIME_FORMAT": "%s",
    # Without it, index lists end after 64 characters.
    "SLURM_BITSTR_LEN": "0",
    # Within a federation, fed_display in slurm.conf makes these show all of its clusters' jobs.
    "SACCT_LOCAL": "1",
    "SCONTROL_LOCAL": "1",
    # With these, readline echoes all of what a command reads, on any terminal and also without one,
    # as in a service. Otherwise it shows only the end of a line, behind marks that are no part of
    # it.
    "TERM": "dumb",
    "COLUMNS": "100000",
    "INPUTRC": "/dev/null",
}

_MARKS, _MARKED = ("Cluster", "ID"), 32
"""Fields of an association that only operators can choose, and how many of them mark each side."""

_NO_CONF = "Could not establish a configuration source"
_NAME_CONF = (
    "Where slurm.conf is not in /etc/slurm, SLURM_CONF must name it; for units of systemd in"
    " /etc/slicewise/environment."
)
_NO_DATABASE = (
    "Unable to connect to database",
    "Problem talking to the database",
    "Error connecting to the database",
)
_ASK_SLURMDBD = ("sacct", "sacctmgr")
_NO_ANSWER = (
    "Unable to contact slurm",
    "Unable to establish controller machine",
    "Connection refused",
    "Connection timed out",
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    *_NO_DATABASE,
)


@dataclass(frozen=True)
class Reply:
    """What a command printed, and its exit status."""

    status: int
    output: str
    complaint: str


async def run(
    argv: Sequence[str],
    *,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
    passed: Collection[str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> str:
    """Run the command and return what it prints.

    Of this process's variables it gets those that are ``passed``; all of them if None.

    Raises UnreachableError (SW-SLURM-DOWN) if Slurm's server does not answer in time, and
    OutsideError (SW-SLURM-FAILED) with Slurm's own words for any other failure.
    """
    reply = await attempt(
        argv, stdin=stdin, variables=variables, passed=passed, deadline_s=deadline_s
    )
    if reply.status:
        raise OutsideError(
            Code.SLURM_FAILED,
            f"{' '.join(argv[:2])}: {reply.complaint or reply.output.strip()}",
            _NAME_CONF if _NO_CONF in reply.complaint else "",
        )
    return reply.output


async def attempt(
    argv: Sequence[str],
    *,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
    passed: Collection[str] | None = None,
    deadline_s: float = DEADLINE_S,
    most_bytes: int | None = None,
) -> Reply:
    """Run the command; return its reply also if it fails, unless Slurm does not answer.

    Raises UnreachableError (SW-SLURM-DOWN) as ``run`` does, and OutsideError (SW-SLURM-FAILED) as
    soon as the command has printed more than ``most_bytes``, or if it is not on PATH.
    """
    ASKED.count(argv, stdin)
    with waiting() as answered:
        process = await _start(argv, {**_environment(passed), **_PLAIN, **(variables or {})})
        try:
            async with asyncio.timeout(deadline_s):
                output, complaint, _ = await together(
                    _read(process.stdout, argv[0], most_bytes, answered),
                    # Warnings come before Slurm is asked.
                    _read(process.stderr, argv[0], most_bytes, lambda: None),
                    _write(process, stdin.encode()),
                )
                await process.wait()
        except TimeoutError:
            raise _down(argv[0], f"no answer within {deadline_s:g} s") from None
        finally:
            await _end(process)
    reply = Reply(
        process.returncode or 0,
        output.decode(errors="replace"),
        complaint.decode(errors="replace").strip(),
    )
    if reply.status and any(words in reply.complaint for words in _NO_ANSWER):
        raise _down(argv[0], reply.complaint)
    return reply


@contextmanager
def waiting() -> Iterator[Callable[[], None]]:
    """Count the seconds until Slurm's answer begins: what is yielded is called then, or the block
    is left.
    """
    began_s, is_over = time.monotonic(), False

    def answered() -> None:
        nonlocal is_over
        if not is_over:
            waited(time.monotonic() - began_s)
        is_over = True

    try:
        yield answered
    finally:
        answered()


async def _write(process: asyncio.subprocess.Process, text: bytes) -> None:
    """Write what the process reads; it may end before it has read all."""
    if process.stdin is not None:
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(text)
            await process.stdin.drain()
        process.stdin.close()


async def _read(
    stream: asyncio.StreamReader | None,
    command: str,
    most_bytes: int | None,
    answered: Callable[[], None],
) -> bytes:
    output = bytearray()
    while stream is not None and (part := await stream.read(1 << 16)):
        answered()
        output += part
        if most_bytes is not None and len(output) > most_bytes:
            raise OutsideError(
                Code.SLURM_FAILED, f"{command}: it printed more than {most_bytes} bytes."
            )
    return bytes(output)


async def _start(argv: Sequence[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    try:
        # Lua loads modules from the current directory, and an operator's may be a tenant's.
        return await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd="/"
        )
    except FileNotFoundError:
        raise OutsideError(
            Code.SLURM_FAILED, f"{argv[0]} is not on PATH.", "Install Slurm's client commands."
        ) from None


def secret() -> str:
    """A word that no user can have written into what a command prints."""
    return f"x{secrets.token_hex(16)}x"


def secret_columns(fields: Sequence[str]) -> tuple[str, ...]:
    """These fields of an association, between marks in an order that is different each time.

    sacctmgr cuts its rows with ``|`` and line breaks alone, and a name may hold both. A row that a
    name imitates begins or ends elsewhere than a real row does, so the name would have to imitate
    the marks on at least one side: one chance in four thousand million.
    """
    chance = secrets.SystemRandom()
    before, behind = (chance.choices(_MARKS, k=_MARKED) for _ in range(2))
    # The first field stays first: by it a log says which row can't be read.
    return (fields[0], *before, *fields[1:], *behind)


def _environment(passed: Collection[str] | None) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_DEFAULTS_OF_COMMANDS)
        if passed is None or name in passed
    }


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process if it still runs, so that no command outlives its call.

    A call ends early if the command is late or the call is cancelled. What the command has printed
    is read to the end: asyncio stops reading a pipe that has no reader, and ``wait`` alone would
    wait for that pipe for ever.
    """
    if process.returncode is None:
        process.kill()
        # A cancellation meanwhile is ignored, as a killed process ends immediately.
        while process.returncode is None:
            with suppress(asyncio.CancelledError):
                await process.communicate()


def _down(command: str, words: str) -> UnreachableError:
    if any(word in words for word in _NO_DATABASE):
        advice = (
            "Check that slurmdbd's own database runs, such as MariaDB: slurmdbd's log says why."
        )
    elif command in _ASK_SLURMDBD:
        advice = "Check that slurmdbd runs: systemctl status slurmdbd."
    else:
        advice = "Check that slurmctld and slurmdbd run: scontrol ping."
    return UnreachableError(Code.SLURM_DOWN, f"{command}: {words}", advice)
