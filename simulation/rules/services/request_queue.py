"""One service's requests: a queue at the gateway, and replicas that come and go from outside.

Requests wait in one queue and take the first free place, in the replica with the least work. Beyond
what may wait in time, the newest of a frame go first, as at the gateway.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from operator import attrgetter

_FRAME_S = 20.0
"""Length of a frame in seconds, as at the gateway.

Of requests beyond ``in_time`` that come in one frame the newest goes first; frames go in order.
"""


@dataclass(slots=True, eq=False)
class RunningReplica:
    """One run of a slot, as far as requests go.

    Attributes:
        in_flight: requests that it works on.
        is_open: whether it gets requests.
        is_over: whether its run has ended.
        idle_s: when it had answered its last request; before that, when it was opened.
    """

    in_flight: int = 0
    is_open: bool = False
    is_over: bool = False
    idle_s: float = 0.0


class ServiceRequests:
    """The requests of one service, and what they do with its replicas.

    Attributes:
        now_s: up to when requests have come and were answered.
        arrivals: when each request comes, ascending; after the last one ``inf``.
        waits: seconds that each request waited for its place; ``inf`` if it has none yet.
        answers: when each request was or will be answered; ``inf`` if that is not known, or if it
            was lost with its replica.
        concurrency: requests that a replica gets at the same time.
        in_time: how many requests may wait before the newest are served first; None: first come,
            first served.
        queue: (key, request) of the requests that wait; the smallest key is served first.
        ready: the replicas that get requests.
        arrived, answered, lost: number of requests so far; lost are those whose replica ended.
        in_flight: requests that replicas work on.
        moments: sum of the times of all arrivals less the sum of the times of all answers.
        wakes: requests that came first when no replica was ready.
    """

    def __init__(
        self,
        arrivals_s: Sequence[float],
        service_s: Sequence[float],
        concurrency: int,
        slower: Sequence[float] = (1.0,),
    ) -> None:
        """``service_s``: seconds that each request takes in a replica that has nothing else to do;
        ``slower``: by what they are multiplied in one with 1, 2, ... requests, the new one
        included. The last counts for more, too.
        """
        self.now_s = 0.0
        self.arrivals = [*arrivals_s, inf]
        self.waits = [inf] * len(service_s)
        self.answers = [inf] * len(service_s)
        self.concurrency = concurrency
        self.in_time: int | None = None
        self.queue: list[tuple[float, int]] = []
        self.ready: list[RunningReplica] = []
        self.arrived = self.answered = self.lost = self.in_flight = 0
        self.moments = 0.0
        self.wakes: list[int] = []
        self._service, self._slower = list(service_s), tuple(slower)
        self._ends: list[tuple[float, int, RunningReplica, int]] = []
        self._order = 0

    @property
    def next_s(self) -> float:
        """When a request comes or is answered next; ``inf`` if none is."""
        at_s = self.arrivals[self.arrived]
        return min(self._ends[0][0], at_s) if self._ends else at_s

    def pass_until(self, until_s: float) -> None:
        """Let requests come and be answered up to that time, in order."""
        ends, arrivals = self._ends, self.arrivals
        while True:
            at_s = arrivals[self.arrived]
            if ends and ends[0][0] <= at_s:
                if ends[0][0] > until_s:
                    break
                at_s, _, replica, _ = heappop(ends)
                if not replica.is_over:
                    self._answer(replica, at_s)
            elif at_s <= until_s:
                self._arrive(at_s)
            else:
                break
        self.now_s = until_s

    def open(self, replica: RunningReplica) -> None:
        """Let a replica get requests from now on."""
        replica.is_open = True
        replica.idle_s = self.now_s
        self.ready.append(replica)
        self._fill(replica, self.now_s)

    def close(self, replica: RunningReplica) -> None:
        """Let a replica get no more requests; it finishes those that it has."""
        replica.is_open = False
        self.ready.remove(replica)

    def end(self, replica: RunningReplica) -> None:
        """End a replica's run now: what it works on is lost."""
        if replica.is_open:
            self.close(replica)
        replica.is_over = True
        if not replica.in_flight:
            return
        self.lost += replica.in_flight
        self.in_flight -= replica.in_flight
        self.moments -= replica.in_flight * self.now_s
        replica.in_flight = 0
        for _, _, other, request in self._ends:
            if other is replica:
                self.answers[request] = inf

    def set_concurrency(self, concurrency: int) -> None:
        """Let replicas get so many requests at the same time; those beyond are finished."""
        self.concurrency = concurrency
        for replica in self.ready:
            self._fill(replica, self.now_s)

    def _arrive(self, at_s: float) -> None:
        request = self.arrived
        self.arrived += 1
        self.moments += at_s
        if self.queue:
            self._wait(request, at_s)
            return
        replica = self._least_busy()
        if replica is not None and replica.in_flight < self.concurrency:
            self._serve(request, replica, at_s)
            return
        if replica is None:
            self.wakes.append(request)
        self._wait(request, at_s)

    def _least_busy(self) -> RunningReplica | None:
        """Return the replica that gets the next request, if it has a place; None without one."""
        return min(self.ready, key=_BUSY, default=None)

    def _slowdown(self, replica: RunningReplica) -> float:
        """By what the seconds of a request are multiplied that a replica has just got."""
        return self._slower[min(replica.in_flight, len(self._slower)) - 1]

    def _wait(self, request: int, at_s: float) -> None:
        is_late = self.in_time is not None and len(self.queue) >= max(self.in_time, 1)
        heappush(self.queue, (at_s - 2 * (at_s % _FRAME_S) if is_late else at_s, request))

    def _serve(self, request: int, replica: RunningReplica, at_s: float) -> None:
        self.waits[request] = at_s - self.arrivals[request]
        replica.in_flight += 1
        self.in_flight += 1
        ends_s = at_s + self._service[request] * self._slowdown(replica)
        self.answers[request] = ends_s
        self._order += 1
        heappush(self._ends, (ends_s, self._order, replica, request))

    def _answer(self, replica: RunningReplica, at_s: float) -> None:
        replica.in_flight -= 1
        self.in_flight -= 1
        self.answered += 1
        self.moments -= at_s
        if not replica.in_flight:
            replica.idle_s = at_s
        if replica.is_open:
            self._fill(replica, at_s)

    def _fill(self, replica: RunningReplica, at_s: float) -> None:
        while self.queue and replica.in_flight < self.concurrency:
            self._serve(heappop(self.queue)[1], replica, at_s)


_BUSY = attrgetter("in_flight")
