"""Runs one of root's commands on a node, by a batch job, and returns what the command prints.

Caller and job communicate through the job's comment: Slurm lets only root, SlurmUser, operators,
the job's owner and coordinators of its account write there. So nothing on this host waits for a
connection. srun would wait, and it connects to whatever address a message of root's tells it to
(``SRUN_NET_FORWARD``). An attacker with root on a node and the cluster's munge key can send such
messages, and would act as root on this host.

The job does nothing until the caller tells it to go, so that no job of a caller that has ended, or
has given up, runs the command later. The job then writes its answer part by part, and waits after
each part until the caller has read it.
"""

import asyncio
import base64
import binascii
import re
import shlex
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress

from slicewise.cluster.language.codes import Code, known
from slicewise.cluster.language.errors import OutsideError, SlicewiseError, UnreachableError
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.job_rows import job_state
from slicewise.cluster.language.slurm.values import is_whole
from slicewise.cluster.slurm.run_command import SQUEUE, Reply, attempt, run

_POLL_S, _PENDING_POLL_S = 0.3, 0.5
_SUBMIT_S = 60.0
_END_S = 5.0
_CODE = re.compile(r"SW-[A-Z0-9-]{1,40}")
_WORDS_LENGTH = 1000
_MOST_BYTES = 1 << 22
"""Bytes read at most of what a command on a node prints, because root of the node decides what that
is.
"""
_PART, _MOST_PARTS = 900, 40
"""Characters of one part of an answer, and parts at most. Slurm takes 1,024 characters as a
comment. The answer for 8 GPUs of 7 instances each has five parts.
"""
_LOOKS = 40
"""Looks at the comment, each a third of a second or more, before the job takes its caller for dead.
"""
_PASSED = frozenset({"PATH", "SLURM_CONF", "SLURM_CONF_SERVER"})
"""The only variables of this process that the job gets: root of the node can read them, and an
operator's shell may have the ledger's URL. With a list of names (``--export``) slurmd would run
``su - root`` there to add to it, and hold the job if that took more than two seconds.
"""
_GO = "slicewise:go"
_SAID = re.compile(r"slicewise:answer ([0-9]{1,2})/([0-9]{1,2}) ([A-Za-z0-9+/= ]*)", re.ASCII)
_ANSWER = re.compile(r"([0-9]{1,3}) ([A-Za-z0-9+/=]*) ([A-Za-z0-9+/=]*)", re.ASCII)
_UNKNOWN, _NONE = "Invalid job id", "(null)"

_SCRIPT = f"""\
#!/bin/sh
comment() {{ scontrol update JobId="$SLURM_JOB_ID" Comment="$1"; }}

says() {{
    shown=$(scontrol --oneliner show job "$SLURM_JOB_ID") || return 1
    case $shown in *" Comment=$1 "*) ;; *) return 1 ;; esac
}}

# The core is wanted.
look() {{
    looks=$((looks + 1))
    if [ "$looks" -gt {_LOOKS} ]; then
        comment ""
        exit 1
    fi
    sleep 0.3
}}

looks=0
until says {_GO}; do look; done

# Users can fill /tmp, and not /run.
said=$(mktemp -d /run/slicewise-XXXXXX 2>/dev/null || mktemp -d) || exit 1
exec 3>"$said/out" 4<"$said/out" 5>"$said/err" 6<"$said/err"
rm -rf "$said"
COMMAND >&3 2>&5 </dev/null 3>&- 4<&- 5>&- 6<&-
status=$?

packed() {{ head -c {_MOST_BYTES + 1} | gzip -9 | base64 | tr -d '\\n'; }}
answer="$status $(packed <&4) $(packed <&6)"
if [ ${{#answer}} -gt {_PART * _MOST_PARTS} ]; then
    answer="1 $(packed </dev/null) $(echo "it printed too much" | packed)"
fi
parts=$(((${{#answer}} + {_PART - 1}) / {_PART}))
part=0
while [ "$part" -lt "$parts" ]; do
    words=$(printf %s "$answer" | tail -c +$((part * {_PART} + 1)) | head -c {_PART})
    part=$((part + 1))
    looks=0
    # Again if somebody has written over it, or slurmctld was away.
    until says "slicewise:read $part"; do
        case $shown in
        *" Comment=slicewise:answer $part/"*) ;;
        *) comment "slicewise:answer $part/$parts $words" ;;
        esac
        look
    done
done
comment "" # slurmdbd shall keep nothing of it
"""


