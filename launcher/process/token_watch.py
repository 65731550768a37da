"""Asks replicas what they work on and, where that is an objective, how long their tokens take."""

import time
from collections.abc import Awaitable, Callable, Mapping

from slicewise.cluster.language.service import tenant_of
from slicewise.launcher.probing.prober import EngineMetrics, Replica
from slicewise.launcher.process.replica_questions import ReplicaQuestions
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.process.statistics import replicas_of
from slicewise.launcher.rules.autoscale.histogram import added_bins, counted_since
from slicewise.launcher.rules.engines.engine import TokenCounts, TokenEngine
from slicewise.launcher.rules.engines.load import (
    CountsSeen,
    EngineCounts,
    EngineLoad,
    ServersLoad,
    servers_load,
)
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.gateway.types import ServerMode
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.service import ServicePlan
from slicewise.launcher.rules.turn.state import State

_SELDOM_S = 10.0
"""Seconds after which replicas without an objective of tokens are asked again: people read it."""

Ask = Callable[[Replica], Awaitable[EngineMetrics | None]]
Told = Callable[[str, Run, EngineLoad], None]


class TokenWatch:
    """Adds up what the replicas of a service have counted while this launcher led.

    Attributes:
        counts: times of tokens, of services with such an objective.
    """

    def __init__(self, ask: Ask, told: Told = lambda _service, _run, _load: None) -> None:
        """``told`` gets what each engine works on and has counted, whenever it says it."""
        self._questions = ReplicaQuestions(ask, self._heard)
        self._told = told
        self._replicas: Mapping[str, Mapping[Run, Replica]] = {}
        self._timed: frozenset[str] = frozenset()
        self._due_s: dict[str, float] = {}
        self._going: frozenset[tuple[str, Run]] = frozenset()
        self._before: dict[tuple[str, Run], TokenCounts] = {}
        self._counted: dict[tuple[str, Run], EngineCounts] = {}
        self._loads: dict[str, dict[Run, EngineLoad]] = {}
        self._seen: dict[str, CountsSeen] = {}
        self.counts: dict[str, TokenCounts] = {}

    @property
    def loads(self) -> Mapping[str, ServersLoad]:
        """What replicas work on, by ``tenant/service``, where their engine says it."""
        counted = (
            (key, servers_load(loads.values(), self._seen.get(key, CountsSeen())))
            for key, loads in self._loads.items()
        )
        return {key: counts for key, counts in counted if counts is not None}

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas serve, and which services have an objective of tokens."""
        engines = {
            engine.group: engine for engine in ENGINES.values() if isinstance(engine, TokenEngine)
        }
        self._replicas = {
            service.service: dict(replicas_of(state[service.service], engine))
            for service in plan.services
            if (engine := engines.get(service.route.group)) is not None
        }
        self._going = frozenset(
            (service.service, run)
            for service in plan.services
            for run, replica in self._replicas.get(service.service, {}).items()
            if _is_going(service, replica)
        )
        self._timed = frozenset(
            service.service for service in plan.services if service.spec.times_tokens
        )
        self._questions.forget_others(set(map(tenant_of, state)))
        timed = self._timed & self._replicas.keys()
        self.counts = {key: count for key, count in self.counts.items() if key in timed}
        self._seen = {key: counts for key, counts in self._seen.items() if key in self._replicas}
        self._due_s = {key: at_s for key, at_s in self._due_s.items() if key in self._replicas}
        self._before = {at: counts for at, counts in self._before.items() if self._is_there(at)}
        self._counted = {at: counts for at, counts in self._counted.items() if self._is_there(at)}
        self._loads = {
            key: {run: load for run, load in loads.items() if self._is_there((key, run))}
            for key, loads in self._loads.items()
            if key in self._replicas
        }

    def _is_there(self, at: tuple[str, Run]) -> bool:
        return at[1] in self._replicas.get(at[0], {})

    def look(self) -> None:
        """Begin to ask each replica; what it says is added when it comes."""
        now_s = time.monotonic()
        for key, replicas in self._replicas.items():
            if now_s < max(self._questions.rests_until_s(key), self._due_s.get(key, 0.0)):
                continue
            self._due_s[key] = 0.0 if key in self._timed else now_s + _SELDOM_S
            for run, replica in replicas.items():
                self._questions.begin(key, run, replica)

    def ask_run(self, key: str, run: Run) -> None:
        """Ask a run that has ended a request at the next look, one that is about to go at once."""
        self._due_s[key] = 0.0
        replica = self._replicas.get(key, {}).get(run)
        if replica is not None and (key, run) in self._going:
            self._questions.begin(key, run, replica)

    def _heard(self, key: str, run: Run, _: Replica, now: EngineMetrics | None) -> None:
        if now is not None and now.load is not None:
            self._told(key, run, now.load)
        if self._is_there((key, run)):
            self._take(key, run, now or EngineMetrics())

    def _take(self, key: str, run: Run, now: EngineMetrics) -> None:
        if now.tokens is not None and key in self._timed:
            self._time(key, run, now.tokens)
        loads = self._loads.setdefault(key, {})
        if now.load is None:
            # What it worked on when it last answered is not what it works on now.
            loads.pop(run, None)
            return
        loads[run] = now.load
        # What a replica had counted before it was first asked was long ago, perhaps.
        before = self._counted.get((key, run), now.load.counts)
        self._counted[key, run] = now.load.counts
        self._seen[key] = self._seen.get(key, CountsSeen()).later(before, now.load.counts)

    def _time(self, key: str, run: Run, now: TokenCounts) -> None:
        before = self._before.get((key, run), now)
        self._before[key, run] = now
        if now.first_s >= before.first_s and now.tokens >= before.tokens:
            self.counts[key] = _added(self.counts.get(key), before, now)


def _is_going(service: ServicePlan, replica: Replica) -> bool:
    """Whether it gets no new request any more."""
    return any(
        mode is not ServerMode.READY and to.place == (replica.address, replica.port)
        for to, mode in (service.route.targets or {}).items()
    )


def _added(total: TokenCounts | None, before: TokenCounts, now: TokenCounts) -> TokenCounts:
    total_before = total or TokenCounts(0.0, 0.0, 0.0, None if now.requests is None else 0.0)
    requests = None
    if total_before.requests is not None and now.requests is not None:
        requests = total_before.requests + max(0.0, now.requests - (before.requests or 0.0))
    return TokenCounts(
        total_before.first_s + now.first_s - before.first_s,
        total_before.tokens + now.tokens - before.tokens,
        total_before.token_s + max(0.0, now.token_s - before.token_s),
        requests,
        added_bins(total_before.firsts, counted_since(before.firsts, now.firsts)),
    )
