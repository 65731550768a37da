"""Describes a node's GPUs for Slurm's files, and compares them with what slurmctld has."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, setting
from slicewise.cluster.language.gpus.inventory import Gpu, Inventory
from slicewise.cluster.language.gpus.mig_profiles import Board, boards, profile_of
from slicewise.cluster.language.gpus.vendors import accelerator
from slicewise.cluster.language.gres import GpuRequest, gres_text, parse_gpu_requests
from slicewise.cluster.language.jobs import NodeView
from slicewise.slurm_plugin.rules.slurm_config.pads import is_pad

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}")
_FILE = re.compile(r"/[A-Za-z0-9._/+@-]{1,1023}")
_MOST_DEVICES = 1024
_TYPE_LENGTH = 128


@dataclass(frozen=True)
class Device:
    """One GPU or instance that a job can be given.

    Attributes:
        files: device files that its job needs: the GPU's own, and an instance's capabilities.
        flags: ``Flags`` of its line in gres.conf; "" for none.
    """

    gres_type: str
    files: tuple[str, ...]
    flags: str = ""


@dataclass(frozen=True)
class ProfileKind:
    """A profile of a GPU model of the table, by any of the names that drivers have for it.

    ``profile`` is "" for a whole GPU that is not cut.
    """

    model: str
    profile: str


def types_by_kind(
    boards_by_type: Mapping[str, Board], whole_types: Mapping[str, str] | None = None
) -> Mapping[ProfileKind, str]:
    """The GRES type that a site gives each kind.

    The settings provide boards by GRES type, and types of whole GPUs by model. Where the vendor has
    a profile for a whole GPU, the type is for that.
    """
    profiles = {
        gres_type: profile_of(board, gres_type) for gres_type, board in boards_by_type.items()
    }
    return {
        ProfileKind(boards_by_type[gres_type].model, name): gres_type
        for gres_type, profile in profiles.items()
        for name in (profile.name, *profile.aliases)
    } | {_whole(model): gres_type for model, gres_type in (whole_types or {}).items()}


def _whole(model: str) -> ProfileKind:
    on = boards().get(model)
    return ProfileKind(model, accelerator(on.vendor).uncut if on is not None else "")


def types_in_slurm(inventory: Inventory, gres_types: Iterable[str]) -> Mapping[ProfileKind, str]:
    """The GRES type of each kind, by what Slurm has of the node: for hosts without settings."""
    boards = [gpu.board for gpu in inventory.gpus if gpu.board is not None]
    kinds: dict[ProfileKind, str] = {}
    for on in boards:
        for gres_type in gres_types:
            with suppress(InvalidInputError):
                kinds |= types_by_kind({gres_type: on})
    return kinds


def devices(
    inventory: Inventory, types: Mapping[ProfileKind, str], directory: str = "/dev"
) -> tuple[Device, ...]:
    """The devices of a node that jobs can be given, in the order of its GPUs and memory slices.

    A kind for which the site has no type gets a full name, such as ``nvidia_h200_1g.18gb``.
    Instances without exactly one compute instance, or without capabilities, are left out.
    ``directory`` has the node's device files.
    """
    return tuple(
        device
        for gpu in inventory.gpus
        for device in devices_of(gpu, inventory.vendor, types, directory)
    )


def devices_of(
    gpu: Gpu, vendor: str, types: Mapping[ProfileKind, str], directory: str
) -> Iterator[Device]:
    """The devices of one GPU of this vendor, as in ``devices``."""
    its = accelerator(vendor)
    files = partial(its.files, directory, gpu.minor)
    if not gpu.mig:
        model = gpu.board.model if gpu.board is not None else ""
        gres_type = types.get(ProfileKind(model, "")) or _slurm_name(gpu.name)
        yield Device(gres_type, files(()), its.gres_flags)
    profiles = {instance.placement.profile for instance in gpu.instances}
    gres_types = {profile: _type_of(gpu, profile, types) for profile in profiles}
    for one in gpu.instances:
        minors = (one.minor, *(compute.minor for compute in one.computes))
        minors_known = [minor for minor in minors if minor is not None]
        if len(one.computes) == 1 and len(minors_known) == len(minors):
            yield Device(gres_types[one.placement.profile], files(minors_known), its.gres_flags)


def _type_of(gpu: Gpu, profile: str, types: Mapping[ProfileKind, str]) -> str:
    model = gpu.board.model if gpu.board is not None else ""
    short_name = gpu.name.partition("-")[0]
    return types.get(ProfileKind(model, profile)) or f"{_slurm_name(short_name)}_{profile}"


def _slurm_name(name: str) -> str:
    """A device's name as Slurm writes it in a type."""
    return name.lower().replace(" ", "_")


