"""Reads the forms by which people make, limit and end their keys on the page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import get_args
from zoneinfo import ZoneInfo

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.moments import moment_from_text
from slicewise.cluster.rpc.key_messages import KeyCreateRequest, KeyRevokeRequest
from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, LimitName
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.new_key import NewApiKey

LIMIT_LABELS: Mapping[str, str] = {
    "concurrent": "requests at once",
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "tokens_per_month": "tokens a month",
}
"""The limits that a form sets, with what a viewer reads."""


@dataclass(frozen=True)
class KeyForm:
    """A form as it was sent.

    Attributes:
        key: what a form that makes one makes.
        zone: the time zone of days.
    """

    fields: Mapping[str, str] = field(hash=False)
    key: NewApiKey
    now_s: float
    zone: str

    def said(self, name: str) -> str:
        """What a field holds, without space around it."""
        return self.fields.get(name, "").strip()


def key_change(form: KeyForm) -> Request:
    """Return what a form asks for; InvalidInputError (SW-VALUE) for what can't be meant."""
    match form.said("act"):
        case "make":
            return KeyCreateRequest.of(
                key_id=form.key.key_id,
                sha256=form.key.sha256,
                tenant=form.said("tenant"),
                service=form.said("service"),
                name=form.said("name"),
                expires_s=_expires_s(form),
                may_be_first=form.said("first") == "yes",
            )
        case "limit":
            limits = {name: _number(form, name) for name in LIMIT_LABELS}
            given = {name: number for name, number in limits.items() if number is not None}
            lifted = [name for name in get_args(LimitName) if limits.get(name, 0) is None]
            return LimitChangeRequest.of(key_id=_key_id(form), limits=given, lifted=lifted)
        case "end":
            if form.said("sure") != "yes":
                raise InvalidInputError(
                    Code.VALUE, "The key goes on.", 'To end it, mark "It lets nothing in any more".'
                )
            return KeyRevokeRequest.of(key_id=_key_id(form))
    raise InvalidInputError(Code.VALUE, "The form does not say what to do.", "Reload it.")


def _key_id(form: KeyForm) -> str:
    if not (key_id := form.said("key_id")):
        raise InvalidInputError(Code.VALUE, "The form names no key.", "Reload it.")
    return key_id


def _expires_s(form: KeyForm) -> int | None:
    """The end of the last day on which a key works."""
    if not (last_day := form.said("last_day")):
        return None
    now = datetime.fromtimestamp(form.now_s, UTC)
    ends = moment_from_text(last_day, now, ahead=True, ends=True, zone=ZoneInfo(form.zone))
    if ends is None or ends.timestamp() <= form.now_s:
        raise InvalidInputError(
            Code.VALUE,
            f"Last day: {last_day[:40]!r} is none that is to come.",
            "Such as 2027-01-31",
        )
    return int(ends.timestamp())


def _number(form: KeyForm, name: str) -> int | None:
    digits = form.said(name).replace(",", "")
    if not digits:
        return None
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 16):  # noqa: PLR2004 -- 2**53
        raise InvalidInputError(
            Code.VALUE,
            f"{LIMIT_LABELS[name].capitalize()}: {form.said(name)[:40]!r} is no whole number.",
            "Empty: no limit of yours.",
        )
    return int(digits)
