CREATE TABLE slicewise.seals (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_seals PRIMARY KEY,
    last_transfer_id bigint NOT NULL CONSTRAINT uq_seals_last UNIQUE,
    transfers bigint NOT NULL CONSTRAINT ck_seals_transfers_positive CHECK (transfers > 0),
    hash bytea NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE slicewise.seals
    IS 'A hash over the transfers since the seal before, and over its hash. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.seals
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

-- Of the seal over the transfers behind one up to another: what they say themselves, and what their
-- budget entries say; with its first transfer what a run says. By index alone: a batch is small,
-- however long the history is.
CREATE FUNCTION slicewise.seal_hash(previous bytea, behind bigint, up_to bigint)
RETURNS bytea LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET "DateStyle" = 'ISO'
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
    SELECT sha256(previous || convert_to(coalesce(string_agg(
               ROW(t.id, t.run_id, t.number, t.kind, t.debit_account_id, t.credit_account_id,
                   t.amount_millislice_s, t.until_s, t.recorded_at, t.budget_entry_id)::text
               || CASE WHEN r.id IS NULL THEN '' ELSE
                      ROW(r.cluster, r.job_id, r.start_s, r.tenant, r.payer, r.user_name, r.task,
                          r.gres, r.cost_millislices)::text END
               || CASE WHEN b.id IS NULL THEN '' ELSE
                      ROW(b.cluster, b.tenant, b.kind, b.amount_millislice_s, b.period_start_s,
                          b.author, b.reason, b.recorded_at, b.key)::text END,
               E'\n' ORDER BY t.id), ''), 'UTF8'))
      FROM slicewise.transfers t
      LEFT JOIN slicewise.runs r ON r.id = CASE t.number WHEN 1 THEN t.run_id END
      LEFT JOIN slicewise.budget_entries b ON b.id = t.budget_entry_id
     WHERE t.id > behind AND t.id <= up_to;
$$;

-- Seals what is not sealed yet, at most that many transfers; returns how many. Who books holds the
-- same lock, shared: a transfer that is not to be seen yet may have a smaller id.
CREATE FUNCTION slicewise.seal(most bigint) RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before slicewise.seals;
    up_to bigint;
    found bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(5171718);
    SELECT * INTO before FROM slicewise.seals s ORDER BY s.id DESC LIMIT 1;
    SELECT max(t.id), count(*) INTO up_to, found
      FROM (SELECT i.id FROM slicewise.transfers i
             WHERE i.id > coalesce(before.last_transfer_id, 0) ORDER BY i.id LIMIT most) t;
    IF found > 0 THEN
        INSERT INTO slicewise.seals (last_transfer_id, transfers, hash)
        VALUES (up_to, found,
                slicewise.seal_hash(coalesce(before.hash, ''),
                                    coalesce(before.last_transfer_id, 0), up_to));
    END IF;
    RETURN found;
END $$;

INSERT INTO slicewise.served_revisions VALUES ('0009');
