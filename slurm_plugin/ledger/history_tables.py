"""The tables of history: figures of ten seconds, a minute or an hour, a row each."""

from sqlalchemy import REAL, Column, Integer, SmallInteger, Table

from slicewise.slurm_plugin.ledger.tables import ledger_table, number_keys, numbers, texts

history_subjects = ledger_table(
    "history_subjects",
    Column("id", Integer, primary_key=True),
    *texts("cluster", "tenant", "service"),
)
"""What history is of: the cluster itself has no tenant, a tenant itself no service."""


def _figures(name: str, *columns: Column[int] | Column[float]) -> Table:
    return ledger_table(
        name,
        Column("subject_id", Integer, primary_key=True),
        Column("step_s", SmallInteger, primary_key=True),
        Column("samples", SmallInteger),
        *number_keys("at_s"),
        *columns,
    )


SAMPLES = "samples"
"""The column with the number of looks that a row is made of."""
MAX = "max_"
"""What the name of a maximum begins with, before that of its figure."""


def _amounts(*names: str) -> tuple[Column[int], ...]:
    return tuple(Column(name, Integer) for name in names)


def _maxima(*names: str) -> tuple[Column[int], ...]:
    return _amounts(*(MAX + name for name in names))


history_cluster = _figures(
    "history_cluster",
    *_amounts("used", "lent", "idle", "draining", "down", "waiting", "late"),
    *_maxima("used", "lent", "waiting", "late"),
)
"""Slices by state, in millislices: means, and maxima of a step."""

history_tenants = _figures(
    "history_tenants",
    *_amounts("nominal", "in_use", "borrowed", "lent", "waiting", "late"),
    *_maxima("in_use", "waiting"),
    *numbers("budget_left"),
)
"""Tenants with those below them, in millislices: means, and maxima of a step."""

history_services = _figures(
    "history_services",
    *(Column(name, REAL) for name in ("ready", "desired", "backlog", "requests", "p95")),
    *(Column(MAX + name, REAL) for name in ("ready", "backlog", "p95")),
)
"""Services: replicas, requests that wait and that come each second, and milliseconds."""

HISTORY = (history_cluster, history_tenants, history_services)
