CREATE TABLE slicewise.watermarks (
    cluster text CONSTRAINT pk_watermarks PRIMARY KEY,
    accounted_until_s bigint NOT NULL
);
COMMENT ON TABLE slicewise.watermarks
    IS 'Up to when every run''s end that accounting shows is in the ledger.';

CREATE TABLE slicewise.accounts (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_accounts PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    meter text NOT NULL CONSTRAINT ck_accounts_meter_named CHECK (meter <> ''),
    kind text NOT NULL CONSTRAINT ck_accounts_kind_known
        CHECK (kind IN ('granted', 'available', 'reserved', 'used', 'waived', 'operator')),
    CONSTRAINT uq_accounts_tenant UNIQUE (cluster, tenant, meter, kind)
);
COMMENT ON TABLE slicewise.accounts
    IS 'Of each tenant and meter one of a kind, made when it is needed; append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.accounts
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.balances (
    account_id bigint CONSTRAINT pk_balances PRIMARY KEY
        CONSTRAINT fk_balances_account_id REFERENCES slicewise.accounts (id),
    debits bigint NOT NULL DEFAULT 0,
    credits bigint NOT NULL DEFAULT 0,
    CONSTRAINT ck_balances_never_negative CHECK (debits >= 0 AND credits >= 0)
) WITH (fillfactor = 50);
COMMENT ON TABLE slicewise.balances
    IS 'Sums over an account''s transfers, in the unit of its meter; kept by triggers on accounts and transfers.';

CREATE TABLE slicewise.runs (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_runs PRIMARY KEY,
    cluster text NOT NULL,
    job_id bigint NOT NULL,
    start_s bigint NOT NULL,
    tenant text NOT NULL,
    user_name text NOT NULL,
    task text NOT NULL,
    gres jsonb NOT NULL,
    cost_millislices bigint NOT NULL,
    payer text CONSTRAINT ck_runs_payer_another CHECK (payer <> tenant),
    meter text NOT NULL CONSTRAINT ck_runs_meter_named CHECK (meter <> ''),
    -- Only slices cost by the second.
    CONSTRAINT ck_runs_cost_positive
        CHECK (cost_millislices >= 0 AND (cost_millislices > 0) = (meter = 'slice-seconds')),
    CONSTRAINT uq_runs_key UNIQUE (cluster, meter, job_id, start_s)
);
-- In the order of statements: each page of one begins where the page before ended.
CREATE INDEX ix_runs_tenant ON slicewise.runs (cluster, meter, tenant, start_s);
-- By it ``budget show TENANT`` finds the runs that a tenant pays for.
CREATE INDEX ix_runs_payer ON slicewise.runs (cluster, (coalesce(payer, tenant)), meter);
COMMENT ON TABLE slicewise.runs
    IS 'Who ran what at which cost, or takes what of another meter, and who pays if not the tenant itself; append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.runs
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.budget_entries (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_budget_entries PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL CONSTRAINT ck_budget_entries_tenant_named CHECK (tenant <> ''),
    kind text NOT NULL CONSTRAINT ck_budget_entries_kind_known
        CHECK (kind IN ('roll', 'grant', 'adjust')),
    amount bigint NOT NULL,
    period_start_s bigint,
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    key text CONSTRAINT ck_budget_entries_key_named CHECK (key <> ''),
    meter text NOT NULL CONSTRAINT ck_budget_entries_meter_named CHECK (meter <> ''),
    CONSTRAINT ck_budget_entries_period_of_roll
        CHECK ((kind = 'roll') = (period_start_s IS NOT NULL)),
    CONSTRAINT ck_budget_entries_amount_not_zero CHECK (kind = 'roll' OR amount <> 0)
);
CREATE UNIQUE INDEX uq_budget_entries_roll
    ON slicewise.budget_entries (cluster, tenant, meter, period_start_s) WHERE kind = 'roll';
CREATE INDEX ix_budget_entries_tenant ON slicewise.budget_entries (cluster, tenant, id);
-- An entry that is requested twice is booked once.
CREATE UNIQUE INDEX uq_budget_entries_key
    ON slicewise.budget_entries (cluster, key) WHERE key IS NOT NULL;
COMMENT ON TABLE slicewise.budget_entries
    IS 'A tenant''s budget was given or taken back, with its transfer; append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.budget_entries
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.shared_hours (
    run_id bigint CONSTRAINT fk_shared_hours_run_id REFERENCES slicewise.runs (id),
    hour_s bigint CONSTRAINT ck_shared_hours_hour_whole CHECK (hour_s % 3600 = 0),
    number integer NOT NULL,
    from_s bigint NOT NULL,
    until_s bigint NOT NULL,
    amount bigint NOT NULL CONSTRAINT ck_shared_hours_amount_not_negative CHECK (amount >= 0),
    requests bigint NOT NULL,
    busy_ms bigint NOT NULL,
    weights jsonb NOT NULL,
    idle jsonb NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_shared_hours_within
        CHECK (from_s >= hour_s AND until_s <= hour_s + 3600 AND from_s <= until_s),
    CONSTRAINT pk_shared_hours PRIMARY KEY (run_id, hour_s)
);
CREATE INDEX ix_shared_hours_hour ON slicewise.shared_hours (hour_s);
COMMENT ON TABLE slicewise.shared_hours
    IS 'Hours of shared services'' runs that were divided, and by what, as it was done last. Overwritten, by a function alone.';

