"""SQL that finds what of shared services' runs is to be divided, and what was."""

RUNS = """
WITH asked AS MATERIALIZED (
    SELECT r.id AS run_id, u.hour_s, sum(u.requests) AS requests
      FROM slicewise.usage_hours u
      JOIN slicewise.runs r
        ON (r.cluster, r.meter, r.tenant, r.start_s, r.task)
           = (u.cluster, 'slice-seconds', split_part(u.service, '/', 1), u.run_start_s,
              u.array_job_id || '_' || u.index)
     WHERE u.cluster = :cluster AND u.hour_s >= :since_s AND u.array_job_id > 0
     GROUP BY r.id, u.hour_s
), generations AS (
    SELECT g.array_job_id, g.tenant,
           jsonb_agg(jsonb_build_array(floor(extract(epoch FROM g.recorded_at))::bigint,
                                       g.directives) ORDER BY g.id) AS submitted,
           max(g.name) AS name
      FROM slicewise.service_generations g
     WHERE g.cluster = :cluster AND EXISTS (
           SELECT FROM slicewise.service_generations s
            WHERE (s.cluster, s.array_job_id, s.tenant) = (g.cluster, g.array_job_id, g.tenant)
              AND s.directives ? 'audience')
     GROUP BY g.array_job_id, g.tenant
), candidates AS (
    SELECT run_id FROM asked
     UNION SELECT run_id FROM slicewise.shared_hours WHERE hour_s >= :since_s
     UNION
    SELECT r.id
      FROM generations g
      JOIN slicewise.runs r
        ON (r.cluster, r.meter, r.tenant) = (:cluster, 'slice-seconds', g.tenant)
           AND r.start_s >= :since_s - 366 * 86400
           AND substring(r.task, '^[0-9]{1,18}')::bigint = g.array_job_id
)
SELECT r.id, r.job_id, r.start_s, r.tenant, coalesce(r.payer, r.tenant) AS payer,
       r.cost_millislices, o.run_id IS NOT NULL AS is_open, b.used, b.end_s,
       g.submitted, g.name,
       (SELECT jsonb_object_agg(a.hour_s, a.requests)
          FROM asked a WHERE a.run_id = r.id) AS counted,
       (SELECT jsonb_object_agg(h.hour_s, jsonb_build_array(h.number, h.requests, h.amount,
                                                            h.weights, h.idle))
          FROM slicewise.shared_hours h WHERE h.run_id = r.id) AS divided
  FROM candidates c
  JOIN slicewise.runs r ON r.id = c.run_id AND r.cluster = :cluster
  LEFT JOIN slicewise.open_reservations o ON o.run_id = r.id
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(CASE t.kind WHEN 'post' THEN t.amount WHEN 'reverse' THEN -t.amount
                           END), 0)::bigint AS used,
              (max(ARRAY[t.number, t.until_s]))[2] AS end_s
         FROM slicewise.transfers t WHERE t.run_id = r.id) AS b
  LEFT JOIN generations g
    ON (g.array_job_id, g.tenant) = (substring(r.task, '^[0-9]{1,18}')::bigint, r.tenant)
 WHERE o.run_id IS NOT NULL OR b.end_s >= :since_s
 ORDER BY r.job_id, r.start_s
"""
"""Runs of services that were asked since ``:since_s``, or that others than owners may ask."""

