"""What the runs of one service's replicas have counted, and the answers that follow from it.

No count may become less when a replica ends: what it last said still counts.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.saved_statistics import Run, service_text
from slicewise.launcher.process.tenant_share import TenantShare
from slicewise.launcher.rules.engines.engine import CountedEngine
from slicewise.launcher.rules.engines.statistics import (
    Counts,
    Kind,
    StatisticsAnswer,
    followed,
    lasting,
    together,
)

_MOST_ENDED = 32
"""Runs that have ended and are still known one by one: none that is seen again is added twice."""
_MOST_ENDED_KEYS = 20_000
"""Keys of those runs together."""


@dataclass
class _Derived:
    """What follows from a service's counts as long as they stay as they are."""

    all: Counts | None = None
    answers: dict[tuple[str, bytes | None], StatisticsAnswer] = field(default_factory=dict)
    saved: tuple[str, bool] | None = None


@dataclass
class CountedService:
    """What is known of a service.

    Attributes:
        model: the model of which alone it says something, where its replicas have others' too.
        counts: what each run of a replica has said last, also of those that have ended.
        ended: the counts together of runs that ended before those.
        asked_s: when a client last asked; None: not yet, or long ago.
        looks: how many looks have begun, the last one at ``looked_s``.
        derived: what follows from ``counts`` and ``ended``; another object once these are others.
    """

    engine: CountedEngine
    tenant: TenantShare
    model: str | None = None
    replicas: Mapping[Run, Replica] = field(default_factory=dict)
    counts: dict[Run, Counts] = field(default_factory=dict)
    ended: Counts = field(default_factory=dict)
    asked_s: float | None = None
    looked_s: float = 0.0
    looks: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    derived: _Derived = field(default_factory=_Derived)

    def goes_on(self, replicas: Mapping[Run, Replica]) -> None:
        """Take over which replicas there are."""
        if replicas.keys() == self.replicas.keys():
            return
        self.replicas, kind = replicas, self.engine.statistics_kind
        gone = [run for run in self.counts if run not in replicas]
        for run in gone:
            self.counts[run] = lasting(self.counts[run], kind)
        keys = sum(len(self.counts[run]) for run in gone)
        for number, run in enumerate(gone):
            if len(gone) - number <= _MOST_ENDED and keys <= _MOST_ENDED_KEYS:
                break
            keys -= len(self.counts[run])
            self.ended = together([self.ended, self.counts.pop(run)], kind)
        self.derived = _Derived()

    def forget(self) -> None:
        """Forget all counts: no client has asked for long."""
        self.asked_s, self.counts, self.ended = None, {}, {}
        self.derived = _Derived()

    async def all(self) -> Counts | None:
        """Return the counts of all replicas together; None if none has ever said any."""
        if not self.counts and not self.ended:
            return None
        derived = self.derived
        if derived.all is None:
            counts, kind = [self.ended, *self.counts.values()], self.engine.statistics_kind
            derived.all = await self.tenant.apart(partial(together, counts, kind))
        return derived.all

    async def answer(self, path: str, frame: bytes | None) -> StatisticsAnswer | None:
        """Return the answer to a client; ``frame`` is that of gRPC's call."""
        derived, engine, counts = self.derived, self.engine, await self.all()
        if counts is None:
            return None
        if (answer := derived.answers.get((path, frame))) is not None:
            return answer
        if frame is None:
            work = partial(engine.statistics_by_http, path, counts)
        else:
            work = partial(engine.statistics_by_grpc, frame, counts)
        answer = derived.answers[path, frame] = await self.tenant.apart(work)
        return answer

    async def saved(self) -> tuple[str, bool]:
        """Return what is known, to be saved, and whether that is all."""
        derived = self.derived
        if derived.saved is None:
            work = partial(service_text, self.ended, dict(self.counts))
            derived.saved = await asyncio.to_thread(work)
        return derived.saved

    async def take(self, counts_by_run: Mapping[Run, Counts]) -> None:
        """Take over what runs have said now."""
        if self.model is not None:
            is_of = partial(self.engine.statistics_kind.is_of, model=self.model)
            counts_by_run = {
                run: {key: count for key, count in counts.items() if is_of(key)}
                for run, counts in counts_by_run.items()
            }
            self._end_reloaded(counts_by_run)
        pairs = [(run, self.counts.get(run, {}), counts) for run, counts in counts_by_run.items()]
        news = await self.tenant.apart(partial(_news, pairs, self.engine.statistics_kind))
        # Answers that are still true go, too: clients choose how many different ones they ask for.
        self.derived.answers.clear()
        for run, counts in news.items():
            # One that has ended meanwhile has its last word in what was known of it.
            if run in self.replicas:
                self.counts[run] = counts
                self.derived = _Derived()

    def _end_reloaded(self, counts_by_run: Mapping[Run, Counts]) -> None:
        """Keep what runs have counted of the model before they unloaded it and loaded it again."""
        rules = self.engine.statistics_kind
        for run, counts in counts_by_run.items():
            before = lasting(self.counts.get(run, {}), rules)
            if any(counts.get(key, count) < count for key, count in before.items()):
                self.ended = together([self.ended, self.counts.pop(run)], rules)
                self.derived = _Derived()


def _news(pairs: Iterable[tuple[Run, Counts, Counts]], kind: Kind) -> Mapping[Run, Counts]:
    """Return what the runs have counted that have counted more than before."""
    after = ((run, before, followed(before, now, kind)) for run, before, now in pairs)
    return {run: counts for run, before, counts in after if counts != before or not before}
