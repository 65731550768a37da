"""Measures how much of what could start on idle quota does start.

Lending for whole jobs is compared to lending that shares quota as a fluid. The worlds are random:
tenants in a tree, with weights, some with limits. Some tenants leave their guaranteed quota idle
(their nominal less what their children are due); others have waiting jobs of one or several
instances. One round lends, then Slurm starts jobs within the limits of their QOS and on free GPUs.
An integer program (HiGHS) finds what could start at most.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.rebalance.worlds import COSTS
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob, shape_of
from slicewise.slurm_plugin.rules.quota.lending import lend
from slicewise.slurm_plugin.rules.quota.standings import QosUse, by_use, standings
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, parent
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    Loan,
    Policy,
    Quota,
    Tenant,
)
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput
from slicewise.slurm_plugin.rules.round.whole_jobs import Waits, lend_whole_jobs

_OWN = ", guaranteed quotas"
KINDS = tuple(
    kind + own for own in ("", _OWN) for kind in ("7g.80gb", "3g.40gb", "1g.10gb", "mixed")
)
"""Types of instances, and whether half of the borrowers have guaranteed quotas, too."""
_ON_A_GPU = {"7g.80gb": 1, "3g.40gb": 2, "1g.10gb": 7}
_SLICE, _GPU = 1000, 7000
_NOW_S, _TURN_S = 100_000, 1800
_COUNTS = (1, 1, 1, 2, 4)
_MOST_JOBS = 3
_OF_TWO_TYPES = 0.1
_LIMITED = 0.1
"""Share of tenants that may lend no more than a GPU, and of those that may borrow no more."""


@dataclass(frozen=True)
class World:
    """Idle quota, idle GPUs, and the jobs that wait.

    Attributes:
        demand: millislices that each tenant's jobs want.
        waits: the waiting jobs, and the free instances.
        capacity: millislices of all GPUs.
    """

    policy: Policy
    demand: Mapping[str, int]
    waits: Waits
    capacity: int


@dataclass(frozen=True)
class Started:
    """Millislices that started by fluid and by whole-job lending, and that could have at most."""

    fluid: int
    whole: int
    most: int


def world(seed: int, kind: str) -> World:
    """Draw a world of that kind.

    It has 1 to 8 idle GPUs of 1 to 3 lenders, and of half of the borrowers if these have guaranteed
    quotas; 2 to 10 borrowers with up to 3 jobs each; up to 3 groups.
    """
    chance = Random(seed)  # noqa: S311 -- no secret
    gpus = chance.randint(1, 8)
    of = kind.removesuffix(_OWN)
    kinds = [of] if of != "mixed" else list(_ON_A_GPU)
    free: dict[str, Counter[str]] = defaultdict(Counter)
    for gpu in range(gpus):
        cut = chance.choice(kinds)
        free[f"node{gpu // 2}"][cut] += _ON_A_GPU[cut]
    borrowers = [f"borrower{number}" for number in range(chance.randint(2, 10))]
    keys = sorted(chance.sample(range(1000), 3 * len(borrowers)))
    queues: dict[str, list[WaitingJob]] = {name: [] for name in borrowers}
    for key in keys:
        owner = chance.choice(borrowers)
        if len(queues[owner]) < _MOST_JOBS:
            queues[owner].append(_job(chance, key, kinds))
    policy = _policy(chance, gpus, borrowers, borrowers[::2] if kind.endswith(_OWN) else ())
    demand = {name: sum(job.total_millislices for job in queue) for name, queue in queues.items()}
    nobody = ReclaimInput((), (), free, {}, {}, frozenset(), {}, _NOW_S, 0)
    waits = Waits({name: queue for name, queue in queues.items() if queue}, free, nobody, _TURN_S)
    return World(policy, demand, waits, gpus * _GPU)


def _job(chance: Random, key: int, kinds: Sequence[str]) -> WaitingJob:
    """Draw a job on one node; if there are several types, some jobs want two."""
    several = len(kinds) > 1 and chance.random() < _OF_TWO_TYPES
    of = chance.sample(kinds, 2 if several else 1)
    instances = {kind: min(chance.choice(_COUNTS), 2 * _ON_A_GPU[kind]) for kind in of}
    cost = sum(COSTS[kind] * count for kind, count in instances.items())
    return WaitingJob(key, "", cost, shape_of(instances), since_s=_NOW_S - 1)


def _policy(chance: Random, gpus: int, borrowers: Sequence[str], with_own: Sequence[str]) -> Policy:
    groups = [f"group{number}" for number in range(chance.randint(0, 3))]
    tenants = {
        name: _tenant(chance, name, 0, chance.choice(["", *groups[:number]]))
        for number, name in enumerate(groups)
    }
    left, own = gpus * _GPU, Counter[str]()
    for name in with_own:
        own[name] = min(left // 2 // _SLICE * _SLICE, _SLICE * chance.randint(0, 3))
        left -= own[name]
    while left:
        amount = min(left, _GPU)
        own[f"lender{chance.randint(1, 3)}"] += amount
        left -= amount
    for name in sorted({*own, *borrowers}):
        tenants[name] = _tenant(chance, name, own[name], chance.choice(["", *groups]))
    return tenants


def _tenant(chance: Random, name: str, nominal: int, above: str) -> Tenant:
    no_limit = MAX_NOMINAL_MILLISLICES
    borrows = Millislices(_GPU) if chance.random() < _LIMITED else no_limit
    lends = Millislices(_GPU) if chance.random() < _LIMITED else no_limit
    quota = Quota(Millislices(nominal), borrows, lends, weight=chance.randint(1, 4))
    return Tenant(name, above, quota)


def started(seed: int, kind: str) -> Started:
    """Draw one world, and start jobs in it after each way of lending."""
    one = world(seed, kind)
    fluid = lend(one.policy, one.demand, (), one.capacity)
    whole = lend_whole_jobs(one.policy, one.demand, one.waits, (), capacity=one.capacity, lately={})
    return Started(_starting(one, fluid), _starting(one, whole.loans), _most(one))


def _starting(one: World, loans: Sequence[Loan]) -> int:
    """Millislices of the jobs that Slurm starts, by priority.

    A job starts within the limit of its tenant's borrowed QOS, on the fitting node that has least
    left.
    """
    queues = one.waits.queues
    costs = {
        borrowed_qos(name): [job.cost_millislices for job in queue]
        for name, queue in queues.items()
    }
    limits = by_use(standings(one.policy, loans), QosUse(tasks=costs))
    room = Counter({name: limits[name].borrowed_qos_limit_millislices for name in queues})
    free = {node: Counter(there) for node, there in one.waits.free.items()}
    total = 0
    for name, job in sorted(_jobs(one), key=lambda each: each[1].job_id):
        need = Counter(dict(job.shape))
        nodes = [node for node, there in free.items() if need <= there]
        if job.cost_millislices <= room[name] and nodes:
            free[min(nodes, key=lambda node: free[node].total())] -= need
            room[name] -= job.cost_millislices
            total += job.cost_millislices
    return total


def _jobs(one: World) -> Iterator[tuple[str, WaitingJob]]:
    return ((name, job) for name, queue in one.waits.queues.items() for job in queue)


def _most(one: World) -> int:
    """The most millislices that could start, by an integer program.

    Columns: each job on each node that could hold it, and the quota that passes into and out of
    each tenant's subtree. Rows: each job once, instances of each type on each node, and what each
    tenant's own account has.
    """
    jobs, free, own = list(_jobs(one)), one.waits.free, guaranteed_quota(one.policy)
    places = [(node, kind) for node, there in free.items() for kind in there]
    accounts = ["", *one.policy]
    row = {place: nth for nth, place in enumerate([*range(len(jobs)), *places, *accounts])}
    has = [-own.get(name, 0) for name in accounts]
    program = LinearProgram(
        [*(-1 for _ in jobs), *(-free[node][kind] for node, kind in places), *has]
    )
    for nth, (name, job) in enumerate(jobs):
        need, cost = Counter(dict(job.shape)), job.cost_millislices
        for node in (each for each, there in free.items() if need <= Counter(there)):
            takes = {row[node, kind]: -count for kind, count in need.items()}
            program.add(-cost, {row[nth]: -1, row[name]: -cost, **takes}, whole=True, at_most=1)
    for name, tenant in one.policy.items():
        inside, outside = row[name], row[parent(one.policy, name)]
        quota = tenant.quota
        lends, borrows = quota.lending_limit_millislices, quota.borrowing_limit_millislices
        program.add(0, {inside: -1, outside: 1}, at_most=lends)
        program.add(0, {inside: 1, outside: -1}, at_most=borrows)
    return -round(program.solve().cost)


def report(found: Mapping[str, Sequence[Started]]) -> Mapping[str, Any]:
    """Figures by kind, for both ways of lending.

    They are the share of what could start that did, and the share of worlds where nothing did
    though something could.
    """
    return {
        name: {
            "whole_jobs": _figures(worlds, lambda one: one.whole),
            "fluid": _figures(worlds, lambda one: one.fluid),
        }
        for name, worlds in found.items()
    }


def _figures(worlds: Sequence[Started], of: Callable[[Started], int]) -> Mapping[str, float]:
    able = [one for one in worlds if one.most]
    return {
        "share": round(sum(map(of, able)) / sum(one.most for one in able), 4),
        "none_started": round(sum(of(one) == 0 for one in able) / len(able), 4),
        "worst": round(min(of(one) / one.most for one in able), 4),
        "worlds": len(able),
    }
