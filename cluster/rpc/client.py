"""Asks the daemon for launcher and commands: on this host, else on another by munge or a token."""

import os
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from http.client import HTTPException, HTTPResponse, IncompleteRead, RemoteDisconnected
from socket import gaierror
from threading import Thread

from pydantic import ValidationError

from slicewise.cluster.language.codes import Code, known
from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.rpc import remote_client
from slicewise.cluster.rpc.exchange import UnsentError, exchange
from slicewise.cluster.rpc.message import (
    Answered,
    Asks,
    Request,
    acting_target,
    answer_of,
    failure_in,
    read_answer,
)
from slicewise.cluster.rpc.messages import ANSWER_LIMIT
from slicewise.cluster.settings.file import DaemonSettings

DEADLINE_S = 15.0
"""For one answer; desired slots wait for Slurm's commands."""

UNSURE = Code.DAEMON_UNSURE
_ELSEWHERE = frozenset({Code.DAEMON_DOWN, Code.DAEMON_STANDBY, UNSURE})
"""After a failure with one of these codes another daemon may give a better answer."""
_LOOK_FIRST = "The change may have been made all the same: look before you repeat it."
_HERE = ""
"""The place that stands for the user socket of this host."""


class DaemonClient:
    """Asks one question per connection: at the user socket if this host has it, and at ``connect``.

    If a daemon is down or stands by, the next place is asked; the one that answers is asked first
    from then on. With ``acting_for``, which only the web server may use, it gets what that user
    would. A change may therefore reach two daemons of a pair, if the first one has made it and
    could not answer: every change is one that may be made twice. Threads may share a client.
    """

    def __init__(self, settings: DaemonSettings, acting_for: str | None = None) -> None:
        self._settings = settings
        self._acting_for = acting_for
        self._last = _HERE

    def call(self, request: Asks[Answered]) -> Answered:
        """Return the answer to a request.

        Raises UnreachableError (SW-DAEMON-DOWN; SW-DAEMON-UNSURE if a change was sent to a daemon
        that gave no answer, and no other one has made it, also if that one refuses it),
        InvalidInputError with the daemon's own code for a refusal, or OutsideError (SW-WIRE) for an
        answer that can't be read; asking another host, also what ``remote_client.ask`` raises.
        """
        failures: list[SlicewiseError] = []
        for place in self._places:
            try:
                return self._answer(place, request)
            except SlicewiseError as error:
                if error.refusal.code not in _ELSEWHERE:
                    if (unsure := _unsure(failures)) is None:
                        raise
                    raise _still_unsure(unsure, error) from error
                failures.append(error)
        raise _unsure(failures) or failures[-1]

    async def ask(self, request: Asks[Answered]) -> Answered:
        """Call in a thread, for a program that does other things meanwhile.

        The end of the program does not wait for a daemon that hangs.
        """
        # Imported here: commands that only call don't need it.
        import asyncio  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Answered] = loop.create_future()

        def call() -> None:
            outcome: Callable[[], None]
            try:
                outcome = partial(answered.set_result, self.call(request))
            except BaseException as error:  # noqa: BLE001 -- it is raised where it is awaited
                outcome = partial(answered.set_exception, error)
            with suppress(RuntimeError):  # The program ends: its loop is closed.
                loop.call_soon_threadsafe(lambda: None if answered.done() else outcome())

        Thread(target=call, name="ask the daemon", daemon=True).start()
        return await answered

    def _answer(self, place: str, request: Asks[Answered]) -> Answered:
        kind: type[Answered] = answer_of(type(request))
        assert isinstance(request, Request)  # noqa: S101 -- whatever asks is one
        answer = self._exchanged(place, request)
        try:
            read = read_answer(kind, answer)
        except ValidationError:
            raise _failure(answer, kind.__name__) from None
        self._last = place
        return read

    def _exchanged(self, place: str, request: Request) -> bytes:
        answer = b""
        try:
            answer = self._send(place, request)
        except (RemoteDisconnected, IncompleteRead):
            pass
        except UnsentError as error:
            raise self._no_answer(place, error.__cause__ or error, _hint(place)) from error
        except (OSError, ValueError) as error:
            if request.changes:
                raise self._no_answer(place, error, _LOOK_FIRST, code=UNSURE) from error
            raise self._no_answer(place, error, _hint(place)) from error
        if not answer and request.changes:
            raise UnreachableError(
                UNSURE,
                "The slicewise daemon closed the connection without an answer to a change.",
                _LOOK_FIRST,
            )
        if not answer:
            raise UnreachableError(
                Code.DAEMON_DOWN,
                "The slicewise daemon closed the connection without an answer.",
                "Try again.",
            )
        return answer

    def _no_answer(
        self, place: str, error: BaseException, hint: str, code: Code = Code.DAEMON_DOWN
    ) -> UnreachableError:
        where, why = self._words_of(place), _words(error)
        return UnreachableError(code, f"The slicewise daemon does not answer {where}: {why}.", hint)

    def _send(self, place: str, request: Request) -> bytes:
        """The answer's bytes; none if the daemon hangs up."""
        target, body = request.sent()
        if self._acting_for is not None:
            target = acting_target(self._acting_for, target)
        until_s = time.monotonic() + DEADLINE_S
        if place != _HERE and self._settings.certificate is None:
            message = f"{request.method} {target}\n".encode() + body
            return remote_client.ask(self._settings, place, message, until_s)
        try:
            with self._exchange(place, request.method, target, body, until_s) as response:
                answer = response.read(ANSWER_LIMIT + 1)
                is_cut = bool(response.length)
        except (RemoteDisconnected, IncompleteRead):
            raise
        except HTTPException:
            raise _failure(b"", "HTTP") from None
        if len(answer) > ANSWER_LIMIT:
            raise ValueError(len(answer))
        return b"" if is_cut else answer

    def _exchange(
        self, place: str, method: str, target: str, body: bytes, until_s: float
    ) -> AbstractContextManager[HTTPResponse]:
        """The same request at this host's socket, or by https with a token."""
        if place == _HERE:
            return exchange(self._settings.user_socket, method, target, body, until_s)
        # Imported here: only hosts without munge need it.
        from slicewise.cluster.rpc import token_client  # noqa: PLC0415

        return token_client.exchange(self._settings, place, method, target, body, until_s=until_s)

    @property
    def is_remote(self) -> bool:
        """Whether only daemons on other hosts can be asked."""
        return bool(self._settings.connect) and not self._settings.user_socket.exists()

    @property
    def _places(self) -> Sequence[str]:
        own = self._settings
        if self.is_remote:
            places = own.connect
        else:
            places = (_HERE, *(place for place in own.connect if place != own.listen))
        return sorted(places, key=lambda place: place != self._last)

    def _words_of(self, place: str) -> str:
        return f"on {self._settings.user_socket}" if place == _HERE else f"at {place}"


