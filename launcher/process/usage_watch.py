"""Hears what requests have used, keeps it until the daemon has booked it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.usage_messages import (
    MOST_RUNS,
    EngineCounters,
    EngineCountersRequest,
    UsagePostAnswer,
    UsagePostRequest,
    UsageRecord,
)
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.rules.engines.load import EngineLoad
from slicewise.launcher.rules.gateway.allowances import subjects_of
from slicewise.launcher.rules.gateway.run_counts import MOST_COUNTED, RunCounts
from slicewise.launcher.rules.gateway.usage_lines import (
    HeardLines,
    UsageByAsker,
    UsageLine,
    parse_usage_line,
    with_usage,
)
from slicewise.launcher.rules.turn.state import State

_MOST_LINES = 100_000
"""Lines that wait for their replica's run to be known, or for the journal."""
_MOST_KNOWN = 20_000
"""Runs that are known, ended ones included."""
_UNKNOWN_S = 5.0
"""Seconds after a request's end in which a turn may still say whose its replica was."""


class UsageCalls(Protocol):
    """What is asked of the daemon."""

    async def post_usage(self, request: UsagePostRequest) -> UsagePostAnswer: ...  # noqa: D102
    async def note_engine_counters(self, request: EngineCountersRequest) -> None: ...  # noqa: D102


@dataclass
class _Memory:
    """What the next launcher goes on with.

    Attributes:
        places: the place after the last line that was written down, by process and thread.
        cached: cached prompt tokens of each run's records.
    """

    places: list[tuple[str, int, int]] = field(default_factory=list)
    missed: int = 0
    cached: list[tuple[Run, int]] = field(default_factory=list)
    counts: list[tuple[Run, str, RunCounts]] = field(default_factory=list)


_MEMORY = TypeAdapter(_Memory)
_Result = TypeVar("_Result")


