"""Lends idle quota in units of whole jobs: to waiting jobs that can start on it.

``lending.lend`` shares idle quota as if it were a fluid: two tenants that each wait for a whole GPU
get half of one each, and neither starts. So a round lends twice. The first pass determines by fair
sharing how much each borrower may hold. Running jobs keep what they hold within that. The rest is
granted job by job, in this order:

1. Jobs that have waited for ``turn_s``, of tenants below their shares: the tenant that has least
   for its weight comes first, and in every second window of ``turn_s`` another one. While its job
   can't start, the tenant keeps its fair share, and replicas of tenants beyond their shares are
   drained for it, for their GPUs or their quota (``reclaim.turns``). Where batch jobs are in the
   way, nothing starts in their places until the job can (``_gather``).
2. Jobs that can start: GPUs of their types are free on enough nodes. The next job always belongs to
   the tenant that has least for its weight, at every level of the tree (progressive filling, as in
   ``lending``); within a tenant it is the first by Slurm's priority that can start. Jobs that use
   what is left of their tenants' guaranteed quotas, and keep the tenants within their shares, come
   before all others: otherwise replicas would have to be drained for them again.
3. Jobs of tenants below their shares that fit in the place of a run of a tenant beyond its share,
   which then starts nothing in that place (``_follow``); then running jobs of tenants beyond their
   shares, with what no job can start on.
4. Jobs that can start, of tenants beyond their shares, if all runs of the tenant stay: otherwise
   Slurm would start them in place of the runs that are to end.
5. Jobs for which no GPU is free now: given quota, Slurm plans their start, and GPUs are cut again
   for them. Also jobs that Slurm does not start although a GPU is free (``standstill``). In every
   second window of ``turn_s``, once one of them has waited for ``turn_s``, these come before 4:
   otherwise tenants beyond their shares could take whatever becomes idle, for ever.

The second pass lends what was granted.
"""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from typing import Literal, NamedTuple

from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.quota.demand import within_guarantees
from slicewise.slurm_plugin.rules.quota.jobs import LATEST_S, Shape, WaitingJob
from slicewise.slurm_plugin.rules.quota.lending import (
    NANOSLICES,
    Flow,
    borrowed_lately,
    fair_shares,
    lend,
    lends_anew,
    used_lately,
)
from slicewise.slurm_plugin.rules.quota.tenants import downward, guaranteed_quota, parent
from slicewise.slurm_plugin.rules.quota.types import MAX_WEIGHT, Loan, Policy
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.startable import FreeInstances
from slicewise.slurm_plugin.rules.reclaim.turns import Turn, for_turns, reclaim_for
from slicewise.slurm_plugin.rules.reclaim.victims import Reclaim, ReclaimInput, may_give
from slicewise.slurm_plugin.rules.round.levels import LevelTree
from slicewise.slurm_plugin.rules.round.world import World

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True)
class Waits:
    """Jobs that wait for a loan, and the GPU instances on which they could start.

    Attributes:
        queues: waiting jobs of each account, in the order in which Slurm would start them.
        free: GPU instances by node and type that no job holds and no guaranteed job is about to
            take.
        reclaim_input: runs on borrowed quota, which may have to end for a turn.
        batch: all other runs on borrowed quota: they end by themselves.
        turn_s: seconds of waiting for a loan after which a job comes first, and for which it then
            comes first.
        guaranteed: tenants with jobs that wait in their own QOS and that their guaranteed quotas
            pay for.
        capped: tenants beyond a cap: their replicas are drained for the cap, and for no turn.
        busy: millislices of jobs that tenants' guaranteed quotas pay for and whose GPUs are busy.
    """

    queues: Mapping[str, Sequence[WaitingJob]] = field(hash=False)
    free: Mapping[str, Mapping[str, int]] = field(hash=False)
    reclaim_input: ReclaimInput
    turn_s: int
    guaranteed: frozenset[str] = frozenset()
    capped: frozenset[str] = frozenset()
    batch: tuple[Running, ...] = ()
    busy: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Lent:
    """The result of a round of lending; ``turn`` is None if no run has to end for a job's turn."""

    loans: tuple[Loan, ...]
    turn: Turn | None = None


