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
    day date NOT NULL,
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
        (NEW.gateway_id, NEW.day, NEW.number, NEW.payer, NEW.service, NEW.array_job_id, NEW.index,
         NEW.run_start_s, NEW.start_ms, NEW.end_ms, NEW.prompt_tokens, NEW.cached_prompt_tokens,
         NEW.output_tokens, NEW.first_token_ms, NEW.outcome, '-', '-')
        IS DISTINCT FROM
        (OLD.gateway_id, OLD.day, OLD.number, OLD.payer, OLD.service, OLD.array_job_id, OLD.index,
         OLD.run_start_s, OLD.start_ms, OLD.end_ms, OLD.prompt_tokens, OLD.cached_prompt_tokens,
         OLD.output_tokens, OLD.first_token_ms, OLD.outcome, NEW.person, NEW.key_id))
    EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON slicewise.usage_records
    FOR EACH ROW WHEN (OLD.end_ms > (extract(epoch FROM now() - interval '90 days') * 1000)::bigint)
    EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.usage_hours (
    cluster text,
    hour_s bigint,
    day date,
    payer text,
    service text,
    array_job_id bigint,
    index bigint,
    run_start_s bigint,
    requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    CONSTRAINT pk_usage_hours PRIMARY KEY (
        cluster, hour_s, day, payer, service, array_job_id, index, run_start_s)
) WITH (fillfactor = 70);
COMMENT ON TABLE slicewise.usage_hours
    IS 'Sums of usage records by run and the hour of their ends. Changed by functions alone.';

CREATE TABLE slicewise.usage_runs (
    cluster text,
    array_job_id bigint,
    index bigint,
    run_start_s bigint,
    prompt_tokens bigint NOT NULL,
    cached_prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    CONSTRAINT pk_usage_runs PRIMARY KEY (cluster, array_job_id, index, run_start_s)
) WITH (fillfactor = 70);
COMMENT ON TABLE slicewise.usage_runs
    IS 'Sums of usage records by run, beside what its engine counted. Changed by functions alone.';

CREATE TABLE slicewise.usage_days (
    cluster text,
    day date,
    payer text,
    person text,
    key_id text,
    service text,
    requests bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_prompt_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    first_tokens bigint NOT NULL,
    first_token_ms bigint NOT NULL,
    CONSTRAINT pk_usage_days PRIMARY KEY (cluster, day, payer, person, key_id, service)
) WITH (fillfactor = 70);
CREATE INDEX ix_usage_days_person ON slicewise.usage_days (cluster, person, day);
COMMENT ON TABLE slicewise.usage_days
    IS 'Sums of usage records by person, key and the day of their ends. Changed by functions alone.';

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

