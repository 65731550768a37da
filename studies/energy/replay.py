"""Replays many services on one site: each has its own policy, all share the nodes.

The first of the sites gives the slices, and its boots delay starts. The others only look on: they
place the same replicas by another rule.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from studies.autoscale.policy import Policy
from studies.autoscale.shared import SharedLoad, SharedReplica, SharedWorld
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import MAX_REPLICAS, SLO_S, Floats
from studies.autoscale.world import Stage
from studies.energy.site import Held, Site

LOOK_S = 2
"""Seconds between two decisions of the launcher's here, to save time; it decides each second."""
_FULL_S = 1.0
"""Seconds after which a start asks again where no slice is free."""
_LONG_S, _STRIDE_S = 7200, 7
"""Replays that are longer look at the boards each so many seconds: no policy decides by sevens."""
_BLOCK_S, _DRAWS = 300.0, 400
_SERVES = (Stage.READY, Stage.DRAINING)


class PlacedWorld(SharedWorld):
    """One service, or one pool of services, whose replicas have places on sites."""

    replicas: dict[Stage, list[SharedReplica]]

    def __init__(
        self, workload: SharedLoad, sites: Sequence[Site], *, empties: bool = False
    ) -> None:
        """``empties``: of replicas with as little work (and as few models) the one on the emptiest
        node is drained, as the product does (launcher/rules/turn/slots.py); others take any.
        """
        super().__init__(workload)
        self._empties = empties
        self._sites = sites
        self._placed: set[SharedReplica] = set()
        for replica in self.ready:
            self._allot(replica)

    def holding(self) -> Iterator[Held]:
        """What its replicas do now; one that starts or loads a model works at full load."""
        for replica in self.replicas[Stage.STARTING]:
            yield Held(replica, 1.0)
        for stage in _SERVES:
            for replica in self.replicas[stage]:
                work = 1.0 if replica.loading else replica.in_flight / self.workload.concurrency
                yield Held(replica, work)

    def _allot(self, replica: SharedReplica) -> float:
        """Give it a place; the seconds that it must wait before it can start."""
        first, *others = self._sites
        waits_s = first.allot(replica, self.now_s)
        if waits_s is None:
            return _FULL_S
        self._placed.add(replica)
        for site in others:
            site.allot(replica, self.now_s)
        return waits_s

    def _go_on(self, replica: SharedReplica) -> None:
        if replica.stage is Stage.PENDING and replica not in self._placed:
            waits_s = self._allot(replica)
            if waits_s:
                replica.queue_s += waits_s
                self._later(self.now_s + waits_s, replica)
                return
        super()._go_on(replica)

    def _drained(self) -> SharedReplica:
        if not self._empties:
            return super()._drained()
        site = self._sites[0]
        return min(self.ready, key=lambda one: (one.in_flight, len(one.models), site.company(one)))

    def _end(self, replica: SharedReplica, at_s: float) -> None:
        if replica in self._placed:
            self._placed.remove(replica)
            for site in self._sites:
                site.free(replica, at_s)
        super()._end(replica, at_s)


Turn = Callable[[PlacedWorld, int], None]
"""What a policy does in a second."""


def fixed(world: SharedWorld, second: int) -> None:
    """Leave the replicas as they are; in a pool they load models as the product says."""
    if second % LOOK_S == 0:
        world.place()


def rival(policy: Policy, every_s: int, least: int) -> Turn:
    """Decide as another system's policy does, which does nothing in between."""

    def turn(world: PlacedWorld, second: int) -> None:
        fixed(world, second)
        if second % every_s == 0:
            world.want(min(max(policy.wanted(world.look()), least), MAX_REPLICAS))

    return turn


@dataclass(frozen=True)
class Night:
    """The most replicas of a service from one second up to another."""

    first_s: int
    last_s: int
    most: int


