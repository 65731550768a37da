"""Policies that choose which runs go so that waiting jobs start: ours, and the published orders.

Each policy takes the waiting jobs in turn, the most important first, and what it has sent away for
one job is free for the next. All policies have the same candidates: runs on borrowed quota that are
beyond their term.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput, reclaim

_Order = Callable[[Running], tuple[float, ...]]
_REORDERS = 2
"""How often Slurm reorders candidates by default: preempt_reorder_count of SchedulerParameters is
1, and Slurm reorders again as long as it has done so no more often than that."""


@dataclass(frozen=True)
class Eviction:
    """The decision of a policy.

    Attributes:
        victims: job ids of the runs that go.
        unserved: job ids of the waiting jobs that can't start even then.
        preempted: those of the victims whom Slurm chose, where Slicewise chose the others.
    """

    victims: frozenset[int]
    unserved: frozenset[int]
    preempted: frozenset[int] = frozenset()


Policy = Callable[[ReclaimInput], Eviction]


def candidates(reclaim_input: ReclaimInput) -> Sequence[Running]:
    """Runs that may be sent away: those beyond their term."""
    now_s, term_s = reclaim_input.now_s, reclaim_input.term_s
    return [run for run in reclaim_input.running if run.age_s(now_s) >= term_s]


def in_turn(reclaim_input: ReclaimInput) -> Sequence[WaitingJob]:
    """Waiting jobs, the most important first."""
    return sorted(reclaim_input.wanting, key=lambda job: (-job.priority, job.job_id))


class Places:
    """The free instances, by node and type.

    Attributes:
        free: how many there are now.
    """

    def __init__(self, free: Mapping[str, Mapping[str, int]]) -> None:
        self.free = {node: dict(types) for node, types in free.items()}

    def copy(self) -> "Places":
        """A copy, which can be changed independently."""
        return Places(self.free)

    def vacate(self, run: Running) -> None:
        """Free the instances that a run holds."""
        self._change(run.instances, 1)

    def occupy(self, run: Running) -> None:
        """Let a run hold its instances again."""
        self._change(run.instances, -1)

    def fitting(self, job: WaitingJob) -> Sequence[str]:
        """The first nodes that have room for a job; empty if these are too few."""
        found = []
        for node in self.free:
            if self._has(node, job):
                found.append(node)
                if len(found) == job.nodes:
                    return found
        return []

    def start(self, job: WaitingJob) -> bool:
        """Start a job if it fits, so that it holds its instances; return whether it fits."""
        found = self.fitting(job)
        self._change({node: dict(job.shape) for node in found}, -1)
        return bool(found)

    def _has(self, node: str, job: WaitingJob) -> bool:
        there = self.free[node]
        return all(there.get(kind, 0) >= count for kind, count in job.shape)

    def _change(self, instances: Mapping[str, Mapping[str, int]], sign: int) -> None:
        for node, types in instances.items():
            there = self.free.setdefault(node, {})
            for kind, count in types.items():
                there[kind] = there.get(kind, 0) + sign * count


def slicewise(reclaim_input: ReclaimInput) -> Eviction:
    """The product's own decision, unchanged."""
    found = reclaim(reclaim_input)
    gone = found.victims.keys() | found.requeues.keys()
    return Eviction(frozenset(job_id for job_id, _ in gone), frozenset(found.missing))


def with_slurm(reclaim_input: ReclaimInput, *, youngest_first: bool) -> Eviction:
    """What becomes of a return: what the product asks or requeues goes; for jobs that still can't
    start Slurm preempts, as after the grace. ``youngest_first``: preempt_youngest_first is set.
    """
    asked = slicewise(reclaim_input).victims
    places = Places(reclaim_input.free)
    for run in reclaim_input.running:
        if run.job_id in asked:
            places.vacate(run)
    stay = tuple(run for run in reclaim_input.running if run.job_id not in asked)
    left = replace(reclaim_input, running=stay, free=places.free)
    rest = slurm_youngest_first(left) if youngest_first else slurm(left)
    return Eviction(asked | rest.victims, rest.unserved, rest.victims)


def newest_first(reclaim_input: ReclaimInput) -> Eviction:
    """Send away runs with a type that is wanted, the newest first, until the job fits."""
    return _one_by_one(reclaim_input, _youngest_first, gives_back=False)


def lowest_priority_first(reclaim_input: ReclaimInput) -> Eviction:
    """Send away runs with a wanted type, least important then newest first, until the job fits."""
    return _one_by_one(reclaim_input, _least_important, gives_back=False)


def kueue(reclaim_input: ReclaimInput) -> Eviction:
    """Kueue's classic preemption: lowest priority first, of tenants that still borrow.

    Then, in reverse order, each run stays that need not go. Kueue itself looks at quota by
    resource, not at nodes; here it knows which node is free.
    """
    return _one_by_one(reclaim_input, _least_important, gives_back=True)


