"""How many replicas a service wants: enough for the load that may be there when a start ends.

The method, its sources and why each number is what it is: docs/autoscaling.md.
"""

from dataclasses import dataclass, field, replace
from math import ceil, floor
from operator import attrgetter

from launcher.decide.arrivals import Arrivals, learn_arrivals
from launcher.decide.delays import Delays, learn_starts
from launcher.decide.forecasts import Forecasts, at_once, expected, learn_forecasts
from launcher.decide.idle import Idle, is_worth_keeping, learn_pause
from launcher.decide.scaling import Decision, Look, Scaling, Supply
from launcher.decide.work import Work, learn_work

_HOLD_LOADS = 0.5
"""What is not needed any more is kept for that part of a load: less of it flaps."""
_SETTLE_S = 60.0
"""After a start of the launcher nothing shrinks for so long."""
_GAP_S = 10.0
"""A longer pause between two looks is as a start: nobody knows how busy the replicas were."""
_LEAST_HORIZON_S, _MOST_HORIZON_S = 3.0, 600.0
_RAREST_S = 36.0
"""Who gets fewer requests than one in so many seconds pays for one as if it got that many."""
_DEAREST_IDLE_S = 900.0
"""To a service without any request a late one is worth that many slice-seconds at most."""
_LATE_AFTER, _LATE_WITHIN = 0.2, 0.1
"""Where the peak of a while finds no places, that part of its requests is late: a peak is short.

Less of them until a start could help: that is the longer while.
"""
_MARGIN = 0.5
"""Of the time that a request may wait, what is planned with; the rest is for what is uneven."""
_USUAL_WAIT_S = 5.0
_TAIL = 3.0
"""The slowest requests take so many times the mean: what a latency objective leaves for waiting."""
_NEARLY = 0.001


@dataclass(frozen=True)
class Peak:
    """Until ``until_s`` at least ``replicas`` are wanted."""

    until_s: float
    replicas: int


@dataclass(frozen=True)
class Seen:
    """Counters at the last look."""

    at_s: float
    arrived: int
    answered: int
    in_flight: int


@dataclass(frozen=True)
class Memory:
    """What the autoscaler remembers of a service; ``Memory()`` is one that was never seen."""

    seen: Seen | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    forecasts: Forecasts = field(default_factory=Forecasts)
    work: Work = field(default_factory=Work)
    delays: Delays = field(default_factory=Delays)
    idle: Idle = field(default_factory=Idle)
    peaks: tuple[Peak, ...] = ()


def initial(supply: Supply, at_s: float) -> Memory:
    """The memory of a launcher that has just started and knows nothing.

    What runs already counts as wanted for a while, so a restart never shrinks a service at once.
    """
    return Memory(peaks=(Peak(at_s + _SETTLE_S, supply.coming),))


def autoscale(scaling: Scaling, memory: Memory, look: Look) -> tuple[Memory, Decision]:
    """The new memory and the decision.

    While the gateway can't be seen, what is there is wanted, and nothing is learnt.
    """
    if not look.is_known:
        wanted = _bounded(scaling, look.supply.coming)
        return memory, Decision(wanted, "the gateway can't be seen: as it is")
    memory = _learnt(memory, look)
    need = _need(scaling, memory, look)
    until_s = look.at_s + _hold_s(scaling, memory, look)
    peaks = _remember(memory.peaks, Peak(until_s, need.replicas), look.at_s)
    wanted = _bounded(scaling, peaks[0].replicas)
    reason = _reason(scaling, need, peaks[0].replicas, wanted, look)
    return replace(memory, peaks=peaks), Decision(
        wanted, reason, _ready_in_s(memory, look, scaling), _in_time(scaling, memory, look.supply)
    )


def _bounded(scaling: Scaling, replicas: int) -> int:
    return min(max(replicas, scaling.min_replicas), scaling.max_replicas)


