"""Connects to PostgreSQL, and turns its failures into the project's own errors."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic_core import from_json
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError

CONNECT: Mapping[str, object] = {"connect_timeout": 5, "application_name": "slicewise"}
"""Arguments of every connection."""

_LOCK_TIMEOUT = "10s"
"""A row or table that another transaction has for longer is no turn of a writer's any more."""
LOCKS_OF_OTHERS = """
      FROM pg_locks AS held
      JOIN pg_class AS object ON object.oid = held.relation AND object.relkind = 'r'
      JOIN pg_stat_activity AS session ON session.pid = held.pid
     WHERE held.granted AND held.pid <> pg_backend_pid()
       AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND object.relnamespace::regnamespace::text !~ '^pg_'
       AND NOT EXISTS (SELECT FROM pg_locks AS wish WHERE wish.pid = held.pid AND NOT wish.granted)
"""
"""SQL behind SELECT: locks on tables that others have who wait for none themselves."""
_HOLDER = text(f"""
    SELECT session.usename AS role, session.application_name AS application,
           to_char(session.xact_start AT TIME ZONE 'UTC', 'HH24:MI:SS') AS since,
           held.mode, object.relname AS object {LOCKS_OF_OTHERS}
     ORDER BY array_position(ARRAY['AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock',
              'ShareLock', 'ShareUpdateExclusiveLock', 'RowExclusiveLock', 'RowShareLock'],
              held.mode), session.xact_start
     LIMIT 1
""")
"""Who has the strongest lock."""
_LOCK_NOT_AVAILABLE = "55P03"
_INSUFFICIENT_PRIVILEGE = "42501"
_UNDEFINED_TABLE = "42P01"
_REFUSED = re.compile(
    r"authentication failed|no pg_hba\.conf entry|does not exist|not permitted to log in"
    r"|permission denied for database|no password supplied|rejects connection"
)
"""What PostgreSQL says to a role that it does not let in; psycopg has no SQLSTATE of it."""
_FULL = re.compile(r"too many clients|too many connections|remaining connection slots")


def postgres_engine(url: str) -> Engine:
    """An engine for ``postgresql://...``; nothing is connected yet.

    Raises InvalidInputError (SW-SETTINGS) for any other text, without showing the text: it may
    hold a password.
    """
    parsed = _parsed(url)
    if parsed is None or parsed.get_backend_name() != "postgresql":
        raise InvalidInputError(
            Code.SETTINGS,
            "The database's URL can't be read as a PostgreSQL one.",
            "Write postgresql://USER@HOST/DATABASE; in a password @ is %40 and / is %2F.",
        )
    return create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        connect_args=dict(CONNECT),
        # Set whatever the server's default is: functions read rows again after they locked them.
        isolation_level="READ COMMITTED",
        # Thousands of rows have a short JSON text; the json module takes nine times as long.
        json_deserializer=from_json,
        # A connection that a restart of the server broke is replaced instead of failing once.
        pool_pre_ping=True,
        pool_size=2,
        # Else each connection asks for a type that no table has.
        use_native_hstore=False,
    )


@dataclass(frozen=True)
class DatabasePlace:
    """Which database a URL leads to, and as which role; what it leaves out is libpq's.

    ``host`` is a directory where the server is asked by a socket in it.
    """

    host: str
    port: str
    database: str
    role: str

    def text(self) -> str:
        """``database 'slicewise' at db:5432, role slicewise``."""
        return f"database {self.database!r} at {self.host}:{self.port}, role {self.role}"


def database_place(url: str) -> DatabasePlace:
    """Return where ``url`` leads, without its password; raises what ``postgres_engine`` does."""
    from psycopg.pq import Conninfo  # noqa: PLC0415 -- most commands connect to nothing

    engine = postgres_engine(url)
    _, given = engine.dialect.create_connect_args(engine.url)
    ours = {
        get_default.keyword.decode(): (get_default.val or b"").decode()
        for get_default in Conninfo.get_defaults()
    }
    role = str(given.get("user") or ours["user"])
    return DatabasePlace(
        host=str(given.get("host") or ours["host"] or "the local socket"),
        port=str(given.get("port") or ours["port"]),
        database=str(given.get("dbname") or os.environ.get("PGDATABASE") or role),
        role=role,
    )


