"""Keeps API keys of tenants: their hashes, and which are revoked."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, extract, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from cluster.language.errors import InvalidInputError
from cluster.rpc.key_messages import GrantsAnswer, KeyView
from cluster.runtime.database import reading, writing
from slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slurm_plugin.ledger_tables.tables import api_key_openings, api_key_revocations, api_keys

MOST_KEYS = 100
"""Most valid keys of one tenant: each is a line of the gateway's map."""


class Keys(LedgerPart):
    """API keys. A key is never deleted, only revoked."""

    def all(self) -> tuple[KeyView, ...]:
        """Every key, the oldest first."""
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            return tuple(_key(row) for row in connection.execute(self._known()))

    def grants(self) -> GrantsAnswer:
        """The valid keys' hashes with their tenants; revoked keys don't leave the database."""
        key = api_keys.c
        mine = key.cluster == self._cluster
        valid = select(key.sha256, key.tenant).where(mine, ~_is_revoked())
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            granted = connection.execute(valid).all()
            closed = select(key.tenant).where(mine, ~_is_opened()).distinct()
            tenants = connection.execute(closed).scalars()
            return GrantsAnswer(
                tenants={row.sha256: row.tenant for row in granted},
                protected=tuple(sorted(tenants)),
            )

    def add(self, key_id: str, tenant: str, name: str, sha256: str, author: str) -> None:
        """Add a key; a second time does nothing while the key is valid.

        A command sends its change once more if it got no answer. Raises InvalidInputError:
        SW-KEY-LIMIT if the tenant has too many, SW-KEY-TWICE if another key has the id or hash.
        """
        values = {
            "cluster": self._cluster,
            "key_id": key_id,
            "tenant": tenant,
            "name": name,
            "sha256": sha256,
            "author": author,
        }
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"keys of {self._cluster}")))
            if self._is_made(connection, values):
                return
            if connection.execute(self._valid(tenant)).scalar_one() >= MOST_KEYS:
                raise InvalidInputError(
                    "SW-KEY-LIMIT",
                    f"Tenant {tenant!r} has {MOST_KEYS} keys already.",
                    "Revoke one that is not used: slicewise key list",
                )
            connection.execute(insert(api_keys).values(values))

    def _is_made(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        """Whether exactly this key is there and valid; raises InvalidInputError (SW-KEY-TWICE)."""
        key = api_keys.c
        same = or_(key.key_id == values["key_id"], key.sha256 == values["sha256"])
        columns = (key[name] for name in values)
        known = select(*columns, _is_revoked().label("revoked")).where(
            key.cluster == self._cluster, same
        )
        found = [dict(row) for row in connection.execute(known).mappings()]
        if found and found != [{**values, "revoked": False}]:
            raise InvalidInputError("SW-KEY-TWICE", "This key exists already.", "Try again.")
        return bool(found)

    def revoke(self, key_id: str, author: str) -> None:
        """Revoke an existing key; a second time does nothing."""
        values = {"cluster": self._cluster, "key_id": key_id, "author": author}
        revoked = insert(api_key_revocations).values(values).on_conflict_do_nothing()
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(revoked)

    def open_tenant(self, tenant: str, author: str) -> None:
        """Let a tenant's services need no key from now on, until another key is made.

        Raises InvalidInputError (SW-KEY-VALID) while the tenant has a valid key.
        """
        values = {"cluster": self._cluster, "tenant": tenant, "author": author}
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"keys of {self._cluster}")))
            if connection.execute(self._valid(tenant)).scalar_one():
                raise InvalidInputError(
                    "SW-KEY-VALID",
                    f"Tenant {tenant!r} has keys that are not revoked.",
                    "Revoke them first: slicewise key list",
                )
            connection.execute(insert(api_key_openings).values(values))

    def _valid(self, tenant: str) -> Select[Any]:
        key = api_keys.c
        mine = select(func.count()).where(key.cluster == self._cluster, key.tenant == tenant)
        return mine.where(~_is_revoked())

    def _known(self) -> Select[Any]:
        key, revoked = api_keys.c, api_key_revocations.c
        same = and_(revoked.cluster == key.cluster, revoked.key_id == key.key_id)
        return (
            select(
                *(key.key_id, key.tenant, key.name, key.sha256, key.author),
                extract("epoch", key.recorded_at).label("created_s"),
                extract("epoch", revoked.recorded_at).label("revoked_s"),
            )
            .outerjoin(api_key_revocations, same)
            .where(key.cluster == self._cluster)
            .order_by(key.recorded_at, key.key_id)
        )


def _is_revoked() -> ColumnElement[bool]:
    key, revoked = api_keys.c, api_key_revocations.c
    return exists().where(revoked.cluster == key.cluster, revoked.key_id == key.key_id)


def _is_opened() -> ColumnElement[bool]:
    key, opened = api_keys.c, api_key_openings.c
    return exists().where(
        opened.cluster == key.cluster,
        opened.tenant == key.tenant,
        opened.recorded_at >= key.recorded_at,
    )


def _key(row: Any) -> KeyView:
    return KeyView(
        key_id=row.key_id,
        tenant=row.tenant,
        name=row.name,
        created_by=row.author,
        created_s=row.created_s,
        revoked_s=row.revoked_s,
    )
