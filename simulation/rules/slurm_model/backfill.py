"""Backfill: starts jobs behind ones that wait, as sched/backfill's backfill.c.

Jobs are tried in order. One that can't start now gets a reservation: whole nodes, from when they
have room by the time limits of running jobs and beside earlier reservations, for its own limit. A
job starts now if no reservation wants its nodes before its limit is over. One that limits keep from
its start gets no reservation.

When nodes have room is known no better than Slurm knows it: running jobs are taken away window by
window, each twice as long as the one before (``_will_run_test`` of select/cons_tres), and the job
is planned at the end of the last of them; reservations begin and end at multiples of bf_resolution.
A job whose nodes complete another one waits, and has them reserved from now on. Left out are the
time that a run takes, and the options that bound it by user or partition.

A run is over as soon as no later job could start: reservations only take room away. So the model
need not make reservations that nobody asks for.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import floor, inf

from slicewise.simulation.rules.slurm_model.job_records import LIMITED, NO_REASON, JobRecord, Shape
from slicewise.simulation.rules.slurm_model.model_state import ModelState
from slicewise.simulation.rules.slurm_model.nodes import ModelNode, as_mask
from slicewise.simulation.rules.slurm_model.preemption import may_preempt, preempt


def run_backfill(state: ModelState) -> None:
    """Start what can start without delaying a job before it."""
    _Backfill(state).run()


_WINDOW_S = 30.0
"""The first window in which ``_will_run_test`` takes running jobs away."""


class _Reserved:
    """Which nodes are reserved when: from each time on, until the next, a set of nodes."""

    def __init__(self, now_s: float, resolution_s: float) -> None:
        self._resolution_s = resolution_s
        self.times = [self._floor(now_s)]
        self.nodes = [0]

    def left(self, nodes: int, start_s: float, end_s: float) -> int:
        """Those of these nodes that are reserved at no time in this span, its end included."""
        return self._left(nodes, start_s, bisect_right(self.times, end_s))

    def left_and_later(self, nodes: int, start_s: float, end_s: float) -> tuple[int, float]:
        """The same, and when to look again: when another one is no longer reserved, or inf."""
        left, later_s = nodes, inf
        for at in range(max(0, bisect_right(self.times, start_s) - 1), len(self.times)):
            now_left = left & ~self.nodes[at]
            is_last = at + 1 == len(self.times)
            if later_s == inf and not is_last and nodes & ~self.nodes[at + 1] & ~now_left:
                later_s = self.times[at + 1]
            if self.times[at] > end_s:
                break
            left = now_left
            if not left and later_s < inf:
                break
        return left, later_s

    def are_free(self, nodes: int, start_s: float, end_s: float) -> bool:
        """Whether a reservation of these nodes would meet no other."""
        last = bisect_left(self.times, self._floor(end_s))
        return self._left(nodes, self._floor(start_s), last) == nodes

    def _left(self, nodes: int, start_s: float, last: int) -> int:
        first = max(0, bisect_right(self.times, start_s) - 1)
        for reserved in self.nodes[first:last]:
            nodes &= ~reserved
            if not nodes:
                break
        return nodes

    def _floor(self, at_s: float) -> float:
        return at_s if at_s == inf else at_s // self._resolution_s * self._resolution_s

    def add(self, start_s: float, end_s: float, nodes: int) -> None:
        """Reserve these nodes."""
        start_s = max(self._floor(start_s), self.times[0])
        end_s = max(self._floor(end_s), start_s + self._resolution_s)
        first = self._cut(start_s)
        last = self._cut(end_s) if end_s < inf else len(self.times)
        for at in range(first, last):
            self.nodes[at] |= nodes

    def _cut(self, at_s: float) -> int:
        at = bisect_left(self.times, at_s)
        if at == len(self.times) or self.times[at] != at_s:
            self.times.insert(at, at_s)
            self.nodes.insert(at, self.nodes[at - 1])
        return at


class _Ends:
    """When the running jobs end by their limits, and on which nodes."""

    def __init__(self, nodes: Iterable[ModelNode]) -> None:
        ends: dict[int, tuple[float, int]] = {}
        for i, node in enumerate(nodes):
            for job in node.jobs.values():
                _, on = ends.get(job.job_id, (0.0, 0))
                ends[job.job_id] = job.until_s, on | 1 << i
        self._ends = sorted(ends.values())

    def window_s(self, at_s: float, nodes: int) -> float:
        """The last end of a job on these nodes in the window in which ``at_s``, one of them, is.

        The first window ends at the second multiple of 30 s after the first end.
        """
        first_s = next(end_s for end_s, on in self._ends if on & nodes)
        until_s = first_s // _WINDOW_S * _WINDOW_S + _WINDOW_S
        window_s = _WINDOW_S
        while until_s + window_s < at_s:
            window_s *= 2
        last = bisect_right(self._ends, (until_s + window_s, inf))
        return next(end_s for end_s, on in reversed(self._ends[:last]) if on & nodes)


class _Backfill:
    """One run."""

    def __init__(self, state: ModelState) -> None:
        self._state = state
        # Slurm reckons in whole seconds.
        self._now_s = float(floor(state.now_s))
        self._horizon_s = self._now_s + state.scheduling.backfill_window_s
        self._reserved = _Reserved(self._now_s, state.scheduling.backfill_resolution_s)
        self._ends: _Ends | None = None
        self._reservations = 0
        self._hopes: dict[int, tuple[int, JobRecord]] = {}
        self._in_vain: set[int] = set()
        self._last = -1
        self._earliest: dict[tuple[Shape, int, int], dict[float, float]] = {}

    def run(self) -> None:
        """Try the first jobs of the queue, as far as one of them might start."""
        jobs = self._jobs()
        look_again = 0
        for at, record in enumerate(jobs):
            if at > self._last:
                return
            self._try(record)
            if self._reservations >= look_again:
                self._give_up_hopes()
                look_again = self._reservations + 4 + len(self._hopes) // 4

    def _jobs(self) -> list[JobRecord]:
        """The jobs to try; notes for each kind that might start now which of them is the last."""
        state = self._state
        waiting_records: list[JobRecord] = []
        hopes, hopeless = self._hopes, set[int]()
        for key in state.queue[: state.scheduling.backfill_jobs]:
            record = state.waiting[key[-1]]
            if self._is_limited(record):
                continue
            kind = record.kind
            if kind not in hopeless:
                if kind in hopes or self._may_start(record):
                    hopes[kind] = (len(waiting_records), record)
                    self._last = len(waiting_records)
                else:
                    hopeless.add(kind)
            waiting_records.append(record)
        return waiting_records

    def _is_limited(self, record: JobRecord) -> bool:
        reason = self._state.limit(record)
        if reason:
            self._state.say(record, reason)
            return True
        if record.reason.startswith(LIMITED):
            self._state.say(record, NO_REASON)
        return False

    def _may_start(self, record: JobRecord) -> bool:
        """Whether there is room now beside the reservations, or preemption may make some."""
        if self._room_now(record).bit_count() >= record.request.nodes:
            return True
        return record.kind not in self._in_vain and may_preempt(
            self._state, record, self._unreserved(record)
        )

    def _nodes_of(self, record: JobRecord) -> int:
        return self._state.nodes.partitions.get(record.request.partition, 0) & ~record.excluded

    def _room_now(self, record: JobRecord) -> int:
        free = self._state.nodes.free_now(record.shape) & self._nodes_of(record)
        if free.bit_count() < record.request.nodes:
            return 0
        return free & self._unreserved(record)

    def _unreserved(self, record: JobRecord) -> int:
        nodes = self._nodes_of(record)
        return self._reserved.left(nodes, self._now_s, self._now_s + record.limit_s)

    def _give_up_hopes(self) -> None:
        for kind, (_, record) in list(self._hopes.items()):
            if not self._may_start(record):
                del self._hopes[kind]
        self._last = max((last for last, _ in self._hopes.values()), default=-1)

    def _try(self, record: JobRecord) -> None:
        while not self._is_limited(record):
            room = self._room_now(record) if record.kind in self._hopes else 0
            if room.bit_count() < record.request.nodes:
                self._wait(record)
                return
            nodes = self._state.nodes.choose(room, record.request.nodes)
            if (chosen := as_mask(nodes)) & self._state.nodes.completing:
                self._reserve(record, self._now_s, chosen)
                return
            self._ends = None
            self._state.start(record, nodes)
            if record.key is None:
                return

    def _wait(self, record: JobRecord) -> None:
        """Make others end for the job, if it may do that, or reserve nodes for it."""
        others_end = False
        if record.kind in self._hopes and record.kind not in self._in_vain:
            self._in_vain.add(record.kind)
            self._ends = None
            others_end = preempt(self._state, record, self._unreserved(record))
        if not self._state.keeps_nodes(record):
            return
        planned = self._plan(record, is_near=others_end)
        if planned is not None:
            self._reserve(record, *planned)

    def _reserve(self, record: JobRecord, start_s: float, nodes: int) -> None:
        self._reserved.add(start_s, start_s + record.limit_s, nodes)
        self._reservations += 1

    def _plan(self, record: JobRecord, *, is_near: bool) -> tuple[float, int] | None:
        """The earliest start within the window, and its nodes.

        ``is_near``: others have been told to end for the job, and no window is looked at.
        """
        reserved = self._reserved
        order = self._state.nodes.free_from(record.shape)
        mine, limit_s, count = self._nodes_of(record), record.limit_s, record.request.nodes
        # Reservations only become more, and a shorter limit is easier to meet.
        earliest = self._earliest.setdefault((record.shape, count, mine), {})
        from_s = max(
            (at_s for limit_before_s, at_s in earliest.items() if limit_before_s <= limit_s),
            default=self._now_s,
        )
        while from_s <= self._horizon_s:
            free, next_s = reserved.left_and_later(mine, from_s, from_s + limit_s)
            start_s, nodes = _first(order, free, count, from_s, next_s)
            if from_s < start_s < inf and not is_near:
                start_s, nodes = self._in_window(order, free, count, start_s)
            if start_s <= next_s and start_s < inf:
                is_free = reserved.are_free(nodes, start_s, start_s + limit_s)
                if start_s <= self._horizon_s and is_free:
                    earliest[limit_s] = from_s
                    return start_s, nodes
                next_s = start_s if start_s > from_s else next_s
            from_s = next_s
        earliest[limit_s] = inf
        return None

    def _in_window(
        self, order: list[tuple[float, int]], free: int, count: int, at_s: float
    ) -> tuple[float, int]:
        """When Slurm finds that such nodes have room, which they have at ``at_s``; and which."""
        if self._ends is None:
            self._ends = _Ends(self._state.nodes.nodes)
        start_s = self._ends.window_s(at_s, free)
        fit = 0
        for room_s, i in order:
            if room_s > start_s:
                break
            fit |= 1 << i
        return start_s, as_mask(self._state.nodes.choose(fit & free, count, start_s))


def _first(
    order: list[tuple[float, int]], free: int, count: int, from_s: float, until_s: float
) -> tuple[float, int]:
    """When so many of these nodes have room, and the first that have; inf if not until then."""
    nodes = 0
    if free.bit_count() < count:
        return inf, 0
    for at_s, i in order:
        if at_s > until_s:
            break
        if free >> i & 1:
            nodes |= 1 << i
            count -= 1
            if not count:
                return max(from_s, at_s), nodes
    return inf, 0
