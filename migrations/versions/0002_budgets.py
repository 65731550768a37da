"""Adds budgets, payers and stored balances; charges are booked in one statement.

Only adds to 0001.
"""

from importlib import import_module
from importlib.resources import files

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FIRST = import_module("migrations.versions.0001_ledger")


def upgrade() -> None:
    for part in ("expand", "triggers", "functions"):
        op.execute(_sql(part))


def downgrade() -> None:
    op.execute(_sql("contract"))
    op.execute(_FIRST.TRANSFER_INSERTED)


def _sql(part: str) -> str:
    return (files("migrations") / "sql" / f"{revision}_{part}.sql").read_text(encoding="utf-8")
