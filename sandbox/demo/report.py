"""Computes the demo's report from a recording."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from cluster.language.errors import Refusal
from sandbox.demo.record import Recording, RequestRecord, Sample, by_service, replicas_over_time

REPLICAS_EXPECTED = 4
LEDGER_TOLERANCE = 0.01
"""How far the ledger's slice-seconds may be from sacct's, as a share."""


@dataclass(frozen=True)
class ServiceReport:
    """One service's part of the report."""

    requests: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    replicas_max: int
    backlog_max: int


@dataclass(frozen=True)
class SliceSeconds:
    """What one tenant held, in slice-seconds, by the ledger and by sacct."""

    ledger: float
    sacct: float

    @property
    def deviation(self) -> float:
        """The ledger's deviation from sacct, as a share; if sacct has 0, it is 0 or infinite."""
        if self.sacct == 0:
            return 0.0 if self.ledger == 0 else float("inf")
        return abs(self.ledger - self.sacct) / self.sacct


@dataclass(frozen=True)
class Report:
    """``demo.json``.

    Attributes:
        requests: number of all requests; ``wake_requests`` are those among them that are not of the
            trace but woke a service.
        failed: requests without a right answer in time; nothing is retried.
        p50_ms, p95_ms: nearest-rank percentiles over the answered requests, from the time they were
            due, waking from zero included.
        replicas_max: most replicas ready at one time, all services together.
        replicas_end: replicas ready, starting or draining in the last samples; None without any.
        woke_from_zero: whether every wake request found no replica and was answered.
        first_response_after_wake_s: latency of the slowest wake request; None without any.
        errors: how often each kind of failure occurred.
    """

    requests: int
    wake_requests: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    replicas_max: int
    replicas_end: int | None
    woke_from_zero: bool
    first_response_after_wake_s: float | None
    refused_over_quota: Refusal | None
    ledger_imbalance: int
    slice_seconds_by_tenant: Mapping[str, SliceSeconds]
    services: Mapping[str, ServiceReport]
    errors: Mapping[str, int]
    duration_s: float
    facts: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Ready for ``json.dumps``; ``facts`` become keys of their own."""
        values = asdict(self)
        facts = values.pop("facts")
        return {**values, **facts}

    def shortfalls(self) -> tuple[str, ...]:
        """Say what this run failed to show; () if it showed everything."""
        expectations = (
            (self.requests > 0 and self.failed == 0, f"{self.failed} requests failed"),
            (
                self.replicas_max >= REPLICAS_EXPECTED,
                f"replicas_max is {self.replicas_max}, expected {REPLICAS_EXPECTED} or more",
            ),
            (self.replicas_end == 0, f"replicas_end is {self.replicas_end}, expected 0"),
            (self.woke_from_zero, "a service did not wake from zero"),
            (self.refused_over_quota is not None, "the tenant without quota was not refused"),
            (self.ledger_imbalance == 0, f"the ledger is off balance by {self.ledger_imbalance}"),
            *(
                (self._charged(service) > 0, f"{service} answered requests and was not charged")
                for service in self.services
            ),
            *(
                (
                    use.deviation <= LEDGER_TOLERANCE,
                    f"{tenant}: ledger {use.ledger} and sacct {use.sacct} slice-seconds differ",
                )
                for tenant, use in self.slice_seconds_by_tenant.items()
            ),
        )
        return tuple(text for fulfilled, text in expectations if not fulfilled)

    def _charged(self, service: str) -> float:
        use = self.slice_seconds_by_tenant.get(service.partition("/")[0])
        return use.ledger if use is not None else 0.0


def build(recording: Recording) -> Report:
    """Judge a recording."""
    failures = [request for request in recording.requests if request.error]
    wakes = recording.wakes
    return Report(
        requests=len(recording.requests),
        wake_requests=len(wakes),
        failed=len(failures),
        p50_ms=percentile_ms(recording.requests, 50),
        p95_ms=percentile_ms(recording.requests, 95),
        replicas_max=max(replicas_over_time(recording.samples), default=0),
        replicas_end=_replicas_end(recording.samples),
        woke_from_zero=bool(wakes)
        and all(wake.replicas_before == 0 and not wake.request.error for wake in wakes),
        first_response_after_wake_s=max(
            (round(wake.request.latency_s, 3) for wake in wakes), default=None
        ),
        refused_over_quota=recording.refusal,
        ledger_imbalance=recording.ledger.imbalance,
        slice_seconds_by_tenant=slice_seconds(
            recording.ledger.millislice_s_by_tenant, recording.sacct_millislice_s_by_tenant
        ),
        services=_services(recording),
        errors=dict(Counter(request.error for request in failures)),
        duration_s=round(recording.duration_s, 1),
        facts=recording.facts,
    )


def percentile_ms(requests: Iterable[RequestRecord], percent: int) -> float | None:
    """Nearest-rank percentile of the answered requests' latency; None if none was answered."""
    latencies = sorted(request.latency_s for request in requests if not request.error)
    if not latencies:
        return None
    rank = -(-len(latencies) * percent // 100)
    return round(latencies[max(rank, 1) - 1] * 1000, 1)


def _replicas_end(samples: Sequence[Sample]) -> int | None:
    last = [group[-1] for group in by_service(samples).values()]
    return sum(sample.state.replicas.costing for sample in last) if last else None


def slice_seconds(ledger: Mapping[str, int], sacct: Mapping[str, int]) -> dict[str, SliceSeconds]:
    """Put both books side by side for every tenant in either.

    The books are given in millislice-seconds, the result is in slice-seconds.
    """
    return {
        tenant: SliceSeconds(ledger.get(tenant, 0) / 1000, sacct.get(tenant, 0) / 1000)
        for tenant in sorted(ledger.keys() | sacct.keys())
    }


def _services(recording: Recording) -> dict[str, ServiceReport]:
    return {
        service: _service(
            [request for request in recording.requests if request.service == service], samples
        )
        for service, samples in by_service(recording.samples).items()
    }


def _service(requests: Sequence[RequestRecord], samples: Sequence[Sample]) -> ServiceReport:
    return ServiceReport(
        requests=len(requests),
        failed=sum(bool(request.error) for request in requests),
        p50_ms=percentile_ms(requests, 50),
        p95_ms=percentile_ms(requests, 95),
        replicas_max=max(sample.state.replicas.ready for sample in samples),
        backlog_max=max(sample.state.backlog for sample in samples),
    )
