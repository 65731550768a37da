"""Replays the tenants on one cluster; the product's decisions lend, recall and reclaim quota.

What Slurm does is written out. It starts jobs within its limits and on free instances, those in
tenants' own QOS first. For these it immediately preempts runs of the borrowed QOS, except runs in
their term. Everything happens in whole seconds, and every consequence happens in the same second:
the time that the daemon and slurmctld take comes on top.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Loan, Recall
from slicewise.slurm_plugin.rules.reclaim.recalls import (
    have_room,
    meanwhile,
    over_entitlement,
    recalled,
    short_lenders,
)
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.startable import FreeInstances
from slicewise.slurm_plugin.rules.reclaim.turns import Turn, runs_to_end
from slicewise.slurm_plugin.rules.reclaim.victims import Reclaim, ReclaimInput
from slicewise.slurm_plugin.rules.round.whole_jobs import Waits, lend_whole_jobs, own_needs
from slicewise.slurm_plugin.rules.services.eviction import AGAIN_S, REST_S
from slicewise.slurm_plugin.rules.services.hold_back import Lenders, still_waiting
from studies.lending.cluster import Cluster
from studies.lending.tenants import COSTS, SPAN_S, Wishes
from studies.lending.wants import Counts, Terms, Want, policy

_LEND_S = 15
"""Seconds after which the daemon lends again though no lender is short."""
_ROUNDS = 50


class Shared:
    """One replay of the tenants on a shared cluster."""

    def __init__(
        self, wishes: Sequence[Wishes], nominal: Sequence[int], cluster: Cluster, terms: Terms
    ) -> None:
        self._wishes = wishes
        self._terms = terms
        self._policy = policy(wishes, nominal)
        self._own = [count * COSTS[one.kind] for one, count in zip(wishes, nominal, strict=True)]
        self._capacity = cluster.millislices
        self._free = {node: Counter(types) for node, types in cluster.instances.items()}
        self._held = [0] * len(wishes)
        self._own_held = [0] * len(wishes)
        self._queues: list[list[Want]] = [[] for _ in wishes]
        self._borrowed: dict[int, Want] = {}
        self._ends: list[tuple[int, int, int]] = []
        self._loans: tuple[Loan, ...] = ()
        self._recalls: tuple[Recall, ...] = ()
        self._turn: Turn | None = None
        self._limits: Sequence[int] = self._own
        self._kept_until_s = [0] * len(wishes)
        self._over_s: dict[str, int] = {}
        self._lenders: Lenders = {}
        self._lend_due_s = 0
        self._looked: tuple[object, ...] = ()
        self._now_s = 0
        self.counts = Counts()
        asks = ((ask, number) for number, one in enumerate(wishes) for ask in one.asks)
        ordered = sorted(asks, key=lambda pair: (pair[0].submit_s, pair[1]))
        self.wants = [Want(ask.submit_s, n, t, ask) for n, (ask, t) in enumerate(ordered)]

    def run(self) -> None:
        """Replay from the first ask to the last end, or to the end of the span."""
        arrivals = iter(self.wants)
        following = next(arrivals, None)
        while True:
            times = [self._ends[0][0]] if self._ends else []
            times += [following.submit_s] if following is not None else []
            times += [one.called_s + self._terms.grace_s for one in self._recalls]
            times += [until_s for until_s in self._kept_until_s if until_s > self._now_s]
            if any(self._queues):
                times.append(max(self._lend_due_s, self._now_s + 1))
            if not times or min(times) >= SPAN_S:
                break
            self._now_s = min(times)
            self._end_due()
            while following is not None and following.submit_s <= self._now_s:
                self._queue(following)
                following = next(arrivals, None)
            self._settle()
        self._close()

    def _close(self) -> None:
        """Count runs and waits that outlast the span, up to its end."""
        self._now_s = SPAN_S
        for want in self.wants:
            if want.start_s is not None:
                held_s = SPAN_S - want.start_s
                self.counts.held_millislice_s += held_s * self._cost(want.tenant)
        for queue in self._queues:
            for want in queue:
                want.waited_s += SPAN_S - want.since_s

    def _queue(self, want: Want) -> None:
        want.since_s = self._now_s
        insort(self._queues[want.tenant], want)
        if want.ask.until_s is not None:
            heapq.heappush(self._ends, (want.ask.until_s, want.number, -1))

    def _end_due(self) -> None:
        """End what is due; ignore an end that was set for an earlier run (by ``sent_away``)."""
        while self._ends and self._ends[0][0] <= self._now_s:
            _, number, run = heapq.heappop(self._ends)
            want = self.wants[number]
            if run == -1:
                self._withdraw(want)
            elif want.start_s is not None and run == want.sent_away:
                drained = want.is_leaving
                self._stop(want)
                if drained:
                    self._again(want)

    def _withdraw(self, want: Want) -> None:
        """Stop a replica that is wanted no longer, or take it out of its queue."""
        if want.start_s is not None:
            self._stop(want)
        elif want in self._queues[want.tenant]:
            want.waited_s += self._now_s - want.since_s
            self._queues[want.tenant].remove(want)

    def _stop(self, want: Want) -> None:
        kind, cost = self._kind(want.tenant), self._cost(want.tenant)
        self._free[want.node][kind] += 1
        self._held[want.tenant] -= cost
        if want.is_borrowed:
            del self._borrowed[want.number]
        else:
            self._own_held[want.tenant] -= cost
        self.counts.held_millislice_s += cost * (self._now_s - (want.start_s or 0))
        want.start_s, want.is_leaving = None, False

    def _again(self, want: Want) -> None:
        """Put an ask that was sent away back to its old place in the queue, if still wanted."""
        want.sent_away += 1
        if want.ask.until_s is None or want.ask.until_s > self._now_s:
            want.since_s = self._now_s
            insort(self._queues[want.tenant], want)

    def _settle(self) -> None:
        """Reclaim, lend and start until nothing changes any more."""
        for _ in range(_ROUNDS):
            ready = self._reclaim() if self._recalls or self._turn else {}
            changed = self._is_due(ready) and self._lend(ready)
            self._wait_on()
            if not self._start() and not changed:
                return
        raise AssertionError(f"no end of it at second {self._now_s}")

    def _wait_on(self) -> None:
        """As ``eviction.Evictions.wait_on``."""
        if not self._lenders:
            return
        names = [one.name for one in self._wishes]
        going = {names[want.tenant] for want in self._borrowed.values() if want.is_leaving}
        before = self._lenders
        within = {
            name: before[name]
            for name, until_s in zip(names, self._kept_until_s, strict=True)
            if name in before and until_s > self._now_s
        }
        self._lenders = still_waiting(within, going, self._recalls, self._with_own_room())
        for number, name in enumerate(names):
            if name in before.keys() - self._lenders.keys():
                is_again = self._now_s - self._over_s.get(name, -SPAN_S) < AGAIN_S
                rest_s = self._now_s + int(REST_S) * is_again
                self._kept_until_s[number] = min(self._kept_until_s[number], rest_s)
                self._over_s[name] = self._now_s

    def _is_due(self, ready: Mapping[str, int]) -> bool:
        """Whether to lend now; not if nothing has changed since: lending would change nothing."""
        waiting = tuple(map(len, self._queues))
        at_s = self._now_s if self._recalls else -1
        looked = at_s, tuple(self._held), waiting, tuple(sorted(ready.items()))
        if looked == self._looked:
            return False
        due = self._now_s >= self._lend_due_s or self._recalls
        if not due and not short_lenders(self._policy, self._loans, self._own_needs()):
            return False
        self._looked = looked
        return True

    def _demand(self) -> Mapping[str, int]:
        """As ``quota.demand.demand``.

        Waiting jobs have the QOS that ``admission.qos_switch`` gives them.
        """
        wanted = (
            held + self._cost(number) * len(self._queues[number])
            for number, held in enumerate(self._held)
        )
        return {
            one.name: amount if one.borrows else min(amount, own)
            for one, amount, own in zip(self._wishes, wanted, self._own, strict=True)
        }

    def _own_needs(self) -> Mapping[str, int]:
        return own_needs(self._policy, self._demand(), self._waiting_for_loans())

    def _lend(self, ready: Mapping[str, int]) -> bool:
        """Lend and recall; return whether loans or recalls have changed."""
        self._lend_due_s = self._now_s + _LEND_S
        names = [one.name for one in self._wishes]
        able = {names[want.tenant] for want in self._borrowed.values() if want.ask.level}
        known = [one for one in self._recalls if one.borrower in able]
        wanted, waits = self._demand(), self._waits()
        lent = lend_whole_jobs(
            self._policy,
            wanted,
            waits,
            self._loans,
            capacity=self._capacity,
            lately={},
            at_most=meanwhile(
                self._policy,
                wanted,
                self._own_needs(),
                self._loans,
                known,
                guaranteed=waits.guaranteed,
            ),
        )
        after, self._turn = lent.loans, lent.turn
        held = dict(zip(names, self._held, strict=True))
        waiting, now_s, grace_s = self._waiting(), self._now_s, self._terms.grace_s
        room = have_room(
            self._policy, self._loans, known, held, waiting, now_s=now_s, grace_s=grace_s
        )
        recalls = recalled(
            self._policy,
            [one for one in self._loans if one.borrower in able],
            after,
            known,
            held,
            ready=Counter(ready) | Counter(room),
            waiting=waiting,
            now_s=now_s,
            grace_s=grace_s,
        )
        if (after, recalls) == (self._loans, self._recalls):
            return False
        self._count(after, recalls)
        self._loans, self._recalls = after, recalls
        found = standings(self._policy, after, recalls)
        self._limits = [found[name].limit_millislices for name in names]
        return True

    def _waits(self) -> Waits:
        """As ``quota_cycle.whole_jobs.waits``."""
        left = FreeInstances(self._free)
        for number in range(len(self._wishes)):
            for _ in self._queues[number][: self._own_room(number)]:
                left.place(self._job(number))
        queues = self._waiting_for_loans()
        return Waits(
            queues, left.by_node(), self._taking(), self._terms.turn_s, self._with_own_room()
        )

    def _with_own_room(self) -> frozenset[str]:
        """Tenants with waiting jobs that fit into what is left of their guaranteed quotas."""
        return frozenset(
            one.name
            for number, one in enumerate(self._wishes)
            if self._queues[number] and self._own_room(number)
        )

    def _waiting_for_loans(self) -> Mapping[str, Sequence[WaitingJob]]:
        queues: dict[str, list[WaitingJob]] = {}
        for number, one in enumerate(self._wishes):
            queue, own_room = self._queues[number], self._own_room(number)
            if one.borrows and len(queue) > own_room:
                since_s, tasks = queue[own_room].since_s, len(queue) - own_room
                queues[one.name] = [self._job(number, since_s, tasks=tasks)]
        return queues

    def _job(self, number: int, since_s: int | None = None, *, tasks: int = 1) -> WaitingJob:
        one = self._wishes[number]
        cost, shape = self._cost(number), ((one.kind, 1),)
        return WaitingJob(number, one.name, cost, shape, tasks=tasks, since_s=since_s)

    def _waiting(self) -> Mapping[str, Sequence[WaitingJob]]:
        lenders = {one.lender for one in self._loans}
        lenders |= {one.lender for one in self._recalls}
        return {
            one.name: [
                self._job(number, want.since_s)
                for want in self._queues[number][: self._own_room(number) if one.borrows else None]
            ]
            for number, one in enumerate(self._wishes)
            if one.name in lenders
        }

    def _count(self, after: Sequence[Loan], recalls: Sequence[Recall]) -> None:
        had = {(one.lender, one.borrower): one.amount_millislices for one in self._loans}
        grown = [one.amount_millislices - had.get((one.lender, one.borrower), 0) for one in after]
        self.counts.loans += sum(amount > 0 for amount in grown)
        self.counts.lent_millislices += sum(amount for amount in grown if amount > 0)
        known = {(one.lender, one.borrower, one.called_s) for one in self._recalls}
        self.counts.recalls += sum(
            (one.lender, one.borrower, one.called_s) not in known for one in recalls
        )

    def _start(self) -> bool:
        """Start asks, tenants' own QOS first, then by age; return whether any started."""
        started = False
        for is_borrowed in (False, True):
            heads = [
                (want, number)
                for number in range(len(self._wishes))
                if (want := self._head(number, is_borrowed=is_borrowed)) is not None
            ]
            heapq.heapify(heads)
            while heads:
                want, number = heapq.heappop(heads)
                if self._may_start(want, is_borrowed=is_borrowed):
                    self._begin(want, is_borrowed=is_borrowed)
                    started = True
                    following = self._head(number, is_borrowed=is_borrowed)
                    if following is not None:
                        heapq.heappush(heads, (following, number))
        return started

    def _head(self, number: int, *, is_borrowed: bool) -> Want | None:
        """The tenant's first ask that waits for that QOS; None if there is none that may start.

        As in ``admission.qos_switch``, the first asks get what is left of their tenant's guaranteed
        quota. No replica starts on borrowed quota while others of its tenant leave
        (``eviction.py``); batch jobs are never asked to leave.
        """
        if is_borrowed and self._kept_until_s[number] > self._now_s:
            return None
        skipped = self._own_room(number) if is_borrowed else 0
        queue = self._queues[number]
        if not (self._wishes[number].borrows if is_borrowed else self._own_room(number)):
            return None
        return queue[skipped] if skipped < len(queue) else None

    def _own_room(self, number: int) -> int:
        return max(0, self._own[number] - self._own_held[number]) // self._cost(number)

    def _may_start(self, want: Want, *, is_borrowed: bool) -> bool:
        number = want.tenant
        if self._held[number] + self._cost(number) > self._limits[number]:
            return False
        kind = self._kind(number)
        if any(there[kind] for there in self._free.values()):
            return True
        return not is_borrowed and self._preempt(kind)

    def _preempt(self, kind: str) -> bool:
        """Preempt the run of the borrowed QOS with the oldest job id; return whether there is one.

        Runs in their term are left alone.
        """
        youngest_s = self._now_s - self._terms.term_s
        found = (
            want
            for want in self._borrowed.values()
            if self._kind(want.tenant) == kind and (want.start_s or 0) <= youngest_s
        )
        victim = min(found, key=lambda want: want.number, default=None)
        if victim is None:
            return False
        if victim.is_leaving:
            self.counts.cut_off += 1
        elif victim.ask.level:
            self.counts.preempted_replicas += 1
        else:
            self.counts.preempted_jobs += 1
            ran_s = self._now_s - (victim.start_s or 0)
            self.counts.lost_millislice_s += ran_s * self._cost(victim.tenant)
        self._stop(victim)
        self._again(victim)
        return True

    def _begin(self, want: Want, *, is_borrowed: bool) -> None:
        kind, cost = self._kind(want.tenant), self._cost(want.tenant)
        self._queues[want.tenant].remove(want)
        want.node = next(node for node, there in self._free.items() if there[kind])
        self._free[want.node][kind] -= 1
        self._held[want.tenant] += cost
        want.is_borrowed = is_borrowed
        want.start_s = want.last_start_s = self._now_s
        want.waited_s += self._now_s - want.since_s
        if is_borrowed:
            self._borrowed[want.number] = want
        else:
            self._own_held[want.tenant] += cost
        if want.ask.lasts_s is not None:
            end_s = self._now_s + want.ask.lasts_s
            heapq.heappush(self._ends, (end_s, want.number, want.sent_away))

    def _reclaim(self) -> Mapping[str, int]:
        """Ask replicas to go; return the millislices for which each lender finds free instances."""
        found = self._found()
        for number, _ in found.victims:
            want = self.wants[number]
            if not want.is_leaving:
                want.is_leaving = True
                self._kept_until_s[want.tenant] = self._now_s + self._terms.grace_s
                self._lenders = {self._wishes[want.tenant].name: frozenset(), **self._lenders}
                self.counts.asked += 1
                end_s = self._now_s + self._wishes[want.tenant].drain_s
                heapq.heappush(self._ends, (end_s, number, want.sent_away))
        return found.ready

    def _found(self) -> Reclaim:
        held = {one.name: held for one, held in zip(self._wishes, self._held, strict=True)}
        over = over_entitlement(self._policy, self._loans, held)
        there = self._waits()
        return runs_to_end(there.reclaim_input, self._turn, over, there.free)

    def _taking(self) -> ReclaimInput:
        lenders = {one.lender for one in self._recalls}
        above = {
            one.name: held - own
            for one, held, own in zip(self._wishes, self._held, self._own, strict=True)
            if held > own
        }
        borrowed = self._borrowed.values()
        running = tuple(map(self._running, borrowed))
        return ReclaimInput(
            wanting=tuple(self._wanting(lenders)),
            running=running,
            free=self._free,
            above_nominal_millislices=above,
            shrink={},
            leaving=frozenset(
                one.run for one, want in zip(running, borrowed, strict=True) if want.is_leaving
            ),
            weights={},
            now_s=self._now_s,
            term_s=self._terms.term_s,
        )

    def _wanting(self, lenders: set[str]) -> Iterator[WaitingJob]:
        for number, one in enumerate(self._wishes):
            if one.name in lenders:
                for want in self._queues[number][: self._own_room(number)]:
                    # The oldest asks come first, as they also start first.
                    priority = SPAN_S - want.submit_s
                    yield self._job(number)._replace(job_id=want.number, priority=priority)

    def _running(self, want: Want) -> Running:
        one = self._wishes[want.tenant]
        return Running(
            job_id=want.number,
            tenant=one.name,
            cost_millislices=COSTS[one.kind],
            start_s=want.start_s or 0,
            is_replica=want.ask.level > 0,
            instances={want.node: {one.kind: 1}},
        )

    def _kind(self, number: int) -> str:
        return self._wishes[number].kind

    def _cost(self, number: int) -> int:
        return COSTS[self._wishes[number].kind]
