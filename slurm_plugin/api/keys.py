"""Creates and revokes API keys for members of tenants, and gives the launcher their hashes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.persons import is_guest
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.key_messages import (
    GrantsAnswer,
    KeyCreateRequest,
    KeyListRequest,
    KeyMadeAnswer,
    KeyOpenRequest,
    KeyRequireRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyUsesRequest,
    KeyView,
)
from slicewise.cluster.rpc.limit_messages import (
    LimitChangeRequest,
    LimitRank,
    LimitsAnswer,
    LimitsRequest,
    SubjectLimits,
)
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.cluster.rpc.web_messages import GuestEndRequest
from slicewise.cluster.runtime.user_names import user_name
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.api.access import (
    NO_UID,
    Principal,
    ReaderHandler,
    ReaderHandlers,
)
from slicewise.slurm_plugin.api.guests import GuestLogins
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.api.reads import Reads, hiding_places, require_known, require_own
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.ledger.keys import NewKey
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.services.key_rights import Members
from slicewise.slurm_plugin.rules.services.shared_models import model_entries
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_LONGEST_NOTICE_S = 366 * 86_400


class ServiceKeys:
    """Keeps the valid keys in memory, too, so that the gateway goes on while PostgreSQL is away."""

    def __init__(
        self,
        ledger: Ledger,
        cluster_state: ClusterState,
        reads: Reads,
        leader: Leader,
        *,
        guests: GuestLogins,
        rates: RateLimiter,
        operators: frozenset[int],
        aliases: Mapping[str, str],
    ) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._reads = reads
        self._leader = leader
        self._guests = guests
        self._rates = rates
        self._operators = frozenset(user_name(uid) for uid in operators)
        self._aliases = aliases
        self._grants = GrantsAnswer()

    async def turn(self) -> None:
        """Read the valid keys again; raises what the ledger raises.

        Of all that reads the ledger this is done most often, whichever daemon leads.
        """
        await self._guests.turn()
        grants = await asyncio.to_thread(self._ledger.keys.grants, self._members().has_left)
        limits = await asyncio.to_thread(self._ledger.request_limits.standing_limits)
        # Limits of keys that let nothing in any more limit nothing.
        living = {"", *(key.key_id for key in grants.keys.values())}
        self._grants = grants.model_copy(
            update={"limits": tuple(limit for limit in limits if limit.key_id in living)}
        )
        self._cluster_state.hear_ledger()

    def grants(self) -> GrantsAnswer:
        """The valid keys' hashes with what they open, and the tenants that require a key.

        A key expires also while the database is away. Names of models are as Slurm was seen last.
        """
        cluster_state = self._cluster_state
        policy, services = cluster_state.quotas.policy, cluster_state.view.services
        models = model_entries(policy, services, self._aliases)
        has_budgets = any(tenant.token_budget is not None for tenant in policy.values())
        now = {"models": dict(models), "has_token_budgets": has_budgets}
        return self._grants.at(wall_s()).model_copy(update=now)

    async def note_uses(self, request: KeyUsesRequest) -> DoneAnswer:
        """Note when keys were last used; raises what the ledger raises, SW-DAEMON-STANDBY."""
        self._leader.require()
        await asyncio.to_thread(self._ledger.keys.note_uses, request.used_s)
        return DoneAnswer()

    def handlers(self) -> ReaderHandlers:
        """What answers each request about keys.

        A handler raises InvalidInputError (SW-TENANT-UNKNOWN, SW-NAME-UNKNOWN, SW-KEY-REVOKE,
        SW-KEY-TWICE, SW-KEY-FIRST, SW-RATE), UnreachableError (SW-DAEMON-STANDBY) and what the
        ledger raises.
        """
        return hiding_places(
            {
                KeyListRequest: self._list,
                KeyCreateRequest: self._changing(self._create),
                KeyRevokeRequest: self._changing(self._revoke),
                KeyOpenRequest: self._changing(self._open),
                KeyRequireRequest: self._changing(self._require),
                LimitsRequest: self._limits,
                LimitChangeRequest: self._changing(self._limit),
                GuestEndRequest: self._guest_end,
            }
        )

    def guest(self, person: str) -> Principal | None:
        """What a guest may read now; None if the guest belongs to no tenant."""
        tenants = self._guests.tenants().get(person)
        return None if tenants is None else Principal(NO_UID, person, tenants, by_page=True)

    async def _guest_end(self, request: GuestEndRequest, principal: Principal) -> DoneAnswer:
        answer = await self._guests.end(request, principal)
        await self.turn()
        return answer

    def _changing(
        self, change: Callable[[Any, Principal], Awaitable[DoneAnswer | None]]
    ) -> ReaderHandler:
        async def changed(request: Any, principal: Principal) -> DoneAnswer:
            self._leader.require()
            if principal.by_page:
                self._rates.take_of_page(principal.who)
            answer = await change(request, principal)
            await self.turn()
            return answer or DoneAnswer()

        return changed

    async def _list(self, _: KeyListRequest, principal: Principal) -> KeysAnswer:
        members, grants = self._members(), self._grants.at(wall_s())
        keys = tuple(
            key.model_copy(update={"has_left": members.has_left(key.person, key.tenant)})
            for key in await self._visible(principal)
        )
        tenants = self._cluster_state.quotas.policy.keys() | grants.wanted_from_s.keys()
        own = frozenset(filter(principal.may_read, tenants))
        unprotected = own & self._cluster_state.quotas.policy.keys() - set(grants.protected)
        later = {name: grants.wanted_from_s[name] for name in own if name in grants.wanted_from_s}
        valid = Counter(tenant_of(key.opens) for key in grants.keys.values())
        return KeysAnswer(
            keys=keys,
            tenants=tuple(sorted(own & self._cluster_state.quotas.policy.keys())),
            unprotected=tuple(sorted(unprotected)),
            wanted_from_s={name: later[name] for name in sorted(later.keys() & unprotected)},
            valid={name: valid[name] for name in sorted(own) if name in valid},
        )

    def _members(self) -> Members:
        cluster_state = self._cluster_state
        return Members(
            cluster_state.accounts_by_user,
            self._operators,
            cluster_state.coordinated_by_user,
            cluster_state.account_parents,
            self._guests.tenants(),
        )

    def managed_by(self, user: str) -> frozenset[str]:
        """The tenants that a user manages as a coordinator of Slurm's."""
        return self._members().managed_by(user, self._cluster_state.quotas.policy)

    async def _create(self, request: KeyCreateRequest, principal: Principal) -> KeyMadeAnswer:
        require_own(request.tenant, principal)
        require_known(request.tenant, self._cluster_state.quotas.policy.keys(), principal)
        person = request.person or principal.user
        if person != principal.user:
            require_operator(principal, "name whose key it is")
            self._require_member(person, request.tenant)
        may_be_first = request.may_be_first and not is_guest(person)
        if not may_be_first and request.tenant not in self._grants.wanted_from_s:
            raise InvalidInputError(
                Code.KEY_FIRST,
                f"This is {request.tenant}'s first key: all of its services then refuse requests"
                " without a key, also those that clients use now.",
                "Mark that this is meant, and make it again; guests ask a member of the tenant.",
            )
        self._rates.take(principal, request.tenant)
        fields = request.model_dump(exclude={"may_be_first", "person"})
        new = NewKey(**fields, person=person, author=principal.author)
        await self._reads.from_ledger(principal.who, partial(self._ledger.keys.add, new))
        about = {"key": request.key_id, "tenant": request.tenant, "user": principal.author}
        report("key_created", **about, service=request.service, expires_s=request.expires_s)
        return KeyMadeAnswer(person=person)

    def _require_member(self, person: str, tenant: str) -> None:
        if self._members().has_left(person, tenant):
            raise InvalidInputError(
                Code.NAME_UNKNOWN,
                f"{person!r} is no member of account {tenant!r}.",
                f"Its members: sacctmgr show associations account={tenant}",
            )

    async def _revoke(self, request: KeyRevokeRequest, principal: Principal) -> None:
        key_id = request.key_id
        known = {key.key_id: key for key in await self._visible(principal)}
        if key_id not in known:
            raise unknown_key(key_id, known.values())
        if known[key_id].revoked_s is not None:
            return
        # The rate is not limited: each key is revoked at most once, and a leaked key can't wait.
        revoke = partial(self._ledger.keys.revoke, key_id, principal.author)
        await self._reads.from_ledger(principal.who, revoke)
        tenant = known[key_id].tenant
        report("key_revoked", key=key_id, user=principal.author, tenant=tenant)

    async def _open(self, request: KeyOpenRequest, principal: Principal) -> None:
        tenant = request.tenant
        require_own(tenant, principal)
        if tenant not in self._grants.wanted_from_s:
            require_known(tenant, self._cluster_state.quotas.policy.keys(), principal)
            return
        self._rates.take(principal, tenant)
        opens = partial(self._ledger.keys.open_tenant, tenant, principal.user)
        await self._reads.from_ledger(principal.who, opens)
        report("tenant_opened", tenant=tenant, user=principal.user)

    async def _require(self, request: KeyRequireRequest, principal: Principal) -> None:
        tenant, now_s = request.tenant, wall_s()
        require_own(tenant, principal)
        require_known(tenant, self._cluster_state.quotas.policy.keys(), principal)
        before_s = self._grants.wanted_from_s.get(tenant)
        if before_s is not None and request.from_s > max(now_s, before_s):
            # Else each member could open the services of all.
            require_operator(principal, f"let {tenant} want keys later than it was said before")
        if request.from_s > now_s + _LONGEST_NOTICE_S:
            # Until then the first key that somebody makes closes nothing.
            require_operator(principal, "set a moment that is more than a year ahead")
        self._rates.take(principal, tenant)
        user = principal.user
        requires = partial(self._ledger.keys.require_from, tenant, request.from_s, user)
        await self._reads.from_ledger(principal.who, requires)
        report("keys_required", tenant=tenant, user=user, from_s=request.from_s)

    async def _limits(self, _: LimitsRequest, principal: Principal) -> LimitsAnswer:
        limits = await self._reads.from_ledger(
            principal.who, self._ledger.request_limits.standing_limits
        )
        if principal.tenants is None:
            return LimitsAnswer(limits=limits)
        own = {key.key_id for key in await self._visible(principal)}

        def is_seen(subject: SubjectLimits) -> bool:
            if subject.key_id or subject.tenant in principal.managed:
                return subject.key_id in own or not subject.key_id
            return principal.may_read(subject.tenant) and subject.person in {"", principal.user}

        return LimitsAnswer(limits=tuple(filter(is_seen, limits)))

    async def _limit(self, request: LimitChangeRequest, principal: Principal) -> None:
        if principal.by_page and not request.key_id:
            raise InvalidInputError(
                Code.FORBIDDEN, "On the page you limit your keys.", "Others: slicewise key limit"
            )
        subject = await self._subject(request, principal)
        self._rates.take(principal, subject.tenant)
        rank: LimitRank = "manager" if subject.tenant in principal.managed else "person"
        rank = "operator" if principal.tenants is None else rank
        change = self._ledger.request_limits.change_limits
        changes = partial(change, subject, request, principal.author, rank)
        await self._reads.from_ledger(principal.who, changes)
        named = subject.model_dump()
        report("request_limits_changed", **named, user=principal.author)

    async def _subject(self, request: LimitChangeRequest, principal: Principal) -> AllowanceSubject:
        """Whose limits are to be changed; raises InvalidInputError for those of others."""
        if request.key_id:
            keys = {key.key_id: key for key in await self._visible(principal)}
            if request.key_id not in keys:
                raise unknown_key(request.key_id, keys.values())
            tenant = keys[request.key_id].tenant
            return AllowanceSubject(tenant=tenant, key_id=request.key_id)
        if request.tenant is None:
            raise InvalidInputError(
                Code.VALUE, "Nobody is named whose limits these are.", "Name a tenant, or a key."
            )
        if request.tenant not in principal.managed:
            require_own(request.tenant, principal)
            require_operator(principal, "limit tenants and persons; you may limit your keys")
        require_known(request.tenant, self._cluster_state.quotas.policy.keys(), principal)
        if request.sets and request.person:
            self._require_member(request.person, request.tenant)
        return AllowanceSubject(tenant=request.tenant, person=request.person)

    async def _visible(self, principal: Principal) -> tuple[KeyView, ...]:
        """All keys for operators; of others their own, also in accounts that they have left, and
        those of tenants that they manage.
        """
        keys = await self._reads.from_ledger(principal.who, self._ledger.keys.all)
        if principal.tenants is None:
            return keys
        return tuple(
            key for key in keys if key.person == principal.user or key.tenant in principal.managed
        )


def require_operator(principal: Principal, deed: str) -> None:
    """Raise InvalidInputError (SW-FORBIDDEN) for who is no operator."""
    if principal.tenants is not None:
        raise InvalidInputError(Code.FORBIDDEN, f"Only operators may {deed}.")


def unknown_key(key_id: str, known: Iterable[KeyView]) -> InvalidInputError:
    """Return the error for a key that a caller does not have; ``known`` are those that it has.

    It is the same for a key of others and for none. A key's name is answered by its ids.
    """
    named = [key for key in known if key.name == key_id and key.revoked_s is None]
    ids = ", ".join(f"{key.key_id} of {key.tenant}" for key in named)
    hint = f"That is a name; give its id: {ids}." if named else "Yours: slicewise key list"
    return InvalidInputError(Code.NAME_UNKNOWN, f"You have no key {key_id!r}.", hint)
