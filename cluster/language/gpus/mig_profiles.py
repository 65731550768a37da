"""MIG profiles per GPU board, and what a profile costs.

The table is ``mig_profiles.json`` beside this module; each row names its sources.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_names import (
    NAMES_RULE,
    MigName,
    has_mig_size,
    has_word,
    memory_words,
    mig_name,
)
from slicewise.cluster.language.units import GPU_MILLISLICES, Millislices

_BOARD_NAME = re.compile(r"(.+?)-[0-9]+GB")
_BOARD_MEMORY = re.compile(r"([0-9]+)GB")


@dataclass(frozen=True)
class MigProfile:
    """One way to cut an instance out of a board.

    Attributes:
        name: as in a GRES type, such as ``1g.10gb``.
        compute_slices: number that an instance takes of the board's ``compute_slices``.
        memory_slices: number that an instance takes, from its start, of the board's
            ``memory_slices``.
        memory_mib: MiB that a process in the instance sees; None where no source gives it.
        starts: memory slices where an instance may begin, in order.
        max_instances: instances on an empty board. For ``+me`` profiles the engines are the limit,
            not the starts, which they share with the plain profile.
        gi_profile_id: the GPU-instance profile's id, as ``nvidia-smi mig -lgip`` prints it.
        aliases: names that other drivers have for the profile.
        sources: where the row comes from: keys of the table's ``sources``, or ``nvml``.
        multiprocessors: SMs; None where no source gives them.
    """

    name: str
    compute_slices: int
    memory_slices: int
    memory_mib: int | None
    starts: tuple[int, ...]
    max_instances: int
    gi_profile_id: int
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    multiprocessors: int | None = None

    @property
    def extension(self) -> str:
        """How the name differs from the plain profile of this size, such as ``+me``; "" if plain.

        Such profiles differ only in their media or graphics engines.
        """
        return re.sub("^[^+-]*", "", self.name)


@dataclass(frozen=True)
class Board:
    """A GPU model and its profiles by name.

    Attributes:
        pci_device_ids: PCI device ids of the boards that are cut like this: 0x2335 is an H200.
        vendor: name of the accelerator.
    """

    model: str
    compute_slices: int
    memory_slices: int
    profiles: Mapping[str, MigProfile]
    pci_device_ids: tuple[int, ...] = ()
    vendor: str = "NVIDIA"


@dataclass(frozen=True)
class WholeBoard:
    """A board as a whole, however it is cut.

    Attributes:
        devices: number of devices that Slurm has of a board that may be repartitioned: instances
            and pads together.
        cost_millislices: cost of the whole board.
    """

    devices: int
    cost_millislices: Millislices


@cache
def boards() -> Mapping[str, Board]:
    """Every board of the table, by model name."""
    return {model: _board(model, row) for model, row in _table()["models"].items()}


def sources() -> Mapping[str, str]:
    """What the keys in ``MigProfile.sources`` stand for."""
    sources: Mapping[str, str] = _table()["sources"]
    return sources


@cache
def _table() -> Any:
    text = (
        resources.files("slicewise.cluster.language.gpus")
        .joinpath("mig_profiles.json")
        .read_text(encoding="utf-8")
    )
    return json.loads(text)


def _board(model: str, row: Any) -> Board:
    return Board(
        model,
        row["axis_compute_slices"],
        row["axis_memory_slices"],
        {profile["profile"]: _profile(profile) for profile in row["profiles"]},
        tuple(int(text, 16) for text in row["pci_device_ids"]),
        row["vendor"],
    )


def _profile(row: Any) -> MigProfile:
    return MigProfile(
        name=row["profile"],
        compute_slices=row["compute_slices"],
        memory_slices=row["size"],
        memory_mib=row["memory_mb"],
        starts=tuple(row["placements"]),
        max_instances=row["max_instances"],
        gi_profile_id=row["gi_profile_id"],
        aliases=tuple(row.get("aliases", ())),
        sources=tuple(row["src"]),
        multiprocessors=row["sm"],
    )


def board(model: str) -> Board:
    """The board of this model; InvalidInputError (SW-VALUE) if the table lacks it."""
    try:
        return boards()[model]
    except KeyError:
        raise InvalidInputError(
            Code.VALUE,
            f"GPU model {model!r} is not in the MIG profile table.",
            f"Known models: {', '.join(sorted(boards()))}.",
        ) from None


def model_of(pci_device_id: int) -> str | None:
    """The table's model for boards with this PCI device id; None if the table lacks them."""
    models = (board.model for board in boards().values() if pci_device_id in board.pci_device_ids)
    return next(models, None)


class Fit(IntEnum):
    """How well a type's name fits a profile; the lower the better."""

    NAME = 0
    """It has the profile's name, or that of another driver."""
    ROUNDED = 1
    """It has the memory that a process sees, in GiB, as Slurm writes it into names."""
    NEAR = 2
    """It has about that memory: drivers differ in what they keep for themselves."""


_LEAST_NEAR = 0.85
"""What is about a profile's memory, in parts of what its name says; it is never more."""
_MIB = 1024


def fitting_profile(on: Board, gres_type: str) -> tuple[MigProfile, Fit] | None:
    """The board's profile that a type's name fits best; None if it has none.

    A board has no two profiles of as many compute slices with nearly as much memory, so that the
    memory need not be exact.
    """
    asked = mig_name(gres_type)
    if asked is None and has_mig_size(gres_type):
        return None
    for spelled in (gres_type, gres_type.rpartition("_")[2]):
        aliased = (profile for profile in on.profiles.values() if spelled in profile.aliases)
        if profile := on.profiles.get(spelled) or next(aliased, None):
            return profile, Fit.NAME
    if asked is None:
        return None
    fits = [
        (fit, abs(memory - asked.memory_gb), profile)
        for profile in on.profiles.values()
        for memory, fit in _fits(profile, asked, on)
    ]
    if not fits:
        return None
    best = min(fits, key=lambda fit: fit[:2])
    return best[2], best[0]


