"""Lets the gateway take tokens of limits that the ledger has set aside for it."""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Protocol

from slicewise.cluster.rpc.usage_messages import AllowancesAnswer, AllowancesRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.rules.gateway.allowances import TakenTokens, bounds, wanted

_HEARD_S = 0.1
"""Seconds within which the line of a request that has ended was heard, where HAProxy keeps none in
a file: until then it would count as posted."""


class AllowanceCalls(Protocol):
    """What is asked of the daemon."""

    async def allowances(self, request: AllowancesRequest) -> AllowancesAnswer: ...  # noqa: D102


class TokenGate(Protocol):
    """What is asked of the gateway, and told it."""

    async def taken(self) -> tuple[str, Mapping[str, TakenTokens]]: ...  # noqa: D102
    async def set_allowances(self, entries: Mapping[str, str]) -> None: ...  # noqa: D102


async def renew(
    calls: AllowanceCalls, gate: TokenGate, unposted: Callable[[str], Mapping[str, int]]
) -> None:
    """Ask for what the gateway's process may hold from now on, and let it take that.

    ``unposted`` returns the tokens of ended requests of a process that are not booked yet, by
    subject. Raises SlicewiseError, OSError.
    """
    process, taken = await gate.taken()
    await asyncio.sleep(_HEARD_S)
    asked_s, not_booked = wall_s(), unposted(process)
    answer = await calls.allowances(
        AllowancesRequest(boot=process, wanted=wanted(taken, not_booked))
    )
    until_s = math.floor(asked_s + answer.expires_s)
    await gate.set_allowances(bounds(answer.allowances, taken, not_booked, until_s, process))
