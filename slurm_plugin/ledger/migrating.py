"""Runs the migrations by Alembic.

All migrations run in one transaction. What can't be done in one, such as the build of an index
beside the daemon's writes, a migration does in a function ``prepare(connection, say)``, which runs
before that transaction, without one. It does nothing if it was done before or if what it needs is
not there yet; it replaces what an interrupted run has left; ``say`` is told what may take long.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError, OperationalError

from slicewise.slurm_plugin.ledger.tables import SCHEMA

_VERSION = f"{SCHEMA}.alembic_version"
_SCHEMA_MADE = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
_VERSION_MADE = (
    f"CREATE TABLE IF NOT EXISTS {_VERSION}"
    " (version_num varchar(32) CONSTRAINT alembic_version_pkc PRIMARY KEY)"
)
"""As Alembic makes it."""
_LOCK = text(f"LOCK TABLE {_VERSION} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT")
"""Only the tables' owner may; reading and changing the revision may go on beside it."""
_UNBOUNDED = text(
    "SELECT set_config(name, '0', true) FROM pg_settings"
    " WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"
)
_LOCK_NOT_AVAILABLE = "55P03"
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
    with _alone(engine, say), engine.connect() as connection:
        if not backwards:
            _prepare(config, target, engine, say)
        config.attributes["connection"] = connection
        (command.downgrade if backwards else command.upgrade)(config, target)


def _prepare(config: Config, target: str, engine: Engine, say: Callable[[str], None]) -> None:
    """Prepare each migration up to ``target``, the oldest first."""
    steps = ScriptDirectory.from_config(config).iterate_revisions(target, "base")
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        for script in reversed(list(steps)):
            if prepare := getattr(script.module, "prepare", None):
                prepare(connection, say)


@contextmanager
def _alone(engine: Engine, say: Callable[[str], None]) -> Iterator[None]:
    """Have the lock of migrations, in a transaction that does nothing else and sees nothing.

    It asks again and again instead of waiting in PostgreSQL: a build of an index beside others
    waits for all older statements, so it would wait for one that waits for its end.
    """
    _make_version_table(engine)
    with engine.connect() as connection:
        try:
            if not _has_lock(connection):
                say("Another upgrade or downgrade is at work. This one waits for its end.")
                while not _has_lock(connection):
                    time.sleep(_TRY_AGAIN_S)
            yield
        finally:
            # The lock ends with the session, also where that is broken.
            connection.invalidate()


def _make_version_table(engine: Engine) -> None:
    """Make the table that is locked, before there is any other."""
    for statement in (_SCHEMA_MADE, _VERSION_MADE):
        # Two programs that make it at the same time collide in PostgreSQL's own tables.
        with suppress(IntegrityError), engine.begin() as connection:
            connection.exec_driver_sql(statement)


def _has_lock(connection: Connection) -> bool:
    connection.execute(_UNBOUNDED)
    try:
        connection.execute(_LOCK)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        connection.rollback()
        return False
    return True
