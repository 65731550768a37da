CREATE TABLE slicewise.service_orders (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_service_orders PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    array_job_id bigint NOT NULL,
    what text NOT NULL
        CONSTRAINT ck_service_orders_what_known
        CHECK (what IN ('scale', 'restart', 'end', 'over')),
    min_replicas integer,
    max_replicas integer,
    restart_s double precision,
    delete_s double precision,
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_service_orders_replicas_in_range
        CHECK (min_replicas >= 0 AND max_replicas >= 1 AND min_replicas <= max_replicas),
    CONSTRAINT ck_service_orders_over_is_none
        CHECK (what <> 'over' OR num_nonnulls(min_replicas, max_replicas, restart_s, delete_s) = 0)
);
CREATE INDEX ix_service_orders_latest ON slicewise.service_orders (cluster, tenant, name, id);
COMMENT ON TABLE slicewise.service_orders
    IS 'What a service''s owner ordered beside its script: its newest row holds. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.service_orders
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.service_generations (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_service_generations PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    array_job_id bigint NOT NULL,
    submitted_s bigint NOT NULL,
    author text NOT NULL,
    directives jsonb NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_service_generations_latest
    ON slicewise.service_generations (cluster, name, tenant, id);
CREATE INDEX ix_service_generations_array
    ON slicewise.service_generations (cluster, array_job_id, tenant, id);
COMMENT ON TABLE slicewise.service_generations
    IS 'What was submitted of each service, one row a generation. Only what never ran is deleted.';
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON slicewise.service_generations
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON slicewise.service_generations
    FOR EACH ROW WHEN (OLD.recorded_at > now() - interval '90 days')
    EXECUTE FUNCTION slicewise.refuse_change();

-- Deletes that many generations from before that moment that never ran, but for those of these
-- arrays; returns how many. No role may delete one that a statement names.
CREATE FUNCTION slicewise.forget_generations(
    of_cluster text, before timestamptz, living bigint[], most integer
) RETURNS integer LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    forgotten integer;
BEGIN
    WITH old AS (
        SELECT g.id FROM slicewise.service_generations g
         WHERE g.cluster = of_cluster
           AND g.recorded_at < least(before, now() - interval '90 days')
           AND g.array_job_id <> ALL (living)
           AND NOT EXISTS (
               SELECT FROM slicewise.runs r
                WHERE r.cluster = g.cluster AND r.tenant = g.tenant
                  AND substring(r.task, '^[0-9]{1,18}')::bigint = g.array_job_id)
         LIMIT most
    )
    DELETE FROM slicewise.service_generations g USING old WHERE g.id = old.id;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;

CREATE TABLE slicewise.api_keys (
    cluster text,
    key_id text,
    tenant text NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL
        CONSTRAINT ck_api_keys_sha256_hexadecimal CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    service text NOT NULL DEFAULT '',
    expires_at timestamptz,
    person text NOT NULL,
    CONSTRAINT pk_api_keys PRIMARY KEY (cluster, key_id),
    CONSTRAINT uq_api_keys_sha256 UNIQUE (cluster, sha256)
);
COMMENT ON TABLE slicewise.api_keys
    IS 'Who may send requests to a tenant''s services: hashes, no key. Append-only.';

CREATE TABLE slicewise.api_key_revocations (
    cluster text,
    key_id text,
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_api_key_revocations PRIMARY KEY (cluster, key_id),
    CONSTRAINT fk_api_key_revocations_cluster FOREIGN KEY (cluster, key_id)
        REFERENCES slicewise.api_keys (cluster, key_id)
);
COMMENT ON TABLE slicewise.api_key_revocations
    IS 'Keys that let nobody in any more. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.api_keys
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.api_key_revocations
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.api_key_openings (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_api_key_openings PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    until_at timestamptz
);
COMMENT ON TABLE slicewise.api_key_openings
    IS 'Until when a tenant''s services want no key; NULL: until one is made again. Newest row holds. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.api_key_openings
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.api_key_blocks (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_api_key_blocks PRIMARY KEY,
    cluster text NOT NULL,
    key_id text NOT NULL,
    is_blocked boolean NOT NULL,
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_api_key_blocks_latest ON slicewise.api_key_blocks (cluster, key_id, id);
COMMENT ON TABLE slicewise.api_key_blocks
    IS 'Keys that let nobody in for now; a key''s newest row holds. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.api_key_blocks
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.request_limits (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_request_limits PRIMARY KEY,
    cluster text NOT NULL,
    tenant text NOT NULL,
    person text NOT NULL DEFAULT '',
    key_id text NOT NULL DEFAULT '',
    concurrent bigint,
    requests_per_minute bigint,
    tokens_per_minute bigint,
    tokens_per_month bigint,
    models text[],
    is_exact boolean NOT NULL DEFAULT false,
    rank text NOT NULL
        CONSTRAINT ck_request_limits_rank_known CHECK (rank IN ('person', 'manager', 'operator')),
    author text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ck_request_limits_one_subject CHECK (person = '' OR key_id = ''),
    CONSTRAINT ck_request_limits_not_negative CHECK (
        concurrent >= 0 AND requests_per_minute >= 0
        AND tokens_per_minute >= 0 AND tokens_per_month >= 0)
);
CREATE INDEX ix_request_limits_latest
    ON slicewise.request_limits (cluster, tenant, person, key_id, rank, id);
COMMENT ON TABLE slicewise.request_limits
    IS 'Limits on the requests of a tenant, a person in it, or a key; a subject''s newest rows of each rank hold together. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.request_limits
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

CREATE TABLE slicewise.api_key_uses (
    cluster text,
    key_id text,
    used_at timestamptz NOT NULL,
    CONSTRAINT pk_api_key_uses PRIMARY KEY (cluster, key_id),
    CONSTRAINT fk_api_key_uses_cluster FOREIGN KEY (cluster, key_id)
        REFERENCES slicewise.api_keys (cluster, key_id)
);
COMMENT ON TABLE slicewise.api_key_uses
    IS 'When each key last let a request in, to within a minute or two. Overwritten.';

CREATE TABLE slicewise.guests (
    cluster text,
    person text,
    tenant text,
    claimed_at timestamptz,
    ended_by text,
    CONSTRAINT pk_guests PRIMARY KEY (cluster, person, tenant)
);
COMMENT ON TABLE slicewise.guests
    IS 'Tenants that the identity provider has named for people without an account, with their last login that did, and who has ended it. Overwritten.';

CREATE SCHEMA launcher;
CREATE TABLE launcher.locks (LIKE slicewise.locks);
ALTER TABLE launcher.locks ADD CONSTRAINT pk_locks PRIMARY KEY (cluster, name);
COMMENT ON TABLE launcher.locks
    IS 'Which session has each lock, while that session lives. Overwritten.';
CREATE TABLE launcher.service_state (
    cluster text,
    tenant text,
    name text,
    state jsonb NOT NULL,
    saved_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_service_state PRIMARY KEY (cluster, tenant, name)
);
COMMENT ON TABLE launcher.service_state
    IS 'What the launcher has learnt of a service; without it the launcher learns anew.';
CREATE TABLE launcher.curves (LIKE launcher.service_state INCLUDING DEFAULTS);
ALTER TABLE launcher.curves ADD CONSTRAINT pk_curves PRIMARY KEY (cluster, tenant, name);
COMMENT ON TABLE launcher.curves
    IS 'How long requests take in a tenant''s replicas of one model, engine and shape.';
