"""Keeps which tenants the identity provider has named for people without an account of Slurm's."""

from collections.abc import Collection, Mapping

from sqlalchemy import Double, extract, func, select, update
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.tables import guests

Claimed = Mapping[str, Mapping[str, float]]
"""By guest and tenant, Unix seconds of the last login that named the tenant."""


class GuestClaims(LedgerPart):
    """Guests' memberships: a row for each guest and tenant, which is overwritten."""

    def claimed(self) -> Claimed:
        """What each guest's last login named, without what an operator has ended."""
        row = guests.c
        claimed_s = extract("epoch", row.claimed_at).cast(Double).label("claimed_s")
        query = select(row.person, row.tenant, claimed_s).where(
            row.cluster == self._cluster, row.claimed_at.is_not(None), row.ended_by.is_(None)
        )
        claimed: dict[str, dict[str, float]] = {}
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            for membership in connection.execute(query):
                tenants = claimed.setdefault(membership.person, {})
                tenants[membership.tenant] = membership.claimed_s
        return claimed

    def claim(self, person: str, tenants: Collection[str]) -> None:
        """Note that a login names these tenants for a guest, and no others any more."""
        row = guests.c
        others = update(guests).where(row.cluster == self._cluster, row.person == person)
        claimed = insert(guests)
        claimed = claimed.on_conflict_do_update(
            constraint=guests.primary_key, set_={"claimed_at": claimed.excluded.claimed_at}
        )
        now = func.now()
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(select(func.slicewise.lock_policy(f"guests of {self._cluster}")))
            connection.execute(others.values(claimed_at=None))
            for tenant in sorted(tenants):
                named = {"cluster": self._cluster, "person": person, "tenant": tenant}
                connection.execute(claimed.values(**named, claimed_at=now))

    def end_membership(self, person: str, tenant: str, author: str) -> None:
        """End a guest's membership, whatever later logins name."""
        named = {"cluster": self._cluster, "person": person, "tenant": tenant}
        ended = insert(guests).values(**named, ended_by=author)
        ended = ended.on_conflict_do_update(
            constraint=guests.primary_key, set_={"ended_by": author}
        )
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(ended)

    def allow_membership(self, person: str, tenant: str) -> None:
        """Let the guest's next login name that tenant again."""
        row = guests.c
        mine = (row.cluster == self._cluster, row.person == person, row.tenant == tenant)
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            connection.execute(update(guests).where(*mine).values(ended_by=None, claimed_at=None))
