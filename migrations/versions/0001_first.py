"""Makes the tables of 0.1.0, the first version."""

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_PARTS = (
    "common",
    "quotas",
    "lending",
    "tariffs",
    "books",
    "booking",
    "shares",
    "usage",
    "services",
    "pools",
    "energy",
    "costs",
    "journals",
    "figures",
)
"""Each is a file of SQL, which may name what an earlier one makes."""

_DOWN = """
DROP SCHEMA launcher CASCADE;
DO $$
DECLARE
    made record;
BEGIN
    FOR made IN SELECT oid::regclass AS name FROM pg_class
                 WHERE relnamespace = 'slicewise'::regnamespace AND relkind = 'r'
                   AND relname <> 'alembic_version' LOOP
        EXECUTE 'DROP TABLE ' || made.name || ' CASCADE';
    END LOOP;
    FOR made IN SELECT oid::regprocedure AS name FROM pg_proc
                 WHERE pronamespace = 'slicewise'::regnamespace LOOP
        EXECUTE 'DROP FUNCTION ' || made.name;
    END LOOP;
END $$;
"""


def upgrade() -> None:
    for part in _PARTS:
        op.execute(
            (files("slicewise.migrations") / "sql" / f"0001_{part}.sql").read_text(encoding="utf-8")
        )


def downgrade() -> None:
    op.execute(_DOWN)
