"""A seeded discrete-event replay: requests, a queue at the gateway, replicas that start late.

What requests do is the simulator's own (``simulation/rules/services/request_queue.py``). A
replica that is wanted is released, gets its slice after a wait, loads, and serves. One that is
not wanted is withdrawn before it is ready (at no cost if it has no slice yet), or else drained:
it takes no more requests and ends with its last one. The decisions of all policies are carried
out in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from operator import attrgetter

import numpy as np

from slicewise.cluster.language.starts import StartClass
from slicewise.launcher.rules.autoscale.types import ReplicaStart
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests
from studies.autoscale.policy import Policy, Seen
from studies.autoscale.workload import MAX_REPLICAS, SLO_S, Floats, Workload


class Stage(Enum):
    """Where a replica is in its life."""

    PENDING = auto()
    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Replica(RunningReplica):
    """One run of a slot.

    Attributes:
        number: number of the start, which determines its delays; -1 if ready at the beginning.
        queue_s: seconds from release until it is allotted a slice.
        load_s: seconds from then until it is ready.
        start_class: where its weights were then.
        allotted_s: when it was allotted its slice.
    """

    number: int = -1
    queue_s: float = 0.0
    load_s: float = 0.0
    start_class: StartClass = "remote"
    stage: Stage = Stage.PENDING
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
    def wait_p95_s(self) -> float:
        """The 95th percentile of the counted requests' waits; 0 if there are none."""
        return self._wait_s(0.95)

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
    workload: Workload,
    policy: Policy,
    in_time: Callable[[], int | None] = _always_in_order,
    requests: ServiceRequests | None = None,
) -> Outcome:
    """Replay one workload with one policy.

    ``in_time`` is called after each decision and returns how many requests may wait before the
    newest are served first; None: first come, first served. ``requests`` are those of the workload,
    if somebody wants to look at them.
    """
    world = World(workload, requests)
    for second in range(workload.duration_s):
        world.pass_until(second)
        world.want(min(max(policy.wanted(world.look()), 0), MAX_REPLICAS))
        world.requests.in_time = in_time()
    world.pass_until(workload.duration_s)
    return world.outcome()


def requests_of(workload: Workload) -> ServiceRequests:
    """Return the requests of a workload, of which none has come yet."""
    arrivals_s, service_s = workload.arrivals_s.tolist(), workload.service_s.tolist()
    return ServiceRequests(arrivals_s, service_s, workload.concurrency)


class World:
    """The state of one service during a replay.

    Attributes:
        requests: what its replicas do.
        released: number of starts so far.
        replicas: those that have not ended, by stage.
        started: starts that ended since the last look.
    """

    def __init__(self, workload: Workload, requests: ServiceRequests | None = None) -> None:
        self.workload = workload
        self.requests = requests or requests_of(workload)
        self.released = self.changes = 0
        self.slice_s = 0.0
        self.replicas: dict[Stage, list[Replica]] = {
            stage: [] for stage in Stage if stage is not Stage.ENDED
        }
        self.started: list[ReplicaStart] = []
        self._events: list[tuple[float, int, Replica]] = []
        self._order = 0
        for _ in range(workload.first_replicas):
            replica = self._new(-1, 0.0, 0.0)
            replica.stage = Stage.READY
            self.replicas[Stage.READY].append(replica)
            self.requests.open(replica)

    @property
    def now_s(self) -> float:
        """Seconds since the replay began."""
        return self.requests.now_s

    def _new(self, number: int, queue_s: float, load_s: float) -> Replica:
        return Replica(number=number, queue_s=queue_s, load_s=load_s)

    @property
    def ready(self) -> Sequence[Replica]:
        """The replicas that serve."""
        return self.replicas[Stage.READY]

    def pass_until(self, until_s: float) -> None:
        """Let requests and starts up to that time happen, in order."""
        while self._events and self._events[0][0] <= until_s:
            at_s, _, replica = heappop(self._events)
            self.requests.pass_until(at_s)
            self._go_on(replica)
        self.requests.pass_until(until_s)
        for replica in [one for one in self.replicas[Stage.DRAINING] if not one.in_flight]:
            self._end(replica, replica.idle_s)

    def _later(self, at_s: float, replica: Replica) -> None:
        self._order += 1
        heappush(self._events, (at_s, self._order, replica))

    def _go_on(self, replica: Replica) -> None:
        """Take a start one step further, unless it was withdrawn."""
        if replica.stage is Stage.PENDING:
            replica.allotted_s = self.now_s
            self._move(replica, Stage.STARTING)
            self._later(self.now_s + replica.load_s, replica)
        elif replica.stage is Stage.STARTING:
            start = ReplicaStart(replica.queue_s, replica.load_s, replica.start_class)
            self.started.append(start)
            self._move(replica, Stage.READY)
            self.requests.open(replica)

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
        here, requests = self.replicas, self.requests
        return Seen(
            at_s=self.now_s,
            waiting=len(requests.queue),
            in_flight=requests.in_flight,
            work_s=self.now_s * (requests.arrived - requests.answered) - requests.moments,
            arrived=requests.arrived,
            answered=requests.answered,
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
        self.requests.open(replica)

    def release(self) -> None:
        """Release a replica, which begins its start."""
        self._count()
        starts, number = self.workload.starts, self.released % self.workload.starts.load_s.size
        queue_s, load_s = float(starts.queue_s[number]), float(starts.load_s[number])
        replica = self._new(number, queue_s, load_s)
        self.released += 1
        self.replicas[Stage.PENDING].append(replica)
        self._later(self.now_s + replica.queue_s, replica)

    def drain(self) -> None:
        """Drain the ready replica with the least work."""
        self._count()
        replica = self._drained()
        self._move(replica, Stage.DRAINING)
        self.requests.close(replica)
        if not replica.in_flight:
            self._end(replica, self.now_s)

    def _drained(self) -> Replica:
        return min(self.ready, key=_BUSY)

    def outcome(self) -> Outcome:
        """End the replay: slices cost until now, and queued requests have waited until now."""
        for replica in [*self._with_slice()]:
            self._end(replica, self.now_s)
        requests = self.requests
        for _, request in requests.queue:
            requests.waits[request] = self.now_s - requests.arrivals[request]
        waits, times = np.array(requests.waits), self.workload.arrivals_s
        bounds = np.searchsorted(times, (self.workload.warm_s, self.now_s - SLO_S))
        counted = slice(int(bounds[0]), int(bounds[1]))
        wakes = [request for request in requests.wakes if counted.start <= request < counted.stop]
        return Outcome(waits, counted, self.slice_s, self.changes, waits[wakes])

    def _with_slice(self) -> Iterator[Replica]:
        for stage in (Stage.STARTING, Stage.READY, Stage.DRAINING):
            yield from self.replicas[stage]


_BUSY = attrgetter("in_flight")
