"""The process that holds pyslurm: ``python -m slicewise.cluster.slurm.pyslurm_worker``.

libslurm ends its process over a bad slurm.conf and holds the GIL while slurmctld hangs, so no
program loads it into itself. This process answers ``pyslurm_client``. A request is a line on
standard input; a reply is its length (four bytes) and a pickled ``Reply``. The first reply comes
without a request and has the versions. The process ends when its standard input does.
"""

import ctypes
import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, BinaryIO

from slicewise.cluster.language.jobs import JobView, StepView
from slicewise.cluster.language.slurm.unread import refused
from slicewise.cluster.runtime.user_names import user_name
from slicewise.cluster.slurm.pyslurm_records import job_view, step_views

Reply = tuple[bool, Any]
"""Whether the request succeeded; then its result, else the error's text."""

LENGTH = struct.Struct("!I")


def main() -> None:
    """Answer requests until standard input ends."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as replies:
        # pyslurm and libslurm print, which must not get into the replies.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            pyslurm = import_module("pyslurm")
            _send(replies, (True, _versions(pyslurm)))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the parent has to know
            _send(replies, (False, _words(error)))
            sys.stdin.read()  # until the parent closes it
            return
        for line in sys.stdin:
            _send(replies, _answer(pyslurm, *line.split()))


def _versions(pyslurm: Any) -> tuple[tuple[int, ...], int]:
    """The Slurm that pyslurm was built for; the API number of the library that is loaded."""
    return tuple(pyslurm.slurm_api_version()), ctypes.CDLL(None).slurm_api_version() >> 16


def _answer(pyslurm: Any, request: str, *arguments: str) -> Reply:
    try:
        # Without slurmctld it fails immediately, where any other call would take 10 s.
        pyslurm.slurmctld.ping_primary()
        return True, _READS[request](pyslurm, *arguments)
    except Exception as error:  # noqa: BLE001 -- the parent asks the commands then
        return False, _words(error)


def _jobs(pyslurm: Any) -> tuple[JobView, ...]:
    # pyslurm's own ``user_name`` asks the system again for each job.
    named = cache(user_name)
    return tuple(job_view(job, named, refused) for job in pyslurm.Jobs.load().values())


def _steps(pyslurm: Any, *job_ids: str) -> tuple[StepView, ...]:
    return step_views(map(int, job_ids), pyslurm.JobSteps.load_all(), refused)


def _batch_script(pyslurm: Any, job_id: str) -> str:
    try:
        return str(pyslurm.Job(int(job_id)).get_batch_script())
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


_READS: Mapping[str, Callable[..., object]] = {
    "jobs": _jobs,
    "steps": _steps,
    "batch_script": _batch_script,
}


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _send(replies: BinaryIO, reply: Reply) -> None:
    text = pickle.dumps(reply)
    replies.write(LENGTH.pack(len(text)) + text)
    replies.flush()


if __name__ == "__main__":
    main()
