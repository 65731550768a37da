"""Metrics of the launcher for Prometheus, at ``launcher.metrics`` = HOST:PORT."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Summary
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cluster.rpc.messages import ServiceQuality
from cluster.runtime.leadership import Leader
from cluster.runtime.prometheus import gauge, served
from launcher.autoscale.tokens import TokensDone
from launcher.engines.load import ServersLoad
from launcher.process.tick import Turned
from launcher.turn.plan import ServicePlan
from launcher.turn.quality import Counts
from launcher.turn.slots import Phase
from launcher.turn.suspects import suspect_nodes

_LATELY = "of the last 5 to 10 minutes"
_IN_REPLICA = "came within this time in a replica, where its engine has a histogram of that"
_OF_GATEWAY = ("SW-GATEWAY-DOWN", "SW-GATEWAY-FAILED")


class Metrics:
    """Counts turns; the rest is read when Prometheus asks."""

    def __init__(self, leader: Leader) -> None:
        self.registry = CollectorRegistry()
        self._turn_s = Summary(
            "slicewise_launcher_turn_seconds", "Duration of turns.", registry=self.registry
        )
        self._failures = Counter(
            "slicewise_launcher_turn_failures",
            "Turns that could not read or change something, by error.",
            ["code"],
            registry=self.registry,
        )
        self._last = _Last(leader)
        self.registry.register(self._last)

    def turned(self, turned: Turned, took_s: float) -> None:
        """Count a turn that has not failed, with or without a decision.

        There is none if the daemon did not see all of Slurm.
        """
        self._turn_s.observe(took_s)
        self._last.gateway_seen = True
        if turned.plan is not None:
            self._last.turned, self._last.decided_s = turned, time.time()

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

    def failed(self, code: str, took_s: float) -> None:
        """Count a turn that has failed."""
        self._turn_s.observe(took_s)
        self._failures.labels(code).inc()
        if code in _OF_GATEWAY:
            self._last.gateway_seen = False

    def stands_by(self) -> None:
        """Forget what this launcher has seen: another one leads, so it is no longer how it is."""
        self._last.turned = None
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
        self.decided_s = time.time()
        self.gateway_seen = False
        self.qualities: Mapping[str, ServiceQuality] = {}
        self.counts: Mapping[str, Counts] = {}
        self.loads: Mapping[str, ServersLoad] = {}
        self.requests: Mapping[str, int] = {}

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        name = "slicewise_launcher"
        yield gauge(f"{name}_leads", "Whether this launcher acts.", self._leader.leads())
        seen = "Whether the last turn that asked HAProxy was answered."
        yield gauge(f"{name}_gateway_seen", seen, self.gateway_seen)
        age_s = time.time() - self.decided_s
        yield gauge(
            f"{name}_decision_age_seconds",
            "Seconds since the last decision, or since the start.",
            age_s,
        )
        turned = self.turned
        suspects = suspect_nodes(turned.state, time.time()) if turned is not None else {}
        several = "Nodes on which replicas of several services failed in the last hour."
        yield gauge(f"{name}_suspect_nodes", several, len(suspects))
        if turned is not None and turned.plan is not None:
            yield from _of_services(turned, turned.plan.services)
            yield from _of_tokens(turned, turned.plan.services)
            yield from _of_quality(self.qualities, self.counts)
            yield from _of_servers(self.loads)
            yield _of_adapters(self.requests)


def _of_services(turned: Turned, services: Iterable[ServicePlan]) -> Iterator[Metric]:
    def failures(service: ServicePlan) -> float:
        known = turned.state[service.service].generations[service.array_job_id]
        return known.backoff.failures

    def doubted(service: ServicePlan) -> float:
        known = turned.state[service.service].generations.values()
        return sum(one.doubt is not None for each in known for one in each.watched.values())

    def removed(service: ServicePlan) -> float:
        known = turned.state[service.service].generations.values()
        return sum(len(each.removed_s) for each in known)

    values: tuple[tuple[str, str, Callable[[ServicePlan], float]], ...] = (
        ("wanted_replicas", "Replicas that the autoscaler wants.", lambda one: one.decision.wanted),
        ("ready_replicas", "Replicas that get requests and pass their checks.", _ready),
        ("waiting_requests", "Requests that wait for a replica.", lambda one: one.load.waiting),
        ("in_flight_requests", "Requests that a replica works on.", lambda one: one.load.in_flight),
        ("concurrency", "Requests that each replica gets at the same time.", _concurrency),
        ("failed_starts", "Failed starts in a row, of the newest generation.", failures),
        ("doubted_replicas", "Replicas that answer worse than others and are asked.", doubted),
        ("removed_replicas", "Replicas that failed when asked, in the last hour.", removed),
    )
    for what, text, value in values:
        family = GaugeMetricFamily(f"slicewise_service_{what}", text, labels=["tenant", "service"])
        for service in services:
            family.add_metric(service.service.split("/", 1), value(service))
        yield family


def _of_tokens(turned: Turned, services: Iterable[ServicePlan]) -> Iterator[Metric]:
    times: tuple[tuple[str, str, Callable[[TokensDone], float | None]], ...] = (
        ("first_token_seconds", "Mean time in a replica to the first token.", _to_first_s),
        ("first_token_p95_seconds", f"95 % of the first tokens {_IN_REPLICA}.", _first_p95_s),
        ("output_token_seconds", "Mean time from one token to the next.", _per_token_s),
    )
    for what, text, value in times:
        family = GaugeMetricFamily(f"slicewise_service_{what}", text, labels=["tenant", "service"])
        for one in services:
            memory = turned.state[one.service].memory
            if one.times_tokens and memory and (found := value(memory.tokens)) is not None:
                family.add_metric(one.service.split("/", 1), found)
        yield family


def _of_quality(
    qualities: Mapping[str, ServiceQuality], counts: Mapping[str, Counts]
) -> Iterator[Metric]:
    labels = ["tenant", "service"]
    gauges: tuple[tuple[str, str, Callable[[ServiceQuality], float | None]], ...] = (
        ("p50_seconds", f"Half of the answers {_LATELY} took at most this.", _p50_s),
        ("p95_seconds", f"95 % of the answers {_LATELY} took at most this.", _p95_s),
        ("in_time_ratio", f"Answers {_LATELY} that met the objective.", lambda one: one.in_time),
    )
    for what, text, value in gauges:
        family = GaugeMetricFamily(f"slicewise_service_{what}", text, labels=labels)
        for key, one in qualities.items():
            if (found := value(one)) is not None:
                family.add_metric(key.split("/", 1), found)
        yield family
    counters: tuple[tuple[str, str, Callable[[Counts], int]], ...] = (
        ("answers", "Requests whose answer was passed on.", lambda one: one.timings.answered),
        ("errors", "Answers that say that the server failed.", lambda one: one.timings.errors),
        ("cold_starts", "Times that requests waited: no replica was ready.", _cold_starts),
    )
    for what, text, count in counters:
        counter = CounterMetricFamily(f"slicewise_service_{what}", text, labels=labels)
        for key, seen in counts.items():
            counter.add_metric(key.split("/", 1), count(seen))
        yield counter


def _of_servers(loads: Mapping[str, ServersLoad]) -> Iterator[Metric]:
    labels = ["tenant", "service"]
    gauges: tuple[tuple[str, str, Callable[[ServersLoad], float | None]], ...] = (
        ("server_running_requests", "Requests that replicas' servers work on.", _running),
        ("server_waiting_requests", "Requests that wait in replicas' servers.", _waiting),
        ("kv_cache_ratio", "Share of a server's KV cache in use, where it is fullest.", _kv_cache),
    )
    for what, text, value in gauges:
        family = GaugeMetricFamily(f"slicewise_service_{what}", text, labels=labels)
        for key, one in loads.items():
            if (found := value(one)) is not None:
                family.add_metric(key.split("/", 1), found)
        yield family
    counters = (
        ("preemptions", "Requests that servers set back: their KV cache was full."),
        ("prompt_tokens", "Tokens of prompts, as servers count them."),
        ("output_tokens", "Tokens that servers have made."),
        ("cache_lookup_tokens", "Tokens of prompts that servers looked for in their KV cache."),
        ("cache_hit_tokens", "Those of them that were there."),
    )
    for what, text in counters:
        counter = CounterMetricFamily(f"slicewise_service_{what}", text, labels=labels)
        for key, one in loads.items():
            if (found := getattr(one.counts, what)) is not None:
                counter.add_metric(key.split("/", 1), found)
        yield counter


def _running(one: ServersLoad) -> float:
    return one.running


def _waiting(one: ServersLoad) -> float:
    return one.waiting


def _kv_cache(one: ServersLoad) -> float | None:
    return one.kv_cache


def _of_adapters(requests: Mapping[str, int]) -> Metric:
    text = "Requests that named this LoRA adapter of the service and were let in."
    labels = ["tenant", "service", "adapter"]
    counter = CounterMetricFamily("slicewise_service_adapter_requests", text, labels=labels)
    for name, count in requests.items():
        service, _, adapter = name.partition(":")
        counter.add_metric([*service.split("/", 1), adapter], count)
    return counter


def _p50_s(one: ServiceQuality) -> float | None:
    return None if one.p50_ms is None else one.p50_ms / 1000


def _p95_s(one: ServiceQuality) -> float | None:
    return None if one.p95_ms is None else one.p95_ms / 1000


def _cold_starts(one: Counts) -> int:
    return one.cold_starts


def _concurrency(service: ServicePlan) -> float:
    return service.concurrency


def _to_first_s(one: TokensDone) -> float | None:
    return one.to_first_s


def _first_p95_s(one: TokensDone) -> float | None:
    return one.first_p95_s


def _per_token_s(one: TokensDone) -> float | None:
    return one.per_token_s


def _ready(service: ServicePlan) -> float:
    return sum(slot.phase is Phase.SERVING and slot.up for slot in service.slots)
