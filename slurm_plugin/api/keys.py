"""Creates and revokes API keys for members of tenants, and gives the launcher their hashes."""

import asyncio
from functools import partial

from pydantic import BaseModel

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
from cluster.rpc.messages import DoneAnswer
from cluster.runtime.leadership import Leader
from slurm_plugin.api.access import Reader
from slurm_plugin.api.rate_limit import Rates
from slurm_plugin.api.reads import Reads, require_known, require_own, without_places
from slurm_plugin.common.log import report
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.state.controller import Sync

KeyRequest = KeyCreateRequest | KeyListRequest | KeyRevokeRequest | KeyOpenRequest


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

    async def answer(self, request: KeyRequest, reader: Reader) -> BaseModel:
        """Answer a request about keys.

        Raises InvalidInputError (SW-TENANT-UNKNOWN, SW-KEY-UNKNOWN, SW-KEY-LIMIT, SW-KEY-TWICE,
        SW-KEY-VALID, SW-RATE), UnreachableError (SW-DAEMON-STANDBY) and what the ledger raises.
        """
        with without_places(reader):
            if isinstance(request, KeyListRequest):
                return KeysAnswer(keys=await self._visible(reader))
            self._leader.require()
            match request:
                case KeyCreateRequest():
                    await self._create(request, reader)
                case KeyRevokeRequest():
                    await self._revoke(request.key_id, reader)
                case KeyOpenRequest():
                    await self._open(request.tenant, reader)
            await self.turn()
            return DoneAnswer()

    async def _create(self, request: KeyCreateRequest, reader: Reader) -> None:
        require_own(request.tenant, reader)
        require_known(request.tenant, self._sync.quotas.policy.keys(), reader)
        self._rates.take(reader, request.tenant)
        words = (request.key_id, request.tenant, request.name, request.sha256, reader.user)
        await self._reads.from_ledger(reader.uid, partial(self._ledger.keys.add, *words))
        fields = {"key": request.key_id, "tenant": request.tenant, "user": reader.user}
        report("key_created", **fields)

    async def _revoke(self, key_id: str, reader: Reader) -> None:
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

    async def _open(self, tenant: str, reader: Reader) -> None:
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
