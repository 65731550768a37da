"""Adds recalled quota, windows of the calendar, the journal of ``slicewise rebalance``.

Only additions: programs of 0006 go on with it. Loans are checked against what a tenant may lend and
borrow at any time by its windows.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_RECALLS = """
CREATE TABLE slicewise.recalls (
    cluster text,
    lender text,
    borrower text,
    called_s bigint,
    amount_millislices bigint NOT NULL
        CONSTRAINT ck_recalls_amount_positive CHECK (amount_millislices > 0),
    CONSTRAINT pk_recalls PRIMARY KEY (cluster, lender, borrower, called_s),
    CONSTRAINT ck_recalls_two_tenants CHECK (lender <> borrower)
);
COMMENT ON TABLE slicewise.recalls
    IS 'Lent quota that its lender takes back and its borrower still holds.';
"""

_WINDOWS = """
CREATE TABLE slicewise.quota_windows (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_quota_windows PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL CONSTRAINT ck_quota_windows_kind_known
        CHECK (kind IN ('nominal', 'borrowing', 'lending', 'cap')),
    amount_millislices bigint NOT NULL CONSTRAINT ck_quota_windows_amount_in_range
        CHECK (amount_millislices BETWEEN 0 AND 1000000000),
    days jsonb NOT NULL CONSTRAINT ck_quota_windows_days_known
        CHECK (days <@ '[0, 1, 2, 3, 4, 5, 6]'),
    begin_min integer NOT NULL,
    end_min integer NOT NULL,
    first_s bigint,
    last_s bigint,
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_quota_windows_tenant_named CHECK (tenant <> '' OR kind = 'cap'),
    CONSTRAINT ck_quota_windows_minutes_of_day
        CHECK (begin_min BETWEEN 0 AND 1439 AND end_min BETWEEN 0 AND 1439),
    CONSTRAINT ck_quota_windows_first_before_last CHECK (first_s < last_s)
);
CREATE INDEX ix_quota_windows_tenant ON slicewise.quota_windows (cluster, tenant);
COMMENT ON TABLE slicewise.quota_windows
    IS 'When a tenant has another quota, '''' being all together. Append-only.';

CREATE TABLE slicewise.quota_window_ends (
    window_id bigint CONSTRAINT pk_quota_window_ends PRIMARY KEY
        CONSTRAINT fk_quota_window_ends_window_id REFERENCES slicewise.quota_windows (id),
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE slicewise.quota_window_ends
    IS 'Windows that were removed. Append-only.';

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.quota_windows
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.quota_window_ends
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
"""

_JOURNAL = """
CREATE TABLE slicewise.rebalance_runs (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_rebalance_runs PRIMARY KEY,
    cluster text NOT NULL,
    author text NOT NULL,
    host text NOT NULL,
    outcome text NOT NULL DEFAULT 'running' CONSTRAINT ck_rebalance_runs_outcome_known
        CHECK (outcome IN ('running', 'done', 'failed', 'abandoned')),
    begun_at timestamptz NOT NULL DEFAULT now(),
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
    outcome text NOT NULL DEFAULT 'begun' CONSTRAINT ck_rebalance_steps_outcome_known
        CHECK (outcome IN ('begun', 'done', 'skipped', 'failed')),
    began_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    saw jsonb NOT NULL DEFAULT '{}',
    did jsonb NOT NULL DEFAULT '[]',
    why text NOT NULL DEFAULT '',
    CONSTRAINT ck_rebalance_steps_ended_with_outcome
        CHECK ((ended_at IS NULL) = (outcome = 'begun')),
    CONSTRAINT ck_rebalance_steps_json_shapes
        CHECK (jsonb_typeof(saw) = 'object' AND jsonb_typeof(did) = 'array')
);
CREATE INDEX ix_rebalance_steps_run ON slicewise.rebalance_steps (run_id, id);
COMMENT ON TABLE slicewise.rebalance_steps
    IS 'What each step of a run saw and did, and why; one without an end was under way.';
"""

_CHECK_LOANS = """
CREATE OR REPLACE FUNCTION slicewise.check_loans(of_cluster text, of_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lends bigint;
    borrows bigint;
    may_lend bigint;
    may_borrow bigint;
BEGIN
    PERFORM slicewise.lock_policy(of_cluster);
    IF EXISTS (
        SELECT FROM slicewise.quota_changes c
         WHERE c.cluster = of_cluster AND c.parent = of_tenant
           AND of_tenant = (SELECT p.parent FROM slicewise.policy p
                             WHERE p.cluster = of_cluster AND p.tenant = c.tenant)
    ) THEN
        RETURN;
    END IF;
    SELECT sum(amount_millislices) INTO lends
      FROM slicewise.loans WHERE cluster = of_cluster AND lender = of_tenant;
    SELECT sum(amount_millislices) INTO borrows
      FROM slicewise.loans WHERE cluster = of_cluster AND borrower = of_tenant;
    {may}
    IF lends > coalesce(may_lend, 0) THEN
        RAISE EXCEPTION 'tenant % would lend % millislices and may lend %',
            of_tenant, lends, coalesce(may_lend, 0) USING ERRCODE = 'check_violation';
    ELSIF borrows > coalesce(may_borrow, 0) THEN
        RAISE EXCEPTION 'tenant % would borrow % millislices and may borrow %',
            of_tenant, borrows, coalesce(may_borrow, 0) USING ERRCODE = 'check_violation';
    END IF;
END $$;
"""

_BY_QUOTA = """
    SELECT least(lending_limit_millislices, nominal_millislices), borrowing_limit_millislices
      INTO may_lend, may_borrow
      FROM slicewise.policy WHERE cluster = of_cluster AND tenant = of_tenant;
"""

# The program decides which window holds at which hour, since it knows the time zone.
_BY_ANY_WINDOW = """
    WITH largest AS (
        SELECT max(amount_millislices) FILTER (WHERE kind = 'nominal') AS nominal,
               max(amount_millislices) FILTER (WHERE kind = 'lending') AS lending,
               max(amount_millislices) FILTER (WHERE kind = 'borrowing') AS borrowing
          FROM slicewise.quota_windows w
         WHERE cluster = of_cluster AND tenant = of_tenant
           AND (last_s IS NULL OR last_s > extract(epoch FROM now()))
           AND NOT EXISTS (SELECT FROM slicewise.quota_window_ends e WHERE e.window_id = w.id)
    )
    SELECT least(greatest(lending_limit_millislices, lending),
                 greatest(nominal_millislices, nominal)),
           greatest(borrowing_limit_millislices, borrowing)
      INTO may_lend, may_borrow
      FROM slicewise.policy, largest WHERE cluster = of_cluster AND tenant = of_tenant;
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0007');"

_DOWN = """
DROP TABLE slicewise.rebalance_steps, slicewise.rebalance_runs, slicewise.quota_window_ends,
    slicewise.quota_windows, slicewise.recalls;
DELETE FROM slicewise.served_revisions WHERE revision = '0007';
"""


def upgrade() -> None:
    checked = _CHECK_LOANS.format(may=_BY_ANY_WINDOW)
    for step in (_RECALLS, _WINDOWS, _JOURNAL, checked, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_CHECK_LOANS.format(may=_BY_QUOTA))
    op.execute(_DOWN)
