"""API keys of tenants: hashes, and which are revoked."""

from typing import Any

from sqlalchemy import Select, and_, extract, func, select
from sqlalchemy.dialects.postgresql import insert

from cluster.database import reading, writing
from cluster.errors import InvalidInputError
from cluster.wire import GrantsAnswer, KeyView
from slurm_plugin.ledger.part import DEADLINE, LedgerPart
from slurm_plugin.ledger.tables import api_key_revocations, api_keys

MOST_KEYS = 100
"""Of one tenant at a time: each is a line of the gateway's map."""


class Keys(LedgerPart):
    """A key is never deleted, only revoked."""

    def api_keys(self) -> tuple[KeyView, ...]:
        """Every key, the oldest first."""
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            return tuple(_key(row) for row in connection.execute(self._known()))

    def grants(self) -> GrantsAnswer:
        """Which keys let whom in."""
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            found = connection.execute(self._known()).all()
        return GrantsAnswer(
            tenants={row.sha256: row.tenant for row in found if row.revoked_s is None},
            protected=tuple(sorted({row.tenant for row in found})),
        )

    def add_key(self, key_id: str, tenant: str, name: str, sha256: str, author: str) -> None:
        """Raises InvalidInputError: SW-KEY-LIMIT if the tenant has too many, SW-KEY-TWICE if its id
        or hash is there already.
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
            known = connection.execute(self._known()).all()
            if sum(row.tenant == tenant and row.revoked_s is None for row in known) >= MOST_KEYS:
                raise InvalidInputError(
                    "SW-KEY-LIMIT",
                    f"Tenant {tenant!r} has {MOST_KEYS} keys already.",
                    "Revoke one that nobody uses: slicewise key list",
                )
            if any(row.key_id == key_id or row.sha256 == sha256 for row in known):
                raise InvalidInputError("SW-KEY-TWICE", "That key is there already.", "Try again.")
            connection.execute(insert(api_keys).values(values))

    def revoke_key(self, key_id: str, author: str) -> None:
        """Of a key that is there; once more does nothing."""
        values = {"cluster": self._cluster, "key_id": key_id, "author": author}
        revoked = insert(api_key_revocations).values(values).on_conflict_do_nothing()
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(revoked)

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


def _key(row: Any) -> KeyView:
    return KeyView(
        key_id=row.key_id,
        tenant=row.tenant,
        name=row.name,
        created_by=row.author,
        created_s=row.created_s,
        revoked_s=row.revoked_s,
    )
