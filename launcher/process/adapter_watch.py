"""Lets replicas that serve load and unload LoRA adapters as their service's newest file says."""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.cluster.language.adapters import model_name
from slicewise.cluster.rpc.messages import AdapterReport
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.replica_fits import ReplicaFits
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.process.statistics import replicas_of
from slicewise.launcher.rules.engines.engine import AdapterEngine
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.service import ServicePlan
from slicewise.launcher.rules.turn.state import State

_AGAIN_S = 30.0
"""Seconds after which a replica is asked again that has refused an adapter, or not answered."""
_MOST_COUNTED = 2**53

Fit = Callable[[Replica], Awaitable[Mapping[str, str] | None]]


@dataclass(frozen=True)
class _Fitted:
    """What a replica has done.

    Attributes:
        adapters: those that it was to have.
        refused: why it has not loaded some, by name; None if it did not answer.
        at_s: when that was, in seconds of a clock that nothing sets.
    """

    adapters: tuple[tuple[str, str], ...]
    refused: Mapping[str, str] | None
    at_s: float

    @property
    def tried(self) -> frozenset[str]:
        """The adapters that it has, or has refused."""
        return frozenset() if self.refused is None else frozenset(dict(self.adapters))

    @property
    def loaded(self) -> frozenset[str]:
        """The adapters that it has."""
        return self.tried - frozenset(self.refused or {})

    def why(self, adapter: str) -> str:
        """Why it has refused that adapter; "" if it has not."""
        return (self.refused or {}).get(adapter, "")


class AdapterWatch:
    """Knows which adapters each replica has, while this launcher leads."""

    def __init__(self, fit: Fit) -> None:
        """``fit`` is ``slicewise.launcher.probing.prober.fit_adapters``."""
        self._fits = ReplicaFits(fit, self._due, self._heard)
        self._fitted: dict[tuple[str, Run], _Fitted] = {}
        self._names: Mapping[str, tuple[str, ...]] = {}
        self._counted: Mapping[str, int] = {}
        self._requests: Mapping[str, int] = {}

    def turned(self, plan: TurnPlan, state: State, counted: Mapping[str, int]) -> None:
        """Take over which replicas are to have which adapters.

        ``counted`` is how many requests each adapter has had since the gateway began to count.
        """
        self._names = {
            service.service: tuple(dict(service.spec.adapters))
            for service in plan.services
            if service.spec.adapters
        }
        replicas = {
            service.service: dict(_replicas(service, state))
            for service in plan.services
            if service.fits
        }
        self._fits.turned(replicas, state)
        self._count(counted)
        self._fitted = {at: fitted for at, fitted in self._fitted.items() if self._fits.has(*at)}

    def _count(self, counted: Mapping[str, int]) -> None:
        """Add up what the gateway counts; a count that is less than before has begun again at 0."""
        before, self._counted = self._counted, counted
        requests_before = {name: self._requests.get(name, 0) for name in counted}
        since = {name: before.get(name, 0) for name in counted}
        self._requests = {
            name: min(
                requests_before[name] + count - since[name] * (count >= since[name]), _MOST_COUNTED
            )
            for name, count in counted.items()
        }

    @property
    def requests(self) -> Mapping[str, int]:
        """How many requests each adapter has had, by ``tenant/service:adapter``."""
        return self._requests

    @property
    def tried(self) -> Mapping[str, frozenset[str]]:
        """The adapters that each replica has loaded or refused, by ``tenant/service``.

        One that has been asked and did not answer keeps none from the others' clients.
        """
        return {key: self._tried(key) for key in self._names}

    def _tried(self, key: str) -> frozenset[str]:
        fitted = [self._of(key, run) for run in self._fits.replicas.get(key, {})]
        answered = [
            fitted_replica
            for fitted_replica in fitted
            if fitted_replica is None or fitted_replica.refused is not None
        ]
        if not answered:
            return frozenset()
        names = frozenset(self._names[key])
        return names.intersection(
            *(
                fitted_replica.tried if fitted_replica else frozenset()
                for fitted_replica in answered
            )
        )

    def _of(self, key: str, run: Run) -> _Fitted | None:
        """Return what the replica has done since it is to have what it is to have now."""
        fitted = self._fitted.get((key, run))
        return (
            fitted if fitted and fitted.adapters == self._fits.replicas[key][run].adapters else None
        )

    @property
    def reports(self) -> Mapping[str, tuple[AdapterReport, ...]]:
        """What users are told of adapters, by ``tenant/service``."""
        return {key: self._reports(key) for key in self._names}

    def _reports(self, key: str) -> tuple[AdapterReport, ...]:
        runs = self._fits.replicas.get(key, {})
        fitted_replicas = [
            fitted_replica for run in runs if (fitted_replica := self._of(key, run)) is not None
        ]
        return tuple(
            AdapterReport(
                model=model_name(key.partition("/")[2], name),
                requests=self._requests.get(model_name(key, name), 0),
                loaded=sum(name in fitted_replica.loaded for fitted_replica in fitted_replicas),
                replicas=len(runs),
                why=next(
                    (
                        why
                        for fitted_replica in fitted_replicas
                        if (why := fitted_replica.why(name))
                    ),
                    "",
                ),
            )
            for name in self._names[key]
        )

    def look(self) -> None:
        """Begin to tell each replica that lacks an adapter, or has one too many."""
        self._fits.look()

    def _due(
        self,
        key: str,
        run: Run,
        replica: Replica,
        now_s: float,
        being_told: Sequence[Replica],
    ) -> Replica | None:
        """Return the replica if it is to be told."""
        fitted = self._of(key, run)
        is_settled = fitted is not None and (fitted.refused == {} or now_s - fitted.at_s < _AGAIN_S)
        return None if is_settled or being_told else replica

    def _heard(self, key: str, run: Run, told: Replica, refused: Mapping[str, str] | None) -> None:
        self._fitted[key, run] = _Fitted(told.adapters, refused, time.monotonic())


def _replicas(service_plan: ServicePlan, state: State) -> Iterator[tuple[Run, Replica]]:
    """Yield the replicas that can be told, with what they are to have."""
    engines = {engine.group: engine for engine in ENGINES.values()}
    engine = engines.get(service_plan.route.group)
    if not isinstance(engine, AdapterEngine):
        return
    spec = service_plan.spec
    adapters = tuple((name, f"{spec.model_repository}/{path}") for name, path in spec.adapters)
    for run, replica in replicas_of(state[service_plan.service], engine):
        if run[0] in service_plan.fits:
            yield run, replace(replica, service=spec.name, adapters=adapters)
