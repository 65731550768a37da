CREATE TABLE slicewise.energy_boards (
    cluster text,
    hour_s bigint CONSTRAINT ck_energy_boards_hour_whole CHECK (hour_s % 3600 = 0),
    node text,
    gpu_uuid text,
    measure text CONSTRAINT ck_energy_boards_measure_known CHECK (measure IN ('counter', 'power')),
    seen_by text,
    model text NOT NULL,
    energy_mj bigint NOT NULL,
    covered_ms bigint NOT NULL,
    checked_mj bigint NOT NULL,
    power_mj bigint NOT NULL,
    CONSTRAINT pk_energy_boards PRIMARY KEY (cluster, hour_s, node, gpu_uuid, measure, seen_by)
) WITH (fillfactor = 50);
COMMENT ON TABLE slicewise.energy_boards
    IS 'What boards took in an hour, in millijoules, by the meter that saw it. Changed by functions alone; summed by the day after eight.';

CREATE TABLE slicewise.energy_hours (
    cluster text,
    hour_s bigint,
    node text,
    gpu_uuid text,
    measure text,
    seen_by text,
    job_id bigint,
    split text CONSTRAINT ck_energy_hours_split_known
        CHECK (split IN ('idle', 'alone', 'activity', 'slices', 'unchecked')),
    energy_mj bigint NOT NULL CONSTRAINT ck_energy_hours_not_negative CHECK (energy_mj >= 0),
    CONSTRAINT ck_energy_hours_idle_is_nobodys CHECK ((job_id = 0) = (split = 'idle')),
    CONSTRAINT fk_energy_hours_board FOREIGN KEY (cluster, hour_s, node, gpu_uuid, measure, seen_by)
        REFERENCES slicewise.energy_boards,
    CONSTRAINT pk_energy_hours PRIMARY KEY (
        cluster, hour_s, node, gpu_uuid, measure, seen_by, job_id, split)
) WITH (fillfactor = 50);
CREATE INDEX ix_energy_hours_job ON slicewise.energy_hours (cluster, job_id);
COMMENT ON TABLE slicewise.energy_hours
    IS 'Whose parts of these hours are: of a job, or nobody''s (0). They add up to the board''s. Changed by functions alone; summed by the day after eight.';

CREATE TABLE slicewise.energy_board_days (
    cluster text,
    day date,
    node text,
    gpu_uuid text,
    measure text,
    model text,
    energy_mj bigint NOT NULL,
    covered_ms bigint NOT NULL,
    CONSTRAINT pk_energy_board_days PRIMARY KEY (cluster, day, node, gpu_uuid, measure, model)
);
COMMENT ON TABLE slicewise.energy_board_days
    IS 'What boards took on a day, of days whose hours are no longer kept. Changed by a function alone.';

CREATE TABLE slicewise.energy_days (
    cluster text,
    day date,
    node text,
    gpu_uuid text,
    measure text,
    job_id bigint,
    split text,
    energy_mj bigint NOT NULL,
    CONSTRAINT pk_energy_days PRIMARY KEY (
        cluster, day, node, gpu_uuid, measure, job_id, split)
);
CREATE INDEX ix_energy_days_job ON slicewise.energy_days (cluster, job_id);
COMMENT ON TABLE slicewise.energy_days
    IS 'Whose parts of these days are; kept for ever. Changed by a function alone.';

