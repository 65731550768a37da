"""Adds the journal of re-cutting, and the last look at each GPU node.

Only additions: programs of 0005 go on with it.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_RECUTS = """
CREATE TABLE slicewise.recuts (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_recuts PRIMARY KEY,
    cluster text NOT NULL,
    node text NOT NULL,
    gpu_uuid text NOT NULL,
    before jsonb NOT NULL,
    after jsonb NOT NULL,
    moves jsonb NOT NULL,
    reason text NOT NULL,
    author text NOT NULL,
    gain_millislice_s bigint NOT NULL,
    drained_millislice_s bigint NOT NULL,
    state text NOT NULL DEFAULT 'running'
        CONSTRAINT ck_recuts_state_known
        CHECK (state IN ('running', 'stuck', 'done', 'rolled back', 'closed')),
    error text NOT NULL DEFAULT '',
    slurm_conf text,
    gres_conf text,
    begun_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    CONSTRAINT ck_recuts_ended_at_end
        CHECK ((ended_at IS NULL) = (state IN ('running', 'stuck')))
);
CREATE INDEX ix_recuts_newest ON slicewise.recuts (cluster, id);
CREATE UNIQUE INDEX uq_recuts_unfinished ON slicewise.recuts (cluster, gpu_uuid)
    WHERE ended_at IS NULL;
COMMENT ON TABLE slicewise.recuts
    IS 'Each GPU that was cut anew: what it was, what it became, what Slurm was told before.';
"""

_STEPS = """
CREATE TABLE slicewise.recut_steps (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_recut_steps PRIMARY KEY,
    recut_id bigint NOT NULL
        CONSTRAINT fk_recut_steps_recut_id REFERENCES slicewise.recuts (id),
    step text NOT NULL
        CONSTRAINT ck_recut_steps_step_known
        CHECK (step IN ('reserve', 'move', 'cut', 'tell', 'verify', 'resume')),
    direction text NOT NULL
        CONSTRAINT ck_recut_steps_direction_known CHECK (direction IN ('forward', 'back')),
    outcome text NOT NULL DEFAULT 'begun'
        CONSTRAINT ck_recut_steps_outcome_known CHECK (outcome IN ('begun', 'done', 'failed')),
    began_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    words text NOT NULL DEFAULT '',
    CONSTRAINT ck_recut_steps_ended_with_outcome
        CHECK ((ended_at IS NULL) = (outcome = 'begun'))
);
CREATE INDEX ix_recut_steps_recut ON slicewise.recut_steps (recut_id, id);
COMMENT ON TABLE slicewise.recut_steps
    IS 'Steps of a re-cut; one without an end was under way when its process was killed.';
"""

_NODES = """
CREATE TABLE slicewise.mig_nodes (
    cluster text,
    node text,
    seen_at timestamptz NOT NULL DEFAULT now(),
    inventory jsonb NOT NULL,
    CONSTRAINT pk_mig_nodes PRIMARY KEY (cluster, node)
);
COMMENT ON TABLE slicewise.mig_nodes
    IS 'The last look at each GPU node: how it is cut.';
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0006');"

_DOWN = """
DROP TABLE slicewise.recut_steps, slicewise.recuts, slicewise.mig_nodes;
DELETE FROM slicewise.served_revisions WHERE revision = '0006';
"""


def upgrade() -> None:
    for step in (_RECUTS, _STEPS, _NODES, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
