"""Requests of services that share replicas: each has a queue, and a line in each replica."""

from collections.abc import Sequence
from dataclasses import dataclass

from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests


@dataclass(slots=True, eq=False)
class SharedServer:
    """The server of a replica that several services ask.

    Attributes:
        in_flight: requests that it works on, of all services.
    """

    in_flight: int = 0


class PoolRequests(ServiceRequests):
    """The requests of one service of a pool.

    As at the gateway, a replica gets ``concurrency`` of them at the same time, whatever it has of
    other services, and of several with as few of them the one that was least lately used. All that
    a server works on shares it: beyond as many requests as one model was measured with, or may
    have, it answers no more of them in a second.
    """

    def __init__(
        self,
        arrivals_s: Sequence[float],
        service_s: Sequence[float],
        concurrency: int,
        slower: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__(arrivals_s, service_s, concurrency, slower)
        self._server_of: dict[RunningReplica, SharedServer] = {}
        self._used: dict[RunningReplica, int] = {}

    def line_at(self, server: SharedServer) -> RunningReplica:
        """Return a line of the service at a server; it is closed."""
        line = RunningReplica()
        self._server_of[line], self._used[line] = server, 0
        return line

    def end(self, replica: RunningReplica) -> None:
        """End a line now: what the replica works on there is lost."""
        self._server_of.pop(replica).in_flight -= replica.in_flight
        del self._used[replica]
        super().end(replica)

    def _least_busy(self) -> RunningReplica | None:
        return min(self.ready, key=lambda line: (line.in_flight, self._used[line]), default=None)

    def _serve(self, request: int, replica: RunningReplica, at_s: float) -> None:
        self._server_of[replica].in_flight += 1
        self._used[replica] = self._order
        super()._serve(request, replica, at_s)

    def _answer(self, replica: RunningReplica, at_s: float) -> None:
        self._server_of[replica].in_flight -= 1
        self._used[replica] = self._order
        super()._answer(replica, at_s)

    def _slowdown(self, replica: RunningReplica) -> float:
        working = self._server_of[replica].in_flight
        measured = max(len(self._slower), self.concurrency)
        return self._slower[min(working, len(self._slower)) - 1] * max(1.0, working / measured)


def pass_together(requests: Sequence[ServiceRequests], until_s: float) -> None:
    """Let requests of services that share replicas come and be answered until then, in order."""
    while len(requests) > 1:
        first = min(requests, key=lambda service: service.next_s)
        if first.next_s > until_s:
            break
        first.pass_until(first.next_s)
    for service in requests:
        service.pass_until(until_s)
