"""The page in the browser without a cluster: at the daemon's socket answers are made up.

Every request has an answer by the fields that it declares, so that a page which is new is shown,
too.
"""

import os
import types
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import aiohttp
from builders.settings import site_settings
from free_ports import free_port
from pydantic import BaseModel

from slicewise.cluster.rpc.message import Answer, Request, answer_of, requests
from slicewise.cluster.rpc.web_messages import WebUserAnswer, WebUserRequest
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.api.desk import Roles
from slicewise.slurm_plugin.api.routes import Routes
from slicewise.slurm_plugin.api.user_socket import UserSocket, user_limits
from slicewise.slurm_plugin.page.server import WebServer


@dataclass(frozen=True)
class Fiction:
    """What answers are made of.

    Attributes:
        text: each text, by the name of its field and the number of what it is in.
        number: each number, in the same way.
        many: length of each list; ``within``: of a list in another one; ``lengths``: of those with
            that field's name.
    """

    text: Callable[[str, int], str]
    number: Callable[[str, int], int] = lambda _, nth: 1000 * (1 + nth % 7)
    many: int = 2
    within: int = 2
    lengths: Mapping[str, int] = field(default_factory=dict)

    def answer(self, kind: type[BaseModel]) -> Any:
        """An answer of that kind."""
        return self._message(kind, 0, self.many)

    def _message(self, kind: Any, nth: int, many: int) -> Any:
        if is_dataclass(kind):
            kinds = get_type_hints(kind, include_extras=True)
        else:
            kind.model_rebuild()
            kinds = {name: one.annotation for name, one in kind.model_fields.items()}
        return kind(
            **{
                name: self._value(name, annotation, nth, many)
                for name, annotation in kinds.items()
                # There is no next page.
                if name not in ("v", "more")
            }
        )

    def _value(self, name: str, kind: Any, nth: int, many: int) -> Any:
        # Units are new types of int.
        kind = getattr(kind, "__supertype__", kind)
        origin, parts = get_origin(kind), get_args(kind)
        if origin in (Annotated, Union, types.UnionType):
            value = self._value(name, parts[0], nth, many)
            return value[: _most_length(parts[1:])] if isinstance(value, str) else value
        if origin is Literal:
            return parts[nth % len(parts)]
        if origin is tuple:
            return self._several(name, parts[0], many)
        if origin in (dict, Mapping):
            return self._mapping(name, parts[1], nth)
        if is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
            return self._message(kind, nth, self.within)
        return self._plain(name, kind, nth)

    def _mapping(self, name: str, kind: Any, nth: int) -> Mapping[str, Any]:
        text = self.text(name, nth)
        if kind is Any:
            return {text: 1, "lines": [text]}
        return {text: 1} if kind is int else {}

    def _several(self, name: str, kind: Any, many: int) -> tuple[Any, ...]:
        # A record without declared fields: there is none.
        if get_origin(kind) is dict:
            return ()
        return tuple(
            self._value(name, kind, one, many) for one in range(self.lengths.get(name, many))
        )

    def _plain(self, name: str, kind: Any, nth: int) -> Any:
        if issubclass(kind, Enum):
            return list(kind)[nth % len(kind)]
        if kind is bool:
            return True
        return self.text(name, nth) if kind is str else kind(self.number(name, nth))


def _most_length(fields: Iterable[Any]) -> int | None:
    """Characters that a text may have; None: any number."""
    bounds = (bound for field in fields for bound in getattr(field, "metadata", ()))
    return min((bound.max_length for bound in bounds if hasattr(bound, "max_length")), default=None)


@asynccontextmanager
async def site_up(
    run_dir: Path, fiction: Fiction, answers: Mapping[type[Request], Answer] = MappingProxyType({})
) -> AsyncIterator[aiohttp.ClientSession]:
    """The page, and an operator who is logged in."""
    listen = f"127.0.0.1:{free_port()}"
    settings = site_settings(name="testing", daemon={"run_dir": run_dir}, web={"listen": listen})
    socket, server = _daemon(run_dir, fiction, answers), WebServer(settings)
    await socket.start()
    await server.start()
    jar = aiohttp.CookieJar(unsafe=True)
    base = f"http://{listen}"
    try:
        async with aiohttp.ClientSession(base, headers={"Origin": base}, cookie_jar=jar) as session:
            form = {"token": "root"}
            async with session.post("/login", data=form, allow_redirects=False) as answer:
                assert answer.status == 303
            yield session
    finally:
        await server.stop()
        await socket.stop()


def _daemon(run_dir: Path, fiction: Fiction, answers: Mapping[type[Request], Answer]) -> UserSocket:
    """A token logs the user in whose name it is."""

    async def made_up(request: Request, _: Caller) -> BaseModel:
        known = answers.get(type(request))
        return known or fiction.answer(answer_of(type(request)))

    async def user_of(request: WebUserRequest, _: Caller) -> WebUserAnswer:
        return WebUserAnswer(user=request.token)

    who = Roles(frozenset({os.geteuid()}), None)
    handlers = dict.fromkeys(requests(), made_up) | {WebUserRequest: user_of}
    routes = Routes(handlers, who.allows, who.acting)
    return UserSocket(run_dir / "user.sock", routes, user_limits(who))
