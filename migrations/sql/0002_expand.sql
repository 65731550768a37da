ALTER TABLE slicewise.accounts DROP CONSTRAINT ck_accounts_kind_known;
ALTER TABLE slicewise.accounts ADD CONSTRAINT ck_accounts_kind_known
    CHECK (kind IN ('granted', 'available', 'reserved', 'used', 'waived', 'operator'));
COMMENT ON TABLE slicewise.accounts
    IS 'Of each tenant one of a kind, made when it is needed; append-only.';

ALTER TABLE slicewise.runs ADD COLUMN payer text
    CONSTRAINT ck_runs_payer_another CHECK (payer <> tenant);
COMMENT ON TABLE slicewise.runs
    IS 'Who ran what at which cost, and who pays if not the tenant itself; append-only.';

CREATE TABLE slicewise.budget_entries (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_budget_entries PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL CONSTRAINT ck_budget_entries_tenant_named CHECK (tenant <> ''),
    kind text NOT NULL CONSTRAINT ck_budget_entries_kind_known
        CHECK (kind IN ('roll', 'grant', 'adjust')),
    amount_millislice_s bigint NOT NULL,
    period_start_s bigint,
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_budget_entries_period_of_roll
        CHECK ((kind = 'roll') = (period_start_s IS NOT NULL)),
    CONSTRAINT ck_budget_entries_amount_not_zero CHECK (kind = 'roll' OR amount_millislice_s <> 0)
);
CREATE UNIQUE INDEX uq_budget_entries_roll
    ON slicewise.budget_entries (cluster, tenant, period_start_s) WHERE kind = 'roll';
CREATE INDEX ix_budget_entries_tenant ON slicewise.budget_entries (cluster, tenant, id);
COMMENT ON TABLE slicewise.budget_entries
    IS 'A tenant''s budget was given or taken back, with its transfer; append-only.';

ALTER TABLE slicewise.transfers
    ALTER COLUMN run_id DROP NOT NULL,
    ALTER COLUMN number DROP NOT NULL,
    ALTER COLUMN until_s DROP NOT NULL,
    ADD COLUMN budget_entry_id bigint CONSTRAINT fk_transfers_budget_entry_id
        REFERENCES slicewise.budget_entries (id),
    ADD CONSTRAINT ck_transfers_of_run_or_entry CHECK (
        (run_id IS NULL) = (budget_entry_id IS NOT NULL)
        AND (number IS NULL) = (run_id IS NULL) AND (until_s IS NULL) = (run_id IS NULL)),
    -- The trigger looks at kind and accounts anyway. PostgreSQL reads a check's text anew for each
    -- transaction, and as foreign keys accounts would be locked by all who book on a tenant.
    DROP CONSTRAINT ck_transfers_kind_known,
    DROP CONSTRAINT fk_transfers_debit_account_id,
    DROP CONSTRAINT fk_transfers_credit_account_id;
CREATE UNIQUE INDEX uq_transfers_entry
    ON slicewise.transfers (budget_entry_id) WHERE budget_entry_id IS NOT NULL;
COMMENT ON TABLE slicewise.transfers
    IS 'Each moves an amount between two accounts, of a run or a budget; append-only.';

ALTER TABLE slicewise.open_reservations ADD COLUMN posted_millislice_s bigint NOT NULL DEFAULT 0
    CONSTRAINT ck_open_reservations_never_reversed_beyond CHECK (posted_millislice_s >= 0);
COMMENT ON TABLE slicewise.open_reservations
    IS 'What is reserved and not settled, and posted so far; kept by a trigger on transfers.';
UPDATE slicewise.open_reservations o
   SET posted_millislice_s = t.posted
  FROM (SELECT run_id, sum(amount_millislice_s) AS posted
          FROM slicewise.transfers WHERE kind = 'post' GROUP BY run_id) t
 WHERE t.run_id = o.run_id;

CREATE TABLE slicewise.balances (
    account_id bigint CONSTRAINT pk_balances PRIMARY KEY
        CONSTRAINT fk_balances_account_id REFERENCES slicewise.accounts (id),
    debits_millislice_s bigint NOT NULL DEFAULT 0,
    credits_millislice_s bigint NOT NULL DEFAULT 0,
    CONSTRAINT ck_balances_never_negative
        CHECK (debits_millislice_s >= 0 AND credits_millislice_s >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE slicewise.balances
    IS 'Sums over an account''s transfers; kept by triggers on accounts and transfers.';
INSERT INTO slicewise.balances
SELECT a.id, coalesce(d.amount, 0), coalesce(c.amount, 0)
  FROM slicewise.accounts a
  LEFT JOIN (SELECT debit_account_id AS id, sum(amount_millislice_s) AS amount
               FROM slicewise.transfers GROUP BY 1) d USING (id)
  LEFT JOIN (SELECT credit_account_id AS id, sum(amount_millislice_s) AS amount
               FROM slicewise.transfers GROUP BY 1) c USING (id);