def launcher(policy: Slicewise, night: Night | None = None) -> Turn:
    """Decide as the launcher does, which asks nothing of a service at rest.

    At night there are no more replicas than that, as a cap of the calendar's would have it.
    """
    due_s = 0

    def turn(world: PlacedWorld, second: int) -> None:
        nonlocal due_s
        if second < due_s:
            return
        world.place()
        policy.refill_s = world.refill_s
        most = night.most if night and night.first_s <= second < night.last_s else MAX_REPLICAS
        world.want(min(world.with_room(policy.wanted(world.look())), most))
        # A pool's gateway serves in the order in which requests came.
        world.requests.in_time = policy.in_time if world.workload.count == 1 else None
        looks = 0
        if world.is_at_rest and policy.is_at_rest:
            next_s = min(world.requests.next_s, world.workload.duration_s)
            looks = max(0, int(-(-(next_s - second) // LOOK_S)) - 1)
        if looks:
            policy.rest(second + looks * LOOK_S, looks)
        due_s = second + LOOK_S * (1 + looks)

    return turn


@dataclass(frozen=True, eq=False)
class Job:
    """A batch job of one slice, which works at full load from its start to its end."""

    at_s: float
    lasts_s: float


@dataclass(frozen=True)
class Served:
    """What clients got.

    Attributes:
        attainment: share of requests with a place in time; ``sure``: half of its interval of 95 %,
            by drawing blocks of five minutes again.
        mean_of_services: mean of the services' shares, however few requests one has.
        answered: share of the counted requests that had a place at the end.
        batch_s: seconds that batch jobs ran.
    """

    requests: int
    attainment: float
    mean_of_services: float
    sure: float
    wait_p95_s: float
    wait_p99_s: float
    answered: float
    slice_hours: float
    batch_s: float


def replay(
    services: Sequence[SharedLoad],
    turns: Sequence[Turn],
    sites: Sequence[Site],
    jobs: Sequence[Job] = (),
    *,
    empties: bool = False,
) -> Served:
    """Replay all services together; the sites have counted their boards' seconds then."""
    worlds = [PlacedWorld(service, sites, empties=empties) for service in services]
    batch = _Batch(jobs, sites)
    duration_s, warm_s = services[0].duration_s, services[0].warm_s
    stride_s = 1 if duration_s <= _LONG_S else _STRIDE_S
    for second in range(duration_s):
        for world, turn in zip(worlds, turns, strict=True):
            world.pass_until(second)
            turn(world, second)
        batch.pass_until(second)
        if second % stride_s == 0:
            held = [*batch.holding(), *(one for world in worlds for one in world.holding())]
            for site in sites:
                site.look(second, held, stride_s if second >= warm_s else 0)
    return _served(worlds, batch.ran_s)


class _Batch:
    """Jobs in turn; the first that finds no slice holds up the others."""

    def __init__(self, jobs: Sequence[Job], sites: Sequence[Site]) -> None:
        self._waiting, self._sites = list(reversed(jobs)), sites
        self._running: dict[Job, float] = {}
        self.ran_s = 0.0

    def pass_until(self, now_s: float) -> None:
        for job in [job for job, end_s in self._running.items() if end_s <= now_s]:
            del self._running[job]
            for site in self._sites:
                site.free(job, now_s)
        while self._waiting and self._waiting[-1].at_s <= now_s:
            boots_s = self._sites[0].allot(self._waiting[-1], now_s)
            if boots_s is None:
                break
            job = self._waiting.pop()
            for site in self._sites[1:]:
                site.allot(job, now_s)
            self._running[job] = now_s + boots_s + job.lasts_s
        self.ran_s += len(self._running)

    def holding(self) -> list[Held]:
        return [Held(job, 1.0) for job in self._running]


def _served(worlds: Sequence[PlacedWorld], batch_s: float) -> Served:
    arrivals, waits, shares, slice_s, placed = [], [], [], 0.0, 0
    for world in worlds:
        placed += world.requests.arrived - len(world.requests.queue)
        outcome = world.outcome()
        arrivals.append(world.workload.arrivals_s[outcome.counted])
        counted = outcome.waits_s[outcome.counted]
        waits.append(counted)
        models = world.workload.models[outcome.counted]
        shares += [np.mean(counted[models == one] <= SLO_S) for one in np.unique(models)]
        slice_s += outcome.slice_s
    arrivals_s, waits_s = np.concatenate(arrivals), np.concatenate(waits)
    came = sum(world.requests.arrived for world in worlds)
    return Served(
        requests=waits_s.size,
        attainment=float((waits_s <= SLO_S).mean()),
        mean_of_services=float(np.mean(shares)),
        sure=_sure(arrivals_s, waits_s <= SLO_S),
        wait_p95_s=float(np.quantile(waits_s, 0.95)),
        wait_p99_s=float(np.quantile(waits_s, 0.99)),
        answered=placed / max(came, 1),
        slice_hours=slice_s / 3600,
        batch_s=batch_s,
    )


def _sure(arrivals_s: Floats, is_in_time: np.ndarray) -> float:
    blocks = (arrivals_s // _BLOCK_S).astype(int)
    blocks -= blocks.min()
    came, in_time = np.bincount(blocks), np.bincount(blocks, is_in_time)
    rng = np.random.default_rng(0)
    drawn = rng.integers(came.size, size=(_DRAWS, came.size))
    shares = in_time[drawn].sum(axis=1) / np.maximum(came[drawn].sum(axis=1), 1)
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(high - low) / 2


def fewest(service: SharedLoad, shares: Sequence[float]) -> list[int]:
    """The fewest replicas that never change with which each share is in time, with hindsight."""

    @cache
    def attained(number: int) -> float:
        world = SharedWorld(replace(service, first_replicas=number))
        for second in range(0, service.duration_s, LOOK_S):
            world.pass_until(second)
            fixed(world, second)
        world.pass_until(service.duration_s)
        return world.outcome().attainment

    return [bisect_left(range(MAX_REPLICAS), share, lo=1, key=attained) for share in shares]
