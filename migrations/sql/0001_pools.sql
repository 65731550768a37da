CREATE TABLE slicewise.pool_hours (
    cluster text,
    hour_s bigint CONSTRAINT ck_pool_hours_hour_whole CHECK (hour_s % 3600 = 0),
    array_job_id bigint,
    index bigint,
    run_start_s bigint,
    service text,
    used_ms jsonb NOT NULL,
    told_ms bigint NOT NULL,
    divided_ms bigint NOT NULL DEFAULT 0,
    hour_millislice_s bigint NOT NULL DEFAULT 0,
    millislice_s bigint NOT NULL DEFAULT 0
        CONSTRAINT ck_pool_hours_part_in_range CHECK (millislice_s BETWEEN 0 AND hour_millislice_s),
    usage_millislice_s bigint NOT NULL DEFAULT 0
        CONSTRAINT ck_pool_hours_usage_all_or_none CHECK (usage_millislice_s IN (0, millislice_s)),
    CONSTRAINT pk_pool_hours PRIMARY KEY (
        cluster, hour_s, array_job_id, index, run_start_s, service)
) WITH (fillfactor = 70);
COMMENT ON TABLE slicewise.pool_hours
    IS 'How much of an hour of a run another service of its pool has used, by the process that saw it, and its part as it was divided last. Changed by functions alone; deleted once nothing can change it.';

CREATE TABLE slicewise.pool_days (
    cluster text,
    day date,
    tenant text,
    payer text,
    service text,
    gpu_types text[],
    millislice_s bigint NOT NULL,
    usage_millislice_s bigint NOT NULL,
    CONSTRAINT pk_pool_days PRIMARY KEY (cluster, day, tenant, payer, service, gpu_types)
) WITH (fillfactor = 70);
COMMENT ON TABLE slicewise.pool_days
    IS 'By the day: what a service used of its pool''s other replicas, less what others used of its own, by their GPU types; and in those hours alone that are shared among tenants, too. A tenant''s of the same types are zero together. Changed by a function alone.';

-- What a process of the launcher has seen in all of each hour: of what it says again, or late, the
-- largest counts. What is older than a week comes too late.
CREATE FUNCTION slicewise.note_pool_uses(of_cluster text, seen_by text, uses jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO slicewise.pool_hours AS h
           (cluster, hour_s, array_job_id, index, run_start_s, service, used_ms, told_ms)
    SELECT of_cluster, x.hour_s, x.array_job_id, x.index, x.run_start_s, x.service,
           jsonb_build_object(seen_by, max(x.used_ms)), max(x.used_ms)
      FROM jsonb_to_recordset(uses) AS x (
           array_job_id bigint, index bigint, run_start_s bigint, service text, hour_s bigint,
           used_ms bigint)
     WHERE x.hour_s BETWEEN extract(epoch FROM now() - interval '7 days')
                        AND extract(epoch FROM now() + interval '1 hour')
     GROUP BY 2, 3, 4, 5, 6 ORDER BY 2, 3, 4, 5, 6
        ON CONFLICT ON CONSTRAINT pk_pool_hours DO UPDATE
       SET used_ms = h.used_ms || excluded.used_ms,
           told_ms = h.told_ms + excluded.told_ms - coalesce((h.used_ms ->> seen_by)::bigint, 0)
     WHERE coalesce((h.used_ms ->> seen_by)::bigint, -1) < excluded.told_ms;
$$;

-- Books parts of hours: of each what the service had before, as whoever decided saw it, and has
-- now. Who finds another amount leaves it alone. What a service has more, the one whose slot it is
-- has less. Returns how many were booked.
CREATE FUNCTION slicewise.divide_pool_hours(of_cluster text, parts jsonb, zone text)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    booked integer;
BEGIN
    PERFORM FROM slicewise.pool_hours h
       JOIN jsonb_to_recordset(parts) AS x (
            hour_s bigint, array_job_id bigint, index bigint, run_start_s bigint, service text)
      USING (hour_s, array_job_id, index, run_start_s, service)
      WHERE h.cluster = of_cluster
      ORDER BY hour_s, array_job_id, index, run_start_s, service FOR UPDATE OF h;
    WITH changed AS (
        UPDATE slicewise.pool_hours h
           SET divided_ms = x.divided_ms, hour_millislice_s = x.hour_millislice_s,
               millislice_s = x.after,
               usage_millislice_s = CASE WHEN x.is_shared THEN x.after ELSE 0 END
          FROM jsonb_to_recordset(parts) AS x (
               hour_s bigint, array_job_id bigint, index bigint, run_start_s bigint, service text,
               tenant text, payer text, owner text, divided_ms bigint, hour_millislice_s bigint,
               is_shared boolean, before bigint, after bigint)
          JOIN slicewise.pool_hours old USING (hour_s, array_job_id, index, run_start_s, service)
         WHERE (h.cluster, h.hour_s, h.array_job_id, h.index, h.run_start_s, h.service)
               = (of_cluster, x.hour_s, x.array_job_id, x.index, x.run_start_s, x.service)
           AND old.cluster = of_cluster AND h.millislice_s = x.before
        RETURNING (to_timestamp(h.hour_s) AT TIME ZONE zone)::date AS day, x.tenant, x.payer,
                  h.service, x.owner, x.after - x.before AS more,
                  h.usage_millislice_s - old.usage_millislice_s AS more_usage,
                  coalesce((SELECT ARRAY(SELECT jsonb_object_keys(r.gres) ORDER BY 1) FROM slicewise.runs r
                             WHERE (r.cluster, r.meter, r.tenant, r.start_s, r.task)
                                   = (of_cluster, 'slice-seconds', x.tenant, h.run_start_s,
                                      h.array_job_id || '_' || h.index)
                             LIMIT 1), '{}') AS gpu_types
    ), moved AS (
        INSERT INTO slicewise.pool_days AS d
        SELECT of_cluster, c.day, c.tenant, c.payer, m.service, c.gpu_types, sum(m.amount),
               sum(m.usage)
          FROM changed c
         CROSS JOIN LATERAL (VALUES (c.service, c.more, c.more_usage),
                                    (c.owner, -c.more, -c.more_usage)) AS m (service, amount, usage)
         WHERE (c.more, c.more_usage) <> (0, 0)
         GROUP BY 2, 3, 4, 5, 6 ORDER BY 2, 3, 4, 5, 6
            ON CONFLICT ON CONSTRAINT pk_pool_days DO UPDATE
           SET millislice_s = d.millislice_s + excluded.millislice_s,
               usage_millislice_s = d.usage_millislice_s + excluded.usage_millislice_s
    )
    SELECT count(*) INTO booked FROM changed;
    RETURN booked;
END $$;

-- Deletes hours from more than eight days ago of runs that were settled as long ago, or never known:
-- nothing is told of these any more. Returns how many.
CREATE FUNCTION slicewise.forget_pool_hours(of_cluster text) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten integer;
BEGIN
    DELETE FROM slicewise.pool_hours h
     WHERE h.cluster = of_cluster
       AND h.hour_s < extract(epoch FROM now() - interval '8 days')
       AND NOT EXISTS (
           SELECT FROM slicewise.runs r
             JOIN slicewise.transfers t ON t.run_id = r.id
            WHERE r.cluster = h.cluster AND r.meter = 'slice-seconds'
              AND r.tenant = split_part(h.service, '/', 1) AND r.start_s = h.run_start_s
              AND r.task = h.array_job_id || '_' || h.index
              AND (t.recorded_at > now() - interval '8 days'
                   OR EXISTS (SELECT FROM slicewise.open_reservations o WHERE o.run_id = r.id)));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;
