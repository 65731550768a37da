"""A seeded discrete-event replay: requests, a queue at the gateway, replicas that start late.

Requests wait in one queue and take the first free place, in the replica with the least work. A
replica that is wanted is released, gets its slice after a wait, loads, and serves. A replica that
is not wanted is withdrawn before it is ready (at no cost if it has no slice yet), or else drained:
it takes no more requests and ends with its last one. The decisions of all policies are carried out
in the same way.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from operator import attrgetter

import numpy as np

from benchmarks.autoscale.policy import Policy, Seen
from benchmarks.autoscale.workload import MAX_REPLICAS, SLO_S, Floats, Workload

_FRAME_S = 20.0
"""Length of a frame in seconds, as at the gateway.

Of requests beyond ``in_time`` that come in one frame the newest goes first; frames go in order.
"""


class Stage(Enum):
    """Where a replica is in its life."""

    PENDING = auto()
    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Replica:
    """One run of a slot.

    Attributes:
        number: number of the start, which determines its delays; -1 if ready at the beginning.
        queue_s: seconds from release until it is allotted a slice.
        load_s: seconds from then until it is ready.
        allotted_s: when it was allotted its slice.
    """

    number: int
    queue_s: float
    load_s: float
    stage: Stage = Stage.PENDING
    in_flight: int = 0
    allotted_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The result of a replay.

    Attributes:
        waits_s: seconds of each request from its arrival to its place in a replica; for a request
            that still waits at the end, until then.
        counted: requests that came after the warm-up, and more than the SLO before the end.
        slice_s: slice-seconds of all replicas after the warm-up, from allotment to drain's end.
        changes: replicas released, withdrawn, taken back or drained after the warm-up.
        wakes_s: waits of the counted requests that came first when no replica was ready.
    """

    waits_s: Floats
    counted: slice
    slice_s: float
    changes: int
    wakes_s: Floats

    @property
    def attainment(self) -> float:
        """The share of counted requests that got a place within the SLO; 1 if there are none."""
        counted = self.waits_s[self.counted]
        return float((counted <= SLO_S).mean()) if counted.size else 1.0

    @property
    def wait_p99_s(self) -> float:
        """The 99th percentile of the counted requests' waits; 0 if there are none."""
        return self._wait_s(0.99)

    @property
    def longest_wait_s(self) -> float:
        """The longest wait of a counted request; 0 if there are none."""
        return self._wait_s(1.0)

    def _wait_s(self, share: float) -> float:
        counted = self.waits_s[self.counted]
        return float(np.quantile(counted, share)) if counted.size else 0.0

    @property
    def wake_p99_s(self) -> float | None:
        """The 99th percentile of ``wakes_s``; None if there are none."""
        return float(np.quantile(self.wakes_s, 0.99)) if self.wakes_s.size else None


def _always_in_order() -> None:
    """Serve first come, first served, however many requests wait."""


def replay(
    workload: Workload, policy: Policy, in_time: Callable[[], int | None] = _always_in_order
) -> Outcome:
    """Replay one workload with one policy.

    ``in_time`` is called after each decision and returns how many requests may wait before the
    newest are served first; None: first come, first served.
    """
    world = World(workload)
    for second in range(workload.duration_s):
        world.pass_until(second)
        world.want(min(max(policy.wanted(world.look()), 0), MAX_REPLICAS))
        world.in_time = in_time()
    world.pass_until(workload.duration_s)
    return world.outcome()


