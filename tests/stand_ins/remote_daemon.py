"""The daemon's socket over TCP with munge, as far as munge's rules go."""

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import (
    InvalidInputError,
    SlicewiseError,
)
from slicewise.cluster.rpc import remote_client
from slicewise.cluster.rpc.message import (
    VERSION_PATH,
    Request,
    answer_of,
    failure_in,
    read_answer,
    requests,
)
from slicewise.cluster.rpc.messages import DeleteRequest, ViewAnswer, ViewRequest
from slicewise.cluster.rpc.munge import Credential
from slicewise.cluster.rpc.munge_rpc import SEALED_PATH, seal, unseal
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.api import remote_socket
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.api.desk import roles
from slicewise.slurm_plugin.api.http_server import HttpLimits
from slicewise.slurm_plugin.api.remote_socket import BOUNDS, LIMITS, RemoteSocket
from slicewise.slurm_plugin.api.routes import Asked, Routes
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.rules.common.connection_places import ConnectionLimits
from stand_ins.http_peer import connected_tcp, posted

ME = os.getuid()

VIEW = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=())


@dataclass
class ScriptedMunge:
    """munged as far as its rules go; ``uid`` is who encodes here, ``reader`` who decodes."""

    uid: int = ME
    reader: int = ME
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
        if for_uid != self.reader or credential in self.seen:
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

    async def answer(self, request: Request, caller: Caller) -> BaseModel:
        self.asked.append((request, caller.uid))
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
    tokens = SlurmTokens(own.slurm_jwt_key)
    server = RemoteSocket(own, routes, roles(own), tokens, bounds=bounds, limits=limits)
    await server.start()
    yield daemon
    await server.stop()


class OtherHost:
    """Asks routes as users of another host do, over TCP, each question and answer a credential."""

    def __init__(self, munge: ScriptedMunge, place: str) -> None:
        self._munge, self._place = munge, place

    async def answer(self, asked: Asked) -> BaseModel:
        """The answer; raises InvalidInputError for a failure."""
        self._munge.uid = asked.uid
        message = f"{asked.method} {asked.target}\n".encode() + asked.body
        peer = await connected_tcp(self._place)
        response = await peer.asks(question(self._munge, message))
        said = self._opened(response.body, asked.uid)
        if failure := failure_in(said):
            raise InvalidInputError(Code(failure.code), failure.message, failure.hint)
        path = VERSION_PATH + asked.target.partition("?")[0].rpartition("/")[2]
        kind = next(one for one in requests() if (one.method, one.path) == (asked.method, path))
        return read_answer(answer_of(kind), said)

    def _opened(self, body: bytes, uid: int) -> bytes:
        """What was said to that user; anything else can't be read."""
        self._munge.uid, self._munge.reader = ME, uid
        try:
            parts = [unseal(self._munge, "answer", line) for line in body.splitlines()]  # type: ignore[arg-type]
        finally:
            self._munge.reader = ME
        return b"".join(part.data for part in parts)


def credential(munge: ScriptedMunge, message: bytes = b"GET /v1/view\n") -> bytes:
    return b"".join(seal(munge, "question", "0" * 32, message, ME))  # type: ignore[arg-type]


def question(munge: ScriptedMunge, message: bytes = b"GET /v1/view\n") -> bytes:
    return posted(SEALED_PATH, credential(munge, message))
