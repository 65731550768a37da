"""Replays requests on GPUs that are cut beforehand, and repartition never, twice a day, or on
demand.

Requests come in the pod list's own order, so that demand changes as it did there. Each request
needs a free instance of its profile, waits for one at most ``PATIENCE_S`` and is turned away then.
Jobs can't move. An instance that a repartition creates is not available for ``REPARTITION_S``.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.slurm_plugin.rules.mig.candidates import GpuState, InstanceState, JobHolder
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand, InstanceRequest
from slicewise.slurm_plugin.rules.mig.planner import GpuPlan, RepartitionTerms, plan
from studies.placement.pods import BOARD, SLICES, Request

PATIENCE_S = 1_800
REPARTITION_S = 60
_HALF_DAY_S = 43_200
_TURN_S = 300
_ANYTHING = RepartitionTerms(
    repartition_s=REPARTITION_S, horizon_s=3_600, nodes_at_once=1_000_000, margin=0
)
"""Terms by which the plan is the best layout, whatever it costs."""
_WORTHWHILE = RepartitionTerms(repartition_s=REPARTITION_S, horizon_s=3_600, nodes_at_once=4)


@dataclass(frozen=True)
class Outcome:
    """The result of one replay.

    Attributes:
        accepted_ratio: slice-hours accepted ÷ asked for.
        repartitions: number of repartitions, of one GPU each.
        drained_slice_hours: slice-hours that the repartitions drained.
    """

    accepted_ratio: float
    repartitions: int
    drained_slice_hours: float


def outcomes(
    pods: Sequence[Request], requests: Sequence[Request], gpus: int, warm: float
) -> Mapping[str, Outcome]:
    """Replay each policy; all begin with the best layout for the mean of all requests."""
    held_s = _mean_held_s(pods)
    first = first_cut(pods, requests, gpus)
    return {
        name: _World(gpus, first, held_s, policy).run(requests, warm)
        for name, policy in _POLICIES.items()
    }


def first_cut(pods: Sequence[Request], requests: Sequence[Request], gpus: int) -> Sequence[GpuPlan]:
    """The best layout for the mean of all requests, as steps of one GPU each."""
    uncut = [GpuState(str(number), str(number)) for number in range(gpus)]
    in_use = _in_use(requests, requests[-1].at_s, _mean_held_s(pods))
    return plan(BOARD, uncut, InstanceDemand((), in_use), _ANYTHING)


@dataclass
class _Cut:
    """A GPU: its instances, those that are held or still being made, and when it was last cut."""

    instances: set[Placement] = field(default_factory=set)
    held: set[Placement] = field(default_factory=set)
    making: set[Placement] = field(default_factory=set)
    cut_at_s: float | None = None

    def free(self, profile: str) -> Sequence[Placement]:
        """The instances of that profile that are made and not held."""
        return sorted(
            one for one in self.instances - self.held - self.making if one.profile == profile
        )


class _World:
    """What is cut, held and waited for at ``now_s``.

    ``held_s``: mean seconds for which requests hold an instance, by profile.
    """

    def __init__(
        self, gpus: int, first: Iterable[GpuPlan], held_s: Mapping[str, float], policy: "_Policy"
    ) -> None:
        self.now_s = 0.0
        self.waiting: list[Request] = []
        self._held_s, self._policy = held_s, policy
        self._cuts = [_Cut() for _ in range(gpus)]
        for step in first:
            self._cuts[int(step.gpu)].instances = set(step.create)
        self._recent: deque[Request] = deque()
        self._events: list[tuple[float, int, Placement]] = []
        self._accepted: list[Request] = []
        self._steps: list[GpuPlan] = []

    def run(self, requests: Sequence[Request], warm: float) -> Outcome:
        """Replay all requests; the first ``warm`` part of the time only fills the GPUs."""
        next_turn_s = 0.0
        for request in requests:
            while next_turn_s <= request.at_s:
                self._until(next_turn_s)
                self._cut(self._policy(self))
                next_turn_s += _TURN_S
            self._until(request.at_s)
            self.waiting.append(request)
            self._recent.append(request)
            self._serve()
        from_s = warm * requests[-1].at_s
        drained = sum(step.drained_millislice_s for step in self._steps) / 1000 / 3_600
        ratio = _slice_s(self._accepted, from_s) / _slice_s(requests, from_s)
        return Outcome(ratio, len(self._steps), drained)

    @property
    def gpus(self) -> Sequence[GpuState]:
        """The GPUs as the planner takes them."""
        return [self._gpu(number, cut) for number, cut in enumerate(self._cuts)]

    @property
    def in_use(self) -> Mapping[str, float]:
        """By profile, instances that the requests of the last half day would use at a time."""
        while self._recent and self._recent[0].at_s < self.now_s - _HALF_DAY_S:
            self._recent.popleft()
        span_s = min(max(self.now_s, _TURN_S), _HALF_DAY_S)
        return _in_use(self._recent, span_s, self._held_s)

    def _gpu(self, number: int, cut: _Cut) -> GpuState:
        instances = (
            InstanceState(one, JobHolder("") if one in cut.held else None)
            for one in sorted(cut.instances)
        )
        ago_s = None if cut.cut_at_s is None else int(self.now_s - cut.cut_at_s)
        return GpuState(str(number), str(number), tuple(instances), ago_s, bool(cut.making))

    def _until(self, at_s: float) -> None:
        while self._events and self._events[0][0] <= at_s:
            self.now_s, gpu, placement = heappop(self._events)
            self._cuts[gpu].held.discard(placement)
            self._cuts[gpu].making.discard(placement)
            self._serve()
        self.now_s = at_s
        self.waiting = [one for one in self.waiting if one.at_s + PATIENCE_S >= at_s]

    def _serve(self) -> None:
        self.waiting = [one for one in self.waiting if not self._starts(one)]

    def _starts(self, request: Request) -> bool:
        """Start a request on the fullest GPU, so that others become empty; return whether it did.

        A request that has waited longer than ``PATIENCE_S`` does not start.
        """
        if request.at_s + PATIENCE_S < self.now_s:
            return False
        open_places = (
            (-sum(one.size for one in cut.held), number, place)
            for number, cut in enumerate(self._cuts)
            for place in cut.free(request.profile)
        )
        found = min(open_places, default=None)
        if found is None:
            return False
        _, number, place = found
        self._cuts[number].held.add(place)
        self._accepted.append(request)
        heappush(self._events, (self.now_s + request.held_s, number, place))
        return True

    def _cut(self, steps: Sequence[GpuPlan]) -> None:
        for step in steps:
            cut = self._cuts[int(step.gpu)]
            cut.instances = cut.instances - set(step.destroy) | set(step.create)
            cut.making |= set(step.create)
            cut.cut_at_s = self.now_s
            for one in step.create:
                heappush(self._events, (self.now_s + REPARTITION_S, int(step.gpu), one))
        self._steps += steps


_Policy = Callable[[_World], Sequence[GpuPlan]]


def _twice_daily(world: _World) -> Sequence[GpuPlan]:
    """Each half day, repartition to the best layout for the last half day where instances are
    free.
    """
    if world.now_s == 0 or world.now_s % _HALF_DAY_S:
        return ()
    gpus = [replace(gpu, cut_ago_s=None) for gpu in world.gpus]
    return plan(BOARD, gpus, InstanceDemand((), world.in_use), _ANYTHING)


def _slicewise(world: _World) -> Sequence[GpuPlan]:
    """The product's own decision, unchanged, if any request waits."""
    if not world.waiting:
        return ()
    waiting = tuple(
        InstanceRequest(one.profile, int(world.now_s - one.at_s)) for one in world.waiting
    )
    return plan(BOARD, world.gpus, InstanceDemand(waiting, world.in_use), _WORTHWHILE)


def _asked_alone(world: _World) -> Sequence[GpuPlan]:
    """The product's decision, but the rest of each GPU stays uncut."""
    return [replace(step, create=step.asked) for step in _slicewise(world)]


_POLICIES: Mapping[str, _Policy] = {
    "never": lambda _: (),
    "twice_daily": _twice_daily,
    "asked_alone": _asked_alone,
    "slicewise": _slicewise,
}


def _in_use(
    requests: Iterable[Request], span_s: float, held_s: Mapping[str, float]
) -> Mapping[str, float]:
    """Instances in use at a time, by profile: arrivals a second × mean seconds held."""
    arrivals = Counter(one.profile for one in requests)
    return {name: count / span_s * held_s[name] for name, count in arrivals.items()}


def _mean_held_s(pods: Iterable[Request]) -> Mapping[str, float]:
    held = defaultdict[str, list[float]](list)
    for pod in pods:
        held[pod.profile].append(pod.held_s)
    return {name: sum(each) / len(each) for name, each in held.items()}


def _slice_s(requests: Iterable[Request], from_s: float) -> float:
    return sum(SLICES[one.profile] * one.held_s for one in requests if one.at_s >= from_s)
