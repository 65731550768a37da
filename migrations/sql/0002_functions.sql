-- Charges come in the order of their runs' keys, and are locked in it: new runs by their key, others
-- by their reservation. Of two writers who decided on the same state of a run, the second finds
-- it changed and leaves it alone. Returns the positions (from 0) of the charges that were booked.
CREATE FUNCTION slicewise.book(charges jsonb) RETURNS integer[] LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    accounts jsonb[];
    complete boolean;
    charge jsonb;
    transfer jsonb;
    run slicewise.runs;
    booked integer[] := '{}';
    runs bigint[] := '{}';
    numbers integer[] := '{}';
    kinds text[] := '{}';
    debits bigint[] := '{}';
    credits bigint[] := '{}';
    amounts bigint[] := '{}';
    ends_s bigint[] := '{}';
BEGIN
    LOOP
        SELECT array_agg(found.ids ORDER BY x.position),
               bool_and(found.ids ?& ARRAY['available', 'reserved', 'used', 'waived'])
          INTO accounts, complete
          FROM jsonb_array_elements(charges) WITH ORDINALITY AS x (charge, position)
         CROSS JOIN LATERAL (
               SELECT coalesce(jsonb_object_agg(a.kind, a.id), '{}') AS ids
                 FROM slicewise.accounts a
                WHERE a.cluster = x.charge ->> 'cluster'
                  AND a.tenant IN (x.charge ->> 'tenant', x.charge ->> 'payer')
                  AND a.tenant = x.charge ->> CASE WHEN a.kind IN ('used', 'waived') THEN 'tenant'
                                                   ELSE 'payer' END) AS found;
        EXIT WHEN complete IS NOT false;
        INSERT INTO slicewise.accounts (cluster, tenant, kind)
        SELECT DISTINCT x.cluster, n.tenant, n.kind
          FROM jsonb_to_recordset(charges) AS x (cluster text, tenant text, payer text)
         CROSS JOIN LATERAL (VALUES (x.payer, 'available'), (x.payer, 'reserved'),
                                    (x.tenant, 'used'), (x.tenant, 'waived')) AS n (tenant, kind)
         ORDER BY 1, 2, 3
            ON CONFLICT DO NOTHING;
    END LOOP;

    FOR position IN 0 .. jsonb_array_length(charges) - 1 LOOP
        charge := charges -> position;
        run := NULL;
        IF (charge -> 'after')::integer = 0 THEN
            INSERT INTO slicewise.runs
                   (cluster, job_id, start_s, tenant, payer, user_name, task, gres,
                    cost_millislices)
            VALUES (charge ->> 'cluster', (charge -> 'job_id')::bigint,
                    (charge -> 'start_s')::bigint, charge ->> 'tenant',
                    nullif(charge ->> 'payer', charge ->> 'tenant'), charge ->> 'user_name',
                    charge ->> 'task', charge -> 'gres', (charge -> 'cost_millislices')::bigint)
                ON CONFLICT DO NOTHING
            RETURNING * INTO run;
        END IF;
        IF run.id IS NULL THEN
            SELECT * INTO run FROM slicewise.runs r
             WHERE r.cluster = charge ->> 'cluster' AND r.job_id = (charge -> 'job_id')::bigint
               AND r.start_s = (charge -> 'start_s')::bigint;
            PERFORM FROM slicewise.open_reservations o WHERE o.run_id = run.id FOR UPDATE;
            CONTINUE WHEN (charge -> 'after')::integer
                <> (SELECT count(*) FROM slicewise.transfers t WHERE t.run_id = run.id);
        END IF;
        booked := booked || position;
        FOR number IN 1 .. jsonb_array_length(charge -> 'transfers') LOOP
            transfer := charge -> 'transfers' -> (number - 1);
            runs := runs || run.id;
            numbers := numbers || (charge -> 'after')::integer + number;
            kinds := kinds || (transfer ->> 'kind');
            debits := debits || (accounts[position + 1] -> (transfer ->> 'debit'))::bigint;
            credits := credits || (accounts[position + 1] -> (transfer ->> 'credit'))::bigint;
            amounts := amounts || (transfer -> 'amount_millislice_s')::bigint;
            ends_s := ends_s || (transfer -> 'until_s')::bigint;
        END LOOP;
    END LOOP;

    INSERT INTO slicewise.transfers
           (run_id, number, kind, debit_account_id, credit_account_id, amount_millislice_s, until_s)
    SELECT * FROM unnest(runs, numbers, kinds, debits, credits, amounts, ends_s);
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
