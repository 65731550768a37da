"""The part of the launcher that counts tokens, as a process that a benchmark can kill.

    python -m benchmarks.meters_launcher PLACE DATABASE ENGINE_SOCKET

It books in the ledger itself, as the daemon does: no daemon is between them.
"""

import asyncio
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp

from benchmarks.line import Line
from benchmarks.meters_run import CLUSTER, PLACES, PORT, RUN, SERVICE
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.usage_messages import (
    AllowancesAnswer,
    AllowancesRequest,
    EngineCountersRequest,
    TokenAllowance,
    UsagePostAnswer,
    UsagePostRequest,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.gateway.haproxy import HaproxyRuntime
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.allowance_watch import renew
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.process.usage_watch import UsageWatch
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.slurm_plugin.api.usage import EXPIRES_S
from slicewise.slurm_plugin.ledger.allowances import AllowanceTime
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.usage import checked

_POST_EVERY_S, _LOOK_EVERY_S = 0.15, 0.5


class Books:
    """What the daemon does of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def post_usage(self, request: UsagePostRequest) -> UsagePostAnswer:
        """Book a batch."""
        batch = checked(request.records, wall_s())
        new = await asyncio.to_thread(self._ledger.usage.post, request.boot, batch.good, "UTC")
        known = len(batch.good) - len(new)
        return UsagePostAnswer(booked=len(new), known=known, refused=batch.refused)

    async def allowances(self, request: AllowancesRequest) -> AllowancesAnswer:
        """Set tokens of limits aside."""
        given = await asyncio.to_thread(self._given, request)
        return AllowancesAnswer(allowances=given, expires_s=EXPIRES_S)

    def _given(self, request: AllowancesRequest) -> tuple[TokenAllowance, ...]:
        limits = self._ledger.request_limits.standing_limits()
        at = AllowanceTime(wall_s(), "UTC", EXPIRES_S)
        return self._ledger.allowances.give(request.boot, request.wanted, limits, at)

    async def note_engine_counters(self, request: EngineCountersRequest) -> None:
        """Keep what an engine has counted."""
        await asyncio.to_thread(self._ledger.usage.note_counters, request.runs)


async def _serve(place: Path, url: str, socket: str) -> None:
    line = Line(place, LlamaCpp(), SERVICE, PLACES, PORT, is_small=True)
    runtime = HaproxyRuntime(line.settings)
    # As systemd would start it again, where PostgreSQL is away.
    ledger = None
    while ledger is None:
        with suppress(SlicewiseError):
            ledger = Ledger(url, CLUSTER)
        await asyncio.sleep(0.2)
    with ledger:
        books = Books(ledger)
        kept = KeptLines(line.settings.kept_lines)
        watch = UsageWatch(books, UsageJournal(line.settings.directory), kept)
        renewed = partial(renew, books, runtime, watch.unposted)
        watch.turned(_state(line))
        async with asyncio.TaskGroup() as group:
            group.create_task(_again(partial(runtime.hear, watch.hear), 0.05))
            group.create_task(_again(partial(_write, watch), _POST_EVERY_S))
            group.create_task(_again(watch.post, _POST_EVERY_S))
            group.create_task(_again(watch.report_counters, _LOOK_EVERY_S))
            group.create_task(_again(renewed, _LOOK_EVERY_S))
            group.create_task(_again(partial(_count, watch, socket), _LOOK_EVERY_S))
            group.create_task(_again(partial(line.route, runtime), _LOOK_EVERY_S))


async def _write(watch: UsageWatch) -> None:
    watch.hear()
    await watch.write()


def _state(line: Line) -> Any:
    """What a turn knows of the only replica."""
    array, index, start_s = RUN
    run = SimpleNamespace(start_s=start_s, endpoint=line.endpoint)
    generation = SimpleNamespace(verified={index: SimpleNamespace(run=run)})
    return {SERVICE: SimpleNamespace(generations={array: generation})}


async def _count(watch: UsageWatch, socket: str) -> None:
    connector = aiohttp.UnixConnector(socket)
    opened = aiohttp.ClientSession(connector=connector)
    async with opened as session, session.get("http://here/metrics") as answer:
        watch.counted(SERVICE, RUN, LlamaCpp().engine_load(await answer.read()))


async def _again(step: Any, pause_s: float) -> None:
    while True:
        try:
            await step()
        except (SlicewiseError, OSError, aiohttp.ClientError):
            pass
        except Exception:  # noqa: BLE001 -- as the launcher, it goes on
            traceback.print_exc()
        await asyncio.sleep(pause_s)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
