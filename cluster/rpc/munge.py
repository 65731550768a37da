"""Munge credentials: messages that prove which user on a host of the cluster has written them.

This is the only module that calls libmunge, by ctypes, as there is no maintained binding. Calls
block for some seconds at most while munged does not answer; callers use a thread.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError

PAYLOAD_LIMIT = 256 * 1024
"""Bytes in one credential here; munged takes a message of 1 MiB with everything around it."""

_LIBRARY = "libmunge.so.2"
_OPT_TTL, _OPT_SOCKET, _OPT_UID_RESTRICTION = 4, 8, 9
_NO_SOCKET = 6
_OF_CREDENTIALS = range(8, 19)
"""libmunge's errors that concern the credential, not munged."""
_EXPIRED, _REWOUND, _REPLAYED, _UNAUTHORIZED = 15, 16, 17, 18
_CLOCKS = "Check the clocks of both hosts."
_HINTS = {
    _EXPIRED: _CLOCKS,
    _REWOUND: _CLOCKS,
    _REPLAYED: "It was used before: run the command again.",
    _UNAUTHORIZED: "It is for another user: set the same daemon.slurm_user on both hosts.",
}
_ANY_HINT = "Check that it is complete and that both hosts have the same munge key."


@dataclass(frozen=True)
class Credential:
    """What a credential held, and the user who made it."""

    payload: bytes
    uid: int


class Munge:
    """Access to one munged. Safe to use from several threads.

    Calls raise UnreachableError (SW-MUNGE) if munged does not answer, OutsideError (SW-MUNGE) if
    libmunge is missing or fails.
    """

    def __init__(self, socket: Path | None) -> None:
        """``socket`` is munged's; None is libmunge's own default."""
        self._socket = socket

    def encode(self, payload: bytes, for_uid: int, ttl_s: int) -> bytes:
        """A credential that only this user can decode, once, within ``ttl_s``."""
        library = _library()
        with self._context(library) as context:
            _set(library, context, _OPT_UID_RESTRICTION, ctypes.c_uint32(for_uid))
            _set(library, context, _OPT_TTL, ctypes.c_int(ttl_s))
            credential = ctypes.c_void_p()
            error = library.munge_encode(ctypes.byref(credential), context, payload, len(payload))
            with _freed(library, credential):
                self._require(error, library, context)
                return ctypes.string_at(credential)

    def decode(self, credential: bytes) -> Credential:
        """The message in the credential.

        Raises InvalidInputError (SW-MUNGE) if the credential is invalid, meant for another user,
        expired, not valid yet, or decoded before.
        """
        library = _library()
        with self._context(library) as context:
            buffer, length = ctypes.c_void_p(), ctypes.c_int()
            uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
            fields = [ctypes.byref(field) for field in (buffer, length, uid, gid)]
            error = library.munge_decode(credential, context, *fields)
            # An expired or replayed credential gives its payload, too, which has to be freed.
            with _freed(library, buffer):
                self._require(error, library, context)
                payload = ctypes.string_at(buffer, length.value) if buffer else b""
                return Credential(payload, uid.value)

    @contextmanager
    def _context(self, library: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
        context = ctypes.c_void_p(library.munge_ctx_create())
        if not context:
            raise OutsideError(Code.MUNGE, "libmunge is out of memory.")
        try:
            if self._socket is not None:
                _set(library, context, _OPT_SOCKET, ctypes.c_char_p(bytes(self._socket)))
            yield context
        finally:
            library.munge_ctx_destroy(context)

    def _require(self, error: int, library: ctypes.CDLL, context: ctypes.c_void_p) -> None:
        if not error:
            return
        words = library.munge_ctx_strerror(context) or library.munge_strerror(error)
        reason = words.decode("utf-8", "replace")
        if error == _NO_SOCKET:
            raise UnreachableError(
                Code.MUNGE,
                f"munged does not answer: {reason}.",
                "Check that it runs on this host, and daemon.munge_socket.",
            )
        if error in _OF_CREDENTIALS:
            raise InvalidInputError(
                Code.MUNGE, f"The credential is refused: {reason}.", _HINTS.get(error, _ANY_HINT)
            )
        raise OutsideError(Code.MUNGE, f"munge failed: {reason}.")


def _set(
    library: ctypes.CDLL,
    context: ctypes.c_void_p,
    option: int,
    value: ctypes.c_int | ctypes.c_uint32 | ctypes.c_char_p,
) -> None:
    if library.munge_ctx_set(context, option, value):
        raise OutsideError(Code.MUNGE, f"libmunge does not know option {option}.")


@contextmanager
def _freed(library: ctypes.CDLL, memory: ctypes.c_void_p) -> Iterator[None]:
    """Free memory that libmunge has allocated; free(3) is found through any library."""
    try:
        yield
    finally:
        library.free(memory)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise OutsideError(
            Code.MUNGE, f"{_LIBRARY} is not on this host.", "Install munge, as for Slurm."
        ) from None
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    _declare(library.munge_ctx_create, pointer)
    _declare(library.munge_ctx_destroy, None, pointer)
    _declare(library.munge_ctx_set, number, pointer, number)
    _declare(library.munge_ctx_strerror, text, pointer)
    _declare(library.munge_strerror, text, number)
    _declare(library.munge_encode, number, pointer, pointer, text, number)
    _declare(library.munge_decode, number, text, *[pointer] * 5)
    _declare(library.free, None, pointer)
    return library


def _declare(function: Callable[..., object], result: type | None, *arguments: type) -> None:
    function.restype = result  # type: ignore[attr-defined]
    function.argtypes = arguments  # type: ignore[attr-defined]
