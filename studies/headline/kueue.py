"""A cohort of queues as Kueue admits to it by default: nominal quota, borrowing, reclaim at once.

After Kueue's documentation: BestEffortFIFO tries the older workloads first and passes over those
that do not fit; a queue borrows what its cohort leaves idle (no borrowingLimit); a workload that
fits into its queue's nominal quota preempts those of queues that borrow, the newest first, and the
set is then made smaller (reclaimWithinCohort: Any). Within a queue nothing is preempted
(withinClusterQueue: Never), and no workload runs for a promised time. Queues that would not borrow
with a workload come before those that would. Left out are priorities of workloads, flavours, fair
sharing by weights, and topology: nodes are chosen after admission, by the scheduler.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """A job in a queue: it waits since ``since_s`` or was admitted then."""

    job_id: int
    queue: str
    amount: int
    since_s: float


@dataclass(frozen=True)
class Admissions:
    """What one cycle decides: who is admitted, and whose end makes room for it."""

    admitted: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()


def cycle(
    nominal: Mapping[str, int], waiting: Iterable[Workload], admitted: Iterable[Workload]
) -> Admissions:
    """Decide for all that waits; a workload that preempts is admitted in the same cycle."""
    cohort = _Cohort(nominal, admitted)
    heads = sorted(waiting, key=lambda one: (one.since_s, one.job_id))
    found = [one.job_id for one in _taken(heads, cohort.takes_nominal)]
    taken = set(found)
    # What preemption freed is not lent in the same cycle.
    left = (one for one in heads if one.job_id not in taken)
    found += [one.job_id for one in _taken(left, cohort.takes_idle)]
    return Admissions(tuple(found), tuple(cohort.preempted))


def _taken(heads: Iterable[Workload], takes: Callable[[Workload], bool]) -> Iterator[Workload]:
    """Those that are taken, in order. Where one is not, none of its queue that is as large is."""
    refused: set[tuple[str, int]] = set()
    for one in heads:
        if (one.queue, one.amount) not in refused:
            if takes(one):
                yield one
            else:
                refused.add((one.queue, one.amount))


class _Cohort:
    """What the queues of the cohort use, in the course of one cycle."""

    def __init__(self, nominal: Mapping[str, int], admitted: Iterable[Workload]) -> None:
        self._nominal, self._all = nominal, sum(nominal.values())
        self._running = sorted(admitted, key=lambda one: (-one.since_s, -one.job_id))
        self._used: Counter[str] = Counter()
        for one in self._running:
            self._used[one.queue] += one.amount
        self._total = sum(self._used.values())
        self.preempted: list[int] = []

    def takes_nominal(self, one: Workload) -> bool:
        """Admit a workload that its queue's nominal quota covers, and preempt where it must."""
        if self._used[one.queue] + one.amount > self._nominal.get(one.queue, 0):
            return False
        lacks = self._total + one.amount - self._all
        if lacks > 0:
            victims = self._victims(one.queue, lacks)
            if victims is None:
                return False
            for victim in victims:
                self._running.remove(victim)
                self._add(victim.queue, -victim.amount)
                self.preempted.append(victim.job_id)
        self._add(one.queue, one.amount)
        return True

    def takes_idle(self, one: Workload) -> bool:
        """Admit a workload to what the cohort leaves idle."""
        if one.queue not in self._nominal or self._total + one.amount > self._all:
            return False
        self._add(one.queue, one.amount)
        return True

    def _add(self, queue: str, amount: int) -> None:
        self._used[queue] += amount
        self._total += amount

    def _victims(self, queue: str, lacks: int) -> list[Workload] | None:
        """The newest workloads of queues that borrow, without those that need not end."""
        used, found = self._used.copy(), list[Workload]()
        freed = 0
        for one in self._running:
            if freed >= lacks:
                break
            if one.queue != queue and used[one.queue] > self._nominal.get(one.queue, 0):
                used[one.queue] -= one.amount
                freed += one.amount
                found.append(one)
        if freed < lacks:
            return None
        for one in reversed(tuple(found)):
            if freed - one.amount >= lacks:
                freed -= one.amount
                found.remove(one)
        return found
