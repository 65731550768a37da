"""The daemon's user socket, seen from the launcher and from commands."""

import asyncio
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cluster.errors import InvalidInputError, OutsideError, SlicewiseError, UnreachableError
from cluster.wire import (
    LINE_LIMIT,
    CheckRequest,
    DeleteRequest,
    DoneAnswer,
    FailureAnswer,
    SubmitAnswer,
    ViewAnswer,
    ViewRequest,
    WishAnswer,
    WishRequest,
)

Answer = TypeVar("Answer", bound=BaseModel)

DEADLINE_S = 15.0
"""A wish waits for Slurm's commands."""


class DaemonClient:
    """One question per connection.

    Every call raises UnreachableError (SW-DAEMON-DOWN), InvalidInputError with the daemon's own
    code for a refusal, or OutsideError (SW-WIRE) for an answer that can't be read.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def view(self) -> ViewAnswer:
        """What is there now, as far as this user may see it."""
        return await self._ask(ViewRequest(), ViewAnswer)

    async def wish(self, array_job_id: int, run: frozenset[int], note: str) -> WishAnswer:
        """Let these slots of a service run and hold every other one; tell its users the note."""
        request = WishRequest(array_job_id=array_job_id, run=tuple(sorted(run)), note=note)
        return await self._ask(request, WishAnswer)

    async def delete(self, array_job_id: int) -> None:
        """Cancel a service's array."""
        await self._ask(DeleteRequest(array_job_id=array_job_id), DoneAnswer)

    async def check(self, tenant: str, directives: tuple[str, ...]) -> None:
        """Raises InvalidInputError with the reason if the service would be refused."""
        answer = await self._ask(CheckRequest(tenant=tenant, directives=directives), SubmitAnswer)
        if answer.action == "refuse":
            raise InvalidInputError(answer.code, answer.message, answer.hint)

    async def _ask(self, request: BaseModel, kind: type[Answer]) -> Answer:
        line = await self._exchange(request.model_dump_json(exclude_none=True))
        try:
            return kind.model_validate_json(line)
        except ValidationError as error:
            raise _failure(line, error) from error

    async def _exchange(self, line: str) -> bytes:
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await self._send(line)
        except (OSError, TimeoutError, ValueError) as error:
            raise UnreachableError(
                "SW-DAEMON-DOWN",
                f"The slicewise daemon does not answer on {self._socket}: {type(error).__name__}.",
                "Is it running on this host? Try again.",
            ) from error
        if not answer:
            raise UnreachableError("SW-DAEMON-DOWN", "The slicewise daemon hung up.", "Try again.")
        return answer

    async def _send(self, line: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=LINE_LIMIT)
        try:
            writer.write(line.encode() + b"\n")
            await writer.drain()
            return await reader.readline()
        finally:
            writer.close()


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