def _learnt(memory: Memory, look: Look) -> Memory:
    load, delays = look.load, learn_starts(memory.delays, look.starts)
    seen = Seen(look.at_s, load.arrived, load.answered, load.in_flight)
    idle = learn_pause(memory.idle, load.total, look.at_s)
    before = memory.seen
    if before is None or look.at_s <= before.at_s:
        return replace(memory, seen=seen, delays=delays, idle=idle)
    elapsed_s = look.at_s - before.at_s
    if elapsed_s > _GAP_S:
        settled = Peak(look.at_s + _SETTLE_S, look.supply.coming)
        peaks = _remember(memory.peaks, settled, look.at_s)
        return replace(memory, seen=seen, delays=delays, idle=idle, peaks=peaks)
    arrivals = learn_arrivals(memory.arrivals, _more(before.arrived, load.arrived), elapsed_s)
    busy_s = elapsed_s * (before.in_flight + load.in_flight) / 2
    work = learn_work(memory.work, busy_s, _more(before.answered, load.answered))
    forecasts = _forecasts(memory.forecasts, arrivals, work, look, _horizon_s(delays))
    return Memory(seen, arrivals, forecasts, work, delays, idle, memory.peaks)


def _forecasts(
    known: Forecasts, arrivals: Arrivals, work: Work, look: Look, horizon_s: float
) -> Forecasts:
    load, made = look.load.total, None
    if arrivals.seen_s >= 2 * horizon_s:
        rates = arrivals.rates
        made = tuple(expected(load, rate, horizon_s, work.service_s) for rate in rates)
    return learn_forecasts(known, load, look.at_s, horizon_s, made)


def _more(before: int, now: int) -> int:
    """A counter that is lower than before began anew."""
    return now - before if now >= before else now


def _horizon_s(delays: Delays) -> float:
    return min(max(delays.start_s, _LEAST_HORIZON_S), _MOST_HORIZON_S)


@dataclass(frozen=True)
class Need:
    """What is needed now, and of what it follows.

    Attributes:
        expected: requests at once after ``horizon_s``.
        reckoned: how many of them are reckoned with, surprises included.
    """

    replicas: int
    expected: float
    reckoned: float
    horizon_s: float


def _need(scaling: Scaling, memory: Memory, look: Look) -> Need:
    horizon_s, service_s = _horizon_s(memory.delays), memory.work.service_s
    best = memory.forecasts.best
    errors, rate = memory.forecasts.errors[best], memory.arrivals.rates[best]
    forecast = expected(look.load.total, rate, horizon_s, service_s)
    worth, bursts = _price_s(scaling, memory.arrivals) / service_s, min(1.0, service_s / horizon_s)
    after = at_once(errors.after, bursts, forecast, _LATE_AFTER * worth)
    within = at_once(errors.within, bursts, forecast, _LATE_WITHIN * worth)
    patience = service_s / (service_s + _MARGIN * _wait_s(scaling, service_s))
    needed = max(
        after * patience,
        min(within * patience, look.supply.coming * scaling.concurrency),
        _places_for_backlog(forecast / service_s * horizon_s, horizon_s, scaling, service_s, look),
    )
    is_used = look.load.total or _is_kept(scaling, memory, look)
    replicas = max(1, ceil(needed / scaling.concurrency - _NEARLY)) if is_used else 0
    return Need(replicas, forecast, needed, horizon_s)


def _is_kept(scaling: Scaling, memory: Memory, look: Look) -> bool:
    """Whether what runs is kept though there is no request; nothing starts without one."""
    if not memory.peaks or not memory.peaks[0].replicas:
        return False
    if scaling.keep_alive_s is not None:
        return memory.idle.age_s(look.at_s) < scaling.keep_alive_s
    costs_s = memory.delays.load_s + min(_price_s(scaling, memory.arrivals), _DEAREST_IDLE_S)
    return is_worth_keeping(memory.idle, look.at_s, costs_s)


