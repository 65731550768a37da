"""Writes where instances lie on a GPU as text, ``1g.10gb@0,3g.40gb@4``, and reads such text."""

import re
from collections.abc import Iterable

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import Board

_PLACEMENT = re.compile(r"(?P<profile>[^@]+)@(?P<start>[0-9]{1,2})")


def placements_text(placements: Iterable[Placement]) -> str:
    """The text of these placements, in the order of their first memory slices; "" for none."""
    ordered = sorted(placements, key=lambda placement: placement.start)
    return ",".join(f"{placement.profile}@{placement.start}" for placement in ordered)


def read_placements(text: str, board: Board) -> tuple[Placement, ...]:
    """Read such a text; the board says how many slices each instance takes.

    Raises InvalidInputError (SW-VALUE) for what is no such text, or not of this board.
    """
    return tuple(_placement(part, board) for part in text.split(",") if part)


def _placement(part: str, board: Board) -> Placement:
    match = _PLACEMENT.fullmatch(part)
    profile = board.profiles.get(match["profile"]) if match else None
    if match is None or profile is None or int(match["start"]) not in profile.starts:
        raise InvalidInputError(
            Code.VALUE,
            f"{part!r} is not an instance of {board.model}.",
            "Write PROFILE@SLICE,...: slicewise mig profiles lists the slices.",
        )
    return Placement(profile.name, int(match["start"]), profile.memory_slices)
