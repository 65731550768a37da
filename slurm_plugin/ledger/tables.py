"""The ledger's tables, in PostgreSQL's schema ``slicewise``; triggers are in the migrations."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB

from slurm_plugin.decide.quotas import MAX_NOMINAL_MILLISLICES

SCHEMA = "slicewise"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    },
)

quota_changes = Table(
    "quota_changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("nominal_millislices", BigInteger, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint(
        f"nominal_millislices BETWEEN 0 AND {MAX_NOMINAL_MILLISLICES}", name="nominal_in_range"
    ),
    CheckConstraint("tenant <> ''", name="tenant_named"),
    Index("ix_quota_changes_latest", "cluster", "tenant", "id"),
    comment="A tenant's quota is its newest row; append-only.",
)

compilations = Table(
    "compilations",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("change_id", BigInteger, nullable=False),
    Column("compiled_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="Up to which quota change Slurm's limits are the ledger's.",
)

watermarks = Table(
    "watermarks",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("accounted_until_s", BigInteger, nullable=False),
    comment="Up to when every run's end that accounting shows is in the ledger.",
)

accounts = Table(
    "accounts",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    UniqueConstraint("cluster", "tenant", "kind", name="uq_accounts_tenant"),
    CheckConstraint("kind IN ('available', 'reserved', 'used')", name="kind_known"),
    comment="Three per tenant; balances are sums over transfers.",
)

runs = Table(
    "runs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("job_id", BigInteger, nullable=False),
    Column("start_s", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("gres", JSONB, nullable=False),
    Column("cost_millislices", BigInteger, nullable=False),
    UniqueConstraint("cluster", "job_id", "start_s", name="uq_runs_key"),
    CheckConstraint("cost_millislices > 0", name="cost_positive"),
    Index("ix_runs_tenant", "cluster", "tenant", "start_s"),
    comment="Who ran what at which cost; append-only.",
)

transfers = Table(
    "transfers",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("run_id", BigInteger, ForeignKey(runs.c.id), nullable=False),
    Column("number", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("debit_account_id", BigInteger, ForeignKey(accounts.c.id), nullable=False),
    Column("credit_account_id", BigInteger, ForeignKey(accounts.c.id), nullable=False),
    Column("amount_millislice_s", BigInteger, nullable=False),
    Column("until_s", BigInteger, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    UniqueConstraint("run_id", "number", name="uq_transfers_number"),
    CheckConstraint("amount_millislice_s > 0", name="amount_positive"),
    CheckConstraint("debit_account_id <> credit_account_id", name="between_two_accounts"),
    CheckConstraint("kind IN ('reserve', 'extend', 'post', 'void')", name="kind_known"),
    CheckConstraint("(number = 1) = (kind = 'reserve')", name="reserve_first_and_once"),
    comment="Each moves an amount between two accounts of one tenant; append-only.",
)

open_reservations = Table(
    "open_reservations",
    metadata,
    Column("run_id", BigInteger, ForeignKey(runs.c.id), primary_key=True, autoincrement=False),
    Column("reserved_millislice_s", BigInteger, nullable=False),
    CheckConstraint("reserved_millislice_s > 0", name="never_overdrawn"),
    comment="What is reserved and not settled; kept by a trigger on transfers.",
)
