-- 0001 knows neither partial posts nor what reverses them, nor waivers, payers and budgets.
DROP TRIGGER transfers_inserted ON slicewise.transfers;
DROP TRIGGER accounts_inserted ON slicewise.accounts;
DROP TRIGGER append_only ON slicewise.transfers;
DROP TRIGGER append_only ON slicewise.accounts;
ALTER TABLE slicewise.transfers DROP CONSTRAINT ck_transfers_reserve_first_and_once;
ALTER TABLE slicewise.transfers DROP CONSTRAINT uq_transfers_number;

DELETE FROM slicewise.transfers WHERE budget_entry_id IS NOT NULL OR kind = 'waive';

INSERT INTO slicewise.accounts (cluster, tenant, kind)
SELECT DISTINCT r.cluster, r.tenant, k.kind
  FROM slicewise.runs r, (VALUES ('available'), ('reserved'), ('used')) AS k (kind)
    ON CONFLICT DO NOTHING;
UPDATE slicewise.transfers t
   SET debit_account_id = d.id,
       credit_account_id = c.id
  FROM slicewise.runs r, slicewise.accounts d, slicewise.accounts c,
       (VALUES ('reserve', 'available', 'reserved'), ('extend', 'available', 'reserved'),
               ('post', 'reserved', 'used'), ('void', 'reserved', 'available')) AS k (kind, debit, credit)
 WHERE r.id = t.run_id AND k.kind = t.kind AND r.payer IS NOT NULL
   AND (d.cluster, d.tenant, d.kind) = (r.cluster, r.tenant, k.debit)
   AND (c.cluster, c.tenant, c.kind) = (r.cluster, r.tenant, k.credit);

CREATE TEMP TABLE kept ON COMMIT DROP AS
SELECT t.id, t.kind,
       least(t.amount_millislice_s,
             sum(CASE WHEN o.run_id IS NOT NULL THEN 0 WHEN t.kind = 'post'
                      THEN t.amount_millislice_s ELSE -t.amount_millislice_s END) OVER whole
             + t.amount_millislice_s
             - sum(t.amount_millislice_s) FILTER (WHERE t.kind = 'post') OVER up_to) AS amount,
       least(t.until_s, min(t.until_s) FILTER (WHERE t.kind = 'reverse') OVER whole) AS until_s
  FROM slicewise.transfers t LEFT JOIN slicewise.open_reservations o USING (run_id)
 WHERE t.kind IN ('post', 'reverse')
WINDOW whole AS (PARTITION BY t.run_id), up_to AS (PARTITION BY t.run_id ORDER BY t.number);
DELETE FROM slicewise.transfers t USING kept k
 WHERE k.id = t.id AND (k.kind = 'reverse' OR k.amount <= 0);
UPDATE slicewise.transfers t SET amount_millislice_s = k.amount, until_s = k.until_s
  FROM kept k
 WHERE k.id = t.id AND (k.amount <> t.amount_millislice_s OR k.until_s <> t.until_s);
UPDATE slicewise.open_reservations
   SET reserved_millislice_s = reserved_millislice_s + posted_millislice_s
 WHERE posted_millislice_s > 0;
UPDATE slicewise.transfers t SET number = n.number
  FROM (SELECT id, row_number() OVER (PARTITION BY run_id ORDER BY number) AS number
          FROM slicewise.transfers) n
 WHERE n.id = t.id AND n.number <> t.number;

DROP TABLE slicewise.balances;
DELETE FROM slicewise.accounts a
 WHERE a.kind IN ('granted', 'waived', 'operator')
    OR NOT EXISTS (SELECT FROM slicewise.runs r
                    WHERE (r.cluster, r.tenant) = (a.cluster, a.tenant));
DROP INDEX slicewise.uq_transfers_entry;
ALTER TABLE slicewise.transfers
    DROP CONSTRAINT ck_transfers_of_run_or_entry,
    DROP COLUMN budget_entry_id,
    ALTER COLUMN run_id SET NOT NULL,
    ALTER COLUMN number SET NOT NULL,
    ALTER COLUMN until_s SET NOT NULL,
    ADD CONSTRAINT ck_transfers_kind_known CHECK (kind IN ('reserve', 'extend', 'post', 'void')),
    ADD CONSTRAINT ck_transfers_reserve_first_and_once CHECK ((number = 1) = (kind = 'reserve')),
    ADD CONSTRAINT uq_transfers_number UNIQUE (run_id, number),
    ADD CONSTRAINT fk_transfers_debit_account_id
        FOREIGN KEY (debit_account_id) REFERENCES slicewise.accounts (id),
    ADD CONSTRAINT fk_transfers_credit_account_id
        FOREIGN KEY (credit_account_id) REFERENCES slicewise.accounts (id);
COMMENT ON TABLE slicewise.transfers
    IS 'Each moves an amount between two accounts of one tenant; append-only.';
ALTER TABLE slicewise.open_reservations DROP COLUMN posted_millislice_s;
COMMENT ON TABLE slicewise.open_reservations
    IS 'What is reserved and not settled; kept by a trigger on transfers.';
ALTER TABLE slicewise.runs DROP COLUMN payer;
COMMENT ON TABLE slicewise.runs
    IS 'Who ran what at which cost; append-only.';
ALTER TABLE slicewise.accounts DROP CONSTRAINT ck_accounts_kind_known;
ALTER TABLE slicewise.accounts ADD CONSTRAINT ck_accounts_kind_known
    CHECK (kind IN ('available', 'reserved', 'used'));
COMMENT ON TABLE slicewise.accounts
    IS 'Three per tenant; balances are sums over transfers.';
DROP TABLE slicewise.budget_entries;
DROP FUNCTION slicewise.book, slicewise.settle, slicewise.enter_budget, slicewise.budget_entered,
    slicewise.open_accounts, slicewise.transfers_inserted, slicewise.accounts_inserted;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.transfers
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.accounts
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
