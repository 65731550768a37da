"""Lets replicas of pools load and unload models as the plan says, and knows which they have."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.replica_fits import ReplicaFits
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.process.statistics import replicas_of
from slicewise.launcher.rules.engines.engine import PooledEngine
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.pool_models import AGAIN_S
from slicewise.launcher.rules.turn.service import ServicePlan
from slicewise.launcher.rules.turn.state import ServiceState, State

_SELDOM_S = 30.0
"""Seconds after which a replica is asked again that has what it is to have: it may have lost it."""
_ANSWERS_S = 2.0
"""Seconds after which one is asked again that did not answer."""
_DOUBT_S = 5.0
"""Seconds after which one is asked again of which a model has failed requests: it may answer none
any more."""
_LONGEST_PAUSE_S = 3600.0
"""Seconds at most after which a model is tried again by a made-up request that was loaded again
since it failed one: it may refuse such requests, and each load costs those that it has."""
_LOAD_S = 300
"""Seconds that a load may take at most: meanwhile the replica loads nothing else."""
Fit = Callable[[Replica], Awaitable[ReplicaModels | None]]


@dataclass(frozen=True)
class _Report:
    """What a replica was told, and has said of its models.

    Attributes:
        told: what it was told last.
        at_s: when it answered that or did not, in seconds of a clock that nothing sets.
        is_silent: whether it did not.
        models: what it has said until now; None if it has never answered.
        refused_s: when it refused each model, by the same clock.
        is_in_doubt: whether a model has failed requests since it was asked before.
        again: how often each model was loaded again since it failed, and when last.
    """

    told: Replica
    at_s: float
    is_silent: bool
    models: ReplicaModels | None = None
    refused_s: Mapping[str, float] = field(default_factory=dict)
    is_in_doubt: bool = False
    again: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def unchecked(self, now_s: float) -> Iterator[str]:
        """Yield models that are not to be tried now."""
        for model, (times, at_s) in self.again.items():
            # The power of a thousand is no float; the longest pause comes long before.
            if now_s - at_s < min(_SELDOM_S * 2 ** min(times, 60), _LONGEST_PAUSE_S):
                yield model

    def refused(self, now_s: float) -> Mapping[str, str]:
        """Why it has refused models lately."""
        refused = {} if self.models is None else self.models.refused
        return {
            model: why for model, why in refused.items() if now_s - self.refused_s[model] < AGAIN_S
        }


class ModelWatch:
    """Knows which models each replica of a pool has, while this launcher leads."""

    def __init__(self, fit: Fit) -> None:
        """``fit`` is ``slicewise.launcher.probing.prober.fit_models``."""
        self._fits = ReplicaFits(fit, self._due, self._heard)
        self._plans: Mapping[str, ServicePlan] = {}
        self._reports: dict[tuple[str, Run], _Report] = {}
        self._loads: Mapping[Run, int] = {}
        """Loads of which launchers have heard, this one and those before it."""

    def turned(self, plan: TurnPlan, state: State) -> None:
        """Take over which replicas are to have which models.

        Of a service that is not decided in this turn all stays as it was.
        """
        plans = {key: service for key, service in self._plans.items() if key in state}
        plans |= {service.service: service for service in plan.services}
        self._plans = {key: plan for key, plan in plans.items() if plan.spec.pool is not None}
        replicas = {
            key: dict(_replicas(service, self._members(service), state[key]))
            for key, service in self._plans.items()
        }
        self._fits.turned(replicas, state)
        self._loads = {
            (array, index, told.start_s): told.loads
            for key in self._plans
            for array, generation in state[key].generations.items()
            for index, told in generation.models.items()
        }
        runs = {(key, run) for key in self._plans for run in _runs(state[key])}
        self._reports = {at: report for at, report in self._reports.items() if at in runs}

    def _members(self, service: ServicePlan) -> Sequence[ServicePlan]:
        """Return the services with which one shares replicas, itself among them."""
        return [self._plans[key] for key in service.members if key in self._plans] or [service]

    def look(self) -> None:
        """Begin to tell each replica that is to load or unload a model, and ask the others."""
        self._fits.look()

    @property
    def models(self) -> Mapping[Run, ReplicaModels]:
        """What replicas have said of models, by run."""
        now_s = time.monotonic()
        return {
            run: replace(report.models, refused=report.refused(now_s))
            for (_, run), report in self._reports.items()
            if report.models is not None
        }

    def _due(
        self,
        key: str,
        run: Run,
        replica: Replica,
        now_s: float,
        being_told: Sequence[Replica],
    ) -> Replica | None:
        """Return what to tell a replica: at once what is new or lacks, else now and then.

        While it loads a model, one that it lacks as well is loaded beside that.
        """
        report = self._reports.get((key, run))
        if report is None:
            return None if being_told else replace(replica, checked=frozenset())
        models = report.models or ReplicaModels()
        told = replace(
            replica,
            models=replica.models.difference(report.refused(now_s)),
            answered=tuple(sorted(models.answered.items())),
        )
        if being_told:
            return _beside(told, models.ready, being_told)
        lacking = told.models - models.ready
        checked = frozenset() if lacking else told.checked.difference(report.unchecked(now_s))
        told = replace(told, checked=checked)
        if told != replace(report.told, checked=told.checked, loading=frozenset()):
            return told
        waits_s = _DOUBT_S if report.is_in_doubt else _SELDOM_S
        waits_s = _ANSWERS_S if report.is_silent else waits_s
        lacks = report.models is not None and not report.is_silent and lacking
        return told if lacks or now_s - report.at_s >= waits_s else None

    def _heard(self, key: str, run: Run, told: Replica, answer: ReplicaModels | None) -> None:
        now_s = time.monotonic()
        report = self._reports.get((key, run)) or _Report(told, now_s, is_silent=True)
        self._reports[key, run] = (
            replace(report, told=told, at_s=now_s, is_silent=True)
            if answer is None
            else _later(report, told, answer, now_s, self._loads.get(run, 0))
        )


def _beside(told: Replica, ready: frozenset[str], being_told: Sequence[Replica]) -> Replica | None:
    """Return what to tell a replica while it loads a model; None if that has to wait.

    There is memory for both only if it is to have the one that it loads.
    """
    first, *others = being_told
    loading = first.models - ready - first.loading
    lacking, surplus = told.models - ready - loading, ready - told.models - {told.model}
    is_beside = loading and loading <= told.models and (lacking or surplus) and not others
    return replace(told, loading=loading, checked=frozenset()) if is_beside else None


def _later(
    report: _Report, told: Replica, answer: ReplicaModels, now_s: float, loads: int
) -> _Report:
    """Add an answer to what the replica has said before.

    Before the first answer it had ``loads``, as another launcher has saved it, or as many as it
    must have had for what it has.
    """
    least = max(loads, len(answer.ready) - answer.loads)
    before = report.models or ReplicaModels(loads=least)
    refused = {**report.refused(now_s), **answer.refused}
    refused = {model: why for model, why in refused.items() if model not in answer.ready}
    refused_s = {model: report.refused_s.get(model, now_s) for model in refused}
    models = ReplicaModels(
        answer.ready,
        refused,
        before.loads + answer.loads,
        {**before.load_s, **answer.load_s},
        answer.answered,
        answer.memory,
        before.from_node.difference(answer.load_s) | answer.from_node,
    )
    refused_s |= dict.fromkeys(answer.refused, now_s)
    again = dict(report.again)
    # What it lacks is loaded first; without that, what fails.
    for model in told.checked & answer.load_s.keys():
        again[model] = (again.get(model, (0, 0.0))[0] + 1, now_s)
    return _Report(
        told,
        now_s,
        is_silent=False,
        models=models,
        refused_s=refused_s,
        is_in_doubt=any(
            counts.failed > before.answered.get(model, counts).failed
            for model, counts in answer.answered.items()
        ),
        again=again,
    )


def _runs(service_state: ServiceState) -> Iterator[Run]:
    for array, generation in service_state.generations.items():
        for index, verified in generation.verified.items():
            yield array, index, verified.run.start_s


def _replicas(
    service_plan: ServicePlan, members: Sequence[ServicePlan], service_state: ServiceState
) -> Iterator[tuple[Run, Replica]]:
    """Yield the replicas that can be told, with what they are to have."""
    engines = {engine.group: engine for engine in ENGINES.values()}
    engine = engines.get(service_plan.route.group)
    if not isinstance(engine, PooledEngine):
        return
    spec, specs = service_plan.spec, [member.spec for member in members]
    for run, replica in replicas_of(service_state, engine):
        models = service_plan.models.get(run[:2])
        if models is not None:
            yield (
                run,
                replace(
                    replica,
                    model=spec.model,
                    service=spec.name,
                    models=models,
                    services=tuple(sorted((member.model, member.name) for member in specs)),
                    checked=frozenset(
                        member.model for member in specs if member.readiness == "inference"
                    ),
                    load_timeout_s=min(_LOAD_S, *(member.start_timeout_s for member in specs)),
                ),
            )
