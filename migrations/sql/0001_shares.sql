-- Divides hours of runs among tenants: each hour once for each number, in the order of their runs'
-- keys. ``zone`` is that of the days to which they belong. ``shares`` are what tenants have more or less than before. Whoever decided on what was
-- booked before finds it changed, and that hour is left alone. Returns the positions (from 0) of
-- the hours that were booked. All transfers are one statement: the trigger locks balances in the
-- order of accounts.
CREATE FUNCTION slicewise.share(hours jsonb, zone text) RETURNS integer[] LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    hour jsonb;
    run slicewise.runs;
    after integer;
    booked integer[] := '{}';
    made bigint[];
    entries bigint[] := '{}';
BEGIN
    LOCK TABLE slicewise.seals IN ROW EXCLUSIVE MODE;
    PERFORM set_config('slicewise.booking', 'off', true);
    -- Before anything is locked: who waits for another's new account must hold nothing.
    INSERT INTO slicewise.accounts (cluster, tenant, meter, kind)
    SELECT DISTINCT x.cluster, n.tenant, 'slice-seconds', n.kind
      FROM jsonb_to_recordset(hours) AS x (cluster text, shares jsonb)
     CROSS JOIN LATERAL jsonb_to_recordset(x.shares) AS s (tenant text, payer text)
     CROSS JOIN LATERAL (VALUES (s.payer, 'available'), (s.tenant, 'used')) AS n (tenant, kind)
     WHERE NOT EXISTS (SELECT FROM slicewise.accounts a
                        WHERE (a.cluster, a.tenant, a.meter, a.kind)
                              = (x.cluster, n.tenant, 'slice-seconds', n.kind))
     ORDER BY 1, 2, 4
        ON CONFLICT DO NOTHING;

    FOR position IN 0 .. jsonb_array_length(hours) - 1 LOOP
        hour := hours -> position;
        after := (hour -> 'after')::integer;
        SELECT * INTO STRICT run FROM slicewise.runs r
         WHERE r.cluster = hour ->> 'cluster' AND r.meter = 'slice-seconds'
           AND r.job_id = (hour -> 'job_id')::bigint AND r.start_s = (hour -> 'start_s')::bigint;
        INSERT INTO slicewise.shared_hours AS h
               (run_id, hour_s, number, from_s, until_s, amount, requests, busy_ms, weights, idle)
        VALUES (run.id, (hour -> 'hour_s')::bigint, after + 1, (hour -> 'from_s')::bigint,
                (hour -> 'until_s')::bigint, (hour -> 'amount')::bigint,
                (hour -> 'requests')::bigint, (hour -> 'busy_ms')::bigint,
                hour -> 'weights', hour -> 'idle')
            ON CONFLICT (run_id, hour_s) DO UPDATE
           SET number = excluded.number, from_s = excluded.from_s, until_s = excluded.until_s,
               amount = excluded.amount, requests = excluded.requests,
               busy_ms = excluded.busy_ms, recorded_at = now()
         WHERE h.number = after;
        CONTINUE WHEN NOT FOUND;
        booked := booked || position;
        -- The replica is of what its array was submitted as, else of what requests say they asked.
        -- In a pool another tenant may have asked another service there.
        WITH task AS (
            SELECT substring(run.task, '^[0-9]{1,18}')::bigint AS array_job_id,
                   substring(run.task, '_([0-9]{1,18})$')::bigint AS index
        ), asked AS (
            SELECT u.payer, max(split_part(u.service, '/', 2)) AS name
              FROM task t
              JOIN slicewise.usage_hours u
                ON (u.cluster, u.hour_s, u.array_job_id, u.index, u.run_start_s,
                    split_part(u.service, '/', 1))
                   = (run.cluster, (hour -> 'hour_s')::bigint, t.array_job_id, t.index, run.start_s,
                      run.tenant)
             GROUP BY u.payer
        ), replica AS (
            SELECT coalesce(
                   (SELECT g.name FROM slicewise.service_generations g JOIN task USING (array_job_id)
                     WHERE (g.cluster, g.tenant) = (run.cluster, run.tenant)
                     ORDER BY g.id DESC LIMIT 1),
                   (SELECT max(name) FROM asked), '-') AS name
        ), added AS (
            INSERT INTO slicewise.share_entries
                   (run_id, hour_s, number, day, tenant, payer, part, service, replica_of, amount)
            SELECT run.id, (hour -> 'hour_s')::bigint, after + 1,
                   (to_timestamp((hour -> 'hour_s')::bigint) AT TIME ZONE zone)::date, s.tenant,
                   nullif(s.payer, s.tenant), s.part,
                   CASE WHEN s.part = 'tokens' AND s.tenant <> run.tenant
                        THEN coalesce(a.name, n.name) ELSE n.name END, n.name, s.amount
              FROM jsonb_to_recordset(hour -> 'shares')
                   AS s (tenant text, payer text, part text, amount bigint)
             CROSS JOIN replica n
              LEFT JOIN asked a ON a.payer = s.tenant
             ORDER BY s.tenant, s.part
            RETURNING id)
        SELECT coalesce(array_agg(id), '{}') INTO made FROM added;
        entries := entries || made;
        IF (hour -> 'amount')::bigint <> (
            SELECT coalesce(sum(e.amount), 0) FROM slicewise.share_entries e
             WHERE e.run_id = run.id AND e.hour_s = (hour -> 'hour_s')::bigint
        ) OR EXISTS (
            SELECT FROM slicewise.share_entries e
             WHERE e.run_id = run.id AND e.hour_s = (hour -> 'hour_s')::bigint
             GROUP BY e.tenant, e.part HAVING sum(e.amount) < 0
        ) THEN
            RAISE EXCEPTION 'hour % of run %: its shares are not what it had', hour -> 'hour_s',
                run.id USING ERRCODE = 'check_violation';
        END IF;
    END LOOP;

    INSERT INTO slicewise.share_days AS d
    SELECT r.cluster, e.day, e.tenant, coalesce(e.payer, e.tenant), r.tenant || '/' || e.service,
           coalesce(r.payer, r.tenant), r.tenant || '/' || e.replica_of,
           ARRAY(SELECT jsonb_object_keys(r.gres) ORDER BY 1),
           coalesce(sum(e.amount) FILTER (WHERE e.part = 'tokens'), 0),
           coalesce(sum(e.amount) FILTER (WHERE e.part = 'idle'), 0),
           (array_agg(h.weights ORDER BY e.hour_s DESC))[1]
      FROM slicewise.share_entries e
      JOIN slicewise.shared_hours h USING (run_id, hour_s)
      JOIN slicewise.runs r ON r.id = e.run_id
     WHERE e.id = ANY (entries)
     GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
        ON CONFLICT ON CONSTRAINT pk_share_days DO UPDATE
       SET token_millislice_s = d.token_millislice_s + excluded.token_millislice_s,
           idle_millislice_s = d.idle_millislice_s + excluded.idle_millislice_s,
           weights = excluded.weights;

    -- Of another's run a tenant is charged its share, and the run's own tenant relieved of it.
    INSERT INTO slicewise.transfers
           (share_entry_id, kind, debit_account_id, credit_account_id, amount)
    SELECT e.id, x.kind,
           CASE x.kind WHEN 'share' THEN available.id ELSE used.id END,
           CASE x.kind WHEN 'share' THEN used.id ELSE available.id END,
           abs(e.amount)
      FROM slicewise.share_entries e
      JOIN slicewise.runs r ON r.id = e.run_id
     CROSS JOIN LATERAL (
           VALUES (CASE WHEN e.amount > 0 THEN 'share' ELSE 'relieve' END,
                   e.tenant, coalesce(e.payer, e.tenant)),
                  (CASE WHEN e.amount > 0 THEN 'relieve' ELSE 'share' END,
                   r.tenant, coalesce(r.payer, r.tenant))) AS x (kind, tenant, payer)
      JOIN slicewise.accounts available
        ON (available.cluster, available.tenant, available.meter, available.kind)
           = (r.cluster, x.payer, r.meter, 'available')
      JOIN slicewise.accounts used
        ON (used.cluster, used.tenant, used.meter, used.kind)
           = (r.cluster, x.tenant, r.meter, 'used')
     WHERE e.id = ANY (entries) AND e.tenant <> r.tenant
     ORDER BY e.id, x.kind;
    RETURN booked;
END $$;
