CREATE TABLE slicewise.tariffs (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_tariffs PRIMARY KEY,
    cluster text NOT NULL,
    valid_from_s bigint NOT NULL,
    document jsonb NOT NULL CONSTRAINT ck_tariffs_document_has_currency
        CHECK (document ->> 'currency' ~ '^[A-Z]{3}$'),
    author text NOT NULL,
    reason text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ix_tariffs_valid_from ON slicewise.tariffs (cluster, valid_from_s);
COMMENT ON TABLE slicewise.tariffs
    IS 'What use costs from a moment on; of several from the same moment the newest. Append-only.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.tariffs
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();

-- Nothing that was used is priced anew: only a cluster's first tariff may begin in the past. Amounts
-- of two currencies have no sum; a tariff that was replaced before it held had none. The lock makes two first tariffs one after the other.
CREATE FUNCTION slicewise.check_tariff() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM slicewise.lock_policy(NEW.cluster);
    IF EXISTS (SELECT FROM slicewise.tariffs t WHERE t.cluster = NEW.cluster)
       AND NEW.valid_from_s < extract(epoch FROM now()) THEN
        RAISE EXCEPTION 'a tariff from % is in the past', NEW.valid_from_s
            USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (SELECT FROM slicewise.tariffs t
                WHERE t.cluster = NEW.cluster AND t.valid_from_s <> NEW.valid_from_s
                  AND t.document ->> 'currency' <> NEW.document ->> 'currency'
                  AND NOT EXISTS (SELECT FROM slicewise.tariffs n
                                   WHERE (n.cluster, n.valid_from_s) = (t.cluster, t.valid_from_s)
                                     AND n.id > t.id)) THEN
        RAISE EXCEPTION 'a tariff in %: the cluster has another currency',
            NEW.document ->> 'currency' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_tariff BEFORE INSERT ON slicewise.tariffs
    FOR EACH ROW EXECUTE FUNCTION slicewise.check_tariff();
