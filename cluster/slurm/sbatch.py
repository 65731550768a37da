"""Submits a batch script as the user who runs this process, in its environment and directory."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.slurm.values import is_whole

_DEADLINE_S = 60.0
_TRIAL_DEADLINE_S = 5.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Seconds between tries of a service that got no answer."""
_OTHER_CLUSTERS = frozenset({"SLURM_CLUSTERS", "SBATCH_CLUSTERS"})
"""Variables that would send the script to another cluster than the one whose daemon was asked."""
_CODE = re.compile(r"SW-[A-Z-]+")
_PREFIX = re.compile(r"^sbatch: (?:error: ?)?", flags=re.MULTILINE)


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm accepted, and the lines that it showed the user."""

    job_id: int
    messages: tuple[str, ...]


def submit(script: str, *options: str) -> Submitted:
    """Run ``sbatch`` with the script on its standard input; options win over the script's own.

    Raises OutsideError (SW-SLURM-FAILED) if Slurm refuses the script, with sbatch's own lines,
    which include Slicewise's code and hint; UnreachableError (SW-SLURM-DOWN) if sbatch does not end
    within 60 s.
    """
    try:
        reply = subprocess.run(
            ("sbatch", "--parsable", *options),
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE_S,
            env=_environment(),
        )
    except FileNotFoundError:
        raise OutsideError(
            Code.SLURM_FAILED, "sbatch is not on PATH.", "Submit on a host of the Slurm cluster."
        ) from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            Code.SLURM_DOWN,
            f"sbatch did not end within {_DEADLINE_S:g} s.",
            "The job may still have been submitted: see squeue --me.",
        ) from None
    return read_reply(reply.returncode, reply.stdout, reply.stderr)


def submit_service(
    script: str, *options: str, sleep: Callable[[float], None] = time.sleep
) -> Submitted:
    """Submit a service, and try again for some seconds where slicewise.lua got no answer.

    A plain job goes on then, and the daemon decides on it later; a service is refused
    (SW-DAEMON-DOWN), though the daemon may only have been slow for a moment: slurmctld waits some
    milliseconds. Raises what ``submit`` does.
    """
    for pause_s in _PAUSES_S:
        try:
            return submit(script, *options)
        except OutsideError as error:
            if Code.DAEMON_DOWN not in error.refusal.message.splitlines():
                raise
        sleep(pause_s)
    return submit(script, *options)


def why_no_start(script: str) -> str:
    """Slurm's words if it could start the script on no node as the nodes are now, else "".

    Nothing is submitted (``sbatch --test-only``). Also "" if sbatch is missing or too slow: a real
    submission then says so itself.
    """
    try:
        reply = subprocess.run(
            ("sbatch", "--test-only"),
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRIAL_DEADLINE_S,
            env=_environment(),
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return read_trial(reply.returncode, reply.stderr)


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OTHER_CLUSTERS}


def read_trial(status: int, complaint: str) -> str:
    """Why ``sbatch --test-only`` failed, in one line; "" if it did not.

    That is what slicewise.lua says, which ends in its code; else the last line printed.
    """
    lines = [line for line in _PREFIX.sub("", complaint).split("\n") if line.strip()]
    codes = [number for number, line in enumerate(lines) if _CODE.fullmatch(line)]
    if codes:
        lines = [f"{' '.join(lines[: codes[0]])} [{lines[codes[0]]}]"]
    message = lines[-1] if lines else f"sbatch ended with {status}"
    return message.removeprefix("allocation failure: ") if status else ""


def read_reply(status: int, output: str, complaint: str) -> Submitted:
    """Read what ``sbatch --parsable`` printed; OutsideError (SW-SLURM-FAILED) if it failed."""
    messages = tuple(line for line in _PREFIX.sub("", complaint).splitlines() if line.strip())
    job_id = output.strip().partition(";")[0]
    if status or not is_whole(job_id):
        raise OutsideError(Code.SLURM_FAILED, "\n".join(messages) or f"sbatch ended with {status}.")
    return Submitted(int(job_id), messages)
