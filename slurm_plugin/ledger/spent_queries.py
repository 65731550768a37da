"""SQL that adds up what tenants used, by prices alone: for budgets in money."""

from slicewise.slurm_plugin.ledger.energy import filled

SLICES = filled("""
WITH RECENT_RUNS, held AS (
    SELECT r.tenant, r.gres, r.start_s, r.cost_millislices AS cost,
           CASE WHEN o.run_id IS NULL THEN b.used
                ELSE o.posted + least(o.reserved, greatest(0,
                     (:now_s - r.start_s) * r.cost_millislices - o.posted)) END AS used,
           CASE WHEN o.run_id IS NULL THEN b.waived ELSE 0 END AS waived
      FROM recent JOIN slicewise.runs r ON r.id = recent.run_id
      LEFT JOIN slicewise.open_reservations o ON o.run_id = r.id
     CROSS JOIN LATERAL (
           SELECT coalesce(sum(CASE t.kind WHEN 'post' THEN t.amount WHEN 'reverse' THEN -t.amount
                               END), 0)::bigint AS used,
                  coalesce(sum(t.amount) FILTER (WHERE t.kind = 'waive'), 0)::bigint AS waived,
                  (max(ARRAY[t.number, t.until_s]))[2] AS end_s
             FROM slicewise.transfers t WHERE t.run_id = r.id) AS b
     WHERE (r.cluster, r.meter) = (:cluster, 'slice-seconds') AND r.start_s < :until_s
       AND (o.run_id IS NOT NULL OR b.end_s >= :since_s)
), timed AS (
    SELECT *, (used + waived + cost - 1) / cost AS seconds FROM held WHERE used > 0
), parts AS (
    SELECT t.tenant, t.tenant AS owner, (CAST(:alike AS bigint[]))[place] AS alike_s, t.gres,
           div(used::numeric * last_s, seconds) - div(used::numeric * first_s, seconds) AS amount
      FROM timed t
     CROSS JOIN LATERAL generate_series(
           greatest(1, width_bucket(start_s, CAST(:bounds AS bigint[]))),
           least(cardinality(CAST(:alike AS bigint[])),
                 width_bucket(start_s + seconds - 1, CAST(:bounds AS bigint[])))) AS place
     CROSS JOIN LATERAL (
           SELECT greatest(0, (CAST(:bounds AS bigint[]))[place] - start_s) AS first_s,
                  least(seconds, (CAST(:bounds AS bigint[]))[place + 1] - start_s) AS last_s) AS cut
     UNION ALL
    SELECT x.tenant, r.tenant, e.alike_s, r.gres, x.amount
      FROM (SELECT run_id, tenant, sum(amount) AS amount,
                   (CAST(:alike AS bigint[]))[width_bucket(hour_s, CAST(:bounds AS bigint[]))]
                   AS alike_s
              FROM slicewise.share_entries WHERE hour_s >= :since_s AND hour_s < :until_s
             GROUP BY 1, 2, 4) AS e
      JOIN slicewise.runs r ON r.id = e.run_id
     CROSS JOIN LATERAL (VALUES (e.tenant, e.amount), (r.tenant, -e.amount)) AS x (tenant, amount)
     WHERE r.cluster = :cluster AND r.tenant <> e.tenant
)
SELECT alike_s, tenant, owner, gres, sum(amount)::bigint FROM parts GROUP BY 1, 2, 3, 4
""")
"""What tenants' runs used, and were charged and relieved of shares, as ``statement.pieces`` cuts
runs. ``:bounds`` are the begins of the spans of prices and the end of the last one, ``:alike`` says
of each which one it is like. Services of a pool cost their tenant nothing more."""

REQUESTS = """
SELECT d.alike_s, u.payer, sum(u.requests)::bigint, sum(u.prompt_tokens)::bigint,
       sum(u.cached_prompt_tokens)::bigint, sum(u.output_tokens)::bigint
  FROM unnest(CAST(:days AS date[]), CAST(:alike_days AS bigint[])) AS d (day, alike_s)
  JOIN slicewise.usage_days u ON u.cluster = :cluster AND u.day = d.day
 GROUP BY 1, 2
"""

ENERGY = filled("""
SUMMED_PARTS
SELECT d.alike_s, r.tenant, p.split <> 'alone', sum(p.energy_mj)::bigint
  FROM unnest(CAST(:days AS date[]), CAST(:alike_days AS bigint[])) AS d (day, alike_s)
  JOIN summed p ON p.day = d.day AND IS_CHARGED
 CROSS JOIN LATERAL (RUN_OF_JOB) AS r
 GROUP BY 1, 2, 3
""")
