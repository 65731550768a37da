"""Metrics of the launcher for Prometheus, at ``launcher.metrics`` = HOST:PORT."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from operator import attrgetter
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.starts import StartClass, StartPhase, StartTrace, phases_of
from slicewise.cluster.rpc.messages import ServiceQuality
from slicewise.cluster.runtime.prometheus import family, served, single
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.process.metric_catalogue import METRICS
from slicewise.launcher.process.turn import Turned
from slicewise.launcher.rules.autoscale.keep_warm import WarmTotal
from slicewise.launcher.rules.autoscale.tokens import TokensDone
from slicewise.launcher.rules.engines.load import EngineCounts, ServersLoad
from slicewise.launcher.rules.turn.quality import Counts
from slicewise.launcher.rules.turn.service import ServicePlan
from slicewise.launcher.rules.turn.slots import Phase
from slicewise.launcher.rules.turn.state import State
from slicewise.launcher.rules.turn.suspects import suspect_nodes

_OF_GATEWAY = (Code.GATEWAY_DOWN, Code.GATEWAY_FAILED)
_FAILURES = (Code.DAEMON_DOWN, *_OF_GATEWAY)
"""Errors of which a count of 0 is shown, too: Prometheus sees no increase from nothing to 1."""


_PHASE_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class Metrics:
    """Counts turns; the rest is read when Prometheus asks."""

    def __init__(self, leader: Leader) -> None:
        self.registry = CollectorRegistry()
        turn = METRICS["slicewise_launcher_loop_duration_seconds"]
        failures = METRICS["slicewise_launcher_loop_failures_total"]
        self._turn_s = Summary(turn.name, turn.text, registry=self.registry)
        self._failures = Counter(
            failures.name, failures.text, failures.labels, registry=self.registry
        )
        for code in _FAILURES:
            self._failures.labels(code)
        phases = METRICS["slicewise_launcher_start_phase_seconds"]
        self._phases = Histogram(
            *(phases.name, phases.text, phases.labels),
            buckets=_PHASE_BUCKETS_S,
            registry=self.registry,
        )
        starts = METRICS["slicewise_launcher_starts_total"]
        self._starts = Counter(starts.name, starts.text, starts.labels, registry=self.registry)
        read = METRICS["slicewise_launcher_start_weights_bytes_total"]
        self._read_bytes = Counter(read.name, read.text, read.labels, registry=self.registry)
        for start_class in get_args(StartClass):
            self._starts.labels(start_class, "")
            self._read_bytes.labels(start_class)
            for phase in get_args(StartPhase):
                self._phases.labels(phase, start_class)
        self._over: dict[str, tuple[StartTrace, ...]] | None = None
        self._last = _Last(leader)
        self.registry.register(self._last)

    def turned(self, turned: Turned, took_s: float) -> None:
        """Count a turn that has not failed, with or without a decision.

        There is none if the daemon did not see all of Slurm.
        """
        self._turn_s.observe(took_s)
        self._last.gateway_seen = True
        self._count_starts(turned.state)
        if turned.plan is not None:
            self._last.turned, self._last.decided_s = turned, wall_s()

    def _count_starts(self, state: State) -> None:
        """Count the starts that are over since the turn before, and their phases.

        At the first turn there are those that were saved.
        """
        over = {key: service_state.starts.over for key, service_state in state.items()}
        before, self._over = self._over, over
        if before is None:
            return
        for key, traces in over.items():
            counted = before.get(key, ())
            if traces is counted:
                continue
            for trace in traces:
                if trace not in counted:
                    self._count(trace)

    def _count(self, trace: StartTrace) -> None:
        for phase in phases_of(trace):
            self._phases.labels(phase.phase, trace.start_class).observe(phase.seconds)
        if trace.state == "ready":
            self._starts.labels(trace.start_class, trace.weights.fallback or "").inc()
            self._read_bytes.labels(trace.start_class).inc(trace.weights.bytes or 0)

    def measured(
        self,
        qualities: Mapping[str, ServiceQuality],
        counts: Mapping[str, Counts],
        loads: Mapping[str, ServersLoad],
    ) -> None:
        """Take how well each service answered lately, what was counted, and what servers say."""
        self._last.qualities, self._last.counts, self._last.loads = qualities, counts, loads

    def counted(self, requests: Mapping[str, int]) -> None:
        """Take how many requests each adapter has had, by ``tenant/service:adapter``."""
        self._last.requests = requests

    def used(self, missed: int, waiting: int) -> None:
        """Take how many requests nobody will book, and how many batches wait to be booked."""
        self._last.missed, self._last.waiting = missed, waiting

    def failed(self, code: str, took_s: float) -> None:
        """Count a turn that has failed."""
        self._turn_s.observe(took_s)
        self._failures.labels(code).inc()
        if code in _OF_GATEWAY:
            self._last.gateway_seen = False

    def stands_by(self) -> None:
        """Forget what this launcher has seen: another one leads, so it is no longer how it is."""
        self._last.turned = self._over = None
        self._last.qualities, self._last.counts, self._last.loads = {}, {}, {}
        self._last.requests = {}

    def served(self, address: str) -> AbstractContextManager[None]:
        """Answer Prometheus at HOST:PORT: does and raises what ``prometheus.served`` does."""
        return served(self.registry, address, "launcher.metrics")


class _Last(Collector):
    """The last decision; a thread of Prometheus' server reads it."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.turned: Turned | None = None
        self.decided_s = wall_s()
        self.gateway_seen = False
        self.qualities: Mapping[str, ServiceQuality] = {}
        self.counts: Mapping[str, Counts] = {}
        self.loads: Mapping[str, ServersLoad] = {}
        self.requests: Mapping[str, int] = {}
        self.missed, self.waiting = 0, 0

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield single(METRICS["slicewise_launcher_is_leader"], self._leader.leads())
        yield single(METRICS["slicewise_launcher_gateway_up"], self.gateway_seen)
        age_s = wall_s() - self.decided_s
        yield single(METRICS["slicewise_launcher_decision_age_seconds"], age_s)
        yield single(METRICS["slicewise_launcher_missed_requests_total"], self.missed)
        yield single(METRICS["slicewise_launcher_usage_batches"], self.waiting)
        turned = self.turned
        suspects = suspect_nodes(turned.state, wall_s()) if turned is not None else {}
        yield single(METRICS["slicewise_launcher_suspect_nodes"], len(suspects))
        if turned is not None and turned.plan is not None:
            # Users may submit any number of services; of those that the gateway carries there are
            # no more than its settings have.
            unrouted = turned.plan.routes.unrouted
            services = [
                service for service in turned.plan.services if service.service not in unrouted
            ]
            yield from _of_services(turned, services)
            yield from _of_tokens(turned, services)
            yield from _of_quality(self.qualities, self.counts)
            yield from _of_servers(self.loads)
            yield _of_adapters(self.requests)


