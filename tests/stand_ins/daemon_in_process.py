"""A daemon without sockets: commands ask its handlers in this process, each message as its text."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import Request
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.routes import Asked, Routes

ROOT = Principal(0, "root", None)


def answer_from(
    monkeypatch: pytest.MonkeyPatch, handlers: ReaderHandlers, principal: Principal = ROOT
) -> None:
    """Have every client in this process asked as that principal; others' requests are refused."""
    routes = routes_of(handlers, principal)

    def send(_: DaemonClient, __: str, request: Request) -> bytes:
        target, body = request.sent()
        return asyncio.run(routes.reply(Asked(request.method, target, body, principal.uid))).body

    monkeypatch.setattr(DaemonClient, "_send", send)


def routes_of(handlers: ReaderHandlers, principal: Principal) -> Routes:
    """What answers that principal alone."""

    def answered_by(handle: Any) -> Any:
        async def answer(request: Request, _: int) -> Any:
            return await handle(request, principal)

        return answer

    kinds: Mapping[type[Request], Any] = {
        kind: answered_by(handle) for kind, handle in handlers.items()
    }
    is_operator = principal.tenants is None
    return Routes(kinds, lambda asker, _: asker == "everybody" or is_operator)
