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
    more_posted bigint := CASE kind WHEN 'post' THEN amount WHEN 'reverse' THEN -amount ELSE 0 END;
BEGIN
    UPDATE slicewise.open_reservations o
       SET reserved = o.reserved + more, posted = o.posted + more_posted
     WHERE o.run_id = of_run AND o.reserved <> -more
       AND (kind <> 'waive' OR o.reserved >= amount);
    IF NOT FOUND THEN
        DELETE FROM slicewise.open_reservations o
         WHERE o.run_id = of_run AND o.reserved = -more;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'transfer % of run %: its reservation is not open', kind, of_run
            USING ERRCODE = 'check_violation';
    END IF;
END $$;

-- A transfer may only move an amount between the two accounts that its kind names, of its run's
-- payer and tenant, its share's or its budget entry's tenant; and only out of a reservation that is open and
-- large enough. A run's first is its only reserve. Rows are locked in order of their ids: no two statements wait for each other.
CREATE FUNCTION slicewise.transfers_inserted() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    t record;
BEGIN
    FOR t IN
        SELECT i.run_id, i.kind, i.amount,
               i.kind || ': ' || d.kind || ' to ' || c.kind IN (
                   'reserve: available to reserved',
                   'extend: available to reserved',
                   'post: reserved to used',
                   'void: reserved to available',
                   'reverse: used to reserved',
                   'waive: operator to waived',
                   'use: available to used',
                   'grant: granted to available',
                   'revoke: available to granted',
                   'share: available to used',
                   'relieve: used to available')
               AND d.cluster = coalesce(r.cluster, b.cluster) AND c.cluster = d.cluster
               AND d.meter = coalesce(r.meter, b.meter) AND c.meter = d.meter
               AND d.tenant = CASE WHEN d.kind IN ('used', 'waived', 'operator') THEN p.tenant
                                   ELSE coalesce(p.payer, p.tenant, b.tenant) END
               AND c.tenant = CASE WHEN c.kind IN ('used', 'waived', 'operator') THEN p.tenant
                                   ELSE coalesce(p.payer, p.tenant, b.tenant) END
               AND (i.kind IN ('share', 'relieve')) = (s.id IS NOT NULL)
               AND (s.id IS NULL OR s.tenant <> r.tenant AND i.amount = abs(s.amount))
               AND CASE i.kind WHEN 'grant' THEN i.amount = b.amount
                               WHEN 'revoke' THEN i.amount = -b.amount
                               ELSE b.id IS NULL END
               AND i.amount > 0
               AND num_nonnulls(i.run_id, b.id, s.id) = 1
               AND (i.number IS NULL) = (i.run_id IS NULL)
               AND (i.until_s IS NULL) = (i.run_id IS NULL)
               AND (i.kind = 'use' OR (i.number IS NOT DISTINCT FROM 1) = (i.kind = 'reserve'))
                   AS rightful
          FROM inserted i
          LEFT JOIN slicewise.share_entries s ON s.id = i.share_entry_id
          LEFT JOIN slicewise.runs r ON r.id = coalesce(i.run_id, s.run_id)
         CROSS JOIN LATERAL (
               SELECT CASE WHEN is_others THEN s.tenant ELSE r.tenant END AS tenant,
                      CASE WHEN is_others THEN s.payer ELSE r.payer END AS payer
                 FROM (SELECT (i.kind = 'share') = (s.amount > 0) AS is_others) AS party) AS p
          LEFT JOIN slicewise.budget_entries b ON b.id = i.budget_entry_id
          LEFT JOIN slicewise.accounts d ON d.id = i.debit_account_id
          LEFT JOIN slicewise.accounts c ON c.id = i.credit_account_id
         ORDER BY i.run_id, i.number
    LOOP
        IF t.rightful IS NOT TRUE THEN
            RAISE EXCEPTION 'transfer % of run %: wrong accounts, amount or number',
                t.kind, t.run_id
                USING ERRCODE = 'check_violation';
        ELSIF t.kind = 'reserve' THEN
            INSERT INTO slicewise.open_reservations VALUES (t.run_id, t.amount);
        ELSIF t.run_id IS NOT NULL AND t.kind <> 'use' THEN
            PERFORM slicewise.settle(t.run_id, t.kind, t.amount);
        END IF;
    END LOOP;

    INSERT INTO slicewise.balances AS b
    SELECT id, sum(debit), sum(credit)
      FROM (SELECT debit_account_id AS id, amount AS debit, 0 AS credit FROM inserted
             UNION ALL
            SELECT credit_account_id, 0, amount FROM inserted) AS legs
     GROUP BY id
     ORDER BY id
        ON CONFLICT (account_id) DO UPDATE
       SET debits = b.debits + excluded.debits, credits = b.credits + excluded.credits;
    RETURN NULL;