def _of_services(turned: Turned, services: Iterable[ServicePlan]) -> Iterator[Metric]:
    def failures(service: ServicePlan) -> float:
        generation = turned.state[service.service].generations[service.array_job_id]
        return generation.backoff.failures

    def doubted(service: ServicePlan) -> float:
        generations = turned.state[service.service].generations.values()
        return sum(
            watch.doubt is not None for each in generations for watch in each.watched.values()
        )

    def removed(service: ServicePlan) -> float:
        generations = turned.state[service.service].generations.values()
        return sum(len(each.removed_s) for each in generations)

    def warm(service: ServicePlan) -> WarmTotal:
        return turned.state[service.service].warm

    values: Mapping[str, Callable[[ServicePlan], float]] = {
        "desired_replicas": attrgetter("decision.wanted"),
        "ready_replicas": _ready,
        "backlog_requests": attrgetter("load.waiting"),
        "in_flight_requests": attrgetter("load.in_flight"),
        "concurrency_requests": attrgetter("concurrency"),
        "failed_starts": failures,
        "suspect_replicas": doubted,
        "failed_replicas": removed,
        "warm_replicas": attrgetter("decision.kept_warm.replicas"),
        "warm_millislice_seconds_total": lambda service: warm(service).millislice_s,
        "spared_requests_total": lambda service: warm(service).spared,
    }
    for what, value in values.items():
        yield _by_service(what, ((service.service, value(service)) for service in services))


def _of_tokens(turned: Turned, services: Iterable[ServicePlan]) -> Iterator[Metric]:
    times: Mapping[str, Callable[[TokensDone], float | None]] = {
        "time_to_first_token_seconds": attrgetter("to_first_s"),
        "time_to_first_token_p95_seconds": attrgetter("first_p95_s"),
        "time_per_output_token_seconds": attrgetter("per_token_s"),
    }
    timed = [
        (service.service, memory.tokens)
        for service in services
        if service.spec.times_tokens and (memory := turned.state[service.service].memory)
    ]
    for what, value in times.items():
        yield _by_service(what, ((key, value(tokens)) for key, tokens in timed))


def _of_quality(
    qualities: Mapping[str, ServiceQuality], counts: Mapping[str, Counts]
) -> Iterator[Metric]:
    gauges: Mapping[str, Callable[[ServiceQuality], float | None]] = {
        "response_p50_seconds": _p50_s,
        "response_p95_seconds": _p95_s,
        "objective_met_ratio": attrgetter("objective_met_share"),
    }
    for what, value in gauges.items():
        yield _by_service(what, ((key, value(quality)) for key, quality in qualities.items()))
    counters: Mapping[str, Callable[[Counts], int]] = {
        "responses_total": attrgetter("timings.answered"),
        "failed_responses_total": attrgetter("timings.errors"),
        "cold_starts_total": attrgetter("cold_starts"),
    }
    for what, count in counters.items():
        yield _by_service(what, ((key, count(measure)) for key, measure in counts.items()))


def _of_servers(loads: Mapping[str, ServersLoad]) -> Iterator[Metric]:
    gauges: Mapping[str, Callable[[ServersLoad], float | None]] = {
        "engine_running_requests": attrgetter("running"),
        "engine_waiting_requests": attrgetter("waiting"),
        "engine_kv_cache_ratio": attrgetter("kv_cache"),
    }
    for what, value in gauges.items():
        yield _by_service(what, ((key, value(load)) for key, load in loads.items()))
    for field in fields(EngineCounts):
        counted = ((key, getattr(load.counts, field.name)) for key, load in loads.items())
        yield _by_service(f"engine_{field.name}_total", counted)


def _by_service(what: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    """The metric of services by ``TENANT/NAME``; one without a value is left out."""
    pairs = ((key.split("/", 1), value) for key, value in values if value is not None)
    return family(METRICS[f"slicewise_service_{what}"], pairs)


def _of_adapters(requests: Mapping[str, int]) -> Metric:
    split = ((name.partition(":"), count) for name, count in requests.items())
    counted = (((*key.split("/", 1), adapter), count) for (key, _, adapter), count in split)
    return family(METRICS["slicewise_service_adapter_requests_total"], counted)


def _p50_s(service_quality: ServiceQuality) -> float | None:
    return None if service_quality.p50_ms is None else service_quality.p50_ms / 1000


def _p95_s(service_quality: ServiceQuality) -> float | None:
    return None if service_quality.p95_ms is None else service_quality.p95_ms / 1000


def _ready(service: ServicePlan) -> float:
    return sum(slot.phase is Phase.SERVING and slot.up for slot in service.slots)
