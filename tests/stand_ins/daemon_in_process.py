"""A daemon without sockets: commands ask its handlers in this process, each message as its text."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Caller, Principal, ReaderHandlers
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.record_desk import RecordDesk
from slicewise.slurm_plugin.api.routes import Asked, Routes
from stand_ins.scripted import ScriptedSlurm, sync_of

ROOT = Principal(0, "root", None)


def record_handlers(settings: Settings, ledger: Any) -> ReaderHandlers:
    """A desk that shows what the ledger has recorded."""
    slurm = ScriptedSlurm()
    cluster_state = sync_of(slurm)
    reads = Reads(settings, slurm, ledger, cluster_state)
    return RecordDesk(settings, ledger, cluster_state, reads).handlers()


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
        async def answer(request: Request, _: Caller) -> Any:
            return await handle(request, principal)

        return answer

    kinds: Mapping[type[Request], Any] = {
        kind: answered_by(handle) for kind, handle in handlers.items()
    }
    is_operator = principal.tenants is None
    return Routes(kinds, lambda asker, _: asker == "everybody" or is_operator)
