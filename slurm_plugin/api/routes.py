"""The registry of what the daemon can be asked: finds a request's handler, and answers.

A request declares its place and who may ask (``cluster/rpc/``); the room that answers it names its
handler in a table. Both sockets ask here.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from cluster.language.errors import InvalidInputError, UnreachableError
from cluster.rpc.message import Asker, Request
from slurm_plugin.common.sockets import failure_of

Handlers = Mapping[type[Request], Callable[[Any, int], Awaitable[BaseModel]]]
"""What answers each request, given the request and the uid that asks. May raise SlicewiseError."""

_FIELDS = 32
"""Most fields of a query."""
_SHOWN = 64
_STATUS = {
    "SW-FORBIDDEN": HTTPStatus.FORBIDDEN,
    "SW-RATE": HTTPStatus.TOO_MANY_REQUESTS,
    "SW-WIRE": HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True)
class Asked:
    """A request as it came, and who asks, by the kernel's word or munge's."""

    method: str
    target: str
    body: bytes
    uid: int


@dataclass(frozen=True)
class HttpReply:
    """What goes back: JSON."""

    status: HTTPStatus
    body: bytes


class Routes:
    """Answers each request by its handler. ``allows`` says whether a uid may ask as that."""

    def __init__(self, handlers: Handlers, allows: Callable[[Asker, int], bool]) -> None:
        self.handlers = handlers
        self._allows = allows
        self._by_place = {f"{kind.method} {kind.path}": kind for kind in handlers}

    async def reply(self, asked: Asked) -> HttpReply:
        """The reply to a request, whatever goes wrong."""
        try:
            answer, status = await self.answer(asked), HTTPStatus.OK
        except Exception as error:  # noqa: BLE001 -- one bad request must not end the daemon
            answer, status = failure_of(error, asked.uid), status_of(error)
        return HttpReply(status, answer.model_dump_json(exclude_none=True).encode())

    async def answer(self, asked: Asked) -> BaseModel:
        """The answer to a request.

        Raises ValidationError for what is no such request, and InvalidInputError: SW-WIRE if there
        is nothing to ask at that place, SW-FORBIDDEN if this user may not ask it.
        """
        request = self._read(asked)
        if not self._allows(request.asker, asked.uid):
            who = "the launcher" if request.asker == "launcher" else "root and SlurmUser"
            raise InvalidInputError("SW-FORBIDDEN", f"Only {who} may do that.")
        return await self.handlers[type(request)](request, asked.uid)

    def _read(self, asked: Asked) -> Request:
        path, _, query = asked.target.partition("?")
        kind = self._by_place.get(f"{asked.method} {path}")
        if kind is None:
            place = f"{asked.method[:_SHOWN]} {path[:_SHOWN]}"
            raise InvalidInputError("SW-WIRE", f"There is nothing to ask at {place!r}.")
        if asked.method == "GET":
            return kind.model_validate(dict(_fields(query)))
        # Text from a batch script may be in any encoding.
        return kind.model_validate_json(asked.body.decode("utf-8", "replace"))


def _fields(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        raise InvalidInputError("SW-WIRE", f"A query may have {_FIELDS} fields at most.") from None


def status_of(error: Exception) -> HTTPStatus:
    """HTTP's word for an error; the error's code says it exactly."""
    match error:
        case ValidationError():
            return HTTPStatus.BAD_REQUEST
        case UnreachableError():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case InvalidInputError(refusal=refusal):
            if refusal.code.endswith("-UNKNOWN"):
                return HTTPStatus.NOT_FOUND
            return _STATUS.get(refusal.code, HTTPStatus.UNPROCESSABLE_ENTITY)
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR
