"""Decides which slots of a service run, which drain and which are given back.

Terms: a slot is one task of a service's job array; it is held in Slurm, or released to run one
replica. A generation is one job array of a service.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from slicewise.launcher.rules.gateway.types import ServerMode

DRAIN_DEADLINE_S = 600.0
"""Seconds after which a draining replica's remaining requests are cut off. The gateway does not
wait longer for a replica that does not answer, either."""


@dataclass(frozen=True, order=True)
class SlotId:
    """A slot of a service: the job array of its generation, and its task index there."""

    array_job_id: int
    index: int


class Phase(StrEnum):
    """What a slot does for its service."""

    HELD = "held"
    """Held in Slurm: costs nothing and may be started."""
    STARTING = "starting"
    """On its way: released, allotted a slice, or running but not ready yet."""
    WARM = "warm"
    """Ready and verified, but gets no requests."""
    SERVING = "serving"
    DRAINING = "draining"
    """Gets no new requests and finishes those that it has."""
    ENDING = "ending"
    """Slurm is ending it; it finishes its requests if Slurm leaves it the time."""
    OUT = "out"
    """Gone, or unfit for requests."""


class Expiry(IntEnum):
    """How near the announced end of the slot's run is."""

    FAR = 0
    SOON = 1
    """Its successor starts; the slot drains once the successor serves."""
    NOW = 2
    """The slot drains even without a successor: Slurm is about to end it."""


@dataclass(frozen=True)
class Slot:
    """One slot as the launcher sees it: Slurm's state joined with the gateway's.

    Attributes:
        up: whether a serving or draining replica passes its health checks.
        allotted: whether Slurm has given it a slice.
        is_outdated: whether it is of an older generation, started before its owner ordered a
            restart, is on a node that is drained, or is told to end before it is ready.
        is_borrowed: whether it uses borrowed quota, which the lender may take back.
        is_drained: whether it has drained: it gets no requests any more.
        is_stuck: whether it waits for a slice without prospect: a limit keeps it from starting, or
            Slurm has found none for long.
        node_held_millislices: what all jobs hold of its node; 0 if that is not known.
        is_doubted: whether it gets no requests until it has answered an inference.
        models: how many models of its pool it has ready; 0 without a pool.
        is_configuring: whether Slurm still gets its node ready, which may have to boot.
    """

    id: SlotId
    phase: Phase
    in_flight: int = 0
    up: bool = True
    allotted: bool = False
    expiry: Expiry = Expiry.FAR
    is_outdated: bool = False
    is_borrowed: bool = False
    is_drained: bool = False
    is_stuck: bool = False
    node_held_millislices: int = 0
    is_doubted: bool = False
    models: int = 0
    is_configuring: bool = False

    @property
    def is_replaced(self) -> bool:
        """Whether another slot shall take its place."""
        return self.is_outdated or (bool(self.expiry) and self.phase is not Phase.STARTING)


@dataclass(frozen=True)
class Goal:
    """What the slots of all generations of a service shall come to.

    Attributes:
        wanted: replicas wanted.
        newest: generation in which new replicas start.
        fallback: older generation in which replicas start while the newest fails; None if there is
            none.
        failures: starts of the newest generation that failed in a row; if any, only one start at a
            time is made, as a probe.
        may_start: whether the pause after the last failed start is over.
        most: replicas that the gateway can carry for one service.
        kept_back: held slots of the newest generation that quota kept from starting.
        is_firm: whether quota kept them back while no slot was on its way out.
        late: slots that have drained for so long that their requests in flight are cut.
    """

    wanted: int
    newest: int
    fallback: int | None = None
    failures: int = 0
    may_start: bool = True
    most: int = 256
    kept_back: frozenset[int] = frozenset()
    is_firm: bool = False
    late: frozenset[SlotId] = frozenset()


