"""Runs the statements that book charges and usage, on connections of their own."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection, create_engine
from sqlalchemy.exc import DBAPIError

from slicewise.cluster.runtime.database import CONNECT, translated

# Indexes only: a plan made while the tables were small outlives their growth.
_SETTINGS = {
    "synchronous_commit": "on",
    "lock_timeout": "3s",
    "default_transaction_isolation": r"read\ committed",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
OPTIONS = " ".join(f"-c {name}={value}" for name, value in _SETTINGS.items())
"""The libpq options of a connection that books."""


def booking_engine(engine: Engine) -> Engine:
    """An engine for the same database without overhead beyond the statement itself.

    Each statement is a transaction of its own, on disk when it returns; there is no round trip for
    BEGIN, COMMIT, settings or a ping.
    """
    return create_engine(
        engine.url,
        connect_args={**CONNECT, "options": OPTIONS},
        isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,
        pool_size=1,
    )


def book(engine: Engine, statement: str, values: str) -> Sequence[int]:
    """Run an idempotent statement on a ``booking_engine``; return its one value, an array.

    ``values`` are for ``$1``, in ASCII. If the connection proves to be broken, the statement is
    repeated once, on another.
    """
    with translated(engine):
        try:
            return _value(engine, statement, values)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            return _value(engine, statement, values)


def _value(engine: Engine, statement: str, values: str) -> Sequence[int]:
    """Run the statement on a raw connection: SQLAlchemy's own takes as long as the statement."""
    errors = engine.dialect.loaded_dbapi.Error
    connection = None
    try:
        connection = engine.raw_connection()
        return _prepared(engine.dialect.loaded_dbapi, connection, statement, values.encode("ascii"))
    except errors as error:
        broken = connection is not None and _is_broken(engine, connection, error)
        raise DBAPIError.instance(
            statement, None, error, errors, connection_invalidated=broken, dialect=engine.dialect
        ) from error
    finally:
        if connection is not None:
            connection.close()


def _prepared(
    psycopg: Any, connection: PoolProxiedConnection, statement: str, values: bytes
) -> Sequence[int]:
    """Run the statement as libpq does, prepared once a connection: a cursor takes three times as
    much of the processor for it. Raises psycopg's errors.
    """
    driver: Any = connection.dbapi_connection
    if statement not in connection.info:
        name = f"slicewise_{len(connection.info)}".encode()
        _checked(psycopg, driver, driver.pgconn.prepare(name, statement.encode("ascii")))
        connection.info[statement] = name
    name = connection.info[statement]
    found = _checked(psycopg, driver, driver.pgconn.exec_prepared(name, [values]))
    return [int(number) for number in found.get_value(0, 0)[1:-1].split(b",") if number]


def _checked(psycopg: Any, driver: Any, result: Any) -> Any:
    """Return a result that is no error, else raise it; OperationalError for a broken connection."""
    if result.status in {psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK}:
        return result
    if driver.closed:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
    raise psycopg.errors.error_from_result(result, driver.info.encoding)


def _is_broken(engine: Engine, connection: PoolProxiedConnection, error: Any) -> bool:
    """Whether the connection is broken; if so, it is discarded."""
    broken = engine.dialect.is_disconnect(error, connection.dbapi_connection, None)
    if broken:
        connection.invalidate(error)
    return broken
