CREATE FUNCTION slicewise.accounts_inserted() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO slicewise.balances (account_id) SELECT id FROM inserted;
    RETURN NULL;
END $$;

CREATE TRIGGER accounts_inserted AFTER INSERT ON slicewise.accounts
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.accounts_inserted();

-- What a transfer that is no reserve does to its run's open reservation.
CREATE FUNCTION slicewise.settle(of_run bigint, kind text, amount bigint) RETURNS void
    LANGUAGE plpgsql
AS $$
DECLARE
    more bigint := CASE WHEN kind IN ('extend', 'reverse') THEN amount
                        WHEN kind = 'waive' THEN 0 ELSE -amount END;
    posted bigint := CASE kind WHEN 'post' THEN amount WHEN 'reverse' THEN -amount ELSE 0 END;
BEGIN
    UPDATE slicewise.open_reservations o
       SET reserved_millislice_s = o.reserved_millislice_s + more,
           posted_millislice_s = o.posted_millislice_s + posted
     WHERE o.run_id = of_run AND o.reserved_millislice_s <> -more
       AND (kind <> 'waive' OR o.reserved_millislice_s >= amount);
    IF NOT FOUND THEN
        DELETE FROM slicewise.open_reservations o
         WHERE o.run_id = of_run AND o.reserved_millislice_s = -more;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'transfer % of run %: its reservation is not open', kind, of_run
            USING ERRCODE = 'check_violation';
    END IF;
END $$;

-- A transfer may only move an amount between the two accounts that its kind names, of its run's
-- payer and tenant or its budget entry's tenant; and only out of a reservation that is open and
-- large enough. Rows are locked in order of their ids: no two statements wait for each other.
CREATE FUNCTION slicewise.transfers_inserted() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    t record;
BEGIN
    FOR t IN
        SELECT i.run_id, i.kind, i.amount_millislice_s AS amount,
               i.kind || ': ' || d.kind || ' to ' || c.kind IN (
                   'reserve: available to reserved',
                   'extend: available to reserved',
                   'post: reserved to used',
                   'void: reserved to available',
                   'reverse: used to reserved',
                   'waive: operator to waived',
                   'grant: granted to available',
                   'revoke: available to granted')
               AND d.cluster = coalesce(r.cluster, b.cluster) AND c.cluster = d.cluster
               AND d.tenant = CASE WHEN d.kind IN ('used', 'waived', 'operator') THEN r.tenant
                                   ELSE coalesce(r.payer, r.tenant, b.tenant) END
               AND c.tenant = CASE WHEN c.kind IN ('used', 'waived', 'operator') THEN r.tenant
                                   ELSE coalesce(r.payer, r.tenant, b.tenant) END
               AND CASE i.kind WHEN 'grant' THEN i.amount_millislice_s = b.amount_millislice_s
                               WHEN 'revoke' THEN i.amount_millislice_s = -b.amount_millislice_s
                               ELSE b.id IS NULL END AS rightful
          FROM inserted i
          LEFT JOIN slicewise.runs r ON r.id = i.run_id
          LEFT JOIN slicewise.budget_entries b ON b.id = i.budget_entry_id
          LEFT JOIN slicewise.accounts d ON d.id = i.debit_account_id
          LEFT JOIN slicewise.accounts c ON c.id = i.credit_account_id
         ORDER BY i.run_id, i.number
    LOOP
        IF t.rightful IS NOT TRUE THEN
            RAISE EXCEPTION 'transfer % of run %: wrong accounts', t.kind, t.run_id
                USING ERRCODE = 'check_violation';
        ELSIF t.kind = 'reserve' THEN
            INSERT INTO slicewise.open_reservations VALUES (t.run_id, t.amount);
        ELSIF t.run_id IS NOT NULL THEN
            PERFORM slicewise.settle(t.run_id, t.kind, t.amount);
        END IF;
    END LOOP;

    INSERT INTO slicewise.balances AS b
    SELECT id, sum(debit), sum(credit)
      FROM (SELECT debit_account_id AS id, amount_millislice_s AS debit, 0 AS credit FROM inserted
             UNION ALL
            SELECT credit_account_id, 0, amount_millislice_s FROM inserted) AS legs
     GROUP BY id
     ORDER BY id
        ON CONFLICT (account_id) DO UPDATE
       SET debits_millislice_s = b.debits_millislice_s + excluded.debits_millislice_s,
           credits_millislice_s = b.credits_millislice_s + excluded.credits_millislice_s;
    RETURN NULL;
END $$;

DROP TRIGGER transfer_inserted ON slicewise.transfers;
DROP FUNCTION slicewise.transfer_inserted();
CREATE TRIGGER transfers_inserted AFTER INSERT ON slicewise.transfers
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (current_setting('slicewise.booking', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION slicewise.transfers_inserted();

-- Before anything of a budget is locked: who waits for another's new account must hold nothing.
CREATE FUNCTION slicewise.open_accounts(cluster text, tenant text) RETURNS void LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO slicewise.accounts (cluster, tenant, kind)
    SELECT $1, $2, kind FROM (VALUES ('available'), ('granted'), ('reserved')) AS needed (kind)
        ON CONFLICT DO NOTHING;
$$;

CREATE FUNCTION slicewise.budget_entered() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
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

CREATE TRIGGER budget_entered AFTER INSERT ON slicewise.budget_entries
    FOR EACH ROW EXECUTE FUNCTION slicewise.budget_entered();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.budget_entries
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
