"""The ledger's tables, in PostgreSQL's schema ``slicewise``; triggers are in the migrations."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    column,
    func,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.runtime.leader_lock import lock_table
from slicewise.slurm_plugin.rules.accounting.types import Account
from slicewise.slurm_plugin.rules.quota.attributes import ATTRIBUTES, SETTINGS
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
)

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

_ACCOUNTS = ", ".join(f"'{kind}'" for kind in Account)
_PERIODS = ", ".join(f"'{period}'" for period in ("off", *Period))
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


def _quota_columns() -> Iterator[Column[Any] | CheckConstraint]:
    for setting in SETTINGS:
        for one in setting.attributes:
            if setting.is_table:
                yield Column(one.field, JSONB(none_as_null=True))
                check, name = f"jsonb_typeof({one.field}) = 'object'", "object"
            else:
                # Each row says the nominal.
                yield Column(one.field, BigInteger, nullable=one.field != "nominal_millislices")
                check, name = f"{one.field} BETWEEN {one.least} AND {one.most}", "in_range"
            yield CheckConstraint(check, name=f"{one.field}_{name}")


def _budget_columns() -> Iterator[Column[Any] | CheckConstraint]:
    for period, *amounts in BUDGET_COLUMNS.values():
        yield Column(period, Text)
        yield from (Column(name, BigInteger) for name in amounts)
        prefix = period.removesuffix("budget_period")
        in_range = (f"{name} BETWEEN 0 AND {MAX_BUDGET_MILLISLICE_S}" for name in amounts)
        whole = f"CASE WHEN {period} <> 'off' THEN 3 ELSE 0 END"
        yield CheckConstraint(f"{period} IN ({_PERIODS})", name=f"{prefix}period_known")
        yield CheckConstraint(" AND ".join(in_range), name=f"{prefix}budget_in_range")
        yield CheckConstraint(
            f"num_nonnulls({', '.join(amounts)}) = {whole}", name=f"{prefix}budget_whole"
        )


quota_changes = Table(
    "quota_changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("parent", Text),
    Column("removed", Boolean),
    *_quota_columns(),
    *_budget_columns(),
    CheckConstraint("tenant <> ''", name="tenant_named"),
    CheckConstraint("parent <> tenant", name="parent_another"),
    Index("ix_quota_changes_latest", "cluster", "tenant", "id"),
    Index("ix_quota_changes_parent", "cluster", "parent"),
    comment="What was changed of a tenant; NULL is left as it was. Append-only.",
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

loan_changes = Table(
    "loan_changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("lender", Text, nullable=False),
    Column("borrower", Text, nullable=False),
    Column("amount_millislices", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint(
        f"amount_millislices BETWEEN 0 AND {MAX_NOMINAL_MILLISLICES}", name="amount_in_range"
    ),
    CheckConstraint("lender <> borrower", name="two_tenants"),
    Index("ix_loan_changes_lender", "cluster", "lender", "id"),
    Index("ix_loan_changes_borrower", "cluster", "borrower", "id"),
    comment="What a loan was changed to; 0 ends it. Append-only; old ones are deleted.",
)

loans = Table(
    "loans",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("lender", Text, primary_key=True),
    Column("borrower", Text, primary_key=True),
    Column("amount_millislices", BigInteger, nullable=False),
    CheckConstraint("amount_millislices > 0", name="amount_positive"),
    Index("ix_loans_borrower", "cluster", "borrower"),
    comment="Idle quota in others' hands now; kept by a trigger on loan_changes.",
)

known_limits = Table(
    "known_limits",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("entity", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("field", Text, primary_key=True),
    Column("before", Text, nullable=False),
    Column("last", Text, nullable=False),
    CheckConstraint("entity IN ('account', 'qos')", name="entity_known"),
    comment="Slurm's limits before they were first touched, and as they were last set.",
)

locks = lock_table(metadata)

served_revisions = Table(
    "served_revisions",
    metadata,
    Column("revision", Text, primary_key=True),
    comment="Programs made for these revisions may use the database as it is.",
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
    Column("meter", Text, nullable=False),
    Column("kind", Text, nullable=False),
    UniqueConstraint("cluster", "tenant", "meter", "kind", name="uq_accounts_tenant"),
    CheckConstraint("meter <> ''", name="meter_named"),
    CheckConstraint(f"kind IN ({_ACCOUNTS})", name="kind_known"),
    comment="Of each tenant and meter one of a kind, made when it is needed; append-only.",
)

balances = Table(
    "balances",
    metadata,
    Column(
        "account_id", BigInteger, ForeignKey(accounts.c.id), primary_key=True, autoincrement=False
    ),
    Column("debits", BigInteger, nullable=False, server_default="0"),
    Column("credits", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("debits >= 0 AND credits >= 0", name="never_negative"),
    comment="Sums over an account's transfers, in the unit of its meter; kept by triggers on"
    " accounts and transfers.",
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
    Column("payer", Text),
    Column("meter", Text, nullable=False),
    UniqueConstraint("cluster", "meter", "job_id", "start_s", name="uq_runs_key"),
    CheckConstraint(
        f"cost_millislices >= 0 AND (cost_millislices > 0) = (meter = '{SLICES.name}')",
        name="cost_positive",
    ),
    CheckConstraint("meter <> ''", name="meter_named"),
    CheckConstraint("payer <> tenant", name="payer_another"),
    Index("ix_runs_tenant", "cluster", "meter", "tenant", "start_s"),
    comment="Who ran what at which cost, or takes what of another meter, and who pays if not the"
    " tenant itself; append-only.",
)

Index("ix_runs_payer", runs.c.cluster, func.coalesce(runs.c.payer, runs.c.tenant), runs.c.meter)

budget_entries = Table(
    "budget_entries",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("period_start_s", BigInteger),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("key", Text),
    Column("meter", Text, nullable=False),
    CheckConstraint("meter <> ''", name="meter_named"),
    CheckConstraint("tenant <> ''", name="tenant_named"),
    CheckConstraint("key <> ''", name="key_named"),
    CheckConstraint("kind IN ('roll', 'grant', 'adjust')", name="kind_known"),
    CheckConstraint("(kind = 'roll') = (period_start_s IS NOT NULL)", name="period_of_roll"),
    CheckConstraint("kind = 'roll' OR amount <> 0", name="amount_not_zero"),
    Index(
        "uq_budget_entries_roll",
        "cluster",
        "tenant",
        "meter",
        "period_start_s",
        unique=True,
        postgresql_where=text("kind = 'roll'"),
    ),
    Index("ix_budget_entries_tenant", "cluster", "tenant", "id"),
    Index(
        "uq_budget_entries_key",
        "cluster",
        "key",
        unique=True,
        postgresql_where=text("key IS NOT NULL"),
    ),
    comment="A tenant's budget was given or taken back, with its transfer; append-only.",
)

shared_hours = Table(
    "shared_hours",
    metadata,
    Column("run_id", BigInteger, ForeignKey(runs.c.id), primary_key=True, autoincrement=False),
    Column("hour_s", BigInteger, primary_key=True, autoincrement=False),
    Column("number", Integer, nullable=False),
    Column("from_s", BigInteger, nullable=False),
    Column("until_s", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("busy_ms", BigInteger, nullable=False),
    Column("weights", JSONB, nullable=False),
    Column("idle", JSONB, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("hour_s % 3600 = 0", name="hour_whole"),
    CheckConstraint("amount >= 0", name="amount_not_negative"),
    CheckConstraint(
        "from_s >= hour_s AND until_s <= hour_s + 3600 AND from_s <= until_s", name="within"
    ),
    Index("ix_shared_hours_hour", "hour_s"),
    comment="Hours of shared services' runs that were divided, and by what, as it was done last."
    " Overwritten, by a function alone.",
)

share_entries = Table(
    "share_entries",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("run_id", BigInteger, nullable=False),
    Column("hour_s", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("day", Date, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("payer", Text),
    Column("part", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    ForeignKeyConstraint(
        ("run_id", "hour_s"),
        (shared_hours.c.run_id, shared_hours.c.hour_s),
        name="fk_share_entries_run_id",
    ),
    UniqueConstraint("run_id", "hour_s", "tenant", "part", "number", name="uq_share_entries_part"),
    CheckConstraint("tenant <> ''", name="tenant_named"),
    CheckConstraint("payer <> tenant", name="payer_another"),
    CheckConstraint("part IN ('tokens', 'idle')", name="part_known"),
    CheckConstraint("amount <> 0", name="amount_not_zero"),
    comment="What of an hour of a run a tenant has more or less than before, and whose budget pays"
    " if not its own; append-only.",
)

Index(
    "ix_share_entries_payer",
    func.coalesce(share_entries.c.payer, share_entries.c.tenant),
    share_entries.c.recorded_at,
)

share_days = Table(
    "share_days",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("day", Date, primary_key=True),
    *(
        Column(name, Text, primary_key=True)
        for name in ("tenant", "payer", "service", "owner_payer")
    ),
    Column("token_millislice_s", BigInteger, nullable=False),
    Column("idle_millislice_s", BigInteger, nullable=False),
    Column("weights", JSONB, nullable=False),
    comment="Sums of share entries by the day and service, and the weights of tokens of the newest"
    " hour. Changed by a function alone.",
)

transfers = Table(
    "transfers",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("run_id", BigInteger),
    Column("number", Integer),
    Column("kind", Text, nullable=False),
    Column("debit_account_id", BigInteger, nullable=False),
    Column("credit_account_id", BigInteger, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("until_s", BigInteger),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("budget_entry_id", BigInteger, ForeignKey(budget_entries.c.id)),
    Column("share_entry_id", BigInteger, ForeignKey(share_entries.c.id)),
    UniqueConstraint("run_id", "number", name="uq_transfers_number"),
    Index(
        "uq_transfers_share",
        "share_entry_id",
        "kind",
        unique=True,
        postgresql_where=text("share_entry_id IS NOT NULL"),
    ),
    Index(
        "uq_transfers_entry",
        "budget_entry_id",
        unique=True,
        postgresql_where=text("budget_entry_id IS NOT NULL"),
    ),
    comment="Each moves an amount between two accounts of one meter, of a run, a budget or a share;"
    " append-only.",
)

seals = Table(
    "seals",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("last_transfer_id", BigInteger, nullable=False),
    Column("last_change_id", BigInteger, nullable=False),
    Column("last_window_id", BigInteger, nullable=False),
    Column("last_window_end_id", BigInteger, nullable=False),
    Column("transfers", BigInteger, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint("transfers >= 0", name="transfers_not_negative"),
    comment="A hash over transfers and changes of quotas since the seal before, and over its hash."
    " Append-only.",
)

sealed_states = Table(
    "sealed_states",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
    CheckConstraint("kind IN ('recalls', 'watermark')", name="kind_known"),
    comment="A hash over what a cluster has now of what is overwritten."
    " Overwritten, by a function alone.",
)

open_reservations = Table(
    "open_reservations",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("reserved", BigInteger, nullable=False),
    Column("posted", BigInteger, nullable=False, server_default="0"),
    CheckConstraint("reserved > 0", name="never_overdrawn"),
    CheckConstraint("posted >= 0", name="never_reversed_beyond"),
    comment="What is reserved and not settled, and posted so far; kept by a trigger on transfers.",
)

lost_runs = Table(
    "lost_runs",
    metadata,
    Column("run_id", BigInteger, ForeignKey(runs.c.id), primary_key=True, autoincrement=False),
    Column("gone_s", Double, nullable=False),
    Column("end_s", BigInteger, nullable=False),
    Column("shown_s", BigInteger),
    comment="Reserved runs that Slurm shows no more, for how long daemons have seen that, and what"
    " is known of their ends. Overwritten.",
)

_ORDERS = ("scale", "restart", "end", "over")

service_orders = Table(
    "service_orders",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("array_job_id", BigInteger, nullable=False),
    Column("what", Text, nullable=False),
    Column("min_replicas", Integer),
    Column("max_replicas", Integer),
    Column("restart_s", Double),
    Column("delete_s", Double),
    Column("author", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    CheckConstraint(f"what IN {_ORDERS}", name="what_known"),
    CheckConstraint(
        "min_replicas >= 0 AND max_replicas >= 1 AND min_replicas <= max_replicas",
        name="replicas_in_range",
    ),
    CheckConstraint(
        "what <> 'over' OR num_nonnulls(min_replicas, max_replicas, restart_s, delete_s) = 0",
        name="over_is_none",
    ),
    Index("ix_service_orders_latest", "cluster", "tenant", "name", "id"),
    comment="What a service's owner ordered beside its script: its newest row holds. Append-only.",
)

service_generations = Table(
    "service_generations",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("array_job_id", BigInteger, nullable=False),
    Column("submitted_s", BigInteger, nullable=False),
    Column("author", Text, nullable=False),
    Column("directives", JSONB, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("ix_service_generations_latest", "cluster", "name", "tenant", "id"),
    Index("ix_service_generations_array", "cluster", "array_job_id", "tenant", "id"),
    comment="What was submitted of each service, one row a generation."
    " Only what never ran is deleted.",
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("service", Text, nullable=False, server_default=""),
    Column("expires_at", DateTime(timezone=True)),
    Column("person", Text, nullable=False),
    UniqueConstraint("cluster", "sha256", name="uq_api_keys_sha256"),
    CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name="sha256_hexadecimal"),
    comment="Who may send requests to a tenant's services: hashes, no key. Append-only.",
)

api_key_revocations = Table(
    "api_key_revocations",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("author", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    ForeignKeyConstraint(
        ("cluster", "key_id"),
        (api_keys.c.cluster, api_keys.c.key_id),
        name="fk_api_key_revocations_cluster",
    ),
    comment="Keys that let nobody in any more. Append-only.",
)

api_key_uses = Table(
    "api_key_uses",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("used_at", DateTime(timezone=True), nullable=False),
    ForeignKeyConstraint(
        ("cluster", "key_id"),
        (api_keys.c.cluster, api_keys.c.key_id),
        name="fk_api_key_uses_cluster",
    ),
    comment="When each key last let a request in, to within a minute or two. Overwritten.",
)

guests = Table(
    "guests",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("person", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("claimed_at", DateTime(timezone=True)),
    Column("ended_by", Text),
    comment="Tenants that the identity provider has named for people without an account, with"
    " their last login that did, and who has ended it. Overwritten.",
)

api_key_blocks = Table(
    "api_key_blocks",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("is_blocked", Boolean, nullable=False),
    Column("author", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("ix_api_key_blocks_latest", "cluster", "key_id", "id"),
    comment="Keys that let nobody in for now; a key's newest row holds. Append-only.",
)

api_key_openings = Table(
    "api_key_openings",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("until_at", DateTime(timezone=True)),
    comment="Until when a tenant's services want no key; NULL: until one is made again. Newest row"
    " holds. Append-only.",
)
