"""Slots: what to do with a service's array so that it becomes as it is wished."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.units import slices_text
from cluster.wire import ServiceView, SlotView, TenantView


@dataclass(frozen=True)
class SlotPlan:
    """What to do with the slots of one array.

    Attributes:
        release: held ones that shall run.
        hold: pending ones that shall not run (or that their user could release).
        requeue_hold: running ones that shall give their GPU back.
        kept_back: wished ones that are not released, because of the tenant's quota.
        note: why they are kept back, for people.
    """

    release: frozenset[int] = frozenset()
    hold: frozenset[int] = frozenset()
    requeue_hold: frozenset[int] = frozenset()
    kept_back: frozenset[int] = frozenset()
    note: str = ""


def plan_wish(
    service: ServiceView, wished: frozenset[int], tenant: TenantView | None, held_millislices: int
) -> SlotPlan:
    """Turn the launcher's wish into actions.

    ``held_millislices`` is what the tenant's jobs hold or may take at any moment
    (``committed_millislices``). Held slots are released, lowest index first, while that stays
    within the tenant's nominal quota; slots that the wish gives up make room only once they are
    free.
    """
    release, kept_back = _within_quota(service, wished, tenant, held_millislices)
    taken = len(release) * service.cost_millislices
    return SlotPlan(
        release=release,
        hold=_indices(service, {"released"}) - wished,
        requeue_hold=_indices(service, {"starting", "running"}) - wished,
        kept_back=kept_back,
        note=_note(service, tenant, held_millislices + taken) if kept_back else "",
    )


def plan_guard(service: ServiceView, wished: frozenset[int]) -> SlotPlan:
    """What to hold on sight: slots that their user could release, and unheld ones nobody wished."""
    releasable = frozenset(
        s.index for s in service.slots if s.state == "held" and s.reason == "JobHeldUser"
    )
    return SlotPlan(hold=releasable | (_indices(service, {"released"}) - wished))


def wished_after_restart(service: ServiceView) -> frozenset[int]:
    """What counts as wished until the launcher wishes anew: everything that is under way."""
    return _indices(service, {"released", "starting", "running"})


def committed_millislices(
    tenant: str, services: Iterable[ServiceView], used: Mapping[str, int]
) -> int:
    """What a tenant's jobs hold now, and what its services' released slots may take any moment."""
    released = sum(
        len(_indices(service, {"released"})) * service.cost_millislices
        for service in services
        if service.tenant == tenant
    )
    return used.get(tenant, 0) + released


def after(service: ServiceView, plan: SlotPlan) -> ServiceView:
    """The service as it will look once the plan is carried out, until Slurm is looked at again."""
    return service.model_copy(
        update={"slots": tuple(_slot_after(slot, plan) for slot in service.slots)}
    )


def _slot_after(slot: SlotView, plan: SlotPlan) -> SlotView:
    if slot.index in plan.release:
        return SlotView(index=slot.index, state="released")
    if slot.index in plan.hold:
        return SlotView(index=slot.index, state="held", reason="JobHeldAdmin")
    if slot.index in plan.requeue_hold:
        return slot.model_copy(update={"state": "ending"})
    return slot


def _indices(service: ServiceView, states: set[str]) -> frozenset[int]:
    return frozenset(slot.index for slot in service.slots if slot.state in states)


def _within_quota(
    service: ServiceView, wished: frozenset[int], tenant: TenantView | None, held_millislices: int
) -> tuple[frozenset[int], frozenset[int]]:
    wanted = sorted(_indices(service, {"held"}) & wished)
    room = (tenant.nominal_millislices if tenant else 0) - held_millislices
    fitting = max(0, room // service.cost_millislices) if service.cost_millislices else 0
    return frozenset(wanted[:fitting]), frozenset(wanted[fitting:])


def _note(service: ServiceView, tenant: TenantView | None, held_millislices: int) -> str:
    if tenant is None:
        return f"quota: {service.tenant} has none"
    return (
        f"quota: {service.tenant} holds {slices_text(held_millislices)} of "
        f"{slices_text(tenant.nominal_millislices)} slices, a replica needs "
        f"{slices_text(service.cost_millislices)}"
    )