async def run_on(node: str, reservation: str, argv: Sequence[str], deadline_s: float) -> str:
    """Run a command on the node as this user, in that reservation if any; return its output.

    If the caller is killed, its job ends by itself within seconds after the command; a job that has
    not started yet does nothing.

    Raises UnreachableError (SW-SLURM-DOWN), or OutsideError: with the command's own code where that
    is one of Slicewise's, else SW-SLURM-FAILED, also if Slurm has no core free in time.
    """
    began_s = time.monotonic()
    partition = await _partition(node, deadline_s / 2)
    job_id = await _submitted(node, partition, reservation, argv, deadline_s)
    try:
        reply = await _answer(job_id, node, began_s, deadline_s)
    except BaseException:
        with suppress(SlicewiseError):
            await attempt(("scancel", "--quiet", str(job_id)))
        raise
    await _until_ended(job_id)
    if reply.status:
        raise _own_words(node, argv, reply)
    return reply.output


async def _partition(node: str, patience_s: float) -> str:
    """A partition of the node, once a core is free there; the default one may lack the node.

    The job has the highest priority, so it must not wait: all other jobs would wait behind it.
    """
    until_s = time.monotonic() + patience_s
    while True:
        which = ("--noheader", "--all", f"--nodes={node}", "--format=%R|%C")
        rows = [line.split("|") for line in (await run(("sinfo", *which))).splitlines()]
        if not rows:
            raise _failed(node, "Slurm has no such node in any partition")
        for name, cores in (row for row in rows if len(row) == 2):  # noqa: PLR2004
            # allocated/idle/other/total
            idle = cores.split("/")[1:2]
            if idle and is_whole(idle[0]) and int(idle[0]):
                return name
        if time.monotonic() > until_s:
            raise _failed(node, f"no core became free there in {patience_s:g} s")
        await asyncio.sleep(_PENDING_POLL_S)


