"""Divides the joules of a node's boards among the jobs that hold their instances.

All amounts are whole numbers, and the parts of an hour of a board add up to what the board took.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from slicewise.cluster.language.division import divided

NOBODY = 0
"""In the place of a job's id: no job had it."""

HOUR_MS = 3_600_000
LONGEST_MS = 60_000
"""Readings further apart than this say nothing of who held the board between them."""
MOST_MW = 2_000_000
"""No board takes more than two kilowatts: a counter that says so is not believed."""
_SET_BACK_MS = 2 * HOUR_MS
KEPT_MS = 144 * HOUR_MS
"""What a meter finds out later than this it tells nobody: the ledger's hours are closed by then."""


_TOO_OLD = -1
"""In the place of an hour."""


class EnergyMeasure(StrEnum):
    """How the joules of a board are known."""

    COUNTER = "counter"
    """By the board's own counter."""
    POWER = "power"
    """By its power, read at each turn, times the time between; nothing is known of a gap."""


class Split(StrEnum):
    """How a part of a board's joules was found."""

    IDLE = "idle"
    """What the board takes without work, what processes of no job took, and gaps: nobody's."""
    ALONE = "alone"
    """One job held all that was held of the board."""
    ACTIVITY = "activity"
    """Several held it: by their slices, each times the part of its processors that were busy."""
    SLICES = "slices"
    """Several held it, and nothing says how busy each was: by their slices."""
    UNCHECKED = "unchecked"
    """As the ledger keeps any of these whose board tells what it can't have taken: not charged."""


class EnergyPart(NamedTuple):
    """Whose part of a board's joules it is, and how that was found."""

    job_id: int
    split: Split


@dataclass(frozen=True)
class BoardHolding:
    """An instance that processes hold, or a board that is not cut.

    Attributes:
        job_ids: the jobs of these processes, each once; ``NOBODY`` for those of no job.
        activity_ppm: millionths of its processors that were busy since the reading before; None
            where the driver does not say.
    """

    slices: int
    job_ids: tuple[int, ...]
    activity_ppm: int | None = None


@dataclass(frozen=True)
class BoardReading:
    """One board at one moment.

    Attributes:
        model: as in the table of MIG profiles; the driver's name for a board that it lacks.
        counter_mj: millijoules since the driver was loaded; None where the board does not count.
        power_mw: None where the board does not say.
        idle_mw: what such a board takes without work; None if nobody has published it.
    """

    uuid: str
    model: str
    counter_mj: int | None
    power_mw: int | None
    idle_mw: int | None
    holdings: tuple[BoardHolding, ...]


@dataclass(frozen=True)
class NodeMoment:
    """When a node was read.

    Attributes:
        wall_ms: Unix milliseconds, which only say to which hour something belongs.
        up_ms: milliseconds since the node was booted.
        boot: the kernel's name for this boot.
    """

    wall_ms: int
    up_ms: int
    boot: str


class BoardHourKey(NamedTuple):
    """An hour of a board, and how its joules are known."""

    hour_s: int
    gpu_uuid: str
    measure: EnergyMeasure


