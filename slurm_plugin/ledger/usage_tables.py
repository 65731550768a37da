"""Tables of what requests used: records, their sums by the hour, and what engines counted."""

from sqlalchemy import (
    Boolean,
    Column,
    Date,
    Double,
    Integer,
    TableClause,
    column,
    table,
)

from slicewise.slurm_plugin.ledger.tables import (
    SCHEMA,
    keys,
    ledger_table,
    number_keys,
    numbers,
    texts,
    times,
)

_RUN = ("array_job_id", "index", "run_start_s")
_TOKENS = ("prompt_tokens", "cached_prompt_tokens", "output_tokens")

usage_gateways = ledger_table(
    "usage_gateways", Column("id", Integer, primary_key=True), *texts("cluster", "boot")
)

usage_records = ledger_table(
    "usage_records",
    Column("gateway_id", Integer, primary_key=True),
    Column("day", Date),
    *number_keys("number"),
    *texts("payer", "person", "key_id", "service"),
    *numbers(*_RUN, "start_ms", "end_ms", *_TOKENS, "first_token_ms"),
    *texts("outcome"),
)

usage_runs = ledger_table("usage_runs", *keys("cluster"), *number_keys(*_RUN), *numbers(*_TOKENS))

usage_days = ledger_table(
    "usage_days",
    *keys("cluster"),
    Column("day", Date, primary_key=True),
    *keys("payer", "person", "key_id", "service"),
    *numbers("requests", *_TOKENS, "first_tokens", "first_token_ms"),
)


def _view(name: str) -> TableClause:
    names = (*(each.name for each in usage_days.c), "millislice_s")
    return table(name, *(column(each) for each in names), schema=SCHEMA)


usage_sums = _view("usage_sums")
"""A view: sums by the day, and what tenants are charged of services' runs, of person ``-``."""
usage_costs = _view("usage_costs")
"""The same, of which the tenant's part of busy time is divided among persons and keys."""

usage_months = ledger_table(
    "usage_months",
    *keys("cluster"),
    Column("month", Date, primary_key=True),
    *keys("payer", "person", "key_id"),
    *numbers("tokens"),
)

allowances = ledger_table(
    "allowances",
    Column("gateway_id", Integer, primary_key=True),
    *keys("tenant", "person", "key_id"),
    *numbers("tokens"),
    Column("expires_s", Double),
)

engine_counters = ledger_table(
    "engine_counters",
    *keys("cluster"),
    *number_keys(*_RUN),
    *texts("service"),
    *numbers("prompt_tokens", "output_tokens"),
    Column("counts_cached", Boolean),
    *times("seen_at"),
)
