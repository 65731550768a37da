"""Runs the migrations by Alembic."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, text

from migrations import index_of_payers

_LOCK = 5_171_719
"""A number of no meaning. It is not the one of the migrations' own transaction: that runs in
another session, while this lock is held."""
_TRY = text("SELECT pg_try_advisory_lock(:lock)")
_TRY_AGAIN_S = 0.2


def migrate(engine: Engine, target: str, *, backwards: bool, say: Callable[[str], None]) -> None:
    """Migrate to the revision ``target``, upwards or ``backwards``, after any other migration.

    ``say`` is told what may take long: the end of another migration, and of others' transactions.
    """
    with _alone(engine, say) as alone:
        if not backwards:
            index_of_payers.build(alone, say)
        config = Config()
        # The package's own place: the same in a clone and in an installed wheel.
        config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            (command.downgrade if backwards else command.upgrade)(config, target)


@contextmanager
def _alone(engine: Engine, say: Callable[[str], None]) -> Iterator[Connection]:
    """A session, without a transaction, that has the lock of migrations until it ends.

    It asks again and again instead of waiting in PostgreSQL: a build of an index beside others
    waits for all older statements, so it would wait for one that waits for its end.
    """
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        try:
            if not _has_lock(connection):
                say("Another upgrade or downgrade is at work. This one waits for its end.")
                while not _has_lock(connection):
                    time.sleep(_TRY_AGAIN_S)
            yield connection
        finally:
            # The lock ends with the session, also where that is broken.
            connection.invalidate()


def _has_lock(connection: Connection) -> bool:
    return bool(connection.execute(_TRY, {"lock": _LOCK}).scalar())
