"""Leases: which time limits are extended, and which replicas must end, when and why.

A wished replica whose lease is half over gets a whole one again. Never past a wall: a reservation
of its node, the time at which Slurm means to start a bigger job there, or the end of what its
tenant's budget pays for. Slurm itself looks at none of them when a limit is raised.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor

from cluster.jobs import (
    RECUT_RESERVATION,
    JobState,
    JobView,
    PlannedStart,
    ReservationView,
)
from cluster.service import DEFAULT_LEASE_S, gives_back_s
from cluster.units import Millislices
from cluster.wire import ServiceView, SlotView
from slurm_plugin.decide.budget_parts import binding, minutes_left
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.policy import Policy

Key = tuple[int, int]
"""A slot: array job id and index."""

RunKey = tuple[int, int, int | None]
"""One run of a slot: also when it began, in Unix seconds."""

_TOLD_S = 900
"""A wall that is farther away than this, and than a lease, is no news yet."""
_NOT_EXTENDED = "leases are not extended here"


@dataclass(frozen=True)
class Leased:
    """One running slot.

    Attributes:
        run: as Slurm shows it, with its end and its limit.
        is_wanted: the launcher wishes it, and was heard of within the lease.
        reservations: names of those that it runs in.
        cores: of its nodes, where that matters and is known.
    """

    key: Key
    run: JobView
    end_s: int
    limit_min: int
    lease_s: int
    is_wanted: bool
    reservations: frozenset[str] = frozenset()
    cores: Mapping[str, frozenset[int]] = field(default_factory=dict, hash=False)

    @property
    def run_key(self) -> RunKey:
        """Which run of the slot it is."""
        return (*self.key, self.run.start_s)


@dataclass(frozen=True)
class Wall:
    """At ``at_s`` a replica has to be gone; ``job`` is whose start it would be in the way of, or
    ``reservation`` which begins then.
    """

    at_s: int
    why: str
    job: JobView | None = None
    reservation: ReservationView | None = None


@dataclass(frozen=True)
class End:
    """A replica must have ended by ``at_s``, whatever is wished."""

    at_s: float
    why: str


@dataclass(frozen=True)
class Spare:
    """What budgets leave for extensions, in millislice-minutes.

    Attributes:
        left: of each limit, by the tenant that has it.
        limits: which of them count for a tenant's jobs: its own, and those of tenants above it.
    """

    left: Mapping[str, int] = field(default_factory=dict, hash=False)
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class LeasePlan:
    """New time limits in minutes, and ends, by run."""

    limits_min: Mapping[RunKey, int] = field(default_factory=dict, hash=False)
    ends: Mapping[RunKey, End] = field(default_factory=dict, hash=False)


def plan_leases(
    slots: Iterable[Leased],
    walls: Mapping[str, Sequence[Wall]],
    spare: Spare,
    now_s: float,
    costs: Mapping[str, Millislices],
    *,
    extends: bool,
) -> LeasePlan:
    """``walls`` by node; with ``extends`` False every replica ends with its lease."""
    left = dict(spare.left)
    limits_min: dict[RunKey, int] = {}
    ends: dict[RunKey, End] = {}
    for slot in slots:
        limits = spare.limits.get(slot.run.account, ())
        paid = [left[name] for name in limits]
        wall = _first((*_standing(walls, slot, costs), *_unpaid(paid, slot, costs)))
        if extends and slot.is_wanted and (more := _minutes(slot, wall, now_s)):
            limits_min[slot.run_key] = slot.limit_min + more
            left |= {name: left[name] - more * _cost(slot, costs) for name in limits}
        if (end := _end(slot, wall, now_s, extends=extends)) is not None:
            ends[slot.run_key] = end
    return LeasePlan(limits_min, ends)


def leased(
    services: Iterable[ServiceView],
    jobs: Iterable[JobView],
    wished: Mapping[int, frozenset[int]],
    unheard_s: float,
) -> Iterator[Leased]:
    """Running slots that have a limit; ``unheard_s`` ago the launcher was heard of last."""
    runs = {job.job_id: job for job in jobs if job.state is JobState.RUNNING}
    for service in services:
        lease_s = lease_of(service)
        for slot in service.slots:
            run = runs.get(slot.job_id or 0)
            if run is None or run.end_s is None or run.time_limit_s is None:
                continue
            yield Leased(
                key=(service.array_job_id, slot.index),
                run=run,
                end_s=run.end_s,
                limit_min=run.time_limit_s // 60,
                lease_s=lease_s,
                is_wanted=slot.index in wished.get(service.array_job_id, ())
                and unheard_s < lease_s,
            )


def lease_of(service: ServiceView) -> int:
    """In seconds, as its script says."""
    said = service.directives.get("lease_s", "")
    return int(said) if said.isdecimal() else DEFAULT_LEASE_S


def walls_of(
    reservations: Iterable[ReservationView],
    plans: Iterable[PlannedStart],
    jobs: Iterable[JobView],
) -> Mapping[str, Sequence[Wall]]:
    """By node. Where a GPU is cut anew who is in the way is told to leave, and all others stay."""
    waiting = {job.job_id: job for job in jobs}
    found: dict[str, list[Wall]] = defaultdict(list)
    for one in (r for r in reservations if not r.name.startswith(RECUT_RESERVATION)):
        for node in one.nodes:
            why = f"reservation {one.name} of {node} begins"
            found[node].append(Wall(one.start_s, why, reservation=one))
    for plan in plans:
        for node in plan.nodes if plan.job_id in waiting else ():
            why = f"job {plan.job_id} is to start on {node}"
            found[node].append(Wall(plan.start_s, why, waiting[plan.job_id]))
    return found


def spare_minutes(
    policy: Policy,
    run_minutes: Mapping[str, int],
    jobs: Iterable[JobView],
    now_s: float,
    costs: Mapping[str, Millislices],
) -> Spare:
    """What running jobs leave of ``run_minutes``, which budgets had when limits were set."""
    held: Counter[str] = Counter()
    for job in jobs:
        if job.state is JobState.RUNNING and job.account in policy:
            minutes = minutes_left(job, run_cost(job.gpus, costs), now_s)
            for name in binding(policy, run_minutes, job.account):
                held[name] += minutes
    return Spare(
        {name: limit - held[name] for name, limit in run_minutes.items()},
        {name: binding(policy, run_minutes, name) for name in policy},
    )


def with_end(slot: SlotView, end: End | None, now_s: float) -> SlotView:
    """As the launcher sees it; what the slot itself says may come sooner."""
    left_s = None if end is None else max(0, int(end.at_s - now_s))
    if end is None or left_s is None or (slot.leaves_s is not None and slot.leaves_s <= left_s):
        return slot
    return slot.model_copy(update={"leaves_s": left_s, "leaves_why": end.why})


def _first(walls: Iterable[Wall]) -> Wall | None:
    return min(walls, key=lambda wall: wall.at_s, default=None)


def _unpaid(left: Sequence[int], slot: Leased, costs: Mapping[str, Millislices]) -> Iterator[Wall]:
    """The end of what its tenant's budget pays for, where ``left`` is of each limit."""
    if left and (cost := _cost(slot, costs)):
        at_s = slot.end_s + 60 * max(0, min(left) // cost)
        yield Wall(at_s, f"the budget of {slot.run.account} is used up then")


def _cost(slot: Leased, costs: Mapping[str, Millislices]) -> int:
    return run_cost(slot.run.gpus, costs)


def _standing(
    walls: Mapping[str, Sequence[Wall]], slot: Leased, costs: Mapping[str, Millislices]
) -> Iterator[Wall]:
    for node in slot.run.nodes:
        for wall in walls.get(node, ()):
            if wall.reservation is not None:
                yield from _of_reservation(wall, wall.reservation, node, slot)
            elif wall.job is None or _is_bigger(wall.job, slot.run, costs):
                yield wall


def _of_reservation(
    begin: Wall, reservation: ReservationView, node: str, slot: Leased
) -> Iterator[Wall]:
    """None for a replica on other cores of the node than those that are reserved; and of its own
    reservation the end: Slurm ends it then, unless that is a flexible one.
    """
    if reservation.name in slot.reservations:
        if "FLEX" not in reservation.flags:
            yield Wall(reservation.end_s, f"reservation {reservation.name} of {node} ends")
        return
    theirs, own = reservation.cores.get(node), slot.cores.get(node)
    if not theirs or not own or theirs & own:
        yield begin


def _is_bigger(job: JobView, run: JobView, costs: Mapping[str, Millislices]) -> bool:
    """More slices, CPUs or nodes, and not only GPUs of other types than the replica has."""
    asked, had = job.gpus, run.gpus
    if asked and not asked.keys() & had.keys():
        return False
    return any(mine < its for mine, its in zip(_size(run, costs), _size(job, costs), strict=True))


def _size(job: JobView, costs: Mapping[str, Millislices]) -> tuple[int, int, int]:
    slices = run_cost(job.gpus, costs)
    return slices, int(job.tres.get("cpu", "1")), int(job.tres.get("node", "1"))


def _minutes(slot: Leased, wall: Wall | None, now_s: float) -> int:
    """How many more; 0 while half of the lease is left."""
    if slot.end_s - now_s >= slot.lease_s / 2:
        return 0
    wanted = ceil((now_s + slot.lease_s - slot.end_s) / 60)
    return wanted if wall is None else max(0, min(wanted, _up_to(slot, wall)))


def _up_to(slot: Leased, wall: Wall) -> int:
    return floor((wall.at_s - slot.end_s) / 60)


def _end(slot: Leased, wall: Wall | None, now_s: float, *, extends: bool) -> End | None:
    """The script gives the slot back a little before its limit, so that Slurm need not kill it."""
    early_s = gives_back_s(slot.lease_s)
    if not extends:
        return End(slot.end_s - early_s, _NOT_EXTENDED)
    if wall is None:
        return None
    last_s = slot.end_s + 60 * max(0, _up_to(slot, wall))
    if now_s < wall.at_s < last_s:
        last_s = wall.at_s
    is_news = last_s - now_s <= max(slot.lease_s, _TOLD_S)
    return End(last_s - early_s, wall.why) if is_news else None
