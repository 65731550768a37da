"""Decides how many replicas a service wants: enough for the load expected when a start would end.

The method, its sources and the reason for each number: docs/explanation/autoscaling.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, floor, sqrt
from operator import attrgetter

from slicewise.cluster.language.units import counted
from slicewise.launcher.rules.autoscale.arrivals import Arrivals, at_rest, learn_arrivals
from slicewise.launcher.rules.autoscale.attainment import (
    Attainment,
    Passing,
    learn_attainment,
)
from slicewise.launcher.rules.autoscale.capacity import (
    FIRST,
    CapacityBounds,
    Level,
    ReplicaCapacity,
    Timed,
    alone_s,
    learn_capacity,
)
from slicewise.launcher.rules.autoscale.crests import (
    LEVELS,
    Crests,
    Stakes,
    learn_crests,
    reached_since,
    worth_having,
)
from slicewise.launcher.rules.autoscale.crowding import Crowding, learn_crowding, room_of
from slicewise.launcher.rules.autoscale.forecasts import (
    AFTER,
    QUIET,
    Forecasts,
    SeenLoad,
    at_once,
    expected,
    learn_forecasts,
)
from slicewise.launcher.rules.autoscale.idle import Pauses, is_worth_keeping, learn_pause
from slicewise.launcher.rules.autoscale.keep_warm import (
    KeptWarm,
    WarmReplicas,
    spared,
    warm_replicas,
)
from slicewise.launcher.rules.autoscale.service_time import WorkDone, learn_work
from slicewise.launcher.rules.autoscale.start_delay import Delays, learn_starts
from slicewise.launcher.rules.autoscale.tokens import TokensDone, learn_tokens, without_firsts
from slicewise.launcher.rules.autoscale.types import Scaling, ScalingDecision, ServiceLook, Supply
from slicewise.launcher.rules.engines.load import ServersLoad
from slicewise.launcher.rules.gateway.types import Load

_HOLD_LOADS = 0.5
"""Share of a model's loading time for which a need that has passed still counts; less makes the
number of replicas flap."""
_SETTLE_S = 60.0
"""Seconds after the launcher's start during which nothing shrinks, and the most after a gap."""
_GAP_S = 10.0
"""Seconds between two looks from which on nothing is learnt of the gap: how busy the replicas were
meanwhile is unknown. Nothing shrinks for as long afterwards."""
_LEAST_HORIZON_S, _MOST_HORIZON_S = 3.0, 600.0
_RAREST_S = 36.0
"""Lowest request rate that is priced as it is: one request in this many seconds. A service with
fewer requests pays for a late one as if it had that rate."""
_DEAREST_IDLE_S = 900.0
"""Highest price of a late request, in slice-seconds, for a service without any request, while the
aim is attained."""
_DEAREST_CREST_S = 3600.0
"""Highest price of a burst without a replica that it needs, in slice-seconds, likewise."""
_LATE_AFTER, _LATE_WITHIN = 0.2, 0.1
"""Share of a period's requests that is late if there are no places for its peak: a peak is short.
After: when a start could help. Within: until then, a longer period, so its peak makes a smaller
share late."""
_MARGIN = 0.5
"""Share of a request's permitted wait to plan with; the rest evens out irregular arrivals."""
_USUAL_WAIT_S = 5.0
_TAIL = 3.0
"""Multiple of the mean service time that the slowest requests take; a latency objective leaves the
rest for waiting."""
_BATCHED_TAIL = 2.0
"""The same where the concurrency is learnt: a request waits for the batch before its own, and the
mean knows that already."""
SERVICE_SHARE = 1 / 3
"""Share of a latency objective that requests may take on average in a full replica; the rest is for
the slowest ones, and for waiting."""
_FIRST_SHARE = _BATCHED_TAIL * SERVICE_SHARE
"""Share of an objective of first tokens that 95 % of the requests may take in a full replica."""
_TOKEN_SHARE = 0.9
"""Share of an objective of tokens to plan with: the mean is kept below it."""
_FULL = 0.75
"""Share of their places that full replicas use at least, at any moment."""
_NEARLY = 0.001
_TIMED = 25
"""Answers that say how long requests take."""
_MISSED_SINCE_S = 3600.0
"""Of how many seconds the bursts are that show how many replicas would do."""


@dataclass(frozen=True)
class Peak:
    """A need that still counts: until ``until_s`` at least ``replicas`` are wanted."""

    until_s: float
    replicas: int


@dataclass(frozen=True)
class LastCounters:
    """The gateway's counters at the last look; ``counter`` is the backend that has counted."""

    at_s: float
    arrived: int
    answered: int
    in_flight: int
    given_up: int = 0
    counter: str = ""
    queued: int = 0


