"""The daemon, seen from the launcher and from commands: on this host, else by munge on another."""

import asyncio
import os
from socket import gaierror
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cluster.errors import InvalidInputError, OutsideError, SlicewiseError, UnreachableError
from cluster.remote_daemon import ask
from cluster.settings import DaemonSettings
from cluster.wire import (
    LINE_LIMIT,
    CheckRequest,
    DeleteRequest,
    DoneAnswer,
    FailureAnswer,
    StatusAnswer,
    StatusRequest,
    SubmitAnswer,
    ViewAnswer,
    ViewRequest,
    WishAnswer,
    WishRequest,
)
from cluster.wire_reads import (
    BalanceAnswer,
    BalanceRequest,
    ExplainAnswer,
    ExplainRequest,
    PriorityAnswer,
    PriorityRequest,
    StatementAnswer,
    StatementRequest,
    WhyAnswer,
    WhyRequest,
)

Answer = TypeVar("Answer", bound=BaseModel)
Request = TypeVar("Request", bound=BaseModel)

DEADLINE_S = 15.0
"""A wish waits for Slurm's commands."""


class DaemonClient:
    """One question per connection: at the user socket if this host has it, else at ``connect``.

    Every call raises UnreachableError (SW-DAEMON-DOWN), InvalidInputError with the daemon's own
    code for a refusal, or OutsideError (SW-WIRE) for an answer that can't be read; asking another
    host, also what ``remote_daemon.ask`` raises.
    """

    def __init__(self, settings: DaemonSettings) -> None:
        self._settings = settings

    async def view(self) -> ViewAnswer:
        """What is there now, as far as this user may see it."""
        return await self._ask(ViewRequest(), ViewAnswer)

    async def wish(
        self, array_job_id: int, run: frozenset[int], note: str, urgency: float
    ) -> WishAnswer:
        """Let these slots of a service run and hold every other one; tell its users the note."""
        request = WishRequest(
            array_job_id=array_job_id, run=tuple(sorted(run)), note=note, urgency=urgency
        )
        return await self._ask(request, WishAnswer)

    async def delete(self, array_job_id: int) -> None:
        """Cancel a service's array."""
        await self._ask(DeleteRequest(array_job_id=array_job_id), DoneAnswer)

    async def check(self, tenant: str, directives: tuple[str, ...]) -> None:
        """Raises InvalidInputError with the reason if the service would be refused."""
        answer = await self._ask(CheckRequest(tenant=tenant, directives=directives), SubmitAnswer)
        if answer.action == "refuse":
            raise InvalidInputError(answer.code, answer.message, answer.hint)

    async def status(self) -> StatusAnswer:
        """How the daemon is."""
        return await self._ask(StatusRequest(), StatusAnswer)

    async def explain(self, tenant: str) -> ExplainAnswer:
        """What a tenant may still start, and why not more."""
        return await self._ask(_request(ExplainRequest, tenant=tenant), ExplainAnswer)

    async def statement(self, request: StatementRequest) -> StatementAnswer:
        """One page of what was used."""
        return await self._ask(request, StatementAnswer)

    async def balance(self, tenant: str | None) -> BalanceAnswer:
        """Accounts of a tenant, or of every own one."""
        return await self._ask(_request(BalanceRequest, tenant=tenant), BalanceAnswer)

    async def why(self, about: str) -> WhyAnswer:
        """Why a job waits, or how a tenant stands."""
        return await self._ask(_request(WhyRequest, about=about), WhyAnswer)

    async def priority(self, job: str) -> PriorityAnswer:
        """What a waiting job's priority is made of."""
        return await self._ask(_request(PriorityRequest, job=job), PriorityAnswer)

    async def _ask(self, request: BaseModel, kind: type[Answer]) -> Answer:
        line = await self._exchange(request.model_dump_json(exclude_none=True))
        try:
            return kind.model_validate_json(line)
        except ValidationError as error:
            raise _failure(line, error) from error

    async def _exchange(self, line: str) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await self._send(line.encode())
        except (OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(
                "SW-DAEMON-DOWN",
                f"The slicewise daemon does not answer {self._place}: {_words(error)}.",
                self._hint,
            ) from error
        if not answer:
            raise UnreachableError("SW-DAEMON-DOWN", "The slicewise daemon hung up.", "Try again.")
        return answer

    async def _send(self, line: bytes) -> bytes:
        if self.is_remote:
            return await ask(self._settings, line)
        socket = str(self._settings.user_socket)
        reader, writer = await asyncio.open_unix_connection(socket, limit=LINE_LIMIT)
        try:
            writer.write(line + b"\n")
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()

    @property
    def is_remote(self) -> bool:
        """Whether it is another host's daemon that is asked."""
        return bool(self._settings.connect) and not self._settings.user_socket.exists()

    @property
    def _place(self) -> str:
        settings = self._settings
        return f"at {settings.connect}" if self.is_remote else f"on {settings.user_socket}"

    @property
    def _hint(self) -> str:
        if self.is_remote:
            return "Is it running there, with this daemon.listen, and the port open? Try again."
        return "Is it running on this host? Of another host: set daemon.connect. Try again."


def _words(error: OSError | ValueError) -> str:
    match error:
        case TimeoutError():
            return f"no answer within {DEADLINE_S:g} s"
        case ConnectionRefusedError() | FileNotFoundError():
            return "nobody listens there"
        case gaierror() | UnicodeError():
            return "its host name can't be resolved"
        case ValueError():
            return "its answer is too long"
        case OSError(errno=int(number)):
            return os.strerror(number)
    # Of a host with several addresses, each failing in its own way.
    return "it can't be reached"


def _request(kind: type[Request], **fields: str | None) -> Request:
    """Raises InvalidInputError (SW-WIRE) for words that no request can hold."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidInputError(
            "SW-WIRE", f"{problem['input']!r} is no such name: {problem['msg']}."
        ) from None


def _failure(line: bytes, problem: ValidationError) -> SlicewiseError:
    try:
        failure = FailureAnswer.model_validate_json(line)
    except ValidationError:
        return OutsideError(
            "SW-WIRE",
            f"The daemon's answer can't be read as {problem.title}.",
            "Do daemon and command have the same version?",
        )
    return InvalidInputError(failure.code, failure.message, failure.hint)
