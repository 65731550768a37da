"""Dumps the ledger's database by pg_dump, and restores a dump into a scratch database to check it.

What a dump holds is read in the snapshot that pg_dump uses. So the seal that is kept with the dump
is the newest one in it: a seal that is read after a dump may be newer, and no restored ledger has
it.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from sqlalchemy import URL, Connection, Engine, text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.runtime.database import postgres_engine, reading, translated
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.ledger import schema_revisions
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import BackupRecord

_SNAPSHOT = text("SELECT pg_export_snapshot()")
_TRANSFERS = text("SELECT count(*) FROM slicewise.transfers")
_SEAL = text("SELECT encode(hash, 'hex') FROM slicewise.seals ORDER BY id DESC LIMIT 1")
_DUMP = ("pg_dump", "--format=custom")
_RESTORE = ("pg_restore", "--exit-on-error", "--no-owner", "--no-privileges")
_CHUNK = 1 << 20


def dump(url: str, file: IO[Any]) -> BackupRecord:
    """Dump the whole database into a file that is open for writing; return what it holds.

    The role must be allowed to read all of it, such as the tables' owner. Raises InvalidInputError
    (SW-DATABASE-OLD) for a database without a ledger, and what ``_run`` raises.
    """
    engine = postgres_engine(url)
    revision = schema_revisions.current(engine)
    if revision == schema_revisions.BASE:
        raise InvalidInputError(
            Code.DATABASE_OLD,
            f"The database {engine.url.database!r} holds no ledger.",
            "Check which one the URL names: slicewise ledger db current",
        )
    with reading(engine) as connection:
        snapshot = connection.execute(_SNAPSHOT).scalar_one()
        made_s = int(wall_s())
        transfers, seal = _contents(connection)
        _run((*_DUMP, f"--snapshot={snapshot}"), _place(connection), output=file)
    size, sha256 = _fingerprint(Path(file.name))
    return BackupRecord(
        database=str(engine.url.database),
        revision=revision,
        made_s=made_s,
        transfers=transfers,
        seal=seal,
        size=size,
        sha256=sha256,
    )


def check(url: str, path: Path, record: BackupRecord) -> None:
    """Restore a dump into a database of its own on the server at ``url``, verify it, and drop it.

    Tables of an older revision are upgraded there first. Raises OutsideError (SW-BACKUP-BROKEN) for
    a dump that is not what its record says or whose ledger does not add up, and what ``_run``
    raises. The role must be allowed to create databases (SW-DATABASE-RIGHTS). A process that is
    killed leaves the database, whose name begins with ``slicewise_check_``.
    """
    if _fingerprint(path) != (record.size, record.sha256):
        raise broken(f"{path} is not the file that its record describes: its checksum differs.")
    engine = postgres_engine(url)
    with _scratch(engine) as scratch:
        _run((*_RESTORE, str(path)), scratch)
        # By libpq's own words: SQLAlchemy's URL may name several servers, of which one is meant.
        restored = scratch.url
        if (found := schema_revisions.current_of(restored)) != record.revision:
            raise broken(f"{path} holds tables of revision {found}, not {record.revision}.")
        schema_revisions.upgrade(restored)
        with Ledger(restored, "") as ledger:
            faults = _faults(ledger, record)
    if faults:
        raise broken("\n  ".join((f"The ledger in {path} is not whole:", *faults)))


def broken(words: str) -> OutsideError:
    """The error of a dump from which a ledger can't be restored."""
    return OutsideError(Code.BACKUP_BROKEN, words, "Don't rely on it: make another one.")


def _faults(ledger: Ledger, record: BackupRecord) -> Sequence[str]:
    verified = ledger.audit.verify()
    faults = list(verified.faults)
    if verified.imbalance and not faults:
        faults.append(f"{verified.imbalance} do not add up")
    if verified.transfers != record.transfers:
        faults.append(f"it has {verified.transfers} transfers, not {record.transfers}")
    if record.seal and not ledger.audit.has_seal(record.seal):
        faults.append(f"seal {record.seal} is not in its chain")
    return faults


def _contents(connection: Connection) -> tuple[int, str]:
    """How many transfers the ledger has, and its newest seal; "" without one."""
    transfers = int(connection.execute(_TRANSFERS).scalar_one())
    return transfers, connection.execute(_SEAL).scalar_one_or_none() or ""


@dataclass(frozen=True)
class _Place:
    """A database on the server that a connection has found; a URL may name several servers.

    ``shown`` is its URL without a password, which everybody may read.
    """

    shown: URL
    password: str | None = field(repr=False)

    @property
    def url(self) -> str:
        """With the password."""
        return _text(self.shown.set(password=self.password))

    def of(self, database: str) -> "_Place":
        """Another database on the same server."""
        return replace(self, shown=self.shown.set(database=database))


_LEFT_OUT = frozenset({"user", "dbname", "password", "sslpassword", "hostaddr"})
"""Parameters that stand elsewhere in the URL, are secret, or may name several servers."""


def _place(connection: Connection) -> _Place:
    info = connection.connection.driver_connection.info  # type: ignore[union-attr]
    own = {key: said for key, said in info.get_parameters().items() if key not in _LEFT_OUT}
    query = {**own, "host": info.host, "port": str(info.port)}
    shown = URL.create("postgresql", info.user, database=info.dbname, query=query)
    return _Place(shown, info.password or None)


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@contextmanager
def _scratch(engine: Engine) -> Iterator[_Place]:
    name = f"slicewise_check_{uuid4().hex}"
    with _creating(engine) as connection:
        place = _place(connection).of(name)
        connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield place
    finally:
        # A connection that was idle for as long as a restore takes may have been ended.
        with _creating(engine) as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def _creating(engine: Engine) -> Iterator[Connection]:
    try:
        with translated(engine), engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection
    except OutsideError as error:
        if error.refusal.code != Code.DATABASE_RIGHTS:
            raise
        hint = "Let it create databases: ALTER ROLE ... CREATEDB. Or use a superuser's URL."
        raise OutsideError(error.refusal.code, error.refusal.message, hint) from None


def _run(argv: Sequence[str], place: _Place, output: IO[Any] | None = None) -> None:
    """Run a program of PostgreSQL's on a database; no argument shows a password.

    Raises InvalidInputError (SW-PROGRAM) if this host lacks the program, and OutsideError
    (SW-DATABASE-FAILED) with its first line if it fails.
    """
    try:
        done = subprocess.run(
            (*argv, f"--dbname={_text(place.shown)}"),
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=_environment(place.password),
            check=False,
        )
    except FileNotFoundError:
        raise InvalidInputError(
            Code.PROGRAM,
            f"This host has no {argv[0]}.",
            "Install PostgreSQL's client programs of the server's version, or newer ones.",
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise OutsideError(Code.DATABASE_FAILED, f"{argv[0]} failed: {said[0]}", _HINTS[argv[0]])


_HINTS = {
    "pg_dump": "Nothing was kept. Its role must be the owner of the tables or a superuser.",
    "pg_restore": "The dump was not checked, and is as it was. See what it says.",
}


def _environment(password: str | None) -> Mapping[str, str]:
    own = {"LC_ALL": "C", **({"PGPASSWORD": password} if password else {})}
    return {**os.environ, **own}


def _fingerprint(path: Path) -> tuple[int, str]:
    """Bytes of a file, and their SHA-256 in hexadecimal."""
    size, found = 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            found.update(chunk)
    return size, found.hexdigest()
