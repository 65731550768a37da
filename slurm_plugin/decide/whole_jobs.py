"""Lending in whole jobs: idle quota goes to waiting jobs that can start on it.

``lending.lend`` shares idle quota as if it were a fluid: half of a GPU for each of two tenants that
wait for a whole one, and neither starts. So a round lends twice. The first time says how much each
borrower may hold, by the fairness of lending. What running jobs hold of that stays theirs. The
rest is granted anew, job by job:

1. To the job that has waited longest, once it has waited for ``turn_s``: it is first. While it
   can't start, its tenant keeps its fair share, and replicas of tenants beyond theirs go for it
   (``reclaim.turns``). For every second ``turn_s`` another one that has waited so long is first.
2. To jobs that can start: GPUs of their types are free on enough nodes. The next one is always of
   the tenant that has least for its weight, at every level of the tree (progressive filling, as in
   ``lending``), and in a tenant the first by Slurm's priority that can start.
3. To running jobs of tenants beyond their shares, as far as nobody can start on it.
4. To jobs for which no GPU is free now: with quota Slurm plans their start, and GPUs are cut anew
   for them.

The second time lends what was granted. A tenant beyond its share gets nothing for waiting jobs:
Slurm would start them in place of what is to go.
"""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from cluster.jobs import ALLOTTED, JobState, JobView, NodeView
from cluster.units import Millislices
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import (
    free_by_node,
    gpus_on_nodes,
    is_managed,
    paid_by_own_part,
    waits_for_nodes,
    waits_for_quota,
    waits_since_s,
    wanted_on_nodes,
)
from slurm_plugin.decide.lending import borrowed_lately, lend, lends_anew
from slurm_plugin.decide.policy import MAX_WEIGHT, Loan, Policy
from slurm_plugin.decide.qos_names import is_borrowed, qos_name
from slurm_plugin.decide.reclaim.ready import Left
from slurm_plugin.decide.reclaim.room import Need, Shape, shape_of
from slurm_plugin.decide.tenants import downward, own_part, parent

_LATEST_S = 1 << 62
"""Of jobs of which Slurm does not say since when they wait."""

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True)
class WaitingJob:
    """A job, or so many tasks of an array, that could start if its tenant had more quota on loan.

    Attributes:
        need: GPU instances of each task.
        cost_millislices: of each task.
        since_s: Unix seconds; None where Slurm does not say.
        has_turns: whether it would start if others went; not while its nodes are down.
    """

    need: Need
    cost_millislices: int
    since_s: int | None
    tasks: int = 1
    has_turns: bool = True

    @property
    def total_millislices(self) -> int:
        """Of all tasks."""
        return self.cost_millislices * self.tasks


@dataclass(frozen=True)
class Waits:
    """Who waits for a loan, and for what there is room.

    Attributes:
        queues: waiting jobs of each account, as Slurm would start them.
        free: GPU instances by node, by type, that nobody holds and no guaranteed job is about to
            take.
        reach: those, and what comes free soon: its runs are told to go, or end anyway.
        now_s: Unix seconds.
        turn_s: a job that has waited so long for a loan comes first, for so long.
        replicas: what each tenant's other replicas on borrowed quota hold, by node, by type.
    """

    queues: Mapping[str, Sequence[WaitingJob]] = field(hash=False)
    free: Mapping[str, Mapping[str, int]] = field(hash=False)
    reach: Mapping[str, Mapping[str, int]] = field(hash=False)
    now_s: float
    turn_s: int
    replicas: Mapping[str, Mapping[str, Mapping[str, int]]] = field(
        default_factory=dict, hash=False
    )


@dataclass(frozen=True)
class Turn:
    """Whose turn it is: a job that comes first, and can't start before others have gone.

    Attributes:
        nodes: what is free there is kept for it, and others go there; none for a single instance,
            which may be on any.
    """

    tenant: str
    job: WaitingJob
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lent:
    """What a round of lending comes to; ``turn`` is None if nobody has to go for a job's turn."""

    loans: tuple[Loan, ...]
    turn: Turn | None = None