def _hint(place: str) -> str:
    if place != _HERE:
        return "Check that it runs there with this daemon.listen and that the port is open."
    return "Check that it runs on this host; if it runs on another, set daemon.connect."


def _words(error: BaseException) -> str:
    match error:
        case TimeoutError():
            words = f"no answer within {DEADLINE_S:g} s"
        case ssl.SSLCertVerificationError(verify_message=why):
            words = f"its certificate is not to be believed here ({why.rstrip('.')})"
        case ssl.SSLError():
            words = "it does not speak TLS as daemon.certificate wants it"
        case ConnectionRefusedError() | FileNotFoundError():
            words = "nothing listens there"
        case gaierror() | UnicodeError():
            words = "its host name can't be resolved"
        case ValueError():
            words = "its answer is too long"
        case OSError(errno=int(number)):
            words = os.strerror(number)
        case _:  # A failure of several addresses, each in its own way.
            words = "it can't be reached"
    return words


def _unsure(failures: Sequence[SlicewiseError]) -> SlicewiseError | None:
    return next((failure for failure in failures if failure.refusal.code == UNSURE), None)


def _still_unsure(unsure: SlicewiseError, refused: SlicewiseError) -> UnreachableError:
    """The other daemon may refuse a change because the first one has made it."""
    return UnreachableError(
        UNSURE,
        f"{unsure.refusal.message} Another daemon then answered: {refused.refusal.message}"
        f" [{refused.refusal.code}]",
        _LOOK_FIRST,
    )


def _failure(answer: bytes, wanted: str) -> SlicewiseError:
    failure = failure_in(answer)
    if failure is not None:
        return InvalidInputError(known(failure.code), failure.message, failure.hint)
    return OutsideError(
        Code.WIRE,
        f"The daemon's answer can't be read as {wanted}.",
        "Check that daemon and command have the same version.",
    )