def gres_conf(node: str, devices: Sequence[Device]) -> tuple[str, ...]:
    """The node's lines in gres.conf: one for each device, with all of its files.

    Raises InvalidInputError (SW-REPARTITION-CONF) for text that Slurm could read as anything but
    one device.
    """
    _require_plain(_NODE_NAME.fullmatch(node), f"node {node[:100]!a}")
    _require_devices(devices)
    return tuple(f"NodeName={node} AutoDetect=off Name=gpu {_named(device)}" for device in devices)


def _require_devices(devices: Sequence[Device]) -> None:
    """Check the devices' types and files, whatever read them: they come from a node.

    Raises InvalidInputError (SW-REPARTITION-CONF).
    """
    _require_plain(len(devices) <= _MOST_DEVICES, f"{len(devices)} devices")
    for device in devices:
        text = f"type {device.gres_type[:100]!a}"
        _require_plain(
            len(device.gres_type) <= _TYPE_LENGTH and _is_one_type(device.gres_type), text
        )
        for file in device.files:
            _require_plain(_FILE.fullmatch(file), f"file {file[:100]!a}")
        _require_plain(device.files, f"{text} without a file")


def _is_one_type(text: str) -> bool:
    """Whether the text, written as a type, is read back as that type and nothing else."""
    request = GpuRequest(text, 1)
    try:
        return parse_gpu_requests(gres_text(request)) == (request,)
    except InvalidInputError:
        return False


def _require_plain(is_plain: object, what: str) -> None:
    if not is_plain:
        raise InvalidInputError(
            Code.REPARTITION_CONF,
            f"A node's GPUs can't be written into slurm.conf and gres.conf: {what}.",
            "See what its driver calls them: slicewise node probe",
        )


def _named(device: Device) -> str:
    key = "MultipleFiles" if len(device.files) > 1 else "File"
    flags = f" Flags={device.flags}" if device.flags else ""
    return f"Type={device.gres_type} {key}={','.join(device.files)}{flags}"


def node_gres(devices: Sequence[Device]) -> str:
    """``Gres`` of the node in slurm.conf: ``gpu:1g.10gb:3,gpu:3g.40gb:1``.

    Raises InvalidInputError (SW-REPARTITION-CONF) as ``gres_conf``.
    """
    _require_devices(devices)
    counts = Counter(device.gres_type for device in devices)
    return ",".join(f"gpu:{gres_type}:{count}" for gres_type, count in counts.items())


def gres_findings(
    name: str, node: NodeView | None, devices: Sequence[Device]
) -> tuple[Finding, ...]:
    """Differences between slurmctld's node and the devices found on it."""
    if node is None:
        return (
            error(
                Code.NAME_UNKNOWN,
                f"Slurm has no node {name}",
                advice="Name the node with --node, as slurm.conf does.",
            ),
        )
    here = Counter(device.gres_type for device in devices)
    types = [gres_type for gres_type in dict.fromkeys((*here, *node.gpus)) if not is_pad(gres_type)]
    mend = Mend(Place.NODE, f"slicewise node gres --node {name}")
    return tuple(
        fault
        for gres_type in types
        for fault in _count_findings(gres_type, here[gres_type], node.gpus.get(gres_type, 0), mend)
    )


def _count_findings(gres_type: str, here: int, slurm: int, mend: Mend) -> Iterator[Finding]:
    if here < slurm:
        yield error(
            Code.NODE_GRES,
            f"Slurm expects {slurm} gpu:{gres_type}, but the node has {here}",
            "its slurmd will be INVALID and drained",
            mend,
        )
    elif here > slurm:
        yield error(
            Code.NODE_GRES,
            f"The node has {here} gpu:{gres_type}, but Slurm expects {slurm}",
            "the rest lies idle",
            mend,
        )


def unmanaged(devices: Sequence[Device], costs: Mapping[str, int]) -> tuple[Finding, ...]:
    """Types for which no tenant is charged."""
    kinds = dict.fromkeys(device.gres_type for device in devices)
    return tuple(
        hint(
            Code.NODE_PRICE,
            f"gpu:{gres_type} is not a type of [gpus] in slicewise.toml",
            "it is not charged",
            setting('gpus."MODEL"', f'types = ["{gres_type}"]'),
        )
        for gres_type in kinds
        if gres_type not in costs
    )
