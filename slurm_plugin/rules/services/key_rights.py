"""Decides whose keys let requests in, and which tenants' services want keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Members:
    """Who belongs to which accounts, by name; names need no database of users to be read.

    Attributes:
        accounts: accounts of each of Slurm's users, as last read completely; empty until then.
        operators: names of operators, who belong everywhere.
    """

    accounts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()

    def has_left(self, person: str, tenant: str) -> bool:
        """Whether a person is no member of the tenant's account; False until accounts were read."""
        if not self.accounts or person in self.operators:
            return False
        return not self.is_member(person, tenant)

    def is_member(self, person: str, tenant: str) -> bool:
        """Whether a person is known as a member of the tenant's account."""
        return tenant in self.accounts.get(person, ())


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
