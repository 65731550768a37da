"""Who may ask a service beside its owner: its audience, as one word of a ``#SLICEWISE`` line.

A tenant in an audience stands for itself and all tenants below it; ``*`` for all tenants.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints, WithJsonSchema

from slicewise.cluster.language.accounts import account_name

EVERY_TENANT = "*"
MOST_AUDIENCE = 16
"""Tenants that an audience names at most: each is some lines of the gateway's map."""
_TENANT = "[a-z0-9_][a-z0-9_.-]{0,62}"
AUDIENCE = (
    f'"*" for all tenants, or a list of 1 to {MOST_AUDIENCE} tenants, each of which stands for all '
    "below it, too"
)


def _written(value: Any) -> Any:
    """Return names as one text, in small letters, sorted, each once; any other value as it is."""
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        names = {account_name(name) for name in value}
        # An audience of none and names beside * are mistakes.
        is_plain = len(names) <= MOST_AUDIENCE and not (EVERY_TENANT in names and len(names) > 1)
        return ",".join(sorted(names)) if is_plain else ""
    return value


Audience = Annotated[
    str,
    BeforeValidator(_written),
    StringConstraints(pattern=rf"^(\*|{_TENANT}(,{_TENANT})*)$"),
    WithJsonSchema({"type": "text or list"}),
]


def tenants_of(audience: str) -> frozenset[str]:
    """Return the tenants that a text of an audience names, or ``*`` alone."""
    return frozenset(audience.split(",")) if audience else frozenset()


def audience_of(directives: Mapping[str, str]) -> frozenset[str]:
    """Return the tenants that a service's directives name, or ``*``; none if unreadable."""
    text = directives.get("audience", "")
    return tenants_of(text) if _written(text) == text else frozenset()