CREATE TABLE slicewise.share_entries (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_share_entries PRIMARY KEY,
    run_id bigint NOT NULL,
    hour_s bigint NOT NULL,
    number integer NOT NULL,
    day date NOT NULL,
    tenant text NOT NULL CONSTRAINT ck_share_entries_tenant_named CHECK (tenant <> ''),
    payer text CONSTRAINT ck_share_entries_payer_another CHECK (payer <> tenant),
    part text NOT NULL CONSTRAINT ck_share_entries_part_known CHECK (part IN ('tokens', 'idle')),
    service text NOT NULL,
    replica_of text NOT NULL,
    amount bigint NOT NULL CONSTRAINT ck_share_entries_amount_not_zero CHECK (amount <> 0),
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT fk_share_entries_run_id
        FOREIGN KEY (run_id, hour_s) REFERENCES slicewise.shared_hours (run_id, hour_s),
    CONSTRAINT uq_share_entries_part UNIQUE (run_id, hour_s, tenant, part, number)
);
-- By it a budget finds what of others' runs it paid since its period began.
CREATE INDEX ix_share_entries_payer
    ON slicewise.share_entries ((coalesce(payer, tenant)), recorded_at);
-- Invoices read the entries of some hours, which come nearly in that order.
CREATE INDEX ix_share_entries_hour ON slicewise.share_entries
    USING brin (hour_s) WITH (pages_per_range = 16, autosummarize = on);
COMMENT ON TABLE slicewise.share_entries
    IS 'What of an hour of a run a tenant has more or less than before, whose budget pays if not its own, which service it asked and whose replica it was; append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.share_entries
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.share_days (
    cluster text,
    day date,
    tenant text,
    payer text,
    service text,
    owner_payer text,
    replica_of text,
    gpu_types text[],
    token_millislice_s bigint NOT NULL,
    idle_millislice_s bigint NOT NULL,
    weights jsonb NOT NULL,
    CONSTRAINT pk_share_days PRIMARY KEY (
        cluster, day, tenant, payer, service, owner_payer, replica_of, gpu_types)
) WITH (fillfactor = 70);
COMMENT ON TABLE slicewise.share_days
    IS 'Sums of share entries by the day, the service, that whose replica it was and its GPU types, and the weights of tokens of the newest hour. Changed by a function alone.';

CREATE TABLE slicewise.transfers (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_transfers PRIMARY KEY,
    -- The trigger looks at run, number, kind, accounts and amount, and so does ``book``: PostgreSQL
    -- reads a check's text anew for each statement, and looks a foreign key up by another one. As
    -- foreign keys accounts would be locked by all who book on a tenant, too.
    run_id bigint,
    number integer,
    kind text NOT NULL,
    debit_account_id bigint NOT NULL,
    credit_account_id bigint NOT NULL,
    amount bigint NOT NULL,
    until_s bigint,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    budget_entry_id bigint CONSTRAINT fk_transfers_budget_entry_id
        REFERENCES slicewise.budget_entries (id),
    share_entry_id bigint CONSTRAINT fk_transfers_share_entry_id
        REFERENCES slicewise.share_entries (id),
    CONSTRAINT uq_transfers_number UNIQUE (run_id, number)
);
-- What was used since a time stands near the table's end: a block range's summary finds it, and costs
-- bookings nothing. A reserve's end is its job's limit, often days after the others'.
CREATE INDEX ix_transfers_until ON slicewise.transfers USING brin (until_s) WHERE kind <> 'reserve';
CREATE UNIQUE INDEX uq_transfers_share
    ON slicewise.transfers (share_entry_id, kind) WHERE share_entry_id IS NOT NULL;
CREATE UNIQUE INDEX uq_transfers_entry
    ON slicewise.transfers (budget_entry_id) WHERE budget_entry_id IS NOT NULL;
COMMENT ON TABLE slicewise.transfers
    IS 'Each moves an amount between two accounts of one meter, of a run, a budget or a share; append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.transfers
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.open_reservations (
    run_id bigint CONSTRAINT pk_open_reservations PRIMARY KEY,
    reserved bigint NOT NULL
        CONSTRAINT ck_open_reservations_never_overdrawn CHECK (reserved > 0),
    posted bigint NOT NULL DEFAULT 0
        CONSTRAINT ck_open_reservations_never_reversed_beyond CHECK (posted >= 0)
);
COMMENT ON TABLE slicewise.open_reservations
    IS 'What is reserved and not settled, and posted so far; kept by a trigger on transfers.';

CREATE TABLE slicewise.lost_runs (
    run_id bigint CONSTRAINT pk_lost_runs PRIMARY KEY
        CONSTRAINT fk_lost_runs_run_id REFERENCES slicewise.runs (id),
    gone_s double precision NOT NULL,
    end_s bigint NOT NULL,
    shown_s bigint
);
COMMENT ON TABLE slicewise.lost_runs
    IS 'Reserved runs that Slurm shows no more, for how long daemons have seen that, and what is known of their ends. Overwritten.';

CREATE TABLE slicewise.seals (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_seals PRIMARY KEY,
    last_transfer_id bigint NOT NULL,
    last_change_id bigint NOT NULL,
    last_window_id bigint NOT NULL,
    last_window_end_id bigint NOT NULL,
    last_tariff_id bigint NOT NULL,
    transfers bigint NOT NULL CONSTRAINT ck_seals_transfers_not_negative CHECK (transfers >= 0),
    hash bytea NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE slicewise.seals
    IS 'A hash over transfers and changes of quotas and tariffs since the seal before, and over its hash. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.seals
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.sealed_states (
    cluster text,
    kind text CONSTRAINT ck_sealed_states_kind_known CHECK (kind IN ('recalls', 'watermark')),
    hash bytea NOT NULL,
    CONSTRAINT pk_sealed_states PRIMARY KEY (cluster, kind)
);
COMMENT ON TABLE slicewise.sealed_states
    IS 'A hash over what a cluster has now of what is overwritten. Overwritten, by a function alone.';
