"""Fits quotas that together exceed the cluster into what it has: by whole jobs, where they contend.

A site may guarantee more than it has, and nodes go. What is then missing is taken first from
guaranteed quota that nobody uses or wants, so no job waits for it. Only where tenants' jobs want
more than there is does each get its part, measured by its guaranteed quota:

1. Runs and waiting jobs are counted as whole, one after the other: next is always one of the tenant
   that has least of its guaranteed quota, until the capacity is used up. Of those that have as
   little it is the one whose next job waits, and has waited longest: where one job takes all,
   tenants take turns. What a tenant holds beyond its part runs on, and nothing new starts in its
   place.
2. A waiting job for which GPUs are free that no job within its tenant's part can start on, or waits
   for, has its quota, too. A job within its part has its quota while it waits for more GPUs of a
   node, so Slurm plans its start there; up to its size may be idle for that.
3. What no job wants stays with tenants as their quota, with lenders first: there it is lent.

All parts together are never more than the capacity. Jobs in the own QOS preempt none of each other:
who comes back to a full cluster gets its part as jobs of the others end.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from heapq import heapify, heappop, heappush, merge
from itertools import chain
from typing import NamedTuple

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_own
from slicewise.slurm_plugin.rules.quota.demand import has_types, types_left
from slicewise.slurm_plugin.rules.quota.jobs import (
    LATEST_S,
    JobsByHolder,
    Shape,
    WaitingJob,
)
from slicewise.slurm_plugin.rules.quota.nodes import gpus_on_nodes
from slicewise.slurm_plugin.rules.quota.tenants import downward, guaranteed_quota, parent
from slicewise.slurm_plugin.rules.quota.types import Policy, Tenant
from slicewise.slurm_plugin.rules.reclaim.startable import FreeInstances


def fitted(
    policy: Policy,
    by_holder: JobsByHolder,
    free: Mapping[str, Mapping[str, int]],
    capacity_millislices: int | None,
) -> Policy:
    """The policy with nominals that the capacity covers; the same one if it does so already.

    ``free`` are GPU instances by node and type that nobody holds. An unknown capacity (None) covers
    all.
    """
    own = guaranteed_quota(policy)
    short = 0 if capacity_millislices is None else sum(own.values()) - capacity_millislices
    if capacity_millislices is None or short <= 0:
        return policy
    parts = _parts_of(policy, own, by_holder)
    _fill(parts, capacity_millislices)
    _place(parts, FreeInstances(free), _Nodes(by_holder, free), capacity_millislices)
    return _with_own(policy, _without_missing(policy, own, parts, short))


class _Unit(NamedTuple):
    """A run, or ``tasks`` waiting jobs or tasks alike, of which ``job`` is the first; it is None
    for a run, which has its GPUs.
    """

    cost_millislices: int
    job: WaitingJob | None = None
    tasks: int = 1

    @property
    def since_s(self) -> int:
        """When it began to wait, in Unix seconds; 0 for a run, and late where nobody knows."""
        if self.job is None:
            return 0
        return LATEST_S if self.job.since_s is None else self.job.since_s


@dataclass
class _Part:
    """What a tenant has of the capacity. All amounts are in millislices.

    Attributes:
        own: its guaranteed quota.
        units: what its jobs hold of that, then what waits for it.
        within: the sum of units that are within its part.
        granted: those of them that wait, each on its own.
        later: what waits beyond its part.
        over: what it holds beyond its part.
        level: what its quota allows.
    """

    name: str
    own: int
    units: deque[_Unit]
    within: int = 0
    granted: list[_Unit] = field(default_factory=list)
    later: list[_Unit] = field(default_factory=list)
    over: int = 0
    level: int = 0

    @property
    def contends(self) -> bool:
        """Whether it has, or wants, more than its part."""
        return bool(self.over or self.later)

    @property
    def turn(self) -> tuple[Fraction, bool, int, str]:
        """Who has least of its guaranteed quota is served next."""
        first = next(iter(self.units or self.later), _Unit(0))
        is_run = first.job is None
        return Fraction(self.within, self.own), is_run, first.since_s, self.name


def _parts_of(policy: Policy, own: Mapping[str, int], by_holder: JobsByHolder) -> Sequence[_Part]:
    """The tenants that are guaranteed anything, with what their jobs hold and want of it."""
    units = {name: deque[_Unit]() for name, amount in own.items() if amount}
    left = Counter(own)
    runs = ((holder_of(run.job), run.cost_millislices) for run in by_holder.held.priced)
    for name, cost in sorted(runs):
        if name in units and (part := min(cost, left[name])) > 0:
            left[name] -= part
            units[name].append(_Unit(part))
    types, taken = types_left(policy, by_holder), Counter[tuple[str, Shape, int]]()
    for job in _waiting(by_holder):
        name, asked = job.tenant, job.cost_millislices
        if asked and name in units and has_types(types.get(name), job.gpus):
            # Each that could start alone counts: the first may need what is not there.
            alike = name, *job.alike
            count = min(job.tasks, left[name] // asked - taken[alike])
            if count > 0:
                taken[alike] += count
                units[name].append(_Unit(asked, job, count))
    return [_Part(name, own[name], of) for name, of in units.items()]


def _waiting(by_holder: JobsByHolder) -> Iterable[WaitingJob]:
    """Jobs that wait for quota in Slurm's order, those in own QOS first."""
    queues = [
        (is_own(qos), _first_of_alike(queue.waiting)) for qos, queue in by_holder.queues.items()
    ]
    own = (jobs for in_own, jobs in queues if in_own)
    others = (jobs for in_own, jobs in queues if not in_own)
    return chain(chain.from_iterable(own), merge(*others, key=lambda job: job.place))


