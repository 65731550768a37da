"""Decides whose keys let requests in, and which tenants' services want keys."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.persons import NOBODY, is_guest


@dataclass(frozen=True)
class Members:
    """Who belongs to which accounts, by name; names need no database of users to be read.

    Attributes:
        accounts: accounts of each of Slurm's users, as last read completely; empty until then.
        operators: names of operators, who belong everywhere.
        coordinated: accounts of which each user is a coordinator in Slurm, as last read completely.
        parents: the account above each of Slurm's accounts.
        guests: tenants of people without an account, whom the identity provider has named.
    """

    accounts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()
    coordinated: Mapping[str, frozenset[str]] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    guests: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def has_left(self, person: str, tenant: str) -> bool:
        """Whether a person is no member of the tenant's account, or a guest of the tenant no more.

        Of people with accounts False until those were read. Nobody never leaves: of such keys
        another knows whose they are, and ends them.
        """
        if is_guest(person):
            return tenant not in self.guests.get(person, ())
        if not self.accounts or person == NOBODY or person in self.operators:
            return False
        return tenant not in self.accounts.get(person, ())

    def managed_by(self, user: str, tenants: Iterable[str]) -> frozenset[str]:
        """Those of these tenants that a user manages: coordinated accounts, with all below."""
        own = self.coordinated.get(user)
        return frozenset(t for t in tenants if not own.isdisjoint(self._up(t))) if own else _NOTHING

    def _up(self, account: str) -> Iterator[str]:
        """An account and those above it; a coordinator may nest accounts as deep as it likes."""
        seen: set[str] = set()
        while account and account not in seen:
            yield account
            seen.add(account)
            account = self.parents.get(account, "")


_NOTHING: frozenset[str] = frozenset()


def guests_now(
    claimed: Mapping[str, Mapping[str, float]], oldest_s: float, allowed: Collection[str]
) -> Mapping[str, frozenset[str]]:
    """The tenants of each guest: those that a login since then has named, and that are allowed.

    ``claimed``: Unix seconds of the last login that named a tenant, by guest and tenant.
    """
    return {
        person: tenants
        for person, named in claimed.items()
        if (tenants := frozenset(t for t in allowed if named.get(t, -1.0) >= oldest_s))
    }


@dataclass(frozen=True)
class Opening:
    """What was said last of a tenant whose services may want no key.

    Attributes:
        at_s: Unix seconds at which it was said.
        until_s: Unix seconds from which they want one; None: as soon as a key is made after it.
    """

    at_s: float
    until_s: float | None = None


def wanted_from_s(
    newest_key_s: Mapping[str, float], openings: Mapping[str, Opening]
) -> Mapping[str, float]:
    """Unix seconds from which each tenant's services want keys; others want none.

    ``newest_key_s``: when the newest key of each tenant was made, whether it is valid or not:
    revoking the last key must not open the services to every client.
    """
    wanted = {}
    for tenant in newest_key_s.keys() | openings.keys():
        opening, made_s = openings.get(tenant), newest_key_s.get(tenant)
        if opening is not None and opening.until_s is not None:
            wanted[tenant] = opening.until_s
        elif made_s is not None and (opening is None or opening.at_s < made_s):
            wanted[tenant] = made_s
    return wanted
