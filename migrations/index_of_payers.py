"""Builds the index of the runs that a tenant pays for, while the daemon goes on booking.

A build in a transaction would keep all new runs waiting, for seconds a million runs.
"""

from sqlalchemy import Connection

_INDEX = "ix_runs_payer ON slicewise.runs (cluster, (coalesce(payer, tenant)))"
CREATE = f"CREATE INDEX IF NOT EXISTS {_INDEX}"
_BESIDE = f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {_INDEX}"
_HAS_RUNS = """
SELECT count(*) FROM information_schema.columns
 WHERE (table_schema, table_name, column_name) = ('slicewise', 'runs', 'payer')
"""
_IS_BROKEN = """
SELECT count(*) FROM pg_index
 WHERE indexrelid = to_regclass('slicewise.ix_runs_payer') AND NOT indisvalid
"""


def build(connection: Connection) -> None:
    """Build it unless it is there; what an interrupted build has left is replaced.

    Does nothing where the table has not come to have payers: then it has no runs either, or a
    migration adds both.
    """
    beside = connection.execution_options(isolation_level="AUTOCOMMIT")
    if not beside.exec_driver_sql(_HAS_RUNS).scalar_one():
        return
    if beside.exec_driver_sql(_IS_BROKEN).scalar_one():
        beside.exec_driver_sql("DROP INDEX CONCURRENTLY slicewise.ix_runs_payer")
    beside.exec_driver_sql(_BESIDE)
