"""Runs migrations on the connection that ``slurm_plugin.ledger.schema`` hands over."""

from alembic import context
from sqlalchemy import Connection, text

from slurm_plugin.ledger.tables import SCHEMA, metadata

_LOCK = 5_171_717
"""Any number, the same in every version: two upgrades at once run one after the other."""

_LOCK_TIMEOUT = "2s"
"""A lock that does not come is given up: behind one that waits, the daemon's writes wait too."""


def run(connection: Connection) -> None:
    with connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        context.configure(
            connection=connection, target_metadata=metadata, version_table_schema=SCHEMA
        )
        with context.begin_transaction():
            context.run_migrations()
        # Some act as their owner: they are for the roles that ``slicewise db grant`` names.
        connection.execute(text(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {SCHEMA} FROM PUBLIC"))


run(context.config.attributes["connection"])
