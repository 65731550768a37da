CREATE TABLE slicewise.quota_changes (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_quota_changes PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL CONSTRAINT ck_quota_changes_tenant_named CHECK (tenant <> ''),
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    parent text,
    removed boolean,
    nominal_millislices bigint NOT NULL
        CONSTRAINT ck_quota_changes_nominal_millislices_in_range
        CHECK (nominal_millislices BETWEEN 0 AND 1000000000),
    borrowing_limit_millislices bigint
        CONSTRAINT ck_quota_changes_borrowing_limit_millislices_in_range
        CHECK (borrowing_limit_millislices BETWEEN 0 AND 1000000000),
    lending_limit_millislices bigint
        CONSTRAINT ck_quota_changes_lending_limit_millislices_in_range
        CHECK (lending_limit_millislices BETWEEN 0 AND 1000000000),
    weight bigint CONSTRAINT ck_quota_changes_weight_in_range CHECK (weight BETWEEN 1 AND 1000000),
    type_limits jsonb CONSTRAINT ck_quota_changes_type_limits_object
        CHECK (jsonb_typeof(type_limits) = 'object'),
    model_limits jsonb CONSTRAINT ck_quota_changes_model_limits_object
        CHECK (jsonb_typeof(model_limits) = 'object'),
    type_nominals jsonb CONSTRAINT ck_quota_changes_type_nominals_object
        CHECK (jsonb_typeof(type_nominals) = 'object'),
    budget_period text,
    budget_millislice_s bigint,
    carry_over_millislice_s bigint,
    overdraft_millislice_s bigint,
    token_budget_period text,
    budget_tokens bigint,
    carry_over_tokens bigint,
    overdraft_tokens bigint,
    CONSTRAINT ck_quota_changes_parent_another CHECK (parent <> tenant),
    CONSTRAINT ck_quota_changes_period_known
        CHECK (budget_period IN ('off', 'day', 'week', 'month', 'none')),
    CONSTRAINT ck_quota_changes_budget_in_range
        CHECK (budget_millislice_s BETWEEN 0 AND 3600000000000000
           AND carry_over_millislice_s BETWEEN 0 AND 3600000000000000
           AND overdraft_millislice_s BETWEEN 0 AND 3600000000000000),
    CONSTRAINT ck_quota_changes_budget_whole
        CHECK (num_nonnulls(budget_millislice_s, carry_over_millislice_s, overdraft_millislice_s)
             = CASE WHEN budget_period <> 'off' THEN 3 ELSE 0 END),
    CONSTRAINT ck_quota_changes_token_period_known
        CHECK (token_budget_period IN ('off', 'day', 'week', 'month', 'none')),
    CONSTRAINT ck_quota_changes_token_budget_in_range
        CHECK (budget_tokens BETWEEN 0 AND 3600000000000000
           AND carry_over_tokens BETWEEN 0 AND 3600000000000000
           AND overdraft_tokens BETWEEN 0 AND 3600000000000000),
    CONSTRAINT ck_quota_changes_token_budget_whole
        CHECK (num_nonnulls(budget_tokens, carry_over_tokens, overdraft_tokens)
             = CASE WHEN token_budget_period <> 'off' THEN 3 ELSE 0 END)
);
CREATE INDEX ix_quota_changes_latest ON slicewise.quota_changes (cluster, tenant, id);
CREATE INDEX ix_quota_changes_parent ON slicewise.quota_changes (cluster, parent);
COMMENT ON TABLE slicewise.quota_changes
    IS 'What was changed of a tenant; NULL is left as it was. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.quota_changes
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

-- A removed tenant that is set again starts afresh: changes before its removal do not count.
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
           FILTER (WHERE overdraft_millislice_s IS NOT NULL))[1] AS overdraft_millislice_s,
       coalesce((array_agg(token_budget_period ORDER BY id DESC)
           FILTER (WHERE token_budget_period IS NOT NULL))[1], 'off') AS token_budget_period,
       (array_agg(budget_tokens ORDER BY id DESC)
           FILTER (WHERE budget_tokens IS NOT NULL))[1] AS budget_tokens,
       (array_agg(carry_over_tokens ORDER BY id DESC)
           FILTER (WHERE carry_over_tokens IS NOT NULL))[1] AS carry_over_tokens,
       (array_agg(overdraft_tokens ORDER BY id DESC)
           FILTER (WHERE overdraft_tokens IS NOT NULL))[1] AS overdraft_tokens,
       coalesce((array_agg(type_nominals ORDER BY id DESC)
           FILTER (WHERE type_nominals IS NOT NULL))[1], '{}') AS type_nominals
  FROM (SELECT *, max(id) FILTER (WHERE removed) OVER (PARTITION BY cluster, tenant) AS removed_id
          FROM slicewise.quota_changes) AS changes
 WHERE removed_id IS NULL OR id > removed_id
 GROUP BY cluster, tenant;
COMMENT ON VIEW slicewise.policy
    IS 'Every tenant as it is now: of each column the newest value; removed ones are not in it.';

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
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT uq_quota_window_ends_id UNIQUE,
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
    IS 'What a loan was changed to; 0 ends it. Append-only; old ones are deleted.';
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON slicewise.loan_changes
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
-- A younger row can't be deleted, not even by the tables' owner.
CREATE TRIGGER kept_while_young BEFORE DELETE ON slicewise.loan_changes
    FOR EACH ROW WHEN (OLD.recorded_at > now() - interval '90 days')
    EXECUTE FUNCTION slicewise.refuse_change();

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

CREATE TABLE slicewise.compilations (
    cluster text CONSTRAINT pk_compilations PRIMARY KEY,
    change_id bigint NOT NULL,
    compiled_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE slicewise.compilations
    IS 'Up to which quota change Slurm''s limits are the ledger''s.';
