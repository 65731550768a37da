"""Sums of joules: of runs and of nobody, by what they are asked for, and what the model says."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, warning
from slicewise.cluster.language.gpus.energy import NOBODY, Split
from slicewise.cluster.language.gpus.power import POWERS
from slicewise.cluster.language.units import GPU_MILLISLICES, Millislices
from slicewise.cluster.rpc.energy_messages import ToldHour, ToldPart
from slicewise.slurm_plugin.rules.common.ledger_facts import CheckedBoard

EnergyGroup = Literal["tenant", "service", "person", "day", "node", "run"]
"""What a line is about; a person is one of a tenant."""
LINE_FIELDS: Mapping[EnergyGroup, tuple[str, ...]] = {
    "tenant": ("tenant",),
    "service": ("service",),
    "person": ("tenant", "person"),
    "day": ("day",),
    "node": ("node",),
    "run": ("run", "started_s", "tenant", "person", "service"),
}

MJ_PER_KWH = 3_600_000_000
_OFF = 0.2
"""How far a board's counter and its power, times time, may be apart."""
_LONG_HOUR_MS = 66 * 60_000
"""Clocks are set by less than a tenth of an hour, as a rule."""
_ENOUGH_MJ = 1_000_000
"""Less than so many millijoules say nothing about a counter."""


_ESTIMATES = frozenset({Split.ACTIVITY, Split.SLICES, Split.UNCHECKED})


@dataclass(frozen=True)
class EnergyRow:
    """What meters saw of runs, or what is nobody's; what it is not about is "", too.

    Attributes:
        day: as 2026-11-29.
        tenant, person: "" for what is nobody's.
        service: OWNER/NAME; "" for jobs that are none.
        measure: ``counter`` or ``power``.
        split: how the runs' part of the board was found; ``idle`` for what is nobody's.
        is_unknown: whether it is a job's that the ledger does not have.
        run: the job as Slurm shows it, and ``started_s`` when it began, in Unix seconds; "" and 0
            where runs have no rows of their own.
    """

    day: str
    node: str
    tenant: str
    person: str
    service: str
    measure: str
    split: str
    is_unknown: bool
    energy_mj: int
    run: str = ""
    started_s: int = 0


@dataclass(frozen=True)
class UnmeasuredRow:
    """Seconds of runs of which no meter saw anything.

    Attributes:
        gres: instances by type that each of the runs held.
        run, started_s: as of ``EnergyRow``.
    """

    day: str
    tenant: str
    person: str
    service: str
    gres: Mapping[str, int] = field(hash=False)
    seconds: int
    run: str = ""
    started_s: int = 0


@dataclass(frozen=True)
class PricedType:
    """A type of GPU or instance, and the part of a board that it is.

    Attributes:
        model: as in the table of boards' watts.
        cost_millislices: of one, without the model's weight.
    """

    model: str
    cost_millislices: Millislices


@dataclass(frozen=True)
class EnergySums:
    """Millijoules.

    Attributes:
        counter_mj, power_mj, model_mj: runs' joules by how they are known: by boards' counters, by
            boards' power times time, by the table of watts where nothing measures.
        shared_mj: what of the measured is an estimate, as several jobs held a board, or the doctor
            has a finding of it.
        idle_mj: measured, and nobody's.
        unknown_mj: measured, of jobs that the ledger does not have.
        carbon_g: grams of CO2 for all of it; 0 without a factor.
    """

    counter_mj: int = 0
    power_mj: int = 0
    model_mj: int = 0
    shared_mj: int = 0
    idle_mj: int = 0
    unknown_mj: int = 0
    carbon_g: float = 0.0

    @property
    def runs_mj(self) -> int:
        """What runs of the ledger took."""
        return self.counter_mj + self.power_mj + self.model_mj

    def plus(self, other: "EnergySums") -> "EnergySums":
        """Both together."""
        names = (summed.name for summed in fields(self))
        return EnergySums(**{name: getattr(self, name) + getattr(other, name) for name in names})


def measured(row: EnergyRow) -> EnergySums:
    """What a row of meters adds."""
    if row.split == "idle":
        return EnergySums(idle_mj=row.energy_mj)
    if row.is_unknown:
        return EnergySums(unknown_mj=row.energy_mj)
    shared_mj = row.energy_mj if row.split in _ESTIMATES else 0
    if row.measure == "counter":
        return EnergySums(counter_mj=row.energy_mj, shared_mj=shared_mj)
    return EnergySums(power_mj=row.energy_mj, shared_mj=shared_mj)


def modelled(row: UnmeasuredRow, types: Mapping[str, PricedType]) -> EnergySums:
    """What runs take by the table of watts, if they work all the time: their part of a board's load
    above idle. Nothing where the table has no such board.
    """
    power_w = 0.0
    for gres_type, count in row.gres.items():
        priced = types.get(gres_type)
        board = POWERS.get(priced.model) if priced is not None else None
        if priced is not None and board is not None:
            part = min(1.0, priced.cost_millislices / GPU_MILLISLICES)
            power_w += count * part * (board.load_w - board.idle_w)
    return EnergySums(model_mj=round(power_w * 1000 * row.seconds))


