"""What a tenant may still run, and what profiles cost, for people and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import PlainSerializer
from rich.console import Group, RenderableType
from rich.text import Text

from slicewise.cluster.language.units import Millislices, slices_text, slices_words
from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.slurm_plugin.cli.views.texts import NOTHING, slice_hours_text
from slicewise.slurm_plugin.rules.explain.headroom import (
    SLURM_REASONS,
    Bound,
    Explanation,
    TypeRoom,
)


def explanation(found: Explanation) -> RenderableType:
    """The tenant's situation in three lines, then a line per GPU type and the reasons in words."""
    reasons = dict.fromkeys(_reasons(found))
    return Group(*map(Text, _lines(found)), _rooms_table(found.types), *map(Text, reasons))


def _lines(found: Explanation) -> Iterable[str]:
    yield (
        f"{found.tenant} holds {slices_words(found.in_use_millislices)} of its limit of"
        f" {slices_text(found.limit_millislices)}: nominal"
        f" {slices_text(found.nominal_millislices)}, lent {slices_text(found.lent_millislices)},"
        f" borrowed {slices_text(found.borrowed_millislices)}."
    )
    yield (
        f"Of these its own QOS holds {slices_text(found.guaranteed_in_use_millislices)} of"
        f" {slices_text(found.guaranteed_millislices)} guaranteed."
    )
    if found.startable_millislice_s is not None:
        hours = slice_hours_text(found.startable_millislice_s)
        yield f"The budget of {found.payer} allows new runs of {hours} slice-hours together."
    else:
        yield "No budget limits it."


def _rooms_table(rooms: Sequence[TypeRoom]) -> FittingTable:
    return FittingTable(
        (
            column("GPU type", (room.gres_type for room in rooms)),
            column("slices", (slices_text(r.cost_millislices) for r in rooms), right=True, rank=3),
            column("guaranteed", (room.guaranteed for room in rooms), right=True),
            column("bound by", (_bound(room.guaranteed_bound) for room in rooms), rank=1),
            column("borrowed", (room.borrowed for room in rooms), right=True),
            column("bound by", (_bound(room.borrowed_bound) for room in rooms), rank=1),
            column("longest run", map(_longest, rooms), right=True, rank=2),
        )
    )


def _bound(bound: Bound) -> str:
    return bound.cause.value.replace("-", " ")


def _longest(room: TypeRoom) -> object:
    if room.longest_run_s is None:
        return NOTHING
    hours, seconds = divmod(room.longest_run_s, 3600)
    return f"{hours:,}:{seconds // 60:02}:{seconds % 60:02}"


def _reasons(found: Explanation) -> Iterable[str]:
    """Each bound in words, with the reason that squeue shows for a job that waits for it."""
    for room in found.types:
        for bound in (room.guaranteed_bound, room.borrowed_bound):
            shown = SLURM_REASONS[bound.cause]
            yield f"{_bound(bound)}: {bound.words}" + (f" ({shown})" if shown else "")


@dataclass(frozen=True)
class ProfileCost:
    """The cost of one instance of a MIG profile, and its shares of the whole GPU."""

    model: str
    weight: Annotated[Fraction, PlainSerializer(str, return_type=str)]
    profile: str
    compute_share: str
    memory_share: str
    memory_mib: int | None
    cost_millislices: Millislices


def costs_table(costs: Sequence[ProfileCost]) -> FittingTable:
    """One line per profile of each model."""
    return FittingTable(
        (
            column("GPU model", (cost.model for cost in costs)),
            column("weight", (cost.weight for cost in costs), right=True, rank=2),
            column("profile", (cost.profile for cost in costs)),
            column("compute", (cost.compute_share for cost in costs), right=True),
            column("memory", (cost.memory_share for cost in costs), right=True),
            column("MiB", map(_memory, costs), right=True, rank=1),
            column("slices", (slices_text(cost.cost_millislices) for cost in costs), right=True),
        )
    )


def _memory(cost: ProfileCost) -> object:
    return NOTHING if cost.memory_mib is None else f"{cost.memory_mib:,}"
