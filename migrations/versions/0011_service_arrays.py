"""Adds which service each job array is, so that statements can name it.

Only an addition: programs of 0010 go on with it; arrays that they charge have no service.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_ARRAYS = """
CREATE TABLE slicewise.service_arrays (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_service_arrays PRIMARY KEY,
    cluster text NOT NULL,
    array_job_id bigint NOT NULL,
    tenant text NOT NULL,
    service text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_service_arrays_array UNIQUE (cluster, array_job_id, tenant, service)
);
COMMENT ON TABLE slicewise.service_arrays
    IS 'Which service a job array is, of which tenant. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.service_arrays
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0011');"

_DOWN = """
DROP TABLE slicewise.service_arrays;
DELETE FROM slicewise.served_revisions WHERE revision = '0011';
"""


def upgrade() -> None:
    for step in (_ARRAYS, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
