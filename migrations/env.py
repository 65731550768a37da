"""Runs migrations on the connection that ``slicewise.slurm_plugin.ledger.schema_revisions`` hands
over.
"""

from alembic import context
from sqlalchemy import Connection, text

from slicewise.slurm_plugin.ledger.tables import SCHEMA

_LOCK_TIMEOUT = "2s"
"""A table lock that does not come in this time is given up: while it waits, the daemon's writes
wait behind it."""


def run(connection: Connection) -> None:
    with connection.begin():
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
        context.configure(connection=connection, version_table_schema=SCHEMA)
        with context.begin_transaction():
            context.run_migrations()
        # Some functions act with their owner's rights; only roles that ``slicewise ledger db
        # grant`` names may call them.
        connection.execute(text(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {SCHEMA} FROM PUBLIC"))


run(context.config.attributes["connection"])
