"""Decides which replicas' time limits are extended, and which replicas must end, when and why.

A replica that the launcher wants gets a whole lease again when half of it is over. No lease reaches
past a wall: a reservation of the node, the time at which Slurm plans to start a bigger job there,
or the end of what the tenant's budget pays for. Slurm itself checks none of these when a time limit
is raised.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor

from slicewise.cluster.language.jobs import (
    REPARTITION_RESERVATION,
    JobState,
    JobView,
    PlannedStart,
    ReservationView,
)
from slicewise.cluster.language.service import DEFAULT_LEASE_S, gives_back_s, whole_number
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.rules.limits.budget_parts import binding, bindings, minutes_left
from slicewise.slurm_plugin.rules.quota.types import Policy

SlotKey = tuple[int, int]
"""A slot: array job id and index."""

SlotRunKey = tuple[int, int, int | None]
"""One run of a slot: the slot's key, and the run's start in Unix seconds."""

_TOLD_S = 900
"""Seconds: a wall that is farther away than this, and than a lease, is not reported yet."""
_NOT_EXTENDED = "leases are not extended here"


@dataclass(frozen=True)
class Leased:
    """One running slot.

    Attributes:
        run: the running task as Slurm shows it.
        is_wanted: whether the launcher wants the replica, and was heard within the lease.
        reservations: the names of the reservations in which the replica runs.
        cores: its cores by node, where they matter and are known.
    """

    key: SlotKey
    run: JobView
    end_s: int
    limit_min: int
    lease_s: int
    is_wanted: bool
    reservations: frozenset[str] = frozenset()
    cores: Mapping[str, frozenset[int]] = field(default_factory=dict, hash=False)

    @property
    def run_key(self) -> SlotRunKey:
        """The key of this run of the slot."""
        return (*self.key, self.run.start_s)


@dataclass(frozen=True)
class Wall:
    """A time by which a replica must be gone, and why.

    Attributes:
        at_s: Unix seconds.
        job: the job that is planned to start then, if any.
        reservation: the reservation that begins then, if any.
    """

    at_s: int
    why: str
    job: JobView | None = None
    reservation: ReservationView | None = None


@dataclass(frozen=True)
class LeaseEnd:
    """A replica must have ended by ``at_s`` (Unix seconds), whatever the launcher wants."""

    at_s: float
    why: str


@dataclass(frozen=True)
class Spare:
    """What budgets leave for extensions, in millislice-minutes.

    Attributes:
        left: what is left of each budget, by the budget's tenant.
        limits: the budgets that bind a tenant's jobs: its own and those of tenants above it.
    """

    left: Mapping[str, int] = field(default_factory=dict, hash=False)
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class LeasePlan:
    """New time limits in minutes, and ends, by run."""

    limits_min: Mapping[SlotRunKey, int] = field(default_factory=dict, hash=False)
    ends: Mapping[SlotRunKey, LeaseEnd] = field(default_factory=dict, hash=False)


def plan_leases(
    slots: Iterable[Leased],
    walls: Mapping[str, Sequence[Wall]],
    spare: Spare,
    now_s: float,
    costs: Mapping[str, Millislices],
    *,
    extends: bool,
) -> LeasePlan:
    """Plan leases, given ``walls`` by node; without ``extends`` replicas end with their leases."""
    left = dict(spare.left)
    limits_min: dict[SlotRunKey, int] = {}
    ends: dict[SlotRunKey, LeaseEnd] = {}
    for slot in slots:
        limits = spare.limits.get(holder_of(slot.run), ())
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
    desired_slots: Mapping[int, frozenset[int]],
    unheard_s: float,
) -> Iterator[Leased]:
    """Yield the running slots that have a time limit.

    ``desired_slots`` are the slots that the launcher wants, by array; it was last heard
    ``unheard_s`` ago.
    """
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
                is_wanted=slot.index in desired_slots.get(service.array_job_id, ())
                and unheard_s < lease_s,
            )


def lease_of(service: ServiceView) -> int:
    """Return the service's lease in seconds: its script's value, or the default."""
    return whole_number(service.directives, "lease_s", DEFAULT_LEASE_S)


def walls_of(
    reservations: Iterable[ReservationView],
    plans: Iterable[PlannedStart],
    jobs: Iterable[JobView],
) -> Mapping[str, Sequence[Wall]]:
    """Collect the walls by node.

    A repartition's reservation is none: replicas in its way are told to end, and all others stay.
    """
    waiting = {job.job_id: job for job in jobs}
    walls: dict[str, list[Wall]] = defaultdict(list)
    for reservation in (r for r in reservations if not r.name.startswith(REPARTITION_RESERVATION)):
        for node in reservation.nodes:
            why = f"reservation {reservation.name} of {node} begins"
            walls[node].append(Wall(reservation.start_s, why, reservation=reservation))
    for plan in plans:
        for node in plan.nodes if plan.job_id in waiting else ():
            why = f"job {waiting[plan.job_id].task} is to start on {node}"
            walls[node].append(Wall(plan.start_s, why, waiting[plan.job_id]))
    return walls


def spare_minutes(
    policy: Policy,
    run_minutes: Mapping[str, int],
    jobs: Iterable[JobView],
    now_s: float,
    costs: Mapping[str, Millislices],
) -> Spare:
    """Compute what running jobs leave of ``run_minutes``, as budgets were when limits were set."""
    held: Counter[str] = Counter()
    for job in jobs:
        tenant = holder_of(job)
        if job.state is JobState.RUNNING and tenant in policy:
            minutes = minutes_left(job, job_cost(job, costs), now_s)
            for name in binding(policy, run_minutes, tenant):
                held[name] += minutes
    return Spare(
        {name: limit - held[name] for name, limit in run_minutes.items()},
        bindings(policy, run_minutes),
    )


def with_end(slot: SlotView, end: LeaseEnd | None, now_s: float) -> SlotView:
    """Return the slot as the launcher sees it, with the earlier of its own end and ``end``."""
    left_s = None if end is None else max(0, int(end.at_s - now_s))
    if end is None or left_s is None or (slot.ends_in_s is not None and slot.ends_in_s <= left_s):
        return slot
    return slot.model_copy(update={"ends_in_s": left_s, "ends_why": end.why})


def _first(walls: Iterable[Wall]) -> Wall | None:
    return min(walls, key=lambda wall: wall.at_s, default=None)


def _unpaid(left: Sequence[int], slot: Leased, costs: Mapping[str, Millislices]) -> Iterator[Wall]:
    """Yield a wall at the end of what budgets pay for; ``left`` has what each of them has left."""
    if left and (cost := _cost(slot, costs)):
        at_s = slot.end_s + 60 * max(0, min(left) // cost)
        yield Wall(at_s, f"the budget of {holder_of(slot.run)} is used up then")


def _cost(slot: Leased, costs: Mapping[str, Millislices]) -> int:
    return job_cost(slot.run, costs)


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
    """Yield the wall that a reservation is for a replica, if any.

    There is none if the reservation has only other cores of the node. A replica in the reservation
    ends with it, unless the reservation is flexible.
    """
    if reservation.name in slot.reservations:
        if "FLEX" not in reservation.flags:
            yield Wall(reservation.end_s, f"reservation {reservation.name} of {node} ends")
        return
    theirs, own = reservation.cores.get(node), slot.cores.get(node)
    if not theirs or not own or theirs & own:
        yield begin


def _is_bigger(job: JobView, run: JobView, costs: Mapping[str, Millislices]) -> bool:
    """Whether a job needs more slices, CPUs or nodes than a replica.

    False if the job's GPUs are all of other types than the replica's.
    """
    asked, had = job.gpus, run.gpus
    if asked and not asked.keys() & had.keys():
        return False
    return any(mine < its for mine, its in zip(_size(run, costs), _size(job, costs), strict=True))


def _size(job: JobView, costs: Mapping[str, Millislices]) -> tuple[int, int, int]:
    slices = job_cost(job, costs)
    return slices, int(job.tres.get("cpu", "1")), int(job.tres.get("node", "1"))


def _minutes(slot: Leased, wall: Wall | None, now_s: float) -> int:
    """Return the minutes by which to extend the limit; 0 while half of the lease is left."""
    if slot.end_s - now_s >= slot.lease_s / 2:
        return 0
    wanted = ceil((now_s + slot.lease_s - slot.end_s) / 60)
    return wanted if wall is None else max(0, min(wanted, _up_to(slot, wall)))


def _up_to(slot: Leased, wall: Wall) -> int:
    return floor((wall.at_s - slot.end_s) / 60)


def _end(slot: Leased, wall: Wall | None, now_s: float, *, extends: bool) -> LeaseEnd | None:
    """Return a replica's end and the reason; None if no end is near.

    The script gives the slot back a little before the limit, so that Slurm need not kill it.
    """
    early_s = gives_back_s(slot.lease_s)
    if not extends:
        return LeaseEnd(slot.end_s - early_s, _NOT_EXTENDED)
    if wall is None:
        return None
    last_s = slot.end_s + 60 * max(0, _up_to(slot, wall))
    if now_s < wall.at_s < last_s:
        last_s = wall.at_s
    is_news = last_s - now_s <= max(slot.lease_s, _TOLD_S)
    return LeaseEnd(last_s - early_s, wall.why) if is_news else None
