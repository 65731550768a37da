"""A person's keys and limits, as the page shows them."""

from collections.abc import Iterable, Sequence

from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits

WHOSE = (("", "mine"), ("all", "all that I may see"))
"""Whose requests a viewer may choose: values with their words."""
_SHOWN_AFTER_S = 30 * 86_400
"""Seconds for which a key that opens nothing any more is still shown."""


def own_keys(keys: Iterable[KeyView], user: str, now_s: float) -> Sequence[KeyView]:
    """The user's keys, newest first: those that open something, then those that ended lately."""
    own = [
        key for key in keys if key.person == user and now_s - _end_s(key, now_s) <= _SHOWN_AFTER_S
    ]
    return sorted(own, key=lambda key: (not key.is_valid(now_s), -key.created_s))


def _end_s(key: KeyView, now_s: float) -> float:
    """When it ended; now, if it has not."""
    return min(end_s for end_s in (key.revoked_s, key.expires_s, now_s) if end_s is not None)


def key_name(key_id: str, keys: Iterable[KeyView]) -> str:
    """What its person calls a key; its id, if the key is not among these."""
    return next((key.name for key in keys if key.key_id == key_id), key_id)


def own_limits(
    limits: Iterable[SubjectLimits], keys: Iterable[KeyView], user: str
) -> Sequence[SubjectLimits]:
    """Those that hold for requests with these keys: of their tenants, of the user, of each key."""
    ids = {key.key_id for key in keys}
    tenants = {key.tenant for key in keys}
    return [
        subject
        for subject in limits
        if (subject.key_id in ids if subject.key_id else subject.tenant in tenants)
        and subject.person in ("", user)
    ]


def limited(subject: SubjectLimits, keys: Iterable[KeyView]) -> str:
    """Whose limits these are, in words."""
    if subject.key_id:
        return f"key {key_name(subject.key_id, keys)}"
    return f"you in {subject.tenant}" if subject.person else f"all of {subject.tenant} together"


def limits_of(key_id: str, limits: Iterable[SubjectLimits]) -> RequestLimits:
    """The limits of one key by itself."""
    held = (subject.limits for subject in limits if subject.key_id == key_id)
    return next(held, RequestLimits())
