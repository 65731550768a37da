"""The tables of history: figures of ten seconds, a minute or an hour, a row each."""

from sqlalchemy import (
    REAL,
    BigInteger,
    Column,
    ForeignKey,
    Identity,
    Integer,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

from slicewise.slurm_plugin.ledger.tables import SCHEMA, metadata

history_subjects = Table(
    "history_subjects",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("service", Text, nullable=False),
    UniqueConstraint("cluster", "tenant", "service"),
    comment="What history is of: the cluster itself has no tenant, a tenant itself no service.",
)


def _figures(name: str, comment: str, *columns: Column[int] | Column[float]) -> Table:
    return Table(
        name,
        metadata,
        Column(
            "subject_id", Integer, ForeignKey(f"{SCHEMA}.history_subjects.id"), primary_key=True
        ),
        Column("step_s", SmallInteger, primary_key=True),
        Column("samples", SmallInteger, nullable=False),
        Column("at_s", BigInteger, primary_key=True),
        *columns,
        comment=comment,
    )


SAMPLES = "samples"
"""The column with the number of looks that a row is made of."""
MAX = "max_"
"""What the name of a maximum begins with, before that of its figure."""


def _amounts(*names: str) -> tuple[Column[int], ...]:
    return tuple(Column(name, Integer, nullable=False) for name in names)


def _maxima(*names: str) -> tuple[Column[int], ...]:
    return _amounts(*(MAX + name for name in names))


history_cluster = _figures(
    "history_cluster",
    "Slices by state, in millislices: means, and maxima of a step.",
    *_amounts("used", "lent", "idle", "draining", "down", "waiting", "late"),
    *_maxima("used", "lent", "waiting", "late"),
)

history_tenants = _figures(
    "history_tenants",
    "Tenants with those below them, in millislices: means, and maxima of a step.",
    *_amounts("nominal", "in_use", "borrowed", "lent", "waiting", "late"),
    *_maxima("in_use", "waiting"),
    Column("budget_left", BigInteger),
)

history_services = _figures(
    "history_services",
    "Services: replicas, requests that wait and that come each second, and milliseconds.",
    *(Column(name, REAL) for name in ("ready", "desired", "backlog", "requests", "p95")),
    *(Column(MAX + name, REAL) for name in ("ready", "backlog", "p95")),
)

HISTORY = (history_cluster, history_tenants, history_services)
