"""Plans which slots of a service's array to release, hold or requeue, as the launcher desires."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.units import slices_text
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.common.released_soon import ReleasedSoon

_QUOTA_USED_UP = frozenset({"QOSGrpBilling", "QOSGrpGRES"})
"""Slurm's reasons: of slices, of instances of a type."""


@dataclass(frozen=True)
class SlotActions:
    """Actions on the slots of one array.

    Attributes:
        guarantee: slots in the borrowed QOS for which their tenant's own QOS has room.
        borrow: slots that are to run on borrowed quota, and are not in that QOS yet.
        release: held slots that are to run.
        hold: pending slots that are not to run (or that their user could release).
        requeue_hold: running slots that are to give their GPU back.
        revive: ended slots that Slurm can bring back, held.
        kept_back: desired slots that are not released because of the tenant's quota.
        note: why slots are kept back, for people to read.
    """

    guarantee: frozenset[int] = frozenset()
    borrow: frozenset[int] = frozenset()
    release: frozenset[int] = frozenset()
    hold: frozenset[int] = frozenset()
    requeue_hold: frozenset[int] = frozenset()
    revive: frozenset[int] = frozenset()
    kept_back: frozenset[int] = frozenset()
    note: str = ""

    @property
    def acts(self) -> bool:
        """Whether there is anything to do."""
        moved, started = self.guarantee | self.borrow, self.release | self.revive
        return bool(moved or started or self.hold or self.requeue_hold)


@dataclass(frozen=True)
class TenantCapacity:
    """What a tenant may have, and what its jobs hold or may take at any moment, in millislices.

    Attributes:
        own: limit of its own QOS.
        own_held: amount held of ``own``, including what jobs outside its two QOS take of it.
        most: limit with all that it might ever borrow; equals ``own`` if it may borrow nothing.
        held: amount held of ``most``, in any QOS.
        lacks_type: whether ``held`` counts slices that are free, and for which the guarantee has no
            more instances of the service's type.
    """

    own: int
    own_held: int
    most: int
    held: int
    lacks_type: bool = False


def plan_desired(
    service: ServiceView, desired_slots: frozenset[int], room: TenantCapacity | None
) -> SlotActions:
    """Turn the launcher's desired slots into actions; ``room`` is None for a tenant without quota.

    Held slots are released, lowest index first, while the tenant's own QOS has room, then while the
    tenant may borrow. Slots that it gives up make room only once they are free. Slots that
    wait in the borrowed QOS go back to the tenant's own QOS when that has room.
    """
    plan = _within_quota(service, desired_slots, room)
    taken = len(plan.release) * service.cost_millislices
    return replace(
        plan,
        hold=_indices(service, {"released"}) - desired_slots,
        requeue_hold=_indices(service, {"starting", "running"}) - desired_slots,
        note=_note(service, room, taken) if plan.kept_back else "",
    )


def released_soon(
    services: Iterable[ServiceView],
    kept_back: Mapping[int, frozenset[int]],
    room_of: Callable[[ServiceView], TenantCapacity | None],
) -> Mapping[int, ReleasedSoon]:
    """The slots that were ``kept_back`` and have room now, by array job id.

    Those of an array for which the tenant's own QOS has not room for all count in the borrowed one.
    Room for a type of GPU is asked for once of each tenant, and what one service takes of it is
    taken from the next.
    """
    rooms: dict[tuple[str, str], TenantCapacity | None] = {}
    soon: dict[int, ReleasedSoon] = {}
    for service in services:
        kept, alike = kept_back.get(service.array_job_id), (service.tenant, service.profile)
        if not kept:
            continue
        if alike not in rooms:
            rooms[alike] = room_of(service)
        room = rooms[alike]
        slots = plan_desired(service, kept, room).release
        if room is None or not slots:
            continue
        taken = len(slots) * service.cost_millislices
        is_own = room.own_held + taken <= room.own
        own_held = room.own_held + taken * is_own
        rooms[alike] = replace(room, held=room.held + taken, own_held=own_held)
        qos = qos_name(service.tenant) if is_own else borrowed_qos(service.tenant)
        soon[service.array_job_id] = ReleasedSoon(qos, slots)
    return soon


