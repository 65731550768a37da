"""The registry of what the daemon can be asked: finds a request's handler, and answers.

A request declares its place and who may ask (``cluster/rpc/``); the room that answers it names its
handler in a table. Both sockets ask here.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.rpc.message import ACTING_PATH, VERSION_PATH, Asker, Request
from slicewise.cluster.runtime.log import bound
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.common.sockets import ONE_VERSION, failure_of

Handlers = Mapping[type[Request], Callable[[Any, Caller], Awaitable[BaseModel]]]
"""What answers each request, given the request and who asks. May raise SlicewiseError."""

Acting = Callable[[int, str, type[Request]], Caller]
"""As whom a user's request is answered, given the uid that asks for the user. Raises
InvalidInputError (SW-FORBIDDEN) if it may not."""

REQUEST_HEADER = "X-Request-Id"
"""The header of an answer that names the question as the log does."""
_ID_BYTES = 8
_FIELDS = 32
"""Most fields of a query."""
_SHOWN = 64
_WHO = {"launcher": "the launcher", "web": "the web server"}
_STATUS = {
    Code.FORBIDDEN: HTTPStatus.FORBIDDEN,
    Code.TOKEN: HTTPStatus.UNAUTHORIZED,
    Code.RATE: HTTPStatus.TOO_MANY_REQUESTS,
    Code.WIRE: HTTPStatus.BAD_REQUEST,
}


@dataclass(frozen=True)
class Asked:
    """A request as it came, and who asks, by the kernel's word, munge's or a token's."""

    method: str
    target: str
    body: bytes
    uid: int


@dataclass(frozen=True)
class HttpReply:
    """What goes back: JSON, and the id by which the log knows the question."""

    status: HTTPStatus
    body: bytes
    request_id: str

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""
        return {REQUEST_HEADER: self.request_id}


def nobody_acts(uid: int, user: str, asked: type[Request]) -> Caller:  # noqa: ARG001 -- as Acting
    """Refuse: InvalidInputError (SW-FORBIDDEN)."""
    raise InvalidInputError(Code.FORBIDDEN, "Nobody may ask for other users here.")


class Routes:
    """Answers each request by its handler.

    ``allows`` says whether a uid may ask as that, ``acting`` who may ask for other users.
    """

    def __init__(
        self,
        handlers: Handlers,
        allows: Callable[[Asker, int], bool],
        acting: Acting = nobody_acts,
    ) -> None:
        self.handlers = handlers
        self._allows = allows
        self._acting = acting
        self._by_place = {f"{kind.method} {kind.path}": kind for kind in handlers}

    async def reply(self, asked: Asked) -> HttpReply:
        """The reply to a request, whatever goes wrong. Events on the way carry the request's id."""
        request_id = token_hex(_ID_BYTES)
        with bound(request_id=request_id):
            try:
                answer, status = await self.answer(asked), HTTPStatus.OK
            except Exception as error:  # noqa: BLE001 -- one bad request must not end the daemon
                answer, status = failure_of(error, asked.uid, request_id), status_of(error)
        exclude_none = getattr(answer, "leaves_out_none", True)
        text = answer.model_dump_json(exclude_none=exclude_none)
        return HttpReply(status, text.encode(), request_id)

    async def answer(self, asked: Asked) -> BaseModel:
        """The answer to a request.

        Raises ValidationError for what is no such request, and InvalidInputError: SW-WIRE if there
        is nothing to ask at that place, SW-FORBIDDEN if this user may not ask it, also if somebody
        asks for another user who may not, or asks for a change that the page does not make.
        """
        user, target = _acted_for(asked.target)
        request = self._read(asked, target)
        caller = Caller(asked.uid)
        if user is not None:
            if request.changes and not request.on_page:
                raise InvalidInputError(Code.FORBIDDEN, "Changes are made by users themselves.")
            if request.asker in _WHO:
                # Not even for operators: the launcher is told what a web server need not know.
                raise InvalidInputError(Code.FORBIDDEN, "Programs ask that for themselves.")
            caller = self._acting(asked.uid, user, type(request))
        if not self._allows(request.asker, caller.uid):
            who = _WHO.get(request.asker, "root and SlurmUser")
            raise InvalidInputError(Code.FORBIDDEN, f"Only {who} may do that.")
        return await self.handlers[type(request)](request, caller)

    def _read(self, asked: Asked, target: str) -> Request:
        path, _, query = target.partition("?")
        kind = self._by_place.get(f"{asked.method} {path}")
        if kind is None:
            place = f"{asked.method[:_SHOWN]} {path[:_SHOWN]}"
            raise InvalidInputError(
                Code.WIRE, f"There is nothing to ask at {place!r}.", ONE_VERSION
            )
        if asked.method == "GET":
            return kind.model_validate(dict(_fields(query)))
        # Text from a batch script may be in any encoding.
        return kind.model_validate_json(asked.body.decode("utf-8", "replace"))


def _acted_for(target: str) -> tuple[str | None, str]:
    """The user for whom somebody asks, None if for nobody else, and the target without the name."""
    if not target.startswith(ACTING_PATH):
        return None, target
    user, _, rest = target.removeprefix(ACTING_PATH).partition("/")
    return unquote(user), VERSION_PATH + rest


def _fields(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        raise InvalidInputError(Code.WIRE, f"A query may have {_FIELDS} fields at most.") from None


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
