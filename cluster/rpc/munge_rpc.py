"""Questions to the daemon and its answers as munge credentials, for the way between two hosts.

They are the bodies of an HTTP request and its response. A question holds the request that it stands
for: a line with its method and target, then its body.
A credential proves its author and can be decoded by only one user, once, within a minute. A nonce
binds an answer to its question. A long answer is sent in numbered parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.rpc.message import Message
from slicewise.cluster.rpc.munge import PAYLOAD_LIMIT, Munge

SEALED_PATH = "/v1/sealed"
PREFIX = b"MUNGE:"
CREDENTIAL_LIMIT = 512 * 1024
"""Bytes of one line on the wire: base64 makes a payload a third longer."""

_TTL_S = 60
_PART_BYTES = PAYLOAD_LIMIT - 1024
PayloadKind = Literal["question", "answer"]


class _Heading(Message):
    """The first line of each payload; the bytes of the message follow."""

    v: Literal[1] = 1
    kind: PayloadKind
    nonce: str = Field(pattern=r"^[0-9a-f]{32}$")
    part: int = Field(ge=0)
    parts: int = Field(ge=1)


@dataclass(frozen=True)
class MessagePart:
    """One of the ``parts`` of a message, and the user who wrote it."""

    uid: int
    nonce: str
    part: int
    parts: int
    data: bytes


def seal(
    munge: Munge, kind: PayloadKind, nonce: str, message: bytes, for_uid: int
) -> Iterator[bytes]:
    """Credentials, a line each, that only this user can decode. Raises what ``Munge`` raises."""
    starts = range(0, max(1, len(message)), _PART_BYTES)
    for part, start in enumerate(starts):
        heading = _Heading(kind=kind, nonce=nonce, part=part, parts=len(starts))
        payload = heading.model_dump_json().encode() + b"\n" + message[start : start + _PART_BYTES]
        yield munge.encode(payload, for_uid, _TTL_S) + b"\n"


def unseal(munge: Munge, kind: PayloadKind, line: bytes) -> MessagePart:
    """The part of a message that a credential has.

    Raises OutsideError (SW-WIRE) if it has none of this kind, and what ``Munge`` raises.
    """
    message = munge.decode(line.rstrip(b"\n"))
    heading, _, data = message.payload.partition(b"\n")
    try:
        heading_read = _Heading.model_validate_json(heading)
    except ValidationError:
        heading_read = None
    if heading_read is None or heading_read.kind != kind:
        raise OutsideError(Code.WIRE, f"The credential holds no {kind}.")
    return MessagePart(message.uid, heading_read.nonce, heading_read.part, heading_read.parts, data)