@dataclass(slots=True)
class World:
    """The state of one service during a replay.

    Attributes:
        arrived, answered: number of requests so far.
        moments: sum of the times of all arrivals less the sum of the times of all answers.
        released: number of starts so far.
        in_time: how many requests may wait before the newest are served first; None: never.
        queue: (key, request); the smallest key is served first.
        events: (time, order, replica): when something happens to a replica.
        ready: the replicas that serve.
        started: (queue, load) in seconds of starts that ended since the last look.
        wakes: requests that came first when no replica was ready.
    """

    workload: Workload
    now_s: float = 0.0
    arrivals: list[float] = field(init=False)
    service: list[float] = field(init=False)
    waits: list[float] = field(init=False)
    concurrency: int = field(init=False)
    arrived: int = 0
    answered: int = 0
    in_flight: int = 0
    moments: float = 0.0
    released: int = 0
    changes: int = 0
    slice_s: float = 0.0
    in_time: int | None = None
    queue: list[tuple[float, int]] = field(default_factory=list)
    events: list[tuple[float, int, Replica]] = field(default_factory=list)
    order: int = 0
    replicas: dict[Stage, list[Replica]] = field(init=False)
    ready: list[Replica] = field(default_factory=list)
    started: list[tuple[float, float]] = field(default_factory=list)
    wakes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrivals = [*self.workload.arrivals_s.tolist(), np.inf]
        self.service = self.workload.service_s.tolist()
        self.waits = [np.inf] * len(self.service)
        self.concurrency = self.workload.concurrency
        self.replicas = {stage: [] for stage in Stage if stage is not Stage.ENDED}
        self.ready = self.replicas[Stage.READY]
        self.ready += [Replica(-1, 0, 0, Stage.READY) for _ in range(self.workload.first_replicas)]

    def pass_until(self, until_s: float) -> None:
        """Let arrivals and replicas' events up to that time happen, in order."""
        events, arrivals = self.events, self.arrivals
        while True:
            at_s = arrivals[self.arrived]
            if events and events[0][0] <= at_s:
                if events[0][0] > until_s:
                    break
                at_s, _, replica = heappop(events)
                self._happen(at_s, replica)
            elif at_s <= until_s:
                self._arrive(at_s)
            else:
                break
        self.now_s = until_s

    def _arrive(self, at_s: float) -> None:
        request = self.arrived
        self.arrived += 1
        self.moments += at_s
        if self.queue:
            self._wait(request, at_s)
            return
        replica = min(self.ready, key=_BUSY, default=None)
        if replica is not None and replica.in_flight < self.concurrency:
            self._serve(request, replica, at_s)
            return
        if replica is None:
            self.wakes.append(request)
        self._wait(request, at_s)

    def _wait(self, request: int, at_s: float) -> None:
        is_late = self.in_time is not None and len(self.queue) >= max(self.in_time, 1)
        heappush(self.queue, (at_s - 2 * (at_s % _FRAME_S) if is_late else at_s, request))

    def _serve(self, request: int, replica: Replica, at_s: float) -> None:
        self.waits[request] = at_s - self.arrivals[request]
        replica.in_flight += 1
        self.in_flight += 1
        self._later(at_s + self.service[request], replica)

    def _later(self, at_s: float, replica: Replica) -> None:
        self.order += 1
        heappush(self.events, (at_s, self.order, replica))

    def _happen(self, at_s: float, replica: Replica) -> None:
        match replica.stage:
            case Stage.PENDING:
                replica.allotted_s = at_s
                self._move(replica, Stage.STARTING)
                self._later(at_s + replica.load_s, replica)
            case Stage.STARTING:
                self.started.append((replica.queue_s, replica.load_s))
                self._move(replica, Stage.READY)
                self._fill(replica, at_s)
            case Stage.READY | Stage.DRAINING:
                self._answer(replica, at_s)

    def _answer(self, replica: Replica, at_s: float) -> None:
        replica.in_flight -= 1
        self.in_flight -= 1
        self.answered += 1
        self.moments -= at_s
        if replica.stage is Stage.READY:
            self._fill(replica, at_s)
        elif not replica.in_flight:
            self._end(replica, at_s)

    def _fill(self, replica: Replica, at_s: float) -> None:
        while self.queue and replica.in_flight < self.concurrency:
            self._serve(heappop(self.queue)[1], replica, at_s)

    def _move(self, replica: Replica, stage: Stage) -> None:
        self.replicas[replica.stage].remove(replica)
        replica.stage = stage
        if stage is not Stage.ENDED:
            self.replicas[stage].append(replica)

    def _end(self, replica: Replica, at_s: float) -> None:
        if replica.stage is not Stage.PENDING:
            began_s = max(replica.allotted_s, self.workload.warm_s)
            self.slice_s += max(at_s - began_s, 0.0)
        self._move(replica, Stage.ENDED)

    def look(self) -> Seen:
        """What a policy sees now; each start is shown once."""
        started, self.started = self.started, []
        here = self.replicas
        return Seen(
            at_s=self.now_s,
            waiting=len(self.queue),
            in_flight=self.in_flight,
            work_s=self.now_s * (self.arrived - self.answered) - self.moments,
            arrived=self.arrived,
            answered=self.answered,
            pending=len(here[Stage.PENDING]),
            starting=len(here[Stage.STARTING]),
            ready=len(self.ready),
            draining=len(here[Stage.DRAINING]),
            busy=[replica.in_flight for replica in self.ready],
            started=started,
        )

    def want(self, wanted: int) -> None:
        """Move to ``wanted`` replicas: take back before releasing, withdraw before draining."""
        here = self.replicas
        coming = len(here[Stage.PENDING]) + len(here[Stage.STARTING]) + len(self.ready)
        for _ in range(coming, wanted):
            if here[Stage.DRAINING]:
                self._take_back()
            else:
                self.release()
        for _ in range(wanted, coming):
            coming_up = here[Stage.PENDING] or here[Stage.STARTING]
            if coming_up:
                self._end(coming_up[-1], self.now_s)
                self._count()
            else:
                self.drain()

    def _count(self) -> None:
        self.changes += self.now_s >= self.workload.warm_s

    def _take_back(self) -> None:
        self._count()
        replica = max(self.replicas[Stage.DRAINING], key=_BUSY)
        self._move(replica, Stage.READY)
        self._fill(replica, self.now_s)

    def release(self) -> None:
        """Release a replica, which begins its start."""
        self._count()
        starts, number = self.workload.starts, self.released % self.workload.starts.load_s.size
        replica = Replica(number, float(starts.queue_s[number]), float(starts.load_s[number]))
        self.released += 1
        self.replicas[Stage.PENDING].append(replica)
        self._later(self.now_s + replica.queue_s, replica)

    def drain(self) -> None:
        """Drain the ready replica with the least work."""
        self._count()
        replica = min(self.ready, key=_BUSY)
        self._move(replica, Stage.DRAINING)
        if not replica.in_flight:
            self._end(replica, self.now_s)

    def outcome(self) -> Outcome:
        """End the replay: slices cost until now, and queued requests have waited until now."""
        for replica in [*self._with_slice()]:
            self._end(replica, self.now_s)
        for _, request in self.queue:
            self.waits[request] = self.now_s - self.arrivals[request]
        waits, times = np.array(self.waits), self.workload.arrivals_s
        bounds = np.searchsorted(times, (self.workload.warm_s, self.now_s - SLO_S))
        counted = slice(int(bounds[0]), int(bounds[1]))
        wakes = [request for request in self.wakes if counted.start <= request < counted.stop]
        return Outcome(waits, counted, self.slice_s, self.changes, waits[wakes])

    def _with_slice(self) -> Iterable[Replica]:
        for stage in (Stage.STARTING, Stage.READY, Stage.DRAINING):
            yield from self.replicas[stage]


_BUSY = attrgetter("in_flight")
