"""A service's replicas and its place at the gateway, as the launcher would see them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from slicewise.cluster.language.jobs import JobState, JobView, StepView
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Server, ServerMode
from slicewise.simulation.rules.services.request_queue import RunningReplica, ServiceRequests
from slicewise.simulation.rules.services.service import SimulatedService

COUNTER = "model"
"""Name of the one backend that each service has."""
PORT = 20_000
"""Where the replica of a service's first slot listens."""
_ALLOTTED = frozenset({"starting", "running", "ending"})
_OURS = Answer(Probe.OURS)
_NOTICE_S = 3.0
"""So long a replica that is told to end goes on in any case, as its script has it."""
_BEFORE_KILL_S = 2.0
"""So long before Slurm would kill it, its script ends it, whatever it works on."""


@dataclass(slots=True, eq=False)
class ReplicaAtGateway:
    """One run of a slot, from the allotment of its slice to its end.

    Attributes:
        began_s: when its job started, as exactly as that is known.
        loaded_s: when its model answers.
        mode: of its server at the gateway.
        told_s: when it was seen that Slurm has told it to end; None if it has not.
    """

    job_id: int
    start_s: int | None
    began_s: float
    loaded_s: float
    endpoint: Endpoint
    digest: str
    mode: ServerMode = ServerMode.MAINT
    requests: RunningReplica = field(default_factory=RunningReplica)
    told_s: float | None = None


@dataclass(frozen=True)
class ReplicaCount:
    """How many replicas there were from ``at_s`` on.

    Attributes:
        allotted: that held a slice.
        ready: that got requests.
    """

    at_s: float
    allotted: int
    ready: int


