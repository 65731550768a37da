"""The launcher's own database: what it has learnt of each service.

Its calls are synchronous; callers use a thread.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from sqlalchemy import Column, DateTime, MetaData, Table, Text, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import JSONB, insert

from slicewise.cluster.runtime.database import postgres_engine, reading, writing
from slicewise.cluster.runtime.leader_lock import LeaderLock, lock_table

metadata = MetaData(schema="launcher", naming_convention={"pk": "pk_%(table_name)s"})

locks = lock_table(metadata)
service_state = Table(
    "service_state",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("state", JSONB, nullable=False),
    Column("saved_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="What the launcher has learnt of a service; without it the launcher learns anew.",
)

_DEADLINE = text("SET LOCAL statement_timeout = '4s'")

Saved = Mapping[str, object]
"""States as JSON values, by ``tenant/name``."""


class Store(Protocol):
    """Where states are kept. Its methods raise what ``database.reading`` raises."""

    def load(self) -> Saved:
        """Every state."""
        ...

    def save(self, changed: Saved, ended: Collection[str]) -> None:
        """Keep these in place of what there was, and forget those that have ended."""
        ...


class StateStore:
    """One cluster's states in PostgreSQL."""

    def __init__(self, url: str, cluster: str) -> None:
        """``url`` is postgresql://..., ``cluster`` is Slurm's ClusterName; connects later.

        Raises InvalidInputError (SW-SETTINGS).
        """
        self._engine = postgres_engine(url)
        self._cluster = cluster

    def lock(self, host: str) -> LeaderLock:
        """Return the lock of the launcher that leads; ``host`` is the name that others see."""
        return LeaderLock(self._engine, locks, "slicewise launcher", self._cluster, host)

    def load(self) -> Saved:
        """Every state."""
        of = service_state.c
        mine = select(of.tenant, of.name, of.state).where(of.cluster == self._cluster)
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            found = connection.execute(mine).all()
        return {f"{row.tenant}/{row.name}": row.state for row in found}

    def save(self, changed: Saved, ended: Collection[str]) -> None:
        """Keep these in place of what there was, and forget those that have ended."""
        of = service_state.c
        values = [
            dict(zip(("tenant", "name"), key.split("/", 1), strict=True))
            | {"cluster": self._cluster, "state": state}
            for key, state in sorted(changed.items())
        ]
        kept = insert(service_state)
        kept = kept.on_conflict_do_update(
            constraint=service_state.primary_key,
            set_={"state": kept.excluded.state, "saved_at": func.now()},
        )
        gone = delete(service_state).where(
            of.cluster == self._cluster,
            tuple_(of.tenant, of.name).in_([tuple(key.split("/", 1)) for key in ended]),
        )
        with writing(self._engine) as connection:
            connection.execute(_DEADLINE)
            if values:
                connection.execute(kept, values)
            if ended:
                connection.execute(gone)