USES = """
WITH due AS MATERIALIZED (
    SELECT d.*, r.tenant AS owner, r.start_s,
           substring(r.task, '^[0-9]{1,18}')::bigint AS array_job_id,
           substring(r.task, '_([0-9]{1,18})$')::bigint AS index
      FROM jsonb_to_recordset(CAST(:due AS jsonb))
           AS d (run_id bigint, hour_s bigint, from_s bigint, until_s bigint)
      JOIN slicewise.runs r ON r.id = d.run_id
), tokens AS (
    SELECT d.run_id, d.hour_s, u.payer, sum(u.requests) AS requests,
           sum(u.prompt_tokens) AS prompts, sum(u.cached_prompt_tokens) AS cached,
           sum(u.output_tokens) AS outputs
      FROM due d
      JOIN slicewise.usage_hours u
        ON u.cluster = :cluster AND (u.array_job_id, u.index, u.run_start_s, u.hour_s)
           = (d.array_job_id, d.index, d.start_s, d.hour_s)
           AND u.hour_s BETWEEN (SELECT min(hour_s) FROM due) AND (SELECT max(hour_s) FROM due)
           AND split_part(u.service, '/', 1) = d.owner
     GROUP BY d.run_id, d.hour_s, u.payer
), spans AS (
    SELECT d.run_id, d.hour_s,
           range_agg(int8range(greatest(u.start_ms, 1000 * d.from_s),
                               least(u.end_ms, 1000 * d.until_s))) AS busy
      FROM due d
      JOIN slicewise.usage_records u
        ON (u.array_job_id, u.index, u.run_start_s, u.end_ms / 3600000 * 3600)
           = (d.array_job_id, d.index, d.start_s, d.hour_s)
           AND u.end_ms >= (SELECT 1000 * min(hour_s) FROM due)
           AND u.end_ms < (SELECT 1000 * (max(hour_s) + 3600) FROM due)
           AND split_part(u.service, '/', 1) = d.owner
           AND u.start_ms < 1000 * d.until_s AND u.end_ms > 1000 * d.from_s
           AND u.start_ms < u.end_ms
      JOIN slicewise.usage_gateways w ON w.id = u.gateway_id AND w.cluster = :cluster
     GROUP BY d.run_id, d.hour_s
)
SELECT d.run_id, d.hour_s, coalesce(t.requests, 0)::bigint AS requests, t.tokens,
       (SELECT coalesce(sum(upper(span) - lower(span)), 0)::bigint FROM unnest(s.busy) AS span)
       AS busy_ms,
       (SELECT jsonb_agg(jsonb_build_array(e.tenant, e.part, e.amount,
                                           coalesce(e.payer, e.tenant)))
          FROM slicewise.share_entries e
         WHERE (e.run_id, e.hour_s) = (d.run_id, d.hour_s)) AS booked
  FROM due d
  LEFT JOIN (SELECT run_id, hour_s, sum(requests) AS requests,
                    jsonb_object_agg(payer, jsonb_build_array(prompts, cached, outputs)) AS tokens
               FROM tokens GROUP BY run_id, hour_s) AS t
    ON (t.run_id, t.hour_s) = (d.run_id, d.hour_s)
  LEFT JOIN spans s ON (s.run_id, s.hour_s) = (d.run_id, d.hour_s)
"""
"""What was used in the hours of ``:due``, and what is booked of them."""

LINES = """
SELECT * FROM (
    SELECT extract(epoch FROM day::timestamp AT TIME ZONE :zone)::bigint AS start_s,
           to_char(day, 'YYYY-MM-DD') AS day, tenant, payer, service, sum(shared)::bigint,
           sum(relieved)::bigint, sum(requests)::bigint, sum(prompt_tokens)::bigint,
           sum(cached_prompt_tokens)::bigint, sum(output_tokens)::bigint,
           sum(pooled)::bigint
      FROM slicewise.statement_shares s
     WHERE cluster = :cluster AND (CAST(:tenant AS text) IS NULL OR :tenant IN (tenant, payer))
       AND (CAST(:tenants AS text[]) IS NULL OR tenant = ANY (:tenants))
       AND s.day >= CAST(to_timestamp(:since_s) AT TIME ZONE :zone AS date)
     GROUP BY s.day, tenant, payer, service) AS lines
 WHERE start_s >= :since_s AND (CAST(:until_s AS bigint) IS NULL OR start_s < :until_s)
   AND (start_s, tenant COLLATE "C", payer COLLATE "C", service COLLATE "C")
       > (:after_s, :after_tenant, :after_payer, :after_service)
 ORDER BY start_s, tenant COLLATE "C", payer COLLATE "C", service COLLATE "C"
 LIMIT :most
"""
"""A page of shares by the day, for ``ShareLine``."""

PAID_SINCE = """
SELECT coalesce(sum(amount), 0)::bigint
  FROM (SELECT e.amount FROM slicewise.share_entries e
          JOIN slicewise.runs r ON r.id = e.run_id AND r.cluster = :cluster
         WHERE coalesce(e.payer, e.tenant) = :payer AND e.tenant <> r.tenant
           AND e.recorded_at >= to_timestamp(:since_s)
         UNION ALL
        SELECT -e.amount FROM slicewise.share_entries e
          JOIN slicewise.runs r ON r.id = e.run_id AND r.cluster = :cluster
         WHERE coalesce(r.payer, r.tenant) = :payer AND e.tenant <> r.tenant
           AND e.recorded_at >= to_timestamp(:since_s)) AS parts
"""
"""What shares have cost a budget since then, less what others took of the runs that it pays for."""

SETTING = "SELECT set_config('enable_nestloop', 'off', true), set_config('jit', 'off', true)"
"""For ``USES``: the planner expects few hours, and would read all records again for each."""