def energy_sums(
    by: EnergyGroup,
    rows: Iterable[EnergyRow],
    unmeasured: Iterable[UnmeasuredRow],
    types: Mapping[str, PricedType],
    grams_per_kwh: Mapping[str, float],
) -> Mapping[tuple[str, ...], EnergySums]:
    """Sums by what is asked for, in the order of their names.

    ``grams_per_kwh`` is by day; days without a factor have no grams. What the model says is of no
    node.
    """
    sums = defaultdict[tuple[str, ...], EnergySums](EnergySums)
    added: list[tuple[EnergyRow | UnmeasuredRow, EnergySums]] = [
        *((row, measured(row)) for row in rows),
        *((row, modelled(row, types)) for row in unmeasured),
    ]
    for row, more in added:
        all_mj = more.runs_mj + more.idle_mj + more.unknown_mj
        carbon_g = all_mj / MJ_PER_KWH * grams_per_kwh.get(row.day, 0.0)
        key = tuple(getattr(row, name, "") for name in LINE_FIELDS[by])
        sums[key] = sums[key].plus(replace(more, carbon_g=carbon_g))
    return dict(sorted(sums.items()))


def with_silent(hours: Sequence[ToldHour], job_ids: Iterable[int]) -> tuple[ToldHour, ...]:
    """What a node's meter told, with parts of 0 for the node's jobs whose processes hold no board.

    Their board is measured, so the table of watts must not count them beside it.
    """
    if not hours:
        return ()
    told = {part.job_id for hour in hours for part in hour.parts}
    newest = max(range(len(hours)), key=lambda index: hours[index].hour_s)
    parts = tuple(
        ToldPart(job_id=job_id, split=Split.ALONE, energy_mj=0)
        for job_id in sorted(set(job_ids) - told - {NOBODY})
    )
    now = hours[newest].model_copy(update={"parts": hours[newest].parts + parts})
    return (*hours[:newest], now, *hours[newest + 1 :])


def with_unchecked(
    hours: Sequence[ToldHour], checked: Iterable[CheckedBoard]
) -> tuple[ToldHour, ...]:
    """What a node's meter told, with runs' parts as unchecked of boards of which the doctor has a
    finding: they are theirs, and nobody is charged by them.
    """
    doubted = {board.gpu_uuid for board in checked if _is_twice(board) or _is_off(board)}
    return tuple(_unchecked(hour) if hour.gpu_uuid in doubted else hour for hour in hours)


def _unchecked(hour: ToldHour) -> ToldHour:
    sums: Counter[int] = Counter()
    for part in hour.parts:
        sums[part.job_id] += part.energy_mj
    parts = (
        ToldPart(
            job_id=job_id,
            split=Split.IDLE if job_id == NOBODY else Split.UNCHECKED,
            energy_mj=energy_mj,
        )
        for job_id, energy_mj in sums.items()
    )
    return hour.model_copy(update={"parts": tuple(parts)})


def _is_twice(board: CheckedBoard) -> bool:
    return board.most_covered_ms > _LONG_HOUR_MS


def _is_off(board: CheckedBoard) -> bool:
    sums_mj = board.checked_mj, board.power_mj
    is_enough = min(sums_mj) >= _ENOUGH_MJ or max(sums_mj) >= 10 * _ENOUGH_MJ
    return is_enough and abs(board.checked_mj - board.power_mj) > _OFF * board.power_mj


def meter_findings(checked: Sequence[CheckedBoard]) -> tuple[Finding, ...]:
    """Boards of which meters saw more than the hour has: they are counted twice."""
    return tuple(
        warning(
            Code.ENERGY_TWICE,
            f"Meters of {board.node} saw {board.most_covered_ms / 60_000:.0f} minutes of an hour of"
            f" {board.gpu_uuid}",
            "two meters with a file each count everything twice, or the node's clock was set back;"
            " what meters tell of it meanwhile is charged to nobody",
            advice="Run one: as slicewise-meter.service, or in a container.",
        )
        for board in checked
        if _is_twice(board)
    )


def counter_findings(checked: Sequence[CheckedBoard]) -> tuple[Finding, ...]:
    """Boards whose counter and power differ by more than a fifth: one of both is wrong."""
    return tuple(
        warning(
            Code.ENERGY_COUNTER,
            f"{board.gpu_uuid} ({board.model}) of {board.node}: its counter says"
            f" {board.checked_mj / MJ_PER_KWH:.3f} kWh, its power times time"
            f" {board.power_mj / MJ_PER_KWH:.3f} kWh",
            "what its meter tells meanwhile is charged to nobody",
        )
        for board in checked
        if _is_off(board)
    )