@dataclass(frozen=True)
class SlotPlan:
    """Which slots shall run, and in which mode their servers shall be.

    Attributes:
        run: slots to ask the daemon for; every other slot is held.
        modes: modes of servers, by slot; the servers of all other slots are in maintenance.
        is_quiet: whether no slot is on its way out: what quota keeps back now stays kept back.
    """

    run: frozenset[SlotId]
    modes: Mapping[SlotId, ServerMode] = field(hash=False)
    is_quiet: bool


def loss_text(lost: Collection[int]) -> str:
    """Return a text for users about slots with a task that ended for good; "" if there are none.

    Slurm never fills an index of an array again.
    """
    if not lost:
        return ""
    slots, them = ("1 slot is", "it") if len(lost) == 1 else (f"{len(lost)} slots are", "them")
    return f"{slots} lost for good; apply the service again to replace {them}"


_COSTS = frozenset({Phase.STARTING, Phase.WARM, Phase.SERVING, Phase.DRAINING})
_COMES = _COSTS - {Phase.DRAINING}
_RANK = {Phase.SERVING: 0, Phase.WARM: 1, Phase.DRAINING: 2, Phase.STARTING: 3}


def coming(slots: Iterable[Slot]) -> int:
    """Count replicas that serve or will, pending ones too: a slow queue must not multiply jobs."""
    return sum(slot.phase in _COMES for slot in slots)


def plan_slots(slots: Sequence[Slot], goal: Goal) -> SlotPlan:
    """Keep the best ``wanted`` slots, start what is missing, and let the others end in good order.

    Slots are kept in this order: serving, warm, draining (taking one back is quicker than a start),
    starting; allotted ones before pending ones; those in doubt, which get no requests, last. Among
    equals, borrowed slots are given up first, then those with the fewest requests, then those with
    the fewest models of their pool, which others had to load again, then those on the node with the
    least held: it may become empty. Slots that are being replaced (outdated, or
    near their end) don't count, so that successors start beside them; as many of them stay as
    successors are not ready yet.

    A serving slot that is given up drains first and stays among the desired. Once it has nothing in
    flight, or is late, its server goes into maintenance. The next look finds it without a route,
    and only then is it left out of them.
    """
    costing = sorted((s for s in slots if s.phase in _COSTS), key=order_of)
    staying = _one_probing([s for s in costing if not s.is_replaced], goal)
    replaced = [s for s in costing if s.is_replaced and _may_stay(s, goal)]
    held = [s for s in slots if s.phase is Phase.HELD]
    kept = staying[: goal.wanted]
    missing = goal.wanted - len(staying)
    start = _starts(held, goal.newest, min(missing, _startable(kept, replaced, held, goal)))
    ready = sum(s.phase is Phase.SERVING and s.up and not s.is_doubted for s in kept)
    if _is_short(kept, missing, start, goal):
        kept_replaced = _making_room(slots, replaced, goal, ready, start)
    else:
        kept_replaced = replaced[: max(0, goal.wanted - ready)]
    keep = _ids(kept) | _ids(kept_replaced)
    if goal.fallback is not None:
        start |= _starts(held, goal.fallback, goal.wanted - ready - len(kept_replaced))
    leaving = _ids(s for s in slots if s.phase in {Phase.SERVING, Phase.DRAINING}) - keep
    modes = {s.id: mode for s in slots if (mode := _mode(s, keep, goal.late)) is not None}
    return SlotPlan(keep | start | leaving, modes, is_quiet=not any(map(_goes, slots)))


def order_of(slot: Slot) -> tuple[bool, int, bool, bool, int, int, bool, int, SlotId]:
    """Return by what slots are ordered, the first to be kept first, as ``plan_slots`` says."""
    return (
        slot.is_doubted,
        _RANK[slot.phase],
        not slot.up,
        slot.is_borrowed,
        -slot.in_flight,
        -slot.models,
        not slot.allotted,
        -slot.node_held_millislices,
        slot.id,
    )


def _ids(slots: Iterable[Slot]) -> frozenset[SlotId]:
    return frozenset(slot.id for slot in slots)


