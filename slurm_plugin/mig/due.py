"""Chooses the repartitions to make now, such that Slurm can have an order of devices for each."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cluster.language.errors import InvalidInputError
from cluster.mig.layouts import Placement
from slurm_plugin.mig.checks import planned
from slurm_plugin.mig.gpu_state import NodeLook, devices_at
from slurm_plugin.mig.planner import GpuPlan, plan
from slurm_plugin.mig.problem import PlanInput, SitePlanInput
from slurm_plugin.mig.steps import PlannedRepartition
from slurm_plugin.slurm_config.gres import Device
from slurm_plugin.slurm_config.node_lines import positions


def cuts_due(found: SitePlanInput) -> tuple[PlannedRepartition, ...]:
    """The repartitions to make now, for each board the best first.

    If Slurm has no order of devices for a GPU that is cut fully, only the instances that are asked
    for are created.
    """
    return tuple(due for one in found.boards.values() for due in _of_board(found, one))


def _of_board(found: SitePlanInput, of: PlanInput) -> Iterator[PlannedRepartition]:
    for step in plan(of.board, of.gpus, of.demand, of.terms):
        look = found.looks[step.node]
        is_full = has_order(look, step, [of.types[one.profile] for one in step.create])
        can_be = step if is_full else replace(step, create=step.asked)
        yield planned(can_be, found.layouts[step.gpu])


def has_order(look: NodeLook, step: GpuPlan, created: Sequence[str]) -> bool:
    """Whether Slurm has an order for the node's devices after the step.

    Instances of the ``created`` types replace those that the step destroys, and each job that stays
    must keep its devices.
    """
    before = look.positions
    if isinstance(before, str):
        return False
    gone = set(_devices(look, step.gpu, step.destroy))
    stays = [one for one in before if one is not None and one not in gone]
    new = [Device(kind, (f"created {number}",)) for number, kind in enumerate(created)]
    held = look.node.gpus_held - {i for i, one in enumerate(before) if one in gone}
    try:
        positions(before, (*stays, *new), held)
    except InvalidInputError:
        return False
    return True


def _devices(look: NodeLook, gpu: str, those: Collection[Placement]) -> Iterator[Device]:
    for one in look.inventory.gpus if look.inventory is not None else ():
        if one.uuid == gpu:
            there: Mapping[Placement, Device] = devices_at(look, one)
            yield from (there[place] for place in those if place in there)
