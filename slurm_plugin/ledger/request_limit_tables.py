"""The table of limits on requests of tenants, persons and keys."""

from sqlalchemy import ARRAY, Boolean, Column, Text

from slicewise.slurm_plugin.ledger.tables import ledger_table, number_keys, numbers, texts, times

request_limits = ledger_table(
    "request_limits",
    *number_keys("id"),
    *texts("cluster", "tenant", "person", "key_id"),
    *numbers("concurrent", "requests_per_minute", "tokens_per_minute", "tokens_per_month"),
    Column("models", ARRAY(Text)),
    Column("is_exact", Boolean),
    *texts("rank", "author"),
    *times("recorded_at"),
)
