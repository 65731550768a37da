"""Builds the index of the runs that a tenant pays for, while the daemon goes on booking.

A build in a transaction would keep all new runs waiting, for seconds a million runs.
"""

from collections.abc import Callable

from sqlalchemy import Connection

_INDEX = "ix_runs_payer ON slicewise.runs (cluster, (coalesce(payer, tenant)))"
CREATE = f"CREATE INDEX IF NOT EXISTS {_INDEX}"
_BESIDE = f"CREATE INDEX CONCURRENTLY {_INDEX}"
_HAS_RUNS = """
SELECT count(*) FROM information_schema.columns
 WHERE (table_schema, table_name, column_name) = ('slicewise', 'runs', 'payer')
"""
_IS_VALID = """
SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('slicewise.ix_runs_payer')
"""
_WAITS = (
    "Building an index of the runs, while the daemon goes on booking. This waits for transactions"
    " that began before: a dump, or one left open in psql. pg_stat_activity shows them."
)


def build(beside: Connection, say: Callable[[str], None]) -> None:
    """Build it unless it is there; what an interrupted build has left is replaced.

    ``beside`` has no transaction, and no other build runs at the same time. ``say`` is told that a
    build begins. Does nothing where the table of runs is not there or has no payers yet: then
    migration 0012 builds it in its transaction.
    """
    if not beside.exec_driver_sql(_HAS_RUNS).scalar_one():
        return
    is_valid = beside.exec_driver_sql(_IS_VALID).scalar_one_or_none()
    if is_valid:
        return
    say(_WAITS)
    if is_valid is not None:
        beside.exec_driver_sql("DROP INDEX CONCURRENTLY slicewise.ix_runs_payer")
    beside.exec_driver_sql(_BESIDE)