def _parsed(url: str) -> URL | None:
    """The parsed URL; None if it can't be read for certain.

    SQLAlchemy takes what stands after a first ``@`` for the host, and what stands after a ``/``
    before any ``@`` for the database. Parts of a password with these would be shown under those
    names.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    return None if url.count("@") > 1 or "@" in (parsed.database or "") else parsed


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read-only connection for one consistent look.

    Raises what ``translated`` raises, such as UnreachableError (SW-DATABASE-DOWN) and OutsideError
    (SW-DATABASE-FAILED).
    """
    with translated(engine), engine.connect() as connection:
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A connection for one transaction: in the end all of it is on disk, or nothing.

    Raises what ``reading`` raises, and OutsideError (SW-LEDGER-REFUSED) if a rule of the database
    itself forbids the change.
    """
    with translated(engine), engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT set_config('synchronous_commit', 'on', true),"
            f" set_config('lock_timeout', '{_LOCK_TIMEOUT}', true)"
        )
        yield connection


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn SQLAlchemy's errors into the project's own, without a password or a statement in them.

    UnreachableError: SW-DATABASE-BUSY, SW-DATABASE-DOWN. OutsideError:
    SW-LEDGER-REFUSED, SW-DATABASE-RIGHTS, SW-DATABASE-FAILED. InvalidInputError: SW-VALUE,
    SW-DATABASE-OLD.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            Code.VALUE, f"{error.object!r} can't be written as UTF-8.", "Write plain text."
        ) from None
    except (OperationalError, InterfaceError) as error:
        if _state(error) == _LOCK_NOT_AVAILABLE:
            raise UnreachableError(
                Code.DATABASE_BUSY,
                f"A table of the database {_place(engine)} is in use for too long{_held(engine)}.",
                "Nothing was changed. Try again; a long query or a dump may be running.",
            ) from None
        reason = _reason(engine, error)
        if _FULL.search(reason):
            raise UnreachableError(
                Code.DATABASE_CONNECTIONS,
                f"PostgreSQL takes no more connections to {_place(engine)}: {reason}.",
                "pg_stat_activity shows who has them: ALTER ROLE NAME CONNECTION LIMIT 20",
            ) from None
        if "FATAL" in reason and _REFUSED.search(reason):
            raise UnreachableError(
                Code.DATABASE_DOWN,
                f"PostgreSQL refuses the login to {_place(engine)}: {reason}.",
                "Check role, password and database of the URL, and the server's pg_hba.conf.",
            ) from None
        raise UnreachableError(
            Code.DATABASE_DOWN,
            f"The database {_place(engine)} does not answer: {reason}.",
            "Check that PostgreSQL runs, that it listens there (listen_addresses), and the URL.",
        ) from None
    except IntegrityError as error:
        raise OutsideError(
            Code.LEDGER_REFUSED,
            f"The ledger refused a change: {_reason(engine, error)}.",
            "Nothing was written. Run: slicewise ledger verify",
        ) from None
    except SQLAlchemyError as error:
        if _state(error) == _INSUFFICIENT_PRIVILEGE:
            raise OutsideError(
                Code.DATABASE_RIGHTS,
                f"The role may not do this in {_place(engine)}: {_reason(engine, error)}.",
                "As the tables' owner: slicewise ledger db grant ROLE --as DUTY",
            ) from None
        if _state(error) == _UNDEFINED_TABLE:
            raise InvalidInputError(
                Code.DATABASE_OLD,
                f"The database {_place(engine)} lacks a table: {_reason(engine, error)}.",
                "Run: slicewise ledger db upgrade",
            ) from None
        raise OutsideError(
            Code.DATABASE_FAILED,
            f"The database {_place(engine)} failed: {_reason(engine, error)}.",
        ) from None


def _held(engine: Engine) -> str:
    """Who may be the one that is waited for, in words; "" if nobody is to be seen any more."""
    try:
        with engine.connect() as connection:
            holder = connection.execute(_HOLDER).one_or_none()
    except SQLAlchemyError:
        return ""
    if holder is None:
        return ""
    since = f" since {holder.since} UTC" if holder.since else ""
    return (
        f": role {holder.role} ({holder.application or 'of no name'}) has {holder.mode} on"
        f" {holder.object}{since}"
    )


def _state(error: SQLAlchemyError) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _place(engine: Engine) -> str:
    url = engine.url
    host = url.host or url.query.get("host") or "the local socket"
    return f"{url.database!r} at {host}" + (f":{url.port}" if url.port else "")


def _reason(engine: Engine, error: SQLAlchemyError) -> str:
    """The first line of PostgreSQL's own words, with the password masked."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    password = str(engine.url.password or "")
    return lines[0].replace(password, "***") if password else lines[0]