async def _submitted(
    node: str, partition: str, reservation: str, argv: Sequence[str], deadline_s: float
) -> int:
    limit_min = int(deadline_s // 60) + 1
    ends_s = int(deadline_s) + 60 * limit_min
    # Slurm considers jobs in reservations first, and only a number of the others at a time.
    turn = f"--reservation={reservation}" if reservation else "--priority=TOP"
    options = (
        *(turn, f"--partition={partition}", f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
        *("--cpus-per-task=1", "--mem=1", f"--time={limit_min}", f"--deadline=now+{ends_s}"),
        *("--no-requeue", "--export=ALL", "--chdir=/", "--output=/dev/null"),
        "--job-name=slicewise-repartition",
    )
    script = _SCRIPT.replace("COMMAND", shlex.join(argv), 1)
    command = ("sbatch", "--parsable", *options)
    answer = await run(command, stdin=script, passed=_PASSED, deadline_s=_SUBMIT_S)
    job_id = answer.strip().rpartition("\n")[2].partition(";")[0]
    if not is_whole(job_id):
        raise _failed("sbatch", f"it did not name a job: {_printable(answer)}")
    return int(job_id)


async def _answer(job_id: int, node: str, began_s: float, deadline_s: float) -> Reply:
    answer, read = "", 0
    while True:
        state, reason, comment = await _job(job_id)
        waited_s = time.monotonic() - began_s
        part = _SAID.fullmatch(comment)
        if part and int(part[1]) == read + 1:
            answer, read = answer + part[3], read + 1
            await _say(job_id, f"slicewise:read {read}")
            if read >= min(int(part[2]), _MOST_PARTS):
                return _reply(node, answer)
        elif state is JobState.ENDED:
            why = f"it ended without an answer ({_printable(reason)}): see slurmd's log there"
            raise _failed(f"job {job_id} on {node}", why)
        elif state is JobState.PENDING and waited_s > deadline_s / 2:
            why = f"it did not start in {deadline_s / 2:g} s ({_printable(reason)})"
            raise _failed(f"job {job_id} on {node}", why)
        elif part and read:
            await _say(job_id, f"slicewise:read {read}")
        elif state is JobState.RUNNING and not comment and not read:
            await _say(job_id, _GO)
        if waited_s > deadline_s:
            raise UnreachableError(
                Code.SLURM_DOWN, f"Job {job_id} on {node}: no answer within {deadline_s:g} s."
            )
        await asyncio.sleep(_PENDING_POLL_S if state is JobState.PENDING else _POLL_S)


async def _say(job_id: int, words: str) -> None:
    """Write the job's comment; if that fails, a later look does it again."""
    with suppress(SlicewiseError):
        await attempt(("scontrol", "update", f"JobId={job_id}", f"Comment={words}"))


async def _until_ended(job_id: int) -> None:
    """Wait some seconds for the job's end: the next command on the node needs a core, too."""
    until_s = time.monotonic() + _END_S
    with suppress(SlicewiseError):
        while True:
            state, _, _ = await _job(job_id)
            if state is JobState.ENDED or time.monotonic() > until_s:
                return
            await asyncio.sleep(_POLL_S)


async def _job(job_id: int) -> tuple[JobState | None, str, str]:
    """State, reason and comment of the job; the state is None while slurmctld does not say it.

    Raises OutsideError (SW-SLURM-FAILED) if slurmctld has forgotten the job.
    """
    which = ("--states=all", f"--jobs={job_id}", "--format=%T|%r|%k")
    try:
        reply = await attempt((*SQUEUE, *which), most_bytes=_MOST_BYTES)
    except UnreachableError:
        return None, "", ""
    if _UNKNOWN in reply.complaint:
        raise _failed(f"job {job_id}", reply.complaint)
    state, _, rest = reply.output.rstrip("\n").partition("|")
    reason, _, comment = rest.partition("|")
    if reply.status or not state:
        return None, "", ""
    return job_state(state), reason, "" if comment == _NONE else comment


def _reply(node: str, text: str) -> Reply:
    answer = _ANSWER.fullmatch(text)
    if answer is None:
        raise _failed(f"the answer of {node}", "its format is not known")
    status, output, complaint = answer.groups()
    return Reply(int(status), _unpacked(node, output), _unpacked(node, complaint).strip())


def _unpacked(node: str, text: str) -> str:
    """Decode text that gzip and base64 have packed.

    Raises OutsideError (SW-SLURM-FAILED) if it is something else, cut off or too long.
    """
    packing = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        data = packing.decompress(base64.b64decode(text, validate=True), _MOST_BYTES + 1)
    except (binascii.Error, zlib.error) as error:
        raise _failed(f"the answer of {node}", str(error)) from None
    if len(data) > _MOST_BYTES:
        raise _failed(f"the answer of {node}", f"it printed more than {_MOST_BYTES} bytes")
    if not packing.eof:
        raise _failed(f"the answer of {node}", "it was cut off")
    return data.decode(errors="replace")


def _own_words(node: str, argv: Sequence[str], reply: Reply) -> OutsideError:
    lines = reply.complaint.splitlines()
    code = next((line for line in reversed(lines) if _CODE.fullmatch(line)), None)
    words = " ".join(line for line in lines if line != code)
    if code is None:
        ended = f"it ended with {reply.status}"
        return _failed(f"{argv[0]} on {node}", _printable(words) or ended)
    return OutsideError(known(code), f"{node}: {_printable(words)}")


def _printable(words: str) -> str:
    """A node's text for a terminal, a log or a drain's reason: one line, no control characters."""
    line = " ".join(words[:_WORDS_LENGTH].split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _failed(what: str, words: str) -> OutsideError:
    return OutsideError(Code.SLURM_FAILED, f"{what}: {words}")
