"""How many replicas a service wants: up at once, down only after the peak has passed."""

from dataclasses import dataclass

from launcher.decide.gateway import Load
from launcher.decide.scaling import Decision, Look, Scaling, Supply

_KEEP_ALIVE_S = 60.0


@dataclass(frozen=True)
class Peak:
    """At ``at_s`` the load alone wanted ``replicas``."""

    at_s: float
    replicas: int


@dataclass(frozen=True)
class Memory:
    """What the autoscaler remembers of a service; ``Memory()`` is one that was never seen."""

    peaks: tuple[Peak, ...] = ()


def initial(supply: Supply, at_s: float) -> Memory:
    """The memory of a launcher that has just started and knows nothing.

    What runs already counts as wanted now, so a restart never shrinks a service at once.
    """
    return Memory((Peak(at_s, supply.coming),))


def autoscale(scaling: Scaling, memory: Memory, look: Look) -> tuple[Memory, Decision]:
    """The new memory and the decision.

    Wanted is ``ceil(load / concurrency)``: in flight, queued and held requests together, since each
    needs a place in a replica. The largest value of the last ``keep_alive_s`` counts (peak-hold),
    so zero is reached only after a whole keep-alive without a request.
    """
    keep_s = _KEEP_ALIVE_S if scaling.keep_alive_s is None else scaling.keep_alive_s
    asked = -(-look.load.total // scaling.concurrency) if look.is_known else look.supply.coming
    peaks = _remember(memory.peaks, Peak(look.at_s, asked), look.at_s - keep_s)
    peak = peaks[0].replicas
    wanted = min(max(peak, scaling.min_replicas), scaling.max_replicas)
    return Memory(peaks), Decision(wanted, _reason(scaling, look.load, asked, peak, wanted))


def _remember(peaks: tuple[Peak, ...], newest: Peak, after_s: float) -> tuple[Peak, ...]:
    """Keep falling peaks only: the first is the largest of the window."""
    higher = (peak for peak in peaks if peak.at_s > after_s and peak.replicas > newest.replicas)
    return (*higher, newest)


def _reason(scaling: Scaling, load: Load, asked: int, peak: int, wanted: int) -> str:
    need = f"{load.in_flight} in flight + {load.waiting} waiting, {scaling.concurrency} per replica"
    if wanted < peak:
        return f"{need}: {peak}, bounded by max {wanted}"
    if wanted > peak:
        return f"{need}: {peak}, raised to min {wanted}"
    if peak > asked:
        return f"{need}: {asked}, peak before {peak}"
    return f"{need}: {wanted}"
