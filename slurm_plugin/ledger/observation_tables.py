"""The tables of sums for ``slicewise observe``."""

from sqlalchemy import Boolean, Column

from slicewise.slurm_plugin.ledger.tables import keys, ledger_table, number_keys, numbers

observed_submissions = ledger_table(
    "observed_submissions",
    *keys("cluster"),
    *number_keys("day_s"),
    *keys("mode", "tenant", "user_name", "code", "gpu_type"),
    Column("is_borrowed", Boolean, primary_key=True),
    *numbers("submissions", "moved_qos", "moved_type", "asked_millislices"),
)

observed_loans = ledger_table(
    "observed_loans",
    *keys("cluster"),
    *number_keys("day_s"),
    *keys("lender", "borrower"),
    *numbers("lent_millislice_s", "recalls", "recalled_millislices"),
)

observed_quota = ledger_table(
    "observed_quota",
    *keys("cluster"),
    *number_keys("day_s"),
    *keys("tenant"),
    *numbers("seconds", "guaranteed_millislice_s", "idle_millislice_s"),
    *numbers("idle_wanted_millislice_s", "wanted_millislice_s"),
)

OBSERVED = (observed_submissions, observed_loans, observed_quota)