def plan_guard(
    service: ServiceView,
    desired_slots: frozenset[int],
    revive: frozenset[int] = frozenset(),
    room: TenantCapacity | None = None,
) -> SlotActions:
    """Slots to hold as soon as they are seen, and slots that are to borrow.

    Held are slots that their user could release, released slots that are not desired, those that
    wait for more than their tenant may even borrow, and slots that Slurm has requeued by itself:
    once they are held and released again, they need not wait out Slurm's delay. ``revive`` are lost
    slots that are due to be brought back. ``room`` is asked for where a slot
    ``waits_beyond_quota``, and is None for a tenant without quota.
    """
    releasable = _indices_of(service, lambda s: s.state == "held" and s.reason == "JobHeldUser")
    requeued = _indices_of(service, _was_requeued)
    loose = _indices(service, {"released"}) - desired_slots
    hold = releasable | requeued | loose
    too_much, borrow = _beyond_quota(service, room)
    return SlotActions(
        borrow=borrow - hold,
        hold=hold | too_much,
        revive=revive & lost_slots(service),
    )


def waits_beyond_quota(service: ServiceView) -> bool:
    """Whether a slot waits in its tenant's own QOS, whose limit keeps it from its start."""
    return bool(_waiting_for_quota(service))


def _beyond_quota(
    service: ServiceView, room: TenantCapacity | None
) -> tuple[frozenset[int], frozenset[int]]:
    """Slots that wait in their tenant's own QOS for more than it may even borrow, and slots that
    wait there for more than its guaranteed quota, and may borrow.

    They had room when they were released: then jobs of the tenant took it, or its quota shrank. A
    tenant within its quota only waits for what it has lent, whatever it holds on loan itself.
    Released slots count as held quota, so one that is too large for what is left would keep smaller
    ones from it.
    """
    if room is None or not service.cost_millislices:
        return frozenset(), frozenset()
    beyond, too_much = (
        -(-max(0, held - limit) // service.cost_millislices)
        for held, limit in ((room.own_held, room.own), (room.held, room.most))
    )
    too_much = min(too_much, beyond)
    waiting = sorted(_waiting_for_quota(service), reverse=True)
    return frozenset(waiting[:too_much]), frozenset(waiting[too_much:beyond])


def _waiting_for_quota(service: ServiceView) -> frozenset[int]:
    return _indices_of(
        service,
        lambda slot: (
            slot.state == "released" and not slot.is_borrowed and slot.reason in _QUOTA_USED_UP
        ),
    )


def lost_slots(service: ServiceView) -> frozenset[int]:
    """Ended slots that Slurm still has a record of, and so can bring back, held.

    Empty if all slots have ended or are ending: the service was cancelled.
    """
    if not living_slots(service):
        return frozenset()
    return _indices_of(service, lambda s: s.state == "gone" and s.job_id is not None)


def living_slots(service: ServiceView) -> frozenset[int]:
    """Slots that have not ended and are not ending."""
    return _indices(service, {"held", "released", "starting", "running"})


def borrowed_waiting(service: ServiceView) -> frozenset[int]:
    """Released slots that wait on borrowed quota."""
    return _indices_of(service, lambda slot: slot.state == "released" and slot.is_borrowed)


def were_cancelled(service: ServiceView, slots: frozenset[int]) -> bool | None:
    """Whether all of these slots were cancelled; None while some of them are still ending.

    Slurm has no record of a task that was cancelled before it ever started.
    """
    those = [slot for slot in service.slots if slot.index in slots]
    if living_slots(service) & slots or not those:
        return False
    if any(slot.state == "ending" for slot in those):
        return None
    return all(slot.slurm_state == "CANCELLED" or slot.job_id is None for slot in those)


def check_may_retire(service: ServiceView, others: Iterable[ServiceView]) -> None:
    """Check that an array may be retired.

    Raises InvalidInputError (SW-SERVICE-CHANGED) unless none of its slots is under way, and another
    array replaces it or its owner has ordered its end. An older array may replace it only if its
    file lets the roll-over be aborted.
    """
    key = (service.tenant, service.name, service.user)
    least = 0 if "abort_roll_after" in service.directives else service.array_job_id
    is_replaced = any(
        other.array_job_id > least
        and other.array_job_id != service.array_job_id
        and (other.tenant, other.name, other.user) == key
        for other in others
    )
    under_way = _indices(service, {"released", "starting", "running", "ending"})
    if not under_way and (is_replaced or service.order.delete_s is not None):
        return
    raise InvalidInputError(
        Code.SERVICE_CHANGED,
        f"Job {service.array_job_id}: some of its slots are active, or no other array replaces it.",
        f"To end it now, its owner can: scancel {service.array_job_id}",
    )


def desired_after_restart(service: ServiceView) -> frozenset[int]:
    """Slots that count as desired until the launcher sends others: all that are under way."""
    return _indices(service, {"released", "starting", "running"})


def last_end_s(
    jobs: Iterable[JobView], array_job_id: int, slots: frozenset[int], now_s: float
) -> float:
    """Unix second in which the last run of these held slots ended; 0 if none of them has run.

    A requeue sets the time of submission, so that is when the run before it ended. It is ``now_s``
    if that can't be read.
    """
    return max(
        (
            now_s if job.submit_s is None or "restarts" in job.unread else job.submit_s
            for job in jobs
            if job.array_job_id == array_job_id
            and job.task_index in slots
            and (job.restarts or "restarts" in job.unread)
        ),
        default=0,
    )


def released_millislices(tenant: str, services: Iterable[ServiceView], *, borrowed: bool) -> int:
    """Millislices that a tenant's released slots may take at any moment, in its own QOS or, with
    ``borrowed``, in the borrowed one.
    """
    return sum(
        slot.state == "released" and slot.is_borrowed is borrowed and service.cost_millislices
        for service in services
        if service.tenant == tenant
        for slot in service.slots
    )


def after(service: ServiceView, plan: SlotActions) -> ServiceView:
    """The service as it will look once the plan is carried out, until Slurm is looked at again."""
    return service.model_copy(
        update={"slots": tuple(_slot_after(slot, plan) for slot in service.slots)}
    )


def _slot_after(slot: SlotView, plan: SlotActions) -> SlotView:
    if slot.index in plan.guarantee | plan.borrow:
        slot = slot.model_copy(update={"is_borrowed": slot.index in plan.borrow})
    if slot.index in plan.release:
        return SlotView(index=slot.index, state="released", is_borrowed=slot.is_borrowed)
    if slot.index in plan.hold:
        change = {"state": "held", "reason": "JobHeldAdmin", "is_requeued": _was_requeued(slot)}
        return slot.model_copy(update=change)
    if slot.index in plan.requeue_hold:
        return slot.model_copy(update={"state": "ending"})
    return slot


def _was_requeued(slot: SlotView) -> bool:
    """Whether Slurm has requeued the slot by itself, and delays its next run."""
    return slot.state == "released" and slot.reason == "BeginTime"


def _indices(service: ServiceView, states: set[str]) -> frozenset[int]:
    return _indices_of(service, lambda slot: slot.state in states)


def _indices_of(service: ServiceView, is_one: Callable[[SlotView], bool]) -> frozenset[int]:
    return frozenset(slot.index for slot in service.slots if is_one(slot))


def _within_quota(
    service: ServiceView, desired_slots: frozenset[int], room: TenantCapacity | None
) -> SlotActions:
    """Plan the releases. Released slots in the borrowed QOS count within ``most`` already."""
    held = sorted(_indices(service, {"held"}) & desired_slots)
    borrowed = _indices_of(service, lambda slot: slot.is_borrowed)
    waiting = sorted(_indices(service, {"released"}) & desired_slots & borrowed)
    if room is None or not service.cost_millislices:
        return SlotActions(kept_back=frozenset(held))
    own = max(0, room.own - room.own_held) // service.cost_millislices
    more = max(0, room.most - room.held) // service.cost_millislices
    back = waiting[:own]
    release = held[:more]
    guaranteed = frozenset(release[: own - len(back)])
    return SlotActions(
        guarantee=frozenset(back) | (guaranteed & borrowed),
        borrow=frozenset(release) - guaranteed - borrowed,
        release=frozenset(release),
        kept_back=frozenset(held[more:]),
    )


def _note(service: ServiceView, room: TenantCapacity | None, taken: int) -> str:
    if room is None:
        return f"quota: {service.tenant} has none"
    if room.lacks_type:
        return f"quota: {service.tenant} has no more guaranteed {service.profile}, and borrows none"
    borrows = f", {slices_text(room.most)} with what it may borrow" if room.most > room.own else ""
    return (
        f"quota: {service.tenant} holds {slices_text(room.held + taken)} of "
        f"{slices_text(room.own)} slices{borrows}; a replica needs "
        f"{slices_text(service.cost_millislices)}"
    )
