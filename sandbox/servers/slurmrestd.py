"""Starts slurmrestd beside the cluster, which answers root at a socket."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL

from slicewise.sandbox.cluster import Sandbox

_SERVED_BY = "bob"
_PATIENCE_S, _PAUSE_S = 120.0, 0.1


@contextmanager
def slurmrestd(sandbox: Sandbox) -> Iterator[tuple[Path, int]]:
    """Run one as a user, as it must be; yield its socket and its process id.

    Raises:
        RuntimeError: it does not start.
    """
    socket = sandbox.layout.home / sandbox.state.users[_SERVED_BY].name / "slurmrestd.socket"
    options = ("-a", "rest_auth/local", "-s", "openapi/slurmctld", "-d", "v0.0.44")
    # Without it, lists of indices end after 64 characters.
    argv = ("env", "SLURM_BITSTR_LEN=0", "slurmrestd", *options, f"unix:{socket}")
    server = sandbox.popen(_SERVED_BY, argv, stdout=DEVNULL, stderr=DEVNULL)
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not socket.exists():
            if time.monotonic() > deadline_s or server.poll() is not None:
                raise RuntimeError("slurmrestd does not start")
            time.sleep(_PAUSE_S)
        yield socket, server.pid
    finally:
        server.terminate()
        server.wait()
        socket.unlink(missing_ok=True)
