"""Runs the migrations by Alembic.

All migrations run in one transaction. What can't be done in one, such as the build of an index
beside the daemon's writes, a migration does in a function ``prepare(connection, say)``, which runs
before that transaction, without one. It does nothing if it was done before or if what it needs is
not there yet; it replaces what an interrupted run has left; ``say`` is told what may take long.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

_LOCK = 5_171_719
"""A number of no meaning. It is not the one of the migrations' own transaction: that runs in
another session, while this lock is held."""
_TRY = text("SELECT pg_try_advisory_lock(:lock)")
_TRY_AGAIN_S = 0.2


def migrate(
    engine: Engine, folder: Path, target: str, *, backwards: bool, say: Callable[[str], None]
) -> None:
    """Migrate to the revision ``target``, upwards or ``backwards``, after any other migration.

    ``folder`` is the migrations' own. ``say`` is told what may take long: the end of
    another migration, and of others' transactions.
    """
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    with _alone(engine, say) as alone:
        if not backwards:
            _prepare(config, target, alone, say)
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            (command.downgrade if backwards else command.upgrade)(config, target)


def _prepare(
    config: Config, target: str, connection: Connection, say: Callable[[str], None]
) -> None:
    """Prepare each migration up to ``target``, the oldest first."""
    steps = ScriptDirectory.from_config(config).iterate_revisions(target, "base")
    for script in reversed(list(steps)):
        if prepare := getattr(script.module, "prepare", None):
            prepare(connection, say)


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
