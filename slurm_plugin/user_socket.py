"""The socket for the launcher and for people: who may see and do what."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from cluster.errors import InvalidInputError
from cluster.settings import DaemonSettings
from cluster.wire import (
    CheckRequest,
    DeleteRequest,
    DoneAnswer,
    UserRequest,
    ViewAnswer,
    ViewRequest,
    WishRequest,
)
from slurm_plugin.admit import Admission
from slurm_plugin.line_server import Limits, LineServer, Peer
from slurm_plugin.sync import Sync

_REQUEST: TypeAdapter[UserRequest] = TypeAdapter(UserRequest)


@dataclass(frozen=True)
class Roles:
    """Uids with a part of their own."""

    administrators: frozenset[int]
    launcher: int | None

    @property
    def trusted(self) -> frozenset[int]:
        """Whom the others must not lock out."""
        return self.administrators | ({self.launcher} if self.launcher is not None else frozenset())

    def sees_all(self, uid: int) -> bool:
        """The launcher looks after every tenant's services."""
        return uid in self.trusted


def roles(settings: DaemonSettings) -> Roles:
    """Root, SlurmUser (who runs this daemon), and the launcher's user if this host knows it."""
    try:
        launcher = pwd.getpwnam(settings.launcher_user).pw_uid
    except KeyError:
        launcher = None
    return Roles(frozenset({0, os.geteuid()}), launcher)


def limits(who: Roles) -> Limits:
    """Of the user socket. Its longest request is a check, which holds a service's directives."""
    return Limits(
        connections=256,
        connections_per_uid=32,
        idle_s=60.0,
        line_bytes=64 * 1024,
        reserved=64,
        reserved_for=who.trusted,
    )


class UserSocket:
    """Answers view, wish, delete and check by who asks."""

    def __init__(self, path: Path, sync: Sync, admission: Admission, who: Roles) -> None:
        self._sync = sync
        self._admission = admission
        self._roles = who
        self._server = LineServer(path, 0o666, self._answer, limits(who))

    async def start(self) -> None:
        """Listen, for everybody on this host."""
        await self._server.start()

    async def stop(self) -> None:
        """Remove the socket."""
        await self._server.stop()

    async def _answer(self, line: str, peer: Peer) -> BaseModel:
        match _REQUEST.validate_json(line):
            case ViewRequest():
                return self._view(peer.uid)
            case WishRequest() as wish:
                self._require(self._roles.sees_all(peer.uid), "The launcher alone wishes slots.")
                return await self._sync.wish(wish.array_job_id, frozenset(wish.run), wish.note)
            case DeleteRequest() as delete:
                return await self._delete(delete.array_job_id, peer.uid)
            case CheckRequest() as check:
                return self._admission.check(check, peer.uid)

    def _view(self, uid: int) -> ViewAnswer:
        view = self._sync.view
        if self._roles.sees_all(uid):
            return view
        return visible_to(view, user_name(uid), self._sync.accounts_by_uid.get(uid, frozenset()))

    async def _delete(self, array_job_id: int, uid: int) -> DoneAnswer:
        service = self._sync.service(array_job_id)
        owner = service.user == user_name(uid)
        self._require(
            owner or uid in self._roles.administrators,
            f"Service {service.name!r} belongs to {service.user!r}.",
        )
        await self._sync.delete(array_job_id)
        return DoneAnswer()

    @staticmethod
    def _require(allowed: bool, message: str) -> None:
        if not allowed:
            raise InvalidInputError("SW-FORBIDDEN", message)


def visible_to(view: ViewAnswer, user: str, accounts: frozenset[str]) -> ViewAnswer:
    """What a user may see: his own services, and everything of the tenants that he belongs to."""
    return view.model_copy(
        update={
            "services": tuple(s for s in view.services if s.user == user or s.tenant in accounts),
            "tenants": tuple(t for t in view.tenants if t.name in accounts),
        }
    )


def user_name(uid: int) -> str:
    """As Slurm writes it; the number itself if this host doesn't know the user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