@dataclass(frozen=True)
class Memory:
    """What the autoscaler remembers of a service; ``Memory()`` is a service that was never seen.

    Attributes:
        peaks: needs that still count, the largest first.
        unqueued: how many requests would be in parallel now if none had had to wait.
        is_given_up: whether its replicas were started only for requests that have left before a
            replica had them.
        rests: whether it had neither a request nor a replica at the last look.
        woke_s: when a request woke it from rest last, in Unix seconds; 0: not yet.
        capacity: how many requests a replica works on, if that is learnt.
        tokens: how long tokens take, if the service has an objective of that.
        crowding: how many requests its servers can work on, if it has one of first tokens.
        crests: how often it needs how many, lowest level first.
        attained: which share of its requests began in time.
        warm: replicas that were kept at the last look only for requests that may come.
    """

    seen: LastCounters | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    forecasts: Forecasts = field(default_factory=Forecasts)
    work: WorkDone = field(default_factory=WorkDone)
    delays: Delays = field(default_factory=Delays)
    idle: Pauses = field(default_factory=Pauses)
    peaks: tuple[Peak, ...] = ()
    unqueued: float = 0.0
    is_given_up: bool = False
    rests: bool = False
    woke_s: float = 0.0
    capacity: ReplicaCapacity = field(default_factory=ReplicaCapacity)
    tokens: TokensDone = field(default_factory=TokensDone)
    crowding: Crowding = field(default_factory=Crowding)
    crests: Crests = ()
    attained: Attainment = field(default_factory=Attainment)
    warm: WarmReplicas = field(default_factory=WarmReplicas)

    @property
    def service_s(self) -> float:
        """Seconds that a request takes; where the concurrency is learnt, in a full replica."""
        return self.capacity.full_s or self.work.service_s

    def in_full(self, load: Load) -> Load:
        """Return the load as it would be if each request took as long as in a full replica.

        A replica with room for more is quicker, so it has fewer requests than it could have. Of a
        service that gets a request now and then this is not asked: none of its replicas gets full.
        """
        if self.capacity.full_s is None:
            return load
        slower = max(1.0, self.capacity.full_s / self.work.service_s)
        return replace(load, in_flight=round(load.in_flight * slower))


def initial(supply: Supply, at_s: float) -> Memory:
    """Return the memory of a launcher that has just started and knows nothing.

    What already runs counts as wanted for a while, so a restart never shrinks a service
    immediately.
    """
    return Memory(peaks=(Peak(at_s + _SETTLE_S, supply.coming),))


def autoscale(
    scaling: Scaling, memory: Memory, look: ServiceLook
) -> tuple[Memory, ScalingDecision]:
    """Return the new memory and the decision.

    While the gateway can't be seen, the replicas that serve or will are wanted (within the
    service's bounds), and nothing is learnt.
    """
    if not look.is_known:
        wanted = _bounded(scaling, look.supply.coming)
        return memory, ScalingDecision(
            wanted, "the gateway can't be seen: replicas stay as they are"
        )
    before, memory = memory, _learnt(memory, look, scaling)
    scaling = _as_planned(scaling, memory)
    need = _need(scaling, memory, look)
    until_s = look.at_s + _hold_s(scaling, memory, look)
    # A replica that has answered since the last look is not idle, though it has nothing to do now.
    kept = max(need.replicas, int(memory.idle.since_s is None and look.supply.ready > 0))
    peaks = _remember(memory.peaks, Peak(until_s, kept), look.at_s)
    wanted = _bounded(scaling, peaks[0].replicas)
    memory = replace(memory, peaks=peaks, warm=_warm(scaling, memory, look, wanted))
    return memory, ScalingDecision(
        wanted,
        _reason(scaling, memory, look, need, wanted),
        _ready_in_s(memory, look, scaling),
        _in_time(scaling, memory, look.supply),
        _kept_warm(scaling, before, memory, look.load),
    )


def _warm(scaling: Scaling, memory: Memory, look: ServiceLook, wanted: int) -> WarmReplicas:
    staying, is_idle = min(look.supply.ready, wanted), memory.idle.since_s is not None
    return warm_replicas(staying, _places(scaling, memory), look.load, is_idle=is_idle)


def _kept_warm(scaling: Scaling, before: Memory, memory: Memory, load: Load) -> KeptWarm:
    kept, seen, now = float(memory.warm.kept), before.seen, memory.seen
    elapsed_s = now.at_s - seen.at_s if seen is not None and now is not None else 0.0
    if seen is None or not 0 < elapsed_s <= _GAP_S:
        return KeptWarm(kept)
    is_counted = seen.counter in {"", load.counter}
    answered = _more(seen.answered, load.answered)
    begun = spared(before.warm, _places(scaling, memory), answered, load) if is_counted else 0
    return KeptWarm(kept, before.warm.kept * elapsed_s, begun)


def _places(scaling: Scaling, memory: Memory) -> int:
    """Return how many requests a replica gets at the same time now."""
    limit = memory.capacity.limit
    return min(limit, scaling.concurrency) if scaling.learns else scaling.concurrency


