"""SQL that compares what requests used with its sums, transfers, and engines' own counters."""

_HOURS = """
WITH posted AS (
    SELECT h.cluster, h.payer, m.meter, m.amount
      FROM (SELECT cluster, payer, sum(prompt_tokens) AS prompts,
                   sum(cached_prompt_tokens) AS cached, sum(output_tokens) AS outputs,
                   sum(requests) AS requests
              FROM slicewise.usage_hours GROUP BY 1, 2) AS h
     CROSS JOIN LATERAL (VALUES ('prompt-tokens', prompts), ('cached-prompt-tokens', cached),
                                ('output-tokens', outputs), ('tokens', prompts + outputs),
                                ('requests', requests)) AS m (meter, amount)
), used AS (
    SELECT u.cluster, u.tenant AS payer, u.meter, sum(t.amount) AS amount
      FROM slicewise.transfers t JOIN slicewise.accounts u ON u.id = t.credit_account_id
     WHERE t.kind = 'use' GROUP BY 1, 2, 3
), differences AS (
    SELECT cluster, payer, meter, coalesce(p.amount, 0) AS posted, coalesce(u.amount, 0) AS used
      FROM posted p FULL JOIN used u USING (cluster, payer, meter)
)
SELECT count(*) AS seen, coalesce(sum(abs(posted - used)), 0) AS difference,
       (array_agg(format('usage of %s on %s, %s: its hours have %s, its transfers %s',
                         payer, cluster, meter, posted, used))
        FILTER (WHERE posted <> used))[1:10] AS faults
  FROM differences
"""
"""What a payer's transfers say that it used is what the sums by the hour say."""

_RECORDS = """
WITH kept AS (
    SELECT g.cluster, r.end_ms / 3600000 * 3600 AS hour_s, r.day, r.payer, r.service,
           r.array_job_id, r.index, r.run_start_s, count(*) AS requests,
           sum(r.prompt_tokens) AS prompt_tokens,
           sum(r.cached_prompt_tokens) AS cached_prompt_tokens,
           sum(r.output_tokens) AS output_tokens
      FROM slicewise.usage_records r
      LEFT JOIN slicewise.usage_gateways g ON g.id = r.gateway_id
     GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
), differences AS (
    SELECT cluster, hour_s, payer, service, coalesce(k.requests, 0) AS kept,
           coalesce(h.requests, 0) AS requests,
           (k.requests, k.prompt_tokens, k.cached_prompt_tokens, k.output_tokens)
           IS DISTINCT FROM
           (h.requests, h.prompt_tokens, h.cached_prompt_tokens, h.output_tokens)
           AND NOT (coalesce(k.requests, 0) < coalesce(h.requests, 0)
                    AND hour_s < extract(epoch FROM now() - interval '90 days')) AS differs
      FROM kept k FULL JOIN slicewise.usage_hours h
     USING (cluster, hour_s, day, payer, service, array_job_id, index, run_start_s)
)
SELECT count(*) AS seen, count(*) FILTER (WHERE differs) AS difference,
       (array_agg(format('usage of %s in the hour of %s of %s on %s: its records are %s requests, '
                         'the sum says %s, or their tokens differ',
                         service, hour_s, payer, cluster, kept, requests))
        FILTER (WHERE differs))[1:10] AS faults
  FROM differences
"""
"""Each sum by the hour is that over its records, of which no young one is ever deleted."""

_PERSONS = """
WITH kept AS (
    SELECT g.cluster, r.day, r.payer, r.person, r.key_id, r.service, count(*) AS requests,
           sum(r.prompt_tokens) AS prompt_tokens,
           sum(r.cached_prompt_tokens) AS cached_prompt_tokens,
           sum(r.output_tokens) AS output_tokens, count(r.first_token_ms) AS first_tokens,
           coalesce(sum(r.first_token_ms), 0) AS first_token_ms
      FROM slicewise.usage_records r
      LEFT JOIN slicewise.usage_gateways g ON g.id = r.gateway_id
     GROUP BY 1, 2, 3, 4, 5, 6
), differences AS (
    SELECT cluster, day, payer, service, coalesce(k.requests, 0) AS kept,
           coalesce(d.requests, 0) AS requests,
           (k.requests, k.prompt_tokens, k.cached_prompt_tokens, k.output_tokens, k.first_tokens,
            k.first_token_ms)
           IS DISTINCT FROM
           (d.requests, d.prompt_tokens, d.cached_prompt_tokens, d.output_tokens, d.first_tokens,
            d.first_token_ms)
           AND NOT (coalesce(k.requests, 0) < coalesce(d.requests, 0)
                    AND day < now() - interval '90 days') AS differs
      FROM kept k FULL JOIN slicewise.usage_days d
     USING (cluster, day, payer, person, key_id, service)
)
SELECT count(*) AS seen, count(*) FILTER (WHERE differs) AS difference,
       (array_agg(format('usage of a person or key of %s on %s, %s, of %s: its records are %s '
                         'requests, the sum says %s, or their tokens differ',
                         payer, cluster, day, service, kept, requests))
        FILTER (WHERE differs))[1:10] AS faults
  FROM differences
"""
"""Each sum by the day is that over its records."""

