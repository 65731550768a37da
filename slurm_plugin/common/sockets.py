"""What every server on a socket needs: peer credentials, refusals as answers, sockets' files."""

import os
import socket
import struct
from asyncio import BaseTransport
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal, SlicewiseError
from slicewise.cluster.rpc.message import FailureAnswer
from slicewise.slurm_plugin.common.log import report_failure

BACKLOG = 512
"""Connections that may wait to be accepted."""

_CREDENTIALS = struct.Struct("3i")


ONE_VERSION = "Use one version of Slicewise for all programs, and restart them after an update."
"""What to do about a message that nobody reads: its writer may be older, or newer."""
BUSY = Refusal(Code.BUSY, "Too many connections to the daemon.", "Try again.")


def too_long(most_bytes: int) -> Refusal:
    """The refusal of a longer message."""
    return Refusal(Code.WIRE, f"A message may have {most_bytes} bytes at most here.")


def failure(refusal: Refusal) -> FailureAnswer:
    """A refusal as an answer."""
    return FailureAnswer(code=refusal.code, message=refusal.message, hint=refusal.hint)


def failure_of(error: Exception, uid: int, request_id: str) -> FailureAnswer:
    """The answer for an error. An unexpected error is logged, and its text is not sent.

    The answer then names the request as the log does.
    """
    if isinstance(error, ValidationError):
        return failure(Refusal(Code.WIRE, f"No such message: {_problem(error)}.", ONE_VERSION))
    if isinstance(error, SlicewiseError):
        return failure(error.refusal)
    kind = type(error).__name__
    report_failure("request_failed", error, kind=kind, uid=uid, request_id=request_id)
    hint = f"Tell an operator: request_id={request_id}."
    return failure(Refusal(Code.INTERNAL, "The daemon failed; its log says how.", hint))


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'line'}: {first['msg']}"


def peer_uid(transport: BaseTransport) -> int:
    """The user at the other end of a connection, as the kernel reports it."""
    connection: socket.socket = transport.get_extra_info("socket")
    size = _CREDENTIALS.size
    _, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(uid)


def bound(path: Path, mode: int) -> socket.socket:
    """A bound socket at ``path``, replacing a file that may be there.

    The caller must call listen() itself: until then no client can connect, so none can before the
    file's mode is right.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(mode)
    return listener


def own_directory(path: Path, mode: int) -> None:
    """Make a directory for sockets; SlicewiseError (SW-USER) if it isn't ours."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    except OSError as error:
        raise SlicewiseError(
            Code.USER,
            f"daemon.run_dir: {path}: {error.strerror}.",
            f"It must belong to the user with uid {os.geteuid()}, who runs the daemon.",
        ) from None
