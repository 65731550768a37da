-- What was used on a day, and beside it what tenants are charged of services' runs.
CREATE VIEW slicewise.usage_sums AS
SELECT cluster, day, service, payer, person, key_id, requests, prompt_tokens,
       cached_prompt_tokens, output_tokens, first_tokens, first_token_ms, 0::bigint AS millislice_s
  FROM slicewise.usage_days
 UNION ALL
SELECT cluster, day, service, tenant, '-', '-', 0, 0, 0, 0, 0, 0,
       token_millislice_s + idle_millislice_s
  FROM slicewise.share_days
 UNION ALL
SELECT cluster, day, service, tenant, '-', '-', 0, 0, 0, 0, 0, 0, usage_millislice_s
  FROM slicewise.pool_days WHERE usage_millislice_s <> 0;
COMMENT ON VIEW slicewise.usage_sums
    IS 'Sums of usage by the day, and what tenants are charged of services'' runs in millislice-seconds, divided among no persons.';

-- What of a tenant's part of a day's busy time is a person's and a key's: by the weight of their
-- tokens, largest remainder, equal ones by name. Of idle time, and of tokens that nobody has, what a
-- tenant is charged is nobody's. What services of a pool used of each other's replicas was busy time.
CREATE VIEW slicewise.usage_costs AS
WITH summed AS NOT MATERIALIZED (
    SELECT cluster, day, service, payer, sum(tokens) AS tokens, sum(idle) AS idle,
           coalesce((array_agg(weights ORDER BY place) FILTER (WHERE weights IS NOT NULL))[1],
                    '{"prompt": 1000, "cached_prompt": 100, "output": 2000}') AS weights
      FROM (SELECT cluster, day, service, tenant AS payer, token_millislice_s AS tokens,
                   idle_millislice_s AS idle, weights, (payer, owner_payer, replica_of, gpu_types) AS place
              FROM slicewise.share_days
             UNION ALL
            SELECT cluster, day, service, tenant, usage_millislice_s, 0, NULL, NULL
              FROM slicewise.pool_days WHERE usage_millislice_s <> 0) AS booked
     GROUP BY 1, 2, 3, 4
), charged AS NOT MATERIALIZED (
    SELECT cluster, day, service, payer, greatest(0, tokens) AS amount,
           idle + least(0, tokens) AS idle, weights
      FROM summed
), weighed AS (
    SELECT u.cluster, u.day, u.service, u.payer, u.person, u.key_id, u.requests, u.prompt_tokens,
           u.cached_prompt_tokens, u.output_tokens, u.first_tokens, u.first_token_ms,
           coalesce(c.amount, 0) AS amount, 0 AS idle, false AS is_rest,
           coalesce((u.prompt_tokens - u.cached_prompt_tokens)::numeric
                    * (c.weights ->> 'prompt')::bigint
                    + u.cached_prompt_tokens::numeric * (c.weights ->> 'cached_prompt')::bigint
                    + u.output_tokens::numeric * (c.weights ->> 'output')::bigint, 0) AS weight
      FROM slicewise.usage_days u
      LEFT JOIN charged c USING (cluster, day, service, payer)
     UNION ALL
    SELECT cluster, day, service, payer, '-', '-', 0, 0, 0, 0, 0, 0, amount, idle, true, 0
      FROM charged
), parts AS (
    SELECT *, sum(weight) OVER payers AS total,
           div(amount * weight, nullif(sum(weight) OVER payers, 0)) AS part,
           mod(amount * weight, nullif(sum(weight) OVER payers, 0)) AS rest
      FROM weighed WINDOW payers AS (PARTITION BY cluster, day, payer, service)
), placed AS (
    SELECT *, amount - sum(part) OVER payers AS left_over,
           row_number() OVER (PARTITION BY cluster, day, payer, service
                              ORDER BY rest DESC, person COLLATE "C", key_id COLLATE "C") AS place
      FROM parts WINDOW payers AS (PARTITION BY cluster, day, payer, service)
)
SELECT cluster, day, service, payer, person, key_id, requests, prompt_tokens,
       cached_prompt_tokens, output_tokens, first_tokens, first_token_ms,
       (idle + CASE WHEN total > 0 THEN part + (place <= left_over)::int
                    WHEN is_rest THEN amount ELSE 0 END)::bigint AS millislice_s
  FROM placed;
COMMENT ON VIEW slicewise.usage_costs
    IS 'Sums of usage by the day, with what each person and key is charged of services'' runs, in millislice-seconds.';

-- Of a share the tenant is charged, and the owner relieved; a tenant's tokens are its own matter, and
-- so is which of its services used a pool.
CREATE VIEW slicewise.statement_shares AS
SELECT cluster, day, tenant, payer, service, token_millislice_s + idle_millislice_s AS shared,
       0::bigint AS relieved, 0::bigint AS requests, 0::bigint AS prompt_tokens,
       0::bigint AS cached_prompt_tokens, 0::bigint AS output_tokens, 0::bigint AS pooled
  FROM slicewise.share_days WHERE tenant <> split_part(service, '/', 1)
 UNION ALL
SELECT cluster, day, split_part(service, '/', 1), owner_payer, replica_of, 0,
       token_millislice_s + idle_millislice_s, 0, 0, 0, 0, 0
  FROM slicewise.share_days WHERE tenant <> split_part(service, '/', 1)
 UNION ALL
SELECT cluster, day, payer, payer, service, 0, 0, requests, prompt_tokens, cached_prompt_tokens,
       output_tokens, 0
  FROM slicewise.usage_days
 UNION ALL
SELECT cluster, day, tenant, payer, service, 0, 0, 0, 0, 0, 0, millislice_s
  FROM slicewise.pool_days WHERE millislice_s <> 0;
COMMENT ON VIEW slicewise.statement_shares
    IS 'By the day: what tenants are charged and relieved of services'' runs, what their requests used, and what of a tenant''s is another service''s of a pool.';
