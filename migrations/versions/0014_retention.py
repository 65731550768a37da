"""Lets old changes of loans be deleted: they are no books, and grow with every round of lending.

Only additions: programs of 0013 go on with it, and delete none.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# A younger row can't be deleted, not even by the tables' owner.
_TRIGGERS = """
DROP TRIGGER append_only ON slicewise.loan_changes;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON slicewise.loan_changes
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
CREATE TRIGGER kept_while_young BEFORE DELETE ON slicewise.loan_changes
    FOR EACH ROW WHEN (OLD.recorded_at > now() - interval '90 days')
    EXECUTE FUNCTION slicewise.refuse_change();
COMMENT ON TABLE slicewise.loan_changes
    IS 'What a loan was changed to; 0 ends it. Append-only; old ones are deleted.';
"""

# Looks at that many of the cluster's changes with a greater id, and deletes those before that
# moment that a newer one of the same two tenants among them follows, and an end of a loan that has
# no older one. So the newest change of a loan stays. Returns the id up to which it has looked; NULL
# once nothing so old comes.
_FUNCTION = """
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
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0014');"

_DOWN = """
DROP FUNCTION slicewise.forget_loans(text, timestamptz, bigint, integer);
DROP TRIGGER kept_while_young ON slicewise.loan_changes;
DROP TRIGGER append_only ON slicewise.loan_changes;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON slicewise.loan_changes
    FOR EACH STATEMENT EXECUTE FUNCTION slicewise.refuse_change();
COMMENT ON TABLE slicewise.loan_changes IS 'What a loan was changed to; 0 ends it. Append-only.';
DELETE FROM slicewise.served_revisions WHERE revision = '0014';
"""


def upgrade() -> None:
    for step in (_TRIGGERS, _FUNCTION, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
