"""What a cluster's nodes have in millislices."""

from collections.abc import Mapping

from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.slurm_plugin.rules.common.costs import run_cost


def capacity_millislices(cluster: SimulatedCluster, costs: Mapping[str, Millislices]) -> int:
    """All GPUs of the cluster."""
    return sum(node_millislices(node, costs) for node in cluster.nodes)


def node_millislices(node: SimulatedNode, costs: Mapping[str, Millislices]) -> int:
    """All GPUs of a node: of boards that are cut again the whole, however they are cut.

    That is at least what it is cut into at the beginning.
    """
    now, boards = run_cost(node.gpus, costs), node.boards
    if boards is None:
        return now
    others = {kind: count for kind, count in node.gpus.items() if kind not in boards.most}
    return max(now, len(boards.layouts) * boards.cost_millislices + run_cost(others, costs))
