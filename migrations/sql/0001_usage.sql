CREATE TABLE slicewise.usage_gateways (
    id integer GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_usage_gateways PRIMARY KEY,
    cluster text NOT NULL,
    boot text NOT NULL,
    CONSTRAINT uq_usage_gateways_boot UNIQUE (cluster, boot)
);
COMMENT ON TABLE slicewise.usage_gateways
    IS 'Each process of a gateway that has numbered requests; append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.usage_gateways
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

-- A run's columns are 0 where no replica had the request, so that they can be in a key.
CREATE TABLE slicewise.usage_records (
    gateway_id integer,
    number bigint,
    payer text NOT NULL,
    person text NOT NULL,
    key_id text NOT NULL,
    service text NOT NULL,
    array_job_id bigint NOT NULL,
    index bigint NOT NULL,
    run_start_s bigint NOT NULL,
    start_ms bigint NOT NULL,
    end_ms bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    first_token_ms bigint,
    outcome text NOT NULL,
    CONSTRAINT pk_usage_records PRIMARY KEY (gateway_id, number),
    CONSTRAINT ck_usage_records_tokens_in_range CHECK (
        cached_prompt_tokens BETWEEN 0 AND prompt_tokens AND prompt_tokens <= 2147483647
        AND output_tokens BETWEEN 0 AND 2147483647)
);
-- Records come nearly in the order of their ends.
CREATE INDEX ix_usage_records_end ON slicewise.usage_records
    USING brin (end_ms) WITH (pages_per_range = 16, autosummarize = on);
COMMENT ON TABLE slicewise.usage_records
    IS 'What each request used, once for its gateway and number. Old ones are deleted.';
CREATE TRIGGER append_only BEFORE TRUNCATE ON slicewise.usage_records
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER only_persons_are_forgotten BEFORE UPDATE ON slicewise.usage_records
    FOR EACH ROW WHEN (
        (NEW.gateway_id, NEW.number, NEW.payer, NEW.service, NEW.array_job_id, NEW.index,
         NEW.run_start_s, NEW.start_ms, NEW.end_ms, NEW.prompt_tokens, NEW.cached_prompt_tokens,
         NEW.output_tokens, NEW.first_token_ms, NEW.outcome, '-', '-')
        IS DISTINCT FROM
        (OLD.gateway_id, OLD.number, OLD.payer, OLD.service, OLD.array_job_id, OLD.index,
         OLD.run_start_s, OLD.start_ms, OLD.end_ms, OLD.prompt_tokens, OLD.cached_prompt_tokens,
         OLD.output_tokens, OLD.first_token_ms, OLD.outcome, NEW.person, NEW.key_id))
    EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON slicewise.usage_records
    FOR EACH ROW WHEN (OLD.end_ms > (extract(epoch FROM now() - interval '90 days') * 1000)::bigint)
    EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.usage_hours (
    cluster text,
    hour_s bigint,
    service text,
    array_job_id bigint,
    index bigint,
    run_start_s bigint,
    payer text,
    person text,
    key_id text,
    requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    first_tokens bigint NOT NULL,
    first_token_ms bigint NOT NULL,
    CONSTRAINT pk_usage_hours PRIMARY KEY (
        cluster, hour_s, payer, person, key_id, service, array_job_id, index, run_start_s)
) WITH (fillfactor = 70);
CREATE INDEX ix_usage_hours_run
    ON slicewise.usage_hours (cluster, array_job_id, index, run_start_s);
COMMENT ON TABLE slicewise.usage_hours
    IS 'Sums of usage records by the hour of their ends. Changed by functions alone.';

