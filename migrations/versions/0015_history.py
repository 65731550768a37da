"""Adds figures over time of the cluster, tenants and services, which ``slicewise report`` shows.

Only additions: programs of 0014 go on with it, and record none of this.
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_SUBJECTS = """
CREATE TABLE slicewise.history_subjects (
    id integer GENERATED ALWAYS AS IDENTITY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    service text NOT NULL,
    CONSTRAINT pk_history_subjects PRIMARY KEY (id),
    CONSTRAINT uq_history_subjects_cluster UNIQUE (cluster, tenant, service)
);
COMMENT ON TABLE slicewise.history_subjects
    IS 'What history is of: the cluster itself has no tenant, a tenant itself no service.';
"""

# The columns stand so that none needs bytes to align it: there are many rows.
_CLUSTER = """
CREATE TABLE slicewise.history_cluster (
    subject_id integer NOT NULL,
    step_s smallint NOT NULL,
    samples smallint NOT NULL,
    at_s bigint NOT NULL,
    used integer NOT NULL,
    lent integer NOT NULL,
    idle integer NOT NULL,
    draining integer NOT NULL,
    down integer NOT NULL,
    waiting integer NOT NULL,
    late integer NOT NULL,
    max_used integer NOT NULL,
    max_lent integer NOT NULL,
    max_waiting integer NOT NULL,
    max_late integer NOT NULL,
    CONSTRAINT pk_history_cluster PRIMARY KEY (subject_id, step_s, at_s),
    CONSTRAINT fk_history_cluster_subject_id
        FOREIGN KEY (subject_id) REFERENCES slicewise.history_subjects (id)
);
COMMENT ON TABLE slicewise.history_cluster
    IS 'Slices by state, in millislices: means, and maxima of a step.';
"""

_TENANTS = """
CREATE TABLE slicewise.history_tenants (
    subject_id integer NOT NULL,
    step_s smallint NOT NULL,
    samples smallint NOT NULL,
    at_s bigint NOT NULL,
    guaranteed integer NOT NULL,
    used integer NOT NULL,
    borrowed integer NOT NULL,
    lent integer NOT NULL,
    waiting integer NOT NULL,
    late integer NOT NULL,
    max_used integer NOT NULL,
    max_waiting integer NOT NULL,
    budget_left bigint,
    CONSTRAINT pk_history_tenants PRIMARY KEY (subject_id, step_s, at_s),
    CONSTRAINT fk_history_tenants_subject_id
        FOREIGN KEY (subject_id) REFERENCES slicewise.history_subjects (id)
);
COMMENT ON TABLE slicewise.history_tenants
    IS 'Tenants with those below them, in millislices: means, and maxima of a step.';
"""

_SERVICES = """
CREATE TABLE slicewise.history_services (
    subject_id integer NOT NULL,
    step_s smallint NOT NULL,
    samples smallint NOT NULL,
    at_s bigint NOT NULL,
    ready real,
    wanted real,
    backlog real,
    requests real,
    p95 real,
    max_ready real,
    max_backlog real,
    max_p95 real,
    CONSTRAINT pk_history_services PRIMARY KEY (subject_id, step_s, at_s),
    CONSTRAINT fk_history_services_subject_id
        FOREIGN KEY (subject_id) REFERENCES slicewise.history_subjects (id)
);
COMMENT ON TABLE slicewise.history_services
    IS 'Services: replicas, requests that wait and that come each second, and milliseconds.';
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0015');"

_DOWN = """
DROP TABLE slicewise.history_cluster, slicewise.history_tenants, slicewise.history_services,
    slicewise.history_subjects;
DELETE FROM slicewise.served_revisions WHERE revision = '0015';
"""


def upgrade() -> None:
    for step in (_SUBJECTS, _CLUSTER, _TENANTS, _SERVICES, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
