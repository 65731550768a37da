ALTER TABLE slicewise.budget_entries
    ADD COLUMN key text CONSTRAINT ck_budget_entries_key_named CHECK (key <> '');
CREATE UNIQUE INDEX uq_budget_entries_key
    ON slicewise.budget_entries (cluster, key) WHERE key IS NOT NULL;

-- True if it was booked; not if what is unspent differs from what it was decided on, a roll is not
-- after the last one, or an entry has its key already.
CREATE OR REPLACE FUNCTION slicewise.enter_budget(entry jsonb, unspent_millislice_s bigint)
RETURNS boolean LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted slicewise.budget_entries := jsonb_populate_record(NULL::slicewise.budget_entries, entry);
BEGIN
    PERFORM slicewise.open_accounts(wanted.cluster, wanted.tenant);
    PERFORM FROM slicewise.balances b JOIN slicewise.accounts a ON a.id = b.account_id
      WHERE (a.cluster, a.tenant) = (wanted.cluster, wanted.tenant)
        AND a.kind IN ('granted', 'available', 'reserved')
      ORDER BY a.id FOR UPDATE OF b;
    IF unspent_millislice_s <> (
        SELECT coalesce(sum(b.credits_millislice_s - b.debits_millislice_s), 0)
          FROM slicewise.balances b JOIN slicewise.accounts a ON a.id = b.account_id
         WHERE (a.cluster, a.tenant) = (wanted.cluster, wanted.tenant)
           AND a.kind IN ('available', 'reserved')
    ) OR EXISTS (
        SELECT FROM slicewise.budget_entries b
         WHERE (b.cluster, b.tenant, b.kind) = (wanted.cluster, wanted.tenant, 'roll')
           AND b.period_start_s >= wanted.period_start_s
    ) THEN
        RETURN false;
    END IF;
    INSERT INTO slicewise.budget_entries
           (cluster, tenant, kind, amount_millislice_s, period_start_s, author, reason, key)
    VALUES (wanted.cluster, wanted.tenant, wanted.kind, wanted.amount_millislice_s,
            wanted.period_start_s, wanted.author, wanted.reason, wanted.key)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Whoever calls may have said that he does the work of the trigger on transfers; only book does.
CREATE OR REPLACE FUNCTION slicewise.budget_entered() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM set_config('slicewise.booking', 'off', true);
    PERFORM slicewise.open_accounts(NEW.cluster, NEW.tenant);
    INSERT INTO slicewise.transfers
           (budget_entry_id, kind, debit_account_id, credit_account_id, amount_millislice_s)
    SELECT NEW.id,
           CASE WHEN NEW.amount_millislice_s > 0 THEN 'grant' ELSE 'revoke' END,
           CASE WHEN NEW.amount_millislice_s > 0 THEN g.id ELSE a.id END,
           CASE WHEN NEW.amount_millislice_s > 0 THEN a.id ELSE g.id END,
           abs(NEW.amount_millislice_s)
      FROM slicewise.accounts g, slicewise.accounts a
     WHERE (g.cluster, g.tenant, g.kind) = (NEW.cluster, NEW.tenant, 'granted')
       AND (a.cluster, a.tenant, a.kind) = (NEW.cluster, NEW.tenant, 'available')
       AND NEW.amount_millislice_s <> 0;
    RETURN NULL;
END $$;

INSERT INTO slicewise.served_revisions VALUES ('0008');
