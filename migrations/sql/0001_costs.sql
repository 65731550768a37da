-- What of a tenant's part of a busy hour is a person's and a key's: by the weight of their tokens,
-- largest remainder, equal ones by name. What of an idle hour a tenant bears is nobody's. Filters
-- on cluster, hour and payer reach usage_hours: each window is within one of them.
CREATE VIEW slicewise.usage_costs AS
SELECT cluster, hour_s, service, array_job_id, index, run_start_s, payer, person, key_id, requests,
       prompt_tokens, cached_prompt_tokens, output_tokens, first_tokens, first_token_ms,
       coalesce(part + (place <= amount - sum(part) OVER payers)::int, 0)::bigint
       AS millislice_s
  FROM (SELECT *, row_number() OVER (payers ORDER BY rest DESC, person COLLATE "C",
                                     key_id COLLATE "C") AS place
          FROM (SELECT *, div(amount * weight, nullif(sum(weight) OVER payers, 0)) AS part,
                       mod(amount * weight, nullif(sum(weight) OVER payers, 0)) AS rest
                  FROM (SELECT u.*,
                               (u.prompt_tokens - u.cached_prompt_tokens)::numeric
                               * (h.weights ->> 'prompt')::bigint
                               + u.cached_prompt_tokens::numeric
                               * (h.weights ->> 'cached_prompt')::bigint
                               + u.output_tokens::numeric * (h.weights ->> 'output')::bigint
                               AS weight,
                               (SELECT sum(e.amount) FROM slicewise.share_entries e
                                 WHERE (e.run_id, e.hour_s, e.tenant, e.part)
                                       = (h.run_id, h.hour_s, u.payer, 'tokens')) AS amount
                          FROM slicewise.usage_hours u
                          LEFT JOIN slicewise.runs r
                            ON (r.cluster, r.meter, r.tenant, r.start_s, r.task)
                               = (u.cluster, 'slice-seconds', split_part(u.service, '/', 1),
                                  u.run_start_s, u.array_job_id || '_' || u.index)
                          LEFT JOIN slicewise.shared_hours h
                            ON (h.run_id, h.hour_s) = (r.id, u.hour_s)) AS weighed
                WINDOW payers AS (PARTITION BY cluster, hour_s, payer, service, array_job_id,
                                               index, run_start_s)) AS parts
        WINDOW payers AS (PARTITION BY cluster, hour_s, payer, service, array_job_id, index,
                                       run_start_s)) AS placed
WINDOW payers AS (PARTITION BY cluster, hour_s, payer, service, array_job_id, index, run_start_s)
 UNION ALL
SELECT r.cluster, e.hour_s,
       r.tenant || '/' || coalesce((SELECT g.name FROM slicewise.service_generations g
                                     WHERE g.cluster = r.cluster AND g.tenant = r.tenant
                                       AND g.array_job_id = substring(r.task, '^[0-9]{1,18}')::bigint
                                     ORDER BY g.id DESC LIMIT 1), '-'),
       substring(r.task, '^[0-9]{1,18}')::bigint, substring(r.task, '_([0-9]{1,18})$')::bigint,
       r.start_s, e.tenant, '-', '-', 0, 0, 0, 0, 0, 0, e.amount
  FROM slicewise.share_entries e
  JOIN slicewise.runs r ON r.id = e.run_id
 WHERE e.part = 'idle';
COMMENT ON VIEW slicewise.usage_costs
    IS 'Sums of usage by the hour, with what of the run''s hour each is charged, in millislice-seconds; and what of idle time tenants are.';