-- What a meter has seen in all of each hour: of what it says again, or late, the largest counts, with
-- its parts. Returns how many of these are older than a week, or to come: they are not kept.
CREATE FUNCTION slicewise.note_energy(of_cluster text, of_node text, meter text, hours jsonb)
    RETURNS integer LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    WITH told AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(hours) AS x (
               hour_s bigint, gpu_uuid text, measure text, model text, energy_mj bigint,
               covered_ms bigint, checked_mj bigint, power_mj bigint, parts jsonb)
         WHERE x.hour_s BETWEEN extract(epoch FROM now() - interval '7 days')
                            AND extract(epoch FROM now() + interval '1 hour')
         ORDER BY 1, 2, 3
    ), boards AS (
        INSERT INTO slicewise.energy_boards AS b
               (cluster, hour_s, node, gpu_uuid, measure, seen_by, model, energy_mj, covered_ms,
                checked_mj, power_mj)
        SELECT of_cluster, hour_s, of_node, gpu_uuid, measure, meter, model, energy_mj, covered_ms,
               checked_mj, power_mj
          FROM told
            ON CONFLICT ON CONSTRAINT pk_energy_boards DO UPDATE
           SET energy_mj = excluded.energy_mj, covered_ms = excluded.covered_ms,
               checked_mj = excluded.checked_mj, power_mj = excluded.power_mj
         WHERE b.energy_mj <= excluded.energy_mj
        RETURNING hour_s, gpu_uuid, measure
    ), gone AS (
        -- Parts that it no longer has: its file is an older one, of a copied or restored disk.
        DELETE FROM slicewise.energy_hours h USING told JOIN boards USING (hour_s, gpu_uuid, measure)
         WHERE (h.cluster, h.hour_s, h.node, h.gpu_uuid, h.measure, h.seen_by)
               = (of_cluster, told.hour_s, of_node, told.gpu_uuid, told.measure, meter)
           AND h.energy_mj > 0
           AND NOT EXISTS (SELECT FROM jsonb_to_recordset(told.parts) AS p (job_id bigint, split text)
                            WHERE (p.job_id, p.split) = (h.job_id, h.split))
    ), kept AS (
        INSERT INTO slicewise.energy_hours
               (cluster, hour_s, node, gpu_uuid, measure, seen_by, job_id, split, energy_mj)
        SELECT of_cluster, hour_s, of_node, gpu_uuid, measure, meter, p.job_id, p.split,
               p.energy_mj
          FROM told JOIN boards USING (hour_s, gpu_uuid, measure)
         CROSS JOIN LATERAL jsonb_to_recordset(parts) AS p (
               job_id bigint, split text, energy_mj bigint)
         ORDER BY 2, 4, 5, 7, 8
            ON CONFLICT ON CONSTRAINT pk_energy_hours DO UPDATE SET energy_mj = excluded.energy_mj
    )
    SELECT (jsonb_array_length(hours) - (SELECT count(*) FROM told))::integer;
$$;

-- Moves hours from more than eight days ago, of which nothing is told any more, into sums by the day.
-- Returns how many hours of boards these were.
CREATE FUNCTION slicewise.fold_energy(of_cluster text, zone text) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    until_s bigint := extract(epoch FROM now() - interval '8 days');
    folded integer;
BEGIN
    WITH gone AS (
        DELETE FROM slicewise.energy_hours h
         WHERE h.cluster = of_cluster AND h.hour_s < until_s RETURNING h.*
    )
    INSERT INTO slicewise.energy_days AS d
    SELECT cluster, (to_timestamp(hour_s) AT TIME ZONE zone)::date, node, gpu_uuid, measure, job_id,
           split, sum(energy_mj)
      FROM gone GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
        ON CONFLICT ON CONSTRAINT pk_energy_days DO UPDATE
       SET energy_mj = d.energy_mj + excluded.energy_mj;
    WITH gone AS (
        DELETE FROM slicewise.energy_boards b
         WHERE b.cluster = of_cluster AND b.hour_s < until_s RETURNING b.*
    ), summed AS (
        INSERT INTO slicewise.energy_board_days AS d
        SELECT cluster, (to_timestamp(hour_s) AT TIME ZONE zone)::date, node, gpu_uuid, measure,
               model, sum(energy_mj), sum(covered_ms)
          FROM gone GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
            ON CONFLICT ON CONSTRAINT pk_energy_board_days DO UPDATE
           SET energy_mj = d.energy_mj + excluded.energy_mj,
               covered_ms = d.covered_ms + excluded.covered_ms
    )
    SELECT count(*) INTO folded FROM gone;
    RETURN folded;
END $$;
