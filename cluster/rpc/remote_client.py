"""Asks a daemon on another host; munge proves which user asks, and that the daemon answers."""

import secrets
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from itertools import count

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.rpc.exchange import exchange
from slicewise.cluster.rpc.message import failure_in
from slicewise.cluster.rpc.messages import ANSWER_LIMIT
from slicewise.cluster.rpc.munge import Munge
from slicewise.cluster.rpc.munge_rpc import (
    CREDENTIAL_LIMIT,
    PREFIX,
    SEALED_PATH,
    MessagePart,
    seal,
    unseal,
)
from slicewise.cluster.runtime.user_names import uid_of
from slicewise.cluster.settings.file import DaemonSettings, host_and_port

_SAID_LIMIT = 300
_REFUSAL_BYTES = 64 * 1024


def ask(settings: DaemonSettings, place: str, message: bytes, until_s: float) -> bytes:
    """The answer of the daemon at ``place``, one of ``connect``; b"" if it hangs up.

    Raises OSError if the place can't be reached, InvalidInputError (SW-USER) if this host
    has no SlurmUser, InvalidInputError (SW-MUNGE) if the daemon can't verify the asking user,
    OutsideError (SW-MUNGE, SW-WIRE) for an answer that is not the daemon's or not to this question,
    UnreachableError (SW-BUSY, SW-DAEMON-DOWN, SW-MUNGE) and what ``Munge`` raises.
    """
    munge, nonce = Munge(settings.munge_socket), secrets.token_hex(16)
    daemon_uid = _slurm_uid(settings.slurm_user)
    question = b"".join(seal(munge, "question", nonce, message, daemon_uid))
    try:
        with exchange(host_and_port(place), "POST", SEALED_PATH, question, until_s) as response:
            if response.status != HTTPStatus.OK:
                raise _refused(response.read(_REFUSAL_BYTES))
            return _answer(response, munge, nonce, frozenset({0, daemon_uid}))
    except (RemoteDisconnected, IncompleteRead):
        return b""
    except HTTPException:
        raise _no_daemon() from None


def _answer(response: HTTPResponse, munge: Munge, nonce: str, authors: frozenset[int]) -> bytes:
    answer = bytearray()
    for number in count():
        line = response.readline(CREDENTIAL_LIMIT + 1)
        if not line:
            return b""
        if not line.startswith(PREFIX) or not line.endswith(b"\n"):
            raise _no_daemon()
        part = unseal(munge, "answer", line)
        _check(part, number, nonce, authors)
        answer += part.data
        if len(answer) > ANSWER_LIMIT:
            raise OutsideError(Code.WIRE, "The daemon's answer is too long.")
        if part.part + 1 == part.parts:
            break
    return bytes(answer)


def _check(part: MessagePart, number: int, nonce: str, authors: frozenset[int]) -> None:
    if part.uid not in authors:
        raise OutsideError(
            Code.MUNGE,
            f"Uid {part.uid} answered in the daemon's place.",
            "Check daemon.slurm_user, and which process listens at daemon.connect.",
        )
    if (part.nonce, part.part) != (nonce, number):
        raise OutsideError(Code.WIRE, "The answer belongs to another request.")


def _refused(line: bytes) -> InvalidInputError | UnreachableError:
    """The error for an answer that is not sealed.

    A daemon that could not verify the asking user seals nothing, so anyone may have written this.
    """
    refusal = failure_in(line)
    if refusal is None:
        return _no_daemon()
    if refusal.code == Code.BUSY:
        return UnreachableError(
            Code.BUSY, "The slicewise daemon has too many requests.", "Try again."
        )
    words = "".join(sign for sign in f"{refusal.message} {refusal.hint}" if sign.isprintable())
    return InvalidInputError(
        Code.MUNGE, f"The daemon could not verify your user. It says: {words[:_SAID_LIMIT]}"
    )


def _no_daemon() -> UnreachableError:
    return UnreachableError(
        Code.DAEMON_DOWN, "What listens at daemon.connect is not a slicewise daemon."
    )


def _slurm_uid(name: str) -> int:
    if (uid := uid_of(name)) is None:
        raise InvalidInputError(Code.USER, f"daemon.slurm_user: this host has no user {name!r}.")
    return uid