class UsageWatch:
    """Takes each line of HAProxy's ring once.

    Attributes:
        refused: why the daemon refused records last; "" if it has not.
    """

    def __init__(
        self,
        calls: UsageCalls | None = None,
        journal: UsageJournal | None = None,
    ) -> None:
        self._calls, self._journal = calls, journal
        self._turn = asyncio.Lock()
        self._since: UsageByAsker = {}
        self._lines: list[UsageLine] = []
        self._dropped = 0
        self._runs: dict[str, tuple[str, Run]] | None = None
        memory = _read(journal.memory()) if journal is not None else _Memory()
        places = {(boot, thread): place for boot, thread, place in memory.places}
        self._heard = HeardLines(places, memory.missed)
        self._cached = dict(memory.cached)
        self._counts = {run: (service, counts) for run, service, counts in memory.counts}
        self._unsent: set[Run] = set(self._counts)
        self._unposted: dict[tuple[str, str], int] = {}
        for request in journal.requests() if journal is not None else ():
            for record in request.records:
                names = (record.payer, record.person, record.key_id)
                self._owe(request.boot, *names, _tokens(record))
        self.refused = ""

    @property
    def missed(self) -> int:
        """Requests whose use nobody will book."""
        unkept = self._journal.unkept if self._journal is not None else 0
        return self._heard.missed + self._dropped + unkept

    @property
    def waiting(self) -> int:
        """Batches that the daemon has not booked yet."""
        return self._journal.waiting if self._journal is not None else 0

    @property
    def unreadable(self) -> str:
        """Files of the journal that can't be read."""
        return ", ".join(self._journal.unreadable) if self._journal is not None else ""

    def hear(self, text: str) -> tuple[str, Run] | None:
        """Take a line of the ring; one that was heard before, or is another one, counts nothing.

        Return the service and the run whose engine has counted more.
        """
        line = parse_usage_line(text)
        heard = self._heard.hears(line) if line is not None else None
        if line is None or heard is None:
            return None
        self._heard = heard
        self._owe(line.boot, line.payer, line.person, line.key_id, _tokens(line))
        self._since = with_usage(self._since, [line])
        if self._journal is None:
            return None
        if len(self._lines) < _MOST_LINES:
            self._lines.append(line)
        else:
            self._dropped += 1
        return (self._runs or {}).get(line.replica)

    def take_since(self) -> UsageByAsker:
        """Return what requests that ended since the last call have used."""
        since, self._since = self._since, {}
        return since

    def unposted(self, boot: str) -> Mapping[str, int]:
        """Return the tokens of requests that have ended in a process and are not booked yet.

        By subject, see ``subjects_of``.
        """
        return {
            subject: tokens
            for (of_boot, subject), tokens in self._unposted.items()
            if of_boot == boot
        }

    def _owe(self, boot: str, payer: str, person: str, key_id: str, tokens: int) -> None:
        if self._journal is None:
            return
        for subject in subjects_of(payer, person, key_id):
            left = self._unposted.pop((boot, subject), 0) + tokens
            if left > 0:
                self._unposted[boot, subject] = left

    def turned(self, state: State) -> None:
        """Take over which replicas there are."""
        runs = self._runs or {}
        for service, service_state in state.items():
            for array, generation in service_state.generations.items():
                for index, verified in generation.verified.items():
                    run = verified.run
                    runs[run.endpoint.digest] = (service, (array, index, run.start_s))
        while len(runs) > _MOST_KNOWN:
            del runs[next(iter(runs))]
        self._runs = runs

    def counted(self, service: str, run: Run, load: EngineLoad) -> None:
        """Take what a run's engine says that it has counted."""
        if self._calls is None:
            return
        before = self._counts.get(run, (service, RunCounts()))[1]
        self._counts[run] = (service, before.later(load, wall_s()))
        self._unsent.add(run)
        while len(self._counts) > _MOST_KNOWN:
            del self._counts[next(iter(self._counts))]

    async def post(self) -> None:
        """Post what waits until none does; meanwhile more may be written down.

        Raises SlicewiseError if the daemon does not take it, OSError if the disk does not.
        """
        if self._journal is None or self._calls is None:
            return
        # Mostly nothing waits: that needs no thread.
        while self.waiting and (batch := await self._with_journal(self._journal.oldest)):
            try:
                answer = await self._calls.post_usage(batch.request)
            except SlicewiseError:
                await self._with_journal(self._journal.failed)
                raise
            self.refused = answer.refused[0].why if answer.refused else self.refused
            for record in batch.request.records:
                names = (record.payer, record.person, record.key_id)
                self._owe(batch.request.boot, *names, -_tokens(record))
            await self._with_journal(self._journal.booked, batch)

    async def _with_journal(self, act: Callable[..., _Result], *words: object) -> _Result:
        async with self._turn:
            return await asyncio.to_thread(act, *words)

    async def write(self) -> None:
        """Write down what was heard; never waits for the daemon. Raises OSError."""
        journal = self._journal
        if journal is None:
            return
        due = self._take_due()
        if not due:
            return
        records: dict[str, list[UsageRecord]] = {}
        cached, self._cached = self._cached, dict(self._cached)
        for line in due:
            records.setdefault(line.boot, []).append(self._record(line))
        memory = _MEMORY.dump_python(self._memory(), mode="json")
        try:
            for boot, of_boot in records.items():
                await self._with_journal(journal.add, boot, of_boot)
            # Of a launcher that ends in between the next one writes them again: booked once.
            await self._with_journal(journal.remember, memory)
        except OSError:
            self._lines, self._cached = [*due, *self._lines], cached
            raise

    def _take_due(self) -> list[UsageLine]:
        """Take the lines that can be written down.

        Those behind one of their thread that waits wait, too: of each thread the next launcher
        goes on at one place.
        """
        due, waiting, threads = list[UsageLine](), list[UsageLine](), set[tuple[str, int]]()
        for line in self._lines:
            thread = (line.boot, line.thread)
            if thread not in threads and self._is_due(line):
                due.append(line)
            else:
                waiting.append(line)
                threads.add(thread)
        self._lines = waiting
        return due

    def _is_due(self, line: UsageLine) -> bool:
        """Whether it is known whose the replica was, or will not be."""
        if self._runs is None:
            return False
        is_told = not line.replica or line.replica in self._runs
        return is_told or wall_s() - line.end_ms / 1000 > _UNKNOWN_S

    def _record(self, line: UsageLine) -> UsageRecord:
        _, run = (self._runs or {}).get(line.replica, ("", None))
        if run is not None:
            self._cached[run] = self._cached.get(run, 0) + line.cached_tokens
        array_job_id, index, run_start_s = run or (None, None, None)
        first_ms = line.first_ms
        return UsageRecord(
            number=line.number,
            payer=line.payer,
            person=line.person,
            key_id=line.key_id,
            service=line.service,
            array_job_id=array_job_id,
            index=index,
            run_start_s=run_start_s,
            start_ms=line.start_ms,
            end_ms=max(line.start_ms, line.end_ms),
            prompt_tokens=line.prompt_tokens,
            cached_prompt_tokens=line.cached_tokens,
            output_tokens=line.output_tokens,
            first_token_ms=None if first_ms is None else max(0, first_ms - line.start_ms),
            outcome=line.outcome,
        )

    def _memory(self) -> _Memory:
        runs = {run for _, run in (self._runs or {}).values()}
        waiting = {(line.boot, line.thread): line.place for line in reversed(self._lines)}
        places = {**self._heard.next_places, **waiting}
        return _Memory(
            [(*key, place) for key, place in places.items()],
            self._heard.missed,
            [(run, count) for run, count in self._cached.items() if run in runs],
            [(run, *told) for run, told in self._counts.items() if run in runs],
        )

    async def report_counters(self) -> None:
        """Report what engines have counted since the last report. Raises SlicewiseError."""
        if self._calls is None:
            return
        due = sorted(self._unsent & self._counts.keys())[:MOST_RUNS]
        if due:
            runs = tuple(self._counters(run, *self._counts[run]) for run in due)
            await self._calls.note_engine_counters(EngineCountersRequest(runs=runs))
            self._unsent -= set(due)

    def _counters(self, run: Run, service: str, counts: RunCounts) -> EngineCounters:
        # Records have whole prompts: where the engine counts without what its cache had, that is
        # added.
        cached = 0 if counts.counts_cached else self._cached.get(run, 0)
        return EngineCounters(
            array_job_id=run[0],
            index=run[1],
            run_start_s=run[2],
            service=service,
            prompt_tokens=min(counts.prompt_tokens + cached, MOST_COUNTED),
            output_tokens=counts.output_tokens,
            seen_s=counts.seen_s,
        )


def _tokens(used: UsageLine | UsageRecord) -> int:
    return used.prompt_tokens + used.output_tokens


def _read(memory: bytes) -> _Memory:
    """Read what the launcher before knew; one that can't be read knew nothing."""
    try:
        return _MEMORY.validate_json(memory)
    except ValidationError:
        return _Memory()
