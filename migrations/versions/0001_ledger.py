"""Adds quotas with their history, runs, transfers in double entry, and open reservations."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE slicewise.quota_changes (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_quota_changes PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL CONSTRAINT ck_quota_changes_tenant_named CHECK (tenant <> ''),
    nominal_millislices bigint NOT NULL CONSTRAINT ck_quota_changes_nominal_in_range
        CHECK (nominal_millislices BETWEEN 0 AND 1000000000),
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_quota_changes_latest ON slicewise.quota_changes (cluster, tenant, id);
COMMENT ON TABLE slicewise.quota_changes
    IS 'A tenant''s quota is its newest row; append-only.';

CREATE TABLE slicewise.compilations (
    cluster text CONSTRAINT pk_compilations PRIMARY KEY,
    change_id bigint NOT NULL,
    compiled_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE slicewise.compilations
    IS 'Up to which quota change Slurm''s limits are the ledger''s.';

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
    kind text NOT NULL CONSTRAINT ck_accounts_kind_known
        CHECK (kind IN ('available', 'reserved', 'used')),
    CONSTRAINT uq_accounts_tenant UNIQUE (cluster, tenant, kind)
);
COMMENT ON TABLE slicewise.accounts
    IS 'Three per tenant; balances are sums over transfers.';

CREATE TABLE slicewise.runs (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_runs PRIMARY KEY,
    cluster text NOT NULL,
    job_id bigint NOT NULL,
    start_s bigint NOT NULL,
    tenant text NOT NULL,
    user_name text NOT NULL,
    task text NOT NULL,
    gres jsonb NOT NULL,
    cost_millislices bigint NOT NULL
        CONSTRAINT ck_runs_cost_positive CHECK (cost_millislices > 0),
    CONSTRAINT uq_runs_key UNIQUE (cluster, job_id, start_s)
);
CREATE INDEX ix_runs_tenant ON slicewise.runs (cluster, tenant, start_s);
COMMENT ON TABLE slicewise.runs
    IS 'Who ran what at which cost; append-only.';

CREATE TABLE slicewise.transfers (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_transfers PRIMARY KEY,
    run_id bigint NOT NULL CONSTRAINT fk_transfers_run_id REFERENCES slicewise.runs (id),
    number integer NOT NULL,
    kind text NOT NULL CONSTRAINT ck_transfers_kind_known
        CHECK (kind IN ('reserve', 'extend', 'post', 'void')),
    debit_account_id bigint NOT NULL
        CONSTRAINT fk_transfers_debit_account_id REFERENCES slicewise.accounts (id),
    credit_account_id bigint NOT NULL
        CONSTRAINT fk_transfers_credit_account_id REFERENCES slicewise.accounts (id),
    amount_millislice_s bigint NOT NULL
        CONSTRAINT ck_transfers_amount_positive CHECK (amount_millislice_s > 0),
    until_s bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_transfers_number UNIQUE (run_id, number),
    CONSTRAINT ck_transfers_between_two_accounts CHECK (debit_account_id <> credit_account_id),
    CONSTRAINT ck_transfers_reserve_first_and_once CHECK ((number = 1) = (kind = 'reserve'))
);
COMMENT ON TABLE slicewise.transfers
    IS 'Each moves an amount between two accounts of one tenant; append-only.';

CREATE TABLE slicewise.open_reservations (
    run_id bigint CONSTRAINT pk_open_reservations PRIMARY KEY
        CONSTRAINT fk_open_reservations_run_id REFERENCES slicewise.runs (id),
    reserved_millislice_s bigint NOT NULL CONSTRAINT ck_open_reservations_never_overdrawn
        CHECK (reserved_millislice_s > 0)
);
COMMENT ON TABLE slicewise.open_reservations
    IS 'What is reserved and not settled; kept by a trigger on transfers.';
"""

_APPEND_ONLY = """
CREATE FUNCTION slicewise.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
"""

# A transfer may only move money between the two accounts that its kind names, both of the run's own
# tenant, and only out of a reservation that is open and large enough.
TRANSFER_INSERTED = """
CREATE FUNCTION slicewise.transfer_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    debit text;
    credit text;
BEGIN
    SELECT d.kind, c.kind INTO debit, credit
      FROM slicewise.runs r
      JOIN slicewise.accounts d
        ON d.id = NEW.debit_account_id AND d.cluster = r.cluster AND d.tenant = r.tenant
      JOIN slicewise.accounts c
        ON c.id = NEW.credit_account_id AND c.cluster = r.cluster AND c.tenant = r.tenant
     WHERE r.id = NEW.run_id;
    IF NOT FOUND OR (NEW.kind, debit, credit) NOT IN (
        ('reserve', 'available', 'reserved'),
        ('extend', 'available', 'reserved'),
        ('post', 'reserved', 'used'),
        ('void', 'reserved', 'available')
    ) THEN
        RAISE EXCEPTION 'transfer % of run %: wrong accounts', NEW.kind, NEW.run_id
            USING ERRCODE = 'check_violation';
    END IF;

    IF NEW.kind = 'reserve' THEN
        INSERT INTO slicewise.open_reservations VALUES (NEW.run_id, NEW.amount_millislice_s);
        RETURN NULL;
    ELSIF NEW.kind = 'extend' THEN
        UPDATE slicewise.open_reservations
           SET reserved_millislice_s = reserved_millislice_s + NEW.amount_millislice_s
         WHERE run_id = NEW.run_id;
    ELSE
        DELETE FROM slicewise.open_reservations
         WHERE run_id = NEW.run_id AND reserved_millislice_s = NEW.amount_millislice_s;
        IF NOT FOUND THEN
            UPDATE slicewise.open_reservations
               SET reserved_millislice_s = reserved_millislice_s - NEW.amount_millislice_s
             WHERE run_id = NEW.run_id;
        END IF;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'transfer % of run %: its reservation is not open', NEW.kind, NEW.run_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER transfer_inserted AFTER INSERT ON slicewise.transfers
    FOR EACH ROW EXECUTE FUNCTION slicewise.transfer_inserted();
"""


def upgrade() -> None:
    op.execute(_TABLES)
    op.execute(_APPEND_ONLY)
    op.execute(TRANSFER_INSERTED)
    for table in ("quota_changes", "accounts", "runs", "transfers"):
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.{table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change()"
        )


def downgrade() -> None:
    tables = (
        "open_reservations",
        "transfers",
        "runs",
        "accounts",
        "watermarks",
        "compilations",
        "quota_changes",
    )
    for table in tables:
        op.execute(f"DROP TABLE slicewise.{table}")
    op.execute("DROP FUNCTION slicewise.transfer_inserted()")
    op.execute("DROP FUNCTION slicewise.refuse_change()")