def _one_probing(staying: list[Slot], goal: Goal) -> list[Slot]:
    """After a failed start, drop slots that only wait for Slurm, except the one that probes."""
    if not goal.failures:
        return staying
    first = next((s for s in staying if s.phase is Phase.STARTING), None)
    return [s for s in staying if s.phase is not Phase.STARTING or s.allotted or s is first]


def _may_stay(slot: Slot, goal: Goal) -> bool:
    if slot.expiry is Expiry.NOW and (slot.is_outdated or slot.phase is not Phase.STARTING):
        return False
    return slot.allotted or slot.id.array_job_id == goal.fallback


def _startable(
    kept: Sequence[Slot], replaced: Sequence[Slot], held: Iterable[Slot], goal: Goal
) -> int:
    """Count the slots of the newest generation that may start now; the daemon checks the quota."""
    lines = goal.most - len(kept) - len(replaced)
    count = min(lines, sum(s.id.array_job_id == goal.newest for s in held))
    if goal.failures:
        count = min(count, 1 - sum(s.phase is Phase.STARTING for s in kept))
    return max(0, count) if goal.may_start else 0


def _is_short(kept: Sequence[Slot], missing: int, start: frozenset[SlotId], goal: Goal) -> bool:
    """Whether successors are wanted for which there is no room."""
    is_stuck = any(s.is_stuck for s in kept)
    kept_back = any(slot.index in goal.kept_back for slot in start)
    return not goal.failures and (is_stuck or kept_back or missing > len(start))


def _making_room(
    slots: Iterable[Slot],
    replaced: Iterable[Slot],
    goal: Goal,
    ready: int,
    start: frozenset[SlotId],
) -> Sequence[Slot]:
    """Return the replaced slots that stay while successors find no room: one fewer at a time."""
    serving = [s for s in replaced if s.phase in {Phase.SERVING, Phase.WARM} and not _goes(s)]
    is_new = any(slot.index not in goal.kept_back for slot in start)
    gives = not is_new and _gives_way(slots, len(serving), goal, ready)
    return serving[: max(0, min(goal.wanted - ready, len(serving) - gives))]


def _gives_way(slots: Iterable[Slot], serving: int, goal: Goal, ready: int) -> bool:
    """Whether one outdated replica goes now, to make room for a successor.

    None goes while another is on its way out or a successor on its way in. Where Slurm has no slice
    for a successor, other jobs may take the slice that is given up: then only one replica may be
    missing at a time.
    """
    outdated = is_stuck = False
    for slot in slots:
        if slot.is_stuck:
            is_stuck = True
        elif _goes(slot) or (not slot.is_replaced and slot.phase in {Phase.STARTING, Phase.WARM}):
            return False
        outdated = outdated or (slot.is_outdated and slot.phase is Phase.SERVING)
    if not outdated or (goal.kept_back and not goal.is_firm):
        return False
    return not is_stuck or ready + serving >= goal.wanted


def _goes(slot: Slot) -> bool:
    """Whether the slot is on its way out, so that its slice becomes free soon."""
    if slot.phase in {Phase.DRAINING, Phase.ENDING}:
        return not slot.is_doubted
    return slot.is_drained or (slot.is_outdated and slot.phase is Phase.STARTING)


def _starts(held: Iterable[Slot], array_job_id: int, count: int) -> frozenset[SlotId]:
    own = sorted(slot.id for slot in held if slot.id.array_job_id == array_job_id)
    return frozenset(own[: max(0, count)])


def _mode(slot: Slot, keep: frozenset[SlotId], late: frozenset[SlotId]) -> ServerMode | None:
    """Return the mode of the slot's server; None is maintenance."""
    if slot.phase is Phase.ENDING:
        return ServerMode.DRAIN if slot.in_flight else None
    if slot.phase not in {Phase.WARM, Phase.SERVING, Phase.DRAINING}:
        return None
    if slot.id in keep:
        return ServerMode.DRAIN if slot.is_doubted else ServerMode.READY
    if slot.phase is Phase.SERVING:
        return ServerMode.DRAIN
    unfinished = slot.in_flight > 0 and slot.id not in late
    return ServerMode.DRAIN if slot.phase is Phase.DRAINING and unfinished else None
