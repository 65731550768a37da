"""A next version: it adds a column, and an index that is built beside the daemon's writes."""

from collections.abc import Callable

from alembic import op
from sqlalchemy import Connection

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INDEX = "ix_runs_user ON slicewise.runs (cluster, user_name)"
_HAS_RUNS = "SELECT to_regclass('slicewise.runs') IS NOT NULL"
_IS_VALID = """
SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('slicewise.ix_runs_user')
"""
_UP = """
ALTER TABLE slicewise.quota_changes ADD COLUMN made_up text;
INSERT INTO slicewise.served_revisions VALUES ('0002');
"""
_DOWN = """
DROP INDEX slicewise.ix_runs_user;
ALTER TABLE slicewise.quota_changes DROP COLUMN made_up;
DELETE FROM slicewise.served_revisions WHERE revision = '0002';
"""


def prepare(connection: Connection, say: Callable[[str], None]) -> None:
    is_valid = connection.exec_driver_sql(_IS_VALID).scalar_one_or_none()
    if is_valid or not connection.exec_driver_sql(_HAS_RUNS).scalar_one():
        return
    say("Building an index of the runs, while the daemon goes on booking.")
    if is_valid is not None:
        connection.exec_driver_sql("DROP INDEX CONCURRENTLY slicewise.ix_runs_user")
    connection.exec_driver_sql(f"CREATE INDEX CONCURRENTLY {_INDEX}")


def upgrade() -> None:
    op.execute(f"CREATE INDEX IF NOT EXISTS {_INDEX}")
    op.execute(_UP)


def downgrade() -> None:
    op.execute(_DOWN)