CREATE TABLE slicewise.usage_months (
    cluster text,
    month date,
    payer text,
    person text,
    key_id text,
    tokens bigint NOT NULL,
    CONSTRAINT pk_usage_months PRIMARY KEY (cluster, month, payer, person, key_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE slicewise.usage_months
    IS 'Prompt and output tokens by the month of their ends, for limits. Changed by functions alone.';

CREATE TABLE slicewise.allowances (
    gateway_id integer,
    tenant text,
    person text,
    key_id text,
    tokens bigint NOT NULL CONSTRAINT ck_allowances_tokens_not_negative CHECK (tokens >= 0),
    expires_s double precision NOT NULL,
    CONSTRAINT pk_allowances PRIMARY KEY (gateway_id, tenant, person, key_id)
) WITH (fillfactor = 50);
COMMENT ON TABLE slicewise.allowances
    IS 'Tokens set aside for a gateway, of a subject that has a limit, until they expire. Overwritten.';

CREATE TABLE slicewise.engine_counters (
    cluster text,
    array_job_id bigint,
    index bigint,
    run_start_s bigint,
    service text NOT NULL,
    prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    counts_cached boolean NOT NULL,
    seen_at timestamptz NOT NULL,
    CONSTRAINT pk_engine_counters PRIMARY KEY (cluster, array_job_id, index, run_start_s)
);
CREATE INDEX ix_engine_counters_seen ON slicewise.engine_counters (cluster, seen_at);
COMMENT ON TABLE slicewise.engine_counters
    IS 'What the engine of each run has counted since its start, as last seen, with tokens of its cache or without. Overwritten.';

-- As cluster/language/meters.py declares them; ``use_tokens`` says in this order what a record has of
-- each.
CREATE FUNCTION slicewise.usage_meters() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY['prompt-tokens', 'cached-prompt-tokens', 'output-tokens', 'tokens', 'requests'];
$$;

-- Books a batch: {cluster, boot, zone, records, budgets}. Returns the numbers of the records that are new; whatever
-- was booked before changes nothing. ``budgets`` says whose budget of tokens pays for a payer, if not its own. For each
-- payer and meter there is one transfer, of the payer's one run on that meter (and budget), straight from what is available: what was held of it is an allowance's
-- matter. Rows are locked in one order everywhere: accounts, records, hours, balances, each by its key.
CREATE FUNCTION slicewise.post_usage(batch jsonb) RETURNS bigint[] LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    of_cluster text := batch ->> 'cluster';
    of_boot text := batch ->> 'boot';
    of_gateway integer;
    fresh slicewise.usage_records[];
BEGIN
    LOCK TABLE slicewise.seals IN ROW EXCLUSIVE MODE;
    LOOP
        SELECT g.id INTO of_gateway FROM slicewise.usage_gateways g
         WHERE g.cluster = of_cluster AND g.boot = of_boot;
        EXIT WHEN FOUND;
        INSERT INTO slicewise.usage_gateways (cluster, boot) VALUES (of_cluster, of_boot)
            ON CONFLICT DO NOTHING;
    END LOOP;
    -- Before anything is locked: who waits for another's new account must hold nothing.
    PERFORM slicewise.open_usage(of_cluster, ARRAY(
        SELECT DISTINCT n.name
          FROM jsonb_to_recordset(batch -> 'records') AS x (payer text)
         CROSS JOIN LATERAL (VALUES (x.payer), (batch -> 'budgets' ->> x.payer)) AS n (name)
         WHERE n.name IS NOT NULL));

    WITH booked AS (
        INSERT INTO slicewise.usage_records AS r
        SELECT of_gateway, x.number, x.payer, x.person, x.key_id, x.service,
               coalesce(x.array_job_id, 0), coalesce(x.index, 0), coalesce(x.run_start_s, 0),
               x.start_ms, x.end_ms, x.prompt_tokens, x.cached_prompt_tokens, x.output_tokens,
               x.first_token_ms, x.outcome
          FROM jsonb_to_recordset(batch -> 'records') AS x (
               number bigint, payer text, person text, key_id text, service text,
               array_job_id bigint, index bigint, run_start_s bigint, start_ms bigint,
               end_ms bigint, prompt_tokens bigint, cached_prompt_tokens bigint,
               output_tokens bigint, first_token_ms bigint, outcome text)
         ORDER BY x.number
            ON CONFLICT DO NOTHING
        RETURNING r
    )
    SELECT array_agg(r) INTO fresh FROM booked;
    IF fresh IS NULL THEN
        RETURN '{}';
    END IF;

    INSERT INTO slicewise.usage_hours AS h (
           cluster, hour_s, payer, person, key_id, service, array_job_id, index, run_start_s,
           requests, prompt_tokens, cached_prompt_tokens, output_tokens, first_tokens,
           first_token_ms)
    SELECT of_cluster, f.end_ms / 3600000 * 3600, f.payer, f.person, f.key_id, f.service,
           f.array_job_id, f.index, f.run_start_s, count(*), sum(f.prompt_tokens),
           sum(f.cached_prompt_tokens), sum(f.output_tokens), count(f.first_token_ms),
           coalesce(sum(f.first_token_ms), 0)
      FROM unnest(fresh) AS f
     GROUP BY 2, 3, 4, 5, 6, 7, 8, 9
     ORDER BY 2, 3, 4, 5, 6, 7, 8, 9
        ON CONFLICT ON CONSTRAINT pk_usage_hours DO UPDATE
       SET requests = h.requests + excluded.requests,
           prompt_tokens = h.prompt_tokens + excluded.prompt_tokens,
           cached_prompt_tokens = h.cached_prompt_tokens + excluded.cached_prompt_tokens,
           output_tokens = h.output_tokens + excluded.output_tokens,
           first_tokens = h.first_tokens + excluded.first_tokens,
           first_token_ms = h.first_token_ms + excluded.first_token_ms;

    INSERT INTO slicewise.usage_months AS m
    SELECT of_cluster,
           date_trunc('month', to_timestamp(f.end_ms / 1000) AT TIME ZONE (batch ->> 'zone'))::date,
           f.payer, f.person, f.key_id, sum(f.prompt_tokens + f.output_tokens)
      FROM unnest(fresh) AS f GROUP BY 2, 3, 4, 5 ORDER BY 2, 3, 4, 5
        ON CONFLICT ON CONSTRAINT pk_usage_months DO UPDATE SET tokens = m.tokens + excluded.tokens;

    PERFORM slicewise.use_tokens(of_cluster, fresh, batch -> 'budgets');
    PERFORM slicewise.post_of_allowances(of_gateway, fresh);
    RETURN ARRAY(SELECT f.number FROM unnest(fresh) AS f ORDER BY 1);
END $$;

-- What is posted is set aside no more.
CREATE FUNCTION slicewise.post_of_allowances(of_gateway integer, fresh slicewise.usage_records[])
    RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM slicewise.allowances a WHERE a.gateway_id = of_gateway
      ORDER BY a.tenant, a.person, a.key_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE slicewise.allowances a SET tokens = greatest(0, a.tokens - p.tokens)
      FROM (SELECT f.payer, coalesce(f.person, '') AS person, coalesce(f.key_id, '') AS key_id,
                   sum(f.prompt_tokens + f.output_tokens)::bigint AS tokens
              FROM unnest(fresh) AS f
             GROUP BY GROUPING SETS ((f.payer), (f.payer, f.person), (f.payer, f.key_id))) AS p
     WHERE a.gateway_id = of_gateway
       AND (a.tenant, a.person, a.key_id) = (p.payer, p.person, p.key_id);
END $$;

-- The accounts of each of these tenants on each meter of usage.
CREATE FUNCTION slicewise.open_usage(of_cluster text, payers text[]) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing text[];
BEGIN
    SELECT array_agg(p.payer ORDER BY p.payer) INTO missing FROM unnest(payers) AS p (payer)
     WHERE cardinality(slicewise.usage_meters()) <> (
           SELECT count(*) FROM slicewise.accounts a
            WHERE a.cluster = of_cluster AND a.tenant = p.payer AND a.kind = 'used'
              AND a.meter = ANY (slicewise.usage_meters()));
    IF missing IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO slicewise.accounts (cluster, tenant, meter, kind)
    SELECT of_cluster, p.payer, m.meter, k.kind
      FROM unnest(missing) AS p (payer)
     CROSS JOIN unnest(slicewise.usage_meters()) AS m (meter)
     CROSS JOIN (VALUES ('available'), ('used')) AS k (kind)
     ORDER BY 2, 3, 4
        ON CONFLICT DO NOTHING;
END $$;

-- It does what the trigger on transfers does, as ``book`` does: its accounts are right by its joins.
CREATE FUNCTION slicewise.use_tokens(
    of_cluster text, fresh slicewise.usage_records[], budgets jsonb)
    RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    used slicewise.transfers[];
BEGIN
    SELECT array_agg(ROW(NULL, NULL, NULL, 'use', a.id, u.id, s.amount, s.until_s, NULL, NULL, NULL)
                     ::slicewise.transfers)
      INTO used
      FROM (SELECT f.payer, max(f.end_ms) / 1000 AS until_s,
                   ARRAY[sum(f.prompt_tokens), sum(f.cached_prompt_tokens), sum(f.output_tokens),
                         sum(f.prompt_tokens + f.output_tokens), count(*)]::bigint[] AS amounts
              FROM unnest(fresh) AS f GROUP BY f.payer) AS of_payer
     CROSS JOIN LATERAL (
           SELECT x.meter, x.amount, of_payer.until_s
             FROM unnest(slicewise.usage_meters(), of_payer.amounts) AS x (meter, amount)
            WHERE x.amount > 0) AS s
      JOIN slicewise.accounts u ON u.cluster = of_cluster AND u.tenant = of_payer.payer
           AND u.meter = s.meter AND u.kind = 'used'
      JOIN slicewise.accounts a ON a.cluster = of_cluster AND a.meter = s.meter
           AND a.kind = 'available' AND a.tenant = CASE s.meter
               WHEN 'tokens' THEN coalesce(budgets ->> of_payer.payer, of_payer.payer)
               ELSE of_payer.payer END;
    -- A run's number is that of the account, which no other has; its start tells whose budget pays.
    INSERT INTO slicewise.runs (cluster, meter, job_id, start_s, tenant, payer, user_name, task, gres,
                                cost_millislices)
    SELECT u.cluster, u.meter, u.id, n.start_s, u.tenant, nullif(a.tenant, u.tenant), '-', 'usage', '{}', 0
      FROM unnest(used) AS t
      JOIN slicewise.accounts u ON u.id = t.credit_account_id
      JOIN slicewise.accounts a ON a.id = t.debit_account_id
     CROSS JOIN LATERAL (SELECT CASE a.tenant WHEN u.tenant THEN 0 ELSE a.id END) AS n (start_s)
     WHERE NOT EXISTS (SELECT FROM slicewise.runs r
                        WHERE (r.cluster, r.meter, r.job_id, r.start_s)
                              = (u.cluster, u.meter, u.id, n.start_s))
     ORDER BY u.id
        ON CONFLICT DO NOTHING;

    -- Who has the balances may number their run's transfers.
    PERFORM FROM slicewise.balances b
      WHERE b.account_id IN (SELECT debit_account_id FROM unnest(used)
                              UNION ALL SELECT credit_account_id FROM unnest(used))
      ORDER BY b.account_id FOR UPDATE;
    PERFORM set_config('slicewise.booking', 'on', true);
    INSERT INTO slicewise.transfers
           (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
    SELECT r.id, 1 + coalesce((SELECT max(b.number) FROM slicewise.transfers b
                                WHERE b.run_id = r.id), 0),
           t.kind, t.debit_account_id, t.credit_account_id, t.amount, t.until_s
      FROM unnest(used) AS t
      JOIN slicewise.accounts u ON u.id = t.credit_account_id
      JOIN slicewise.accounts a ON a.id = t.debit_account_id
      JOIN slicewise.runs r ON r.cluster = u.cluster AND r.meter = u.meter AND r.job_id = u.id
           AND r.start_s = CASE a.tenant WHEN u.tenant THEN 0 ELSE a.id END
     ORDER BY t.credit_account_id;
    PERFORM set_config('slicewise.booking', 'off', true);
    UPDATE slicewise.balances b SET debits = b.debits + t.amount
      FROM (SELECT x.debit_account_id, sum(x.amount)::bigint AS amount
              FROM unnest(used) AS x GROUP BY 1) AS t
     WHERE b.account_id = t.debit_account_id;
    UPDATE slicewise.balances b SET credits = b.credits + t.amount
      FROM unnest(used) AS t WHERE b.account_id = t.credit_account_id;
END $$;

-- Of each run the largest that was seen is kept: an engine's counters only rise.
CREATE FUNCTION slicewise.note_engine_counters(of_cluster text, counted jsonb) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO slicewise.engine_counters AS c (cluster, array_job_id, index, run_start_s, service,
                                                prompt_tokens, output_tokens, counts_cached,
                                                seen_at)
    SELECT of_cluster, x.array_job_id, x.index, x.run_start_s, min(x.service),
           max(x.prompt_tokens), max(x.output_tokens), bool_and(x.counts_cached),
           least(to_timestamp(min(x.seen_s)), now())
      FROM jsonb_to_recordset(counted) AS x (
           array_job_id bigint, index bigint, run_start_s bigint, service text,
           prompt_tokens bigint, output_tokens bigint, counts_cached boolean,
           seen_s double precision)
     GROUP BY 2, 3, 4 ORDER BY 2, 3, 4
        ON CONFLICT ON CONSTRAINT pk_engine_counters DO UPDATE
       SET prompt_tokens = greatest(c.prompt_tokens, excluded.prompt_tokens),
           output_tokens = greatest(c.output_tokens, excluded.output_tokens),
           seen_at = greatest(c.seen_at, excluded.seen_at)
     WHERE excluded.prompt_tokens >= c.prompt_tokens
       AND excluded.output_tokens >= c.output_tokens;
$$;

-- Deletes that many records that ended before; returns how many.
CREATE FUNCTION slicewise.forget_usage(of_cluster text, before_ms bigint, most integer)
    RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten integer;
BEGIN
    DELETE FROM slicewise.usage_records r
     WHERE r.ctid = ANY (ARRAY(
           SELECT o.ctid FROM slicewise.usage_records o
             JOIN slicewise.usage_gateways g ON g.id = o.gateway_id AND g.cluster = of_cluster
            WHERE o.end_ms < least(before_ms,
                      (extract(epoch FROM now() - interval '90 days') * 1000)::bigint)
            LIMIT most));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;

-- Puts '-' in the place of a person's name and keys, in one tenant or in all (NULL). Every sum stays.
CREATE FUNCTION slicewise.forget_person(of_cluster text, of_payer text, of_person text)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten bigint;
BEGIN
    -- Who posts waits: a record of the person that is under way would stay.
    LOCK TABLE slicewise.usage_records IN SHARE ROW EXCLUSIVE MODE;
    UPDATE slicewise.usage_records r SET person = '-', key_id = '-'
      FROM slicewise.usage_gateways g
     WHERE g.id = r.gateway_id AND g.cluster = of_cluster AND r.person = of_person
       AND r.payer = coalesce(of_payer, r.payer) AND of_person <> '-';
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    WITH gone AS (
        DELETE FROM slicewise.usage_hours h
         WHERE h.cluster = of_cluster AND h.person = of_person AND of_person <> '-'
           AND h.payer = coalesce(of_payer, h.payer)
        RETURNING h.*
    )
    INSERT INTO slicewise.usage_hours AS h (
           cluster, hour_s, payer, person, key_id, service, array_job_id, index, run_start_s,
           requests, prompt_tokens, cached_prompt_tokens, output_tokens, first_tokens,
           first_token_ms)
    SELECT cluster, hour_s, payer, '-', '-', service, array_job_id, index, run_start_s,
           sum(requests), sum(prompt_tokens), sum(cached_prompt_tokens), sum(output_tokens),
           sum(first_tokens), sum(first_token_ms)
      FROM gone GROUP BY 1, 2, 3, 6, 7, 8, 9
        ON CONFLICT ON CONSTRAINT pk_usage_hours DO UPDATE
       SET requests = h.requests + excluded.requests,
           prompt_tokens = h.prompt_tokens + excluded.prompt_tokens,
           cached_prompt_tokens = h.cached_prompt_tokens + excluded.cached_prompt_tokens,
           output_tokens = h.output_tokens + excluded.output_tokens,
           first_tokens = h.first_tokens + excluded.first_tokens,
           first_token_ms = h.first_token_ms + excluded.first_token_ms;
    WITH gone AS (
        DELETE FROM slicewise.usage_months m
         WHERE m.cluster = of_cluster AND m.person = of_person AND of_person <> '-'
           AND m.payer = coalesce(of_payer, m.payer)
        RETURNING m.*
    )
    INSERT INTO slicewise.usage_months AS m
    SELECT cluster, month, payer, '-', '-', sum(tokens) FROM gone GROUP BY 1, 2, 3
        ON CONFLICT ON CONSTRAINT pk_usage_months DO UPDATE SET tokens = m.tokens + excluded.tokens;
    RETURN forgotten;
END $$;
