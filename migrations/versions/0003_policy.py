"""Adds a tree of tenants, borrowing and lending, budgets' rules, loans, limits known in Slurm.

Only additions: programs of 0001 go on with it; their rows change only a tenant's nominal.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COLUMNS = """
ALTER TABLE slicewise.quota_changes
    ADD COLUMN parent text,
    ADD COLUMN removed boolean,
    ADD COLUMN borrowing_limit_millislices bigint,
    ADD COLUMN lending_limit_millislices bigint,
    ADD COLUMN weight integer,
    ADD COLUMN type_limits jsonb,
    ADD COLUMN model_limits jsonb,
    ADD COLUMN budget_period text,
    ADD COLUMN budget_millislice_s bigint,
    ADD COLUMN carry_over_millislice_s bigint,
    ADD COLUMN overdraft_millislice_s bigint,
    ADD CONSTRAINT ck_quota_changes_parent_another CHECK (parent <> tenant),
    ADD CONSTRAINT ck_quota_changes_borrowing_in_range
        CHECK (borrowing_limit_millislices BETWEEN 0 AND 1000000000),
    ADD CONSTRAINT ck_quota_changes_lending_in_range
        CHECK (lending_limit_millislices BETWEEN 0 AND 1000000000),
    ADD CONSTRAINT ck_quota_changes_weight_in_range CHECK (weight BETWEEN 1 AND 1000000),
    ADD CONSTRAINT ck_quota_changes_limits_objects
        CHECK (jsonb_typeof(type_limits) = 'object' AND jsonb_typeof(model_limits) = 'object'),
    ADD CONSTRAINT ck_quota_changes_period_known
        CHECK (budget_period IN ('off', 'day', 'week', 'month', 'none')),
    ADD CONSTRAINT ck_quota_changes_budget_in_range
        CHECK (budget_millislice_s BETWEEN 0 AND 3600000000000000
           AND carry_over_millislice_s BETWEEN 0 AND 3600000000000000
           AND overdraft_millislice_s BETWEEN 0 AND 3600000000000000),
    ADD CONSTRAINT ck_quota_changes_budget_whole
        CHECK (num_nonnulls(budget_millislice_s, carry_over_millislice_s, overdraft_millislice_s)
             = CASE WHEN budget_period <> 'off' THEN 3 ELSE 0 END);
CREATE INDEX ix_quota_changes_parent ON slicewise.quota_changes (cluster, parent);
COMMENT ON TABLE slicewise.quota_changes
    IS 'What was changed of a tenant; NULL is left as it was. Append-only.';
"""

# A removed tenant that is set again starts afresh: changes before its removal do not count.
_VIEW = """
CREATE VIEW slicewise.policy AS
SELECT cluster,
       tenant,
       coalesce((array_agg(parent ORDER BY id DESC) FILTER (WHERE parent IS NOT NULL))[1], '')
           AS parent,
       (array_agg(nominal_millislices ORDER BY id DESC))[1] AS nominal_millislices,
       coalesce((array_agg(borrowing_limit_millislices ORDER BY id DESC)
           FILTER (WHERE borrowing_limit_millislices IS NOT NULL))[1], 0)
           AS borrowing_limit_millislices,
       coalesce((array_agg(lending_limit_millislices ORDER BY id DESC)
           FILTER (WHERE lending_limit_millislices IS NOT NULL))[1], 0)
           AS lending_limit_millislices,
       coalesce((array_agg(weight ORDER BY id DESC) FILTER (WHERE weight IS NOT NULL))[1], 1)
           AS weight,
       coalesce((array_agg(type_limits ORDER BY id DESC)
           FILTER (WHERE type_limits IS NOT NULL))[1], '{}') AS type_limits,
       coalesce((array_agg(model_limits ORDER BY id DESC)
           FILTER (WHERE model_limits IS NOT NULL))[1], '{}') AS model_limits,
       coalesce((array_agg(budget_period ORDER BY id DESC)
           FILTER (WHERE budget_period IS NOT NULL))[1], 'off') AS budget_period,
       (array_agg(budget_millislice_s ORDER BY id DESC)
           FILTER (WHERE budget_millislice_s IS NOT NULL))[1] AS budget_millislice_s,
       (array_agg(carry_over_millislice_s ORDER BY id DESC)
           FILTER (WHERE carry_over_millislice_s IS NOT NULL))[1] AS carry_over_millislice_s,
       (array_agg(overdraft_millislice_s ORDER BY id DESC)
           FILTER (WHERE overdraft_millislice_s IS NOT NULL))[1] AS overdraft_millislice_s
  FROM (SELECT *, max(id) FILTER (WHERE removed) OVER (PARTITION BY cluster, tenant) AS removed_id
          FROM slicewise.quota_changes) AS changes
 WHERE removed_id IS NULL OR id > removed_id
 GROUP BY cluster, tenant;
COMMENT ON VIEW slicewise.policy
    IS 'Every tenant as it is now: of each column the newest value; removed ones are not in it.';
"""

_TABLES = """
CREATE TABLE slicewise.loan_changes (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_loan_changes PRIMARY KEY,
    cluster text NOT NULL,
    lender text NOT NULL,
    borrower text NOT NULL,
    amount_millislices bigint NOT NULL CONSTRAINT ck_loan_changes_amount_in_range
        CHECK (amount_millislices BETWEEN 0 AND 1000000000),
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_loan_changes_two_tenants CHECK (lender <> borrower)
);
CREATE INDEX ix_loan_changes_lender ON slicewise.loan_changes (cluster, lender, id);
CREATE INDEX ix_loan_changes_borrower ON slicewise.loan_changes (cluster, borrower, id);
COMMENT ON TABLE slicewise.loan_changes
    IS 'What a loan was changed to; 0 ends it. Append-only.';