def _as_planned(scaling: Scaling, memory: Memory) -> Scaling:
    """Put in what replicas are planned with, if that is learnt.

    Where they would do for more requests than were tried, others don't show that.
    """
    planned = min(memory.capacity.planned, scaling.concurrency)
    return replace(scaling, concurrency=planned) if scaling.learns else scaling


def _bounded(scaling: Scaling, replicas: int) -> int:
    return min(max(replicas, scaling.min_replicas), scaling.max_replicas)


def _learnt(memory: Memory, look: ServiceLook, scaling: Scaling) -> Memory:
    load, delays = look.load, learn_starts(memory.delays, look.starts)
    delays = replace(delays, wakes_node=look.wakes_node)
    counts = (load.arrived, load.answered, load.in_flight, load.given_up)
    seen = LastCounters(look.at_s, *counts, load.counter, load.queued)
    idle = learn_pause(memory.idle, load.total, look.at_s)
    before, rests = memory.seen, not (load.total or look.supply.coming)
    if before is None or look.at_s <= before.at_s:
        return replace(memory, seen=seen, delays=delays, idle=idle, rests=rests)
    elapsed_s = look.at_s - before.at_s
    if elapsed_s > _GAP_S:
        # What was missed may come again within as long a time.
        settled = Peak(look.at_s + min(elapsed_s, _SETTLE_S), look.supply.coming)
        peaks = _remember(memory.peaks, settled, look.at_s)
        attained = replace(memory.attained, waiting=())
        memory = replace(memory, attained=attained, peaks=peaks)
        return replace(memory, seen=seen, delays=delays, idle=idle, rests=rests)
    if before.counter not in {"", load.counter}:
        # The service has moved to another backend, which has counted other services' requests.
        before = seen
    given_up = _given_up(before, load)
    came = max(0, _more(before.arrived, load.arrived) - given_up)
    arrivals = learn_arrivals(memory.arrivals, came, elapsed_s)
    if rests:
        arrivals = at_rest(arrivals)
    wakes = memory.rests and bool(load.total)
    busy_s = elapsed_s * (before.in_flight + load.in_flight) / 2
    answered = _more(before.answered, load.answered)
    if came and answered:
        idle = learn_pause(memory.idle, answered, look.at_s)
    work = learn_work(memory.work, busy_s, answered)
    made = learn_tokens(TokensDone(memory.tokens.seen), look.tokens, answered)
    served = (busy_s, elapsed_s * look.serving, answered, look.serving)
    done = Level(*served, Timed(made.token_s, made.tokens))
    places = min(memory.capacity.limit, scaling.concurrency) * look.serving
    fills = before.queued > 0 < load.queued and _fills(places, before.in_flight, load.in_flight)
    memory = replace(memory, work=work, tokens=_tokens(memory.tokens, look, answered, scaling))
    memory = _crowded(memory, look, elapsed_s, answered, scaling)
    capacity = ReplicaCapacity()
    if scaling.learns:
        capacity = _capacity(memory, look, done, scaling, is_full=fills)
    memory = replace(memory, capacity=capacity)
    unqueued = memory.unqueued * exp(-elapsed_s / memory.service_s) + came
    crests = _crests(memory, unqueued, look, elapsed_s, scaling)
    attained = _attained(memory, look, scaling, came, elapsed_s)
    seen_load = _seen_load(memory, load, ceil(unqueued), learns=scaling.learns)
    forecasts_now = _forecasts_now(memory, arrivals, load, horizon_of(delays))
    forecasts = learn_forecasts(
        memory.forecasts, seen_load, look.at_s, horizon_of(delays), forecasts_now, wakes=wakes
    )
    if answered or load.in_flight:
        memory = replace(memory, is_given_up=False)
    elif given_up > 0 and not look.supply.ready:
        peaks = _cut(memory.peaks, look.at_s + _HOLD_LOADS * delays.load_s)
        memory = replace(memory, peaks=peaks, is_given_up=not load.total)
    woke_s = look.at_s if wakes else memory.woke_s
    return replace(
        memory,
        seen=seen,
        arrivals=arrivals,
        forecasts=forecasts,
        work=work,
        delays=delays,
        idle=idle,
        unqueued=unqueued,
        rests=rests,
        woke_s=woke_s,
        crests=crests,
        attained=attained,
    )


def _crests(
    memory: Memory, unqueued: float, look: ServiceLook, elapsed_s: float, scaling: Scaling
) -> Crests:
    """Learn the bursts; where the concurrency is learnt, a request's time changes with it."""
    if scaling.learns:
        return ()
    horizon_s = horizon_of(memory.delays)
    return learn_crests(memory.crests, unqueued, look.at_s, elapsed_s, horizon_s)


