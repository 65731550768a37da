"""Adds the generations of services: what was submitted, when and by whom.

Statements name services by them. Only additions: programs of 0010 go on with it, and record none;
runs of the arrays that they charge have no service.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_GENERATIONS = """
CREATE TABLE slicewise.service_generations (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_service_generations PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    array_job_id bigint NOT NULL,
    submitted_s bigint NOT NULL,
    author text NOT NULL,
    directives jsonb NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_service_generations_latest
    ON slicewise.service_generations (cluster, name, tenant, id);
CREATE INDEX ix_service_generations_array
    ON slicewise.service_generations (cluster, array_job_id, tenant, id);
COMMENT ON TABLE slicewise.service_generations
    IS 'What was submitted of each service, one row a generation. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.service_generations
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0011');"

_DOWN = """
DROP TABLE slicewise.service_generations;
DELETE FROM slicewise.served_revisions WHERE revision = '0011';
"""


def upgrade() -> None:
    for step in (_GENERATIONS, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
