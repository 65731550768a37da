"""Adds keys to budget entries, so that an entry requested twice is booked once.

Only additions: programs of 0007 go on with it; their entries have none.
"""

import re
from importlib.resources import files

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_DOWN = """
DROP INDEX slicewise.uq_budget_entries_key;
ALTER TABLE slicewise.budget_entries DROP COLUMN key;
DELETE FROM slicewise.served_revisions WHERE revision = '0008';
"""


def upgrade() -> None:
    op.execute(_sql("0008_budgets"))


def downgrade() -> None:
    op.execute(_as_before("0002_functions", "enter_budget"))
    op.execute(_as_before("0002_triggers", "budget_entered"))
    op.execute(_DOWN)


def _as_before(part: str, function: str) -> str:
    """The function as an earlier revision made it."""
    made = rf"CREATE (FUNCTION slicewise\.{function}\(.*?END \$\$;)"
    (text,) = re.findall(made, _sql(part), re.DOTALL)
    return f"CREATE OR REPLACE {text}"


def _sql(part: str) -> str:
    return (files("migrations") / "sql" / f"{part}.sql").read_text(encoding="utf-8")