def _attained(
    memory: Memory, look: ServiceLook, scaling: Scaling, came: int, elapsed_s: float
) -> Attainment:
    """Learn whether requests began in time, where an objective is stated."""
    if not _is_stated(scaling):
        return Attainment()
    scaling = _as_planned(scaling, memory)
    seen = Passing(
        look.at_s,
        elapsed_s,
        came,
        look.load.waiting,
        _wait_s(scaling, memory),
        _in_time(scaling, memory, look.supply),
        is_full=_is_full(scaling, look),
    )
    return learn_attainment(memory.attained, seen, scaling.aim)


def _is_full(scaling: Scaling, look: ServiceLook) -> bool:
    """Whether all replicas that may run serve."""
    supply = look.supply
    return supply.ready >= scaling.max_replicas or (
        look.room == 0 and supply.ready == supply.coming
    )


def _is_stated(scaling: Scaling) -> bool:
    return any(
        objective_s is not None
        for objective_s in (scaling.max_queue_s, scaling.p95_s, scaling.ttft_s)
    )


def _tokens(known: TokensDone, look: ServiceLook, answered: int, scaling: Scaling) -> TokensDone:
    done = learn_tokens(known, look.tokens, answered)
    is_stated = scaling.ttft_s is not None or scaling.tpot_s is not None
    return replace(done, answers=done.answers + answered if is_stated else 0.0)


def _crowded(
    memory: Memory, look: ServiceLook, elapsed_s: float, answered: int, scaling: Scaling
) -> Memory:
    """Learn whether requests wait in servers, where that counts: before the first token."""
    if scaling.ttft_s is None or not scaling.learns or look.servers is None:
        return memory
    found = learn_crowding(memory.crowding, look.servers, elapsed_s, answered)
    if not found.is_new:
        return replace(memory, crowding=found)
    # How long first tokens took while requests waited says nothing of fewer requests.
    return replace(memory, crowding=found, tokens=without_firsts(memory.tokens))


def _fills(places: int, before: int, now: int) -> bool:
    """Whether replicas had nearly as many requests as they may get, at both looks.

    Requests of a sequence wait for the replica that has its state, though others have room.
    """
    return min(before, now) >= _FULL * places


def _capacity(
    memory: Memory, look: ServiceLook, done: Level, scaling: Scaling, *, is_full: bool
) -> ReplicaCapacity:
    if not done.replica_s:
        return memory.capacity
    bounds = _bounds_of(scaling, memory, look.servers)
    return learn_capacity(memory.capacity, done, bounds, is_full=is_full)


def _seen_load(memory: Memory, load: Load, unqueued: int, *, learns: bool) -> SeenLoad:
    """Return the load to learn from: what waits since there were too few replicas is no surprise.

    Neither is what waits until more are tried at a time.
    """
    peak = memory.in_full(load).total
    if not learns:
        peak = min(peak, max(load.in_flight, unqueued))
    elif not memory.capacity.is_settled:
        peak = min(peak, unqueued)
    return SeenLoad(peak, min(load.total, unqueued))


def _bounds_of(scaling: Scaling, memory: Memory, servers: ServersLoad | None) -> CapacityBounds:
    """Return what a request and its tokens may take in a full replica, by all objectives.

    While it is not known how long tokens take, no more requests are tried than before; if replicas
    never tell it, the other objectives count.
    """
    tokens = memory.tokens
    pairs = ((scaling.ttft_s, tokens.to_first_s), (scaling.tpot_s, tokens.per_token_s))
    most = scaling.concurrency
    if scaling.ttft_s is not None and memory.crowding.most is not None:
        most = min(most, memory.crowding.most)
    room = None if scaling.ttft_s is None or servers is None else room_of(servers)
    if room is not None:
        most = min(most, max(memory.capacity.limit, room))
    if any(asked_s and found_s is None for asked_s, found_s in pairs) and not tokens.is_overdue:
        most = min(most, max(FIRST, memory.capacity.limit))
    return _with_first_tokens(stated_bounds(scaling, most), scaling, memory)


def stated_bounds(
    scaling: Scaling, most: int, first_steps: float | None = None, steps: float | None = None
) -> CapacityBounds:
    """Return what objectives allow; ``first_steps``: times as long as a token its slowest first
    tokens take, ``steps``: a request.
    """
    first_s = None if scaling.ttft_s is None else scaling.ttft_s * _FIRST_SHARE
    return CapacityBounds(
        most,
        None if scaling.p95_s is None else scaling.p95_s * SERVICE_SHARE,
        _USUAL_WAIT_S if scaling.max_queue_s is None else scaling.max_queue_s,
        None if scaling.tpot_s is None else scaling.tpot_s * _TOKEN_SHARE,
        None if first_s is None or first_steps is None else first_s / first_steps,
        steps,
    )


