"""Creates and revokes API keys for members of tenants, and gives the launcher their hashes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.rpc.key_messages import (
    GrantsAnswer,
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyUsesRequest,
    KeyView,
)
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.slurm.user_names import uid_of
from slicewise.slurm_plugin.api.access import Principal, ReaderHandler, ReaderHandlers
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.api.reads import Reads, hiding_places, require_known, require_own
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.ledger.keys import NewKey
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.services.shared_models import model_entries
from slicewise.slurm_plugin.state.cluster_state import ClusterState


class ServiceKeys:
    """Keeps the valid keys in memory, too, so that the gateway goes on while PostgreSQL is away."""

    def __init__(
        self,
        ledger: Ledger,
        cluster_state: ClusterState,
        reads: Reads,
        leader: Leader,
        *,
        rates: RateLimiter,
        operators: frozenset[int],
        aliases: Mapping[str, str],
    ) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._reads = reads
        self._leader = leader
        self._rates = rates
        self._operators = operators
        self._aliases = aliases
        self._grants = GrantsAnswer()

    async def turn(self) -> None:
        """Read the valid keys again; raises what the ledger raises.

        Of all that reads the ledger this is done most often, whichever daemon leads.
        """
        self._grants = await asyncio.to_thread(self._ledger.keys.grants)
        self._cluster_state.hear_ledger()

    def grants(self) -> GrantsAnswer:
        """The valid keys' hashes with what they open, and the tenants that require a key.

        A key expires also while the database is away. Names of models are as Slurm was seen last.
        """
        cluster_state = self._cluster_state
        policy, services = cluster_state.quotas.policy, cluster_state.view.services
        models = model_entries(policy, services, self._aliases)
        return self._grants.at(wall_s()).model_copy(update={"models": dict(models)})

    async def note_uses(self, request: KeyUsesRequest) -> DoneAnswer:
        """Note when keys were last used; raises what the ledger raises, SW-DAEMON-STANDBY."""
        self._leader.require()
        await asyncio.to_thread(self._ledger.keys.note_uses, request.used_s)
        return DoneAnswer()

    def handlers(self) -> ReaderHandlers:
        """What answers each request about keys.

        A handler raises InvalidInputError (SW-TENANT-UNKNOWN, SW-NAME-UNKNOWN, SW-KEY-REVOKE,
        SW-KEY-TWICE, SW-KEY-REVOKE, SW-RATE), UnreachableError (SW-DAEMON-STANDBY) and what the
        ledger raises.
        """
        return hiding_places(
            {
                KeyListRequest: self._list,
                KeyCreateRequest: self._changing(self._create),
                KeyRevokeRequest: self._changing(self._revoke),
                KeyOpenRequest: self._changing(self._open),
            }
        )

    def _changing(self, change: Callable[[Any, Principal], Awaitable[None]]) -> ReaderHandler:
        async def changed(request: Any, principal: Principal) -> DoneAnswer:
            self._leader.require()
            await change(request, principal)
            await self.turn()
            return DoneAnswer()

        return changed

    async def _list(self, _: KeyListRequest, principal: Principal) -> KeysAnswer:
        visible = await self._visible(principal)
        unprotected = self._cluster_state.quotas.policy.keys() - set(self._grants.protected)
        own = sorted(filter(principal.may_read, unprotected))
        visible = tuple(key.model_copy(update={"has_left": self._has_left(key)}) for key in visible)
        return KeysAnswer(keys=visible, unprotected=tuple(own))

    def _has_left(self, key: KeyView) -> bool:
        accounts = self._cluster_state.quotas.accounts_by_uid
        uid = uid_of(key.created_by)
        if uid is not None and (uid in self._operators or key.tenant in accounts.get(uid, ())):
            return False
        return bool(accounts)

    async def _create(self, request: KeyCreateRequest, principal: Principal) -> None:
        require_own(request.tenant, principal)
        require_known(request.tenant, self._cluster_state.quotas.policy.keys(), principal)
        self._rates.take(principal, request.tenant)
        new = NewKey(**request.model_dump(), author=principal.user)
        await self._reads.from_ledger(principal.uid, partial(self._ledger.keys.add, new))
        fields = {"key": request.key_id, "tenant": request.tenant, "user": principal.user}
        report("key_created", **fields, service=request.service, expires_s=request.expires_s)

    async def _revoke(self, request: KeyRevokeRequest, principal: Principal) -> None:
        key_id = request.key_id
        known = {key.key_id: key for key in await self._visible(principal)}
        if key_id not in known:
            raise unknown_key(key_id, known.values())
        if known[key_id].revoked_s is not None:
            return
        # The rate is not limited: each key is revoked at most once, and a leaked key can't wait.
        revoke = partial(self._ledger.keys.revoke, key_id, principal.user)
        await self._reads.from_ledger(principal.uid, revoke)
        tenant = known[key_id].tenant
        report("key_revoked", key=key_id, user=principal.user, tenant=tenant)

    async def _open(self, request: KeyOpenRequest, principal: Principal) -> None:
        tenant = request.tenant
        require_own(tenant, principal)
        if tenant not in self._grants.protected:
            require_known(tenant, self._cluster_state.quotas.policy.keys(), principal)
            return
        self._rates.take(principal, tenant)
        opens = partial(self._ledger.keys.open_tenant, tenant, principal.user)
        await self._reads.from_ledger(principal.uid, opens)
        report("tenant_opened", tenant=tenant, user=principal.user)

    async def _visible(self, principal: Principal) -> tuple[KeyView, ...]:
        keys = await self._reads.from_ledger(principal.uid, self._ledger.keys.all)
        return tuple(key for key in keys if principal.may_read(key.tenant))


def unknown_key(key_id: str, known: Iterable[KeyView]) -> InvalidInputError:
    """Return the error for a key that a caller does not have; ``known`` are those that it has.

    It is the same for a key of others and for none. A key's name is answered by its ids.
    """
    named = [key for key in known if key.name == key_id and key.revoked_s is None]
    ids = ", ".join(f"{key.key_id} of {key.tenant}" for key in named)
    hint = f"That is a name; give its id: {ids}." if named else "Yours: slicewise key list"
    return InvalidInputError(Code.NAME_UNKNOWN, f"You have no key {key_id!r}.", hint)