def _first_of_alike(jobs: Iterable[WaitingJob]) -> Sequence[WaitingJob]:
    """The first of jobs alike that follow one another, with how many tasks they are."""
    alike: list[WaitingJob] = []
    for job in jobs:
        if not job.waits.for_quota or job.waits.for_nodes:
            continue
        before = alike[-1] if alike else None
        if before and (before.tenant, before.alike) == (job.tenant, job.alike):
            alike[-1] = before._replace(tasks=before.tasks + job.tasks)
        else:
            alike.append(job)
    return alike


def _fill(parts: Iterable[_Part], capacity_millislices: int) -> None:
    """Divide the capacity by whole units, whatever GPUs they need."""
    left, served = capacity_millislices, [(*part.turn, part) for part in parts if part.units]
    heapify(served)
    while served:
        *_, part = heappop(served)
        unit = part.units.popleft()
        is_beyond = part.over and unit.job is not None
        if not is_beyond and unit.cost_millislices <= min(left, part.own - part.within):
            left -= unit.cost_millislices
            part.within += unit.cost_millislices
            if unit.job is not None:
                part.granted.append(unit._replace(tasks=1))
            if unit.tasks > 1:
                part.units.appendleft(unit._replace(tasks=unit.tasks - 1))
        elif unit.job is None:
            part.over += unit.cost_millislices
        else:
            part.later.append(unit)
        if part.units:
            heappush(served, (*part.turn, part))


def _place(
    parts: Sequence[_Part], free: FreeInstances, nodes: "_Nodes", capacity_millislices: int
) -> None:
    """Set the levels: the parts, what else can start on free GPUs, then what no node has now.

    What waits within a part for GPUs of some nodes has its level, and what is free there, before
    all that is beyond a part. Else jobs beyond theirs would take each GPU as it comes free, and a
    job that needs several at once would never start. Runs on these nodes hand their quota over to
    it, if their tenants start nothing now: what is free elsewhere is then for who waits for that.
    """
    nowhere = [pair for part in parts for pair in _place_within(part, free)]
    nowhere = [(part, unit) for part, unit in nowhere if not _plan(part, unit, free, nodes)]
    left = capacity_millislices - sum(part.level for part in parts)
    spare = {part.name: nodes.spare(part) for part in parts}
    pool = sum(spare.values())
    for part in sorted(parts, key=lambda job: job.turn):
        beyond = _place_beyond(part, free, left + pool - spare[part.name])
        left -= beyond
        if beyond:
            pool -= spare.pop(part.name)
    for part in parts:
        given = max(0, min(-left, spare.get(part.name, 0)))
        part.level -= given
        left += given
    for part, unit in nowhere:
        if unit.cost_millislices <= min(left, part.own - part.level):
            left -= unit.cost_millislices
            part.level += unit.cost_millislices


def _place_within(part: _Part, free: FreeInstances) -> Iterator[tuple[_Part, _Unit]]:
    """Place on free GPUs what waits within a part. Yields what finds none."""
    part.level = part.within - sum(unit.cost_millislices for unit in part.granted)
    for unit in part.granted:
        if unit.job is not None and free.place(unit.job):
            part.level += unit.cost_millislices
        else:
            yield part, unit


def _plan(part: _Part, unit: _Unit, free: FreeInstances, nodes: "_Nodes") -> bool:
    is_planned = unit.job is not None and nodes.keep(part.name, unit.job, free)
    part.level += unit.cost_millislices * is_planned
    return is_planned


def _place_beyond(part: _Part, free: FreeInstances, left: int) -> int:
    """Place on free GPUs what waits beyond a part. Returns what that adds to the level.

    A tenant that starts jobs beyond its part needs a level that covers all that it holds.
    """
    beyond, needed = 0, part.over
    for unit in part.later:
        for _ in range(unit.tasks):
            enough = needed + unit.cost_millislices <= min(left, part.own - part.level)
            if not enough or unit.job is None or not free.place(unit.job):
                break
            needed += unit.cost_millislices
            beyond = needed
    part.level += beyond
    return beyond


