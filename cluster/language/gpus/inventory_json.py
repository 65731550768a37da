"""Reads a node's inventory from JSON, as ``slicewise node probe --json`` and ``node cut`` print it.

Root of the node may have forged it, and lines of slurm.conf are made of it. So each text has one
form, and each number and each list a bound; a value that has none here is refused.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.gpus.accelerator import Accelerator
from slicewise.cluster.language.gpus.inventory import ComputeInstance, Gpu, Inventory, LostGpu
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board, MigProfile
from slicewise.cluster.language.gpus.vendors import ACCELERATORS

_Read = TypeVar("_Read")
_INVENTORY = TypeAdapter(Inventory)
_GPU = TypeAdapter(Gpu)

MOST_BYTES = 1 << 21
"""Size of a node's whole answer: 16 boards of 7 instances, each held by 100 processes, are 1.5 MB.
"""
_MOST_NUMBER = 1 << 53
_MOST_LAYOUTS = 50_000
"""A planner goes through all layouts of a board; the largest board of the table has 14,885 by this
count.
"""


def _any(form: Callable[[Accelerator], str]) -> str:
    """The form of a text that any of the vendors may write."""
    return "|".join(f"(?:{form(accelerator)})" for accelerator in ACCELERATORS)


_VENDOR = _any(lambda accelerator: re.escape(accelerator.vendor))
_PROFILE = _any(lambda accelerator: accelerator.profile)
_MODEL = "[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,95}"
_TEXTS: Mapping[tuple[type, str], re.Pattern[str]] = {
    (owner, field): re.compile(form)
    for owner, field, form in (
        (Inventory, "driver", "[0-9][0-9A-Za-z.+-]{0,63}"),
        (Inventory, "vendor", _VENDOR),
        (LostGpu, "error", "[ -~]{0,200}"),
        (Gpu, "name", _MODEL),
        (Gpu, "uuid", _any(lambda accelerator: accelerator.gpu_uuid)),
        (Gpu, "pci_bus_id", "[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}[.][0-7]"),
        (ComputeInstance, "uuid", _any(lambda accelerator: accelerator.instance_uuid)),
        (Placement, "profile", _PROFILE),
        (Board, "model", _MODEL),
        (Board, "vendor", _VENDOR),
        (MigProfile, "name", _PROFILE),
        (MigProfile, "aliases", _PROFILE),
        (MigProfile, "sources", "[0-9a-z_]{1,32}"),
    )
}
_MOST: Mapping[str, int] = {
    **dict.fromkeys(("index", "gi_id", "ci_id", "gi_profile_id"), 255),
    **dict.fromkeys(("compute_slices", "memory_slices", "size", "max_instances"), 32),
    **dict.fromkeys(("start", "starts"), 31),
    "minor": (1 << 20) - 1,
    "pci_device_id": 0xFFFF,
    "pci_device_ids": 0xFFFF,
}
"""The largest value of a number, by its field; 2^53 for other fields."""
_MANY: Mapping[str, int] = {
    **dict.fromkeys(("gpus", "lost", "profiles", "instances", "computes"), 64),
    **dict.fromkeys(("starts", "aliases", "sources", "pci_device_ids"), 64),
    **dict.fromkeys(("holders", "xids"), 4096),
}
"""The largest number of parts, by the field."""


def inventory_of(value: str | object) -> Inventory:
    """Read an inventory from JSON text, or from what ``json.loads`` made of it.

    Unknown keys are left out. Raises OutsideError (SW-WIRE), also for a text, a number or a
    size that no driver has.
    """
    return _read(_INVENTORY, value)


def gpu_of(value: str | object) -> Gpu:
    """Read one board in the same way."""
    return _read(_GPU, value)


def _read(kind: TypeAdapter[_Read], value: str | object) -> _Read:
    if isinstance(value, str) and len(value) > MOST_BYTES:
        raise _unreadable(f"it has more than {MOST_BYTES} characters")
    try:
        record = _validated(kind, value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][:8]))[:100]
        raise _unreadable(f"{where!a}: {first['msg']}") from None
    if wrong := next(_wrong(record), ""):
        raise _unreadable(wrong)
    return record


def _validated(kind: TypeAdapter[_Read], value: str | object) -> _Read:
    if isinstance(value, str):
        return kind.validate_json(value)
    return kind.validate_python(value)


def _unreadable(what: str) -> OutsideError:
    return OutsideError(
        Code.WIRE,
        f"The node's report of its GPUs can't be read: {what}.",
        "Check that the node has the same version of Slicewise.",
    )


def _wrong(value: object) -> Iterator[str]:
    """What a value, or anything inside it, has that a driver could not report."""
    for field in fields(value) if is_dataclass(value) else ():
        yield from _wrong_field(type(value), field.name, getattr(value, field.name))
    if isinstance(value, Board):
        yield from _wrong_board(value)


def _wrong_field(owner: type, field: str, value: object) -> Iterator[str]:
    where = f"{owner.__name__}.{field}"
    match value:
        case None | bool():
            return
        case str():
            form = _TEXTS.get((owner, field))
            if form is None or form.fullmatch(value) is None:
                yield f"{where} is {value[:100]!a}"
        case int():
            least = -273 if field == "temperature_c" else 0
            if not least <= value <= _MOST.get(field, _MOST_NUMBER):
                yield f"{where} is a number out of bounds"
        case tuple() | dict():
            yield from _wrong_parts(owner, field, value)
        case _:
            yield from _wrong(value)


def _wrong_parts(owner: type, field: str, value: Collection[object]) -> Iterator[str]:
    if len(value) > _MANY.get(field, 0):
        yield f"{owner.__name__}.{field} has {len(value)} parts"
        return
    for item in value.values() if isinstance(value, Mapping) else value:
        yield from _wrong_field(owner, field, item)


def _wrong_board(board: Board) -> Iterator[str]:
    if any(name != profile.name for name, profile in board.profiles.items()):
        yield "Board.profiles lists a profile under another name than its own"
    if not board.profiles or not board.memory_slices or not board.compute_slices:
        yield "Board has no instance that could be cut"
    elif any(
        not profile.memory_slices or not profile.starts for profile in board.profiles.values()
    ):
        yield "Board.profiles has a profile of no memory slice, or that begins nowhere"
    elif _most_layouts(board) > _MOST_LAYOUTS:
        yield "Board.profiles has more layouts than any board"


def _most_layouts(board: Board) -> int:
    """Number of layouts if instances excluded each other by their slices alone."""
    after = [1] * (board.memory_slices + 1)
    for start in reversed(range(board.memory_slices)):
        ends = (
            start + profile.memory_slices
            for profile in board.profiles.values()
            if start in profile.starts
        )
        after[start] = after[start + 1] + sum(after[end] for end in ends if end < len(after))
    return after[0]
