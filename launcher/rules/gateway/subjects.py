"""Whose limits a request meets: a tenant's, a person's in it, a key's; as the gateway names them.

``TENANT``, ``TENANT/PERSON`` and ``TENANT//KEY_ID``, in its maps and in its Lua.
"""

import re

from slicewise.cluster.language.persons import NOBODY

_CAN_BE = re.compile(r"[A-Za-z0-9_./@+-]{1,200}")


def subject_of(tenant: str, person: str = "", key_id: str = "") -> str:
    """Return the name of a tenant, or of a person or a key of it."""
    if key_id:
        return f"{tenant}//{key_id}"
    return f"{tenant}/{person}" if person else tenant


def named(subject: str) -> tuple[str, str, str]:
    """Return the tenant, person and id of the key; "" for what it does not name."""
    tenant, has_key, key_id = subject.partition("//")
    if has_key:
        return tenant, "", key_id
    tenant, _, person = subject.partition("/")
    return tenant, person, ""


def can_be(subject: str) -> bool:
    """Whether HAProxy takes such a name: another one costs itself alone."""
    return _CAN_BE.fullmatch(subject) is not None


def subjects_of(payer: str, person: str, key_id: str) -> tuple[str, ...]:
    """Return whose limits a request may meet."""
    subjects = [payer]
    subjects += [subject_of(payer, person=person)] if person != NOBODY else []
    subjects += [subject_of(payer, key_id=key_id)] if key_id != NOBODY else []
    return tuple(subjects)
