"""Takes from the launcher what requests used, and what engines counted."""

import asyncio

from slicewise.cluster.language.leader import Leader
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.usage_messages import (
    AllowancesAnswer,
    AllowancesRequest,
    EngineCountersRequest,
    UsagePostAnswer,
    UsagePostRequest,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.usage import checked

EXPIRES_S = 10.0
"""Seconds for which an allowance lasts: so long can a gateway go on while no daemon answers."""


class UsageBooks:
    """Books batches of the launcher; only the daemon that leads does.

    Raises UnreachableError (SW-DAEMON-STANDBY) and what the ledger raises: then nothing of the
    batch was booked, and the launcher sends it again.
    """

    def __init__(self, ledger: Ledger, leader: Leader) -> None:
        self._ledger = ledger
        self._leader = leader

    async def post(self, request: UsagePostRequest, _: int) -> UsagePostAnswer:
        """Book a batch's records that are new. A bad one costs no other."""
        self._leader.require()
        batch = checked(request.records, wall_s())
        new = await asyncio.to_thread(self._ledger.usage.post, request.boot, batch.good)
        if batch.refused:
            first = batch.refused[0]
            report(
                "usage_refused",
                boot=request.boot,
                records=len(batch.refused),
                number=first.number,
                why=first.why,
            )
        known = len(batch.good) - len(new)
        return UsagePostAnswer(booked=len(new), known=known, refused=batch.refused)

    async def allowances(self, _: AllowancesRequest, __: int) -> AllowancesAnswer:
        """What a gateway may hold: nobody has a limit of tokens yet."""
        self._leader.require()
        return AllowancesAnswer(allowances=(), expires_s=EXPIRES_S)

    async def note_counters(self, request: EngineCountersRequest, _: int) -> DoneAnswer:
        """Keep what engines have counted."""
        self._leader.require()
        await asyncio.to_thread(self._ledger.usage.note_counters, request.runs)
        return DoneAnswer()