class ServiceGateway:
    """One service's requests, and the runs of its slots that work on them.

    Attributes:
        runs: the runs that hold a slice, by slot.
        past: begin and end of the runs that have ended.
        counts: the number of replicas over time; one entry a change.
    """

    def __init__(
        self, service: SimulatedService, requests: ServiceRequests | None = None, port: int = PORT
    ) -> None:
        """``requests``: its queue, if it is not one of its own; ``port``: of its first slot."""
        self.requests = requests_of(service, ServiceRequests) if requests is None else requests
        self.requests.now_s = service.applied_s
        self.runs: dict[int, ReplicaAtGateway] = {}
        self.past: list[tuple[float, float]] = []
        self.counts: list[ReplicaCount] = []
        self._loads_s, self._port = service.engine.loads_s, port
        self._started = 0
        self._looked_s = service.applied_s

    def follow(self, view: ServiceView) -> ServiceView:
        """Take the runs that Slurm shows now; what an ended one worked on is lost.

        Returns the view with what each replica's script publishes: where it listens, and its
        certificate.
        """
        now_s = self.requests.now_s
        seen = {slot.index: slot for slot in view.slots if slot.state in _ALLOTTED}
        for index, run in tuple(self.runs.items()):
            if index not in seen or not _is_run(run, seen[index]):
                self._end(run)
                self.past.append((run.began_s, now_s))
                del self.runs[index]
        for index, slot in seen.items():
            if index not in self.runs and slot.state != "ending":
                self.runs[index] = self._begun(slot)
            elif index in self.runs and slot.state == "ending":
                run = self.runs[index]
                run.told_s = now_s if run.told_s is None else run.told_s
        self._looked_s = now_s
        slots = tuple(self._published(slot) for slot in view.slots)
        return view.model_copy(update={"slots": slots})

    @property
    def is_ending(self) -> bool:
        """Whether a run has been told to end, and goes on."""
        return any(run.told_s is not None for run in self.runs.values())

    def finished(self, kill_wait_s: float) -> frozenset[int]:
        """Slots whose run was told to end and is over: it has answered what it had, or must go."""
        now_s, over = self.requests.now_s, set[int]()
        for index, run in self.runs.items():
            if run.told_s is None:
                continue
            must_go = now_s >= run.told_s + max(1.0, kill_wait_s - _BEFORE_KILL_S)
            if must_go or (not self._works(run) and now_s >= run.told_s + _NOTICE_S):
                over.add(index)
        return frozenset(over)

    def _end(self, run: ReplicaAtGateway) -> None:
        """End what a run works on, which is over."""
        self.requests.end(run.requests)

    def _works(self, run: ReplicaAtGateway) -> bool:
        return run.requests.in_flight > 0

    def _begun(self, slot: SlotView) -> ReplicaAtGateway:
        # Slurm tells whole seconds; at the look before the run had not begun.
        began_s = max(float(slot.start_s or 0), self._looked_s)
        certificate = f"{slot.job_id}:{slot.start_s}"
        endpoint = Endpoint(slot.node, *(self._port + slot.index,) * 2, certificate)
        load_s = self._loads_s[self._started % len(self._loads_s)]
        self._started += 1
        return ReplicaAtGateway(
            slot.job_id or 0, slot.start_s, began_s, began_s + load_s, endpoint, endpoint.digest
        )

    def _published(self, slot: SlotView) -> SlotView:
        run = self.runs.get(slot.index)
        if run is None:
            return slot
        where = run.endpoint
        return slot.model_copy(update={"address": where.address, "certificate": where.certificate})

    def backend(self) -> Backend:
        """The service's backend as HAProxy shows it."""
        requests = self.requests
        servers = tuple(self._lines())
        waiting = len(requests.queue)
        return Backend(
            sessions=requests.in_flight + waiting,
            queued=waiting if requests.ready else 0,
            servers=servers,
            arrived=requests.arrived,
            answered=requests.answered + requests.lost,
        )

    def _lines(self) -> Iterator[Server]:
        for _, run in sorted(self.runs.items()):
            place, working = run.endpoint.place, run.requests.in_flight
            yield Server(*place, run.mode, True, working, 0, run.digest)

    def answers(self, array_job_id: int) -> Mapping[tuple[int, int], Answer]:
        """What replicas answer that have loaded their model: that they are ours and ready."""
        now_s = self.requests.now_s
        return {
            (array_job_id, index): _OURS
            for index, run in self.runs.items()
            if run.loaded_s <= now_s
        }

    def apply(self, route: Route) -> None:
        """Carry out what the launcher wants at the gateway."""
        requests = self.requests
        if route.concurrency != requests.concurrency:
            requests.set_concurrency(route.concurrency)
        requests.in_time = route.terms.in_time
        for run in self.runs.values():
            targets = route.targets or {}
            run.mode = targets.get(run.endpoint, ServerMode.MAINT)
            is_open = run.mode is ServerMode.READY
            if is_open and not run.requests.is_open:
                requests.open(run.requests)
            elif run.requests.is_open and not is_open:
                requests.close(run.requests)
        self._count()

    def _count(self) -> None:
        count = ReplicaCount(self.requests.now_s, len(self.runs), len(self.requests.ready))
        before = self.counts[-1] if self.counts else ReplicaCount(count.at_s, 0, 0)
        if (count.allotted, count.ready) != (before.allotted, before.ready):
            self.counts.append(count)

    def steps(self, records: tuple[JobView, ...]) -> tuple[StepView, ...]:
        """The steps of running replicas, each with the port that Slurm reserved for it."""
        return tuple(
            StepView(job.job_id, "0", job.nodes, (self._port + (job.task_index or 0),))
            for job in records
            if job.state is JobState.RUNNING
        )


Requests = TypeVar("Requests", bound=ServiceRequests)


def requests_of(service: SimulatedService, queue: type[Requests]) -> Requests:
    """Return the service's requests, of which none has come yet."""
    engine, concurrency = service.engine, service.spec.concurrency
    return queue(
        service.arrivals_s,
        [size * engine.service_s[0] for size in service.sizes],
        concurrency if isinstance(concurrency, int) else 1,
        engine.slower,
    )


def _is_run(run: ReplicaAtGateway, slot: SlotView) -> bool:
    if slot.state == "ending":
        return True
    return (run.job_id, run.start_s) == (slot.job_id, slot.start_s)
