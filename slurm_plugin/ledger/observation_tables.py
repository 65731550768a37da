"""The tables of sums for ``slicewise observe``."""

from sqlalchemy import BigInteger, Boolean, Column, Table, Text

from slicewise.slurm_plugin.ledger.tables import metadata


def _keys(*names: str) -> tuple[Column[str], ...]:
    return tuple(Column(name, Text, primary_key=True) for name in names)


def _sums(*names: str) -> tuple[Column[int], ...]:
    return tuple(Column(name, BigInteger, nullable=False) for name in names)


observed_submissions = Table(
    "observed_submissions",
    metadata,
    *_keys("cluster"),
    Column("day_s", BigInteger, primary_key=True, autoincrement=False),
    *_keys("mode", "tenant", "user_name", "code", "gpu_type"),
    Column("is_borrowed", Boolean, primary_key=True),
    *_sums("submissions", "moved_qos", "moved_type", "asked_millislices"),
    comment="What admission decided, summed by day (UTC). code is empty for what it would admit.",
)

observed_loans = Table(
    "observed_loans",
    metadata,
    *_keys("cluster"),
    Column("day_s", BigInteger, primary_key=True, autoincrement=False),
    *_keys("lender", "borrower"),
    *_sums("lent_millislice_s", "recalls", "recalled_millislices"),
    comment="Idle quota that would have been lent and recalled, summed by day (UTC).",
)

observed_quota = Table(
    "observed_quota",
    metadata,
    *_keys("cluster"),
    Column("day_s", BigInteger, primary_key=True, autoincrement=False),
    *_keys("tenant"),
    *_sums("seconds", "guaranteed_millislice_s", "idle_millislice_s"),
    *_sums("idle_wanted_millislice_s", "wanted_millislice_s"),
    comment="Guaranteed quota, its idle part, and what was wanted beyond it, summed by day (UTC).",
)

OBSERVED = (observed_submissions, observed_loans, observed_quota)
