"""Surveys how GPU nodes are cut: a short job of root's asks each node, the journal keeps the
answer.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.inventory_json import inventory_of
from slicewise.cluster.language.slurm.interface import SlurmReader
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.repartition import RepartitionSettings
from slicewise.cluster.slurm import node_command
from slicewise.slurm_plugin.rules.quota.nodes import has_gpus

_AT_ONCE = 16
_PROBE_S = 30.0


class SurveyStore(Protocol):
    """Where surveys are kept. Synchronous; called in a thread."""

    def save_inventory(self, node: str, inventory: Mapping[str, Any]) -> None:
        """Save the last look at a node."""
        ...


@dataclass(frozen=True)
class Survey:
    """The result of a survey.

    Attributes:
        seen: how the GPUs of each node that answered are cut now, in the order of names.
        failed: what went wrong, by node that did not answer.
    """

    seen: Mapping[str, Inventory]
    failed: Mapping[str, str]


async def survey(
    settings: Settings, slurm: SlurmReader, journal: SurveyStore, names: Collection[str] = ()
) -> Survey:
    """Survey these nodes, or all that have GPUs in managed partitions.

    Raises InvalidInputError (SW-REPARTITION-NODE) for a name that is no such node, and what Slurm
    raises when it is asked for its nodes, or the ledger. A node that does not answer is part of the
    result.
    """
    partitions = frozenset(settings.cluster.partitions)
    nodes = {node.name for node in await slurm.nodes() if has_gpus(node, partitions)}
    if unknown := sorted(set(names) - nodes):
        raise InvalidInputError(
            Code.REPARTITION_NODE,
            f"{unknown[0]} is not a node with GPUs in a managed partition.",
            f"Such nodes: {', '.join(sorted(nodes)) or 'none'}.",
        )
    wanted = sorted(set(names) or nodes)
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(node: str) -> Inventory | str:
        async with turn:
            return await _looked(settings, journal, node)

    answers = dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))
    return Survey(
        seen={node: answer for node, answer in answers.items() if not isinstance(answer, str)},
        failed={node: why for node, why in answers.items() if isinstance(why, str)},
    )


async def probe(
    settings: RepartitionSettings, node: str, reservation: str, deadline_s: float
) -> Inventory:
    """What the node's driver shows, by a job of root's. Raises as ``node_command.run_on``."""
    argv = (*settings.on_node, "slicewise", "node", "probe", "--json")
    return inventory_of(await node_command.run_on(node, reservation, argv, deadline_s))


async def _looked(settings: Settings, journal: SurveyStore, node: str) -> Inventory | str:
    """Survey a node; return its inventory, or what went wrong.

    A failure of the ledger is raised: it concerns all nodes.
    """
    try:
        inventory = await probe(settings.repartition, node, "", _PROBE_S)
    except SlicewiseError as error:
        return error.refusal.message
    await asyncio.to_thread(journal.save_inventory, node, asdict(inventory))
    return inventory