def waits(
    policy: Policy,
    jobs: Iterable[JobView],
    nodes: Iterable[NodeView],
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
    *,
    replicas: frozenset[int],
    leaving: frozenset[int],
    now_s: float,
    turn_s: int,
) -> Waits:
    """Of what Slurm shows. Jobs in their tenants' own QOS come first to what is free, as far as
    their tenants' own parts pay for them.

    ``replicas`` are job ids of runs that may be asked to go, ``leaving`` of those that go already;
    those that are completing are added.
    """
    ours = [job for job in jobs if any(job.gpus.values()) and is_managed(job, partitions)]
    there = free_by_node(ours, nodes, partitions)
    left = Left(there)
    for job in paid_by_own_part(ours, own_part(policy), costs):
        left.place(_need(job))
    queues: dict[str, list[WaitingJob]] = {}
    for job in sorted(ours, key=lambda job: (-job.priority, job.job_id)):
        if job.qos == qos_name(job.account) or not waits_for_quota(job):
            continue
        if cost := run_cost(job.gpus, costs):
            one = WaitingJob(
                _need(job),
                cost,
                waits_since_s(job),
                max(1, len(job.untouched)),
                has_turns=not waits_for_nodes(job),
            )
            queues.setdefault(job.account, []).append(one)
    free = dict.fromkeys(there, _NOTHING) | left.by_node()
    runs = [job for job in ours if job.state in ALLOTTED]
    going = [r for r in runs if r.job_id in leaving or r.state is JobState.COMPLETING]
    others: dict[str, list[JobView]] = defaultdict(list)
    for run in runs:
        if run.job_id in replicas and run not in going and is_borrowed(run.qos):
            others[run.account].append(run)
    return Waits(
        queues,
        free,
        reach=_with(free, going),
        now_s=now_s,
        turn_s=turn_s,
        replicas={name: _with(dict.fromkeys(free, _NOTHING), of) for name, of in others.items()},
    )


def _need(job: JobView) -> Need:
    instances, count = wanted_on_nodes(job)
    return Need(job.job_id, shape_of(instances), count)


def _with(
    there: Mapping[str, Mapping[str, int]], runs: Iterable[JobView]
) -> Mapping[str, Mapping[str, int]]:
    """What the runs hold on these nodes, too."""
    found = {node: Counter(gpus) for node, gpus in there.items()}
    for node, gpus in (place for run in runs for place in gpus_on_nodes(run)):
        if node in found:
            found[node].update(gpus)
    return found


def lend_whole_jobs(
    policy: Policy,
    demand: Mapping[str, int],
    waits: Waits,
    current: Sequence[Loan],
    *,
    capacity: int | None,
    lately: Mapping[str, int],
    at_most: Mapping[str, int] = _NOTHING,
) -> Lent:
    """The loans there should be, by lender and borrower: of ``lend``, in units of what waits.

    ``at_most`` is what tenants may have of their demand, if that is to be less; the rest as
    ``lend``.
    """
    wanted = {name: min(amount, at_most.get(name, amount)) for name, amount in demand.items()}
    shared = lend(policy, wanted, current, capacity, lately)
    has_choice = any(loan.borrower in waits.queues for loan in shared)
    if not has_choice or not lends_anew(policy, capacity):
        return Lent(shared)
    used = _used(policy, demand, waits)
    levels, turn = _Grants(policy, wanted, waits, shared, used=used, lately=lately).decided()
    return Lent(lend(policy, levels, current, capacity, lately), turn)


def _used(policy: Policy, demand: Mapping[str, int], waits: Waits) -> Mapping[str, int]:
    """What each account needs without its jobs that wait for a loan."""
    queued = {
        name: sum(job.total_millislices for job in queue) for name, queue in waits.queues.items()
    }
    return {name: max(0, demand.get(name, 0) - queued.get(name, 0)) for name in policy}


