"""Takes from the launcher what requests used, and what engines counted."""

import asyncio

from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.usage_messages import (
    AllowancesAnswer,
    AllowancesRequest,
    EngineCountersRequest,
    PoolUsesRequest,
    TokenAllowance,
    UsagePostAnswer,
    UsagePostRequest,
    UsageRecord,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.ledger.allowances import AllowanceTime
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.usage import checked
from slicewise.slurm_plugin.rules.quota.tenants import payers
from slicewise.slurm_plugin.rules.quota.types import Policy

EXPIRES_S = 10.0
"""Seconds for which an allowance lasts: so long can a gateway go on while no daemon answers."""


class UsageBooks:
    """Books batches of the launcher; only the daemon that leads does.

    Raises UnreachableError (SW-DAEMON-STANDBY) and what the ledger raises: then nothing of the
    batch was booked, and the launcher sends it again.
    """

    def __init__(self, ledger: Ledger, leader: Leader, zone: str) -> None:
        self._ledger = ledger
        self._zone = zone
        self._leader = leader
        self._policy: tuple[int, Policy] = (-1, {})

    async def post(self, request: UsagePostRequest, _: Caller) -> UsagePostAnswer:
        """Book a batch's records that are new. A bad one costs no other."""
        self._leader.require()
        batch = checked(request.records, wall_s())
        new = await asyncio.to_thread(self._post, request.boot, batch.good)
        if batch.refused:
            first = batch.refused[0]
            report(
                "usage_refused",
                boot=request.boot,
                records=len(batch.refused),
                number=first.number,
                why=first.why,
            )
        return UsagePostAnswer(
            booked=len(new), known=len(batch.good) - len(new), refused=batch.refused
        )

    def _post(self, boot: str, records: tuple[UsageRecord, ...]) -> frozenset[int]:
        paying = payers(self._read_policy(), TOKENS.name)
        return self._ledger.usage.post(boot, records, self._zone, paying)

    def _read_policy(self) -> Policy:
        """The policy as it is now; it is read whole where it has changed."""
        change_id = self._ledger.tenants.change_id()
        known_id, policy = self._policy
        if change_id != known_id:
            policy = self._ledger.tenants.policy()
            self._policy = (change_id, policy)
        return policy

    async def allowances(self, request: AllowancesRequest, _: Caller) -> AllowancesAnswer:
        """Set aside in the ledger what a gateway may hold of limits and budgets of tokens."""
        self._leader.require()
        allowances = await asyncio.to_thread(self._given, request)
        return AllowancesAnswer(allowances=allowances, expires_s=EXPIRES_S)

    def _given(self, request: AllowancesRequest) -> tuple[TokenAllowance, ...]:
        limits = self._ledger.request_limits.standing_limits()
        at = AllowanceTime(wall_s(), self._zone, EXPIRES_S)
        policy = self._read_policy()
        return self._ledger.allowances.give(request.boot, request.wanted, limits, at, policy)

    async def note_counters(self, request: EngineCountersRequest, _: Caller) -> DoneAnswer:
        """Keep what engines have counted."""
        self._leader.require()
        await asyncio.to_thread(self._ledger.usage.note_counters, request.runs)
        return DoneAnswer()

    async def note_pools(self, request: PoolUsesRequest, _: Caller) -> DoneAnswer:
        """Keep which services have used a pool's replicas."""
        self._leader.require()
        await asyncio.to_thread(self._ledger.pools.note, request.seen_by, request.uses)
        return DoneAnswer()