def slurm(reclaim_input: ReclaimInput) -> Eviction:
    """Slurm's preempt/qos with select/cons_tres.

    Candidates, in order of their number of nodes and then of their ids, leave one by one, whatever
    they hold, until the job fits. Then the candidate that left last is put first, followed by those
    that share most of the nodes found, and candidates leave again in that order; this is done
    twice. In the end those candidates go that had to leave and are on the nodes found. Of nodes
    that would do, this function takes the first; Slurm takes the one with the fewest processors to
    spare.
    """
    return _each_in_turn(reclaim_input, partial(_slurm_victims, order=_fewest_nodes_first))


def slurm_youngest_first(reclaim_input: ReclaimInput) -> Eviction:
    """The same with preempt_youngest_first: candidates leave in order of their starts."""
    return _each_in_turn(reclaim_input, partial(_slurm_victims, order=_youngest_first))


POLICIES: Mapping[str, Policy] = {
    "slicewise": slicewise,
    "newest_first": newest_first,
    "lowest_priority_first": lowest_priority_first,
    "slurm": slurm,
    "kueue": kueue,
}


def _fewest_nodes_first(run: Running) -> tuple[float, ...]:
    return (len(run.instances), run.job_id)


def _start_s(run: Running) -> int:
    return run.start_s or 0


def _youngest_first(run: Running) -> tuple[float, ...]:
    return (-_start_s(run), run.job_id)


def _least_important(run: Running) -> tuple[float, ...]:
    return (run.priority, -_start_s(run), run.job_id)


_Choice = Callable[[WaitingJob, Sequence[Running], Places], Sequence[Running] | None]
"""Chooses which of these runs go for a job; None if nothing helps. It leaves places unchanged."""


def _each_in_turn(reclaim_input: ReclaimInput, choose: _Choice) -> Eviction:
    places, there = Places(reclaim_input.free), list(candidates(reclaim_input))
    victims: set[int] = set()
    unserved: set[int] = set()
    for job in in_turn(reclaim_input):
        if places.start(job):
            continue
        chosen = choose(job, there, places)
        if chosen is None:
            unserved.add(job.job_id)
            continue
        for run in chosen:
            places.vacate(run)
        places.start(job)
        victims |= {run.job_id for run in chosen}
        there = [run for run in there if run.job_id not in victims]
    return Eviction(frozenset(victims), frozenset(unserved))


def _one_by_one(reclaim_input: ReclaimInput, order: _Order, *, gives_back: bool) -> Eviction:
    above = dict(reclaim_input.above_nominal_millislices)

    def choose(
        job: WaitingJob, there: Sequence[Running], places: Places
    ) -> Sequence[Running] | None:
        wanted = [run for run in there if _holds(run, dict(job.shape))]
        trial, gone = places.copy(), list[Running]()
        left = dict(above)
        for run in sorted(wanted, key=order):
            if gives_back and left.get(run.tenant, 0) <= 0:
                continue
            trial.vacate(run)
            gone.append(run)
            left[run.tenant] = left.get(run.tenant, 0) - run.cost_millislices
            if trial.fitting(job):
                found = list(_without_needless(job, gone, trial)) if gives_back else gone
                for one in found:
                    above[one.tenant] = above.get(one.tenant, 0) - one.cost_millislices
                return found
        return None

    return _each_in_turn(reclaim_input, choose)


def _holds(run: Running, types: Mapping[str, int]) -> bool:
    return any(kind in held for held in run.instances.values() for kind in types)


def _without_needless(job: WaitingJob, gone: Sequence[Running], trial: Places) -> Iterator[Running]:
    """Yield the last run, and each other run, latest first, without which the job does not fit."""
    yield gone[-1]
    for run in reversed(gone[:-1]):
        trial.occupy(run)
        if not trial.fitting(job):
            trial.vacate(run)
            yield run


def _slurm_victims(
    job: WaitingJob, there: Sequence[Running], places: Places, *, order: _Order
) -> Sequence[Running] | None:
    leave = sorted(there, key=order)
    for _ in range(_REORDERS):
        found = _until_it_fits(job, leave, places)
        if found is None:
            return None
        gone, nodes = found
        rank = {run.job_id: _shared(run, nodes) for run in gone[:-1]}
        rank[gone[-1].job_id] = len(nodes) + 1
        leave.sort(key=lambda run: -rank.get(run.job_id, 0))
    found = _until_it_fits(job, leave, places)
    if found is None:
        return None
    gone, nodes = found
    return [run for run in gone if _shared(run, nodes)]


def _shared(run: Running, nodes: Sequence[str]) -> int:
    return sum(node in run.instances for node in nodes)


def _until_it_fits(
    job: WaitingJob, order: Sequence[Running], places: Places
) -> tuple[Sequence[Running], Sequence[str]] | None:
    trial = places.copy()
    for number, run in enumerate(order, start=1):
        trial.vacate(run)
        nodes = trial.fitting(job)
        if nodes:
            return order[:number], nodes
    return None
