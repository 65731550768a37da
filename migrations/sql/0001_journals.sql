CREATE TABLE slicewise.rebalance_runs (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_rebalance_runs PRIMARY KEY,
    cluster text NOT NULL,
    author text NOT NULL,
    host text NOT NULL,
    outcome text NOT NULL DEFAULT 'running' CONSTRAINT ck_rebalance_runs_outcome_known
        CHECK (outcome IN ('running', 'done', 'failed', 'abandoned')),
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    CONSTRAINT ck_rebalance_runs_ended_with_outcome
        CHECK ((ended_at IS NULL) = (outcome = 'running'))
);
CREATE INDEX ix_rebalance_runs_newest ON slicewise.rebalance_runs (cluster, id);
CREATE UNIQUE INDEX uq_rebalance_runs_unfinished ON slicewise.rebalance_runs (cluster)
    WHERE ended_at IS NULL;
COMMENT ON TABLE slicewise.rebalance_runs IS 'Each run of slicewise rebalance.';

CREATE TABLE slicewise.rebalance_steps (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_rebalance_steps PRIMARY KEY,
    run_id bigint NOT NULL CONSTRAINT fk_rebalance_steps_run_id
        REFERENCES slicewise.rebalance_runs (id),
    step text NOT NULL CONSTRAINT ck_rebalance_steps_step_known
        CHECK (step IN
            ('reconcile', 'roll', 'lend', 'reclaim', 'compile', 'prioritise', 'cut')),
    outcome text NOT NULL DEFAULT 'running' CONSTRAINT ck_rebalance_steps_outcome_known
        CHECK (outcome IN ('running', 'done', 'skipped', 'failed')),
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    saw jsonb NOT NULL DEFAULT '{}',
    did jsonb NOT NULL DEFAULT '[]',
    why text NOT NULL DEFAULT '',
    CONSTRAINT ck_rebalance_steps_ended_with_outcome
        CHECK ((ended_at IS NULL) = (outcome = 'running')),
    CONSTRAINT ck_rebalance_steps_json_shapes
        CHECK (jsonb_typeof(saw) = 'object' AND jsonb_typeof(did) = 'array')
);
CREATE INDEX ix_rebalance_steps_run ON slicewise.rebalance_steps (run_id, id);
COMMENT ON TABLE slicewise.rebalance_steps
    IS 'What each step of a run saw and did, and why; one without an end was under way.';

CREATE TABLE slicewise.repartitions (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_repartitions PRIMARY KEY,
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
        CONSTRAINT ck_repartitions_state_known
        CHECK (state IN ('running', 'stuck', 'done', 'rolled back', 'closed')),
    error text NOT NULL DEFAULT '',
    slurm_conf text,
    gres_conf text,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    ends jsonb NOT NULL DEFAULT '[]',
    CONSTRAINT ck_repartitions_ended_at_end
        CHECK ((ended_at IS NULL) = (state IN ('running', 'stuck')))
);
CREATE INDEX ix_repartitions_newest ON slicewise.repartitions (cluster, id);
CREATE UNIQUE INDEX uq_repartitions_unfinished ON slicewise.repartitions (cluster, gpu_uuid)
    WHERE ended_at IS NULL;
COMMENT ON TABLE slicewise.repartitions
    IS 'Each GPU that was cut anew: what it was, what it became, what Slurm was told before.';

CREATE TABLE slicewise.repartition_steps (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_repartition_steps PRIMARY KEY,
    repartition_id bigint NOT NULL
        CONSTRAINT fk_repartition_steps_repartition_id REFERENCES slicewise.repartitions (id),
    step text NOT NULL
        CONSTRAINT ck_repartition_steps_step_known
        CHECK (step IN ('reserve', 'move', 'cut', 'tell', 'verify', 'resume')),
    direction text NOT NULL
        CONSTRAINT ck_repartition_steps_direction_known CHECK (direction IN ('forward', 'back')),
    outcome text NOT NULL DEFAULT 'running'
        CONSTRAINT ck_repartition_steps_outcome_known CHECK (outcome IN ('running', 'done', 'failed')),
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    words text NOT NULL DEFAULT '',
    CONSTRAINT ck_repartition_steps_ended_with_outcome
        CHECK ((ended_at IS NULL) = (outcome = 'running'))
);
CREATE INDEX ix_repartition_steps_repartition ON slicewise.repartition_steps (repartition_id, id);
COMMENT ON TABLE slicewise.repartition_steps
    IS 'Steps of a repartition; one without an end was under way when its process was killed.';

CREATE TABLE slicewise.mig_nodes (
    cluster text,
    node text,
    seen_at timestamptz NOT NULL DEFAULT now(),
    inventory jsonb NOT NULL,
    CONSTRAINT pk_mig_nodes PRIMARY KEY (cluster, node)
);
COMMENT ON TABLE slicewise.mig_nodes
    IS 'The last look at each GPU node: how it is cut.';