class _Grants:
    """What each account is granted of its demand."""

    def __init__(
        self,
        policy: Policy,
        demand: Mapping[str, int],
        waits: Waits,
        shared: Iterable[Loan],
        *,
        used: Mapping[str, int],
        lately: Mapping[str, int],
    ) -> None:
        self._policy, self._waits = policy, waits
        self._demand = {name: demand.get(name, 0) for name in policy}
        self._past = borrowed_lately(policy, lately)
        own = own_part(policy)
        self._shares = Counter(own)
        for loan in shared:
            self._shares[loan.borrower] += loan.amount_millislices
        self._used = dict(used)
        self._over = {name for name, used in self._used.items() if used > self._shares[name]}
        # Nobody lends what its own jobs wait for.
        levels = {
            name: min(self._shares[name], max(used, min(self._demand[name], own[name])))
            for name, used in self._used.items()
        }
        self._tree = _Tree(policy, own, levels)
        # As if nobody borrowed.
        self._alone = _Tree(
            policy, own, {name: min(own[name], wanted) for name, wanted in self._demand.items()}
        )
        self._left = Left(waits.free)
        self._nowhere: set[tuple[Shape, int]] = set()

    def decided(self) -> tuple[Mapping[str, int], Turn | None]:
        """Millislices that each account may have, and whose turn it is."""
        queues = {
            name: deque(queue)
            for name, queue in self._waits.queues.items()
            if queue and name in self._policy and name not in self._over
        }
        turn = self._grant_turn(queues)
        later = self._grant_fairly(queues, self._start)
        self._keep_runs()
        self._grant_fairly(later, self._plan)
        return self._tree.levels, turn

    def _grant_turn(self, queues: Mapping[str, deque[WaitingJob]]) -> Turn | None:
        """To the job that has waited longest, of tenants below their shares; returned if it can't
        start now. One that could not start if nobody else borrowed either has no turn, nor one for
        which no replicas of tenants beyond their shares make room.

        Then its tenant's share is kept, and on the nodes where there is enough of what it needs,
        or comes free, nobody else gets what is free.
        """
        due_s = self._waits.now_s - self._waits.turn_s
        due = sorted(
            (job.since_s, name, nth)
            for name, queue in queues.items()
            for nth, job in enumerate(queue)
            if job.has_turns and job.since_s is not None and job.since_s <= due_s
            if self._used[name] < self._shares[name]
            # It may be to borrow no more now.
            if self._used[name] + job.cost_millislices <= self._demand[name]
            if self._alone.may_raise(name, self._used[name] + job.cost_millislices)
        )
        places = _Places(self._waits, self._over)
        able = [one for one in due if places.nodes(queues[one[1]][one[2]].need)]
        if not able:
            return None
        since_s = [one[0] for one in able]
        _, name, nth = able[whose_turn(since_s, self._waits.now_s, self._waits.turn_s)]
        job = queues[name][nth]
        if not self._start(name, job):
            nodes = places.nodes(job.need)
            self._tree.raise_to(name, min(self._shares[name], self._demand[name]))
            self._left.take(job.need, nodes)
            return Turn(name, job, () if job.need.is_single else nodes)
        del queues[name][nth]
        if job.tasks > 1:
            queues[name].insert(nth, replace(job, tasks=job.tasks - 1))
        return None

    def _start(self, name: str, job: WaitingJob) -> bool:
        """Grant one task of it, if there are quota and free GPUs."""
        shape = job.need.shape, job.need.nodes
        if shape in self._nowhere or not self._may_plan(name, job):
            return False
        if not self._left.place(job.need):
            self._nowhere.add(shape)
            return False
        return self._plan(name, job)

    def _plan(self, name: str, job: WaitingJob) -> bool:
        """Grant one task of it, if there is quota."""
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
        """One task after the other; returns the jobs of which tasks are left.

        At each tenant, from the top down, the part comes next that has least for its weight: its
        own account, or all below one of its children.
        """
        later: dict[str, deque[WaitingJob]] = defaultdict(deque)
        parts = self._parts(queues)
        while parts[""]:
            path = [""]
            while not (part := parts[path[-1]][0]).is_account:
                path.append(part.name)
            queue = queues[part.name]
            job = queue.popleft()
            if not grant(part.name, job):
                later[part.name].append(job)
            elif job.tasks > 1:
                queue.appendleft(replace(job, tasks=job.tasks - 1))
            for node in reversed(path):
                part = parts[node][0]
                if queues[part.name] if part.is_account else parts[part.name]:
                    heapreplace(parts[node], self._part(part.name, part.since_s, part.is_account))
                else:
                    heappop(parts[node])
        return later

    def _parts(self, queues: Mapping[str, deque[WaitingJob]]) -> Mapping[str, list["_Part"]]:
        """Heaps of those with jobs, by the tenant at which they take part."""
        parts: dict[str, list[_Part]] = {"": []}
        for name in reversed(downward(self._policy)):
            here = parts.setdefault(name, [])
            if queue := queues.get(name):
                since_s = min(_LATEST_S if one.since_s is None else one.since_s for one in queue)
                here.append(self._part(name, since_s, is_account=True))
            heapify(here)
            if here:
                oldest_s = min(one.since_s for one in here)
                above = parts.setdefault(parent(self._policy, name), [])
                above.append(self._part(name, oldest_s, is_account=False))
        heapify(parts[""])
        return parts

    def _part(self, name: str, since_s: int, is_account: bool) -> "_Part":
        past = self._past["borrows" if is_account else "in", name]
        borrowed = self._tree.borrowed(name, is_account=is_account) + past
        weight = self._policy[name].quota.weight
        return _Part(borrowed * MAX_WEIGHT // weight, since_s, name, is_account)

    def _keep_runs(self) -> None:
        """What nobody can start on stays with runs beyond their tenants' shares."""
        weights = {name: self._policy[name].quota.weight for name in self._over}
        for name in sorted(
            self._over,
            key=lambda one: (self._tree.borrowed(one, is_account=True) // weights[one], one),
        ):
            most = min(self._used[name], self._demand[name])
            levels = range(self._tree.levels[name] + 1, most + 1)
            kept = bisect_left(
                levels, True, key=lambda level: not self._tree.may_raise(name, level)
            )
            self._tree.raise_to(name, levels.start + kept - 1)


def whose_turn(since_s: Sequence[int], now_s: float, turn_s: int) -> int:
    """Which of those that have waited for ``turn_s``, the longest first, comes first now.

    Time is cut into windows of ``turn_s``. In every second one it is who has waited longest,
    however many come after it; in those between it is the others, one after the other: who can't
    start keeps nobody from starting. Who starts is no longer among them.
    """
    window = int(now_s // turn_s)
    if window % 2 == 0 or len(since_s) == 1:
        return 0
    return 1 + window // 2 % (len(since_s) - 1)


class _Places:
    """Where a job whose turn it is could have room, if others went."""

    def __init__(self, waits: Waits, over: Iterable[str]) -> None:
        """``over`` are the tenants whose replicas may have to go."""
        self._free, self._soon = waits.free, waits.reach
        self._reach = {node: Counter(there) for node, there in waits.reach.items()}
        for name in over:
            for node, there in waits.replicas.get(name, {}).items():
                self._reach[node].update(there)
        self._found: dict[tuple[Shape, int], tuple[str, ...]] = {}

    def nodes(self, need: Need) -> tuple[str, ...]:
        """First those where least has to be taken of others, then where least is not free yet: so
        they stay the same while others go there. None if there are too few.
        """
        key = need.shape, need.nodes
        if key not in self._found:
            fit = sorted(
                (_lacks(need, self._soon[node]), _lacks(need, self._free[node]), node)
                for node, there in self._reach.items()
                if not _lacks(need, there)
            )
            nodes = tuple(node for _, _, node in fit[: need.nodes])
            self._found[key] = nodes if len(nodes) == need.nodes else ()
        return self._found[key]


def _lacks(need: Need, there: Mapping[str, int]) -> int:
    """So many instances are missing on a node."""
    return sum(max(0, count - there.get(kind, 0)) for kind, count in need.shape)


class _Part(NamedTuple):
    """An account, or all below a tenant, among those that share at the same place.

    Attributes:
        borrowed: what it has for its weight.
        since_s: since when its first job waits.
    """

    borrowed: int
    since_s: int
    name: str
    is_account: bool


class _Tree:
    """What accounts are to have, and what passes into and out of subtrees then.

    Attributes:
        levels: millislices by account.
    """

    def __init__(self, policy: Policy, own: Mapping[str, int], levels: Mapping[str, int]) -> None:
        self._policy, self._own = policy, own
        self.levels = dict(levels)
        # Of the own account and the subtrees right below, by tenant; of all at "".
        self._supply: Counter[str] = Counter()
        self._want: Counter[str] = Counter()
        for name in reversed(downward(policy)):
            self._supply[name] += max(0, own[name] - levels[name])
            self._want[name] += max(0, levels[name] - own[name])
            out, into = self._passing(name, self._supply[name], self._want[name])
            self._supply[parent(policy, name)] += out
            self._want[parent(policy, name)] += into

    def borrowed(self, name: str, *, is_account: bool) -> int:
        """What the account, or the subtree, has of others."""
        if is_account:
            return max(0, self.levels[name] - self._own[name])
        return max(0, self._want[name] - self._supply[name])

    def may_raise(self, name: str, level: int) -> bool:
        """Whether there is so much for the account within all limits."""
        return self._raised(name, level) is not None

    def raise_to(self, name: str, level: int) -> None:
        """If ``may_raise``."""
        if changed := self._raised(name, level):
            self.levels[name] = level
            for node, (supply, want) in changed.items():
                self._supply[node], self._want[node] = supply, want

    def _raised(self, name: str, level: int) -> Mapping[str, tuple[int, int]] | None:
        """Supply and want at the tenants upwards; None if a limit forbids it."""
        before, own = self.levels[name], self._own[name]
        if level <= before:
            return {}
        less = max(0, own - before) - max(0, own - level)
        more = max(0, level - own) - max(0, before - own)
        changed: dict[str, tuple[int, int]] = {}
        while True:
            supply, want = self._supply[name] - less, self._want[name] + more
            limit = self._policy[name].quota.borrowing_limit_millislices if name else 0
            if want - supply > limit:
                return None
            changed[name] = supply, want
            if not name:
                return changed
            out, into = self._passing(name, self._supply[name], self._want[name])
            out_now, into_now = self._passing(name, supply, want)
            less, more = out - out_now, into_now - into
            name = parent(self._policy, name)

    def _passing(self, name: str, supply: int, want: int) -> tuple[int, int]:
        """What leaves a subtree, and what enters it."""
        limit = self._policy[name].quota.lending_limit_millislices
        return min(limit, max(0, supply - want)), max(0, want - supply)