CREATE TABLE slicewise.forgotten_persons (
    cluster text,
    person bytea,
    payer text,
    before_ms bigint NOT NULL,
    CONSTRAINT pk_forgotten_persons PRIMARY KEY (cluster, person, payer)
);
COMMENT ON TABLE slicewise.forgotten_persons
    IS 'SHA-256 of names that no record of a request that ended before may bring back; payer '''' is all. Kept as long as such records are booked.';

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

-- Books a batch: {cluster, boot, zone, records, budgets}. Returns the numbers of the records that are new;
-- whatever was booked before changes nothing. ``budgets`` says whose budget of tokens pays for a payer, if
-- not its own. For each payer and meter there is one transfer, of the payer's one run on that meter (and
-- budget), straight from what is available: what was held of it is an allowance's matter. Rows are locked
-- in one order everywhere: accounts, records, hours, runs, days, months, balances, each by its key. A day
-- is that in which the hour of a request's end begins.
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
    -- Who has a person forgotten waits for those who may not see that yet.
    LOCK TABLE slicewise.forgotten_persons IN SHARE MODE;
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
        SELECT of_gateway,
               (to_timestamp(x.end_ms / 3600000 * 3600) AT TIME ZONE (batch ->> 'zone'))::date,
               x.number, x.payer,
               CASE WHEN f.is_forgotten THEN '-' ELSE x.person END,
               CASE WHEN f.is_forgotten THEN '-' ELSE x.key_id END, x.service,
               coalesce(x.array_job_id, 0), coalesce(x.index, 0), coalesce(x.run_start_s, 0),
               x.start_ms, x.end_ms, x.prompt_tokens, x.cached_prompt_tokens, x.output_tokens,
               x.first_token_ms, x.outcome
          FROM jsonb_to_recordset(batch -> 'records') AS x (
               number bigint, payer text, person text, key_id text, service text,
               array_job_id bigint, index bigint, run_start_s bigint, start_ms bigint,
               end_ms bigint, prompt_tokens bigint, cached_prompt_tokens bigint,
               output_tokens bigint, first_token_ms bigint, outcome text)
         CROSS JOIN LATERAL (SELECT EXISTS (
               SELECT FROM slicewise.forgotten_persons p
                WHERE p.cluster = of_cluster AND p.person = sha256(convert_to(x.person, 'UTF8'))
                  AND p.payer IN ('', x.payer) AND p.before_ms > x.end_ms)) AS f (is_forgotten)
         ORDER BY x.number
            ON CONFLICT DO NOTHING
        RETURNING r
    )
    SELECT array_agg(r) INTO fresh FROM booked;
    IF fresh IS NULL THEN
        RETURN '{}';
    END IF;

    INSERT INTO slicewise.usage_hours AS h
    SELECT of_cluster, f.end_ms / 3600000 * 3600, f.day, f.payer, f.service, f.array_job_id,
           f.index, f.run_start_s, count(*), sum(f.prompt_tokens), sum(f.cached_prompt_tokens),
           sum(f.output_tokens)
      FROM unnest(fresh) AS f
     GROUP BY 2, 3, 4, 5, 6, 7, 8
     ORDER BY 2, 3, 4, 5, 6, 7, 8
        ON CONFLICT ON CONSTRAINT pk_usage_hours DO UPDATE
       SET requests = h.requests + excluded.requests,
           prompt_tokens = h.prompt_tokens + excluded.prompt_tokens,
           cached_prompt_tokens = h.cached_prompt_tokens + excluded.cached_prompt_tokens,
           output_tokens = h.output_tokens + excluded.output_tokens;
    INSERT INTO slicewise.usage_runs AS r
    SELECT of_cluster, f.array_job_id, f.index, f.run_start_s, sum(f.prompt_tokens),
           sum(f.cached_prompt_tokens), sum(f.output_tokens)
      FROM unnest(fresh) AS f
     GROUP BY 2, 3, 4 ORDER BY 2, 3, 4
        ON CONFLICT ON CONSTRAINT pk_usage_runs DO UPDATE
       SET prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
           cached_prompt_tokens = r.cached_prompt_tokens + excluded.cached_prompt_tokens,
           output_tokens = r.output_tokens + excluded.output_tokens;
    PERFORM slicewise.add_usage_days(ARRAY(
        SELECT ROW(of_cluster, f.day, f.payer, f.person, f.key_id, f.service, count(*),
                   sum(f.prompt_tokens), sum(f.cached_prompt_tokens), sum(f.output_tokens),
                   count(f.first_token_ms), coalesce(sum(f.first_token_ms), 0))
               ::slicewise.usage_days
          FROM unnest(fresh) AS f
         GROUP BY f.day, f.payer, f.person, f.key_id, f.service));

    PERFORM slicewise.use_tokens(of_cluster, fresh, batch -> 'budgets');
    PERFORM slicewise.post_of_allowances(of_gateway, fresh);
    RETURN ARRAY(SELECT f.number FROM unnest(fresh) AS f ORDER BY 1);
END $$;

-- Adds to the sums by the day, and so to those by the month; amounts may be below 0.
CREATE FUNCTION slicewise.add_usage_days(days slicewise.usage_days[]) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO slicewise.usage_days AS d
    SELECT * FROM unnest(days)
     ORDER BY cluster, day, payer, person, key_id, service
        ON CONFLICT ON CONSTRAINT pk_usage_days DO UPDATE
       SET requests = d.requests + excluded.requests,
           prompt_tokens = d.prompt_tokens + excluded.prompt_tokens,
           cached_prompt_tokens = d.cached_prompt_tokens + excluded.cached_prompt_tokens,
           output_tokens = d.output_tokens + excluded.output_tokens,
           first_tokens = d.first_tokens + excluded.first_tokens,
           first_token_ms = d.first_token_ms + excluded.first_token_ms;
    INSERT INTO slicewise.usage_months AS m
    SELECT a.cluster, date_trunc('month', a.day)::date, a.payer, a.person, a.key_id,
           sum(a.prompt_tokens + a.output_tokens)
      FROM unnest(days) AS a GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
        ON CONFLICT ON CONSTRAINT pk_usage_months DO UPDATE SET tokens = m.tokens + excluded.tokens;
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
    -- Each is looked up by its key: PostgreSQL can't tell how many rows an array has, and joins them with
    -- others in ways that cost a hundred times as much.
    LOOP
        SELECT array_agg(ROW(NULL, n.run_id, NULL, 'use', n.debited, n.credited, n.amount, n.until_s,
                             NULL, NULL, NULL)::slicewise.transfers)
          INTO used
          FROM (SELECT f.payer, max(f.end_ms) / 1000 AS until_s,
                       ARRAY[sum(f.prompt_tokens), sum(f.cached_prompt_tokens), sum(f.output_tokens),
                             sum(f.prompt_tokens + f.output_tokens), count(*)]::bigint[] AS amounts
                  FROM unnest(fresh) AS f GROUP BY f.payer) AS p
         CROSS JOIN LATERAL unnest(slicewise.usage_meters(), p.amounts) AS m (meter, amount)
         CROSS JOIN LATERAL (
               SELECT a.debited, u.credited, m.amount, p.until_s,
                      (SELECT r.id FROM slicewise.runs r
                        WHERE r.cluster = of_cluster AND r.meter = m.meter AND r.job_id = u.credited
                          AND r.start_s = CASE a.tenant WHEN p.payer THEN 0 ELSE a.debited END)
                      AS run_id
                 FROM (SELECT b.tenant, (SELECT x.id FROM slicewise.accounts x
                                          WHERE (x.cluster, x.tenant, x.meter, x.kind)
                                                = (of_cluster, b.tenant, m.meter, 'available'))
                              AS debited
                         FROM (SELECT CASE m.meter
                                      WHEN 'tokens' THEN coalesce(budgets ->> p.payer, p.payer)
                                      ELSE p.payer END AS tenant) AS b) AS a
                CROSS JOIN (SELECT x.id AS credited FROM slicewise.accounts x
                             WHERE (x.cluster, x.tenant, x.meter, x.kind)
                                   = (of_cluster, p.payer, m.meter, 'used')) AS u) AS n
         WHERE m.amount > 0;
        EXIT WHEN NOT EXISTS (SELECT FROM unnest(used) AS t WHERE t.run_id IS NULL);
        -- A run's number is that of the account, which no other has; its start tells whose budget pays.
        INSERT INTO slicewise.runs (cluster, meter, job_id, start_s, tenant, payer, user_name, task,
                                    gres, cost_millislices)
        SELECT u.cluster, u.meter, u.id, CASE a.tenant WHEN u.tenant THEN 0 ELSE a.id END, u.tenant,
               nullif(a.tenant, u.tenant), '-', 'usage', '{}', 0
          FROM unnest(used) AS t
          JOIN slicewise.accounts u ON u.id = t.credit_account_id
          JOIN slicewise.accounts a ON a.id = t.debit_account_id
         WHERE t.run_id IS NULL
         ORDER BY u.id
            ON CONFLICT DO NOTHING;
    END LOOP;

    -- Who has the balances may number their run's transfers.
    PERFORM FROM slicewise.balances b
      WHERE b.account_id IN (SELECT debit_account_id FROM unnest(used)
                              UNION ALL SELECT credit_account_id FROM unnest(used))
      ORDER BY b.account_id FOR UPDATE;
    PERFORM set_config('slicewise.booking', 'on', true);
    INSERT INTO slicewise.transfers
           (run_id, number, kind, debit_account_id, credit_account_id, amount, until_s)
    SELECT t.run_id, 1 + coalesce((SELECT max(b.number) FROM slicewise.transfers b
                                    WHERE b.run_id = t.run_id), 0),
           t.kind, t.debit_account_id, t.credit_account_id, t.amount, t.until_s
      FROM unnest(used) AS t
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
    -- No record that ended so long ago is booked any more.
    DELETE FROM slicewise.forgotten_persons p
     WHERE p.before_ms < (extract(epoch FROM now() - interval '31 days') * 1000)::bigint;
    RETURN forgotten;
END $$;

-- From now on no record of a request that ended before brings the person's name, in one tenant or
-- in all (''). Who posts at this moment has ended before this returns.
CREATE FUNCTION slicewise.bar_person(of_cluster text, of_payer text, of_person text)
    RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO slicewise.forgotten_persons AS p
    VALUES (of_cluster, sha256(convert_to(of_person, 'UTF8')), of_payer,
            (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        ON CONFLICT ON CONSTRAINT pk_forgotten_persons DO UPDATE
       SET before_ms = greatest(p.before_ms, excluded.before_ms);
$$;

-- Puts '-' in the place of a person's name and keys, in one tenant or in all (''), in the first day
-- of theirs after ``after`` (NULL: the first of all). Returns which day that was, NULL if there is
-- none, and in how many records. Every sum stays.
CREATE FUNCTION slicewise.forget_person(of_cluster text, of_payer text, of_person text, after date,
                                        OUT of_day date, OUT records bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    moved slicewise.usage_days[];
BEGIN
    -- Who looks at the same moment would take the same sums away once more.
    PERFORM slicewise.lock_policy('persons of ' || of_cluster);
    SELECT min(d.day) INTO of_day FROM slicewise.usage_days d
     WHERE d.cluster = of_cluster AND d.person = of_person AND of_person <> '-'
       AND of_payer IN ('', d.payer) AND d.day > coalesce(after, '-infinity');
    IF of_day IS NULL THEN
        RETURN;
    END IF;
    -- By one look at both: what is posted meanwhile is in neither. The day's hours, in any zone.
    WITH gone AS (
        UPDATE slicewise.usage_records r SET person = '-', key_id = '-'
          FROM slicewise.usage_gateways g
         WHERE g.id = r.gateway_id AND g.cluster = of_cluster AND r.person = of_person
           AND of_payer IN ('', r.payer) AND r.day = of_day
           AND r.end_ms >= (extract(epoch FROM of_day - interval '1 day') * 1000)::bigint
           AND r.end_ms < (extract(epoch FROM of_day + interval '2 days') * 1000)::bigint
        RETURNING 1
    ), days AS (
        SELECT d.* FROM slicewise.usage_days d
         WHERE d.cluster = of_cluster AND d.day = of_day AND d.person = of_person
           AND of_payer IN ('', d.payer)
    )
    SELECT (SELECT count(*) FROM gone), array_agg(x.row) INTO records, moved
      FROM (SELECT ROW(d.cluster, d.day, d.payer, d.person, d.key_id, d.service, -d.requests,
                       -d.prompt_tokens, -d.cached_prompt_tokens, -d.output_tokens,
                       -d.first_tokens, -d.first_token_ms)::slicewise.usage_days AS row
              FROM days d
             UNION ALL
            SELECT ROW(d.cluster, d.day, d.payer, '-', '-', d.service, sum(d.requests),
                       sum(d.prompt_tokens), sum(d.cached_prompt_tokens), sum(d.output_tokens),
                       sum(d.first_tokens), sum(d.first_token_ms))::slicewise.usage_days
              FROM days d GROUP BY d.cluster, d.day, d.payer, d.service) AS x;
    PERFORM slicewise.add_usage_days(moved);
    DELETE FROM slicewise.usage_days d
     WHERE d.cluster = of_cluster AND d.day = of_day AND d.person = of_person
       AND of_payer IN ('', d.payer) AND d.requests = 0;
    DELETE FROM slicewise.usage_months m
     WHERE m.cluster = of_cluster AND m.month = date_trunc('month', of_day)
       AND m.person = of_person AND of_payer IN ('', m.payer) AND m.tokens = 0;
END $$;
