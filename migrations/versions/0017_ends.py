"""Adds to repartitions the jobs on loan that they end.

Only an addition: programs of 0016 go on with it, and end none.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_COLUMN = """
ALTER TABLE slicewise.recuts ADD COLUMN ends jsonb NOT NULL DEFAULT '[]';
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0017');"

_DOWN = """
ALTER TABLE slicewise.recuts DROP COLUMN ends;
DELETE FROM slicewise.served_revisions WHERE revision = '0017';
"""


def upgrade() -> None:
    for step in (_COLUMN, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
