"""Property: reclaiming takes the smallest set of replicas, and nothing twice."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.reclaim_world import COSTS, GRACE_S, PARTITIONS, ROUND_S, Cluster, one, policy

from benchmarks.rebalance.worlds import Sizes, world
from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobView, RunOfJob
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.quota.demand import demand_of
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob, jobs_by_holder, shape_of
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Loan
from slicewise.slurm_plugin.rules.reclaim.free_capacity import Capacity
from slicewise.slurm_plugin.rules.reclaim.ilp import Choice
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput, reclaim
from slicewise.slurm_plugin.rules.round.whole_jobs import own_needs

SMALL = Sizes(
    gpus=3, runs=12, tenants=5, wanting=4, gpus_per_node=1, large=0.4, free=0.2, term_s=20_000
)

KIND = "1g.10gb"


@st.composite
def worlds(draw: st.DrawFn, **changes: float) -> ReclaimInput:
    sizes = replace(
        SMALL,
        gpus=draw(st.integers(1, 4)),
        gpus_per_node=draw(st.integers(1, 2)),
        wanting=draw(st.integers(1, 5)),
        layouts=draw(st.integers(1, 4)),
        free=draw(st.sampled_from((0.0, 0.1, 0.4))),
        **changes,  # type: ignore[arg-type]
    )
    return world(draw(st.integers(0, 10**6)), sizes)


def only_replicas(reclaim_input: ReclaimInput) -> ReclaimInput:
    return replace(
        reclaim_input, running=tuple(run for run in reclaim_input.running if run.is_replica)
    )


def only_batch(reclaim_input: ReclaimInput) -> ReclaimInput:
    """All runs are batch jobs that may be requeued."""
    running = (replace(one, is_replica=False, may_requeue=True) for one in reclaim_input.running)
    return replace(reclaim_input, running=tuple(running))


def may_go(reclaim_input: ReclaimInput) -> Sequence[Running]:
    """Runs that Slicewise may end, beyond their term."""
    return [
        run
        for run in reclaim_input.running
        if run.is_replica or run.may_requeue
        if reclaim_input.now_s - run.start_s >= reclaim_input.term_s
    ]


def fewest(reclaim_input: ReclaimInput) -> float | None:
    """Millislices that must go so that all have room, by HiGHS; None if that can't be."""
    runs = may_go(reclaim_input)
    nodes = sorted(reclaim_input.free)
    kinds = sorted({kind for job in reclaim_input.wanting for kind, _ in job.shape})
    rows: list[float] = []
    entries: dict[tuple[str, object], dict[int, float]] = {("run", r.job_id): {} for r in runs}
    entries |= {("on", pair): {} for pair in product(range(len(reclaim_input.wanting)), nodes)}

    def row(least: float, amounts: Mapping[tuple[str, object], float]) -> None:
        for column, amount in amounts.items():
            entries[column][len(rows)] = amount
        rows.append(least)

    for run in runs:
        row(-1, {("run", run.job_id): -1})
    for column in [column for column in entries if column[0] == "on"]:
        row(-1, {column: -1})
    for nth, job in enumerate(reclaim_input.wanting):
        row(job.nodes, {("on", (nth, node)): 1 for node in nodes})
    for node, kind in product(nodes, kinds):
        gives = {("run", r.job_id): r.instances.get(node, {}).get(kind, 0) for r in runs}
        takes = {
            ("on", (nth, node)): -dict(job.shape).get(kind, 0)
            for nth, job in enumerate(reclaim_input.wanting)
        }
        row(-reclaim_input.free[node].get(kind, 0), gives | takes)
    for tenant in {run.tenant for run in runs}:
        own = {("run", r.job_id): -r.cost_millislices for r in runs if r.tenant == tenant}
        row(-reclaim_input.above_nominal_millislices.get(tenant, 0), own)
    program = LinearProgram(rows)
    costs = {("run", run.job_id): run.cost_millislices for run in runs}
    for column, amounts in entries.items():
        program.add(costs.get(column, 0), amounts, whole=True)
    try:
        return program.solve().cost
    except OutsideError:
        return None


def cost(reclaim_input: ReclaimInput, victims: Collection[RunOfJob]) -> int:
    return sum(run.cost_millislices for run in reclaim_input.running if run.run in victims)


def without(reclaim_input: ReclaimInput, gone: Collection[RunOfJob]) -> ReclaimInput:
    """Once they are gone."""
    free = {node: Counter(there) for node, there in reclaim_input.free.items()}
    above = Counter(reclaim_input.above_nominal_millislices)
    for run in reclaim_input.running:
        if run.run in gone:
            above[run.tenant] -= run.cost_millislices
            for node, there in run.instances.items():
                free[node].update(there)
    left = tuple(run for run in reclaim_input.running if run.run not in gone)
    return replace(reclaim_input, running=left, free=free, above_nominal_millislices=above)


@settings(max_examples=examples(50, nightly=6000))
@given(worlds())
def test_where_replicas_suffice_the_fewest_millislices_go(reclaim_input: ReclaimInput) -> None:
    least = fewest(reclaim_input)
    found = reclaim(reclaim_input)
    if least is None:
        assert found.missing
    else:
        assert not found.missing
        assert cost(reclaim_input, found.victims) == round(least)


