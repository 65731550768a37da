"""The smallest set of runs that makes room for jobs: fewest millislices, then fewest runs.

What is filled in one go (``fill.py``) is the smallest set already where it meets the bound
that follows from counting instances by type: so it is where jobs and runs have one instance each
and tenants hold enough above their own part. Else all places of all jobs and all runs that could
go there are tried, where there are few (branch and bound). Of equal sets the first one stays: it
follows the order of victims step by step.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from slurm_plugin.decide.reclaim.fill import Places, fill, options_at, order, take_anywhere
from slurm_plugin.decide.reclaim.room import Need, Room, Run

_STEPS = 3_000
"""Of all searches for one room, at most: then the best that was found is taken."""
_FEW_INSTANCES = 64
"""For jobs that need more of them together nothing but filling is tried."""
_FEW_KINDS = 100
"""Of runs: of more, those that go from any nodes are not tried one by one."""

_Size = tuple[float, float]
_NONE: _Size = (float("inf"), float("inf"))


@dataclass(frozen=True)
class Served:
    """What was made room for.

    Attributes:
        places: the nodes of jobs that need more than a single instance, by key.
        out: keys of jobs without room.
    """

    places: Mapping[int, tuple[str, ...]] = field(hash=False)
    out: frozenset[int]


@dataclass(frozen=True)
class _Found:
    """A set of runs that suffices, and the places of jobs then; of no size if none was found."""

    size: _Size = _NONE
    runs: tuple[Run, ...] = ()
    places: Places = field(default_factory=dict, hash=False)


def served(room: Room, needs: Sequence[Need]) -> Served:
    """Take the smallest set of runs that makes room for the jobs, earlier ones before later ones.

    If the jobs need few instances: exact, in who is served and by which set, while the steps of the
    search last. Else as is said above; and if not all have room, those are served first for whose
    types there is enough, counted in order.
    """
    wants: Sequence[Need] = [n for n in needs if len(room.estimates(n.shape)) >= n.nodes]
    found, out = _filled(room, wants)
    if out or found.size > _least(room, wants):
        if sum(map(_instances, wants)) <= _FEW_INSTANCES:
            wants, found = _searched(room, wants, _Found() if out else found)
        elif out:
            wants, found = _in_turn(room, wants)
    _apply(room, wants, found)
    known = {need.key for need in wants}
    return Served(found.places, frozenset(need.key for need in needs if need.key not in known))


def _instances(need: Need) -> int:
    return need.nodes * sum(count for _, count in need.shape)


def _least(room: Room, needs: Sequence[Need]) -> _Size:
    room.need(needs)
    least = room.at_least()
    room.need(needs, -1)
    return least


def _filled(room: Room, needs: Sequence[Need]) -> tuple[_Found, set[int]]:
    """In one go, the largest first; who has no room then. The room is left as it was."""
    places, out = fill(room, sorted(needs, key=_instances, reverse=True))
    _give_back_needless(room)
    _, found = _left_as_it_was(room, [need for need in needs if need.key not in out], places)
    return found, out


def _left_as_it_was(
    room: Room, needs: Sequence[Need], places: Places
) -> tuple[Sequence[Need], _Found]:
    """What has been found for these, and is undone."""
    found = _Found((room.weight, len(room.taken)), tuple(room.taken.values()), places)
    _apply(room, needs, found, -1)
    return needs, found


def _give_back_needless(room: Room) -> None:
    for run in reversed(tuple(room.taken.values())):
        if room.is_needless(run):
            room.give_back(run)


def _apply(room: Room, needs: Iterable[Need], found: _Found, sign: int = 1) -> None:
    """Do it; with a sign of -1 undo it."""
    needs = tuple(needs)
    room.need(needs, sign)
    for run in found.runs:
        if sign > 0:
            room.take(run)
        else:
            room.give_back(run)
    for need in needs:
        for node in found.places.get(need.key, ()):
            room.place(node, need.shape, sign)


def _in_turn(room: Room, needs: Sequence[Need]) -> tuple[Sequence[Need], _Found]:
    """Those for whose types there is enough, counted in order; of what is left then the others."""
    counted = _counted(room, needs)
    places, out = fill(room, counted)
    first = {need.key for need in counted} - out
    more, out = fill(room, [need for need in needs if need.key not in first])
    _give_back_needless(room)
    return _left_as_it_was(room, [n for n in needs if n.key not in out], places | more)


def _counted(room: Room, needs: Iterable[Need]) -> Sequence[Need]:
    left = room.supply()
    found: list[Need] = []
    for need in needs:
        if all(count * need.nodes <= left.get(kind, 0) for kind, count in need.shape):
            found.append(need)
            for kind, count in need.shape:
                left[kind] -= count * need.nodes
    return found


def _searched(room: Room, needs: Sequence[Need], found: _Found) -> tuple[Sequence[Need], _Found]:
    """Who has room, all if a set is ``found`` already, and the smallest set for them."""
    search = _Search(room)
    if found.size == _NONE:
        needs, found = _servable(room, needs, search)
    return needs, search.smallest(needs, found)


def _servable(
    room: Room, needs: Iterable[Need], search: "_Search"
) -> tuple[Sequence[Need], _Found]:
    """Earlier ones before later ones, and some set that suffices for them."""
    served: list[Need] = []
    last = _Found((0, 0))
    for need in needs:
        found, out = _filled(room, [*served, need])
        if out:
            found = search.any([*served, need])
        if found.size != _NONE:
            served.append(need)
            last = found
    return served, last


class _Search:
    """Branch and bound in a room, which each search leaves as it was."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._left = _STEPS
        self._banned: set[tuple[object, ...]] = set()
        self._best = _Found()
        self._any = False
        self._slots: Sequence[tuple[Need, int]] = ()
        self._at: list[str] = []
        self._kinds: dict[tuple[object, ...], list[Run]] = defaultdict(list)
        for run in sorted(room.runs, key=lambda run: run.rank):
            self._kinds[run.broad_kind].append(run)

    def any(self, needs: Sequence[Need]) -> _Found:
        """Some set that makes room for all; none if there is none, or the steps are used up."""
        return self._run(needs, _Found(), is_any=True)

    def smallest(self, needs: Sequence[Need], known: _Found) -> _Found:
        """The smallest set; at least as small as the known one."""
        return self._run(needs, known, is_any=False)

    def _run(self, needs: Sequence[Need], known: _Found, *, is_any: bool) -> _Found:
        located = sorted((n for n in needs if not n.is_single), key=_instances, reverse=True)
        self._slots = [(need, nth) for need in located for nth in range(need.nodes)]
        self._best, self._any = known, is_any
        self._room.need(needs)
        self._explore(0, (), "")
        self._room.need(needs, -1)
        return self._best

    def _is_over(self) -> bool:
        return self._left <= 0 or (self._any and self._best.size != _NONE)

    def _explore(self, slot: int, rest: Sequence[str], node: str) -> None:
        """Try all that can follow; ``node`` may be short yet, ``rest`` is left for the same job."""
        room = self._room
        self._left -= 1
        if self._is_over() or room.at_least(node) >= self._best.size:
            return
        if node and (lacks := room.lacks_at(node)):
            self._take(slot, rest, node, options_at(room, node, lacks), lambda run: run.kind)
        elif slot < len(self._slots):
            self._place(slot, rest)
        elif room.lacks():
            self._take_anywhere(slot)
        else:
            self._keep()

    def _keep(self) -> None:
        room = self._room
        places: Places = {}
        for (need, _), node in zip(self._slots, self._at, strict=True):
            places[need.key] = (*places.get(need.key, ()), node)
        self._best = _Found((room.weight, len(room.taken)), tuple(room.taken.values()), places)

    def _place(self, slot: int, rest: Sequence[str]) -> None:
        """On each node: of those that were tried for a job before none is tried for it again."""
        need, nth = self._slots[slot]
        estimates = self._room.estimates(need.shape)
        among = rest if nth else estimates
        nodes = sorted((n for n in among if n in estimates), key=lambda n: (estimates[n], n))
        for i, node in enumerate(nodes):
            if self._is_over():
                return
            self._room.place(node, need.shape)
            self._at.append(node)
            self._explore(slot + 1, nodes[i + 1 :], node)
            self._at.pop()
            self._room.place(node, need.shape, -1)

    def _take(
        self,
        slot: int,
        rest: Sequence[str],
        node: str,
        runs: Iterable[Run],
        kind_of: Callable[[Run], tuple[object, ...]],
    ) -> None:
        """Each kind of run: once all with it have been tried, it stays."""
        tried: list[tuple[object, ...]] = []
        for run in runs:
            kind = kind_of(run)
            if self._is_over():
                break
            if kind not in self._banned and run.kind not in self._banned:
                self._room.take(run)
                self._explore(slot, rest, node)
                self._room.give_back(run)
                self._banned.add(kind)
                tried.append(kind)
        self._banned.difference_update(tried)

    def _take_anywhere(self, slot: int) -> None:
        """All at once first; that is the smallest if it meets the bound."""
        room = self._room
        least = room.at_least()
        taken = take_anywhere(room)
        size = room.weight, len(room.taken)
        if not room.lacks() and size < self._best.size:
            self._keep()
        for run in reversed(taken):
            room.give_back(run)
        self._left -= len(taken)
        if self._best.size > least:
            lacks = room.lacks()
            kind = min(lacks)
            options = [run for run in self._one_of_each_kind() if kind in dict(run.total)]
            options.sort(key=lambda run: order(room, run, {}))
            self._take(slot, (), "", options, lambda run: run.broad_kind)

    def _one_of_each_kind(self) -> Iterator[Run]:
        for runs in self._kinds.values() if len(self._kinds) <= _FEW_KINDS else ():
            fit = (r for r in runs if self._room.may_take(r) and r.kind not in self._banned)
            yield from islice(fit, 1)
