"""Keeps API keys of tenants: their hashes, which are revoked, and when each was last used."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Select,
    and_,
    exists,
    extract,
    false,
    func,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.persons import NOBODY, person_of
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant, KeyView
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.tables import (
    api_key_blocks,
    api_key_openings,
    api_key_revocations,
    api_key_uses,
    api_keys,
)
from slicewise.slurm_plugin.rules.services.key_rights import Opening, wanted_from_s

MOST_KEYS = 100
"""Most valid keys of one person in one tenant."""
MOST_OF_TENANT = 1000
"""Most valid keys of one tenant: each is a line of the gateway's map."""


def _nobody_has_left(_person: str, _tenant: str) -> bool:
    return False


@dataclass(frozen=True)
class NewKey:
    """A key to be added.

    Attributes:
        author: who made it.
        person: whose it is; "": the author's; NOBODY: who orders it is known elsewhere.
        service: the only service of the tenant that it opens; "": all.
        expires_s: Unix seconds from which it lets no request in; None: never.
    """

    key_id: str
    tenant: str
    name: str
    sha256: str
    author: str
    service: str = ""
    expires_s: int | None = None
    person: str = ""


class Keys(LedgerPart):
    """API keys. A key is never deleted, only revoked."""

    def all(self) -> tuple[KeyView, ...]:
        """Every key, the oldest first."""
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            return tuple(_key(row) for row in connection.execute(self._known()))

    def grants(self, has_left: Callable[[str, str], bool] = _nobody_has_left) -> GrantsAnswer:
        """The valid keys' hashes with what they open; other keys don't leave the database.

        ``has_left`` says of a person and a tenant whether the person is no member any more: such
        keys are no valid ones.
        """
        key = api_keys.c
        mine = key.cluster == self._cluster
        expires_s = extract("epoch", key.expires_at).label("expires_s")
        columns = (key.sha256, key.tenant, key.service, key.key_id, key.person, expires_s)
        valid = select(*columns).where(mine, _is_valid(), ~_is_blocked())
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            granted = connection.execute(valid).all()
            made = {row.tenant: row.made_s for row in connection.execute(self._newest_keys())}
            openings = {
                row.tenant: Opening(row.at_s, row.until_s)
                for row in connection.execute(self._newest_openings())
            }
        return GrantsAnswer(
            keys={
                row.sha256: _grant(row) for row in granted if not has_left(row.person, row.tenant)
            },
            wanted_from_s=dict(sorted(wanted_from_s(made, openings).items())),
        )

    def _newest_keys(self) -> Select[Any]:
        key = api_keys.c
        made_s = extract("epoch", func.max(key.recorded_at)).cast(Double).label("made_s")
        return select(key.tenant, made_s).where(key.cluster == self._cluster).group_by(key.tenant)

    def _newest_openings(self) -> Select[Any]:
        opened = api_key_openings.c
        ids = select(func.max(opened.id)).where(opened.cluster == self._cluster)
        return select(
            opened.tenant,
            extract("epoch", opened.recorded_at).cast(Double).label("at_s"),
            extract("epoch", opened.until_at).cast(Double).label("until_s"),
        ).where(opened.id.in_(ids.group_by(opened.tenant)))

    def add(self, new: NewKey, *, in_place_of: str = "") -> None:
        """Add a key; a second time does nothing while the key is valid.

        The key ``in_place_of`` is revoked with that, or neither happens. A command sends its change
        once more if it got no answer. Raises InvalidInputError: SW-KEY-REVOKE if the person or the
        tenant has too many, SW-KEY-TWICE if another key has the id or hash.
        """
        values = {"cluster": self._cluster, **asdict(new), "expires_at": _time(new.expires_s)}
        values["person"] = new.person or new.author
        del values["expires_s"]
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"keys of {self._cluster}")))
            if self._is_made(connection, values):
                return
            if in_place_of:
                self._revoke(connection, in_place_of, new.author)
            valid, person = self._valid(new.tenant), str(values["person"])
            if connection.execute(valid).scalar_one() >= MOST_OF_TENANT:
                raise _too_many(f"Tenant {new.tenant!r} has {MOST_OF_TENANT} keys already.")
            own = valid.where(api_keys.c.person == person)
            if person != NOBODY and connection.execute(own).scalar_one() >= MOST_KEYS:
                raise _too_many(f"{person} has {MOST_KEYS} keys of {new.tenant!r} already.")
            connection.execute(insert(api_keys).values(values))

    def _is_made(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        """Whether exactly this key is there and valid; raises InvalidInputError (SW-KEY-TWICE)."""
        key = api_keys.c
        same = or_(key.key_id == values["key_id"], key.sha256 == values["sha256"])
        columns = (key[name] for name in values)
        known = select(*columns, _is_valid().label("valid")).where(
            key.cluster == self._cluster, same
        )
        found = [dict(row) for row in connection.execute(known).mappings()]
        if found and found != [{**values, "valid": True}]:
            raise InvalidInputError(Code.KEY_TWICE, "This key exists already.", "Try again.")
        return bool(found)

    def revoke(self, key_id: str, author: str) -> None:
        """Revoke an existing key; a second time does nothing."""
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            self._revoke(connection, key_id, author)

    def _revoke(self, connection: Connection, key_id: str, author: str) -> None:
        values = {"cluster": self._cluster, "key_id": key_id, "author": author}
        connection.execute(insert(api_key_revocations).values(values).on_conflict_do_nothing())

    def block(self, key_id: str, author: str, *, is_blocked: bool) -> None:
        """Let a key, which need not be there yet, let nobody in for now, or in again."""
        values = {"cluster": self._cluster, "key_id": key_id, "author": author}
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(insert(api_key_blocks).values({**values, "is_blocked": is_blocked}))

    def open_tenant(self, tenant: str, author: str) -> None:
        """Let a tenant's services need no key from now on, until another key is made.

        Raises InvalidInputError (SW-KEY-REVOKE) while the tenant has a valid key.
        """
        values = {"cluster": self._cluster, "tenant": tenant, "author": author}
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"keys of {self._cluster}")))
            if connection.execute(self._valid(tenant)).scalar_one():
                raise InvalidInputError(
                    Code.KEY_REVOKE,
                    f"Tenant {tenant!r} has keys that are not revoked.",
                    "Delete them first: slicewise key list, then slicewise key delete",
                )
            connection.execute(insert(api_key_openings).values(values))

    def require_from(self, tenant: str, from_s: int, author: str) -> None:
        """Let a tenant's services want keys from that moment on (Unix seconds), and none before."""
        values = {"cluster": self._cluster, "tenant": tenant, "author": author}
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(
                insert(api_key_openings).values({**values, "until_at": _time(from_s)})
            )

    def _valid(self, tenant: str) -> Select[Any]:
        key = api_keys.c
        mine = select(func.count()).where(key.cluster == self._cluster, key.tenant == tenant)
        return mine.where(_is_valid())

    def note_uses(self, used_s: Mapping[str, float]) -> None:
        """Note when keys last let a request in: Unix seconds by hash. The latest time is kept."""
        key, use = api_keys.c, api_key_uses.c
        known = select(key.key_id, key.sha256).where(
            key.cluster == self._cluster, key.sha256.in_(list(used_s))
        )
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            # In one order everywhere: two programs that note the same keys do not block each other.
            rows = [
                {
                    "cluster": self._cluster,
                    "key_id": row.key_id,
                    "used_at": _time(used_s[row.sha256]),
                }
                for row in connection.execute(known.order_by(key.key_id))
            ]
            if not rows:
                return
            noted = insert(api_key_uses)
            later = noted.excluded.used_at
            connection.execute(
                noted.on_conflict_do_update(
                    index_elements=[use.cluster, use.key_id],
                    set_={"used_at": later},
                    where=later > use.used_at,
                ),
                rows,
            )

    def _known(self) -> Select[Any]:
        key, revoked, used = api_keys.c, api_key_revocations.c, api_key_uses.c
        same = and_(revoked.cluster == key.cluster, revoked.key_id == key.key_id)
        its = and_(used.cluster == key.cluster, used.key_id == key.key_id)
        return (
            select(
                *(key.key_id, key.tenant, key.service, key.name, key.person, key.author),
                extract("epoch", key.expires_at).label("expires_s"),
                extract("epoch", used.used_at).label("used_s"),
                extract("epoch", key.recorded_at).label("created_s"),
                extract("epoch", revoked.recorded_at).label("revoked_s"),
                _is_blocked().label("is_blocked"),
            )
            .outerjoin(api_key_revocations, same)
            .outerjoin(api_key_uses, its)
            .where(key.cluster == self._cluster)
            .order_by(key.recorded_at, key.key_id)
        )


