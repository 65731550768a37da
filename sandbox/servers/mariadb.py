"""MariaDB for slurmdbd: small, on a unix socket only, its user known by peer credentials."""

from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.probes import unix_socket_answers

_SYSTEM_TABLES = ("system_tables.sql", "performance_tables.sql", "system_tables_data.sql")
_NAMES = ("mariadb_", "mysql_")
"""Prefixes of their names: since MariaDB 11, and before."""
_SHARE = (Path("/usr/share/mysql"), Path("/usr/share/mariadb"))

_SMALL = (
    # The data lives as long as the sandbox: it need not survive a power cut.
    "--innodb-flush-method=nosync",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=0",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--innodb-lock-wait-timeout=900",
    "--key-buffer-size=1M",
    "--performance-schema=0",
    # Slurm asks for this setting where MariaDB knows it.
    "--loose-innodb-snapshot-isolation=OFF",
    "--skip-log-bin",
    "--skip-name-resolve",
)


async def up(host: Host) -> None:
    """Create the system tables and slurmdbd's database, then start the server.

    ``mariadbd --bootstrap`` reads the same SQL as mariadb-install-db, which needs a program of a
    client package that the sandbox does without.
    """
    host.directory(host.layout.mariadb_socket.parent, "slurm", 0o700)
    host.directory(_data(host), "slurm", 0o700)
    host.directory(_temporary(host), "slurm", 0o700)
    await host.command(
        "slurm",
        (*_program(host), "--bootstrap"),
        stdin=_bootstrap_sql(host.user("slurm").name),
    )
    await start(host)


async def start(host: Host) -> None:
    """Start the server with the data that is there."""
    layout = host.layout
    host.spawn(
        "mariadbd",
        "slurm",
        (
            *_program(host),
            "--skip-networking",
            f"--socket={layout.mariadb_socket}",
            f"--pid-file={layout.mariadb_socket.parent / 'mariadb.pid'}",
        ),
    )
    await host.ready("mariadbd", lambda: unix_socket_answers(layout.mariadb_socket))


def _data(host: Host) -> Path:
    return host.layout.lib / "mariadb"


def _temporary(host: Host) -> Path:
    """Directory of temporary tables; in /tmp a server that starts removes those of all others."""
    return host.layout.lib / "mariadb-tmp"


def _program(host: Host) -> tuple[str, ...]:
    folders = (f"--datadir={_data(host)}", f"--tmpdir={_temporary(host)}")
    return ("mariadbd", "--no-defaults", *folders, *_SMALL)


def _bootstrap_sql(owner: str) -> str:
    begin = f"create database mysql;\nuse mysql;\nset @auth_root_socket='{owner}';\n"
    tables = "\n".join(path.read_text(encoding="utf-8") for path in _system_tables())
    return f"{begin}{tables}\ncreate database slurm_acct_db;\n"


def _system_tables() -> tuple[Path, ...]:
    for share in _SHARE:
        for name in _NAMES:
            files = tuple(share / f"{name}{table}" for table in _SYSTEM_TABLES)
            if all(path.is_file() for path in files):
                return files
    raise SlicewiseError(
        Code.PROGRAM,
        f"MariaDB's {' or '.join(f'{name}{_SYSTEM_TABLES[0]}' for name in _NAMES)} is in neither of"
        f" {', '.join(map(str, _SHARE))}.",
        "Reinstall mariadb-server-core.",
    )