@settings(max_examples=examples(50, nightly=6000))
@given(worlds().map(only_batch))
def test_of_batch_jobs_the_fewest_millislices_go(reclaim_input: ReclaimInput) -> None:
    least = fewest(reclaim_input)
    found = reclaim(reclaim_input)
    assert not found.victims
    if least is None:
        assert found.missing
    else:
        assert not found.missing
        assert cost(reclaim_input, found.requeues) == round(least)
    going = replace(reclaim_input, leaving=frozenset(found.requeues))
    assert not reclaim(going).requeues


@settings(max_examples=examples(50, nightly=3000))
@given(worlds().map(only_replicas))
def test_nobody_goes_without_need(reclaim_input: ReclaimInput) -> None:
    found = reclaim(reclaim_input)
    served = tuple(job for job in reclaim_input.wanting if job.job_id not in found.missing)
    for spared in found.victims:
        after = without(reclaim_input, found.victims.keys() - {spared})
        assert fewest(replace(after, running=(), wanting=served)) is None


@settings(max_examples=examples(50, nightly=3000))
@given(worlds())
def test_nobody_goes_in_its_term_nor_brings_its_tenant_below_its_own_part(
    reclaim_input: ReclaimInput,
) -> None:
    victims = reclaim(reclaim_input).victims
    assert victims.keys() <= {run.run for run in may_go(reclaim_input)}
    for tenant, above in reclaim_input.above_nominal_millislices.items():
        own = [run for run in reclaim_input.running if run.tenant == tenant]
        assert cost(replace(reclaim_input, running=tuple(own)), victims) <= above


@settings(max_examples=examples(50, nightly=3000))
@given(worlds().map(only_replicas))
def test_of_alike_replicas_of_a_tenant_the_youngest_go(reclaim_input: ReclaimInput) -> None:
    victims = reclaim(reclaim_input).victims
    alike = defaultdict(list)
    for run in sorted(may_go(reclaim_input), key=lambda run: (-run.start_s, run.job_id)):
        alike[run.tenant, str(run.instances)].append(run.run in victims)
    assert all(gone == sorted(gone, reverse=True) for gone in alike.values())


@settings(max_examples=examples(50, nightly=3000))
@given(worlds(), st.data())
def test_asked_again_while_they_go_nothing_changes(
    reclaim_input: ReclaimInput, data: st.DataObject
) -> None:
    found = reclaim(reclaim_input)
    gone = data.draw(st.sets(st.sampled_from(sorted(found.victims)))) if found.victims else set()
    going = found.victims.keys() - gone
    again = reclaim(replace(without(reclaim_input, gone), leaving=frozenset(going)))
    assert again.victims.keys() == going
    if not any("batch" in why for why in found.missing.values()):
        assert again.missing.keys() == found.missing.keys()


@settings(max_examples=examples(40, nightly=2000))
@given(worlds().map(only_replicas))
def test_once_they_are_gone_all_that_they_went_for_are_ready(reclaim_input: ReclaimInput) -> None:
    found = reclaim(reclaim_input)
    after = reclaim(without(reclaim_input, found.victims.keys()))
    ready = Counter[str]()
    for job in reclaim_input.wanting:
        ready[job.tenant] += job.cost_millislices * (job.job_id not in found.missing)
    assert not after.victims
    assert after.ready == ready


@st.composite
def rooms(draw: st.DrawFn) -> tuple[Capacity, list[WaitingJob]]:
    """Nodes with runs of one to three instances of two types, and free ones; and jobs."""
    nodes = [f"n{i}" for i in range(draw(st.integers(3, 4)))]
    kinds = st.sampled_from(["1g.10gb", "2g.20gb"])
    runs = []
    for job_id in range(draw(st.integers(1, 10))):
        kind, count = draw(kinds), draw(st.integers(1, 3))
        node, cost = draw(st.sampled_from(nodes)), 1000 * count * int(kind[0])
        there = {kind: count}
        runs.append(Running(job_id, "nlp", cost, None, True, {node: there}))
    counts = st.dictionaries(kinds, st.integers(1, 3), min_size=1)
    needs = [
        WaitingJob(key, "vision", 0, shape_of(draw(counts)), draw(st.integers(1, 2)))
        for key in range(draw(st.integers(1, 2)))
    ]
    few = st.dictionaries(kinds, st.integers(1, 4), min_size=1)
    free = {node: draw(few) for node in nodes}
    return Capacity(free, runs, {"nlp": 10**6}, {}, {}), needs


