"""Reads how nodes' GPUs are cut: their last surveys, their lines in slurm.conf and gres.conf."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.inventory import Inventory
from slicewise.cluster.language.gpus.inventory_json import inventory_of
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.read import devices_directory
from slicewise.slurm_plugin.ledger.repartitions import NodeSurvey
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.mig.gpu_state import NodeLook, lines_by_node
from slicewise.slurm_plugin.rules.quota.nodes import has_gpus
from slicewise.slurm_plugin.rules.slurm_config.gres import (
    Device,
    ProfileKind,
    devices_of,
    types_by_kind,
)
from slicewise.slurm_plugin.rules.slurm_config.node_lines import Positions, node_positions


@dataclass(frozen=True)
class NodeRecords:
    """What is recorded of nodes, by their names: surveys, and lines as in ``lines_by_node``."""

    surveys: Mapping[str, NodeSurvey]
    slurm_conf: Mapping[str, str]
    gres_conf: Mapping[str, str]


def node_records(settings: Settings, ledger: Ledger) -> NodeRecords:
    """Read the surveys and both files.

    Raises InvalidInputError (SW-REPARTITION-CONF) if a file can't be read, and what the ledger
    raises.
    """
    return NodeRecords(
        surveys=ledger.repartitions.inventories(),
        slurm_conf=lines_by_node(_text(settings.repartition.slurm_conf)),
        gres_conf=lines_by_node(_text(settings.repartition.gres_conf)),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            Code.REPARTITION_CONF,
            f"{path} can't be read: {error}.",
            "Set slurm_conf of [repartition] in slicewise.toml: gres.conf is beside it.",
        ) from None


def types_of(settings: Settings) -> Mapping[ProfileKind, str]:
    """The GRES type that the site gives each kind of instances and GPUs."""
    return types_by_kind(settings.boards_by_type, settings.whole_types)


def node_looks(
    settings: Settings, records: NodeRecords, nodes: Sequence[NodeView], now_s: float
) -> tuple[NodeLook, ...]:
    """Look at all nodes with GPUs in managed partitions."""
    partitions, types = frozenset(settings.cluster.partitions), types_of(settings)
    return tuple(
        NodeLook(
            node=node,
            inventory=inventory,
            age_s=now_s - survey.seen_s if survey is not None else 0.0,
            devices=_devices(node.name, inventory, types),
            positions=_positions(records, node.name),
        )
        for node in nodes
        if has_gpus(node, partitions)
        for survey in (records.surveys.get(node.name),)
        for inventory in (_inventory(survey),)
    )


def _inventory(survey: NodeSurvey | None) -> Inventory | None:
    """The survey's inventory; None without a survey, or if this version can't read it."""
    try:
        return inventory_of(survey.inventory) if survey is not None else None
    except OutsideError:
        return None


def _devices(
    node: str,
    inventory: Inventory | None,
    types: Mapping[ProfileKind, str],
) -> Mapping[str, Sequence[Device]]:
    directory = devices_directory(node)
    if inventory is None:
        return {}
    return {
        gpu.uuid: tuple(devices_of(gpu, inventory.vendor, types, directory))
        for gpu in inventory.gpus
    }


def _positions(records: NodeRecords, node: str) -> Positions | str:
    shared, own = records.slurm_conf, records.gres_conf
    try:
        return node_positions(shared.get(node, shared[""]), own.get(node, own[""]), node)
    except InvalidInputError as error:
        return error.refusal.message