def _fits(profile: MigProfile, asked: MigName, on: Board) -> Iterator[tuple[float, Fit]]:
    """The memory in GB by which the profile fits, and how well."""
    extension = asked.extension
    if extension == "-me" and not any(
        profile.extension == "-me" for profile in on.profiles.values()
    ):
        # Of a site that writes its separators so.
        extension = "+me"
    named = [name for text in (profile.name, *profile.aliases) if (name := mig_name(text))]
    if profile.extension != extension or not named:
        return
    if named[0].compute_slices != asked.compute_slices:
        return
    sizes = [name.memory_gb for name in named]
    if asked.memory_gb in sizes:
        yield asked.memory_gb, Fit.NAME
    if profile.memory_mib is not None:
        seen_gib = profile.memory_mib / _MIB
        if abs(asked.memory_gb - seen_gib) < 1:
            yield seen_gib, Fit.ROUNDED
    if any(_LEAST_NEAR * size <= asked.memory_gb < size for size in sizes):
        yield sizes[0], Fit.NEAR


def profile_of(on: Board, gres_type: str) -> MigProfile:
    """The profile of a GRES type: ``1g.10gb``, or in a longer name as ``nvidia_a100_1g.10gb``.

    Names that other drivers have for the profile are accepted, and those with rounded memory.
    Raises InvalidInputError (SW-VALUE) if the board has no such profile.
    """
    asked = fitting_profile(on, gres_type)
    if asked is None:
        raise InvalidInputError(
            Code.VALUE,
            f"{on.model} has no MIG profile {gres_type!r}.",
            f"It has: {', '.join(sorted(on.profiles))}. {NAMES_RULE}",
        )
    return asked[0]


_OTHER_NAMES = {
    "A100": ("A800",),
    "A100-80GB": ("A100X",),
    "H100": ("H800",),
    "H200": ("H20-3e",),
    "GH200-96GB": ("H20",),
    "RTX-PRO-6000-Blackwell": ("RTX-PRO-6000", "RTX-6000-PRO", "PRO-6000", "6000-PRO"),
}
"""Boards that are cut as others are, and shorter names, by a family or a model of the table."""


def boards_named(text: str) -> tuple[Board, ...]:
    """The boards whose names stand in a text such as ``nvidia_a100_80gb_pcie``; () without one.

    The longest name counts: an A100X is no other A100. So does memory in the text where one of them
    has as much: what is called GH200 480GB has that for its CPU.
    """
    lengths = {
        on.model: max((len(name) for name in _names(on) if has_word(text, name)), default=0)
        for on in boards().values()
    }
    longest = max(lengths.values())
    boards_of_length = tuple(
        boards()[name] for name, length in lengths.items() if length == longest > 0
    )
    sized = tuple(on for on in boards_of_length if memory_words(text) & _memories_gb(on))
    kept = sized or boards_of_length
    variants = tuple(on for on in kept if any(has_word(text, w) for w in _variants(on)))
    return variants or kept


def has_memory_of_part(text: str) -> bool:
    """Whether a name has the memory of a board's instances: an ``a100_20gb`` is no whole GPU."""
    named = boards_named(text)
    wholes = frozenset(gb for on in named for gb in _memories_gb(on))
    parts = {
        name.memory_gb
        for on in named
        for profile in on.profiles
        if (name := mig_name(profile)) is not None
    }
    return not parts.isdisjoint(memory_words(text, unit=True) - wholes)


def _names(on: Board) -> Iterator[str]:
    for part in on.model.split("/"):
        name = _BOARD_NAME.match(part)
        family = name[1] if name else part
        yield family
        yield from _OTHER_NAMES.get(family, ())
        yield from _OTHER_NAMES.get(part, ())


def _memories_gb(on: Board) -> frozenset[int]:
    return frozenset(int(gb) for gb in _BOARD_MEMORY.findall(on.model))


def _variants(on: Board) -> tuple[str, ...]:
    """What a model's name has behind its memory: ``NVL``."""
    return tuple(part.rpartition("GB-")[2] for part in on.model.split("/") if "GB-" in part)


def cost_millislices(on: Board, gres_type: str, weight: Fraction) -> Millislices:
    """What one instance costs: 7 slices × the larger of its compute and memory share × weight.

    On an 80 GB A100 of weight 1: 1g.10gb 1000, 1g.20gb 1750, 3g.40gb 3500, 7g.80gb 7000. Rounded
    up to a whole millislice, so that the parts of a GPU never cost less than the GPU.
    """
    profile = profile_of(on, gres_type)
    share = max(
        Fraction(profile.compute_slices, on.compute_slices),
        Fraction(profile.memory_slices, on.memory_slices),
    )
    return whole_cost(share * weight)


def whole_cost(weight: Fraction) -> Millislices:
    """What a GPU of this weight costs: 7 slices × weight, rounded up to a whole millislice."""
    exact = GPU_MILLISLICES * weight
    return Millislices(-(-exact.numerator // exact.denominator))


def whole_board(of: Board, weight: Fraction) -> WholeBoard:
    """The whole board, with its cost at this weight."""
    return WholeBoard(of.compute_slices, whole_cost(weight))


def whole_memory_mib(model: str) -> int | None:
    """MiB that a whole GPU has at least: what its largest profile has; None if no table says it."""
    profiles = boards()[model].profiles.values() if model in boards() else ()
    return max(
        (profile.memory_mib for profile in profiles if profile.memory_mib is not None), default=None
    )