@settings(max_examples=examples(50, nightly=3000))
@given(rooms())
def test_each_job_gets_as_many_nodes_as_it_needs_and_different_ones(
    case: tuple[Capacity, list[WaitingJob]],
) -> None:
    room, needs = case
    found = Choice(room, needs).smallest(None)
    for need in needs if found is not None else ():
        if not need.is_single:
            nodes = found.places[need.key]
            assert len(nodes) == len(set(nodes)) == need.nodes


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[JobView]]:
    """A replica for each instance: all that lies idle is lent; and jobs that come to a lender."""
    layouts = ({"1g.10gb": 7}, {"3g.40gb": 2}, {"1g.10gb": 3, "3g.40gb": 1})
    nodes = {f"n{i}": draw(st.sampled_from(layouts)) for i in range(draw(st.integers(1, 3)))}
    kinds = [kind for there in nodes.values() for kind, n in there.items() for _ in range(n)]
    total = sum(COSTS[kind] for kind in kinds)
    most = (total, total // 4, total // 4)
    parts = [draw(st.integers(0, amount // 1000)) * 1000 for amount in most]
    parts[0] = min(parts[0], total - parts[1] - parts[2])

    def some(accounts: str, first: int, of: list[str], *, borrowed: bool) -> list[JobView]:
        account = st.sampled_from(accounts)
        count = st.just(1) if borrowed else st.sampled_from((1, 1, 2))
        return [
            one(first + i, draw(account), kind, draw(count), borrowed=borrowed)
            for i, kind in enumerate(of)
        ]

    few = st.lists(st.sampled_from(kinds), max_size=3)
    there = some("bc", 100, draw(few), borrowed=False)
    there += some("bc", 200, draw(st.permutations(kinds)), borrowed=True)
    nominal = dict(zip("abc", parts, strict=True))
    cluster = Cluster(policy(nominal), nodes, {each.job_id: each for each in there})
    come = st.lists(st.sampled_from(kinds), min_size=1, max_size=8)
    return cluster, some("aab", 300, draw(come), borrowed=False)


@settings(max_examples=examples(30, nightly=1200))
@given(clusters())
def test_with_the_same_demand_nothing_goes_to_and_fro(case: tuple[Cluster, list[JobView]]) -> None:
    cluster, come = case
    for _ in range(8):
        cluster.round()
    assert not any(cluster.evictions[1:])
    before = lent(cluster.loans)
    cluster.jobs |= {each.job_id: each for each in come}
    cluster.round()
    after = lent(cluster.loans)
    seen, own = [], guaranteed_quota(cluster.policy)
    for _ in range(12):
        there = jobs_by_holder(cluster.jobs.values(), PARTITIONS, COSTS, {})
        wanted = demand_of(cluster.policy, there)
        needs = own_needs(cluster.policy, wanted, there.for_loans)
        cluster.round()
        seen.append(cluster.loans)
        # Borrowers may share what is left again, but what a lender took back stays with it, as far
        # as that still starts something of its own.
        left = {name: own[name] - lent(cluster.loans)[name] for name in before - after}
        assert all(left[name] >= min(own[name], needs[name]) for name in left)
    assert all(now == seen[-1] for now in seen[-6:])
    assert not any(cluster.evictions[-6:])
    assert all(times == 1 for times in cluster.evicted.values())


@st.composite
def streams(draw: st.DrawFn) -> tuple[Cluster, list[list[JobView]]]:
    """One node with replicas that no order ends; and jobs that come to two lenders round by round,
    no more than fit into their guaranteed quotas.
    """
    total = draw(st.integers(4, 14))
    left = {"a": draw(st.integers(2, total - 1))}
    left["b"] = total - left["a"]
    nominal = {name: 1000 * count for name, count in left.items()}
    borrowers = draw(st.lists(st.sampled_from("cd"), min_size=1, max_size=total + 4))
    jobs = {200 + i: one(200 + i, who, KIND, borrowed=True) for i, who in enumerate(borrowers)}
    tenants = policy({**nominal, "c": 0, "d": 0})
    cluster = Cluster(tenants, {"n": {KIND: total}}, jobs, drains=False)
    rounds: list[list[JobView]] = []
    for first in range(300, 1500, 100):
        account, count = draw(st.sampled_from("ab")), draw(st.integers(0, 3))
        count = min(count, left[account])
        left[account] -= count
        rounds.append([one(first, account, KIND, count)] if count else [])
    return cluster, rounds


@settings(max_examples=examples(40, nightly=2000))
@given(streams())
def test_no_job_within_its_tenant_s_own_part_waits_longer_than_the_grace(
    case: tuple[Cluster, list[list[JobView]]],
) -> None:
    cluster, rounds = case
    cluster.round()
    came_s: dict[int, int] = {}
    for jobs in rounds + [[]] * (GRACE_S // ROUND_S + 1):
        for job in jobs:
            now_s = came_s[job.job_id] = cluster.now_s
            cluster.jobs[job.job_id] = replace(job, submit_s=now_s, eligible_s=now_s)
        cluster.round()
    starts_s = {job_id: cluster.jobs[job_id].start_s for job_id in came_s}
    waits_s = {job_id: (starts_s[job_id] or 10**9) - at_s for job_id, at_s in came_s.items()}
    assert {job_id: wait_s for job_id, wait_s in waits_s.items() if wait_s > GRACE_S} == {}


def lent(loans: Iterable[Loan]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for loan in loans:
        sums[loan.lender] += loan.amount_millislices
    return sums
