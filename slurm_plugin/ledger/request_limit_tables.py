"""The table of limits on requests of tenants, persons and keys."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Table,
    Text,
    func,
)

from slicewise.slurm_plugin.ledger.tables import metadata

request_limits = Table(
    "request_limits",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("person", Text, nullable=False, server_default=""),
    Column("key_id", Text, nullable=False, server_default=""),
    Column("concurrent", BigInteger),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("tokens_per_month", BigInteger),
    Column("models", ARRAY(Text)),
    Column("is_exact", Boolean, nullable=False, server_default="false"),
    Column("rank", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("person = '' OR key_id = ''", name="one_subject"),
    CheckConstraint("rank IN ('person', 'manager', 'operator')", name="rank_known"),
    CheckConstraint(
        "concurrent >= 0 AND requests_per_minute >= 0"
        " AND tokens_per_minute >= 0 AND tokens_per_month >= 0",
        name="not_negative",
    ),
    Index("ix_request_limits_latest", "cluster", "tenant", "person", "key_id", "rank", "id"),
    comment="Limits on the requests of a tenant, a person in it, or a key; a subject's newest rows"
    " of each rank hold together. Append-only.",
)
