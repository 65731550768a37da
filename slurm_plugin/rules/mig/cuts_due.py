"""Chooses the repartitions to make now, such that Slurm can have an order of devices for each."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
)
from slicewise.slurm_plugin.rules.mig.gpu_state import NodeLook, devices_at
from slicewise.slurm_plugin.rules.mig.node_checks import planned
from slicewise.slurm_plugin.rules.mig.planner import GpuChange, plan
from slicewise.slurm_plugin.rules.mig.problem import PlanInput, SitePlanInput
from slicewise.slurm_plugin.rules.slurm_config.gres import Device
from slicewise.slurm_plugin.rules.slurm_config.node_lines import positions

MOST_IN_A_RUN = 8
"""Most repartitions that one run makes, one after the other, each by a plan of its own."""
STARTS_S = 10.0
"""Seconds between two of them: Slurm first starts what waited for the node, which the next one may
reserve again."""
_NAMED = 3
"""Most nodes that a line names."""


@dataclass(frozen=True)
class GpuRepartition:
    """What becomes of one GPU of a node.

    Attributes:
        created: GRES types of the new instances.
    """

    gpu: str
    destroyed: tuple[Placement, ...]
    created: tuple[str, ...]


@dataclass(frozen=True)
class DueRepartitions:
    """What a plan comes to.

    Attributes:
        now: the repartitions to make now, for each board the best first.
        barred: GRES types for which jobs wait and which nothing in ``now`` creates, because Slurm
            has no order of devices for that (SW-REPARTITION-HELD); with the nodes that were tried.
    """

    now: tuple[PlannedRepartition, ...]
    barred: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


def cuts_due(site_plan_input: SitePlanInput) -> DueRepartitions:
    """Plan the repartitions to make now.

    If Slurm has no order of devices for a GPU that is cut fully, only the instances that are asked
    for are created. If it has none for these either, another change is planned.
    """
    orders = _Orders(site_plan_input)
    now = tuple(
        due
        for board in site_plan_input.boards.values()
        for due in _of_board(site_plan_input, board, orders)
    )
    return DueRepartitions(now, orders.barred())


def _of_board(
    site_plan_input: SitePlanInput, of: PlanInput, orders: "_Orders"
) -> Iterator[PlannedRepartition]:
    def can_be(changes: Sequence[GpuChange]) -> bool:
        repartitions = [
            _repartition(
                gpu.name,
                (instance_state.placement for instance_state in change.destroyed),
                change.created,
                of.types,
            )
            for gpu, change in changes
        ]
        return orders.try_also(changes[-1][0].node, repartitions)

    orders.awaited |= {of.types[request.profile] for request in of.demand.waiting}
    for step in plan(of.board, of.gpus, of.demand, of.terms, can_be):
        # What is asked for may lack an order, too, if an earlier step has filled its GPU.
        for created in dict.fromkeys((step.create, step.asked)):
            repartition = _repartition(step.gpu, step.destroy, created, of.types)
            if orders.try_also(step.node, [repartition]):
                orders.decided[step.node].append(repartition)
                yield planned(replace(step, create=created), site_plan_input.layouts[step.gpu])
                break


def _repartition(
    gpu: str,
    destroyed: Iterator[Placement] | tuple[Placement, ...],
    created: Sequence[Placement],
    types: Mapping[str, str],
) -> GpuRepartition:
    return GpuRepartition(
        gpu, tuple(destroyed), tuple(types[placement.profile] for placement in created)
    )


class _Orders:
    """Which repartitions Slurm has orders for, and which have been decided, by node."""

    def __init__(self, site_plan_input: SitePlanInput) -> None:
        self._looks = site_plan_input.looks
        self._known: dict[tuple[str, tuple[GpuRepartition, ...]], bool] = {}
        self._refused = defaultdict[str, set[str]](set)
        self.awaited: set[str] = set()
        self.decided = defaultdict[str, list[GpuRepartition]](list)

    def try_also(self, node: str, more: Sequence[GpuRepartition]) -> bool:
        """Whether Slurm has an order for the node with these beside what is decided there."""
        repartitions = (*self.decided[node], *more)
        can = self._known.get((node, repartitions))
        if can is None:
            can = self._known[node, repartitions] = has_order(self._looks[node], repartitions)
        if not can:
            for gres_type in more[-1].created:
                self._refused[gres_type].add(node)
        return can

    def barred(self) -> Mapping[str, tuple[str, ...]]:
        made = {
            gres_type
            for those in self.decided.values()
            for repartition in those
            for gres_type in repartition.created
        }
        kinds = (self._refused.keys() & self.awaited) - made
        return {gres_type: tuple(sorted(self._refused[gres_type])) for gres_type in sorted(kinds)}


def barred_lines(due: DueRepartitions) -> list[str]:
    """What Slurm's order of devices keeps from being created, one line each type."""
    return [
        f"No {gres_type} can be created on {_names(nodes)}: Slurm has no order of devices for it"
        f" in which running jobs keep theirs ({Code.REPARTITION_HELD}). Planned again when some"
        " have ended."
        for gres_type, nodes in due.barred.items()
    ]


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f"{', '.join(nodes[:_NAMED])}{more}"


def has_order(look: NodeLook, repartitions: Sequence[GpuRepartition]) -> bool:
    """Whether Slurm has an order for the node's devices after these repartitions.

    Each job that stays must keep its devices.
    """
    before = look.positions
    if isinstance(before, str):
        return False
    gone = {
        device
        for repartition in repartitions
        for device in _devices(look, repartition.gpu, repartition.destroyed)
    }
    stays = [device for device in before if device is not None and device not in gone]
    created = Counter(
        gres_type for repartition in repartitions for gres_type in repartition.created
    )
    new = [
        Device(gres_type, (f"created {number}",))
        for gres_type, count in created.items()
        for number in range(count)
    ]
    held = look.node.gpus_held - {i for i, device in enumerate(before) if device in gone}
    try:
        positions(before, (*stays, *new), held)
    except InvalidInputError:
        return False
    return True


def _devices(look: NodeLook, gpu: str, those: Collection[Placement]) -> Iterator[Device]:
    for inventory_gpu in look.inventory.gpus if look.inventory is not None else ():
        if inventory_gpu.uuid == gpu:
            devices: Mapping[Placement, Device] = devices_at(look, inventory_gpu)
            yield from (devices[place] for place in those if place in devices)