def _with_first_tokens(bounds: CapacityBounds, scaling: Scaling, memory: Memory) -> CapacityBounds:
    """Add how long a request, or its tokens, may take so that the slowest first ones are in time.

    A first token takes the steps of its own prompt and of those that it waits for. With more
    requests a step takes longer, for each token alike, and until a server is nearly full first
    tokens take about as many steps. Where servers do not tell their queue a request's time says
    more: it has the wait for the server in it.
    """
    tokens, late_s, took_s = memory.tokens, late_first_s(memory), memory.work.mean_s
    each_s = tokens.per_token_s
    if not memory.crowding.is_told or each_s is None:
        if scaling.ttft_s is None or late_s is None:
            return bounds
        within_s = took_s * scaling.ttft_s * _FIRST_SHARE / late_s
        return replace(bounds, service_s=min(bounds.service_s or within_s, within_s))
    first_steps = None if late_s is None else late_s / each_s
    return stated_bounds(scaling, bounds.most, first_steps, took_s / each_s)


def late_first_s(memory: Memory) -> float | None:
    """Return the seconds within which 95 % have their first token in a replica.

    Where replicas tell the mean only, a multiple of that; also where servers do not tell their
    queue, without which a number of requests that follows the slowest ones never settles.
    """
    tokens = memory.tokens
    if memory.crowding.is_told and tokens.first_p95_s is not None:
        return tokens.first_p95_s
    return None if tokens.to_first_s is None else _BATCHED_TAIL * tokens.to_first_s


def _untold(scaling: Scaling, tokens: TokensDone) -> tuple[str, ...]:
    """Return the objectives that do not count, since replicas never tell the times for them."""
    pairs = (
        ("ttft_ms", scaling.ttft_s, tokens.to_first_s),
        ("tpot_ms", scaling.tpot_s, tokens.per_token_s),
    )
    is_asked = scaling.learns and tokens.is_overdue
    return tuple(
        name for name, asked_s, found_s in pairs if is_asked and asked_s and found_s is None
    )


def _given_up(before: LastCounters, load: Load) -> int:
    """Return how many requests have left since ``before`` without having had a replica.

    It is below 0 where the last look counted one too early: HAProxy goes on while it counts.
    """
    return load.given_up - (before.given_up if load.arrived >= before.arrived else 0)


def _cut(peaks: tuple[Peak, ...], until_s: float) -> tuple[Peak, ...]:
    """Return the peaks, none of which counts beyond ``until_s``.

    Their requests have left, so nothing is kept for them. A start goes on meanwhile, since clients
    whose patience is shorter than it come again.
    """
    return tuple(replace(peak, until_s=min(peak.until_s, until_s)) for peak in peaks)


def _forecasts_now(
    memory: Memory, arrivals: Arrivals, load: Load, horizon_s: float
) -> tuple[float, ...] | None:
    """Return the forecast of each average; None while too little was seen."""
    if arrivals.seen_s < seen_enough_s(horizon_s):
        return None
    return tuple(_forecast(memory, load, rate, horizon_s)[1] for rate in arrivals.rates)


def _forecast(memory: Memory, load: Load, rate: float, horizon_s: float) -> tuple[Load, float]:
    """Return the load to reckon with, and how many requests there will be after ``horizon_s``.

    Where less than one is expected the load counts as it is: one request in an idle replica is not
    several in a full one.
    """
    as_it_is = expected(load.total, rate, horizon_s, memory.service_s)
    if as_it_is < QUIET:
        return load, as_it_is
    in_full = memory.in_full(load)
    return in_full, expected(in_full.total, rate, horizon_s, memory.service_s)


def seen_enough_s(horizon_s: float) -> float:
    """Return the seconds for which a service must have been seen before anything is forecast."""
    return 2 * horizon_s


def _more(before: int, now: int) -> int:
    """Return what was counted since ``before``; a counter that is lower now started again at 0."""
    return now - before if now >= before else now


def horizon_of(delays: Delays) -> float:
    """Return the seconds after which a start that is ordered now would have ended."""
    return min(max(delays.start_s, _LEAST_HORIZON_S), _MOST_HORIZON_S)


@dataclass(frozen=True)
class ReplicaNeed:
    """What is needed now, and what it follows from.

    Attributes:
        expected: requests forecast to be there at the same time after ``horizon_s``.
        reckoned: places to provide: the forecast with surprises, less what waiting may even out, or
            what the backlog needs if that is more.
        horizon_s: seconds that a start takes.
        in_full_s: seconds that a request takes in a full replica, if that is reckoned with though
            requests take less now; None if not.
        untold: objectives that do not count, since replicas never tell the times for them.
        given: requests that a replica gets at the same time, if that is learnt and fewer than are
            planned with; None if not.
    """

    replicas: int
    expected: float
    reckoned: float
    horizon_s: float
    in_full_s: float | None = None
    untold: tuple[str, ...] = ()
    given: int | None = None


