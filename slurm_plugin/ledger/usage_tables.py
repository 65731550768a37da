"""Tables of what requests used: records, their sums by the hour, and what engines counted."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    TableClause,
    Text,
    UniqueConstraint,
    column,
    table,
)

from slicewise.slurm_plugin.ledger.tables import SCHEMA, metadata

_RUN = ("array_job_id", "index", "run_start_s")
_TOKENS = ("prompt_tokens", "cached_prompt_tokens", "output_tokens")


def _numbers(*names: str) -> tuple[Column[int], ...]:
    return tuple(Column(name, BigInteger, nullable=False) for name in names)


def _number_keys(*names: str) -> tuple[Column[int], ...]:
    return tuple(Column(name, BigInteger, primary_key=True, autoincrement=False) for name in names)


def _text_keys(*names: str) -> tuple[Column[str], ...]:
    return tuple(Column(name, Text, primary_key=True) for name in names)


usage_gateways = Table(
    "usage_gateways",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("boot", Text, nullable=False),
    UniqueConstraint("cluster", "boot", name="uq_usage_gateways_boot"),
    comment="Each process of a gateway that has numbered requests; append-only.",
)

usage_records = Table(
    "usage_records",
    metadata,
    Column("gateway_id", Integer, primary_key=True, autoincrement=False),
    Column("day", Date, nullable=False),
    *_number_keys("number"),
    *(Column(name, Text, nullable=False) for name in ("payer", "person", "key_id", "service")),
    *_numbers(*_RUN, "start_ms", "end_ms", *_TOKENS),
    Column("first_token_ms", BigInteger),
    Column("outcome", Text, nullable=False),
    CheckConstraint(
        "cached_prompt_tokens BETWEEN 0 AND prompt_tokens AND prompt_tokens <= 2147483647"
        " AND output_tokens BETWEEN 0 AND 2147483647",
        name="tokens_in_range",
    ),
    Index("ix_usage_records_end", "end_ms", postgresql_using="brin"),
    comment="What each request used, once for its gateway and number. Old ones are deleted.",
)

usage_hours = Table(
    "usage_hours",
    metadata,
    *_text_keys("cluster"),
    *_number_keys("hour_s"),
    Column("day", Date, primary_key=True),
    *_text_keys("payer", "service"),
    *_number_keys(*_RUN),
    *_numbers("requests", *_TOKENS),
    comment="Sums of usage records by run and the hour of their ends. Changed by functions alone.",
)

usage_runs = Table(
    "usage_runs",
    metadata,
    *_text_keys("cluster"),
    *_number_keys(*_RUN),
    *_numbers(*_TOKENS),
    comment="Sums of usage records by run, beside what its engine counted."
    " Changed by functions alone.",
)

usage_days = Table(
    "usage_days",
    metadata,
    *_text_keys("cluster"),
    Column("day", Date, primary_key=True),
    *_text_keys("payer", "person", "key_id", "service"),
    *_numbers("requests", *_TOKENS, "first_tokens", "first_token_ms"),
    Index("ix_usage_days_person", "cluster", "person", "day"),
    comment="Sums of usage records by person, key and the day of their ends."
    " Changed by functions alone.",
)


def _view(name: str) -> TableClause:
    names = (*(each.name for each in usage_days.c), "millislice_s")
    return table(name, *(column(each) for each in names), schema=SCHEMA)


usage_sums = _view("usage_sums")
"""A view: sums by the day, and what tenants are charged of services' runs, of person ``-``."""
usage_costs = _view("usage_costs")
"""The same, of which the tenant's part of busy time is divided among persons and keys."""

usage_months = Table(
    "usage_months",
    metadata,
    *_text_keys("cluster"),
    Column("month", Date, primary_key=True),
    *_text_keys("payer", "person", "key_id"),
    *_numbers("tokens"),
    comment="Prompt and output tokens by the month of their ends, for limits."
    " Changed by functions alone.",
)

forgotten_persons = Table(
    "forgotten_persons",
    metadata,
    *_text_keys("cluster"),
    Column("person", LargeBinary, primary_key=True),
    *_text_keys("payer"),
    *_numbers("before_ms"),
    comment="SHA-256 of names that no record of a request that ended before may bring back;"
    " payer '' is all. Kept as long as such records are booked.",
)

allowances = Table(
    "allowances",
    metadata,
    Column("gateway_id", Integer, primary_key=True, autoincrement=False),
    *_text_keys("tenant", "person", "key_id"),
    *_numbers("tokens"),
    Column("expires_s", Double, nullable=False),
    CheckConstraint("tokens >= 0", name="tokens_not_negative"),
    comment="Tokens set aside for a gateway, of a subject that has a limit, until they expire."
    " Overwritten.",
)

engine_counters = Table(
    "engine_counters",
    metadata,
    *_text_keys("cluster"),
    *_number_keys(*_RUN),
    Column("service", Text, nullable=False),
    *_numbers("prompt_tokens", "output_tokens"),
    Column("counts_cached", Boolean, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False),
    Index("ix_engine_counters_seen", "cluster", "seen_at"),
    comment="What the engine of each run has counted since its start, as last seen, with"
    " tokens of its cache or without. Overwritten.",
)