END $$;

CREATE TRIGGER transfers_inserted AFTER INSERT ON slicewise.transfers
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (current_setting('slicewise.booking', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION slicewise.transfers_inserted();

-- Before anything of a budget is locked: who waits for another's new account must hold nothing.
CREATE FUNCTION slicewise.open_accounts(cluster text, tenant text, meter text)
    RETURNS void LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO slicewise.accounts (cluster, tenant, meter, kind)
    SELECT $1, $2, $3, kind FROM (VALUES ('available'), ('granted'), ('reserved')) AS needed (kind)
        ON CONFLICT DO NOTHING;
$$;

-- Whoever calls may have said that he does the work of the trigger on transfers; only book does.
-- The lock is taken before a transfer gets its id: ``seal`` waits for it.
CREATE FUNCTION slicewise.budget_entered() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE slicewise.seals IN ROW EXCLUSIVE MODE;
    PERFORM set_config('slicewise.booking', 'off', true);
    PERFORM slicewise.open_accounts(NEW.cluster, NEW.tenant, NEW.meter);
    INSERT INTO slicewise.transfers
           (budget_entry_id, kind, debit_account_id, credit_account_id, amount)
    SELECT NEW.id,
           CASE WHEN NEW.amount > 0 THEN 'grant' ELSE 'revoke' END,
           CASE WHEN NEW.amount > 0 THEN g.id ELSE a.id END,
           CASE WHEN NEW.amount > 0 THEN a.id ELSE g.id END,
           abs(NEW.amount)
      FROM slicewise.accounts g, slicewise.accounts a
     WHERE (g.cluster, g.tenant, g.meter, g.kind)
           = (NEW.cluster, NEW.tenant, NEW.meter, 'granted')
       AND (a.cluster, a.tenant, a.meter, a.kind)
           = (NEW.cluster, NEW.tenant, NEW.meter, 'available')
       AND NEW.amount <> 0;
    RETURN NULL;
END $$;

CREATE TRIGGER budget_entered AFTER INSERT ON slicewise.budget_entries
    FOR EACH ROW EXECUTE FUNCTION slicewise.budget_entered();

-- Charges come in the order of their runs' keys, and are locked in it: new runs by their key, others
-- by their reservation. Of two writers who decided on the same state of a run, the second finds
-- it changed and leaves it alone. Returns the positions (from 0) of the charges that were booked.
-- It does what the trigger on transfers does for each statement itself, which takes half the time.
CREATE FUNCTION slicewise.book(charges jsonb) RETURNS integer[] LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last integer := jsonb_array_length(charges) - 1;
    available bigint[];
    reserved bigint[];
    used bigint[];
    waived bigint[];
    operator bigint[];
    account record;
    charge jsonb;
    transfer jsonb;
    of_cluster text;
    of_tenant text;
    of_payer text;
    of_meter text;
    run slicewise.runs;
    after integer;
    kind text;
    amount bigint;
    debit bigint;
    credit bigint;
    booked integer[] := '{}';
    accounts bigint[] := '{}';
    debits bigint[] := '{}';
    credits bigint[] := '{}';
    leg record;
BEGIN
    LOCK TABLE slicewise.seals IN ROW EXCLUSIVE MODE;
    LOOP
        available := '{}'; reserved := '{}'; used := '{}'; waived := '{}'; operator := '{}';
        FOR position IN 0 .. last LOOP
            charge := charges -> position;
            of_cluster := charge ->> 'cluster';
            of_tenant := charge ->> 'tenant';
            of_payer := charge ->> 'payer';
            of_meter := charge ->> 'meter';
            SELECT max(a.id) FILTER (WHERE a.kind = 'available') AS available,
                   max(a.id) FILTER (WHERE a.kind = 'reserved') AS reserved,
                   max(a.id) FILTER (WHERE a.kind = 'used') AS used,
                   max(a.id) FILTER (WHERE a.kind = 'waived') AS waived,
                   max(a.id) FILTER (WHERE a.kind = 'operator') AS operator
              INTO account
              FROM slicewise.accounts a
             WHERE a.cluster = of_cluster AND a.tenant = of_payer AND a.meter = of_meter;
            available := available || account.available;
            reserved := reserved || account.reserved;
            IF of_tenant <> of_payer THEN
                SELECT max(a.id) FILTER (WHERE a.kind = 'used') AS used,
                       max(a.id) FILTER (WHERE a.kind = 'waived') AS waived,
                       max(a.id) FILTER (WHERE a.kind = 'operator') AS operator
                  INTO account
                  FROM slicewise.accounts a
                 WHERE a.cluster = of_cluster AND a.tenant = of_tenant AND a.meter = of_meter;
            END IF;
            used := used || account.used;
            waived := waived || account.waived;
            operator := operator || account.operator;
        END LOOP;
        EXIT WHEN array_position(available || reserved || used || waived || operator, NULL)
            IS NULL;
        -- Before anything is locked: who waits for another's new account must hold nothing.
        INSERT INTO slicewise.accounts (cluster, tenant, meter, kind)
        SELECT DISTINCT x.cluster, n.tenant, x.meter, n.kind
          FROM jsonb_to_recordset(charges)
               AS x (cluster text, tenant text, payer text, meter text)
         CROSS JOIN LATERAL (VALUES (x.payer, 'available'), (x.payer, 'reserved'),
                                    (x.tenant, 'used'), (x.tenant, 'waived'),
                                    (x.tenant, 'operator')) AS n (tenant, kind)
         ORDER BY 1, 2, 3, 4
            ON CONFLICT DO NOTHING;
    END LOOP;

    PERFORM set_config('slicewise.booking', 'on', true);
    FOR position IN 0 .. last LOOP
        charge := charges -> position;
        after := (charge -> 'after')::integer;
        run := NULL;
        IF after = 0 THEN
            INSERT INTO slicewise.runs
                   (cluster, meter, job_id, start_s, tenant, payer, user_name, task, gres,
                    cost_millislices)
            VALUES (charge ->> 'cluster', charge ->> 'meter', (charge -> 'job_id')::bigint,
                    (charge -> 'start_s')::bigint, charge ->> 'tenant',
                    nullif(charge ->> 'payer', charge ->> 'tenant'), charge ->> 'user_name',
                    charge ->> 'task', charge -> 'gres', (charge -> 'cost_millislices')::bigint)
                ON CONFLICT DO NOTHING
            RETURNING id INTO run.id;
        END IF;
        IF run.id IS NULL THEN
            SELECT * INTO run FROM slicewise.runs r
             WHERE r.cluster = charge ->> 'cluster' AND r.meter = charge ->> 'meter'
               AND r.job_id = (charge -> 'job_id')::bigint AND r.start_s = (charge -> 'start_s')::bigint;
            PERFORM FROM slicewise.open_reservations o WHERE o.run_id = run.id FOR UPDATE;
            CONTINUE WHEN after
                <> (SELECT count(*) FROM slicewise.transfers t WHERE t.run_id = run.id);
            IF (run.tenant, coalesce(run.payer, run.tenant))
               IS DISTINCT FROM (charge ->> 'tenant', charge ->> 'payer') THEN
                RAISE EXCEPTION 'run %: of another tenant or payer', run.id
                    USING ERRCODE = 'check_violation';
            END IF;
        END IF;
        booked := booked || position;
        FOR number IN 1 .. jsonb_array_length(charge -> 'transfers') LOOP
            transfer := charge -> 'transfers' -> (number - 1);
            kind := transfer ->> 'kind';
            amount := (transfer -> 'amount')::bigint;
            IF (amount > 0 AND transfer ? 'until_s' AND (after + number = 1) = (kind = 'reserve'))
               IS NOT TRUE THEN
                RAISE EXCEPTION 'transfer % of run %: wrong amount or number', kind, run.id
                    USING ERRCODE = 'check_violation';
            END IF;
            debit := CASE WHEN kind IN ('reserve', 'extend') THEN available[position + 1]
                          WHEN kind = 'reverse' THEN used[position + 1]
                          WHEN kind = 'waive' THEN operator[position + 1]
                          WHEN kind IN ('post', 'void') THEN reserved[position + 1] END;
            credit := CASE WHEN kind IN ('reserve', 'extend', 'reverse') THEN reserved[position + 1]
                           WHEN kind = 'post' THEN used[position + 1]
                           WHEN kind = 'waive' THEN waived[position + 1]
                           ELSE available[position + 1] END;
            INSERT INTO slicewise.transfers
                   (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
            VALUES (run.id, after + number, kind, debit, credit, amount,
                    (transfer -> 'until_s')::bigint);
            IF kind = 'reserve' THEN
                INSERT INTO slicewise.open_reservations VALUES (run.id, amount);
            ELSE
                PERFORM slicewise.settle(run.id, kind, amount);
            END IF;
            accounts := accounts || debit || credit;
            debits := debits || amount || 0::bigint;
            credits := credits || 0::bigint || amount;
        END LOOP;
    END LOOP;
    -- Rows are locked in order of their ids: no two statements wait for each other. What a single
    -- transfer moves need not be added up first, which takes a tenth of its time.
    IF cardinality(accounts) = 2 THEN
        UPDATE slicewise.balances b
           SET debits = b.debits + amount * (b.account_id = debit)::int,
               credits = b.credits + amount * (b.account_id = credit)::int
         WHERE b.account_id = least(debit, credit);
        UPDATE slicewise.balances b
           SET debits = b.debits + amount * (b.account_id = debit)::int,
               credits = b.credits + amount * (b.account_id = credit)::int
         WHERE b.account_id = greatest(debit, credit);
    ELSE
        FOR leg IN
            SELECT l.id, sum(l.debit)::bigint AS debit, sum(l.credit)::bigint AS credit
              FROM unnest(accounts, debits, credits) AS l (id, debit, credit) GROUP BY l.id ORDER BY l.id
        LOOP
            UPDATE slicewise.balances b
               SET debits = b.debits + leg.debit, credits = b.credits + leg.credit
             WHERE b.account_id = leg.id;
        END LOOP;
    END IF;
    PERFORM set_config('slicewise.booking', 'off', true);
    RETURN booked;
END $$;

-- True if it was booked; not if what is unspent differs from what it was decided on, a roll is not
-- after the last one, or an entry has its key already.
CREATE FUNCTION slicewise.enter_budget(entry jsonb, unspent bigint)
RETURNS boolean LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted slicewise.budget_entries := jsonb_populate_record(NULL::slicewise.budget_entries, entry);
BEGIN
    -- As who books: who waits for a seal must hold no balance.
    LOCK TABLE slicewise.seals IN ROW EXCLUSIVE MODE;
    PERFORM slicewise.open_accounts(wanted.cluster, wanted.tenant, wanted.meter);
    PERFORM FROM slicewise.balances b JOIN slicewise.accounts a ON a.id = b.account_id
      WHERE (a.cluster, a.tenant, a.meter) = (wanted.cluster, wanted.tenant, wanted.meter)
        AND a.kind IN ('granted', 'available', 'reserved')
      ORDER BY a.id FOR UPDATE OF b;
    IF unspent <> (
        SELECT coalesce(sum(b.credits - b.debits), 0)
          FROM slicewise.balances b JOIN slicewise.accounts a ON a.id = b.account_id
         WHERE (a.cluster, a.tenant, a.meter) = (wanted.cluster, wanted.tenant, wanted.meter)
           AND a.kind IN ('available', 'reserved')
    ) OR EXISTS (
        SELECT FROM slicewise.budget_entries b
         WHERE (b.cluster, b.tenant, b.meter, b.kind)
               = (wanted.cluster, wanted.tenant, wanted.meter, 'roll')
           AND b.period_start_s >= wanted.period_start_s
    ) THEN
        RETURN false;
    END IF;
    INSERT INTO slicewise.budget_entries
           (cluster, tenant, meter, kind, amount, period_start_s, author, reason, key)
    VALUES (wanted.cluster, wanted.tenant, wanted.meter, wanted.kind, wanted.amount,
            wanted.period_start_s, wanted.author, wanted.reason, wanted.key)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Who changes quotas locks the table of seals as who books does: ``seal`` waits for it, before a row
-- gets its id.
CREATE FUNCTION slicewise.before_policy_is_sealed() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE slicewise.seals IN ROW EXCLUSIVE MODE;
    RETURN NULL;
END $$;

CREATE TRIGGER before_policy_is_sealed BEFORE INSERT ON slicewise.quota_changes
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.before_policy_is_sealed();
CREATE TRIGGER before_policy_is_sealed BEFORE INSERT ON slicewise.quota_windows
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.before_policy_is_sealed();
CREATE TRIGGER before_policy_is_sealed BEFORE INSERT ON slicewise.quota_window_ends
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.before_policy_is_sealed();
CREATE TRIGGER before_policy_is_sealed BEFORE INSERT ON slicewise.tariffs
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.before_policy_is_sealed();

-- What changes of quotas and tariffs say that were made after one seal, up to another: one a line, of each column
-- that says something. So a column that is added later leaves what older rows said as it was. Before
-- the first seal nothing is left out: numbers below 1 are nobody's.
CREATE FUNCTION slicewise.sealed_policy(behind slicewise.seals, up_to slicewise.seals)
RETURNS text LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC'
AS $$
    SELECT coalesce(string_agg(E'\n' || kind || said, '' ORDER BY nth, id), '')
      FROM (SELECT 1 AS nth, c.id, 'quota' AS kind, to_jsonb(c) AS columns
              FROM slicewise.quota_changes c
             WHERE c.id > coalesce(nullif(behind.last_change_id, 0), -9223372036854775807)
               AND c.id <= up_to.last_change_id
             UNION ALL
            SELECT 2, w.id, 'window', to_jsonb(w)
              FROM slicewise.quota_windows w
             WHERE w.id > coalesce(nullif(behind.last_window_id, 0), -9223372036854775807)
               AND w.id <= up_to.last_window_id
             UNION ALL
            SELECT 3, e.id, 'window end', to_jsonb(e)
              FROM slicewise.quota_window_ends e
             WHERE e.id > coalesce(nullif(behind.last_window_end_id, 0), -9223372036854775807)
               AND e.id <= up_to.last_window_end_id
             UNION ALL
            SELECT 4, t.id, 'tariff', to_jsonb(t)
              FROM slicewise.tariffs t
             WHERE t.id > coalesce(nullif(behind.last_tariff_id, 0), -9223372036854775807)
               AND t.id <= up_to.last_tariff_id) AS lines,
           LATERAL (SELECT jsonb_object_agg(key, value)::text AS said
                      FROM jsonb_each(columns) WHERE value <> 'null') AS sayings;
$$;

-- Of the seal over the transfers behind one up to another: what they say themselves, and what their
-- budget entries and shares say; with its first transfer what a run says; then what changes of quotas say. By
-- index alone: a batch is small, however long the history is.
CREATE FUNCTION slicewise.seal_hash(behind slicewise.seals, up_to slicewise.seals)
RETURNS bytea LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO'
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
    SELECT sha256(coalesce(behind.hash, '') || convert_to(coalesce(string_agg(
               ROW(t.id, t.run_id, t.number, t.kind, t.debit_account_id, t.credit_account_id,
                   t.amount, t.until_s, t.recorded_at, t.budget_entry_id, t.share_entry_id)::text
               || CASE WHEN r.id IS NULL THEN '' ELSE
                      ROW(r.cluster, r.meter, r.job_id, r.start_s, r.tenant, r.payer, r.user_name, r.task,
                          r.gres, r.cost_millislices)::text END
               || CASE WHEN b.id IS NULL THEN '' ELSE
                      ROW(b.cluster, b.tenant, b.meter, b.kind, b.amount, b.period_start_s,
                          b.author, b.reason, b.recorded_at, b.key)::text END
               || CASE WHEN s.id IS NULL THEN '' ELSE
                      ROW(s.run_id, s.hour_s, s.number, s.day, s.tenant, s.payer, s.part, s.service,
                          s.replica_of, s.amount, s.recorded_at)::text END,
               E'\n' ORDER BY t.id), '') || slicewise.sealed_policy(behind, up_to), 'UTF8'))
      FROM slicewise.transfers t
      LEFT JOIN slicewise.runs r ON r.id = CASE t.number WHEN 1 THEN t.run_id END
      LEFT JOIN slicewise.budget_entries b ON b.id = t.budget_entry_id
      LEFT JOIN slicewise.share_entries s ON s.id = t.share_entry_id
     WHERE t.id > coalesce(behind.last_transfer_id, 0) AND t.id <= up_to.last_transfer_id;
$$;

-- Seals what is not sealed yet, at most that many transfers; returns how many. Who books or changes
-- quotas locks the table of seals, too, beside others who do: a row that is not to be seen yet may have
-- a smaller id.
CREATE FUNCTION slicewise.seal(most bigint) RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    behind slicewise.seals;
    up_to slicewise.seals;
BEGIN
    LOCK TABLE slicewise.seals IN SHARE ROW EXCLUSIVE MODE;
    SELECT * INTO behind FROM slicewise.seals s ORDER BY s.id DESC LIMIT 1;
    SELECT coalesce(max(t.id), behind.last_transfer_id, 0), count(*)
      INTO up_to.last_transfer_id, up_to.transfers
      FROM (SELECT i.id FROM slicewise.transfers i
             WHERE i.id > coalesce(behind.last_transfer_id, 0) ORDER BY i.id LIMIT most) t;
    SELECT coalesce(max(c.id), 0) INTO up_to.last_change_id FROM slicewise.quota_changes c;
    SELECT coalesce(max(w.id), 0) INTO up_to.last_window_id FROM slicewise.quota_windows w;
    SELECT coalesce(max(e.id), 0) INTO up_to.last_window_end_id FROM slicewise.quota_window_ends e;
    SELECT coalesce(max(t.id), 0) INTO up_to.last_tariff_id FROM slicewise.tariffs t;
    -- If the newest rows were deleted, what was sealed with them shows that.
    up_to.last_change_id := greatest(up_to.last_change_id, behind.last_change_id);
    up_to.last_window_id := greatest(up_to.last_window_id, behind.last_window_id);
    up_to.last_window_end_id := greatest(up_to.last_window_end_id, behind.last_window_end_id);
    up_to.last_tariff_id := greatest(up_to.last_tariff_id, behind.last_tariff_id);
    IF (up_to.last_transfer_id, up_to.last_change_id, up_to.last_window_id,
        up_to.last_window_end_id, up_to.last_tariff_id)
       <> (coalesce(behind.last_transfer_id, 0), coalesce(behind.last_change_id, 0),
           coalesce(behind.last_window_id, 0), coalesce(behind.last_window_end_id, 0),
           coalesce(behind.last_tariff_id, 0)) THEN
        INSERT INTO slicewise.seals (last_transfer_id, last_change_id, last_window_id,
                                     last_window_end_id, last_tariff_id, transfers, hash)
        VALUES (up_to.last_transfer_id, up_to.last_change_id, up_to.last_window_id,
                up_to.last_window_end_id, up_to.last_tariff_id, up_to.transfers, slicewise.seal_hash(behind, up_to));
    END IF;
    RETURN up_to.transfers;
END $$;

-- Of what a cluster has now of what is overwritten.
CREATE FUNCTION slicewise.state_hash(of_cluster text, of_kind text)
RETURNS bytea LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT sha256(convert_to(of_cluster || coalesce(string_agg(said, E'\n' ORDER BY said), ''), 'UTF8'))
      FROM (SELECT ROW(r.lender, r.borrower, r.called_s, r.amount_millislices)::text AS said
              FROM slicewise.recalls r WHERE of_kind = 'recalls' AND r.cluster = of_cluster
             UNION ALL
            SELECT w.accounted_until_s::text
              FROM slicewise.watermarks w WHERE of_kind = 'watermark' AND w.cluster = of_cluster
           ) AS lines;
$$;

-- Who overwrites such a state calls it in the same transaction, and has locked what it overwrote.
CREATE FUNCTION slicewise.seal_state(of_cluster text, of_kind text) RETURNS void LANGUAGE sql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO slicewise.sealed_states
    VALUES (of_cluster, of_kind, slicewise.state_hash(of_cluster, of_kind))
        ON CONFLICT (cluster, kind) DO UPDATE SET hash = excluded.hash;
$$;
