"""Creates and revokes API keys for members of tenants, and gives the launcher their hashes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from cluster.language.errors import InvalidInputError
from cluster.rpc.key_messages import (
    GrantsAnswer,
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyView,
)
from cluster.rpc.message import DoneAnswer
from cluster.runtime.leadership import Leader
from slurm_plugin.api.access import Reader, ReaderHandler, ReaderHandlers
from slurm_plugin.api.rate_limit import Rates
from slurm_plugin.api.reads import Reads, hiding_places, require_known, require_own
from slurm_plugin.common.log import report
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.state.controller import Sync


class ServiceKeys:
    """Keeps the valid keys in memory, too, so that the gateway goes on while PostgreSQL is away."""

    def __init__(
        self, ledger: Ledger, sync: Sync, reads: Reads, leader: Leader, *, rates: Rates
    ) -> None:
        self._ledger = ledger
        self._sync = sync
        self._reads = reads
        self._leader = leader
        self._rates = rates
        self._grants = GrantsAnswer(tenants={})

    async def turn(self) -> None:
        """Read the valid keys again; raises what the ledger raises."""
        self._grants = await asyncio.to_thread(self._ledger.keys.grants)

    def grants(self) -> GrantsAnswer:
        """The valid keys' hashes with their tenants, and the tenants that require a key."""
        return self._grants

    def handlers(self) -> ReaderHandlers:
        """What answers each request about keys.

        A handler raises InvalidInputError (SW-TENANT-UNKNOWN, SW-KEY-UNKNOWN, SW-KEY-LIMIT,
        SW-KEY-TWICE, SW-KEY-VALID, SW-RATE), UnreachableError (SW-DAEMON-STANDBY) and what the
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

    def _changing(self, change: Callable[[Any, Reader], Awaitable[None]]) -> ReaderHandler:
        async def changed(request: Any, reader: Reader) -> DoneAnswer:
            self._leader.require()
            await change(request, reader)
            await self.turn()
            return DoneAnswer()

        return changed

    async def _list(self, _: KeyListRequest, reader: Reader) -> KeysAnswer:
        return KeysAnswer(keys=await self._visible(reader))

    async def _create(self, request: KeyCreateRequest, reader: Reader) -> None:
        require_own(request.tenant, reader)
        require_known(request.tenant, self._sync.quotas.policy.keys(), reader)
        self._rates.take(reader, request.tenant)
        words = (request.key_id, request.tenant, request.name, request.sha256, reader.user)
        await self._reads.from_ledger(reader.uid, partial(self._ledger.keys.add, *words))
        fields = {"key": request.key_id, "tenant": request.tenant, "user": reader.user}
        report("key_created", **fields)

    async def _revoke(self, request: KeyRevokeRequest, reader: Reader) -> None:
        key_id = request.key_id
        known = {one.key_id: one for one in await self._visible(reader)}
        if key_id not in known:
            # The same error for a key of others and for none.
            raise InvalidInputError(
                "SW-KEY-UNKNOWN", f"You have no key {key_id!r}.", "Yours: slicewise key list"
            )
        if known[key_id].revoked_s is not None:
            return
        # The rate is not limited: each key is revoked at most once, and a leaked key can't wait.
        revoke = partial(self._ledger.keys.revoke, key_id, reader.user)
        await self._reads.from_ledger(reader.uid, revoke)
        report("key_revoked", key=key_id, user=reader.user)

    async def _open(self, request: KeyOpenRequest, reader: Reader) -> None:
        tenant = request.tenant
        require_own(tenant, reader)
        if tenant not in self._grants.protected:
            require_known(tenant, self._sync.quotas.policy.keys(), reader)
            return
        self._rates.take(reader, tenant)
        opens = partial(self._ledger.keys.open_tenant, tenant, reader.user)
        await self._reads.from_ledger(reader.uid, opens)
        report("tenant_opened", tenant=tenant, user=reader.user)

    async def _visible(self, reader: Reader) -> tuple[KeyView, ...]:
        keys = await self._reads.from_ledger(reader.uid, self._ledger.keys.all)
        return tuple(one for one in keys if reader.may_read(one.tenant))