def _need(scaling: Scaling, memory: Memory, look: ServiceLook) -> ReplicaNeed:
    horizon_s, service_s = horizon_of(memory.delays), memory.service_s
    best = memory.forecasts.best
    errors, rate = memory.forecasts.errors[best], memory.arrivals.rates[best]
    load, forecast = _forecast(memory, look.load, rate, horizon_s)
    worth, bursts = _price_s(scaling, memory) / service_s, min(1.0, service_s / horizon_s)
    surprises = errors.of(forecast, wakes=look.at_s - memory.woke_s < AFTER * horizon_s)
    after = at_once(surprises.after, bursts, forecast, _LATE_AFTER * worth)
    within = at_once(surprises.within, bursts, forecast, _LATE_WITHIN * worth)
    patience = _patience(scaling, memory)
    needed = max(
        after * patience,
        min(within * patience, look.supply.coming * scaling.concurrency),
        _places_for_backlog(
            forecast / service_s * horizon_s, horizon_s, scaling, memory, replace(look, load=load)
        ),
    )
    is_used = look.load.total or _is_kept(scaling, memory, look)
    replicas = max(1, ceil(needed / scaling.concurrency - _NEARLY)) if is_used else 0
    replicas = max(replicas, _for_bursts(scaling, memory, look, patience))
    if not look.load.total:
        # Without a request replicas are kept, and none is started.
        replicas = min(replicas, look.supply.coming)
    in_full_s = service_s if load.total != look.load.total else None
    untold = _untold(scaling, memory.tokens)
    limit = memory.capacity.limit
    given = limit if scaling.learns and limit < scaling.concurrency else None
    return ReplicaNeed(replicas, forecast, needed, horizon_s, in_full_s, untold, given)


def _patience(scaling: Scaling, memory: Memory) -> float:
    """Return the share of the places of a short peak that do, since requests may wait."""
    service_s = memory.service_s
    return service_s / (service_s + _MARGIN * _wait_s(scaling, memory))


def _for_bursts(scaling: Scaling, memory: Memory, look: ServiceLook, patience: float) -> int:
    """Return how many replicas are worth being there for the next burst.

    What is there is kept for it. More are started while others serve: where a burst may be larger
    than all before, but not for a request after a rest, of which nobody knows yet what follows.
    """
    if scaling.keep_alive_s is not None or scaling.learns or memory.is_given_up:
        return 0
    prices = _price_s(scaling, memory), _DEAREST_IDLE_S, _DEAREST_CREST_S
    dearer = _dearer(scaling, memory)

    def worth(start_s: float | None) -> int:
        stakes = Stakes(*prices, dearer, start_s)
        args = memory.crests, look.at_s, memory.service_s, scaling.concurrency
        return ceil(worth_having(*args, stakes) * patience / scaling.concurrency - _NEARLY)

    kept = min(worth(_load_s(scaling, memory)), look.supply.coming)
    return max(kept, worth(None)) if look.load.total and look.supply.ready else kept


def _is_kept(scaling: Scaling, memory: Memory, look: ServiceLook) -> bool:
    """Whether running replicas are kept though there is no request; without one nothing starts."""
    if memory.is_given_up or not memory.peaks or not memory.peaks[0].replicas:
        return False
    if scaling.keep_alive_s is not None:
        return memory.idle.age_s(look.at_s) < scaling.keep_alive_s
    costs_s = _load_s(scaling, memory) + _idle_price_s(scaling, memory)
    return is_worth_keeping(memory.idle, look.at_s, costs_s)


def _price_s(scaling: Scaling, memory: Memory) -> float:
    """Return the price of one late request, in slice-seconds.

    If another replica is started at that price whenever without it more than ``1 - aim`` of the
    usual requests would be late, the share ``aim`` is in time. What was attained changes it unless
    the concurrency is learnt: that loop already keeps the objectives.
    """
    rate = max(memory.arrivals.usual_rate, 1 / _RAREST_S)
    return _factor(scaling, memory) / ((1 - scaling.aim) * rate)


def _factor(scaling: Scaling, memory: Memory) -> float:
    return 1.0 if scaling.learns else memory.attained.factor


def _dearer(scaling: Scaling, memory: Memory) -> float:
    """Return by what the highest prices are multiplied: as the price is while the aim is missed."""
    return max(1.0, _factor(scaling, memory))


def _idle_price_s(scaling: Scaling, memory: Memory) -> float:
    """Return the price of one late request that has no replica to come to, in slice-seconds."""
    return min(_price_s(scaling, memory), _DEAREST_IDLE_S * _dearer(scaling, memory))


def _places_for_backlog(
    arrivals: float, horizon_s: float, scaling: Scaling, memory: Memory, look: ServiceLook
) -> float:
    """Return the places needed once a start is over, for the backlog and for what keeps coming.

    A place serves one request at a time: it begins one immediately and one more every
    ``service_s``, and no request may begin later than its objective allows. Until the start is over
    ready replicas serve, and pending or starting ones for half of that time.
    """
    supply, service_s = look.supply, memory.service_s
    started = (supply.pending + supply.starting) / 2
    served = (supply.ready + started) * scaling.concurrency * horizon_s / service_s
    left = max(0.0, look.load.total + arrivals - served)
    span_s = horizon_s + _wait_s(scaling, memory) + service_s
    return (left + arrivals) * service_s / span_s