def waits(
    inputs: World, reclaim_input: ReclaimInput, capped: frozenset[str] = frozenset()
) -> Waits:
    """Collect the jobs that wait for loans, and the GPU instances left for them.

    Jobs in their tenants' own QOS come first: as many as their tenants' guaranteed quotas pay for
    take their free GPU instances before any job that waits for a loan.
    """
    by_holder, turn_s = inputs.startable, inputs.rules.turn_s
    free, first = reclaim_input.free, within_guarantees(by_holder, inputs.fitted)
    if first:
        left = FreeInstances(free)
        for job in first:
            left.place(job)
        free = dict.fromkeys(free, _NOTHING) | left.by_node()
    guaranteed = frozenset(job.tenant for job in first)
    queues = but_stuck(by_holder.for_loans, inputs.slurm_view.stuck)
    batch = tuple(batch_runs(inputs, reclaim_input)) if queues else ()
    return Waits(queues, free, reclaim_input, turn_s, guaranteed, capped, batch, inputs.busy)


def batch_runs(inputs: World, reclaim_input: ReclaimInput) -> Iterator[Running]:
    """The runs on borrowed quota that nobody tells to go."""
    running_ids, usable = {run.job_id for run in reclaim_input.running}, reclaim_input.free
    for (_, qos), runs in inputs.jobs.held.places.items():
        for job, cost, _ in runs if is_borrowed(qos) else ():
            if cost and job.job_id not in running_ids and not job.is_doubtful:
                yield Running.of(job, cost, usable, is_replica=False)


def but_stuck(
    queues: Mapping[str, Sequence[WaitingJob]], stuck: frozenset[int]
) -> Mapping[str, Sequence[WaitingJob]]:
    """The queues, in which the jobs with these ids would not start: they had quota and GPUs and did
    not.
    """
    if not stuck:
        return queues
    return {
        tenant: [job._replace(would_start=False) if job.job_id in stuck else job for job in jobs]
        for tenant, jobs in queues.items()
    }


def own_needs(
    policy: Policy, demand: Mapping[str, int], queues: Mapping[str, Sequence[WaitingJob]]
) -> Mapping[str, int]:
    """Millislices that each account needs, not counting its jobs that wait for a loan.

    These jobs keep nothing from other tenants: one for which no GPU is free would keep it for
    nothing, and one that can start comes before all others.
    """
    queued = {name: sum(job.total_millislices for job in queue) for name, queue in queues.items()}
    return {name: max(0, demand.get(name, 0) - queued.get(name, 0)) for name in policy}


def lend_whole_jobs(
    policy: Policy,
    demand: Mapping[str, int],
    waits: Waits,
    current: Sequence[Loan],
    *,
    capacity: int | None,
    lately: Mapping[str, float],
    at_most: Mapping[str, int] = _NOTHING,
) -> Lent:
    """The loans that should exist, by lender and borrower: like ``lend``, in units of waiting jobs.

    ``at_most`` bounds the demand of tenants that may not have all of it. The other parameters are
    those of ``lend``.
    """
    wanted = {name: min(amount, at_most.get(name, amount)) for name, amount in demand.items()}
    if not waits.queues or not lends_anew(policy, capacity):
        return Lent(lend(policy, wanted, current, capacity, lately))
    past = borrowed_lately(policy, lately)
    grants = _Grants(
        policy,
        wanted,
        waits,
        fair_shares(policy, wanted, past),
        used=own_needs(policy, demand, waits.queues),
        past=past,
        lately=used_lately(policy, lately),
    )
    levels, turn = grants.decided()
    return Lent(lend(policy, levels, current, capacity, lately), turn)