def _price_s(scaling: Scaling, arrivals: Arrivals) -> float:
    """Slice-seconds that it is worth to have one request less late.

    With one replica more for that price whenever more than ``1 - aim`` of the usual requests would
    be late without it, ``aim`` are in time.
    """
    return 1 / ((1 - scaling.aim) * max(arrivals.usual_rate, 1 / _RAREST_S))


def _places_for_backlog(
    arrivals: float, horizon_s: float, scaling: Scaling, service_s: float, look: Look
) -> float:
    """Places that must be there once a start is over, for what has piled up and what goes on.

    Each place begins one request at once and one more each ``service_s``, and none may begin later
    than its objective. Until then ready replicas serve, and those on their way for half of it.
    """
    supply = look.supply
    started = (supply.pending + supply.starting) / 2
    served = (supply.ready + started) * scaling.concurrency * horizon_s / service_s
    left = max(0.0, look.load.total + arrivals - served)
    span_s = horizon_s + _wait_s(scaling, service_s) + service_s
    return (left + arrivals) * service_s / span_s


def _wait_s(scaling: Scaling, service_s: float) -> float:
    """How long a request may wait for its place."""
    if scaling.max_queue_s is not None:
        return scaling.max_queue_s
    if scaling.p95_s is not None:
        return max(0.0, scaling.p95_s - _TAIL * service_s)
    return _USUAL_WAIT_S


def _hold_s(scaling: Scaling, memory: Memory, look: Look) -> float:
    """How long this need counts; what is borrowed goes back sooner: others may need it."""
    if not look.load.total:
        return 0.0
    if scaling.keep_alive_s is not None:
        return scaling.keep_alive_s
    hold_s = _HOLD_LOADS * memory.delays.load_s
    return hold_s / 2 if look.supply.borrowed else hold_s


def _remember(peaks: tuple[Peak, ...], newest: Peak, at_s: float) -> tuple[Peak, ...]:
    """What still counts, the largest first: none is both smaller and sooner over than another."""
    left = [
        peak
        for peak in peaks
        if peak.until_s > at_s
        and (peak.replicas > newest.replicas or peak.until_s > newest.until_s)
    ]
    if all(peak.replicas < newest.replicas or peak.until_s < newest.until_s for peak in left):
        left.append(newest)
    return tuple(sorted(left, key=_size, reverse=True))


_size = attrgetter("replicas")


def _ready_in_s(memory: Memory, look: Look, scaling: Scaling) -> float | None:
    """When the last of those who wait now gets its place, as things stand."""
    supply, load = look.supply, look.load
    if supply.ready:
        return load.waiting * memory.work.service_s / (supply.ready * scaling.concurrency)
    if supply.starting:
        return memory.delays.load_s
    return None if look.room == 0 and not supply.pending else memory.delays.start_s


def _in_time(scaling: Scaling, memory: Memory, supply: Supply) -> int | None:
    """How many may wait; None where nothing is promised, or nothing is ready: then all are held."""
    if not supply.ready or (scaling.max_queue_s is None and scaling.p95_s is None):
        return None
    service_s = memory.work.service_s
    return floor(supply.ready * scaling.concurrency * _wait_s(scaling, service_s) / service_s)


def _reason(scaling: Scaling, need: Need, peak: int, wanted: int, look: Look) -> str:
    load = look.load
    said = (
        f"{load.in_flight} in flight + {load.waiting} waiting, {need.expected:.3g} at once "
        f"expected in {need.horizon_s:.0f} s, reckoned with {need.reckoned:.3g}, "
        f"{scaling.concurrency} per replica: {need.replicas}"
    )
    if peak > need.replicas:
        said += f", held at {peak}"
    if wanted != peak:
        said += f", bounded by {'max' if wanted < peak else 'min'} {wanted}"
    lacking = wanted - look.supply.coming
    if look.room is not None and lacking > look.room:
        said += f", quota has room for {look.room} of {lacking} more"
    return said
