"""Tables of recalled quota, of the calendar's windows, and of the journal of ``slicewise
rebalance``.
"""

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.language.rebalances import RunOutcome, StepName, StepOutcome
from slicewise.slurm_plugin.ledger.tables import metadata
from slicewise.slurm_plugin.rules.quota.calendar import WindowKind
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES


def _listed(words: type[StrEnum]) -> str:
    return ", ".join(f"'{word}'" for word in words)


recalls = Table(
    "recalls",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("lender", Text, primary_key=True),
    Column("borrower", Text, primary_key=True),
    Column("called_s", BigInteger, primary_key=True, autoincrement=False),
    Column("amount_millislices", BigInteger, nullable=False),
    CheckConstraint("amount_millislices > 0", name="amount_positive"),
    CheckConstraint("lender <> borrower", name="two_tenants"),
    comment="Lent quota that its lender takes back and its borrower still holds.",
)

quota_windows = Table(
    "quota_windows",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("amount_millislices", BigInteger, nullable=False),
    Column("days", JSONB, nullable=False),
    Column("begin_min", Integer, nullable=False),
    Column("end_min", Integer, nullable=False),
    Column("first_s", BigInteger),
    Column("last_s", BigInteger),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint(f"kind IN ({_listed(WindowKind)})", name="kind_known"),
    CheckConstraint("tenant <> '' OR kind = 'cap'", name="tenant_named"),
    CheckConstraint(
        f"amount_millislices BETWEEN 0 AND {MAX_NOMINAL_MILLISLICES}", name="amount_in_range"
    ),
    CheckConstraint("days <@ '[0, 1, 2, 3, 4, 5, 6]'", name="days_known"),
    CheckConstraint(
        "begin_min BETWEEN 0 AND 1439 AND end_min BETWEEN 0 AND 1439", name="minutes_of_day"
    ),
    CheckConstraint("first_s < last_s", name="first_before_last"),
    Index("ix_quota_windows_tenant", "cluster", "tenant"),
    comment="When a tenant has another quota, '' being all together. Append-only.",
)

quota_window_ends = Table(
    "quota_window_ends",
    metadata,
    Column("id", BigInteger, Identity(always=True), unique=True),
    Column(
        "window_id",
        BigInteger,
        ForeignKey(quota_windows.c.id),
        primary_key=True,
        autoincrement=False,
    ),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="Windows that were removed. Append-only.",
)

rebalance_runs = Table(
    "rebalance_runs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("outcome", Text, nullable=False, server_default="running"),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("ended_at", DateTime(timezone=True)),
    CheckConstraint(f"outcome IN ({_listed(RunOutcome)})", name="outcome_known"),
    CheckConstraint("(ended_at IS NULL) = (outcome = 'running')", name="ended_with_outcome"),
    Index("ix_rebalance_runs_newest", "cluster", "id"),
    Index(
        "uq_rebalance_runs_unfinished",
        "cluster",
        unique=True,
        postgresql_where=text("ended_at IS NULL"),
    ),
    comment="Each run of slicewise rebalance.",
)

rebalance_steps = Table(
    "rebalance_steps",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("run_id", BigInteger, ForeignKey(rebalance_runs.c.id), nullable=False),
    Column("step", Text, nullable=False),
    Column("outcome", Text, nullable=False, server_default="running"),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("ended_at", DateTime(timezone=True)),
    Column("saw", JSONB, nullable=False, server_default="{}"),
    Column("did", JSONB, nullable=False, server_default="[]"),
    Column("why", Text, nullable=False, server_default=""),
    CheckConstraint(f"step IN ({_listed(StepName)})", name="step_known"),
    CheckConstraint(f"outcome IN ({_listed(StepOutcome)})", name="outcome_known"),
    CheckConstraint("(ended_at IS NULL) = (outcome = 'running')", name="ended_with_outcome"),
    CheckConstraint(
        "jsonb_typeof(saw) = 'object' AND jsonb_typeof(did) = 'array'", name="json_shapes"
    ),
    Index("ix_rebalance_steps_run", "run_id", "id"),
    comment="What each step of a run saw and did, and why; one without an end was under way.",
)
