"""Serves the socket for the launcher and for people, and decides who may see and do what."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, Field, TypeAdapter

from cluster.language.errors import InvalidInputError
from cluster.rpc.key_messages import (
    GrantsRequest,
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRevokeRequest,
)
from cluster.rpc.messages import (
    CheckRequest,
    DeleteRequest,
    DoneAnswer,
    LeaveRequest,
    NewsRequest,
    RetireRequest,
    ServiceView,
    StatusAnswer,
    StatusRequest,
    ViewAnswer,
    ViewRequest,
    WishRequest,
)
from cluster.rpc.order_messages import OrderRequest
from cluster.rpc.read_messages import ReadRequest
from cluster.settings.file import DaemonSettings
from slurm_plugin.admission_server.admit import Admission
from slurm_plugin.api.access import Reader
from slurm_plugin.api.keys import KeyRequest, ServiceKeys
from slurm_plugin.api.orders import ServiceOrders
from slurm_plugin.api.reads import Reads
from slurm_plugin.common.line_server import Limits, LineServer, Peer
from slurm_plugin.state.controller import Sync

MESSAGE_BYTES = 64 * 1024
"""Most bytes of a request; the longest is a check, which holds a service's directives."""

_Request = Annotated[
    ViewRequest
    | WishRequest
    | RetireRequest
    | GrantsRequest
    | NewsRequest
    | LeaveRequest
    | DeleteRequest
    | OrderRequest
    | KeyCreateRequest
    | KeyListRequest
    | KeyRevokeRequest
    | KeyOpenRequest
    | CheckRequest
    | StatusRequest
    | ReadRequest,
    Field(discriminator="op"),
]
_REQUEST: TypeAdapter[_Request] = TypeAdapter(_Request)


@dataclass(frozen=True)
class Roles:
    """Uids with special rights."""

    administrators: frozenset[int]
    launcher: int | None

    def reader(self, uid: int, accounts: frozenset[str]) -> Reader:
        """What a user of these accounts may read; operators may read everything."""
        return Reader(uid, user_name(uid), None if uid in self.administrators else accounts)

    @property
    def trusted(self) -> frozenset[int]:
        """Uids that other users must not lock out."""
        return self.administrators | ({self.launcher} if self.launcher is not None else frozenset())

    def sees_all(self, uid: int) -> bool:
        """Whether this uid sees all tenants' services; the launcher does, since it looks after
        them.
        """
        return uid in self.trusted


def roles(settings: DaemonSettings) -> Roles:
    """Root, SlurmUser (who runs this daemon), and the launcher's user if this host knows it."""
    try:
        launcher = pwd.getpwnam(settings.launcher_user).pw_uid
    except KeyError:
        launcher = None
    return Roles(frozenset({0, os.geteuid()}), launcher)


def limits(who: Roles) -> Limits:
    """Limits of the user socket."""
    return Limits(
        connections=256,
        connections_per_uid=32,
        idle_s=60.0,
        line_bytes=MESSAGE_BYTES,
        reserved=64,
        reserved_for=who.trusted,
    )


class Daemon(Protocol):
    """The part of the daemon that answers about itself."""

    def status(self) -> StatusAnswer:
        """The daemon's state now."""


class UserSocket:
    """Answers the launcher and people, depending on who asks."""

    def __init__(
        self,
        path: Path,
        sync: Sync,
        admission: Admission,
        who: Roles,
        *,
        reads: Reads,
        orders: ServiceOrders,
        keys: ServiceKeys,
        daemon: Daemon,
    ) -> None:
        self._sync = sync
        self._admission = admission
        self._roles = who
        self._reads = reads
        self._orders = orders
        self._keys = keys
        self._daemon = daemon
        self._server = LineServer(path, 0o666, self.answer, limits(who))

    async def start(self) -> None:
        """Listen; every user of this host may connect."""
        await self._server.start()

    async def stop(self) -> None:
        """Remove the socket."""
        await self._server.stop()

    async def answer(self, line: str, peer: Peer) -> BaseModel:
        """Answer one line from a peer on this host or, by munge, on another."""
        match _REQUEST.validate_json(line):
            case WishRequest() | RetireRequest() | GrantsRequest() | NewsRequest() as request:
                self._require(self._roles.sees_all(peer.uid), "Only the launcher may do that.")
                return await self._of_launcher(request)
            case ViewRequest():
                return self._view(peer.uid)
            case LeaveRequest() as leave:
                is_operator = peer.uid in self._roles.administrators
                self._require(is_operator, "Only root and SlurmUser may do that.")
                return self._sync.leaving.take(leave, self._sync.view.services)
            case CheckRequest() as check:
                return self._admission.check(check, peer.uid)
            case StatusRequest():
                return self._daemon.status()
            case asked:
                reader = self._roles.reader(peer.uid, self._accounts(peer.uid))
                return await self._of_user(asked, reader)

    async def _of_launcher(
        self, request: WishRequest | RetireRequest | GrantsRequest | NewsRequest
    ) -> BaseModel:
        match request:
            case WishRequest() as wish:
                run = frozenset(wish.run)
                return await self._sync.wish(wish.array_job_id, run, wish.note, wish.urgency)
            case RetireRequest():
                await self._sync.retire(request.array_job_id)
                return DoneAnswer()
            case GrantsRequest():
                return self._keys.grants()
            case NewsRequest():
                return self._sync.news.take(request)

    async def _of_user(
        self, request: DeleteRequest | OrderRequest | KeyRequest | ReadRequest, reader: Reader
    ) -> BaseModel:
        match request:
            case DeleteRequest():
                service = self._own_service(request.array_job_id, reader)
                await self._sync.delete(service.array_job_id)
                return DoneAnswer()
            case OrderRequest():
                service = self._own_service(request.array_job_id, reader)
                return await self._orders.order(request, service, reader)
            case KeyCreateRequest() | KeyListRequest() | KeyRevokeRequest() | KeyOpenRequest():
                return await self._keys.answer(request, reader)
            case read:
                return await self._reads.answer(read, reader)

    def _view(self, uid: int) -> ViewAnswer:
        view = self._sync.view
        if uid == self._roles.launcher:
            self._sync.hear()
            return view
        if not self._roles.sees_all(uid):
            view = visible_to(view, user_name(uid), self._accounts(uid))
        return view.model_copy(update={"news": self._sync.news.of(view.services)})

    def _accounts(self, uid: int) -> frozenset[str]:
        return frozenset(self._sync.quotas.accounts_by_uid.get(uid, ()))

    def _own_service(self, array_job_id: int, reader: Reader) -> ServiceView:
        service = self._sync.service(array_job_id)
        self._require(
            service.user == reader.user or reader.uid in self._roles.administrators,
            f"Service {service.name!r} belongs to {service.user!r}.",
        )
        return service

    @staticmethod
    def _require(allowed: bool, message: str) -> None:
        if not allowed:
            raise InvalidInputError("SW-FORBIDDEN", message)


def visible_to(view: ViewAnswer, user: str, accounts: frozenset[str]) -> ViewAnswer:
    """The part of the view that a user may see: own services, and all of the user's tenants."""
    return view.model_copy(
        update={
            "services": tuple(s for s in view.services if s.user == user or s.tenant in accounts),
            "tenants": tuple(t for t in view.tenants if t.name in accounts),
        }
    )


def user_name(uid: int) -> str:
    """The user's name as Slurm writes it; the uid as text if this host doesn't know the user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
