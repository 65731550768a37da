"""MIG profiles per GPU board, and what a profile costs.

The table is ``mig_profiles.json`` beside this module; each row names its sources.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources

from cluster.errors import InvalidInputError
from cluster.units import GPU_MILLISLICES, Millislices


@dataclass(frozen=True)
class MigProfile:
    """One way to cut an instance out of a board.

    Attributes:
        name: as in a GRES type, such as ``1g.10gb``.
        compute_slices: of the board's ``compute_slices``.
        memory_slices: of the board's ``memory_slices``.
        memory_mib: what a process in the instance sees; None where no source gives it.
    """

    name: str
    compute_slices: int
    memory_slices: int
    memory_mib: int | None


@dataclass(frozen=True)
class Board:
    """A GPU model and its profiles by name."""

    model: str
    compute_slices: int
    memory_slices: int
    profiles: Mapping[str, MigProfile]


@cache
def boards() -> Mapping[str, Board]:
    """Every board of the table, by model name."""
    text = resources.files("cluster").joinpath("mig_profiles.json").read_text(encoding="utf-8")
    models = json.loads(text)["models"]
    return {model: _board(model, row) for model, row in models.items()}


def _board(model: str, row: Mapping[str, object]) -> Board:
    profiles = (
        MigProfile(p["profile"], p["compute_slices"], p["memory_slices"], p["memory_mb"])
        for p in row["profiles"]  # type: ignore[attr-defined]
    )
    return Board(
        model,
        int(row["axis_compute_slices"]),  # type: ignore[call-overload]
        int(row["axis_memory_slices"]),  # type: ignore[call-overload]
        {profile.name: profile for profile in profiles},
    )


def board(model: str) -> Board:
    """The board of that model; InvalidInputError (SW-GPU-MODEL) if the table lacks it."""
    try:
        return boards()[model]
    except KeyError:
        raise InvalidInputError(
            "SW-GPU-MODEL",
            f"GPU model {model!r} is not in the MIG profile table.",
            f"Known models: {', '.join(sorted(boards()))}.",
        ) from None


def cost_millislices(on: Board, profile_name: str, weight: Fraction) -> Millislices:
    """What one instance costs: 7 slices × the larger of its compute and memory share × weight.

    On an 80 GB A100 of weight 1: 1g.10gb 1000, 1g.20gb 1750, 3g.40gb 3500, 7g.80gb 7000. Rounded
    up to a whole millislice, so that the parts of a GPU never cost less than the GPU.
    """
    profile = on.profiles.get(profile_name)
    if profile is None:
        raise InvalidInputError(
            "SW-MIG-PROFILE",
            f"{on.model} has no MIG profile {profile_name!r}.",
            f"It has: {', '.join(sorted(on.profiles))}.",
        )
    share = max(
        Fraction(profile.compute_slices, on.compute_slices),
        Fraction(profile.memory_slices, on.memory_slices),
    )
    exact = GPU_MILLISLICES * share * weight
    return Millislices(-(-exact.numerator // exact.denominator))
