"""Tests the user socket: limits, malformed input, and which users may see and do what."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import BaseModel

from cluster.language.errors import InvalidInputError
from cluster.rpc.message import DoneAnswer, Request
from cluster.rpc.messages import (
    DeleteRequest,
    ViewRequest,
)
from cluster.rpc.read_messages import WhyRequest
from slurm_plugin.api.http_server import HttpLimits
from slurm_plugin.api.places import UserLimits
from slurm_plugin.api.routes import Handlers, Routes
from slurm_plugin.api.user_socket import UserSocket
from slurm_plugin.common.log import report

USERS = UserLimits(connections=3, connections_per_uid=3)
LIMITS = HttpLimits(question_s=0.3, answer_s=0.3, body_bytes=65_536, refused=8)
PATIENT = replace(LIMITS, question_s=60.0, answer_s=60.0)
LONG = 1_000_000


class UidAnswer(BaseModel):
    uid: int


async def done(_request: Request, _uid: int) -> BaseModel:
    return DoneAnswer()


async def why(request: WhyRequest, uid: int) -> BaseModel:
    if request.about == "order":
        report("ordered", service="vision/chat")
    if request.about == "refuse":
        raise InvalidInputError("SW-X", "no", "hint")
    if request.about == "crash":
        raise RuntimeError("inner affairs")
    if request.about == "long":
        raise InvalidInputError("SW-X", "x" * LONG)
    return UidAnswer(uid=uid)


HANDLERS: Handlers = {ViewRequest: done, DeleteRequest: done, WhyRequest: why}


def get_why(about: str) -> bytes:
    return f"GET /v1/why?about={about} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


@asynccontextmanager
async def serving(
    place: Path,
    users: UserLimits = USERS,
    limits: HttpLimits = PATIENT,
    handlers: Handlers = HANDLERS,
) -> AsyncIterator[Path]:
    server = UserSocket(place, Routes(handlers, lambda _asker, _uid: True), users, limits)
    await server.start()
    yield place
    await server.stop()


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[Path]:
    """Drops a peer that says or takes nothing for a moment."""
    async with serving(tmp_path / "hasty.sock", limits=LIMITS) as place:
        yield place


@pytest.mark.parametrize("says_more", [True, False])
async def test_who_takes_no_answer_keeps_no_connection(hasty: Path, says_more: bool) -> None:
    """Else one user could take all of the daemon's file descriptors."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(hasty))
        peer.sendall(get_why("long"))
        if not says_more:
            await asyncio.sleep(0.1)
            peer.shutdown(socket.SHUT_WR)
        await asyncio.sleep(2 * LIMITS.answer_s + 1.0)
        # What the kernel had taken; the rest went with the connection.
        peer.settimeout(1)
        taken = sum(map(len, iter(lambda: peer.recv(65_536), b"")))
        assert taken < LONG
