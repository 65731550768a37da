"""Persons: whose key a request came with."""

import re

PERSON_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}$"
"""What a person's name looks like: a user's of Slurm, or of the identity provider."""
GUEST_PREFIX = "oidc+"
"""What the name of a guest begins with: a person without an account of Slurm's, whom the identity
provider has named. No user of a host has such a name; the daemon looks at each login."""
CLAIM_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@+-]{0,63}$"
"""What the provider's name of a guest looks like."""
NOBODY = "-"
"""Stands for the person where there is none: a request came without a key."""
_PERSON = re.compile(PERSON_PATTERN)


def is_guest(name: str) -> bool:
    """Whether a name is that of a guest."""
    return name.startswith(GUEST_PREFIX)


def person_of(name: str) -> str:
    """Return the name if it can be a person's; ``NOBODY`` else.

    Hosts may have users with other names, such as those with a backslash: their keys work, and what
    they use is their tenant's alone.
    """
    return name if _PERSON.fullmatch(name) else NOBODY
