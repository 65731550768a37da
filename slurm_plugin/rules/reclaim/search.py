"""Finds the smallest set of runs that makes room for jobs: fewest millislices, then fewest runs.

The greedy choice of ``greedy.py`` is the smallest set already where it meets the lower bound that
follows from counting instances by type. That is so where jobs and runs have one instance each and
tenants hold enough above their guaranteed quota. Otherwise an integer program (``ilp.py``) looks
for a smaller set.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.slurm_plugin.rules.quota.jobs import JobKey, WaitingJob
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity, JobPlaces, VictimSet
from slicewise.slurm_plugin.rules.reclaim.greedy import fill
from slicewise.slurm_plugin.rules.reclaim.ilp import Choice

_FEW_COLUMNS = 400
"""Most columns (runs, and nodes for each shape) for which the integer program is tried."""


@dataclass(frozen=True)
class Served:
    """The jobs for which room was made, and those without.

    Attributes:
        places: the nodes of jobs that need more than a single instance, by key.
        out: keys of jobs without room.
    """

    places: Mapping[JobKey, tuple[str, ...]] = field(hash=False)
    out: frozenset[JobKey]


def all_served(room: Capacity, needs: Sequence[WaitingJob]) -> Served | None:
    """Take the smallest set of runs that makes room for all jobs; None if none was found.

    The set is certain to be the smallest where it meets the bound, or where columns are few.
    """
    if len(_hopeful(room, needs)) < len(needs) or len(_counted(room, needs)) < len(needs):
        return None
    victim_set = _smallest(room, needs)
    return None if victim_set is None else _served(room, needs, needs, victim_set)


def some_served(room: Capacity, needs: Sequence[WaitingJob]) -> Served:
    """Take runs for those jobs that can have room; earlier jobs come before later ones.

    Where columns are many, jobs with enough of their types in total, counted in order, come before
    the others.
    """
    wants = _hopeful(room, needs)
    if _are_few(room, wants):
        those = _with_room(room, wants)
        if (victim_set := _smallest(room, those)) is not None:
            return _served(room, needs, those, victim_set)
    return _served(room, needs, *_in_turn(room, wants))


def _hopeful(room: Capacity, needs: Iterable[WaitingJob]) -> Sequence[WaitingJob]:
    return [need for need in needs if len(room.estimates(need.shape)) >= need.nodes]


def _with_room(room: Capacity, needs: Sequence[WaitingJob]) -> Sequence[WaitingJob]:
    """The jobs that can have room together, earlier ones first.

    Where one job has no room, no later job of the same shape and number of nodes has any.
    """
    those: list[WaitingJob] = []
    while needs:
        more = bisect_left(
            range(1, len(needs) + 1),
            True,
            key=lambda count: not _is_room(room, [*those, *needs[:count]]),
        )
        those += needs[:more]
        needs = [need for need in needs[more + 1 :] if not _are_alike(need, needs[more])]
    return those


def _is_room(room: Capacity, needs: Sequence[WaitingJob]) -> bool:
    return _filled(room, needs) is not None or Choice(room, needs).is_possible()


def _are_alike(job: WaitingJob, other: WaitingJob) -> bool:
    return (job.shape, job.nodes) == (other.shape, other.nodes)


def _are_few(room: Capacity, needs: Iterable[WaitingJob]) -> bool:
    shapes = {(need.shape, need.nodes) for need in needs if not need.is_single}
    columns = len(room.runs) + sum(len(room.estimates(shape)) for shape, _ in shapes)
    return columns <= _FEW_COLUMNS


def _smallest(room: Capacity, needs: Sequence[WaitingJob]) -> VictimSet | None:
    victim_set = _filled(room, needs)
    if not _are_few(room, needs) or (
        victim_set is not None and victim_set.size <= _least(room, needs)
    ):
        return victim_set
    return Choice(room, needs).smallest(victim_set)


def _instances(need: WaitingJob) -> int:
    return need.nodes * sum(count for _, count in need.shape)


def _least(room: Capacity, needs: Sequence[WaitingJob]) -> tuple[int, int]:
    room.need(needs)
    least = room.at_least()
    room.need(needs, -1)
    return least


def _filled(room: Capacity, needs: Sequence[WaitingJob]) -> VictimSet | None:
    """Fill greedily, the largest jobs first; None if not all get room.

    ``room`` is left as it was.
    """
    places, out = fill(room, sorted(needs, key=_instances, reverse=True))
    _give_back_needless(room)
    victim_set = _left_as_it_was(room, [need for need in needs if need.key not in out], places)
    return None if out else victim_set


def _left_as_it_was(room: Capacity, needs: Sequence[WaitingJob], places: JobPlaces) -> VictimSet:
    """Undo what was taken and placed for these jobs, and return it as a result."""
    victim_set = VictimSet((room.weight, len(room.taken)), tuple(room.taken.values()), places)
    _apply(room, needs, victim_set, -1)
    return victim_set


def _give_back_needless(room: Capacity) -> None:
    for run in reversed(tuple(room.taken.values())):
        if room.is_needless(run):
            room.give_back(run)


def _served(
    room: Capacity, needs: Iterable[WaitingJob], those: Sequence[WaitingJob], victim_set: VictimSet
) -> Served:
    """Apply what was found for ``those``; all other jobs have no room."""
    _apply(room, those, victim_set)
    served = {need.key for need in those}
    return Served(
        victim_set.places, frozenset(need.key for need in needs if need.key not in served)
    )


def _apply(
    room: Capacity, needs: Iterable[WaitingJob], victim_set: VictimSet, sign: int = 1
) -> None:
    """Apply a result to the room; a ``sign`` of -1 undoes it."""
    needs = tuple(needs)
    room.need(needs, sign)
    for run in victim_set.runs:
        if sign > 0:
            room.take(run)
        else:
            room.give_back(run)
    for need in needs:
        for node in victim_set.places.get(need.key, ()):
            room.place(node, need.shape, sign)


def _in_turn(room: Capacity, needs: Sequence[WaitingJob]) -> tuple[Sequence[WaitingJob], VictimSet]:
    """Fill for jobs with enough of their types in total, then for the others.

    Returns the jobs that got room, in order, and the result; ``room`` is left as it was.
    """
    counted = _counted(room, needs)
    places, out = fill(room, counted)
    first = {need.key for need in counted} - out
    more, out = fill(room, [need for need in needs if need.key not in first])
    _give_back_needless(room)
    those = [n for n in needs if n.key not in out]
    return those, _left_as_it_was(room, those, places | more)


def _counted(room: Capacity, needs: Iterable[WaitingJob]) -> Sequence[WaitingJob]:
    left = room.supply()
    startable: list[WaitingJob] = []
    for need in needs:
        if all(count * need.nodes <= left.get(gres_type, 0) for gres_type, count in need.shape):
            startable.append(need)
            for gres_type, count in need.shape:
                left[gres_type] -= count * need.nodes
    return startable