def _is_revoked() -> ColumnElement[bool]:
    key, revoked = api_keys.c, api_key_revocations.c
    return exists().where(revoked.cluster == key.cluster, revoked.key_id == key.key_id)


def _is_blocked() -> ColumnElement[bool]:
    key, block = api_keys.c, api_key_blocks.c
    of_key = and_(block.cluster == key.cluster, block.key_id == key.key_id)
    newest = select(block.is_blocked).where(of_key).order_by(block.id.desc()).limit(1)
    return func.coalesce(newest.scalar_subquery(), false())


def _is_valid() -> ColumnElement[bool]:
    key = api_keys.c
    return and_(~_is_revoked(), or_(key.expires_at.is_(None), key.expires_at > func.now()))


def _too_many(what: str) -> InvalidInputError:
    hint = "Delete one that is not used: slicewise key list, then slicewise key delete"
    return InvalidInputError(Code.KEY_REVOKE, what, hint)


def _key(row: Any) -> KeyView:
    return KeyView(
        key_id=row.key_id,
        tenant=row.tenant,
        name=row.name,
        created_by=row.author,
        person=row.person,
        created_s=row.created_s,
        revoked_s=row.revoked_s,
        service=row.service,
        expires_s=row.expires_s,
        used_s=row.used_s,
        is_blocked=row.is_blocked,
    )


def _grant(row: Any) -> KeyGrant:
    return KeyGrant(
        opens=f"{row.tenant}/{row.service}" if row.service else row.tenant,
        key_id=row.key_id,
        person=person_of(row.person),
        expires_s=row.expires_s,
    )


def _time(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
