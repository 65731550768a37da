"""A service whose replicas are pods: as many as Kubernetes' HPA wants, admitted by Kueue.

The HPA decides as in the replay of autoscaling policies. A pod loads its model, then gets requests.
One that is not wanted any more goes before it is ready, or else gets no more requests and ends with
its last one. One that is preempted has the grace in which pods may finish what they work on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from slicewise.simulation.rules.services.gateway_place import ServiceGateway
from slicewise.simulation.rules.services.request_queue import RunningReplica
from slicewise.simulation.rules.services.service import SimulatedService
from studies.autoscale.hpa import Hpa
from studies.autoscale.policy import Seen

TARGET = 0.8
"""Requests per replica that the HPA aims at, as a share of its places: Kubernetes' default."""
GRACE_S = 30.0
"""terminationGracePeriodSeconds' default."""


@dataclass(eq=False)
class Pod:
    """One pod of a service.

    Attributes:
        began_s: when it got its instance; inf before that.
        loaded_s: when its model answers.
        is_leaving: whether it gets no more requests.
    """

    job_id: int
    began_s: float = inf
    loaded_s: float = inf
    is_leaving: bool = False
    replica: RunningReplica = field(default_factory=RunningReplica)


class HpaPods:
    """The pods of one service, from turn to turn.

    Attributes:
        pods: those that wait, load, serve or leave, by job id.
        changes_s: when a pod came or went.
    """

    def __init__(self, service: SimulatedService, concurrency: int) -> None:
        self.service = service
        self.gateway = ServiceGateway(service)
        self.pods: dict[int, Pod] = {}
        self.changes_s: list[float] = []
        self._hpa = Hpa(concurrency, TARGET)
        self._began_s = service.applied_s
        self._graces: list[tuple[float, int, RunningReplica]] = []
        self._order = self._starts = 0

    def follow(self, running_s: Mapping[int, float], now_s: float) -> None:
        """Let pass what happens until now; ``running_s``: when the jobs that run began."""
        for pod in self.pods.values():
            if pod.began_s == inf and pod.job_id in running_s:
                loads_s = self.service.engine.loads_s
                pod.began_s = running_s[pod.job_id]
                pod.loaded_s = pod.began_s + loads_s[self._starts % len(loads_s)]
                self._starts += 1
        due = [
            (pod.loaded_s, pod)
            for pod in self.pods.values()
            if pod.loaded_s <= now_s and not pod.replica.is_open and not pod.is_leaving
        ]
        for at_s, pod in sorted(due, key=lambda one: (one[0], one[1].job_id)):
            self._pass_until(at_s)
            self.gateway.requests.open(pod.replica)
        self._pass_until(now_s)

    def _pass_until(self, until_s: float) -> None:
        requests = self.gateway.requests
        while self._graces and self._graces[0][0] <= until_s:
            at_s, _, replica = heappop(self._graces)
            requests.pass_until(max(at_s, requests.now_s))
            requests.end(replica)
        requests.pass_until(max(until_s, requests.now_s))

    def more(self, now_s: float) -> int:
        """How many pods the HPA wants beside those that it has; below 0, how many less."""
        staying = [pod for pod in self.pods.values() if not pod.is_leaving]
        requests, at_s = self.gateway.requests, now_s - self._began_s
        waiting, ready = len(requests.queue), sum(pod.replica.is_open for pod in staying)
        pending = sum(pod.began_s == inf for pod in staying)
        seen = Seen(
            at_s=at_s,
            waiting=waiting,
            in_flight=requests.in_flight,
            work_s=now_s * (requests.arrived - requests.answered - requests.lost)
            - requests.moments,
            arrived=requests.arrived,
            answered=requests.answered,
            pending=pending,
            starting=len(staying) - pending - ready,
            ready=ready,
            draining=len(self.pods) - len(staying),
            busy=(),
            started=(),
        )
        most = self.service.spec.max_replicas
        found = min(self._hpa.wanted(seen), most) - len(staying)
        self.changes_s += [now_s] * abs(found)
        return found

    def came(self, job_id: int) -> None:
        """Note a pod that was submitted."""
        self.pods[job_id] = Pod(job_id)

    def leaving(self, count: int) -> list[int]:
        """Let so many pods go; return the jobs of those that end at once.

        Pods that wait go first, then those that load, then those with the least work.
        """
        staying = [pod for pod in self.pods.values() if not pod.is_leaving]
        staying.sort(key=lambda pod: (-pod.began_s, pod.replica.is_open, pod.job_id))
        staying.sort(key=lambda pod: (pod.replica.is_open, pod.replica.in_flight))
        for pod in staying[:count]:
            pod.is_leaving = True
            if pod.replica.is_open:
                self.gateway.requests.close(pod.replica)
        return self.done()

    def done(self) -> list[int]:
        """The jobs of leaving pods that have answered their last request."""
        return [
            pod.job_id for pod in self.pods.values() if pod.is_leaving and not pod.replica.in_flight
        ]

    def gone(self, job_id: int, now_s: float) -> None:
        """Note the end of a pod that had left."""
        self._past(self.pods.pop(job_id), now_s)

    def preempted(self, job_id: int, now_s: float) -> bool:
        """Note that a pod lost its instance: what it works on has the grace to be answered.

        Returns whether it waits again: not if it was leaving.
        """
        pod = self.pods.pop(job_id)
        if pod.replica.is_open:
            self.gateway.requests.close(pod.replica)
        self._order += 1
        heappush(self._graces, (now_s + GRACE_S, self._order, pod.replica))
        self._past(pod, now_s)
        if not pod.is_leaving:
            self.came(job_id)
        return not pod.is_leaving

    def _past(self, pod: Pod, now_s: float) -> None:
        if pod.began_s < inf:
            self.gateway.past.append((pod.began_s, now_s))

    def runs(self, now_s: float) -> list[tuple[float, float]]:
        """From when to when each pod had its instance, until now."""
        there = [pod.began_s for pod in self.pods.values() if pod.began_s < inf]
        return [*self.gateway.past, *((began_s, now_s) for began_s in there)]
