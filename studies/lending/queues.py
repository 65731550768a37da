"""Measures how much starts of what could beside own jobs, busy GPUs and nodes that are away.

The worlds are random. Tenants have jobs that run within their guaranteed quotas, jobs that wait
for these, and jobs that wait for a loan. Some jobs name a node that is away, and some fit on no
node. Nothing runs on loan, and nothing ends. Rounds of lending and a Slurm that starts what its
limits and its nodes allow follow each other until nothing more starts. An integer program (HiGHS)
that knows jobs, nodes and quotas, and nothing of how they are lent, finds what could start at most.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from benchmarks.rebalance.worlds import COSTS
from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, is_own, qos_name
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.quota.calendar import Moment
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, parent
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_NOMINAL_MILLISLICES,
    Loan,
    Policy,
    Quota,
    Recall,
    Tenant,
)
from slicewise.slurm_plugin.rules.round import world as quota_world
from slicewise.slurm_plugin.rules.round.round import plan
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView

_PARTITION = "gpu"
_PARTITIONS = frozenset({_PARTITION})
_LAYOUTS = (
    {"1g.10gb": 7},
    {"3g.40gb": 2},
    {"7g.80gb": 1},
    {"7g.80gb": 2},
    {"1g.10gb": 3, "3g.40gb": 1},
)
_SHAPES = (
    *[("1g.10gb", 1)] * 3,
    ("1g.10gb", 2),
    ("1g.10gb", 4),
    *[("3g.40gb", 1)] * 2,
    ("3g.40gb", 2),
    *[("7g.80gb", 1)] * 2,
)
_ON_NO_NODE = (("7g.80gb", 4), ("3g.40gb", 5), ("1g.10gb", 9))
_HALF_SLICE, _SLICES = 500, 14
_NOW_S, _ROUND_S, _ROUNDS = 1_000_000, 15, 12
_AWAY = "ReqNodeNotAvail, UnavailableNodes:away"
_OWN, _RUNS, _NAMES_AWAY, _TOO_LARGE, _LIMITED, _DEEP = 0.5, 0.6, 0.15, 0.1, 0.1, 0.3
"""Shares: of own jobs, of busy instances, of jobs that name a node that is away or fit nowhere, of
tenants with a limit of a GPU, and of worlds with a group."""
_COSTS = {kind: Millislices(cost) for kind, cost in COSTS.items()}
_RULES = QuotaRules(
    _PARTITIONS,
    _COSTS,
    whole_boards={},
    models={},
    grace_s=60,
    term_s=0,
    turn_s=1800,
)


@dataclass
class World:
    """A cluster and its jobs.

    Attributes:
        nodes: GPU instances by node that are there.
        jobs: those that run and wait, by job id.
    """

    policy: Policy
    nodes: Mapping[str, Mapping[str, int]]
    jobs: dict[int, JobView]
    loans: tuple[Loan, ...] = ()
    recalls: tuple[Recall, ...] = ()
    now_s: int = _NOW_S

    def free(self) -> Mapping[str, Counter[str]]:
        """Instances that no run holds."""
        free = {name: Counter(there) for name, there in self.nodes.items()}
        for one in self.jobs.values():
            for node in one.nodes:
                free[node].subtract(one.gpus)
        return free

    def round(self) -> None:
        """Lend, and let Slurm start jobs by priority."""
        seen = SlurmView(tuple(self.jobs.values()), tuple(self._views()), ())
        ledger_view = LedgerView(
            Moment(self.now_s, 0, 0),
            0,
            0,
            self.policy,
            (),
            self.loans,
            self.recalls,
            balances={},
            rollovers={},
            reservations=(),
            known={},
        )
        inputs = quota_world.world(ledger_view, seen, _RULES)
        planned = plan(inputs)
        self.loans, self.recalls = planned.loans, planned.recalls
        allowed = inputs.after(self.loans, self.recalls).allowed()
        room = Counter[str]()
        for name, standing in allowed.standings.items():
            room[qos_name(name)] = standing.own_qos_limit_millislices
            room[borrowed_qos(name)] = standing.borrowed_qos_limit_millislices
        for one in self.jobs.values():
            if one.state is JobState.RUNNING:
                room[one.qos] -= run_cost(one.gpus, _COSTS)
        free = self.free()
        for one in sorted(self.jobs.values(), key=lambda each: -each.priority):
            cost = run_cost(one.gpus, _COSTS)
            if one.state is JobState.PENDING and one.reason != _AWAY and cost <= room[one.qos]:
                need = Counter(one.gpus)
                node = next((name for name, there in free.items() if need <= there), None)
                if node is not None:
                    free[node] -= need
                    room[one.qos] -= cost
                    self.jobs[one.job_id] = _running(one, node, self.now_s)
        self.now_s += _ROUND_S

    def _views(self) -> list[NodeView]:
        free = self.free()
        return [
            NodeView(
                name,
                name,
                frozenset({"IDLE"}),
                there,
                Counter(there) - free[name],
                partitions=_PARTITIONS,
            )
            for name, there in self.nodes.items()
        ]


@dataclass(frozen=True)
class Started:
    """Millislices that started, that could have at most, and that could have if each job that waits
    for its tenant's guaranteed quota held it, whether its GPUs are busy or not.
    """

    whole: int
    most: int
    kept: int


def world(seed: int) -> World:
    """Draw a world of 1 to 4 nodes and 2 to 5 tenants."""
    chance = Random(seed)  # noqa: S311 -- no secret
    nodes = {f"n{n}": chance.choice(_LAYOUTS) for n in range(chance.randint(1, 4))}
    names = "abcde"[: chance.randint(2, 5)]
    policy = _policy(chance, names, sum(run_cost(there, _COSTS) for there in nodes.values()))
    found = World(policy, nodes, {})
    left = Counter(guaranteed_quota(policy))
    for node, there in nodes.items():
        for kind, count in there.items():
            for _ in range(count):
                name = chance.choice(names)
                if chance.random() < _RUNS and left[name] >= COSTS[kind]:
                    left[name] -= COSTS[kind]
                    job = _job(len(found.jobs) + 1, name, (kind, 1), is_own_job=True)
                    found.jobs[job.job_id] = _running(job, node, _NOW_S - 3600)
    waiting = [name for name in names for _ in range(chance.randint(0, 4))]
    chance.shuffle(waiting)
    for name in waiting:
        is_too_large = chance.random() < _TOO_LARGE
        shape = chance.choice(_ON_NO_NODE if is_too_large else _SHAPES)
        is_own_job = chance.random() < _OWN
        job = _job(len(found.jobs) + 1, name, shape, is_own_job=is_own_job)
        is_away = chance.random() < _NAMES_AWAY
        found.jobs[job.job_id] = replace(job, reason=_AWAY) if is_away else job
    return found


def _policy(chance: Random, names: Sequence[str], left: int) -> Policy:
    own = Counter[str]()
    for name in names[1:]:
        own[name] = min(left, _HALF_SLICE * chance.randint(0, _SLICES))
        left -= own[name]
    own[names[0]] = left
    is_deep = chance.random() < _DEEP
    tenants = {}
    if is_deep:
        amount = sum(own[name] for name in names[1:])
        tenants["group"] = Tenant("group", "", _quota(chance, amount))
    for name in names:
        above = "group" if is_deep and name != names[0] else ""
        tenants[name] = Tenant(name, above, _quota(chance, own[name]))
    return tenants


def _quota(chance: Random, nominal: int) -> Quota:
    borrows, lends = (
        _COSTS["7g.80gb"] if chance.random() < _LIMITED else MAX_NOMINAL_MILLISLICES
        for _ in range(2)
    )
    return Quota(Millislices(nominal), borrows, lends, weight=chance.randint(1, 3))


def _job(job_id: int, tenant: str, shape: tuple[str, int], *, is_own_job: bool) -> JobView:
    kind, count = shape
    return JobView(
        job_id=job_id,
        array_job_id=None,
        task_index=None,
        untouched=frozenset(),
        name="",
        user=tenant,
        uid=1000,
        account=tenant,
        partition=_PARTITION,
        qos=(qos_name if is_own_job else borrowed_qos)(tenant),
        state=JobState.PENDING,
        reason="Resources",
        held=False,
        priority=10_000 * is_own_job + 10_000 - job_id,
        admin_comment="",
        comment="",
        tres={f"gres/gpu:{kind}": str(count), "node": "1"},
        nodes=(),
        submit_s=_NOW_S - 60,
        start_s=None,
        end_s=None,
        eligible_s=_NOW_S - 60,
        time_limit_s=None,
        restarts=0,
    )


def _running(job: JobView, node: str, start_s: int) -> JobView:
    return replace(job, state=JobState.RUNNING, nodes=(node,), start_s=start_s, reason="None")


def started(seed: int) -> Started:
    """Draw a world, and start in it what lending lets start."""
    found = world(seed)
    most, kept = _most(found, keeps=False), _most(found, keeps=True)
    before = _held(found)
    for _ in range(_ROUNDS):
        found.round()
    return Started(_held(found) - before, most, kept)


def _held(one: World) -> int:
    runs = (job for job in one.jobs.values() if job.state is JobState.RUNNING)
    return sum(run_cost(job.gpus, _COSTS) for job in runs)


def _most(one: World, *, keeps: bool) -> int:
    """The most millislices that could start, by an integer program.

    Columns: each job on each node that could hold it, and the quota that passes into and out of
    each tenant's subtree. Rows: each job once, instances of each type on each node, what each
    tenant has, and what it has for jobs in its own QOS. ``keeps``: what waits for guaranteed quotas
    has of these what it needs, in order of priority, whether it starts or not.
    """
    jobs = [job for job in one.jobs.values() if job.state is JobState.PENDING]
    free, own = one.free(), Counter(guaranteed_quota(one.policy))
    for job in one.jobs.values():
        own[job.account] -= run_cost(job.gpus, _COSTS) if job.state is JobState.RUNNING else 0
    has, pays = Counter(own), set[int]()
    for job in sorted(jobs, key=lambda each: -each.priority) if keeps else ():
        cost = run_cost(job.gpus, _COSTS)
        if is_own(job.qos) and cost <= has[job.account]:
            has[job.account] -= cost
            pays.add(job.job_id)
    places = [(node, kind) for node, there in free.items() for kind in there]
    accounts = ["", *one.policy]
    rows = [
        *(job.job_id for job in jobs),
        *places,
        *(("has", name) for name in accounts),
        *(("own", name) for name in accounts),
    ]
    row = {key: nth for nth, key in enumerate(rows)}
    program = LinearProgram(
        [
            *(-1 for _ in jobs),
            *(-free[node][kind] for node, kind in places),
            *(-has[name] for name in accounts),
            *(-own[name] for name in accounts),
        ]
    )
    for job in jobs:
        cost, need = run_cost(job.gpus, _COSTS), Counter(job.gpus)
        entries: dict[int, float] = {row[job.job_id]: -1}
        if job.job_id not in pays:
            entries[row["has", job.account]] = -cost
        if is_own(job.qos):
            entries[row["own", job.account]] = -cost
        for node, there in free.items():
            if job.reason != _AWAY and need <= there:
                takes = {row[node, kind]: -count for kind, count in need.items()}
                program.add(-cost, {**entries, **takes}, whole=True, at_most=1)
    for name, tenant in one.policy.items():
        inside, outside = row["has", name], row["has", parent(one.policy, name)]
        quota = tenant.quota
        lends, borrows = quota.lending_limit_millislices, quota.borrowing_limit_millislices
        program.add(0, {inside: -1, outside: 1}, at_most=lends)
        program.add(0, {inside: 1, outside: -1}, at_most=borrows)
    return -round(program.solve().cost)


def report(worlds: Sequence[Started]) -> Mapping[str, Any]:
    """The share of what could start that did, and in how many worlds nothing did."""
    able = [one for one in worlds if one.most]
    return {
        "share": round(sum(one.whole for one in able) / sum(one.most for one in able), 4),
        "kept_share": round(sum(one.whole for one in able) / sum(one.kept for one in able), 4),
        "none_started": sum(one.whole == 0 for one in able),
        "none_started_of_kept": sum(one.whole == 0 for one in able if one.kept),
        "worlds": len(able),
    }
