"""Adds openings: from then on a tenant's services need no key.

Only an addition: programs of 0004 go on with it.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_OPENINGS = """
CREATE TABLE slicewise.api_key_openings (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_api_key_openings PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE slicewise.api_key_openings
    IS 'Since then a tenant''s services want no key, until one is made again. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.api_key_openings
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0005');"

_DOWN = """
DROP TABLE slicewise.api_key_openings;
DELETE FROM slicewise.served_revisions WHERE revision = '0005';
"""


def upgrade() -> None:
    for step in (_OPENINGS, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
