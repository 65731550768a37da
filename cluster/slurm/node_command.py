"""A command of root's on a node, by a batch job, and what it says.

Its answer comes by the job's comment, part by part: Slurm lets only root, SlurmUser, operators and
the job's owner write there. So nothing on this host waits for a connection. srun does, and connects
besides to whatever address a message of root's tells it to (``SRUN_NET_FORWARD``): as whoever has
root on a node and the cluster's munge key sends such messages, it would lend him root's hands here.
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

from cluster.errors import OutsideError, SlicewiseError, UnreachableError
from cluster.jobs import JobState
from cluster.slurm.job_rows import job_state
from cluster.slurm.run import SQUEUE, Reply, attempt, run

_POLL_S = 0.1
_CODE = re.compile(r"SW-[A-Z0-9-]{1,40}")
_WORDS_LENGTH = 1000
_MOST_BYTES = 1 << 22
"""Of what a command on a node prints: whoever is root there decides what it says."""
_PART, _MOST_PARTS = 900, 40
"""Slurm takes 1,024 characters as a comment. 8 GPUs of 7 instances each are told in five of these.
"""
_LOOKS = 300
"""Each a tenth of a second and more: whoever should read has ended, and the core is wanted."""
_PASSED = frozenset({"PATH"})
"""Of this process's variables, beside Slurm's own: whoever is root on the node reads them, and an
operator's shell may have the ledger's URL. With a list of names slurmd would run ``su - root`` on
the node to add to it, and hold the job if that took more than two seconds.
"""
_SAID = re.compile(r"slicewise:answer ([0-9]{1,2})/([0-9]{1,2}) ([A-Za-z0-9+/= ]*)", re.ASCII)
_ANSWER = re.compile(r"([0-9]{1,3}) ([A-Za-z0-9+/=]*) ([A-Za-z0-9+/=]*)", re.ASCII)

_SCRIPT = f"""\
#!/bin/sh
# Users can fill /tmp, and not /run.
said=$(mktemp -d /run/slicewise-XXXXXX 2>/dev/null || mktemp -d) || exit 1
COMMAND >"$said/out" 2>"$said/err" </dev/null
status=$?
packed() {{ head -c {_MOST_BYTES + 1} "$said/$1" | gzip -9 | base64 | tr -d '\\n'; }}
answer="$status $(packed out) $(packed err)"
if [ ${{#answer}} -gt {_PART * _MOST_PARTS} ]; then
    : >"$said/out"
    echo "it printed too much" >"$said/err"
    answer="1 $(packed out) $(packed err)"
fi
rm -rf "$said"

# Whoever reads a part takes it out again: slurmdbd shall not keep it.
is_read() {{
    shown=$(scontrol --oneliner show job "$SLURM_JOB_ID") || return 1
    case $shown in *" Comment=slicewise:answer "*) return 1 ;; esac
}}

parts=$(((${{#answer}} + {_PART - 1}) / {_PART}))
part=0
while [ "$part" -lt "$parts" ]; do
    words=$(printf %s "$answer" | tail -c +$((part * {_PART} + 1)) | head -c {_PART})
    part=$((part + 1))
    # slurmctld may be away for a moment.
    until scontrol update JobId="$SLURM_JOB_ID" Comment="slicewise:answer $part/$parts $words"; do
        sleep 1
    done
    left={_LOOKS}
    until is_read; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || exit 1
        sleep 0.1
    done
done
"""


async def run_on(node: str, reservation: str, argv: Sequence[str], deadline_s: float) -> str:
    """What a command prints that runs on the node as this user, within that reservation if any.

    A caller that is killed leaves a job that ends by itself, whether it has started or not.

    Raises UnreachableError (SW-SLURM-DOWN), or OutsideError with the command's own code where it
    is one of Slicewise's, else SW-SLURM-FAILED; so, too, if Slurm has no core free in time.
    """
    job_id = await _submitted(node, reservation, argv, deadline_s)
    try:
        reply = await _answer(job_id, node, deadline_s)
    except BaseException:
        with suppress(SlicewiseError):
            await attempt(("scancel", "--quiet", str(job_id)))
        raise
    if reply.status:
        raise _own_words(node, argv, reply)
    return reply.output


async def _submitted(node: str, reservation: str, argv: Sequence[str], deadline_s: float) -> int:
    limit_min = int(deadline_s // 60) + 1
    ends_s = int(deadline_s) + 60 * limit_min
    options = (
        *((f"--reservation={reservation}",) if reservation else ()),
        *(f"--partition={await _partition(node)}", f"--nodelist={node}", "--nodes=1"),
        *("--ntasks=1", "--cpus-per-task=1", "--mem=1", f"--time={limit_min}", "--chdir=/"),
        *(f"--deadline=now+{ends_s}", "--no-requeue", "--export=ALL"),
        *("--output=/dev/null", "--job-name=slicewise-recut"),
    )
    script = _SCRIPT.replace("COMMAND", shlex.join(argv), 1)
    said = await run(("sbatch", "--parsable", *options), stdin=script, passed=_PASSED)
    return int(said.partition(";")[0])


async def _answer(job_id: int, node: str, deadline_s: float) -> Reply:
    began_s, answer, read = time.monotonic(), "", 0
    while True:
        state, reason, comment = await _job(job_id)
        if said := _SAID.fullmatch(comment):
            part, parts = int(said[1]), int(said[2])
            if part == read + 1:
                answer, read = answer + said[3], part
            await _take_out(job_id)
            if read >= min(parts, _MOST_PARTS):
                return _reply(node, answer)
        else:
            if state is JobState.ENDED:
                why = f"it ended without an answer ({_printable(reason)}): see slurmd's log there"
                raise _failed(f"job {job_id} on {node}", why)
            if state is JobState.PENDING and time.monotonic() - began_s > deadline_s / 2:
                why = f"it did not start in {deadline_s / 2:g} s ({_printable(reason)})"
                raise _failed(f"job {job_id} on {node}", why)
        if time.monotonic() - began_s > deadline_s:
            raise UnreachableError(
                "SW-SLURM-DOWN", f"Job {job_id} on {node}: no answer within {deadline_s:g} s."
            )
        await asyncio.sleep(_POLL_S)


async def _take_out(job_id: int) -> None:
    """What is not taken out is read again, and then tried again."""
    with suppress(SlicewiseError):
        await attempt(("scontrol", "update", f"JobId={job_id}", "Comment="))


def _reply(node: str, text: str) -> Reply:
    answer = _ANSWER.fullmatch(text)
    if answer is None:
        raise _failed(f"the answer of {node}", "it has another form")
    status, output, complaint = answer.groups()
    return Reply(int(status), _unpacked(node, output), _unpacked(node, complaint).strip())


async def _job(job_id: int) -> tuple[JobState | None, str, str]:
    """State, reason and comment; no state while slurmctld does not answer."""
    which = ("--states=all", f"--jobs={job_id}", "--format=%T|%r|%k")
    try:
        reply = await attempt((*SQUEUE, *which), most_bytes=_MOST_BYTES)
    except UnreachableError:
        return None, "", ""
    if reply.status:
        raise _failed(f"job {job_id}", reply.complaint)
    state, _, rest = reply.output.rstrip("\n").partition("|")
    reason, _, comment = rest.partition("|")
    return job_state(state), reason, comment


def _unpacked(node: str, text: str) -> str:
    """Raises OutsideError (SW-SLURM-FAILED) if it is nothing that gzip and base64 make."""
    packing = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = packing.decompress(base64.b64decode(text, validate=True), _MOST_BYTES + 1)
    except (binascii.Error, zlib.error) as error:
        raise _failed(f"the answer of {node}", str(error)) from None
    if len(found) > _MOST_BYTES:
        raise _failed(f"the answer of {node}", f"it printed more than {_MOST_BYTES} bytes")
    if not packing.eof:
        raise _failed(f"the answer of {node}", "it was cut off")
    return found.decode(errors="replace")


async def _partition(node: str) -> str:
    """One that the node is in: the default one may be without it."""
    which = ("--noheader", "--all", f"--nodes={node}", "--format=%R")
    found = (await run(("sinfo", *which))).split()
    if not found:
        raise OutsideError("SW-SLURM-FAILED", f"Slurm has no node {node} in any partition.")
    return found[0]


def _own_words(node: str, argv: Sequence[str], reply: Reply) -> OutsideError:
    lines = reply.complaint.splitlines()
    code = next((one for one in reversed(lines) if _CODE.fullmatch(one)), None)
    words = " ".join(one for one in lines if one != code)
    if code is None:
        ended = f"it ended with {reply.status}"
        return _failed(f"{argv[0]} on {node}", _printable(words) or ended)
    return OutsideError(code, f"{node}: {_printable(words)}")


def _printable(words: str) -> str:
    """Text of a node for a terminal, a log and the reason of a drain: one line, no control."""
    line = " ".join(words[:_WORDS_LENGTH].split())
    return "".join(one if one.isprintable() else "?" for one in line)


def _failed(what: str, words: str) -> OutsideError:
    return OutsideError("SW-SLURM-FAILED", f"{what}: {words}")