CREATE TABLE slicewise.loans (
    cluster text,
    lender text,
    borrower text,
    amount_millislices bigint NOT NULL
        CONSTRAINT ck_loans_amount_positive CHECK (amount_millislices > 0),
    CONSTRAINT pk_loans PRIMARY KEY (cluster, lender, borrower)
);
CREATE INDEX ix_loans_borrower ON slicewise.loans (cluster, borrower);
COMMENT ON TABLE slicewise.loans
    IS 'Idle quota in others'' hands now; kept by a trigger on loan_changes.';

CREATE TABLE slicewise.known_limits (
    cluster text,
    entity text CONSTRAINT ck_known_limits_entity_known CHECK (entity IN ('account', 'qos')),
    name text,
    field text,
    before text NOT NULL,
    last text NOT NULL,
    CONSTRAINT pk_known_limits PRIMARY KEY (cluster, entity, name, field)
);
COMMENT ON TABLE slicewise.known_limits
    IS 'Slurm''s limits before they were first touched, and as they were last set.';

CREATE TABLE slicewise.served_revisions (
    revision text CONSTRAINT pk_served_revisions PRIMARY KEY
);
COMMENT ON TABLE slicewise.served_revisions
    IS 'Programs made for these revisions may use the database as it is.';
INSERT INTO slicewise.served_revisions VALUES ('0003');
"""

_LOANS_KEPT = """
CREATE FUNCTION slicewise.loan_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.amount_millislices = 0 THEN
        DELETE FROM slicewise.loans
         WHERE cluster = NEW.cluster AND lender = NEW.lender AND borrower = NEW.borrower;
    ELSE
        INSERT INTO slicewise.loans
        VALUES (NEW.cluster, NEW.lender, NEW.borrower, NEW.amount_millislices)
        ON CONFLICT ON CONSTRAINT pk_loans
        DO UPDATE SET amount_millislices = EXCLUDED.amount_millislices;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER loan_changed AFTER INSERT ON slicewise.loan_changes
    FOR EACH ROW EXECUTE FUNCTION slicewise.loan_changed();
"""

# The program checks limits that span subtrees; a tenant without others below it lends and borrows
# across its own limits alone. The lock makes two writers at the same time see each other's changes.
_LOANS_CHECKED = """
CREATE FUNCTION slicewise.lock_policy(of_cluster text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock(hashtextextended('slicewise policy of ' || of_cluster, 0));
$$;

CREATE FUNCTION slicewise.check_loans(of_cluster text, of_tenant text) RETURNS void
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
    SELECT least(lending_limit_millislices, nominal_millislices), borrowing_limit_millislices
      INTO may_lend, may_borrow
      FROM slicewise.policy WHERE cluster = of_cluster AND tenant = of_tenant;
    IF lends > coalesce(may_lend, 0) THEN
        RAISE EXCEPTION 'tenant % would lend % millislices and may lend %',
            of_tenant, lends, coalesce(may_lend, 0) USING ERRCODE = 'check_violation';
    ELSIF borrows > coalesce(may_borrow, 0) THEN
        RAISE EXCEPTION 'tenant % would borrow % millislices and may borrow %',
            of_tenant, borrows, coalesce(may_borrow, 0) USING ERRCODE = 'check_violation';
    END IF;
END $$;

CREATE FUNCTION slicewise.loan_checked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM slicewise.check_loans(NEW.cluster, NEW.lender);
    PERFORM slicewise.check_loans(NEW.cluster, NEW.borrower);
    RETURN NULL;
END $$;

CREATE FUNCTION slicewise.quota_checked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM slicewise.check_loans(NEW.cluster, NEW.tenant);
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER loan_checked AFTER INSERT ON slicewise.loan_changes
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.amount_millislices > 0) EXECUTE FUNCTION slicewise.loan_checked();
CREATE CONSTRAINT TRIGGER quota_checked AFTER INSERT ON slicewise.quota_changes
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION slicewise.quota_checked();

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.loan_changes
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
"""

# These functions run with their owner's rights, so that a role which may only add rows keeps what
# follows from them; the fixed search_path keeps such a role from changing what names mean.
_AS_OWNER = """
ALTER FUNCTION slicewise.loan_changed() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION slicewise.loan_checked() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION slicewise.quota_checked() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
"""

_DOWN = """
DROP TRIGGER quota_checked ON slicewise.quota_changes;
DROP TABLE slicewise.loan_changes, slicewise.loans, slicewise.known_limits,
    slicewise.served_revisions;
DROP FUNCTION slicewise.quota_checked(), slicewise.loan_checked(), slicewise.loan_changed(),
    slicewise.check_loans(text, text), slicewise.lock_policy(text);
DROP VIEW slicewise.policy;
ALTER TABLE slicewise.quota_changes
    DROP COLUMN parent,
    DROP COLUMN removed,
    DROP COLUMN borrowing_limit_millislices,
    DROP COLUMN lending_limit_millislices,
    DROP COLUMN weight,
    DROP COLUMN type_limits,
    DROP COLUMN model_limits,
    DROP COLUMN budget_period,
    DROP COLUMN budget_millislice_s,
    DROP COLUMN carry_over_millislice_s,
    DROP COLUMN overdraft_millislice_s;
COMMENT ON TABLE slicewise.quota_changes
    IS 'A tenant''s quota is its newest row; append-only.';
"""


def upgrade() -> None:
    for step in (_COLUMNS, _VIEW, _TABLES, _LOANS_KEPT, _LOANS_CHECKED, _AS_OWNER):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
