"""How much of what could start on idle quota does, beside lending that shares it as a fluid.

Worlds by chance: lenders with idle GPUs, borrowers without a part of their own, each with jobs that
wait. One round lends, then every borrower's jobs start as far as its loans and free GPUs let them.
What could start at most is the answer of an integer program (HiGHS).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.rebalance.worlds import COSTS
from cluster.units import Millislices
from slurm_plugin.decide.lending import lend
from slurm_plugin.decide.mig.solver import Program
from slurm_plugin.decide.policy import MAX_NOMINAL_MILLISLICES, Loan, Policy, Quota, Tenant
from slurm_plugin.decide.reclaim.room import Need
from slurm_plugin.decide.reclaim.victims import Taking
from slurm_plugin.decide.whole_jobs import WaitingJob, Waits, lend_whole_jobs

KINDS = ("7g.80gb", "3g.40gb", "1g.10gb", "mixed")
_ON_A_GPU = {"7g.80gb": 1, "3g.40gb": 2, "1g.10gb": 7}
_NOW_S, _TURN_S = 100_000, 1800


@dataclass(frozen=True)
class World:
    """Idle quota, idle GPUs, and who waits."""

    policy: Policy
    demand: Mapping[str, int]
    waits: Waits
    capacity: int


@dataclass(frozen=True)
class Started:
    """Millislices that started, and that could have."""

    fluid: int
    whole: int
    most: int


def world(seed: int, kind: str) -> World:
    """1 to 8 idle GPUs of 1 to 3 lenders, 2 to 10 borrowers with 1 to 3 jobs each."""
    chance = Random(seed)  # noqa: S311 -- no secret
    gpus = chance.randint(1, 8)
    lenders: Counter[str] = Counter()
    for _ in range(gpus):
        lenders[f"lender{chance.randint(1, 3)}"] += 7000
    kinds = [kind] if kind != "mixed" else list(_ON_A_GPU)
    free: dict[str, Counter[str]] = defaultdict(Counter)
    for gpu in range(gpus):
        cut = chance.choice(kinds)
        free[f"node{gpu // 2}"][cut] += _ON_A_GPU[cut]
    queues: dict[str, tuple[WaitingJob, ...]] = {}
    for number in range(chance.randint(2, 10)):
        of = [chance.choice(kinds) for _ in range(chance.randint(1, 3))]
        queues[f"borrower{number}"] = tuple(
            WaitingJob(Need(10 * number + nth, ((one, 1),), 1), COSTS[one], _NOW_S - 1)
            for nth, one in enumerate(of)
        )
    policy = {name: _tenant(name, amount) for name, amount in lenders.items()}
    policy |= {name: _tenant(name, 0) for name in queues}
    demand = {name: sum(job.total_millislices for job in queue) for name, queue in queues.items()}
    nobody = Taking((), (), free, {}, {}, frozenset(), {}, _NOW_S, 0)
    return World(policy, demand, Waits(queues, free, nobody, _TURN_S), gpus * 7000)


def _tenant(name: str, nominal: int) -> Tenant:
    no_limit = MAX_NOMINAL_MILLISLICES
    return Tenant(name, "", Quota(Millislices(nominal), no_limit, no_limit))


def started(seed: int, kind: str) -> Started:
    """One world."""
    one = world(seed, kind)
    fluid = lend(one.policy, one.demand, (), one.capacity)
    whole = lend_whole_jobs(one.policy, one.demand, one.waits, (), capacity=one.capacity, lately={})
    return Started(_starting(one, fluid), _starting(one, whole.loans), _most(one))


def _starting(one: World, loans: Sequence[Loan]) -> int:
    """What Slurm starts: each tenant's jobs in their order, within its ceiling."""
    ceiling: Counter[str] = Counter()
    for loan in loans:
        ceiling[loan.borrower] += loan.amount_millislices
    free = _instances(one)
    total = 0
    for name, queue in one.waits.queues.items():
        for job in queue:
            ((kind, _),) = job.need.shape
            if job.cost_millislices <= ceiling[name] and free[kind]:
                ceiling[name] -= job.cost_millislices
                free[kind] -= 1
                total += job.cost_millislices
    return total


def _instances(one: World) -> Counter[str]:
    return sum((Counter(there) for there in one.waits.free.values()), Counter())


def _most(one: World) -> int:
    """Rows: the quota that is idle, and instances of each type."""
    free = _instances(one)
    kinds = sorted(free)
    jobs = [job for queue in one.waits.queues.values() for job in queue]
    able = [job for job in jobs if job.need.shape[0][0] in free]
    program = Program([-one.capacity, *(-free[kind] for kind in kinds)])
    for job in able:
        row, cost = 1 + kinds.index(job.need.shape[0][0]), job.cost_millislices
        program.add(-cost, {0: -cost, row: -1}, whole=True, at_most=1)
    return -round(program.solve().cost) if able else 0


def report(found: Mapping[str, Sequence[Started]]) -> Mapping[str, Any]:
    """By profile: the share of what could start that did, and of worlds where nothing did though
    something could.
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
