"""Which slots run, which drain, which are given back."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from launcher.decide.gateway import Mode

DRAIN_DEADLINE_S = 60.0
"""A draining replica that still works after this is cut off."""


class Phase(StrEnum):
    """What a slot does for its service."""

    HELD = "held"
    """Costs nothing; may be started."""
    STARTING = "starting"
    """Released, allotted, or running and not ready yet: it is on its way."""
    WARM = "warm"
    """Ready and verified, gets no requests."""
    SERVING = "serving"
    DRAINING = "draining"
    """Finishes what it has."""
    OUT = "out"
    """Ending, gone, failing its health checks for long, or beyond what the gateway can carry."""


class Expiry(IntEnum):
    """How near the end of the slot's time limit is."""

    FAR = 0
    SOON = 1
    """Its successor starts; it drains once that one serves."""
    NOW = 2
    """It drains, successor or not: Slurm is about to end it."""


@dataclass(frozen=True)
class Slot:
    """One slot as the launcher sees it: Slurm's state joined with the gateway's.

    Attributes:
        up: what serves or drains passes its health checks.
        allotted: Slurm has given it a slice.
    """

    index: int
    phase: Phase
    in_flight: int = 0
    up: bool = True
    allotted: bool = False
    expiry: Expiry = Expiry.FAR


@dataclass(frozen=True)
class SlotPlan:
    """What shall be.

    Attributes:
        run: the wish for the daemon; every other slot is held.
        modes: of the servers that shall not be in maintenance.
    """

    run: frozenset[int]
    modes: Mapping[int, Mode] = field(hash=False)


def loss_text(lost: Collection[int]) -> str:
    """What people should know about slots whose task ended for good; "" if there are none.

    Slurm never fills an index of an array again.
    """
    if not lost:
        return ""
    slots, them = ("1 slot is", "it") if len(lost) == 1 else (f"{len(lost)} slots are", "them")
    return f"{slots} lost for good; delete and apply the service to get {them} back"


_COSTS = frozenset({Phase.STARTING, Phase.WARM, Phase.SERVING, Phase.DRAINING})
_RANK = {Phase.SERVING: 0, Phase.WARM: 1, Phase.DRAINING: 2, Phase.STARTING: 3}


def supply(slots: Iterable[Slot]) -> int:
    """Replicas that serve or will: a slow queue must not multiply jobs."""
    return sum(slot.phase in _COSTS - {Phase.DRAINING} for slot in slots)


def plan_slots(
    slots: tuple[Slot, ...],
    wanted: int,
    *,
    may_start: bool,
    drained_out: frozenset[int],
) -> SlotPlan:
    """Keep the best ``wanted`` slots, start what is missing, let the others go in good order.

    Kept first: serving ones (the busiest first, so the victim is the one with the least to do),
    then warm, draining (taking one back is quicker than a start), starting, allotted before
    pending. Slots near the end of their time limit don't count, so successors start beside them.

    A serving victim drains first and stays wished; once it has nothing in flight, or is in
    ``drained_out`` (past the deadline), its server goes into maintenance; the next look finds it
    without a route, and only then is it left out of the wish.
    """
    expiring = tuple(s for s in slots if s.expiry and s.phase in _COSTS - {Phase.STARTING})
    staying = sorted((s for s in slots if s.phase in _COSTS and s not in expiring), key=_order)
    keep = _indices(staying[:wanted])
    serving = sum(s.phase is Phase.SERVING and s.up and s.index in keep for s in slots)
    keep |= {s.index for s in expiring if _waits_for_successor(s, serving >= wanted)}
    modes = {s.index: mode for s in slots if (mode := _mode(s, keep, drained_out)) is not None}
    start = _starts(slots, wanted - len(staying)) if may_start else frozenset()
    leaving = {s.index for s in slots if s.phase in {Phase.SERVING, Phase.DRAINING}} - keep
    return SlotPlan(keep | start | leaving, modes)


def _order(slot: Slot) -> tuple[int, bool, int, bool, int]:
    return (_RANK[slot.phase], not slot.up, -slot.in_flight, not slot.allotted, slot.index)


def _indices(slots: Iterable[Slot]) -> frozenset[int]:
    return frozenset(slot.index for slot in slots)


def _waits_for_successor(slot: Slot, replaced: bool) -> bool:
    return slot.phase is Phase.SERVING and slot.expiry is Expiry.SOON and not replaced


def _mode(slot: Slot, keep: frozenset[int], drained_out: frozenset[int]) -> Mode | None:
    """None is maintenance."""
    if slot.phase not in {Phase.WARM, Phase.SERVING, Phase.DRAINING}:
        return None
    if slot.index in keep:
        return Mode.READY
    if slot.phase is Phase.SERVING:
        return Mode.DRAIN
    unfinished = slot.in_flight > 0 and slot.index not in drained_out
    return Mode.DRAIN if slot.phase is Phase.DRAINING and unfinished else None


def _starts(slots: Iterable[Slot], missing: int) -> frozenset[int]:
    held = sorted(slot.index for slot in slots if slot.phase is Phase.HELD)
    return frozenset(held[: max(0, missing)])