_DAYS = """
WITH hours AS (
    SELECT cluster, day, payer, service, sum(requests) AS requests, sum(prompt_tokens) AS prompts,
           sum(cached_prompt_tokens) AS cached, sum(output_tokens) AS outputs
      FROM slicewise.usage_hours GROUP BY 1, 2, 3, 4
), days AS (
    SELECT cluster, day, payer, service, sum(requests) AS requests, sum(prompt_tokens) AS prompts,
           sum(cached_prompt_tokens) AS cached, sum(output_tokens) AS outputs
      FROM slicewise.usage_days GROUP BY 1, 2, 3, 4
), differences AS (
    SELECT cluster, day, payer, service,
           (h.requests, h.prompts, h.cached, h.outputs)
           IS DISTINCT FROM (d.requests, d.prompts, d.cached, d.outputs) AS differs
      FROM hours h FULL JOIN days d USING (cluster, day, payer, service)
)
SELECT count(*) AS seen, count(*) FILTER (WHERE differs) AS difference,
       (array_agg(format('usage of %s of %s on %s, %s: the sums of its hours and of its persons '
                         'differ', service, payer, cluster, day))
        FILTER (WHERE differs))[1:10] AS faults
  FROM differences
"""
"""For ever the sums by person are those by run, day by day."""

_RUNS = """
WITH hours AS (
    SELECT cluster, array_job_id, index, run_start_s, sum(prompt_tokens) AS prompts,
           sum(cached_prompt_tokens) AS cached, sum(output_tokens) AS outputs
      FROM slicewise.usage_hours GROUP BY 1, 2, 3, 4
), differences AS (
    SELECT cluster, array_job_id, index,
           abs(coalesce(h.prompts, 0) - coalesce(r.prompt_tokens, 0))
           + abs(coalesce(h.cached, 0) - coalesce(r.cached_prompt_tokens, 0))
           + abs(coalesce(h.outputs, 0) - coalesce(r.output_tokens, 0)) AS difference
      FROM hours h FULL JOIN slicewise.usage_runs r
     USING (cluster, array_job_id, index, run_start_s)
)
SELECT count(*) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(format('usage of run %s_%s on %s: its sum and its hours differ by %s tokens',
                         array_job_id, index, cluster, difference))
        FILTER (WHERE difference > 0))[1:10] AS faults
  FROM differences
"""

_ENGINES = """
WITH sums AS (
    SELECT c.cluster, c.array_job_id, c.index, c.run_start_s,
           coalesce(sum(r.prompt_tokens - CASE WHEN c.counts_cached THEN 0
                                               ELSE r.cached_prompt_tokens END), 0) AS prompts,
           coalesce(sum(r.output_tokens), 0) AS outputs
      FROM slicewise.engine_counters c
      JOIN slicewise.usage_gateways g ON g.cluster = c.cluster
      JOIN slicewise.usage_records r
        ON (r.gateway_id, r.array_job_id, r.index, r.run_start_s)
           = (g.id, c.array_job_id, c.index, c.run_start_s)
           AND r.end_ms < extract(epoch FROM c.seen_at - interval '1 minute') * 1000
     GROUP BY 1, 2, 3, 4
), posted AS (
    SELECT c.*, s.prompts, s.outputs,
           coalesce(greatest(s.prompts - c.prompt_tokens, 0)
                    + greatest(s.outputs - c.output_tokens, 0), 0) AS difference
      FROM slicewise.engine_counters c
      LEFT JOIN sums s USING (cluster, array_job_id, index, run_start_s)
)
SELECT count(*) AS seen, coalesce(sum(difference), 0) AS difference,
       (array_agg(format('%s_%s of %s on %s: %s prompt and %s output tokens are posted, and its '
                         'engine had counted %s and %s', array_job_id, index, service, cluster,
                         prompts, outputs, prompt_tokens, output_tokens))
        FILTER (WHERE difference > 0))[1:10] AS faults
  FROM posted
"""
"""No more is posted of a run than its engine had counted when it was seen, a minute later at the
earliest: what ended after that look the look can't have. Nor has an engine that counts prompts
without its cache what a record has of that."""

_MONTHS = """
WITH days AS (
    SELECT cluster, date_trunc('month', day)::date AS month, payer, person, key_id,
           sum(prompt_tokens + output_tokens) AS tokens
      FROM slicewise.usage_days GROUP BY 1, 2, 3, 4, 5
), differences AS (
    SELECT cluster, month, payer, coalesce(m.tokens, 0) AS posted, coalesce(d.tokens, 0) AS tokens
      FROM slicewise.usage_months m FULL JOIN days d USING (cluster, month, payer, person, key_id)
)
SELECT count(*) AS seen, coalesce(sum(abs(posted - tokens)), 0) AS difference,
       (array_agg(format('usage of a person or key of %s on %s: its month of %s has %s tokens, '
                         'its days %s', payer, cluster, month, posted, tokens))
        FILTER (WHERE posted <> tokens))[1:10] AS faults
  FROM differences
"""
"""The sums that limits look at are those by the day, month by month."""

CHECKS = (_HOURS, _RECORDS, _PERSONS, _DAYS, _RUNS, _ENGINES, _MONTHS)
