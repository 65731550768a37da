-- Triggers' functions run with their owner's rights, so that a role which may only add rows keeps
-- what follows from them; the fixed search_path keeps such a role from changing what names mean.
CREATE FUNCTION slicewise.loan_changed() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.amount_millislices = 0 THEN
        DELETE FROM slicewise.loans
         WHERE cluster = NEW.cluster AND lender = NEW.lender AND borrower = NEW.borrower;
    ELSE
        INSERT INTO slicewise.loans
        VALUES (NEW.cluster, NEW.lender, NEW.borrower, NEW.amount_millislices)
        ON CONFLICT ON CONSTRAINT pk_loans
        DO UPDATE SET amount_millislices = EXCLUDED.amount_millislices;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER loan_changed AFTER INSERT ON slicewise.loan_changes
    FOR EACH ROW EXECUTE FUNCTION slicewise.loan_changed();

CREATE FUNCTION slicewise.lock_policy(of_cluster text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO slicewise.locks (cluster, name) VALUES (of_cluster, 'policy')
        ON CONFLICT DO NOTHING;
    SELECT FROM slicewise.locks WHERE cluster = of_cluster AND name = 'policy' FOR UPDATE;
$$;

-- The program checks limits that span subtrees; a tenant without others below it lends and borrows
-- across its own limits alone, those of any of its windows. The lock makes two writers at the same
-- time see each other's changes.
CREATE FUNCTION slicewise.check_loans(of_cluster text, of_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    lends bigint;
    borrows bigint;
    may_lend bigint;
    may_borrow bigint;
BEGIN
    PERFORM slicewise.lock_policy(of_cluster);
    IF EXISTS (
        SELECT FROM slicewise.quota_changes c
         WHERE c.cluster = of_cluster AND c.parent = of_tenant
           AND of_tenant = (SELECT p.parent FROM slicewise.policy p
                             WHERE p.cluster = of_cluster AND p.tenant = c.tenant)
    ) THEN
        RETURN;
    END IF;
    SELECT sum(amount_millislices) INTO lends
      FROM slicewise.loans WHERE cluster = of_cluster AND lender = of_tenant;
    SELECT sum(amount_millislices) INTO borrows
      FROM slicewise.loans WHERE cluster = of_cluster AND borrower = of_tenant;
    -- The program decides which window holds at which hour, since it knows the time zone.
    WITH largest AS (
        SELECT max(amount_millislices) FILTER (WHERE kind = 'nominal') AS nominal,
               max(amount_millislices) FILTER (WHERE kind = 'lending') AS lending,
               max(amount_millislices) FILTER (WHERE kind = 'borrowing') AS borrowing
          FROM slicewise.quota_windows w
         WHERE cluster = of_cluster AND tenant = of_tenant
           AND (last_s IS NULL OR last_s > extract(epoch FROM now()))
           AND NOT EXISTS (SELECT FROM slicewise.quota_window_ends e WHERE e.window_id = w.id)
    )
    SELECT least(greatest(lending_limit_millislices, lending),
                 greatest(nominal_millislices, nominal)),
           greatest(borrowing_limit_millislices, borrowing)
      INTO may_lend, may_borrow
      FROM slicewise.policy, largest WHERE cluster = of_cluster AND tenant = of_tenant;
    IF lends > coalesce(may_lend, 0) THEN
        RAISE EXCEPTION 'tenant % would lend % millislices and may lend %',
            of_tenant, lends, coalesce(may_lend, 0) USING ERRCODE = 'check_violation';
    ELSIF borrows > coalesce(may_borrow, 0) THEN
        RAISE EXCEPTION 'tenant % would borrow % millislices and may borrow %',
            of_tenant, borrows, coalesce(may_borrow, 0) USING ERRCODE = 'check_violation';
    END IF;
END $$;

CREATE FUNCTION slicewise.loan_checked() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM slicewise.check_loans(NEW.cluster, NEW.lender);
    PERFORM slicewise.check_loans(NEW.cluster, NEW.borrower);
    RETURN NULL;
END $$;

CREATE FUNCTION slicewise.quota_checked() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM slicewise.check_loans(NEW.cluster, NEW.tenant);
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER loan_checked AFTER INSERT ON slicewise.loan_changes
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.amount_millislices > 0) EXECUTE FUNCTION slicewise.loan_checked();
CREATE CONSTRAINT TRIGGER quota_checked AFTER INSERT ON slicewise.quota_changes
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION slicewise.quota_checked();

-- Looks at that many of the cluster's changes with a greater id, and deletes those before that
-- moment that a newer one of the same two tenants among them follows, and an end of a loan that has
-- no older one. So the newest change of a loan stays. Returns the id up to which it has looked; NULL
-- once nothing so old comes.
CREATE FUNCTION slicewise.forget_loans(
    of_cluster text, before timestamptz, after_id bigint, most integer
) RETURNS bigint LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    limit_at timestamptz := least(before, now() - interval '90 days');
    up_to bigint;
BEGIN
    WITH looked AS MATERIALIZED (
        SELECT c.* FROM slicewise.loan_changes c
         WHERE c.cluster = of_cluster AND c.id > after_id ORDER BY c.id LIMIT most
    ), old AS (
        SELECT l.id, l.lender, l.borrower, l.amount_millislices,
               lead(l.id) OVER (PARTITION BY l.lender, l.borrower ORDER BY l.id) AS newer
          FROM looked l WHERE l.recorded_at < limit_at
    ), gone AS (
        DELETE FROM slicewise.loan_changes c USING old
         WHERE c.id = old.id
           AND (old.newer IS NOT NULL OR old.amount_millislices = 0 AND NOT EXISTS (
                SELECT FROM slicewise.loan_changes o
                 WHERE o.cluster = of_cluster AND o.lender = old.lender
                   AND o.borrower = old.borrower AND o.id < old.id))
    )
    SELECT max(old.id) INTO up_to FROM old;
    RETURN up_to;
END $$;
