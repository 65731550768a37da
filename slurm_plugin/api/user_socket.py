"""Serves HTTP on this host's Unix socket: the kernel says who asks."""

import asyncio
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.rpc.messages import REQUEST_LIMIT
from slicewise.slurm_plugin.api.desk import Roles
from slicewise.slurm_plugin.api.http_server import HttpLimits, HttpServer, Question
from slicewise.slurm_plugin.api.places import UserLimits, UserPlaces
from slicewise.slurm_plugin.api.routes import Asked, Routes
from slicewise.slurm_plugin.common.sockets import bound

LIMITS = HttpLimits(question_s=60.0, answer_s=60.0, body_bytes=REQUEST_LIMIT, refused=128)
_NO_QUESTION = Refusal(Code.WIRE, "This is no HTTP request.", "Ask with the slicewise command.")


def user_limits(who: Roles) -> UserLimits:
    """Limits of the user socket."""
    return UserLimits(
        connections=256, connections_per_uid=32, reserved=64, reserved_for=who.trusted
    )


class UserSocket:
    """Serves the registry on this host; every user of the host may connect."""

    def __init__(
        self, path: Path, routes: Routes, users: UserLimits, limits: HttpLimits = LIMITS
    ) -> None:
        self._path = path
        self._routes = routes
        self._trusted = users.reserved_for
        self._places = UserPlaces(users)
        self._server = HttpServer(self._places, self._reply, limits, lambda _: _NO_QUESTION)
        self._gate = asyncio.Lock()

    async def start(self) -> None:
        """Listen, replacing a socket file that a killed daemon left behind."""
        await self._server.start_unix(bound(self._path, 0o666))

    async def stop(self) -> None:
        """Remove the socket, and end every connection."""
        with suppress(FileNotFoundError):
            self._path.unlink()
        await self._server.stop()

    async def _reply(self, question: Question) -> web.Response:
        uid, request = self._places.uids.get(question.connection), question.request
        if uid is None:
            return web.Response()  # The peer has gone meanwhile.
        if uid not in self._trusted:
            await self._turn()
        reply = await self._routes.reply(
            Asked(request.method, request.raw_path, question.body, uid)
        )
        question.connection.answers()
        return web.Response(
            status=reply.status,
            body=reply.body,
            headers=reply.headers,
            content_type="application/json",
        )

    async def _turn(self) -> None:
        """Let one question go on in each turn of the event loop, however many are asked.

        Everything else that the program does gets its turns in between.
        """
        async with self._gate:
            await asyncio.sleep(0)
