"""How the GPUs of one node of a simulated site are cut: what its driver and Slurm's files say."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.inventory import Gpu, Health, Inventory
from slicewise.cluster.language.gpus.mig_profiles import Board, board
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
)
from slicewise.cluster.language.jobs import SHAPES_NODE, NodeView
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.slurm_plugin.rules.mig.gpu_state import NodeLook
from slicewise.slurm_plugin.rules.mig.node_checks import indices_of, only, with_layout
from slicewise.slurm_plugin.rules.slurm_config.gres import Device, ProfileKind, devices_of
from slicewise.slurm_plugin.rules.slurm_config.node_lines import Positions, counts_by_run, positions
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_DEVICES = "/dev"
_UNREAD = Health(None, None, None, None, None)


class NodeCuts:
    """The GPUs of a node, with their instances, and Slurm's devices of them."""

    def __init__(self, node: SimulatedNode, types: Mapping[ProfileKind, str]) -> None:
        """Begin with the node as the cluster has it; ``types`` are the site's GRES types."""
        self._types, self.name = types, node.name
        self._inventory = _inventory(node)
        self._positions = _positions(node.gpus, self._devices(self._inventory))

    @property
    def gpus(self) -> Mapping[str, int]:
        """GPUs by type in the order of Slurm's indices; each run of pads is a type of its own."""
        return counts_by_run(self._positions)

    def look(self, view: NodeView) -> NodeLook:
        """The node as the planner of repartitions sees it."""
        return NodeLook(view, self._inventory, 0.0, self._by_gpu(self._inventory), self._positions)

    def going(self, planned: PlannedRepartition) -> frozenset[int]:
        """Slurm's indices of the instances that a repartition destroys."""
        gone = set(planned.before) - set(planned.after)
        alone = only(self._inventory, planned.gpu, gone)
        return indices_of(self._positions, self._devices(alone))

    def can_be(self, planned: PlannedRepartition, held: frozenset[int]) -> bool:
        """Whether Slurm has an order of devices in which jobs with these indices keep theirs."""
        return self._after(planned, held) is not None

    def cut(self, planned: PlannedRepartition, held: frozenset[int]) -> bool:
        """Cut a GPU beside jobs that hold these indices; return whether that can be."""
        after = self._after(planned, held)
        if after is not None:
            self._inventory, self._positions = after
        return after is not None

    def _after(
        self, planned: PlannedRepartition, held: frozenset[int]
    ) -> tuple[Inventory, Positions] | None:
        """The node as it is to be; None if Slurm has no order of devices for that."""
        inventory = with_layout(self._inventory, planned.gpu, planned.after)
        try:
            return inventory, positions(self._positions, self._devices(inventory), held)
        except InvalidInputError:
            return None

    def _devices(self, inventory: Inventory) -> Sequence[Device]:
        return [device for those in self._by_gpu(inventory).values() for device in those]

    def _by_gpu(self, inventory: Inventory) -> Mapping[str, Sequence[Device]]:
        return {
            gpu.uuid: tuple(devices_of(gpu, inventory.vendor, self._types, _DEVICES))
            for gpu in inventory.gpus
        }


def shapes_node(cluster: SimulatedCluster) -> tuple[NodeView, ...]:
    """The node that is never up and has every type that GPUs can be cut into, where any can be.

    The model of Slurm has none: in it a job of a type that no node has waits as with such a node.
    """
    those = [node for node in cluster.nodes if node.boards is not None]
    if not those:
        return ()
    most: dict[str, int] = {}
    for node in those:
        most |= node.boards.most if node.boards is not None else {}
    partitions = frozenset(name for node in those for name in node.partitions)
    return (NodeView(SHAPES_NODE, "", frozenset({"DOWN"}), most, {}, partitions),)


def _inventory(node: SimulatedNode) -> Inventory:
    boards = node.boards
    if boards is None:
        raise ValueError(f"{node.name} has no boards that are cut")
    on = board(boards.model)
    cut = [_gpu(node.name, number, on) for number, _ in enumerate(boards.layouts)]
    whole = [
        kind
        for kind, count in node.gpus.items()
        if kind not in boards.most and not is_pad(kind)
        for _ in range(count)
    ]
    others = [_gpu(node.name, len(cut) + nth, None, kind) for nth, kind in enumerate(whole)]
    inventory = Inventory("", (*cut, *others), (), on.vendor)
    for gpu, layout in zip(cut, boards.layouts, strict=True):
        inventory = with_layout(inventory, gpu.uuid, layout)
    return inventory


def _gpu(node: str, number: int, on: Board | None, name: str = "") -> Gpu:
    """A board, which is in MIG mode unless it is whole and has a name of its own."""
    return Gpu(
        index=number,
        name=name or (on.model if on is not None else ""),
        uuid=f"{node}/{number}",
        pci_bus_id="",
        pci_device_id=0,
        minor=number,
        board=on,
        mig=on is not None,
        mig_pending=on is not None,
        memory_mib=0,
        memory_used_mib=0,
        power_mw=None,
        power_limit_mw=None,
        temperature_c=None,
        health=_UNREAD,
        instances=(),
        holders=(),
    )


def _positions(gpus: Mapping[str, int], devices: Sequence[Device]) -> Positions:
    """The devices in the order of the node's types; pads are None."""
    by_kind = defaultdict[str, list[Device]](list)
    for device in devices:
        by_kind[device.gres_type].append(device)

    def of(kind: str, count: int) -> Iterator[Device | None]:
        yield from (None,) * count if is_pad(kind) else by_kind[kind]

    return tuple(device for kind, count in gpus.items() for device in of(kind, count))
