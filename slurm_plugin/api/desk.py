"""Answers the launcher and people, and decides who may see and do what."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.persons import is_guest
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest
from slicewise.cluster.rpc.key_messages import GrantsAnswer, GrantsRequest, KeyUsesRequest
from slicewise.cluster.rpc.message import Asker, DoneAnswer, Request
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
    PoolUsesRequest,
    UsagePostRequest,
)
from slicewise.cluster.rpc.web_messages import WebGuestRequest, WebTokenRequest, WebUserRequest
from slicewise.cluster.runtime.user_names import uid_of, user_name
from slicewise.cluster.settings.file import DaemonSettings, WebSettings
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.api.access import (
    NO_UID,
    Caller,
    Principal,
    ReaderHandler,
    ReaderHandlers,
)
from slicewise.slurm_plugin.api.energy import EnergyBooks
from slicewise.slurm_plugin.api.generations import ServiceGenerations
from slicewise.slurm_plugin.api.guests import GuestLogins
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
        page_changes: whether users make, limit and end own keys on the page.
    """

    administrators: frozenset[int]
    launcher: int | None
    web: int | None = None
    web_operators: frozenset[str] = frozenset()
    page_changes: bool = True

    def principal(self, caller: Caller, accounts: frozenset[str]) -> Principal:
        """What a user of these accounts may read; operators may read everything."""
        uid = caller.uid
        tenants = None if uid in self.administrators else accounts
        return Principal(uid, user_name(uid), tenants, caller.by_page)

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

    def acting(self, uid: int, user: str, asked: type[Request]) -> Caller:
        """As whom the daemon answers a request that the web server asks for a user.

        Nothing is changed with an operator's rights: of ``web_operators`` a change is their own.

        Raises InvalidInputError (SW-FORBIDDEN) for who is not the web server, and for users who
        are not known on this host, or who are the launcher or the web server; of changes also for
        root and SlurmUser, and if the site wants none from the page.
        """
        self.require_page(uid, asked)
        if user in self.web_operators and not asked.changes:
            return Caller(os.geteuid(), by_page=True)
        found = uid_of(user)
        is_program = found in (self.launcher, self.web) and found not in self.administrators
        if found is None or is_program:
            raise InvalidInputError(
                Code.FORBIDDEN,
                f"{user[:_SHOWN]!r} is no user of the daemon's host who may see the page.",
            )
        if asked.changes and found in self.administrators:
            raise InvalidInputError(
                Code.FORBIDDEN,
                "Keys of root and SlurmUser are not changed on the page.",
                "In a shell of the cluster: slicewise key --help",
            )
        return Caller(found, by_page=True)

    def require_page(self, uid: int, asked: type[Request]) -> None:
        """Raise InvalidInputError (SW-FORBIDDEN) unless this uid may ask such things for others."""
        if not self.allows("web", uid):
            raise InvalidInputError(Code.FORBIDDEN, "Only the web server may ask for other users.")
        if asked.changes and not self.page_changes:
            raise InvalidInputError(
                Code.FORBIDDEN,
                "This site changes nothing by the page (web.change_keys).",
                "In a shell of the cluster: slicewise key --help",
            )

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
        uid_of(settings.launcher_user),
        uid_of(web.user) if web.listen else None,
        frozenset(web.operators),
        web.change_keys,
    )


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
        guests: GuestLogins,
        usage: UsageBooks,
        energy: EnergyBooks,
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
                PoolUsesRequest: usage.note_pools,
                EnergyPostRequest: energy.note,
                EvictRequest: self._leave,
                DeleteRequest: self._delete,
                OrderRequest: self._order,
                WebUserRequest: web_logins.user_of,
                WebGuestRequest: guests.claim,
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
            self._acting,
        )

    def _acting(self, uid: int, user: str, asked: type[Request]) -> Caller:
        if not is_guest(user):
            return self._roles.acting(uid, user, asked)
        self._roles.require_page(uid, asked)
        if not asked.for_guests or self._keys.guest(user) is None:
            raise InvalidInputError(
                Code.FORBIDDEN,
                "Without an account of the cluster you see your own keys and usage, of the tenants"
                " that your identity provider names.",
                "Log in again if it names one; else ask the site.",
            )
        return Caller(NO_UID, by_page=True, guest=user)

    def _as_reader(self, handle: ReaderHandler) -> Callable[[Any, Caller], Awaitable[BaseModel]]:
        async def handled(request: Any, caller: Caller) -> BaseModel:
            try:
                return await handle(request, self._reader(caller))
            except InvalidInputError as error:
                if not await self._has_other_accounts(caller, error):
                    raise
            return await handle(request, self._reader(caller))

        return handled

    async def _status(self, _: StatusRequest, __: Caller) -> StatusAnswer:
        return self._daemon.status()

    async def _check(self, request: CheckRequest, caller: Caller) -> SubmitAnswer:
        # The submission that follows is not seen by slicewise.lua in each mode.
        self._cluster_state.pacing.stir()
        try:
            return self._admission.check(request, caller.uid)
        except InvalidInputError as error:
            if not await self._has_other_accounts(caller, error):
                raise
        return self._admission.check(request, caller.uid)

    async def _desired_slots(self, request: DesiredSlotsRequest, _: Caller) -> DesiredSlotsAnswer:
        run = frozenset(request.slots)
        return await self._cluster_state.set_desired_slots(
            *(request.array_job_id, run, request.note, request.urgency),
            avoid=request.avoid_nodes or (),
            after=request.replaces_version,
        )

    async def _retire(self, request: RetireRequest, _: Caller) -> DoneAnswer:
        await self._cluster_state.retire(request.array_job_id)
        return DoneAnswer()

    async def _news(self, request: ServiceReportRequest, _: Caller) -> DoneAnswer:
        return self._cluster_state.service_reports.take(request)

    async def _granted(self, _: GrantsRequest, __: Caller) -> GrantsAnswer:
        return self._keys.grants()

    async def _used(self, request: KeyUsesRequest, _: Caller) -> DoneAnswer:
        return await self._keys.note_uses(request)

    async def _leave(self, request: EvictRequest, _: Caller) -> DoneAnswer:
        return self._cluster_state.evictions.take(request, self._cluster_state.view.services)

    async def _delete(self, request: DeleteRequest, caller: Caller) -> DoneAnswer:
        service = self._own_service(request.array_job_id, self._reader(caller))
        await self._cluster_state.delete(service.array_job_id)
        return DoneAnswer()

    async def _order(self, request: OrderRequest, caller: Caller) -> DoneAnswer:
        principal = self._reader(caller)
        service = self._own_service(request.array_job_id, principal)
        return await self._orders.order(request, service, principal)

    async def _view(self, _: ViewRequest, caller: Caller) -> ViewAnswer:
        view = self._cluster_state.view
        uid = caller.uid
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

    async def _has_other_accounts(self, caller: Caller, refusal: InvalidInputError) -> bool:
        """Look at Slurm's accounts if a user may be refused for want of one; whether that helps."""
        uid = caller.uid
        if refusal.refusal.code not in _FOR_WANT_OF_AN_ACCOUNT or uid in self._roles.administrators:
            return False
        before = self._accounts(uid)
        await self._daemon.see_accounts()
        return self._accounts(uid) != before

    def _accounts(self, uid: int) -> frozenset[str]:
        return frozenset(self._cluster_state.quotas.accounts_by_uid.get(uid, ()))

    def _reader(self, caller: Caller) -> Principal:
        if caller.guest:
            return self._keys.guest(caller.guest) or Principal(NO_UID, caller.guest, frozenset())
        principal = self._roles.principal(caller, self._accounts(caller.uid))
        if principal.tenants is None or caller.by_page:
            return principal
        return replace(principal, managed=self._keys.managed_by(principal.user))

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
