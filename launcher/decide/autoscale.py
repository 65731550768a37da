"""How many replicas a service wants: up at once, down only after the peak has passed."""

from dataclasses import dataclass

from cluster.service import ServiceSpec
from launcher.decide.gateway import Load


@dataclass(frozen=True)
class Peak:
    """At ``at_s`` the load alone wanted ``replicas``."""

    at_s: float
    replicas: int


@dataclass(frozen=True)
class Decision:
    """How many replicas are wanted, and why, in one line for people."""

    wanted: int
    reason: str


def first_peaks(supply: int, now_s: float) -> tuple[Peak, ...]:
    """The memory of a launcher that has just started.

    What runs already counts as wanted now, so a restart never shrinks a service before a whole
    keep-alive was seen.
    """
    return (Peak(now_s, supply),)


def autoscale(
    spec: ServiceSpec, peaks: tuple[Peak, ...], load: Load, most: int, now_s: float
) -> tuple[tuple[Peak, ...], Decision]:
    """The new memory and the decision.

    Wanted is ``ceil(load / concurrency)``: in flight, queued and held requests together, since each
    needs a place in a replica. The largest value of the last ``keep_alive_s`` counts (peak-hold),
    so zero is reached only after a whole keep-alive without a request. ``most`` bounds it besides
    ``max_replicas``: what the gateway can carry.
    """
    asked = -(-load.total // spec.concurrency)
    remembered = _remember(peaks, Peak(now_s, asked), now_s - spec.keep_alive_s)
    peak = remembered[0].replicas
    wanted = min(max(peak, spec.min_replicas), spec.max_replicas, most)
    return remembered, Decision(wanted, _reason(spec, load, asked, peak, wanted))


def _remember(peaks: tuple[Peak, ...], newest: Peak, after_s: float) -> tuple[Peak, ...]:
    """Keep falling peaks only: the first is the largest of the window."""
    higher = (peak for peak in peaks if peak.at_s > after_s and peak.replicas > newest.replicas)
    return (*higher, newest)


def _reason(spec: ServiceSpec, load: Load, asked: int, peak: int, wanted: int) -> str:
    need = f"{load.in_flight} in flight + {load.waiting} waiting, {spec.concurrency} per replica"
    if wanted < peak:
        return f"{need}: {peak}, bounded by max {wanted}"
    if wanted > peak:
        return f"{need}: {peak}, raised to min {wanted}"
    if peak > asked:
        return f"{need}: {asked}, peak of the last {spec.keep_alive_s:g} s {peak}"
    return f"{need}: {wanted}"
