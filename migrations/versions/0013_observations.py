"""Adds sums of what admission decided and of what could be lent, by day, for ``observe report``.

Only additions: programs of 0012 go on with it, and record none of this.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_SUBMISSIONS = """
CREATE TABLE slicewise.observed_submissions (
    cluster text NOT NULL,
    day_s bigint NOT NULL,
    mode text NOT NULL,
    tenant text NOT NULL,
    user_name text NOT NULL,
    code text NOT NULL,
    gpu_type text NOT NULL,
    is_borrowed boolean NOT NULL,
    submissions bigint NOT NULL,
    moved_qos bigint NOT NULL,
    moved_type bigint NOT NULL,
    asked_millislices bigint NOT NULL,
    CONSTRAINT pk_observed_submissions
        PRIMARY KEY (cluster, day_s, mode, tenant, user_name, code, gpu_type, is_borrowed)
);
COMMENT ON TABLE slicewise.observed_submissions
    IS 'What admission decided, summed by day (UTC). code is empty for what it would admit.';
"""

_LOANS = """
CREATE TABLE slicewise.observed_loans (
    cluster text NOT NULL,
    day_s bigint NOT NULL,
    lender text NOT NULL,
    borrower text NOT NULL,
    lent_millislice_s bigint NOT NULL,
    recalls bigint NOT NULL,
    recalled_millislices bigint NOT NULL,
    CONSTRAINT pk_observed_loans PRIMARY KEY (cluster, day_s, lender, borrower)
);
COMMENT ON TABLE slicewise.observed_loans
    IS 'Idle quota that would have been lent and recalled, summed by day (UTC).';
"""

_QUOTA = """
CREATE TABLE slicewise.observed_quota (
    cluster text NOT NULL,
    day_s bigint NOT NULL,
    tenant text NOT NULL,
    seconds bigint NOT NULL,
    guaranteed_millislice_s bigint NOT NULL,
    idle_millislice_s bigint NOT NULL,
    idle_wanted_millislice_s bigint NOT NULL,
    wanted_millislice_s bigint NOT NULL,
    CONSTRAINT pk_observed_quota PRIMARY KEY (cluster, day_s, tenant)
);
COMMENT ON TABLE slicewise.observed_quota
    IS 'Guaranteed quota, its idle part, and what was wanted beyond it, summed by day (UTC).';
"""

_SERVED = "INSERT INTO slicewise.served_revisions VALUES ('0013');"

_DOWN = """
DROP TABLE slicewise.observed_submissions, slicewise.observed_loans, slicewise.observed_quota;
DELETE FROM slicewise.served_revisions WHERE revision = '0013';
"""


def upgrade() -> None:
    for step in (_SUBMISSIONS, _LOANS, _QUOTA, _SERVED):
        op.execute(step)


def downgrade() -> None:
    op.execute(_DOWN)