class _Grants:
    """Decides how much of its demand each account is granted, and whose turn it is."""

    def __init__(
        self,
        policy: Policy,
        demand: Mapping[str, int],
        waits: Waits,
        borrowed: Mapping[str, int],
        *,
        used: Mapping[str, int],
        past: Flow,
        lately: Flow,
    ) -> None:
        self._policy, self._waits, self._past, self._lately = policy, waits, past, lately
        self._demand = {name: demand.get(name, 0) for name in policy}
        own = guaranteed_quota(policy)
        self._shares = {name: own[name] + borrowed[name] for name in policy}
        self._used = dict(used)
        self._over = {name for name, used in self._used.items() if used > self._shares[name]}
        self._own = own
        levels = {name: min(self._shares[name], need) for name, need in used.items()}
        self._tree = LevelTree(policy, own, levels)
        # For turns: what tenants hold beyond their shares, and levels once their replicas ended.
        above = Counter(waits.reclaim_input.above_nominal_millislices) - Counter(borrowed)
        self._beyond = {n: more for n, more in above.items() if n in self._over - waits.capped}
        gives = may_give(for_turns(waits.reclaim_input, self._beyond))
        least = {
            name: max(min(own[name], level), min(level, used[name] - gives.get(name, 0)))
            for name, level in levels.items()
        }
        self._soon = LevelTree(policy, own, least)
        # A replica that is told of less would have to go; a batch job runs to its end.
        stays = {run.tenant for run in waits.reclaim_input.running if run.is_replica}
        batch = (run for run in waits.batch if run.tenant not in stays and run.tenant in policy)
        self._batch = {run.job_id: run for run in sorted(batch, key=self._oldest_first)}
        self._places: dict[Shape, Mapping[tuple[str, int], deque[Running]]] = {}
        self._left = FreeInstances(waits.free)
        self._nowhere: set[tuple[Shape, int]] = set()
        self._drained: dict[tuple[Shape, int], Reclaim | None] = {}
        self._in_vain: set[tuple[str, Shape]] = set()
        self._reserved = Counter[str]()

    def decided(self) -> tuple[Mapping[str, int], Turn | None]:
        """Millislices that each account may have, and the turn, if runs have to end for one."""
        used = dict(self._used)
        queues = {
            name: deque(queue)
            for name, queue in self._waits.queues.items()
            if queue and name in self._policy
        }
        below = {name: queue for name, queue in queues.items() if name not in self._over}
        turn = self._grant_turn(below)
        beyond = self._grant_fairly(below, self._start_on_own)
        later = self._grant_fairly(beyond, self._start)
        later = self._grant_fairly(later, self._follow)
        self._keep_runs()
        stay = {name for name in self._over if self._tree.levels[name] >= used[name]}
        above = {name: queues[name] for name in stay & queues.keys()}
        if self._is_for_plans(later):
            self._keep_for_busy()
            self._grant_fairly(later, self._plan)
            self._grant_fairly(above, self._start)
        else:
            self._grant_fairly(above, self._start)
            self._keep_for_busy()
            self._grant_fairly(later, self._plan)
        levels = self._tree.levels
        return {name: level - self._reserved[name] for name, level in levels.items()}, turn

    def _keep_for_busy(self) -> None:
        """Leave what nobody starts on to jobs that it is guaranteed to, whose GPUs are busy.

        No more than that: what other jobs use of the guarantee meanwhile is not lent beyond it.
        """
        busy, own = self._waits.busy, self._own
        most = {name: min(own[name], self._used[name] + busy[name]) for name in busy}
        self._raise(self._tree, most)

    def _is_for_plans(self, queues: Mapping[str, Iterable[WaitingJob]]) -> bool:
        """Whether jobs for which no GPU is free come before those of tenants beyond their shares.

        They do in every second window of ``turn_s``, if one of them has waited for ``turn_s``.
        """
        now_s, turn_s = self._waits.reclaim_input.now_s, self._waits.turn_s
        waits_s = [job.since_s for queue in queues.values() for job in queue if job.since_s]
        return int(now_s // turn_s) % 2 == 1 and min(waits_s, default=now_s) <= now_s - turn_s

    def _grant_turn(self, queues: Mapping[str, deque[WaitingJob]]) -> Turn | None:
        """Grant one task of the job that comes first, among tenants below their shares.

        Returns the turn if that job can't start now. Its tenant's share is then kept, and on the
        nodes that have, or will have, enough for the job no other job gets what is free. A job is
        passed over if replicas of tenants beyond their shares could not free enough GPUs and quota
        for it.
        """
        now_s, turn_s = self._waits.reclaim_input.now_s, self._waits.turn_s
        due = self._due(queues)
        self._gather_for(due, queues)
        while due:
            due_tenant = due.pop(whose_turn(due, now_s, turn_s))
            for nth in due_tenant.jobs:
                job = queues[due_tenant.name][nth]
                if self._start(due_tenant.name, job):
                    _take(queues[due_tenant.name], nth)
                    return None
                if turn := self._kept_for(due_tenant.name, job):
                    return turn
        return None

    def _due(self, queues: Mapping[str, deque[WaitingJob]]) -> list["_Due"]:
        """The tenants below their shares with jobs that have waited for ``turn_s``.

        Who has least for its weight comes first.
        """
        before_s = self._waits.reclaim_input.now_s - self._waits.turn_s
        due: list[_Due] = []
        for name, queue in queues.items():
            jobs = [
                (job.since_s, nth)
                for nth, job in enumerate(queue)
                if job.would_start and job.since_s is not None and job.since_s <= before_s
                # The demand may be bounded because the tenant must not borrow more at present.
                if self._used[name] + job.cost_millislices <= self._demand[name]
            ]
            if jobs and self._used[name] < self._shares[name]:
                part = self._part(name, min(jobs)[0], is_account=True)
                of_tenant = [nth for _, nth in sorted(jobs)]
                due.append(_Due(part.borrowed, part.past, part.since_s, name, of_tenant))
        return sorted(due)

    def _gather_for(self, due: list["_Due"], queues: Mapping[str, deque[WaitingJob]]) -> None:
        """Grant what others hold to the first job that only batch jobs keep out."""
        for due_tenant in due if self._batch else ():
            for nth in due_tenant.jobs:
                job = queues[due_tenant.name][nth]
                if self._left.nodes(job) and self._may_plan(due_tenant.name, job):
                    return
                if self._may_drain(due_tenant.name, job):
                    continue
                if self._gather(due_tenant.name, job):
                    due.remove(due_tenant)
                    _take(queues[due_tenant.name], nth)
                    return

    def _may_drain(self, name: str, job: WaitingJob) -> bool:
        """Whether replicas of others may be able to make room for one task of the job."""
        level = self._used[name] + job.cost_millislices
        return self._soon.may_raise(name, level) and self._drained_for(job) is not None

    def _drained_for(self, job: WaitingJob) -> Reclaim | None:
        """The replicas that could end to free GPUs for one task of the job: the same ones for all
        jobs alike.
        """
        if job.alike not in self._drained:
            self._drained[job.alike] = self._room(Turn(job))
        return self._drained[job.alike]

    def _kept_for(self, name: str, job: WaitingJob) -> Turn | None:
        """Keep available GPUs and quota for one task; None if others can't give up the rest."""
        level, turn = self._used[name] + job.cost_millislices, Turn(job)
        if not self._soon.may_raise(name, level):
            return None
        room = self._drained_for(job)
        if room is not None and (quota := self._lacking(name, level)):
            turn = replace(turn, quota=quota)
            room = self._room(turn)
        if room is None:
            return None
        # The turn's job is the only one.
        nodes = next(iter(room.places.values()), ())
        self._left.take(job, nodes or self._left.nodes(job))
        share = min(self._shares[name], self._demand[name])
        self._raise(self._tree, {name: max(share, level)})
        # The tenant's other jobs must not start in place of the runs that end.
        reclaim_input, gone = self._waits.reclaim_input, Counter[str]()
        for run in reclaim_input.running:
            if run.run in room.victims and run.tenant in self._beyond:
                gone[run.tenant] += run.cost_millislices
        for tenant, amount in gone.items():
            held = self._own[tenant] + reclaim_input.above_nominal_millislices[tenant]
            self._used[tenant] = min(self._used[tenant], held) - amount
        return replace(turn, nodes=nodes)

    def _room(self, turn: Turn) -> Reclaim | None:
        return reclaim_for(turn, self._waits.reclaim_input, self._beyond, self._waits.free)

    def _lacking(self, name: str, level: int) -> Mapping[str, int]:
        """Millislices that each other tenant gives up so that the account may have ``level``.

        Tenants that have least for their weight keep theirs first.
        """
        before = self._tree.levels
        if self._tree.may_raise(name, level):
            return {}
        soon = LevelTree(self._policy, self._own, self._soon.levels)
        soon.raise_to(name, level)
        self._raise(
            soon,
            {
                tenant: before[tenant]
                for tenant, left in soon.levels.items()
                if left < before[tenant]
            },
        )
        return {
            tenant: self._used[tenant] - left
            for tenant, left in soon.levels.items()
            if left < before[tenant]
        }

    def _start(self, name: str, job: WaitingJob) -> bool:
        """Grant one task of the job, if it has both quota and free GPUs. Returns whether it did."""
        shape = job.alike
        if not job.would_start or shape in self._nowhere or not self._may_plan(name, job):
            return False
        if not self._left.place(job):
            self._nowhere.add(shape)
            return False
        return self._plan(name, job)

    def _follow(self, name: str, job: WaitingJob) -> bool:
        """Grant one task of the job the place of a run of a tenant beyond its share.

        The run goes on, and its tenant starts nothing in its place: its quota is the job's already.
        So tenants take turns on GPUs of which each would need a part. Those that hold most for
        their weight give way first. Returns whether there is such a run.
        """
        level = self._used[name] + job.cost_millislices
        if not job.would_start or self._used[name] >= self._shares[name]:
            return False
        if job.nodes > 1 or level > self._demand[name] or (name, job.shape) in self._in_vain:
            return False
        if any(self._succeed(name, job, [run]) for run in self._by_most(self._fitting(job))):
            return True
        self._in_vain.add((name, job.shape))
        return False

    def _fitting(self, job: WaitingJob) -> Iterable[Running]:
        """The runs beyond shares in whose places there is room, the oldest of those alike."""
        # Jobs that follow take no free instance, so where there is room for one stays.
        if job.shape not in self._places:
            self._places[job.shape] = alike = defaultdict[tuple[str, int], deque[Running]](deque)
            for run in self._batch.values():
                if run.tenant in self._over and any(
                    self._left.has(node, job, more) for node, more in run.instances.items()
                ):
                    alike[run.tenant, run.cost_millislices].append(run)
        oldest: list[Running] = []
        for runs in self._places[job.shape].values():
            while runs and runs[0].job_id not in self._batch:
                runs.popleft()
            oldest += [runs[0]] if runs else []
        return sorted(oldest, key=self._oldest_first)

    def _oldest_first(self, run: Running) -> tuple[float, int]:
        return -run.age_s(self._waits.reclaim_input.now_s), run.job_id

    def _by_most(self, runs: Iterable[Running]) -> Sequence[Running]:
        """The runs, those of tenants that have most for their weight first."""
        runs = tuple(runs)
        parts = {
            tenant: self._part(tenant, 0, is_account=True)
            for tenant in {run.tenant for run in runs}
        }
        has = {tenant: (part.borrowed, part.past) for tenant, part in parts.items()}
        return sorted(runs, key=lambda run: has[run.tenant], reverse=True)

    def _gather(self, name: str, job: WaitingJob) -> bool:
        """Grant one task of a job that is due what runs of others hold, once they have ended.

        These run to their end, and until then nothing starts in their places, whatever is their
        tenants' share: else smaller jobs that come and go would keep the job out for ever. Returns
        whether runs that end by themselves make room for it.
        """
        others = [run for run in self._batch.values() if run.tenant != name]
        making = self._making_room(job, others)
        if making is None:
            return False
        nodes, ends = making
        ending = {run.job_id for run in ends}
        more = self._by_most([run for run in others if run.job_id not in ending])
        level = self._used[name] + job.cost_millislices

        def are_enough(count: int) -> bool:
            lower = self._lower([*ends, *more[:count]])
            return self._tree.may_exchange(lower, name, level)

        count = bisect_left(range(len(more) + 1), True, key=are_enough)
        if not self._succeed(name, job, [*ends, *more[:count]]):
            return False
        self._left.take(job, nodes)
        return True

    def _making_room(
        self, job: WaitingJob, runs: Sequence[Running]
    ) -> tuple[Sequence[str], Sequence[Running]] | None:
        """Nodes for the job on which least has to end, and the runs that have to."""
        on = defaultdict[str, list[Running]](list)
        for run in runs:
            for node in run.instances:
                on[node].append(run)
        choices: list[tuple[int, str, Sequence[Running]]] = []
        for node in self._waits.free:
            ends: list[Running] = []
            counts = Counter[str]()
            for run in on[node]:
                if self._left.has(node, job, counts):
                    break
                if any(run.instances[node].get(gres_type) for gres_type, _ in job.shape):
                    counts.update(run.instances[node])
                    ends.append(run)
            if self._left.has(node, job, counts):
                choices.append((sum(run.cost_millislices for run in ends), node, ends))
        if len(choices) < job.nodes:
            return None
        best = sorted(choices, key=lambda choice: choice[:2])[: job.nodes]
        gone = {run.job_id: run for *_, of in best for run in of}
        return [node for _, node, _ in best], list(gone.values())

    def _succeed(self, name: str, job: WaitingJob, runs: Sequence[Running]) -> bool:
        """Grant one task of the job what these runs hold, if that is enough quota for it."""
        level = self._used[name] + job.cost_millislices
        if not self._tree.exchange(self._lower(runs), name, level):
            return False
        self._used.update(self._used_after(runs))
        self._used[name] = level
        if self._left.nodes(job):
            # GPUs are free elsewhere: with quota it would start beside these runs.
            self._reserved[name] += job.cost_millislices
        for run in runs:
            del self._batch[run.job_id]
        return True

    def _lower(self, runs: Sequence[Running]) -> Mapping[str, int]:
        """The levels of these runs' tenants once the runs gave their places away."""
        used, levels = self._used_after(runs), self._tree.levels
        return {tenant: min(levels[tenant], amount) for tenant, amount in used.items()}

    def _used_after(self, runs: Sequence[Running]) -> Mapping[str, int]:
        gone = Counter[str]()
        for run in runs:
            gone[run.tenant] += run.cost_millislices
        return {tenant: max(0, self._used[tenant] - amount) for tenant, amount in gone.items()}

    def _start_on_own(self, name: str, job: WaitingJob) -> bool:
        """Like ``_start``, for a job that uses what is left of its tenant's guaranteed quota.

        The tenant must stay within its share.
        """
        used = self._used[name]
        is_within = used < self._own[name] and used + job.cost_millislices <= self._shares[name]
        return is_within and self._start(name, job)

    def _plan(self, name: str, job: WaitingJob) -> bool:
        """Grant one task of the job, if it has quota. Returns whether it did."""
        if not self._may_plan(name, job):
            return False
        self._used[name] += job.cost_millislices
        self._tree.raise_to(name, self._used[name])
        return True

    def _may_plan(self, name: str, job: WaitingJob) -> bool:
        level = self._used[name] + job.cost_millislices
        return level <= self._demand[name] and self._tree.may_raise(name, level)

    def _grant_fairly(
        self,
        queues: Mapping[str, deque[WaitingJob]],
        grant: Callable[[str, WaitingJob], bool],
    ) -> Mapping[str, deque[WaitingJob]]:
        """Grant task by task with ``grant``. Returns the jobs that still have tasks left.

        From the top of the tree down, each tenant chooses the part that has least for its weight:
        its own account, or the subtree of one of its children.
        """
        later: dict[str, deque[WaitingJob]] = defaultdict(deque)
        parts = self._parts(queues)
        while parts[""]:
            path = [""]
            while not (part := parts[path[-1]][0]).is_account:
                path.append(part.name)
            queue = queues[part.name]
            # Who is granted nothing keeps its place among the parts.
            while queue:
                if grant(part.name, queue[0]):
                    _take(queue, 0)
                    break
                later[part.name].append(queue.popleft())
            for node in reversed(path):
                part = parts[node][0]
                if queues[part.name] if part.is_account else parts[part.name]:
                    heapreplace(parts[node], self._part(part.name, part.since_s, part.is_account))
                else:
                    heappop(parts[node])
        return later

    def _parts(self, queues: Mapping[str, deque[WaitingJob]]) -> Mapping[str, list["_Part"]]:
        """Heaps of the parts that have waiting jobs, by the tenant at which they share."""
        parts: dict[str, list[_Part]] = {"": []}
        for name in reversed(downward(self._policy)):
            here = parts.setdefault(name, [])
            if queue := queues.get(name):
                since_s = min(LATEST_S if job.since_s is None else job.since_s for job in queue)
                here.append(self._part(name, since_s, is_account=True))
            heapify(here)
            if here:
                oldest_s = min(part.since_s for part in here)
                above = parts.setdefault(parent(self._policy, name), [])
                above.append(self._part(name, oldest_s, is_account=False))
        heapify(parts[""])
        return parts

    def _part(self, name: str, since_s: int, is_account: bool) -> "_Part":
        into: Literal["borrows", "in"] = "borrows" if is_account else "in"
        now = self._tree.borrowed(name, is_account=is_account) * NANOSLICES
        borrowed = now + self._past[into, name]
        weight = self._policy[name].quota.weight
        past = self._lately[into, name] // weight
        return _Part(borrowed * MAX_WEIGHT // weight, past, since_s, name, is_account)

    def _keep_runs(self) -> None:
        """Leave what no job can start on to running jobs beyond their tenants' shares."""
        most = {name: min(self._used[name], self._demand[name]) for name in self._over}
        self._raise(self._tree, most)

    def _raise(self, tree: LevelTree, most: Mapping[str, int]) -> None:
        """Raise levels towards ``most`` within all limits, least for their weight first."""
        weights = {name: self._policy[name].quota.weight for name in most}
        for name in sorted(
            most,
            key=lambda account: (
                self._tree.borrowed(account, is_account=True) // weights[account],
                account,
            ),
        ):
            levels = range(tree.levels[name] + 1, most[name] + 1)
            kept = bisect_left(levels, True, key=lambda level: not tree.may_raise(name, level))
            tree.raise_to(name, levels.start + kept - 1)


def _take(queue: deque[WaitingJob], nth: int) -> None:
    """Take one task of the nth job."""
    job = queue[nth]
    del queue[nth]
    if job.tasks > 1:
        queue.insert(nth, job._replace(tasks=job.tasks - 1))


def whose_turn(waiting: Sequence[object], now_s: float, turn_s: int) -> int:
    """Index of the job that comes first now, of jobs that have waited for ``turn_s``.

    ``waiting`` begins with the job that is to come first. Time is cut into windows of ``turn_s``.
    In every second window that job comes first, however many jobs come after it. In the windows
    between, the other jobs take turns, so a job that can't start keeps no other from starting.
    Jobs that have started are not in ``waiting`` any more.
    """
    window = int(now_s // turn_s)
    if window % 2 == 0 or len(waiting) == 1:
        return 0
    return 1 + window // 2 % (len(waiting) - 1)


class _Due(NamedTuple):
    """A tenant with jobs that are due; fields are those of ``_Part``, and the jobs' places."""

    borrowed: int
    past: int
    since_s: int
    name: str
    jobs: Sequence[int]


class _Part(NamedTuple):
    """A tenant's own account or a child's subtree: one of the parts that share at a tenant.

    Attributes:
        borrowed: quota of others that it has and has lately had, divided by its weight.
        past: what it has lately held of its guaranteed quota, divided so.
        since_s: Unix seconds since when its oldest job waits.
        name: the account, or the top of the subtree.
        is_account: whether this is an own account.
    """

    borrowed: int
    past: int
    since_s: int
    name: str
    is_account: bool
