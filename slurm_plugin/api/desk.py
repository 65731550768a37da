"""Answers the launcher and people, and decides who may see and do what."""

import os
import pwd
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.key_messages import GrantsAnswer, GrantsRequest, KeyUsesRequest
from slicewise.cluster.rpc.message import Asker, DoneAnswer
from slicewise.cluster.rpc.messages import (
    CheckRequest,
    DeleteRequest,
    DesiredSlotsAnswer,
    DesiredSlotsRequest,
    EvictRequest,
    RetireRequest,
    ServiceReportRequest,
    ServiceView,
    StatusAnswer,
    StatusRequest,
    SubmitAnswer,
    ViewAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.order_messages import OrderRequest
from slicewise.cluster.rpc.usage_messages import (
    AllowancesRequest,
    EngineCountersRequest,
    UsagePostRequest,
)
from slicewise.cluster.rpc.web_messages import WebTokenRequest, WebUserRequest
from slicewise.cluster.settings.file import DaemonSettings, WebSettings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.api.access import Principal, ReaderHandler, ReaderHandlers
from slicewise.slurm_plugin.api.generations import ServiceGenerations
from slicewise.slurm_plugin.api.keys import ServiceKeys
from slicewise.slurm_plugin.api.orders import ServiceOrders
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.routes import Routes
from slicewise.slurm_plugin.api.usage import UsageBooks
from slicewise.slurm_plugin.api.web_logins import WebLogins
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_SHOWN = 64
_NO_PAGE = WebSettings()
_FOR_WANT_OF_AN_ACCOUNT = frozenset({Code.TENANT_UNKNOWN, Code.FORBIDDEN})


@dataclass(frozen=True)
class Roles:
    """Uids with special rights.

    Attributes:
        web: the web server's, which asks for other users; None without one.
        web_operators: names of users who see on the page what operators see.
    """

    administrators: frozenset[int]
    launcher: int | None
    web: int | None = None
    web_operators: frozenset[str] = frozenset()

    def principal(self, uid: int, accounts: frozenset[str]) -> Principal:
        """What a user of these accounts may read; operators may read everything."""
        return Principal(uid, user_name(uid), None if uid in self.administrators else accounts)

    @property
    def trusted(self) -> frozenset[int]:
        """Uids that other users must not lock out."""
        return self.administrators | ({self.launcher} if self.launcher is not None else frozenset())

    def allows(self, asker: Asker, uid: int) -> bool:
        """Whether this uid may ask what only such users may ask."""
        match asker:
            case "everybody":
                return True
            case "launcher":
                return self.sees_all(uid)
            case "web":
                return uid in self.administrators or uid == self.web
            case "operators":
                return uid in self.administrators

    def acting(self, uid: int, user: str) -> int:
        """The uid as which the daemon answers a question that the web server asks for a user.

        Raises InvalidInputError (SW-FORBIDDEN) for who is not the web server, and for users who
        are not known on this host, or who are the launcher or the web server.
        """
        if not self.allows("web", uid):
            raise InvalidInputError(Code.FORBIDDEN, "Only the web server may ask for other users.")
        if user in self.web_operators:
            return os.geteuid()
        try:
            found = pwd.getpwnam(user).pw_uid
        except (KeyError, ValueError):
            found = None
        is_program = found in (self.launcher, self.web) and found not in self.administrators
        if found is None or is_program:
            raise InvalidInputError(
                Code.FORBIDDEN,
                f"{user[:_SHOWN]!r} is no user of the daemon's host who may see the page.",
            )
        return found

    def sees_all(self, uid: int) -> bool:
        """Whether this uid sees all tenants' services; the launcher does, since it looks after
        them.
        """
        return uid in self.trusted


def roles(settings: DaemonSettings, web: WebSettings = _NO_PAGE) -> Roles:
    """Root, SlurmUser (who runs this daemon), and the users of launcher and web server, where this
    host knows them.
    """
    return Roles(
        frozenset({0, os.geteuid()}),
        _uid_of(settings.launcher_user),
        _uid_of(web.user) if web.listen else None,
        frozenset(web.operators),
    )


def _uid_of(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


class Daemon(Protocol):
    """The part of the daemon that answers about itself, and looks at Slurm's accounts."""

    def status(self) -> StatusAnswer:
        """The daemon's state now."""

    async def see_accounts(self) -> None:
        """Look at the accounts of Slurm's users again, but for some seconds after such a look."""


class Desk:
    """What the launcher and people may ask: each request's handler, and who may do what."""

    def __init__(
        self,
        cluster_state: ClusterState,
        admission: Admission,
        who: Roles,
        *,
        reads: Reads,
        orders: ServiceOrders,
        generations: ServiceGenerations,
        keys: ServiceKeys,
        usage: UsageBooks,
        web_logins: WebLogins,
        operators: ReaderHandlers,
        daemon: Daemon,
    ) -> None:
        self._cluster_state = cluster_state
        self._admission = admission
        self._roles = who
        self._orders = orders
        self._keys = keys
        self._daemon = daemon
        self.routes = Routes(
            {
                ViewRequest: self._view,
                StatusRequest: self._status,
                CheckRequest: self._check,
                DesiredSlotsRequest: self._desired_slots,
                RetireRequest: self._retire,
                ServiceReportRequest: self._news,
                GrantsRequest: self._granted,
                KeyUsesRequest: self._used,
                UsagePostRequest: usage.post,
                AllowancesRequest: usage.allowances,
                EngineCountersRequest: usage.note_counters,
                EvictRequest: self._leave,
                DeleteRequest: self._delete,
                OrderRequest: self._order,
                WebUserRequest: web_logins.user_of,
                WebTokenRequest: web_logins.user_by_slurm,
                **{
                    kind: self._as_reader(handle)
                    for handlers in (
                        *(part.handlers() for part in (keys, generations, web_logins, reads)),
                        operators,
                    )
                    for kind, handle in handlers.items()
                },
            },
            who.allows,
            who.acting,
        )

    def _as_reader(self, handle: ReaderHandler) -> Callable[[Any, int], Awaitable[BaseModel]]:
        async def handled(request: Any, uid: int) -> BaseModel:
            try:
                return await handle(request, self._reader(uid))
            except InvalidInputError as error:
                if not await self._has_other_accounts(uid, error):
                    raise
            return await handle(request, self._reader(uid))

        return handled

    async def _status(self, _: StatusRequest, __: int) -> StatusAnswer:
        return self._daemon.status()

    async def _check(self, request: CheckRequest, uid: int) -> SubmitAnswer:
        # The submission that follows is not seen by slicewise.lua in each mode.
        self._cluster_state.pacing.stir()
        try:
            return self._admission.check(request, uid)
        except InvalidInputError as error:
            if not await self._has_other_accounts(uid, error):
                raise
        return self._admission.check(request, uid)

    async def _desired_slots(self, request: DesiredSlotsRequest, _: int) -> DesiredSlotsAnswer:
        run = frozenset(request.slots)
        return await self._cluster_state.set_desired_slots(
            *(request.array_job_id, run, request.note, request.urgency),
            avoid=request.avoid_nodes or (),
            after=request.replaces_version,
        )

    async def _retire(self, request: RetireRequest, _: int) -> DoneAnswer:
        await self._cluster_state.retire(request.array_job_id)
        return DoneAnswer()

    async def _news(self, request: ServiceReportRequest, _: int) -> DoneAnswer:
        return self._cluster_state.service_reports.take(request)

    async def _granted(self, _: GrantsRequest, __: int) -> GrantsAnswer:
        return self._keys.grants()

    async def _used(self, request: KeyUsesRequest, _: int) -> DoneAnswer:
        return await self._keys.note_uses(request)

    async def _leave(self, request: EvictRequest, _: int) -> DoneAnswer:
        return self._cluster_state.evictions.take(request, self._cluster_state.view.services)

    async def _delete(self, request: DeleteRequest, uid: int) -> DoneAnswer:
        service = self._own_service(request.array_job_id, self._reader(uid))
        await self._cluster_state.delete(service.array_job_id)
        return DoneAnswer()

    async def _order(self, request: OrderRequest, uid: int) -> DoneAnswer:
        principal = self._reader(uid)
        service = self._own_service(request.array_job_id, principal)
        return await self._orders.order(request, service, principal)

    async def _view(self, _: ViewRequest, uid: int) -> ViewAnswer:
        view = self._cluster_state.view
        if uid == self._roles.launcher:
            self._cluster_state.hear()
            return view.model_copy(
                update={"desired_slots_versions": self._cluster_state.desired_slots_versions}
            )
        if not self._roles.sees_all(uid):
            view = visible_to(view, user_name(uid), self._accounts(uid))
        return view.model_copy(
            update={"service_reports": self._cluster_state.service_reports.of(view.services)}
        )

    async def _has_other_accounts(self, uid: int, refusal: InvalidInputError) -> bool:
        """Look at Slurm's accounts if a user may be refused for want of one; whether that helps."""
        if refusal.refusal.code not in _FOR_WANT_OF_AN_ACCOUNT or uid in self._roles.administrators:
            return False
        before = self._accounts(uid)
        await self._daemon.see_accounts()
        return self._accounts(uid) != before

    def _accounts(self, uid: int) -> frozenset[str]:
        return frozenset(self._cluster_state.quotas.accounts_by_uid.get(uid, ()))

    def _reader(self, uid: int) -> Principal:
        return self._roles.principal(uid, self._accounts(uid))

    def _own_service(self, array_job_id: int, principal: Principal) -> ServiceView:
        service = self._cluster_state.service(array_job_id)
        if service.user != principal.user and principal.uid not in self._roles.administrators:
            raise InvalidInputError(
                Code.FORBIDDEN, f"Service {service.name!r} belongs to {service.user!r}."
            )
        return service


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