def _wait_s(scaling: Scaling, memory: Memory) -> float:
    """Return the seconds that a request may wait for its place."""
    service_s = memory.service_s
    if scaling.max_queue_s is not None:
        return scaling.max_queue_s
    if scaling.p95_s is not None:
        tail = _BATCHED_TAIL if scaling.learns else _TAIL
        return max(0.0, scaling.p95_s - tail * service_s)
    if scaling.ttft_s is not None:
        return max(0.0, scaling.ttft_s - (late_first_s(memory) or 0.0))
    return _USUAL_WAIT_S


def _hold_s(scaling: Scaling, memory: Memory, look: ServiceLook) -> float:
    """Return the seconds for which this need counts.

    Borrowed replicas are given back sooner, since others may need the slices.
    """
    if memory.idle.since_s is not None:
        return 0.0
    if scaling.keep_alive_s is not None:
        return scaling.keep_alive_s
    hold_s = _HOLD_LOADS * _load_s(scaling, memory)
    return hold_s / 2 if look.supply.borrowed else hold_s


def _load_s(scaling: Scaling, memory: Memory) -> float:
    """Return the seconds of loads that a replica which is given up costs if it is needed again."""
    return memory.delays.load_s + scaling.refill_s


def _remember(peaks: tuple[Peak, ...], newest: Peak, at_s: float) -> tuple[Peak, ...]:
    """Return the peaks that still count, the largest first.

    A peak that is both no larger and over no later than another is dropped.
    """
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


def _ready_in_s(memory: Memory, look: ServiceLook, scaling: Scaling) -> float | None:
    """Return the seconds until the last waiting request gets its place, as things stand.

    None if nothing is on its way and quota has no room for a start.
    """
    supply, load = look.supply, look.load
    if supply.ready:
        return load.waiting * memory.service_s / (supply.ready * scaling.concurrency)
    if supply.starting:
        boots = supply.booting == supply.starting
        return (memory.delays.boot_s if boots else 0.0) + memory.delays.load_s
    return None if look.room == 0 and not supply.pending else memory.delays.start_s


def _in_time(scaling: Scaling, memory: Memory, supply: Supply) -> int | None:
    """Return how many requests may wait so that the last one still begins in time.

    None if no objective is stated, or if no replica is ready: then all requests are held.
    """
    if not supply.ready or not _is_stated(scaling):
        return None
    service_s = memory.service_s
    return floor(supply.ready * scaling.concurrency * _wait_s(scaling, memory) / service_s)


def _reason(
    scaling: Scaling,
    memory: Memory,
    look: ServiceLook,
    need: ReplicaNeed,
    wanted: int,
) -> str:
    peak = memory.peaks[0].replicas
    said = [_load_words(look.load), *_need_words(scaling, need, look)]
    if peak > need.replicas:
        said.append(f"{counted(peak, 'replica')} kept for now, as needed moments ago")
    if wanted != peak:
        said.append(
            f"at most {wanted} may run" if wanted < peak else f"at least {wanted} shall run"
        )
    missed = (_missed_words(scaling, memory, look), _prompts_words(scaling, memory))
    said += filter(None, (*missed, _alone_words(scaling, memory)))
    lacking = wanted - look.supply.coming
    if look.room is not None and lacking > look.room:
        said.append(f"quota has room for {look.room} of {lacking} more")
    return "; ".join(said)


def _missed_words(scaling: Scaling, memory: Memory, look: ServiceLook) -> str:
    """Say that fewer requests begin in time than shall, why, and which number would do."""
    attained = memory.attained
    share = attained.missed(scaling.aim)
    if share is None:
        return ""
    late = f"{share:.0%} of the requests of the last half hour began in time, not {scaling.aim:.0%}"
    replicas = _enough(scaling, memory, look)
    if attained.short < attained.late / 2:
        if scaling.learns and look.at_s - memory.woke_s > _MISSED_SINCE_S:
            return ""
        takes = f"a start takes {memory.delays.start_s:.0f} s"
        within = f"requests may wait {_wait_s(scaling, memory):.1f} s"
        return f"{late}: {within}, {takes}{_least_words(replicas, scaling, look)}"
    if look.supply.ready < scaling.max_replicas:
        return f"{late}: quota lets no more replicas run{_would_do(replicas, look.supply.ready)}"
    enough = _would_do(replicas, scaling.max_replicas)
    return f"{late}: max_replicas = {scaling.max_replicas} lets no more run{enough}"


