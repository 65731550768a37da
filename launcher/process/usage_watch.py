"""Hears what requests have used, keeps it until the daemon has booked it."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from slicewise.cluster.language.codes import Code
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
from slicewise.launcher.gateway.kept_lines import KeptLines
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.process.usage_journal import UsageJournal
from slicewise.launcher.rules.engines.load import EngineLoad
from slicewise.launcher.rules.gateway.run_counts import RunCounts
from slicewise.launcher.rules.gateway.subjects import subjects_of
from slicewise.launcher.rules.gateway.usage_lines import (
    HeardLines,
    UsageByAsker,
    UsageLine,
    parse_usage_line,
    with_usage,
)
from slicewise.launcher.rules.turn.state import State

_MOST_LINES = 100_000
"""Lines that wait for their replica's run to be known, or for the journal; others wait where they
are."""
_MOST_KNOWN = 20_000
"""Runs that are known, ended ones included."""
_UNKNOWN_S = 5.0
"""Seconds after a request's end in which a turn may still say whose its replica was."""

_REFUSALS = frozenset({Code.VALUE, Code.WIRE, Code.LEDGER_REFUSED, Code.DATABASE_FAILED})
"""Codes with which a daemon, perhaps of another version, refuses what a batch says."""


class UsageCalls(Protocol):
    """What is asked of the daemon."""

    async def post_usage(self, request: UsagePostRequest) -> UsagePostAnswer: ...  # noqa: D102
    async def note_engine_counters(self, request: EngineCountersRequest) -> None: ...  # noqa: D102


@dataclass
class _Memory:
    """What the next launcher goes on with.

    Attributes:
        places: the place after the last line that was written down, by process and thread.
    """

    places: list[tuple[str, int, int]] = field(default_factory=list)
    missed: int = 0
    counts: list[tuple[Run, str, RunCounts]] = field(default_factory=list)


_MEMORY = TypeAdapter(_Memory)
_Result = TypeVar("_Result")


class UsageWatch:
    """Takes each line of a request that has ended once, as HAProxy's ring or its file has it.

    Attributes:
        refused: why the daemon refused records last; "" if it has not.
    """

    def __init__(
        self,
        calls: UsageCalls | None = None,
        journal: UsageJournal | None = None,
        kept: KeptLines | None = None,
    ) -> None:
        self._calls, self._journal, self._kept = calls, journal, kept
        self._turn = asyncio.Lock()
        self._since: UsageByAsker = {}
        self._lines: list[tuple[float, UsageLine]] = []
        self._counting: list[tuple[str, Run]] = []
        self._runs: dict[str, tuple[str, Run]] | None = None
        memory = _read(journal.memory()) if journal is not None else _Memory()
        places = {(boot, thread): place for boot, thread, place in memory.places}
        self._heard = HeardLines(places, memory.missed)
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
        return self._heard.missed + unkept

    @property
    def waiting(self) -> int:
        """Batches that the daemon has not booked yet."""
        return self._journal.waiting if self._journal is not None else 0

    @property
    def unreadable(self) -> str:
        """Files of the journal that can't be read."""
        return ", ".join(self._journal.unreadable) if self._journal is not None else ""

    def hear(self, text: str = "") -> Sequence[tuple[str, Run]]:
        """Take what HAProxy has kept, then a line of the ring.

        What was heard before, or is another line, counts nothing. While the file can't be read
        there is the ring. Return services and runs whose engines have counted more. Raises OSError.
        """
        try:
            is_new = self._hear_kept()
        except OSError:
            if not text:
                raise
            is_new = True
        if is_new and text:
            self._hear(text)
        counting, self._counting = self._counting, []
        return counting

    def _hear_kept(self) -> bool:
        """Take lines out of the file; return whether there are no more.

        A thread's line is there before it is in the ring, and before its tokens count as taken.
        """
        if len(self._lines) >= _MOST_LINES:
            return False
        if self._kept is None:
            return True
        for text in self._kept.news():
            self._hear(text)
        return not self._kept.is_behind

    def _hear(self, text: str) -> None:
        line = parse_usage_line(text)
        heard = self._heard.hears(line) if line is not None else None
        if line is None or heard is None:
            return
        self._heard = heard
        self._owe(line.boot, line.payer, line.person, line.key_id, _tokens(line))
        self._since = with_usage(self._since, [line])
        if self._journal is None:
            return
        self._lines.append((time.monotonic(), line))
        if (run := (self._runs or {}).get(line.replica)) is not None:
            self._counting.append(run)

    def take_since(self) -> UsageByAsker:
        """Return what requests that ended since the last call have used."""
        since, self._since = self._since, {}
        return since

    def unposted(self, boot: str) -> Mapping[str, int]:
        """Return the tokens of requests that have ended in a process and are not booked yet.

        By subject, see ``subjects_of``. Raises OSError.
        """
        self._hear_kept()
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

        A batch that the daemon refuses whole waits behind all others, in two halves: in the end
        only the record that can't be is left. Raises SlicewiseError if the daemon does not take
        anything, or only refused batches are left, OSError if the disk does not.
        """
        if self._journal is None or self._calls is None:
            return
        tried = set[Path]()
        # Mostly nothing waits: that needs no thread.
        while self.waiting and (batch := await self._with_journal(self._journal.oldest)):
            try:
                answer = await self._calls.post_usage(batch.request)
            except SlicewiseError as error:
                if error.refusal.code not in _REFUSALS:
                    await self._with_journal(self._journal.failed)
                    raise
                await self._with_journal(self._journal.split, batch)
                if batch.file in tried:
                    raise
                tried.add(batch.file)
                continue
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
        if self._journal is None:
            return
        if due := self._take_due():
            await self._write_down(self._journal, due)
        if self._kept is not None:
            self._kept.let_go(min((at_s for at_s, _ in self._lines), default=time.monotonic()))

    async def _write_down(
        self, journal: UsageJournal, due: Sequence[tuple[float, UsageLine]]
    ) -> None:
        records: dict[str, list[UsageRecord]] = {}
        for _, line in due:
            records.setdefault(line.boot, []).append(self._record(line))
        memory = _MEMORY.dump_python(self._memory(), mode="json")
        try:
            for boot, of_boot in records.items():
                await self._with_journal(journal.add, boot, of_boot)
            # Of a launcher that ends in between the next one writes them again: booked once.
            await self._with_journal(journal.remember, memory)
        except OSError:
            self._lines = [*due, *self._lines]
            raise

    def _take_due(self) -> list[tuple[float, UsageLine]]:
        """Take the lines that can be written down.

        Those behind one of their thread that waits wait, too: of each thread the next launcher
        goes on at one place.
        """
        due, waiting = list[tuple[float, UsageLine]](), list[tuple[float, UsageLine]]()
        threads = set[tuple[str, int]]()
        for at_s, line in self._lines:
            thread = (line.boot, line.thread)
            if thread not in threads and self._is_due(line):
                due.append((at_s, line))
            else:
                waiting.append((at_s, line))
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
        waiting = {(line.boot, line.thread): line.place for _, line in reversed(self._lines)}
        places = {**self._heard.next_places, **waiting}
        return _Memory(
            [(*key, place) for key, place in places.items()],
            self._heard.missed,
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
        return EngineCounters(
            array_job_id=run[0],
            index=run[1],
            run_start_s=run[2],
            service=service,
            prompt_tokens=counts.prompt_tokens,
            output_tokens=counts.output_tokens,
            counts_cached=counts.counts_cached,
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
