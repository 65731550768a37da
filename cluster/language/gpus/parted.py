"""Reads and writes files of NVIDIA's mig-parted: how many instances of each profile, no starts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.inventory import Gpu
from slicewise.cluster.language.gpus.layouts import Layout, geometry
from slicewise.cluster.language.gpus.mig_profiles import Board

VERSION = "v1"
_FIELDS = frozenset({"device-filter", "devices", "mig-enabled", "mig-devices"})
_FILTER = re.compile(r"0x([0-9A-Fa-f]{4})10[Dd][Ee]")
"""A PCI device's number, followed by NVIDIA's."""


@dataclass(frozen=True)
class Entry:
    """What a configuration wants of some of a node's GPUs.

    Attributes:
        pci_device_ids: ids of the boards that it is about; empty is all.
        devices: indices of the GPUs that it is about; None is all.
        mig: whether MIG mode is to be on.
        counts: number of instances by profile.
    """

    pci_device_ids: tuple[int, ...]
    devices: tuple[int, ...] | None
    mig: bool
    counts: Mapping[str, int] = field(hash=False)

    def concerns(self, board: Board) -> bool:
        """Whether the entry is about such boards."""
        return not self.pci_device_ids or any(
            number in board.pci_device_ids for number in self.pci_device_ids
        )


Configs = Mapping[str, tuple[Entry, ...]]
"""Entries by the name of their configuration."""


def parse(text: str) -> Configs:
    """Read a file's content.

    Raises InvalidInputError (SW-INPUT-FILE) that names what mig-parted would not take.
    """
    import yaml  # noqa: PLC0415 -- only import and export need it

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _invalid(f"it is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise _invalid(f"its version is not {VERSION}")
    configs = document.get("mig-configs")
    if not isinstance(configs, dict) or not configs:
        raise _invalid("mig-configs has no configuration")
    return {str(name): _entries(str(name), rows) for name, rows in configs.items()}


def _entries(name: str, rows: Any) -> tuple[Entry, ...]:
    if not isinstance(rows, list) or not rows:
        raise _invalid(f"{name} has no entry")
    return tuple(_entry(name, row) for row in rows)


def _entry(name: str, row: Any) -> Entry:
    if not isinstance(row, dict) or not {"devices", "mig-enabled"} <= row.keys() <= _FIELDS:
        raise _invalid(
            f"{name}: the keys of an entry are devices, mig-enabled, mig-devices, device-filter"
        )
    mig, counts = row["mig-enabled"], row.get("mig-devices")
    if not isinstance(mig, bool) or (mig and counts is None) or (counts and not mig):
        raise _invalid(f"{name}: give mig-devices where mig-enabled is true, and only there")
    return Entry(
        _device_ids(name, row.get("device-filter", [])),
        _indices(name, row["devices"]),
        mig,
        _counts(name, counts or {}),
    )


def _device_ids(name: str, value: Any) -> tuple[int, ...]:
    texts = value if isinstance(value, list) else [value]
    matches = [_FILTER.fullmatch(str(text)) for text in texts if text]
    if not all(matches):
        raise _invalid(f'{name}: device-filter is a PCI device in quotes, such as "0x233510DE"')
    return tuple(int(match[1], 16) for match in matches if match)


def _indices(name: str, value: Any) -> tuple[int, ...] | None:
    if value == "all":
        return None
    if not isinstance(value, list) or any(
        type(number) is not int or number < 0 for number in value
    ):
        raise _invalid(f"{name}: devices is all, or a list of GPU numbers")
    return tuple(value)


def _counts(name: str, value: Any) -> Mapping[str, int]:
    fits = isinstance(value, dict) and all(
        isinstance(profile, str) and type(count) is int and count >= 0
        for profile, count in value.items()
    )
    if not fits:
        raise _invalid(f"{name}: mig-devices is a number for each profile")
    return {profile: count for profile, count in value.items() if count}


def _invalid(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.INPUT_FILE,
        f"This is not a configuration of mig-parted: {why}.",
        "Nothing was changed.",
    )


def lacking(board: Board, counts: Mapping[str, int]) -> tuple[str, ...]:
    """Profiles that the board lacks, such as those with several compute instances."""
    return tuple(name for name in counts if _known(board, name) is None)


def placed(board: Board, counts: Mapping[str, int]) -> Layout | None:
    """A layout of these instances on one GPU that leaves the most placements to others.

    None if the board lacks one of the profiles, or if the instances don't fit beside each other.
    """
    names: Counter[str | None] = Counter()
    for name, count in counts.items():
        names[_known(board, name)] += count
    shapes = geometry(board)
    fitting = [
        layout for layout in shapes.layouts if Counter(each.profile for each in layout) == names
    ]
    return max(
        fitting, key=lambda layout: len(shapes.fitting(shapes.occupancy(layout) or 0)), default=None
    )


def _known(board: Board, name: str) -> str | None:
    """The board's own name of a profile that some driver calls ``name``; None if it has none."""
    gpus = (
        profile.name
        for profile in board.profiles.values()
        if name in (profile.name, *profile.aliases)
    )
    return next(gpus, None)


def text_of(name: str, gpus: Sequence[Gpu]) -> str:
    """The text of a configuration of this name, with a node's GPUs as they are cut."""
    import yaml  # noqa: PLC0415 -- as in parse

    rows = [_row(gpu) for gpu in gpus if gpu.board is not None]
    document = {"version": VERSION, "mig-configs": {name: rows}}
    return str(yaml.safe_dump(document, sort_keys=False))


def _row(gpu: Gpu) -> Mapping[str, object]:
    counts = Counter(instance.placement.profile for instance in gpu.instances)
    devices = {"mig-devices": dict(counts)} if gpu.mig else {}
    return {"devices": [gpu.index], "mig-enabled": gpu.mig, **devices}
