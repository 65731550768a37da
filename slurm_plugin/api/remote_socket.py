"""Serves HTTP to other hosts: TCP, each question with what says who asks (``identities.py``).

The network is not trusted. A question must be short and arrive soon. Silent connections make room
for others (``common/connection_places.py``), and the launcher's hosts have places of their own, so
that no other host can lock the launcher out.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import (
    Refusal,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.rpc.messages import REQUEST_LIMIT
from slicewise.cluster.rpc.munge import Munge
from slicewise.cluster.settings.file import DaemonSettings, host_and_port
from slicewise.slurm_plugin.api.desk import Roles
from slicewise.slurm_plugin.api.http_server import (
    Connection,
    HttpLimits,
    HttpServer,
    Question,
)
from slicewise.slurm_plugin.api.identities import identity_of, refused
from slicewise.slurm_plugin.api.places import Guests
from slicewise.slurm_plugin.api.routes import Routes, status_of
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.common.sockets import BUSY
from slicewise.slurm_plugin.rules.common.connection_places import ConnectionLimits

BOUNDS = ConnectionLimits(connections=128, per_host=16, per_prefix=64, grace_s=0.5)
LIMITS = HttpLimits(question_s=2.0, answer_s=15.0, body_bytes=2 * REQUEST_LIMIT, refused=128)
"""A credential of the longest message needs less than twice its bytes."""
_CONNECTIONS_PER_UID = 8
"""Questions of one user that are answered at a time: half of what a host may have, so that one user
leaves room for others of that host. The launcher and operators have no such bound."""
_REPORT_EVERY_S = 10.0


class RemoteSocket:
    """Answers what the user socket answers; ``listen`` says where."""

    def __init__(
        self,
        settings: DaemonSettings,
        routes: Routes,
        who: Roles,
        tokens: SlurmTokens,
        *,
        bounds: ConnectionLimits = BOUNDS,
        limits: HttpLimits = LIMITS,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._roles = who
        self._identity = identity_of(settings, Munge(settings.munge_socket), tokens)
        self._guests = Guests(bounds)
        self._server = HttpServer(self._guests, self._reply, limits, self._no_question)
        self._by_uid: Counter[int] = Counter()
        self._report_due_s = 0.0

    async def start(self) -> None:
        """Listen, if ``listen`` is set; SlicewiseError (SW-SETTINGS) if that is impossible."""
        if not self._settings.listen:
            return
        tls = self._identity.tls()
        try:
            await self._server.start_tcp(*host_and_port(self._settings.listen), tls)
        except OSError as error:
            raise SlicewiseError(
                Code.SETTINGS,
                f"daemon.listen: {self._settings.listen}: {error.strerror}.",
                "Name an address of this host and a port that is free.",
            ) from None

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        await self._server.stop()
        self._identity.stop()

    async def _reply(self, question: Question) -> web.StreamResponse:
        connection = question.connection
        try:
            opened = await self._identity.opened(question)
            with self._counted(opened.asked.uid, connection):
                return await opened.write(await self._routes.reply(opened.asked))
        except SlicewiseError as error:
            # It gives up its place: what has spoken is not dropped to make room for others.
            self._report(error, connection.address)
            return connection.refuse(error.refusal, status_of(error))
        except TimeoutError:
            connection.drop()
            return web.Response()

    @contextmanager
    def _counted(self, uid: int, connection: Connection) -> Iterator[None]:
        """Count a user's question; UnreachableError (SW-BUSY) if the user has too many."""
        if uid == self._roles.launcher:
            self._guests.launcher_asks(connection)
        elif self._by_uid[uid] >= _CONNECTIONS_PER_UID and uid not in self._roles.trusted:
            raise UnreachableError(BUSY.code, BUSY.message, BUSY.hint)
        self._by_uid[uid] += 1
        try:
            yield
        finally:
            self._by_uid -= Counter([uid])

    def _no_question(self, connection: Connection) -> Refusal:
        self._report(refused(self._identity.none), connection.address)
        return self._identity.none

    def _report(self, error: SlicewiseError, address: str) -> None:
        """Log a refused credential, at most every ``_REPORT_EVERY_S`` seconds.

        Otherwise anything that can connect could fill the log.
        """
        if time.monotonic() >= self._report_due_s:
            self._report_due_s = time.monotonic() + _REPORT_EVERY_S
            report_failure("credential_refused", error, address=address)
