"""Asks the daemon for launcher and commands: on this host, else by munge on another."""

import asyncio
import os
from collections.abc import Sequence
from socket import gaierror
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)
from cluster.rpc.key_messages import (
    GrantsAnswer,
    GrantsRequest,
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRevokeRequest,
    KeysAnswer,
)
from cluster.rpc.messages import (
    LINE_LIMIT,
    CheckRequest,
    DeleteRequest,
    DoneAnswer,
    FailureAnswer,
    LeaveRequest,
    NewsRequest,
    RetireRequest,
    ServiceNews,
    StatusAnswer,
    StatusRequest,
    SubmitAnswer,
    ViewAnswer,
    ViewRequest,
    WishAnswer,
    WishRequest,
)
from cluster.rpc.order_messages import OrderRequest
from cluster.rpc.read_messages import (
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
from cluster.rpc.remote_client import ask
from cluster.settings.file import DaemonSettings

Answer = TypeVar("Answer", bound=BaseModel)
Request = TypeVar("Request", bound=BaseModel)

DEADLINE_S = 15.0
"""For one answer; a wish waits for Slurm's commands."""


_ELSEWHERE = frozenset({"SW-DAEMON-DOWN", "SW-DAEMON-STANDBY"})
"""After a failure with one of these codes another daemon may give a better answer."""
_HERE = ""
"""The place that stands for the user socket of this host."""


class DaemonClient:
    """Asks one question per connection: at the user socket if this host has it, and at ``connect``.

    If a daemon is down or stands by, the next place is asked; the one that answers is asked first
    from then on.

    Every call raises UnreachableError (SW-DAEMON-DOWN), InvalidInputError with the daemon's own
    code for a refusal, or OutsideError (SW-WIRE) for an answer that can't be read; asking another
    host, also what ``remote_daemon.ask`` raises.
    """

    def __init__(self, settings: DaemonSettings) -> None:
        self._settings = settings
        self._last = _HERE

    async def view(self) -> ViewAnswer:
        """The services and tenants that this user may see, as they are now."""
        return await self._ask(ViewRequest(), ViewAnswer)

    async def wish(
        self, array_job_id: int, run: frozenset[int], note: str, urgency: float
    ) -> WishAnswer:
        """Let these slots of a service run and hold every other one; show the note to its users."""
        request = WishRequest(
            array_job_id=array_job_id, run=tuple(sorted(run)), note=note, urgency=urgency
        )
        return await self._ask(request, WishAnswer)

    async def delete(self, array_job_id: int) -> None:
        """Cancel a service's array."""
        await self._ask(DeleteRequest(array_job_id=array_job_id), DoneAnswer)

    async def retire(self, array_job_id: int) -> None:
        """Cancel an array that has no slot under way; for the launcher only."""
        await self._ask(RetireRequest(array_job_id=array_job_id), DoneAnswer)

    async def tell(self, services: tuple[ServiceNews, ...]) -> None:
        """Report what the launcher sees of services, for their users."""
        await self._ask(NewsRequest(services=services), DoneAnswer)

    async def leave(self, job_ids: frozenset[int], why: str) -> None:
        """Let these replicas end, each once another one serves in its place.

        The request is valid for half a minute.
        """
        await self._ask(LeaveRequest(job_ids=tuple(sorted(job_ids)), why=why), DoneAnswer)

    async def order(self, request: OrderRequest) -> None:
        """Scale, restart or end a service."""
        await self._ask(request, DoneAnswer)

    async def create_key(self, tenant: str, name: str, key_id: str, sha256: str) -> None:
        """Add an API key to a tenant, by its hash."""
        request = _request(KeyCreateRequest, tenant=tenant, name=name, key_id=key_id, sha256=sha256)
        await self._ask(request, DoneAnswer)

    async def keys(self) -> KeysAnswer:
        """List the API keys of the user's tenants."""
        return await self._ask(KeyListRequest(), KeysAnswer)

    async def revoke_key(self, key_id: str) -> None:
        """Revoke a key, so that it admits no request any more."""
        await self._ask(_request(KeyRevokeRequest, key_id=key_id), DoneAnswer)

    async def open_tenant(self, tenant: str) -> None:
        """Admit every request to a tenant's services, until a key is made again."""
        await self._ask(_request(KeyOpenRequest, tenant=tenant), DoneAnswer)

    async def grants(self) -> GrantsAnswer:
        """Which keys admit requests to which tenant's services; for the launcher only."""
        return await self._ask(GrantsRequest(), GrantsAnswer)

    async def check(self, tenant: str, directives: tuple[str, ...]) -> SubmitAnswer:
        """What a service would get; InvalidInputError with the reason if it would be refused."""
        answer = await self._ask(CheckRequest(tenant=tenant, directives=directives), SubmitAnswer)
        if answer.action == "refuse":
            raise InvalidInputError(answer.code, answer.message, answer.hint)
        return answer

    async def status(self) -> StatusAnswer:
        """The state of the daemon."""
        return await self._ask(StatusRequest(), StatusAnswer)

    async def explain(self, tenant: str) -> ExplainAnswer:
        """What a tenant may still start, and why not more."""
        return await self._ask(_request(ExplainRequest, tenant=tenant), ExplainAnswer)

    async def statement(self, request: StatementRequest) -> StatementAnswer:
        """One page of what tenants have used."""
        return await self._ask(request, StatementAnswer)

    async def balance(self, tenant: str | None) -> BalanceAnswer:
        """Accounts of a tenant; of each of the user's tenants if None."""
        return await self._ask(_request(BalanceRequest, tenant=tenant), BalanceAnswer)

    async def why(self, about: str) -> WhyAnswer:
        """Why a job waits, or how a tenant stands."""
        return await self._ask(_request(WhyRequest, about=about), WhyAnswer)

    async def priority(self, job: str) -> PriorityAnswer:
        """What a waiting job's priority is made of."""
        return await self._ask(_request(PriorityRequest, job=job), PriorityAnswer)

    async def _ask(self, request: BaseModel, kind: type[Answer]) -> Answer:
        line = request.model_dump_json(exclude_none=True).encode()
        places = self._places
        for place in places[:-1]:
            try:
                return await self._answer(place, line, kind)
            except SlicewiseError as error:
                if error.refusal.code not in _ELSEWHERE:
                    raise
        return await self._answer(places[-1], line, kind)

    async def _answer(self, place: str, line: bytes, kind: type[Answer]) -> Answer:
        answer = await self._exchange(place, line)
        try:
            read = kind.model_validate_json(answer)
        except ValidationError as error:
            raise _failure(answer, error) from error
        self._last = place
        return read

    async def _exchange(self, place: str, line: bytes) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await self._send(place, line)
        except (OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(
                "SW-DAEMON-DOWN",
                f"The slicewise daemon does not answer {self._words_of(place)}: {_words(error)}.",
                _hint(place),
            ) from error
        if not answer:
            raise UnreachableError(
                "SW-DAEMON-DOWN",
                "The slicewise daemon closed the connection without an answer.",
                "Try again.",
            )
        return answer

    async def _send(self, place: str, line: bytes) -> bytes:
        if place != _HERE:
            return await ask(self._settings, place, line)
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


def _words(error: OSError | ValueError) -> str:
    match error:
        case TimeoutError():
            return f"no answer within {DEADLINE_S:g} s"
        case ConnectionRefusedError() | FileNotFoundError():
            return "nothing listens there"
        case gaierror() | UnicodeError():
            return "its host name can't be resolved"
        case ValueError():
            return "its answer is too long"
        case OSError(errno=int(number)):
            return os.strerror(number)
    # A host with several addresses fails so if each of them fails in its own way.
    return "it can't be reached"


def _request(kind: type[Request], **fields: str | None) -> Request:
    """Build a request; InvalidInputError (SW-WIRE) for words that no request can hold."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        raise InvalidInputError(
            "SW-WIRE", f"{problem['input']!r} is not allowed here: {problem['msg']}."
        ) from None


def _failure(line: bytes, problem: ValidationError) -> SlicewiseError:
    try:
        failure = FailureAnswer.model_validate_json(line)
    except ValidationError:
        return OutsideError(
            "SW-WIRE",
            f"The daemon's answer can't be read as {problem.title}.",
            "Check that daemon and command have the same version.",
        )
    return InvalidInputError(failure.code, failure.message, failure.hint)
