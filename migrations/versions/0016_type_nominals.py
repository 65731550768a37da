"""Adds guarantees by type of instance to quotas.

Only additions: programs of 0015 go on with it, and leave them as they are.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_COLUMN = """
ALTER TABLE slicewise.quota_changes
    ADD COLUMN type_nominals jsonb,
    ADD CONSTRAINT ck_quota_changes_type_nominals_object
        CHECK (jsonb_typeof(type_nominals) = 'object');
"""

# Replaced and not created anew, so that its grants stay; its new column comes last.
_VIEW = """
CREATE OR REPLACE VIEW slicewise.policy AS
SELECT cluster,
       tenant,
       coalesce((array_agg(parent ORDER BY id DESC) FILTER (WHERE parent IS NOT NULL))[1], '')
           AS parent,
       (array_agg(nominal_millislices ORDER BY id DESC))[1] AS nominal_millislices,
       coalesce((array_agg(borrowing_limit_millislices ORDER BY id DESC)
           FILTER (WHERE borrowing_limit_millislices IS NOT NULL))[1], 0)
           AS borrowing_limit_millislices,
       coalesce((array_agg(lending_limit_millislices ORDER BY id DESC)
           FILTER (WHERE lending_limit_millislices IS NOT NULL))[1], 0)
           AS lending_limit_millislices,
       coalesce((array_agg(weight ORDER BY id DESC) FILTER (WHERE weight IS NOT NULL))[1], 1)
           AS weight,
       coalesce((array_agg(type_limits ORDER BY id DESC)
           FILTER (WHERE type_limits IS NOT NULL))[1], '{}') AS type_limits,
       coalesce((array_agg(model_limits ORDER BY id DESC)
           FILTER (WHERE model_limits IS NOT NULL))[1], '{}') AS model_limits,
       coalesce((array_agg(budget_period ORDER BY id DESC)
           FILTER (WHERE budget_period IS NOT NULL))[1], 'off') AS budget_period,
       (array_agg(budget_millislice_s ORDER BY id DESC)
           FILTER (WHERE budget_millislice_s IS NOT NULL))[1] AS budget_millislice_s,
       (array_agg(carry_over_millislice_s ORDER BY id DESC)
           FILTER (WHERE carry_over_millislice_s IS NOT NULL))[1] AS carry_over_millislice_s,
       (array_agg(overdraft_millislice_s ORDER BY id DESC)
           FILTER (WHERE overdraft_millislice_s IS NOT NULL))[1] AS overdraft_millislice_s,
       coalesce((array_agg(type_nominals ORDER BY id DESC)
           FILTER (WHERE type_nominals IS NOT NULL))[1], '{}') AS type_nominals
  FROM (SELECT *, max(id) FILTER (WHERE removed) OVER (PARTITION BY cluster, tenant) AS removed_id
          FROM slicewise.quota_changes) AS changes
 WHERE removed_id IS NULL OR id > removed_id
 GROUP BY cluster, tenant;
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0016');"

_DOWN = """
DROP VIEW slicewise.policy;
ALTER TABLE slicewise.quota_changes DROP COLUMN type_nominals;
DELETE FROM slicewise.served_revisions WHERE revision = '0016';
"""

_VIEW_BEFORE = """
CREATE VIEW slicewise.policy AS
SELECT cluster,
       tenant,
       coalesce((array_agg(parent ORDER BY id DESC) FILTER (WHERE parent IS NOT NULL))[1], '')
           AS parent,
       (array_agg(nominal_millislices ORDER BY id DESC))[1] AS nominal_millislices,
       coalesce((array_agg(borrowing_limit_millislices ORDER BY id DESC)
           FILTER (WHERE borrowing_limit_millislices IS NOT NULL))[1], 0)
           AS borrowing_limit_millislices,
       coalesce((array_agg(lending_limit_millislices ORDER BY id DESC)
           FILTER (WHERE lending_limit_millislices IS NOT NULL))[1], 0)
           AS lending_limit_millislices,
       coalesce((array_agg(weight ORDER BY id DESC) FILTER (WHERE weight IS NOT NULL))[1], 1)
           AS weight,
       coalesce((array_agg(type_limits ORDER BY id DESC)
           FILTER (WHERE type_limits IS NOT NULL))[1], '{}') AS type_limits,
       coalesce((array_agg(model_limits ORDER BY id DESC)
           FILTER (WHERE model_limits IS NOT NULL))[1], '{}') AS model_limits,
       coalesce((array_agg(budget_period ORDER BY id DESC)
           FILTER (WHERE budget_period IS NOT NULL))[1], 'off') AS budget_period,
       (array_agg(budget_millislice_s ORDER BY id DESC)
           FILTER (WHERE budget_millislice_s IS NOT NULL))[1] AS budget_millislice_s,
       (array_agg(carry_over_millislice_s ORDER BY id DESC)
           FILTER (WHERE carry_over_millislice_s IS NOT NULL))[1] AS carry_over_millislice_s,
       (array_agg(overdraft_millislice_s ORDER BY id DESC)
           FILTER (WHERE overdraft_millislice_s IS NOT NULL))[1] AS overdraft_millislice_s
  FROM (SELECT *, max(id) FILTER (WHERE removed) OVER (PARTITION BY cluster, tenant) AS removed_id
          FROM slicewise.quota_changes) AS changes
 WHERE removed_id IS NULL OR id > removed_id
 GROUP BY cluster, tenant;
COMMENT ON VIEW slicewise.policy
    IS 'Every tenant as it is now: of each column the newest value; removed ones are not in it.';
"""


def upgrade() -> None:
    for step in (_COLUMN, _VIEW, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
    op.execute(_VIEW_BEFORE)