class _Nodes:
    """The nodes on which jobs that wait for GPUs will start, once runs there have ended."""

    def __init__(self, by_holder: JobsByHolder, free: Mapping[str, Mapping[str, int]]) -> None:
        self._there, self._free = by_holder, free
        self._next: dict[tuple[Shape, int], deque[str] | None] = {}
        self._handed = Counter[str]()

    def keep(self, tenant: str, job: WaitingJob, left: FreeInstances) -> bool:
        """Take what is left on the nodes that lack least for the tenant's job. False if too few
        nodes have such GPUs at all, as they are cut now.
        """
        if job.alike not in self._next:
            self._next[job.alike] = self._lacking_least(job, left.by_node())
        fit = self._next[job.alike]
        if fit is None:
            return False
        nodes = [fit.popleft() for _ in range(min(job.nodes, len(fit)))]
        for node in nodes:
            self._hand_over(tenant, Counter(dict(job.shape)) - left.on(node), node)
        left.take(job, nodes)
        return True

    def spare(self, part: _Part) -> int:
        """Millislices of the part that runs of its tenant hand over: 0 while others of it are on
        loan, which would be asked to go, or while it waits for GPUs itself.
        """
        if part.granted or not self._handed[part.name] or part.name in self._borrowers:
            return 0
        return max(0, min(self._handed[part.name] - part.over, part.level))

    def _hand_over(self, tenant: str, lacking: Counter[str], node: str) -> None:
        """What the node lacks comes from runs of other tenants there; once for each node."""
        for run, gpus in self._runs.pop(node, ()):
            if holder_of(run) != tenant:
                taken = lacking & Counter(gpus)
                lacking = lacking - taken
                self._handed[holder_of(run)] += run_cost(taken, self._there.costs)

    def _lacking_least(
        self, job: WaitingJob, left: Mapping[str, Mapping[str, int]]
    ) -> deque[str] | None:
        fit = [
            node
            for node, gpus in self._all.items()
            if all(gpus[gres_type] >= count for gres_type, count in job.shape)
        ]
        has = {
            node: sum(
                min(count, left.get(node, {}).get(gres_type, 0)) for gres_type, count in job.shape
            )
            for node in fit
        }
        nodes = deque(sorted(fit, key=lambda node: (-has[node], node)))
        return nodes if len(nodes) >= job.nodes else None

    @cached_property
    def _borrowers(self) -> frozenset[str]:
        """Tenants with runs outside their own QOS."""
        return frozenset(holder_of(run) for run in self._there.runs if not is_own(run.qos))

    @cached_property
    def _runs(self) -> dict[str, list[tuple[JobView, Mapping[str, int]]]]:
        """Runs by node, with the GPU instances that they hold there."""
        runs_of_node: dict[str, list[tuple[JobView, Mapping[str, int]]]] = {
            node: [] for node in self._free
        }
        for run in self._there.runs:
            for node, gpus in gpus_on_nodes(run):
                if node in runs_of_node:
                    runs_of_node[node].append((run, gpus))
        return runs_of_node

    @cached_property
    def _all(self) -> Mapping[str, Counter[str]]:
        """GPU instances by node and type, held or not."""
        free = {node: Counter(counts) for node, counts in self._free.items()}
        for node, runs in self._runs.items():
            for _, gpus in runs:
                free[node].update(gpus)
        return free


def _without_missing(
    policy: Policy, own: Mapping[str, int], parts: Sequence[_Part], short: int
) -> Mapping[str, int]:
    """What each tenant is guaranteed, once what the cluster lacks is taken from unused quota.

    Those that contend give first, then what may not be lent. Few limits change with each job if
    the same tenants always give first.
    """
    levels = dict(own)
    in_order = sorted(parts, key=lambda part: (not part.contends, part.name))
    for keeps_lendable in (True, False):
        for part in in_order:
            lendable = policy[part.name].quota.lending_limit_millislices
            kept = lendable if keeps_lendable and not part.contends else 0
            taken = max(0, min(short, levels[part.name] - part.level - kept))
            levels[part.name] -= taken
            short -= taken
    return levels


def _with_own(policy: Policy, own: Mapping[str, int]) -> Policy:
    """The policy in which each tenant is guaranteed that much for its own jobs."""
    nominal = Counter(own)
    changed: dict[str, Tenant] = {}
    for name in reversed(downward(policy)):
        tenant = policy[name]
        nominal[parent(policy, name)] += nominal[name]
        quota = replace(tenant.quota, nominal_millislices=Millislices(nominal[name]))
        changed[name] = replace(tenant, quota=quota)
    return {name: changed[name] for name in policy}
