"""Adds an index of the runs that a tenant pays for, by which ``budget show TENANT`` finds them.

Only an addition. Where there are runs, the index is there already when this is reached: it is built
beside the daemon's writes, which can't be done in a transaction (``migrations.index_of_payers``).
"""

from alembic import op

from migrations import index_of_payers

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0012');"

_DOWN = """
DROP INDEX slicewise.ix_runs_payer;
DELETE FROM slicewise.served_revisions WHERE revision = '0012';
"""


def upgrade() -> None:
    op.execute(index_of_payers.CREATE)
    op.execute(_SERVED)


def downgrade() -> None:
    op.execute(_DOWN)
