"""Persons: whose key a request came with."""

import re

PERSON_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}$"
"""What a person's name looks like: a user's of Slurm, or of the identity provider."""
NOBODY = "-"
"""Stands for the person where there is none: a request came without a key."""
_PERSON = re.compile(PERSON_PATTERN)


def person_of(name: str) -> str:
    """Return the name if it can be a person's; ``NOBODY`` else.

    Hosts may have users with other names, such as those with a backslash: their keys work, and what
    they use is their tenant's alone.
    """
    return name if _PERSON.fullmatch(name) else NOBODY
