"""Tables of recalled quota, of the calendar's windows, and of the journal of ``slicewise
rebalance``.
"""

from sqlalchemy import Column, Integer

from slicewise.slurm_plugin.ledger.tables import (
    jsons,
    keys,
    ledger_table,
    number_keys,
    numbers,
    texts,
    times,
)

recalls = ledger_table(
    "recalls",
    *keys("cluster", "lender", "borrower"),
    *number_keys("called_s"),
    *numbers("amount_millislices"),
)

quota_windows = ledger_table(
    "quota_windows",
    *number_keys("id"),
    *texts("cluster", "tenant", "kind"),
    *numbers("amount_millislices"),
    *jsons("days"),
    Column("begin_min", Integer),
    Column("end_min", Integer),
    *numbers("first_s", "last_s"),
    *texts("author", "reason"),
    *times("recorded_at"),
)

quota_window_ends = ledger_table(
    "quota_window_ends",
    *numbers("id"),
    *number_keys("window_id"),
    *texts("author", "reason"),
    *times("recorded_at"),
)

rebalance_runs = ledger_table(
    "rebalance_runs",
    *number_keys("id"),
    *texts("cluster", "author", "host", "outcome"),
    *times("started_at", "ended_at"),
)

rebalance_steps = ledger_table(
    "rebalance_steps",
    *number_keys("id"),
    *numbers("run_id"),
    *texts("step", "outcome"),
    *times("started_at", "ended_at"),
    *jsons("saw", "did"),
    *texts("why"),
)
