"""The ledger's tables, in PostgreSQL's schema ``slicewise``, as far as queries name them.

Their defaults, checks, indexes, triggers and comments are in the migrations alone.
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    MetaData,
    Table,
    Text,
    column,
    table,
)
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.runtime.leader_lock import lock_table
from slicewise.slurm_plugin.rules.quota.attributes import ATTRIBUTES, SETTINGS

SCHEMA = "slicewise"

metadata = MetaData(schema=SCHEMA)

BUDGET_COLUMNS = {
    SLICES.name: (
        "budget_period",
        *("budget_millislice_s", "carry_over_millislice_s", "overdraft_millislice_s"),
    ),
    TOKENS.name: (
        "token_budget_period",
        *("budget_tokens", "carry_over_tokens", "overdraft_tokens"),
    ),
}
"""Period, amount, carry-over and overdraft of a budget, by meter."""


def ledger_table(name: str, *columns: Column[Any]) -> Table:
    """Declare a table of the ledger."""
    return Table(name, metadata, *columns)


def keys(*names: str) -> tuple[Column[str], ...]:
    """Columns of text in the primary key."""
    return tuple(Column(name, Text, primary_key=True) for name in names)


def number_keys(*names: str) -> tuple[Column[int], ...]:
    """Columns of whole numbers in the primary key."""
    return tuple(Column(name, BigInteger, primary_key=True) for name in names)


def texts(*names: str) -> tuple[Column[str], ...]:
    """Columns of text."""
    return tuple(Column(name, Text) for name in names)


def numbers(*names: str) -> tuple[Column[int], ...]:
    """Columns of whole numbers."""
    return tuple(Column(name, BigInteger) for name in names)


def times(*names: str) -> tuple[Column[datetime], ...]:
    """Columns of times with their zone."""
    return tuple(Column(name, DateTime(timezone=True)) for name in names)


def jsons(*names: str) -> tuple[Column[Any], ...]:
    """Columns of JSON."""
    return tuple(Column(name, JSONB) for name in names)


def _quota_columns() -> Iterator[Column[Any]]:
    for setting in SETTINGS:
        names = [attribute.field for attribute in setting.attributes]
        if setting.is_table:
            yield from (Column(name, JSONB(none_as_null=True)) for name in names)
        else:
            yield from numbers(*names)
    for period, *amounts in BUDGET_COLUMNS.values():
        yield from texts(period)
        yield from numbers(*amounts)


quota_changes = ledger_table(
    "quota_changes",
    *number_keys("id"),
    *texts("cluster", "tenant", "author", "reason"),
    *times("recorded_at"),
    *texts("parent"),
    Column("removed", Boolean),
    *_quota_columns(),
)

policy = table(
    "policy",
    *(
        column(name)
        for name in (
            "cluster",
            "tenant",
            "parent",
            *(attribute.field for attribute in ATTRIBUTES),
            *chain.from_iterable(BUDGET_COLUMNS.values()),
        )
    ),
    schema=SCHEMA,
)
"""A view of every tenant as ``quota_changes`` leaves it, without removed tenants."""

tariffs = ledger_table(
    "tariffs",
    *number_keys("id"),
    *texts("cluster"),
    *numbers("valid_from_s"),
    *jsons("document"),
    *texts("author", "reason"),
    *times("recorded_at"),
)

loan_changes = ledger_table(
    "loan_changes",
    *number_keys("id"),
    *texts("cluster", "lender", "borrower"),
    *numbers("amount_millislices"),
    *texts("reason"),
    *times("recorded_at"),
)

loans = ledger_table(
    "loans", *keys("cluster", "lender", "borrower"), *numbers("amount_millislices")
)

known_limits = ledger_table(
    "known_limits", *keys("cluster", "entity", "name", "field"), *texts("before", "last")
)

locks = lock_table(metadata)

served_revisions = ledger_table("served_revisions", *keys("revision"))

compilations = ledger_table(
    "compilations", *keys("cluster"), *numbers("change_id"), *times("compiled_at")
)

watermarks = ledger_table("watermarks", *keys("cluster"), *numbers("accounted_until_s"))

accounts = ledger_table(
    "accounts", *number_keys("id"), *texts("cluster", "tenant", "meter", "kind")
)

balances = ledger_table("balances", *number_keys("account_id"), *numbers("debits", "credits"))

runs = ledger_table(
    "runs",
    *number_keys("id"),
    *texts("cluster"),
    *numbers("job_id", "start_s"),
    *texts("tenant", "user_name", "task"),
    *jsons("gres"),
    *numbers("cost_millislices"),
    *texts("payer", "meter"),
)

budget_entries = ledger_table(
    "budget_entries",
    *number_keys("id"),
    *texts("cluster", "tenant", "kind"),
    *numbers("amount", "period_start_s"),
    *texts("author", "reason"),
    *times("recorded_at"),
    *texts("key", "meter"),
)

share_entries = ledger_table(
    "share_entries",
    *number_keys("id"),
    *numbers("run_id", "hour_s"),
    Column("number", Integer),
    Column("day", Date),
    *texts("tenant", "payer", "part", "service", "replica_of"),
    *numbers("amount"),
    *times("recorded_at"),
)

transfers = ledger_table(
    "transfers",
    *number_keys("id"),
    *numbers("run_id"),
    Column("number", Integer),
    *texts("kind"),
    *numbers("debit_account_id", "credit_account_id", "amount", "until_s"),
    *times("recorded_at"),
    *numbers("budget_entry_id", "share_entry_id"),
)

open_reservations = ledger_table(
    "open_reservations", *number_keys("run_id"), *numbers("reserved", "posted")
)

lost_runs = ledger_table(
    "lost_runs", *number_keys("run_id"), Column("gone_s", Double), *numbers("end_s", "shown_s")
)

service_orders = ledger_table(
    "service_orders",
    *number_keys("id"),
    *texts("cluster", "tenant", "name"),
    *numbers("array_job_id"),
    *texts("what"),
    Column("min_replicas", Integer),
    Column("max_replicas", Integer),
    Column("restart_s", Double),
    Column("delete_s", Double),
    *texts("author"),
    *times("recorded_at"),
)

service_generations = ledger_table(
    "service_generations",
    *number_keys("id"),
    *texts("cluster", "tenant", "name"),
    *numbers("array_job_id", "submitted_s"),
    *texts("author"),
    *jsons("directives"),
    *times("recorded_at"),
)

api_keys = ledger_table(
    "api_keys",
    *keys("cluster", "key_id"),
    *texts("tenant", "name", "sha256", "author"),
    *times("recorded_at"),
    *texts("service"),
    *times("expires_at"),
    *texts("person"),
)

api_key_revocations = ledger_table(
    "api_key_revocations", *keys("cluster", "key_id"), *texts("author"), *times("recorded_at")
)

api_key_uses = ledger_table("api_key_uses", *keys("cluster", "key_id"), *times("used_at"))

guests = ledger_table(
    "guests", *keys("cluster", "person", "tenant"), *times("claimed_at"), *texts("ended_by")
)

api_key_blocks = ledger_table(
    "api_key_blocks",
    *number_keys("id"),
    *texts("cluster", "key_id"),
    Column("is_blocked", Boolean),
    *texts("author"),
    *times("recorded_at"),
)

api_key_openings = ledger_table(
    "api_key_openings",
    *number_keys("id"),
    *texts("cluster", "tenant", "author"),
    *times("recorded_at", "until_at"),
)
