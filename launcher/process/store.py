"""The launcher's own database: what it has learnt of each service, and of their replicas.

Its calls are synchronous; callers use a thread.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from sqlalchemy import (
    Column,
    DateTime,
    Engine,
    MetaData,
    Table,
    Text,
    delete,
    func,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB, insert

from slicewise.cluster.runtime.database import postgres_engine, reading, writing
from slicewise.cluster.runtime.leader_lock import LeaderLock, lock_table

metadata = MetaData(schema="launcher")

locks = lock_table(metadata)


def _states(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("cluster", Text, primary_key=True),
        Column("tenant", Text, primary_key=True),
        Column("name", Text, primary_key=True),
        Column("state", JSONB),
        Column("saved_at", DateTime(timezone=True)),
    )


service_state = _states("service_state")
curves = _states("curves")
"""How long requests take in a tenant's replicas of one model, engine and shape."""

_DEADLINE = text("SET LOCAL statement_timeout = '4s'")

Saved = Mapping[str, object]
"""States as JSON values, by ``tenant/name``; of curves the name is a digest."""


class Store(Protocol):
    """Where states are kept. Its methods raise what ``database.reading`` raises."""

    def load(self) -> Saved:
        """Every state."""
        ...

    def save(self, changed: Saved, ended: Collection[str]) -> None:
        """Keep these in place of what there was, and forget those that have ended."""
        ...


class TableStore:
    """One cluster's states in one table of PostgreSQL."""

    def __init__(self, engine: Engine, cluster: str, table: Table) -> None:
        self._engine, self._cluster, self._table = engine, cluster, table

    def load(self) -> Saved:
        """Every state."""
        of = self._table.c
        mine = select(of.tenant, of.name, of.state).where(of.cluster == self._cluster)
        with reading(self._engine) as connection:
            connection.execute(_DEADLINE)
            rows = connection.execute(mine).all()
        return {f"{row.tenant}/{row.name}": row.state for row in rows}

    def save(self, changed: Saved, ended: Collection[str]) -> None:
        """Keep these in place of what there was, and forget those that have ended."""
        of = self._table.c
        values = [
            dict(zip(("tenant", "name"), key.split("/", 1), strict=True))
            | {"cluster": self._cluster, "state": state}
            for key, state in sorted(changed.items())
        ]
        kept = insert(self._table)
        kept = kept.on_conflict_do_update(
            constraint=self._table.primary_key,
            set_={"state": kept.excluded.state, "saved_at": func.now()},
        )
        gone = delete(self._table).where(
            of.cluster == self._cluster,
            tuple_(of.tenant, of.name).in_([tuple(key.split("/", 1)) for key in ended]),
        )
        with writing(self._engine) as connection:
            connection.execute(_DEADLINE)
            if values:
                connection.execute(kept, values)
            if ended:
                connection.execute(gone)


class StateStore(TableStore):
    """What the launchers of one cluster have learnt: of each service, and of their replicas."""

    def __init__(self, url: str, cluster: str) -> None:
        """``url`` is postgresql://..., ``cluster`` is Slurm's ClusterName; connects later.

        Raises InvalidInputError (SW-SETTINGS).
        """
        super().__init__(postgres_engine(url), cluster, service_state)
        self.curves = TableStore(self._engine, cluster, curves)

    def lock(self, host: str) -> LeaderLock:
        """Return the lock of the launcher that leads; ``host`` is the name that others see."""
        return LeaderLock(self._engine, locks, "slicewise launcher", self._cluster, host)
