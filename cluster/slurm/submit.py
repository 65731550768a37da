"""Submits a batch script as the user who runs this process, in its environment and directory."""

import re
import subprocess
from dataclasses import dataclass

from cluster.errors import OutsideError, UnreachableError

_DEADLINE_S = 60.0
_TRIAL_DEADLINE_S = 5.0
_PREFIX = re.compile(r"^sbatch: (?:error: ?)?", flags=re.MULTILINE)


@dataclass(frozen=True)
class Submitted:
    """A job that Slurm accepted, and the lines that it told the user."""

    job_id: int
    messages: tuple[str, ...]


def submit(script: str) -> Submitted:
    """``sbatch`` with the script on its standard input.

    Raises OutsideError (SW-SBATCH) with sbatch's own lines if Slurm refuses it, Slicewise's code
    and hint among them; UnreachableError (SW-SLURM-DOWN) if sbatch does not end within 60 s.
    """
    try:
        reply = subprocess.run(
            ("sbatch", "--parsable"),
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=_DEADLINE_S,
        )
    except FileNotFoundError:
        raise OutsideError(
            "SW-SBATCH", "sbatch is not on PATH.", "Submit on a host of the Slurm cluster."
        ) from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            "SW-SLURM-DOWN",
            f"sbatch did not end within {_DEADLINE_S:g} s.",
            "The job may have been submitted all the same: see squeue --me.",
        ) from None
    return read_reply(reply.returncode, reply.stdout, reply.stderr)


def why_no_start(script: str) -> str:
    """What Slurm says against a script that it could start on no node as they are now.

    Nothing is submitted (``sbatch --test-only``). "" if it could, or where nobody can ask: then
    sbatch itself says so.
    """
    try:
        reply = subprocess.run(
            ("sbatch", "--test-only"),
            input=script,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRIAL_DEADLINE_S,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return read_trial(reply.returncode, reply.stderr)


def read_trial(status: int, complaint: str) -> str:
    """Of what ``sbatch --test-only`` has printed the last line, if it failed."""
    lines = _PREFIX.sub("", complaint).split("\n")
    said = next((line for line in reversed(lines) if line.strip()), f"sbatch ended with {status}")
    return said.removeprefix("allocation failure: ") if status else ""


def read_reply(status: int, output: str, complaint: str) -> Submitted:
    """What ``sbatch --parsable`` printed; OutsideError (SW-SBATCH) if it failed."""
    messages = tuple(line for line in _PREFIX.sub("", complaint).splitlines() if line.strip())
    job_id = output.strip().partition(";")[0]
    if status or not job_id.isdigit():
        raise OutsideError("SW-SBATCH", "\n".join(messages) or f"sbatch ended with {status}.")
    return Submitted(int(job_id), messages)