@dataclass(frozen=True)
class BoardHour:
    """What a meter has seen of an hour of a board.

    Attributes:
        energy_mj: what the board took; the parts add up to it.
        covered_ms: in how much of the hour.
        checked_mj: what the counter says of the time in which power was read, too.
        power_mj: what power, times that time, says of it.
    """

    model: str
    energy_mj: int = 0
    covered_ms: int = 0
    checked_mj: int = 0
    power_mj: int = 0
    parts: Mapping[EnergyPart, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class LastSeen:
    """The last reading of a board."""

    at: NodeMoment
    counter_mj: int | None
    power_mw: int | None


@dataclass(frozen=True)
class Metered:
    """What a meter knows. It is kept on disk, so that a meter that is killed goes on from there.

    Attributes:
        seen_by: a name that no other meter ever has.
        hours: all of each hour that was seen, until the ledger has it and it is over.
    """

    seen_by: str
    boards: Mapping[str, LastSeen] = field(default_factory=dict, hash=False)
    hours: Mapping[BoardHourKey, BoardHour] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class _Interval:
    """What a board took since it was read before; ``is_gap`` if nobody knows who held it."""

    elapsed_ms: int
    measure: EnergyMeasure
    energy_mj: int
    power_mj: int | None
    is_gap: bool


def shared(
    energy_mj: int, idle_mj: int, holdings: Iterable[BoardHolding]
) -> Mapping[EnergyPart, int]:
    """Divide what a board took among the jobs that held it; the parts add up to it.

    What an idle board takes is nobody's, however many hold it. The rest is shared by slices, each
    times its activity if that is known of all that is held; jobs of one instance have equal parts.
    """
    held = tuple(holding for holding in holdings if holding.job_ids)
    idle_mj = min(energy_mj, idle_mj) if held else energy_mj
    split, weights = _weights(held)
    parts = defaultdict[EnergyPart, int](int, {EnergyPart(NOBODY, Split.IDLE): idle_mj})
    for job_id, part_mj in divided(energy_mj - idle_mj, weights).items():
        parts[EnergyPart(job_id, Split.IDLE if job_id == NOBODY else split)] += part_mj
    return {part: part_mj for part, part_mj in parts.items() if part_mj}


def _weights(held: Sequence[BoardHolding]) -> tuple[Split, Mapping[int, int]]:
    activities = [holding.activity_ppm for holding in held]
    busy = [activity for activity in activities if activity is not None]
    split = Split.SLICES
    factors = [1] * len(held)
    if len(busy) == len(held) and any(busy):
        split, factors = Split.ACTIVITY, busy
    weights = defaultdict[int, int](int)
    jobs = {job_id for holding in held for job_id in holding.job_ids}
    whole = 1
    for count in {len(holding.job_ids) for holding in held}:
        whole *= count
    for holding, factor in zip(held, factors, strict=True):
        for job_id in holding.job_ids:
            weights[job_id] += holding.slices * factor * whole // len(holding.job_ids)
    return (Split.ALONE if len(jobs) == 1 else split), weights


def metered(before: Metered, readings: Iterable[BoardReading], at: NodeMoment) -> Metered:
    """What a meter knows after a look at the node's boards.

    A board that is seen first has taken nothing yet. Who holds a board at a reading has held it
    since the one before.
    """
    boards, hours = dict(before.boards), dict(before.hours)
    for reading in readings:
        last = boards.get(reading.uuid)
        if last is not None and _is_mute(last, reading, at):
            continue
        boards[reading.uuid] = LastSeen(at, reading.counter_mj, reading.power_mw)
        interval = _interval(last, reading, at) if last is not None else None
        for hour_s, part in _by_hour(interval, at.wall_ms) if interval is not None else ():
            key = BoardHourKey(hour_s, reading.uuid, part.measure)
            hours[key] = _added(hours.get(key, BoardHour(reading.model)), reading, part)
    return replace(before, boards=boards, hours=hours)


def _is_mute(last: LastSeen, reading: BoardReading, at: NodeMoment) -> bool:
    """Whether a board that counts does not say how much. Its next reading has this time, too."""
    counts = last.counter_mj is not None and last.at.boot == at.boot
    return counts and reading.counter_mj is None


def pruned(now: Metered, told: Mapping[BoardHourKey, BoardHour], wall_ms: int) -> Metered:
    """Without hours that are over and told as they are, or too old to be told.

    An hour is over two hours after its end, as clocks are set back, and not before its board was
    read after its end: until then the board's next reading adds to it.
    """
    oldest_s = wall_ms // HOUR_MS * 3600 - KEPT_MS // 1000
    hours = {
        key: hour
        for key, hour in now.hours.items()
        if key.hour_s >= oldest_s
        and (told.get(key) != hour or not _is_over(key, now.boards.get(key.gpu_uuid), wall_ms))
    }
    return replace(now, hours=hours)


def _is_over(key: BoardHourKey, last: LastSeen | None, wall_ms: int) -> bool:
    end_ms = key.hour_s * 1000 + HOUR_MS
    is_read = last is None or last.at.wall_ms >= end_ms
    return is_read and wall_ms >= end_ms + _SET_BACK_MS


def _interval(last: LastSeen, reading: BoardReading, at: NodeMoment) -> _Interval | None:
    """None if nothing is known of it, or it can't be."""
    interval = _taken(last, reading, at)
    if interval is None or interval.energy_mj * 1000 > MOST_MW * interval.elapsed_ms:
        return None
    return interval


def _taken(last: LastSeen, reading: BoardReading, at: NodeMoment) -> _Interval | None:
    is_same_boot = last.at.boot == at.boot
    elapsed_ms = at.up_ms - last.at.up_ms if is_same_boot else at.up_ms
    if elapsed_ms <= 0:
        return None
    is_gap = not is_same_boot or elapsed_ms > LONGEST_MS
    powers = (last.power_mw, reading.power_mw)
    power_mj = None
    if not is_gap and powers[0] is not None and powers[1] is not None:
        power_mj = (powers[0] + powers[1]) * elapsed_ms // 2000
    if reading.counter_mj is None:
        if power_mj is None:
            return None
        return _Interval(elapsed_ms, EnergyMeasure.POWER, power_mj, None, is_gap=False)
    if last.counter_mj is None and is_same_boot:
        return None
    # It begins again with each boot, and where the driver is loaded again.
    counted = (last.counter_mj or 0) if is_same_boot else 0
    is_reset = reading.counter_mj < counted
    energy_mj = reading.counter_mj - (0 if is_reset else counted)
    if is_reset:
        return _Interval(elapsed_ms, EnergyMeasure.COUNTER, energy_mj, None, is_gap=True)
    return _Interval(elapsed_ms, EnergyMeasure.COUNTER, energy_mj, power_mj, is_gap)


def _by_hour(interval: _Interval, end_ms: int) -> Iterator[tuple[int, _Interval]]:
    """The interval's part in each hour, by the hour's beginning in Unix seconds.

    What lies too far back to be told is left out.
    """
    lengths = _lengths(end_ms, interval.elapsed_ms)
    energies, powers = (
        divided(amount, lengths) for amount in (interval.energy_mj, interval.power_mj or 0)
    )
    for hour_s, length_ms in lengths.items():
        if hour_s == _TOO_OLD:
            continue
        power_mj = None if interval.power_mj is None else powers.get(hour_s, 0)
        energy_mj = energies.get(hour_s, 0)
        yield (
            hour_s,
            replace(interval, elapsed_ms=length_ms, energy_mj=energy_mj, power_mj=power_mj),
        )


def _lengths(end_ms: int, elapsed_ms: int) -> Mapping[int, int]:
    """Milliseconds in each hour, of so long before ``end_ms``."""
    begin_ms = max(0, end_ms - min(elapsed_ms, KEPT_MS))
    lengths = {_TOO_OLD: elapsed_ms - (end_ms - begin_ms)}
    while begin_ms < end_ms:
        until_ms = min(end_ms, begin_ms // HOUR_MS * HOUR_MS + HOUR_MS)
        lengths[begin_ms // HOUR_MS * 3600] = until_ms - begin_ms
        begin_ms = until_ms
    return lengths


def _added(hour: BoardHour, reading: BoardReading, interval: _Interval) -> BoardHour:
    energy_mj, length_ms = interval.energy_mj, interval.elapsed_ms
    idle_mj = energy_mj if interval.is_gap else (reading.idle_mw or 0) * length_ms // 1000
    parts = Counter(hour.parts)
    parts.update(shared(energy_mj, idle_mj, reading.holdings))
    return BoardHour(
        model=reading.model,
        energy_mj=hour.energy_mj + energy_mj,
        covered_ms=hour.covered_ms + length_ms,
        checked_mj=hour.checked_mj + (0 if interval.power_mj is None else energy_mj),
        power_mj=hour.power_mj + (interval.power_mj or 0),
        parts=dict(parts),
    )
