"""Adds seals of transfers: a chain of hashes shows which sealed rows were changed or deleted.

Only additions: programs of 0008 go on with it; the next program that seals also seals their
transfers.
"""

import re
from importlib.resources import files

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_DOWN = """
DROP FUNCTION slicewise.seal, slicewise.seal_hash;
DROP TABLE slicewise.seals;
DELETE FROM slicewise.served_revisions WHERE revision = '0009';
"""

_WHO_BOOKS = (("0002_functions", "book"), ("0008_budgets", "budget_entered"))
_LOCK = "    PERFORM pg_advisory_xact_lock_shared(5171718);\n"
"""Taken before an id is: ``slicewise.seal`` waits for this lock."""


def upgrade() -> None:
    for part, function in _WHO_BOOKS:
        op.execute(_made(part, function).replace("\nBEGIN\n", f"\nBEGIN\n{_LOCK}", 1))
    op.execute(_sql("0009_seals"))


def downgrade() -> None:
    op.execute(_DOWN)
    for part, function in _WHO_BOOKS:
        op.execute(_made(part, function))


def _made(part: str, function: str) -> str:
    """The function as an earlier revision made it."""
    made = rf"CREATE (?:OR REPLACE )?(FUNCTION slicewise\.{function}\(.*?END \$\$;)"
    (text,) = re.findall(made, _sql(part), re.DOTALL)
    return f"CREATE OR REPLACE {text}"


def _sql(part: str) -> str:
    return (files("migrations") / "sql" / f"{part}.sql").read_text(encoding="utf-8")
