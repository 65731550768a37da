"""The daemon's socket over TCP with munge, as far as munge's rules go."""

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from slicewise.cluster.language.errors import (
    InvalidInputError,
    SlicewiseError,
)
from slicewise.cluster.rpc import remote_client
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.messages import DeleteRequest, ViewAnswer, ViewRequest
from slicewise.cluster.rpc.munge import Credential
from slicewise.cluster.rpc.munge_rpc import SEALED_PATH, seal
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.api import remote_socket
from slicewise.slurm_plugin.api.desk import roles
from slicewise.slurm_plugin.api.http_server import HttpLimits
from slicewise.slurm_plugin.api.remote_socket import BOUNDS, LIMITS, RemoteSocket
from slicewise.slurm_plugin.api.routes import Routes
from slicewise.slurm_plugin.rules.common.connection_places import ConnectionLimits
from stand_ins.http_peer import posted

ME = os.getuid()

VIEW = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=())


@dataclass
class ScriptedMunge:
    """munged as far as its rules go; ``uid`` is who encodes here."""

    uid: int = ME
    seen: set[bytes] = field(default_factory=set)
    failure: SlicewiseError | None = None

    def encode(self, payload: bytes, for_uid: int, ttl_s: int) -> bytes:
        said = [self.uid, for_uid, os.urandom(4).hex(), payload.decode("latin-1")]
        return b"MUNGE:" + base64.b64encode(json.dumps(said).encode()) + b":"

    def decode(self, credential: bytes) -> Credential:
        if self.failure is not None:
            raise self.failure
        try:
            text = base64.b64decode(credential.removeprefix(b"MUNGE:").removesuffix(b":"))
            uid, for_uid, _, payload = json.loads(text)
        except ValueError:
            raise InvalidInputError("SW-MUNGE", "Invalid credential.") from None
        if for_uid != ME or credential in self.seen:
            raise InvalidInputError("SW-MUNGE", "Unauthorized or replayed.")
        self.seen.add(credential)
        return Credential(payload.encode("latin-1"), uid)


def scripted_munge(monkeypatch: pytest.MonkeyPatch) -> ScriptedMunge:
    scripted = ScriptedMunge()
    for module in (remote_socket, remote_client):
        monkeypatch.setattr(module, "Munge", lambda _socket: scripted)
    return scripted


@dataclass
class Daemon:
    settings: DaemonSettings
    answer_with: BaseModel | SlicewiseError = VIEW
    asked: list[tuple[Request, int]] = field(default_factory=list)

    async def answer(self, request: Request, uid: int) -> BaseModel:
        self.asked.append((request, uid))
        if isinstance(self.answer_with, SlicewiseError):
            raise self.answer_with
        return self.answer_with


@asynccontextmanager
async def serving(
    own: DaemonSettings, bounds: ConnectionLimits = BOUNDS, limits: HttpLimits = LIMITS
) -> AsyncIterator[Daemon]:
    daemon = Daemon(own)
    routes = Routes(
        {ViewRequest: daemon.answer, DeleteRequest: daemon.answer}, lambda _asker, _uid: True
    )
    server = RemoteSocket(own, routes, roles(own), bounds=bounds, limits=limits)
    await server.start()
    yield daemon
    await server.stop()


def credential(munge: ScriptedMunge, message: bytes = b"GET /v1/view\n") -> bytes:
    return b"".join(seal(munge, "question", "0" * 32, message, ME))  # type: ignore[arg-type]


def question(munge: ScriptedMunge, message: bytes = b"GET /v1/view\n") -> bytes:
    return posted(SEALED_PATH, credential(munge, message))
