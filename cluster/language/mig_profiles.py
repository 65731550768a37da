"""MIG profiles per GPU board, and what a profile costs.

The table is ``mig_profiles.json`` beside this module; each row names its sources.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

from cluster.language.codes import Code
from cluster.language.errors import InvalidInputError
from cluster.language.units import GPU_MILLISLICES, Millislices


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
    found: Mapping[str, str] = _table()["sources"]
    return found


@cache
def _table() -> Any:
    text = (
        resources.files("cluster.language")
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
    found = (one.model for one in boards().values() if pci_device_id in one.pci_device_ids)
    return next(found, None)


def profile_of(on: Board, gres_type: str) -> MigProfile:
    """The profile of a GRES type: ``1g.10gb``, or with the GPU's name as ``nvidia_a100_1g.10gb``.

    Names that other drivers have for the profile are accepted. Raises InvalidInputError
    (SW-VALUE) if the board has no such profile.
    """
    name = gres_type.rpartition("_")[2]
    aliased = (one for one in on.profiles.values() if name in one.aliases)
    profile = on.profiles.get(name) or next(aliased, None)
    if profile is None:
        raise InvalidInputError(
            Code.VALUE,
            f"{on.model} has no MIG profile {gres_type!r}.",
            f"It has: {', '.join(sorted(on.profiles))}.",
        )
    return profile


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
    return max((one.memory_mib for one in profiles if one.memory_mib is not None), default=None)
