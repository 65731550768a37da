"""Idle quota is lent in units of what waits: on small trees by every way there is, on a closed
cluster over time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from builders.tenants import policy_of, tenant
from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stand_ins.reclaim_world import COSTS as COSTS_OF
from stand_ins.reclaim_world import GRACE_S, ROUND_S, Cluster, one, policy

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import is_own
from slicewise.slurm_plugin.rules.quota.demand import demand_of
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.lending import lend, within_limits
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy
from slicewise.slurm_plugin.rules.reclaim.turns import Turn
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput
from slicewise.slurm_plugin.rules.round.reclaim_inputs import reclaim_input
from slicewise.slurm_plugin.rules.round.whole_jobs import Waits, lend_whole_jobs, waits, whose_turn
from slicewise.slurm_plugin.rules.round.world import World as RoundWorld

PLENTY = 10**9
COSTS = {"1g": 1000, "3g": 3500, "7g": 7000}


@dataclass(frozen=True)
class World:
    """What runs holds GPUs that are not in ``free``."""

    policy: Policy
    held: Mapping[str, int]
    waits: Waits
    current: tuple[Loan, ...] = ()

    @property
    def demand(self) -> Mapping[str, int]:
        queues = self.waits.queues
        queued = {name: sum(job.total_millislices for job in queues[name]) for name in queues}
        return Counter(self.held) + Counter(queued)

    def lend(self, current: Sequence[Loan] = ()) -> tuple[Loan, ...]:
        return lend_whole_jobs(
            self.policy, self.demand, self.waits, current, capacity=PLENTY, lately={}
        ).loans

    def fluid(self) -> tuple[Loan, ...]:
        return lend(self.policy, self.demand, self.current, PLENTY)


AMOUNTS = st.integers(0, 16).map(lambda halves: 500 * halves)
BOUNDS = st.one_of(st.just(PLENTY), AMOUNTS)


@cache
def few_of(kinds: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(kinds), max_size=3)


@st.composite
def worlds(
    draw: st.DrawFn,
    *kinds: str,
    runs: bool = True,
    limits: bool = True,
    own_step: int = 500,
    turns_s: tuple[int, ...] = (10, 1000),
) -> World:
    """Up to five tenants in a tree; each has jobs of the ``kinds`` that wait for a loan, and then
    a guaranteed quota in steps of so many millislices.
    """
    size = draw(st.integers(2, 5))
    parents = [draw(st.integers(-1, i - 1)) for i in range(size)]
    waiting = [draw(few_of(kinds)) for _ in range(size)]
    nominal = [draw(AMOUNTS) // (step := own_step if of else 500) * step for of in waiting]
    for i in reversed(range(size)):
        if parents[i] >= 0:
            nominal[parents[i]] += nominal[i]
    bound = BOUNDS if limits else st.just(PLENTY)
    tenants = [
        tenant(
            f"t{i}",
            nominal[i],
            f"t{parents[i]}" if parents[i] >= 0 else "",
            borrowing_limit_millislices=draw(bound),
            lending_limit_millislices=draw(bound),
            weight=draw(st.integers(1, 3)),
        )
        for i in range(size)
    ]
    names = [each.name for each in tenants]
    held = {name: draw(AMOUNTS) if runs and draw(st.booleans()) else 0 for name in names}
    queues: dict[str, tuple[WaitingJob, ...]] = {}
    for n, (name, of) in enumerate(zip(names, waiting, strict=True)):
        if of:
            queues[name] = tuple(
                WaitingJob(
                    *(10 * n + i, name, COSTS[kind], ((kind, 1),)), since_s=draw(st.integers(1, 90))
                )
                for i, kind in enumerate(of)
            )
    free = {
        node: {kind: draw(st.integers(0, 3)) for kind in kinds}
        for node in ("n1", "n2")[: draw(st.integers(1, 2))]
    }
    turn_s = draw(st.sampled_from(turns_s))
    nobody = ReclaimInput((), (), free, {}, {}, frozenset(), {}, 100, 0)
    return World(policy_of(*tenants), held, Waits(queues, free, nobody, turn_s))


def borrowed(loans: Sequence[Loan]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for loan in loans:
        sums[loan.borrower] += loan.amount_millislices
    return sums


def starting(world: World, loans: Sequence[Loan]) -> int:
    """How many of one kind Slurm starts: each tenant's as far as its limit goes."""
    has = borrowed(loans) + Counter(guaranteed_quota(world.policy))
    free = sum(sum(there.values()) for there in world.waits.free.values())
    total = 0
    for name, queue in world.waits.queues.items():
        room = has[name] - world.held[name]
        total += min(len(queue), max(0, room) // queue[0].cost_millislices)
    return min(free, total)


def ways(world: World) -> Iterator[Mapping[str, int]]:
    """How many jobs of each tenant might start."""
    queues = world.waits.queues
    for counts in product(*(range(len(queue) + 1) for queue in queues.values())):
        yield dict(zip(queues, counts, strict=True))


def can_start(world: World, counts: Mapping[str, int]) -> bool:
    """Whether lending gives everybody all of this."""
    own, demand = guaranteed_quota(world.policy), dict(world.held)
    for name, count in counts.items():
        cost = world.waits.queues[name][0].cost_millislices
        demand[name] += count * cost
        # Who waits lends nothing of its own.
        demand[name] = max(demand[name], min(own[name], world.demand[name]))
    got = borrowed(lend(world.policy, demand, (), PLENTY))
    return all(got[name] >= demand[name] - own[name] for name in demand)


@settings(max_examples=examples(50, nightly=6000))
@given(worlds("3g", runs=False, own_step=COSTS["3g"], turns_s=(1000,)))
def test_as_many_of_one_kind_start_as_any_way_of_lending_could_start(world: World) -> None:
    """Where all need the same loan. Else the fair next one may need more of what is idle than
    another would, and fewer start.
    """
    free = sum(sum(there.values()) for there in world.waits.free.values())
    most = max(sum(counts.values()) for counts in ways(world) if can_start(world, counts))
    assert starting(world, world.lend()) == min(free, most)


@settings(max_examples=examples(50, nightly=6000))
@given(worlds("1g", "3g", "7g"))
def test_a_loan_is_within_all_limits_and_asked_again_it_stays(world: World) -> None:
    loans = world.lend()
    assert within_limits(world.policy, loans) == loans
    assert world.lend(loans) == loans


@settings(max_examples=examples(50, nightly=6000))
@given(worlds("1g", "3g", "7g"))
def test_what_runs_within_its_tenant_s_fair_share_stays(world: World) -> None:
    own, fluid, whole = (
        guaranteed_quota(world.policy),
        borrowed(world.fluid()),
        borrowed(world.lend()),
    )
    for name, held in world.held.items():
        assert own[name] + whole[name] >= min(held, own[name] + fluid[name])


@settings(max_examples=examples(50, nightly=6000))
@given(worlds("1g", "3g", "7g", runs=False, limits=False))
def test_something_starts_if_anything_could(world: World) -> None:
    """On what is nobody's, or too little in its tenant's guaranteed quota for any job that waits
    there: whoever's turn it is.
    """
    own, loans = guaranteed_quota(world.policy), world.lend()
    limit = borrowed(loans) + Counter(own)
    kinds = {kind for there in world.waits.free.values() for kind, n in there.items() if n}
    able = {
        name: [job for job in queue if job.shape[0][0] in kinds]
        for name, queue in world.waits.queues.items()
    }
    idle = {name: own[name] - fitting(world, name, own[name]) for name in world.policy}
    could = any(
        job.cost_millislices <= sum(idle.values()) - idle[name] + own[name]
        for name, queue in able.items()
        for job in queue
    )
    does = any(job.cost_millislices <= limit[name] for name, queue in able.items() for job in queue)
    assert does or not could


@settings(max_examples=examples(50, nightly=6000))
@given(st.integers(2, 8), st.integers(0, 10**9), st.integers(60, 10**5))
def test_if_nobody_starts_each_has_a_turn_again_and_again(
    many: int, first_s: int, turn_s: int
) -> None:
    """And the longest waiting one half of the time, though others are added again and again."""
    windows = range(first_s, first_s + 2 * (many - 1) * turn_s, turn_s)
    had = Counter(whose_turn(range(many), now_s, turn_s) for now_s in windows)
    assert had == {0: many - 1, **dict.fromkeys(range(1, many), 1)}
    more = [whose_turn(range(2 + n), now_s, turn_s) for n, now_s in enumerate(windows)]
    assert more.count(0) == many - 1


def fitting(world: World, name: str, own: int) -> int:
    """Millislices of the jobs that start within the guaranteed quota, one after the other."""
    used = 0
    for job in world.waits.queues.get(name, ()):
        used += job.cost_millislices if used + job.cost_millislices <= own else 0
    return used


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Cluster, Sequence[JobView]]:
    """Idle GPUs of a lender, and more replicas of others than there are GPUs, of two sizes."""
    gpus = draw(st.integers(1, 2))
    count = draw(st.integers(2, 5))
    kind = draw(st.sampled_from(("3g.40gb", "1g.10gb")))
    nodes = {f"n{i}": {kind: 1} for i in range(gpus)}
    cost = {"3g.40gb": 3500, "1g.10gb": 1000}[kind]
    names = "bcdef"[:count]
    jobs = [one(200 + i, name, kind, borrowed=True) for i, name in enumerate(names)]
    tenants = policy({"a": gpus * cost, **dict.fromkeys(names, 0)})
    now_s = 1_000_000
    waiting = [replace(job, submit_s=now_s, eligible_s=now_s) for job in jobs]
    return Cluster(tenants, nodes, {job.job_id: job for job in waiting}, turn_s=120), waiting


