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
    LOOP
        available := '{}'; reserved := '{}'; used := '{}'; waived := '{}'; operator := '{}';
        FOR position IN 0 .. last LOOP
            charge := charges -> position;
            of_cluster := charge ->> 'cluster';
            of_tenant := charge ->> 'tenant';
            of_payer := charge ->> 'payer';
            SELECT max(a.id) FILTER (WHERE a.kind = 'available') AS available,
                   max(a.id) FILTER (WHERE a.kind = 'reserved') AS reserved,
                   max(a.id) FILTER (WHERE a.kind = 'used') AS used,
                   max(a.id) FILTER (WHERE a.kind = 'waived') AS waived,
                   max(a.id) FILTER (WHERE a.kind = 'operator') AS operator
              INTO account
              FROM slicewise.accounts a WHERE a.cluster = of_cluster AND a.tenant = of_payer;
            available := available || account.available;
            reserved := reserved || account.reserved;
            IF of_tenant <> of_payer THEN
                SELECT max(a.id) FILTER (WHERE a.kind = 'used') AS used,
                       max(a.id) FILTER (WHERE a.kind = 'waived') AS waived,
                       max(a.id) FILTER (WHERE a.kind = 'operator') AS operator
                  INTO account
                  FROM slicewise.accounts a WHERE a.cluster = of_cluster AND a.tenant = of_tenant;
            END IF;
            used := used || account.used;
            waived := waived || account.waived;
            operator := operator || account.operator;
        END LOOP;
        EXIT WHEN array_position(available || reserved || used || waived || operator, NULL)
            IS NULL;
        -- Before anything is locked: who waits for another's new account must hold nothing.
        INSERT INTO slicewise.accounts (cluster, tenant, kind)
        SELECT DISTINCT x.cluster, n.tenant, n.kind
          FROM jsonb_to_recordset(charges) AS x (cluster text, tenant text, payer text)
         CROSS JOIN LATERAL (VALUES (x.payer, 'available'), (x.payer, 'reserved'),
                                    (x.tenant, 'used'), (x.tenant, 'waived'),
                                    (x.tenant, 'operator')) AS n (tenant, kind)
         ORDER BY 1, 2, 3
            ON CONFLICT DO NOTHING;
    END LOOP;

    PERFORM set_config('slicewise.booking', 'on', true);
    FOR position IN 0 .. last LOOP
        charge := charges -> position;
        after := (charge -> 'after')::integer;
        run := NULL;
        IF after = 0 THEN
            INSERT INTO slicewise.runs
                   (cluster, job_id, start_s, tenant, payer, user_name, task, gres,
                    cost_millislices)
            VALUES (charge ->> 'cluster', (charge -> 'job_id')::bigint,
                    (charge -> 'start_s')::bigint, charge ->> 'tenant',
                    nullif(charge ->> 'payer', charge ->> 'tenant'), charge ->> 'user_name',
                    charge ->> 'task', charge -> 'gres', (charge -> 'cost_millislices')::bigint)
                ON CONFLICT DO NOTHING
            RETURNING id INTO run.id;
        END IF;
        IF run.id IS NULL THEN
            SELECT * INTO run FROM slicewise.runs r
             WHERE r.cluster = charge ->> 'cluster' AND r.job_id = (charge -> 'job_id')::bigint
               AND r.start_s = (charge -> 'start_s')::bigint;
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
            amount := (transfer -> 'amount_millislice_s')::bigint;
            debit := CASE WHEN kind IN ('reserve', 'extend') THEN available[position + 1]
                          WHEN kind = 'reverse' THEN used[position + 1]
                          WHEN kind = 'waive' THEN operator[position + 1]
                          WHEN kind IN ('post', 'void') THEN reserved[position + 1] END;
            credit := CASE WHEN kind IN ('reserve', 'extend', 'reverse') THEN reserved[position + 1]
                           WHEN kind = 'post' THEN used[position + 1]
                           WHEN kind = 'waive' THEN waived[position + 1]
                           ELSE available[position + 1] END;
            INSERT INTO slicewise.transfers
                   (run_id, number, kind, debit_account_id, credit_account_id,
                    amount_millislice_s, until_s)
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
    -- Rows are locked in order of their ids: no two statements wait for each other.
    FOR leg IN
        SELECT l.id, sum(l.debit)::bigint AS debit, sum(l.credit)::bigint AS credit
          FROM unnest(accounts, debits, credits) AS l (id, debit, credit) GROUP BY l.id ORDER BY l.id
    LOOP
        UPDATE slicewise.balances b
           SET debits_millislice_s = b.debits_millislice_s + leg.debit,
               credits_millislice_s = b.credits_millislice_s + leg.credit
         WHERE b.account_id = leg.id;
    END LOOP;
    PERFORM set_config('slicewise.booking', 'off', true);
    RETURN booked;
END $$;

-- True if it was booked; not if what is unspent differs from what it was decided on, or a roll is
-- not after the last one.
CREATE FUNCTION slicewise.enter_budget(entry jsonb, unspent_millislice_s bigint)
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
           (cluster, tenant, kind, amount_millislice_s, period_start_s, author, reason)
    VALUES (wanted.cluster, wanted.tenant, wanted.kind, wanted.amount_millislice_s,
            wanted.period_start_s, wanted.author, wanted.reason)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;