def _least_words(replicas: int, scaling: Scaling, look: ServiceLook) -> str:
    """Say how many replicas that always run would do, and what has to let them."""
    if replicas <= scaling.min_replicas:
        return ""
    lets = ["max_replicas"] if replicas > scaling.max_replicas else []
    if look.room is not None and replicas > look.supply.coming + look.room:
        lets.append("quota")
    beside = f" with {' and '.join(lets)} for as many" if lets else ""
    return f"; min_replicas = {replicas}{beside} would do"


def _enough(scaling: Scaling, memory: Memory, look: ServiceLook) -> int:
    """Return how many replicas would have done lately; where no bursts are learnt, in the mean."""
    if scaling.learns:
        places = max(memory.arrivals.rates) * memory.service_s
        needed = places + sqrt(places)
    else:
        reached = reached_since(memory.crests, look.at_s - _MISSED_SINCE_S)
        highest = max((level for level, _ in reached), default=0)
        places = next((level - 1 for level in LEVELS if level > highest), highest)
        needed = (places + sqrt(places)) * _patience(scaling, memory)
        # Waiting evens out only what is short beside it.
        service_s, wait_s = memory.service_s, _wait_s(scaling, memory)
        lasting = [
            level * max(lasts_s, service_s) / (max(lasts_s, service_s) + wait_s)
            for level, lasts_s in reached
        ]
        needed = max([needed, *lasting])
    return max(1, ceil(needed / scaling.concurrency))


def _alone_words(scaling: Scaling, memory: Memory) -> str:
    """Say that a request, or a token of it, takes too long in a replica that has no other one."""
    request_s, token_s = alone_s(memory.capacity)
    if not scaling.learns and scaling.concurrency == 1 and memory.work.answers >= _TIMED:
        request_s = memory.work.service_s
    if scaling.tpot_s is not None and token_s is not None and token_s > scaling.tpot_s:
        enough_ms = ceil(1000 * token_s / _TOKEN_SHARE)
        takes = f"each token takes {1000 * token_s:.0f} ms with one request at a time"
        return f"{takes}: no number of replicas keeps tpot_ms, {enough_ms} would do"
    if scaling.p95_s is not None and request_s is not None and request_s > scaling.p95_s:
        enough_ms = 100 * ceil(10 * request_s / SERVICE_SHARE)
        takes = f"a request takes {request_s:.1f} s by itself"
        return f"{takes}: no number of replicas keeps p95_ms, {enough_ms} would do"
    return ""


def _prompts_words(scaling: Scaling, memory: Memory) -> str:
    """Say that prompts alone take longer than their first tokens may, however few share a replica.

    A first token takes about as many steps with few requests as with many, each of them shorter.
    """
    late_s, each_s = late_first_s(memory), memory.tokens.per_token_s
    token_s = alone_s(memory.capacity)[1]
    if scaling.ttft_s is None or late_s is None or each_s is None or token_s is None:
        return ""
    own_s = late_s * min(1.0, token_s / each_s)
    if own_s <= scaling.ttft_s:
        return ""
    enough_ms = 100 * ceil(10 * own_s / _FIRST_SHARE)
    takes = f"the slowest of 20 prompts takes {own_s:.1f} s to its first token by itself"
    return f"{takes}: no number of replicas keeps ttft_ms, {enough_ms} would do"


def _would_do(replicas: int, now: int) -> str:
    return f", about {replicas} would do" if replicas > now else ""


def _load_words(load: Load) -> str:
    if not load.total:
        return "no requests now"
    counts = ((load.in_flight, "in progress"), (load.waiting, "waiting"))
    parts = " and ".join(f"{count} {what}" for count, what in counts if count)
    return f"{counted(load.total, 'request')}: {parts}"


def _need_words(scaling: Scaling, need: ReplicaNeed, look: ServiceLook) -> Sequence[str]:
    if not need.replicas:
        return ("no replica is needed",)
    replicas = counted(need.replicas, "replica")
    if not look.load.total:
        return (f"{replicas} kept for the next one",)
    count = ceil(need.expected - _NEARLY)
    forecast = (
        f"{f'about {count} at a time are' if count else 'none is'} expected in "
        f"{need.horizon_s:.0f} s, when a new replica could serve"
    )
    if need.in_full_s is not None:
        forecast += f", if each takes {need.in_full_s:.1f} s as in a full replica"
    places = f"room for {ceil(need.reckoned - _NEARLY)} at a time is planned"
    takes = f"a replica takes {scaling.concurrency} at a time"
    learnt = " (learnt)" if scaling.learns else ""
    if need.given is not None:
        learnt = f" (expected; it gets {need.given} so far)"
    reckoned = max(1, ceil(need.reckoned / scaling.concurrency - _NEARLY))
    bursts = " with those for bursts to come" if need.replicas > reckoned else ""
    said = forecast, places, f"{takes}{learnt}: {replicas} needed{bursts}"
    if not need.untold:
        return said
    return *said, f"{' and '.join(need.untold)} can't be kept: replicas do not tell such times"