@settings(max_examples=examples(30, nightly=800))
@given(crowds())
def test_whoever_waits_for_something_indivisible_has_its_turn(
    case: tuple[Cluster, Sequence[JobView]],
) -> None:
    cluster, jobs = case
    ran: set[int] = set()
    # One has its turn in two minutes, and half a minute goes by until the other has gone.
    for _ in range(len(jobs) * (120 + 4 * ROUND_S) // ROUND_S):
        cluster.round()
        ran |= {job_id for job_id, job in cluster.jobs.items() if job.state is JobState.RUNNING}
    assert ran == {job.job_id for job in jobs}


@st.composite
def full(draw: st.DrawFn) -> Cluster:
    """Replicas and batch jobs run on borrowed quota, on all GPUs or all but one, most of them a's;
    others wait, that of d longest, whose share is large. So most have a turn.
    """
    kinds = ("3g.40gb", "1g.10gb")
    nodes = {f"n{i}": {kind: draw(st.integers(1, 3)) for kind in kinds} for i in range(2)}
    places = [(node, kind) for node in nodes for kind in kinds for _ in range(nodes[node][kind])]
    left = draw(st.sets(st.integers(0, 40), max_size=1))
    count = draw(st.integers(1, 2))
    # Slurm puts others where it likes: on a node, too, where two have to be for this one.
    queues = sorted({"d"} | (draw(st.sets(st.sampled_from("abc"))) if count == 1 else set()))
    # Others that wait have no guaranteed quota: they could always start on that.
    owns = {
        name: 0 if name in queues and name != "d" else draw(st.sampled_from((0, 0, 0, 1000, 3500)))
        for name in "abcd"
    }
    jobs: dict[int, JobView] = {}
    batch: set[int] = set()
    for job_id, (node, kind) in enumerate(places, 1):
        if job_id - 1 not in left:
            running = one(job_id, draw(st.sampled_from("aaab")), kind, borrowed=True)
            start = {"state": JobState.RUNNING, "nodes": (node,), "start_s": 10**6 - job_id * 50}
            jobs[job_id] = replace(running, **start)
            batch |= {job_id} if draw(st.integers(0, 6)) == 0 else set()
    for job_id, name in enumerate(queues, 20):
        kind = draw(st.sampled_from(kinds))
        waits = one(job_id, name, kind, count, borrowed=True)
        since_s = 0 if name == "d" else 10**6
        # Slots of those that go for it wait for half a minute more; here it is the first instead.
        first = 5000 if name == "d" else waits.priority
        jobs[job_id] = replace(waits, submit_s=since_s, eligible_s=since_s, priority=first)
    idle = sum(run_cost(there, COSTS_OF) for there in nodes.values()) - sum(owns.values())
    assume(idle >= 0)
    tenants = policy({"lender": draw(st.integers(idle * 3 // 4, idle)), **owns})
    for name in "abcd":
        weights = (2, 3, 4) if name == "d" else (1, 1, 2)
        quota = replace(tenants[name].quota, weight=draw(st.sampled_from(weights)))
        tenants = {**tenants, name: replace(tenants[name], quota=quota)}
    term_s = draw(st.sampled_from((0, 200)))
    return Cluster(tenants, nodes, jobs, turn_s=400_000, term_s=term_s, batch=frozenset(batch))


@settings(max_examples=examples(50, nightly=2000))
@given(full())
def test_a_job_whose_turn_it_is_starts_as_soon_as_others_have_gone(cluster: Cluster) -> None:
    turn = turn_in(cluster.world())
    assume(turn is not None)
    assert turn is not None
    for _ in range(3):
        cluster.round()
    assert cluster.jobs[turn.job.job_id].state is JobState.RUNNING


LAYOUTS = ({"1g.10gb": 7}, {"7g.80gb": 1}, {"3g.40gb": 2}, {"1g.10gb": 3, "3g.40gb": 1})
SHAPES = (("1g.10gb", 1), ("1g.10gb", 2), ("1g.10gb", 4), ("3g.40gb", 1), ("7g.80gb", 1))


@st.composite
def moments(draw: st.DrawFn) -> Cluster:
    """Some rounds after jobs came, guaranteed and borrowed ones; more have come, or have waited for
    their turn.
    """
    nodes = {f"n{i}": dict(draw(st.sampled_from(LAYOUTS))) for i in range(draw(st.integers(1, 3)))}
    left, own = sum(run_cost(there, COSTS_OF) for there in nodes.values()), dict[str, int]()
    names = "abcd"[: draw(st.integers(2, 4))]
    for name in names:
        own[name] = min(left, draw(st.integers(0, 16)) * 500)
        left -= own[name]
    jobs: dict[int, JobView] = {}
    batch: set[int] = set()
    late: set[int] = set()
    for job_id in range(1, draw(st.integers(3, 10))):
        borrowed = draw(st.integers(0, 9)) < 7
        shape = draw(st.sampled_from(SHAPES))
        found = one(job_id, draw(st.sampled_from(names)), *shape, borrowed=borrowed)
        jobs[job_id] = replace(found, submit_s=999_000, eligible_s=999_000)
        batch |= {job_id} if borrowed and draw(st.integers(0, 9)) < 3 else set()
        late |= {job_id} if draw(st.booleans()) else set()
    there = {job_id: job for job_id, job in jobs.items() if job_id not in late}
    cluster = Cluster(policy(own), nodes, there, turn_s=60, batch=frozenset(batch))
    for _ in range(draw(st.integers(1, 6))):
        cluster.round()
    since_s = cluster.now_s
    cluster.jobs |= {n: replace(jobs[n], submit_s=since_s, eligible_s=since_s) for n in late}
    cluster.now_s += draw(st.sampled_from((0, 61, 200)))
    return cluster


@settings(max_examples=examples(30, nightly=6000))
@given(moments())
def test_where_slurm_stays_as_it_is_loans_and_recalls_do(cluster: Cluster) -> None:
    """Also in a turn: who takes back what is its own for it takes it back but once."""
    found = []
    for _ in range(8):
        cluster.lend()
        found.append((cluster.loans, cluster.recalls))
    assert found[-1] == found[-2] == found[-3]


def turn_in(seen: RoundWorld) -> Turn | None:
    policy, look, rules = seen.policy, seen.slurm_view, seen.rules
    waiting = waits(seen, reclaim_input(seen))
    wanted, capacity = (
        demand_of(policy, jobs_by_holder(look.jobs, rules.partitions, rules.costs, {})),
        seen.capacity_millislices,
    )
    return lend_whole_jobs(policy, wanted, waiting, (), capacity=capacity, lately={}).turn


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Cluster, Mapping[int, int], int]:
    """A node full of small batch jobs on borrowed quota, how long each of these runs, and a large
    job of another tenant. Small ones always wait.
    """
    count = draw(st.integers(2, 7))
    owners = "b" * 16
    jobs = {n: one(n, name, "1g.10gb", borrowed=True) for n, name in enumerate(owners, 10)}
    large = one(9 if draw(st.booleans()) else 60, "a", "1g.10gb", count, borrowed=True)
    lasts_s = {n: draw(st.sampled_from((30, 75, 120, 300))) for n in jobs}
    now_s = 1_000_000
    there = {n: replace(job, submit_s=now_s, eligible_s=now_s) for n, job in jobs.items()}
    jobs = {**there, large.job_id: replace(large, submit_s=now_s + 1, eligible_s=now_s + 1)}
    tenants = policy({"lender": 7000, **dict.fromkeys("ab", 0)})
    cluster = Cluster(tenants, {"n": {"1g.10gb": 7}}, jobs, turn_s=120, batch=frozenset(jobs))
    return cluster, lasts_s, large.job_id


@settings(max_examples=examples(30, nightly=800))
@given(crowded())
def test_a_large_job_that_is_due_waits_for_no_more_than_the_longest_run(
    case: tuple[Cluster, Mapping[int, int], int],
) -> None:
    """Whatever smaller ones come and go: these are never done."""
    cluster, lasts_s, large = case
    until_s = cluster.now_s + cluster.turn_s + max(lasts_s.values()) + 4 * ROUND_S
    while cluster.jobs[large].state is not JobState.RUNNING:
        assert cluster.now_s <= until_s
        now_s = cluster.now_s
        for n, job in cluster.jobs.items():
            if job.start_s is not None and now_s - job.start_s >= lasts_s[n]:
                # Another one like it comes.
                back = {"state": JobState.PENDING, "nodes": (), "start_s": None}
                cluster.jobs[n] = replace(job, **back, submit_s=now_s, eligible_s=now_s)
        cluster.round()


@settings(max_examples=examples(50, nightly=2000))
@given(moments(), st.data())
def test_who_finds_its_guaranteed_gpus_free_or_on_loan_starts_within_the_grace(
    cluster: Cluster, data: st.DataObject
) -> None:
    """Also where its quota was lent while other guaranteed jobs held its GPUs."""
    own = [n for n, job in cluster.jobs.items() if job.nodes and is_own(job.qos)]
    for n in data.draw(st.sets(st.sampled_from(own))) if own else ():
        del cluster.jobs[n]
    for _ in range(GRACE_S // ROUND_S + 3):
        cluster.round()
    lent, guaranteed = borrowed(cluster.loans), guaranteed_quota(cluster.policy)
    runs = [job for job in cluster.jobs.values() if job.nodes]
    within_reach = {name: Counter(there) for name, there in cluster.nodes.items()}
    held, on_loan = Counter[str](), Counter[str]()
    for job in runs:
        (held if is_own(job.qos) else on_loan)[job.account] += run_cost(job.gpus, COSTS_OF)
        if is_own(job.qos):
            within_reach[job.nodes[0]].subtract(job.gpus)
    # A tenant's borrowed runs hold its guaranteed quota beyond what is lent to it.
    held += on_loan - lent
    for job in cluster.jobs.values():
        if not job.nodes and is_own(job.qos):
            pays = held[job.account] + run_cost(job.gpus, COSTS_OF) <= guaranteed[job.account]
            fits = any(Counter(job.gpus) <= there for there in within_reach.values())
            assert not (pays and fits)
