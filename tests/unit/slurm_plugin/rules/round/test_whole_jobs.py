"""Tests loans of whole jobs, where fair shares alone would start nothing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders.ledger_parts import ledger_view_of
from builders.nodes import a_node
from stand_ins.reclaim_world import COSTS, GRACE_S, PARTITIONS, ROUND_S, Cluster, one, policy
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import SHAPES_NODE, JobState, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.calendar import Moment, Window, WindowKind
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy
from slicewise.slurm_plugin.rules.reclaim.recalls import meanwhile
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.turns import Turn, reclaim_for, runs_to_end
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput, reclaim
from slicewise.slurm_plugin.rules.round import reclaim_inputs
from slicewise.slurm_plugin.rules.round.whole_jobs import (
    Waits,
    lend_whole_jobs,
    own_needs,
    waits,
    whose_turn,
)
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView, world

NOW_S, TURN_S = 10_000, 1800
SMALL, LARGE = (("1g.10gb", 1),), (("3g.40gb", 1),)
OWNERS = policy({"a": 7000, "b": 7000})


def wait(key: int, shape: tuple[tuple[str, int], ...] = LARGE, **changes: Any) -> WaitingJob:
    cost = sum(COSTS[kind] * count for kind, count in shape)
    return WaitingJob(key, "", cost, shape, since_s=NOW_S - 60)._replace(**changes)


def waiting(free: Mapping[str, int], *runs: Running, **queues: Any) -> Waits:
    """``runs`` are on borrowed quota, and all that is held beyond guaranteed quotas."""
    above: Counter[str] = Counter()
    for run in runs:
        above[run.tenant] += run.cost_millislices
    there = replace(reclaim_input(*runs), free={"n": free}, above_nominal_millislices=above)
    theirs = {name: [job._replace(tenant=name) for job in jobs] for name, jobs in queues.items()}
    return Waits(theirs, {"n": free}, there, TURN_S)


def turn_of(tenant: str, of: WaitingJob, *nodes: str, **quota: int) -> Turn:
    return Turn(of._replace(tenant=tenant), nodes, quota)


def lent(
    tenants: Policy,
    there: Waits,
    held: Mapping[str, int] | None = None,
    current: tuple[Loan, ...] = (),
) -> tuple[Mapping[str, int], Turn | None]:
    demand = dict(held or {})
    for name, queue in there.queues.items():
        demand[name] = demand.get(name, 0) + sum(one.total_millislices for one in queue)
    found = lend_whole_jobs(tenants, demand, there, current, capacity=10**6, lately={})
    return {loan.borrower: loan.amount_millislices for loan in found.loans}, found.turn


def test_of_two_that_wait_for_the_only_free_instance_one_starts():
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    there = waiting({"3g.40gb": 1}, a=[wait(1)], b=[wait(2, since_s=NOW_S - 90)])
    assert lent(tenants, there) == ({"b": 3500}, None), "it has waited longer"


def test_who_waits_for_a_type_of_which_nothing_is_free_holds_no_share():
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    there = waiting({"1g.10gb": 3}, a=[wait(1)], b=[wait(2, SMALL, tasks=3)])
    assert lent(tenants, there)[0] == {"b": 3000}


def test_quota_that_nobody_can_start_on_goes_to_who_waits_for_gpus():
    """Slurm says then that the job waits for GPUs, and they are repartitioned for it."""
    tenants = policy({"lender": 7000, "a": 0, "b": 0})
    there = waiting({"1g.10gb": 1}, a=[wait(1)], b=[wait(2, SMALL)])
    assert lent(tenants, there)[0] == {"a": 3500, "b": 1000}


def test_who_slurm_does_not_start_holds_no_loan_on_which_others_could():
    """Its user has named a node on which nothing is free: it would hold the loan for nothing."""
    tenants = policy({"lender": 4000, "a": 0, "b": 0})
    pinned = wait(1, SMALL, tasks=5, would_start=False, since_s=NOW_S - TURN_S - 60)
    there = waiting({"1g.10gb": 7}, a=[pinned], b=[wait(2, SMALL, tasks=3)])
    assert lent(tenants, there) == ({"b": 3000, "a": 1000}, None), "the rest may wait for GPUs"
    both = waiting({"1g.10gb": 7}, a=[pinned, wait(3, SMALL)], b=[wait(2, SMALL, tasks=3)])
    assert lent(tenants, both)[0] == {"a": 1000, "b": 3000}


def test_a_smaller_job_starts_where_the_first_of_its_tenant_can_not():
    tenants = policy({"lender": 2000, "a": 0})
    there = waiting({"1g.10gb": 7, "3g.40gb": 1}, a=[wait(1), wait(2, SMALL, tasks=4)])
    assert lent(tenants, there)[0] == {"a": 2000}


WHOLE = (("7g.80gb", 1),)


def test_of_two_whose_own_parts_are_too_small_one_starts():
    """Together they are enough for one whole GPU; alone neither starts, for ever."""
    tenants = policy({"a": 3000, "b": 4000})
    there = waiting(
        {"7g.80gb": 1}, a=[wait(1, WHOLE, since_s=NOW_S - 90)], b=[wait(2, WHOLE, since_s=NOW_S)]
    )
    assert lent(tenants, there) == ({"a": 4000}, None), "it has waited longer"


def test_an_own_part_that_starts_no_job_of_its_tenant_is_lent():
    """The part that a smaller job of the tenant fits into is not."""
    tenants = policy({"a": 3000, "b": 0})
    there = waiting({"1g.10gb": 7}, a=[wait(1, WHOLE)], b=[wait(2, SMALL, tasks=7)])
    assert lent(tenants, there)[0] == {"b": 3000}
    both = replace(there, queues={**there.queues, "a": [wait(1, WHOLE), wait(3, SMALL)]})
    assert lent(tenants, both)[0] == {"b": 2000}


def test_who_has_lent_what_was_too_small_may_borrow_yet():
    """It takes nothing back, as what it has left is enough for all that fits."""
    tenants, loan = policy({"a": 3000, "b": 0, "c": 7000}), Loan("a", "b", Millislices(3000))
    there = waiting({"7g.80gb": 1}, a=[wait(1, WHOLE)])
    demand = {"a": 7000, "b": 3000}
    needs = own_needs(tenants, demand, there.queues)
    assert needs == {"a": 0, "b": 3000, "c": 0}
    assert meanwhile(tenants, demand, needs, (loan,), (), guaranteed=("a",)) == demand
    # Another 500 of its own jobs wait for what it has lent.
    more = {**demand, "a": 7500}
    short = own_needs(tenants, more, there.queues)
    assert meanwhile(tenants, more, short, (loan,), (), guaranteed=("a",))["a"] == 3000
    assert meanwhile(tenants, more, short, (loan,), (), guaranteed=()) == more


def test_who_waits_for_a_node_that_is_away_keeps_no_quota():
    """Each has a job for the only whole GPU, and one of its own that names a drained node. Neither
    guaranteed quota pays for the whole GPU, so none would start, for ever.
    """
    away = "ReqNodeNotAvail, UnavailableNodes:n9"
    own = [replace(one(n, name, "1g.10gb"), reason=away) for n, name in ((1, "a"), (2, "b"))]
    whole = [one(n, name, "7g.80gb", borrowed=True) for n, name in ((3, "a"), (4, "b"))]
    jobs = {job.job_id: job for job in (*own, *whole)}
    cluster = Cluster(policy({"a": 3500, "b": 3500}), {"n": {"7g.80gb": 1}}, jobs)
    cluster.round()
    assert sum(job.state is JobState.RUNNING for job in cluster.jobs.values()) == 1


def test_who_waits_for_a_loan_and_finds_no_gpu_keeps_no_quota():
    """It fits into its own guaranteed quota, on which another could start meanwhile."""
    jobs = one(1, "a", "1g.10gb", 2, borrowed=True), one(2, "b", "3g.40gb", borrowed=True)
    nodes = {"n": {"3g.40gb": 1, "1g.10gb": 1}}
    cluster = Cluster(policy({"a": 3000, "b": 500}), nodes, {job.job_id: job for job in jobs})
    cluster.round()
    assert cluster.jobs[2].state is JobState.RUNNING


@pytest.mark.parametrize("is_batch", [True, False])
def test_quota_of_a_guaranteed_job_whose_gpus_are_busy_starts_another_meanwhile(is_batch: bool):
    """c's own job holds the only large instance, for which a's own job waits. Once it has ended, a
    has its quota back within the grace, and b's run goes on.
    """
    held = replace(one(1, "c", "3g.40gb"), state=JobState.RUNNING, nodes=("n0",), start_s=0)
    waits_for_it, whole = one(2, "a", "3g.40gb"), one(3, "b", "7g.80gb", borrowed=True)
    cluster = Cluster(
        policy({"a": 3500, "b": 3500, "c": 3500}),
        {"n0": {"3g.40gb": 1}, "n1": {"7g.80gb": 1}},
        {1: held, 2: waits_for_it, 3: whole},
        batch=frozenset({3} if is_batch else ()),
    )
    for _ in range(3):
        cluster.round()
    assert cluster.jobs[3].state is JobState.RUNNING
    assert cluster.loans == (Loan("a", "b", Millislices(3500)),), "and it stays so"
    del cluster.jobs[1]
    for _ in range(GRACE_S // ROUND_S + 1):
        cluster.round()
    assert cluster.jobs[2].state is JobState.RUNNING
    assert not is_batch or cluster.jobs[3].state is JobState.RUNNING


def test_quota_is_kept_for_a_guaranteed_job_whose_gpus_are_on_loan_or_free_soon():
    """What is on loan comes back; so does the quota for it."""
    on_loan = replace(runs(1, "b", "3g.40gb"), nodes=("n0",))
    jobs = {1: on_loan, 2: one(2, "a", "3g.40gb"), 3: one(3, "b", "7g.80gb", borrowed=True)}
    nodes = {"n0": {"3g.40gb": 1}, "n1": {"7g.80gb": 1}}
    cluster = Cluster(policy({"a": 3500, "b": 7000}), nodes, jobs)
    for _ in range(GRACE_S // ROUND_S + 2):
        cluster.round()
    assert cluster.jobs[2].state is JobState.RUNNING


def test_quota_is_kept_for_a_busy_job_where_slurm_leaves_loans_alone_for_longer_than_the_grace():
    held = replace(one(1, "c", "3g.40gb"), state=JobState.RUNNING, nodes=("n0",), start_s=0)
    jobs = {1: held, 2: one(2, "a", "3g.40gb"), 3: one(3, "b", "7g.80gb", borrowed=True)}
    nodes = {"n0": {"3g.40gb": 1}, "n1": {"7g.80gb": 1}}
    tenants = policy({"a": 3500, "b": 3500, "c": 3500})
    cluster = Cluster(tenants, nodes, jobs, term_s=GRACE_S + 1)
    cluster.round()
    assert cluster.jobs[3].state is JobState.PENDING


def test_of_an_array_only_tasks_whose_gpus_are_busy_keep_no_quota():
    tasks = job(
        0,
        job_id=2,
        array_job_id=2,
        task_index=None,
        untouched=frozenset({0, 1, 2}),
        account="a",
        qos="slicewise_a",
        reason="Resources",
        held=False,
        priority=9,
        tres={"gres/gpu:1g.10gb": "1", "node": "1"},
    )
    node = a_node("n", gpus={"1g.10gb": 3}, gpus_allotted={"1g.10gb": 1}, partitions=PARTITIONS)
    ledger_view = ledger_view_of(Moment(NOW_S, 0, 0), tenants=policy({"a": 7000}))
    rules = QuotaRules(PARTITIONS, COSTS, {}, {}, grace_s=0, term_s=0, turn_s=TURN_S)
    inputs = world(ledger_view, SlurmView((tasks,), (node,), ()), rules)
    assert inputs.busy == {"a": 1000}
    (left,) = inputs.startable.others
    assert left.untouched == {0, 1}


def test_a_job_on_the_guarantee_that_a_busy_one_leaves_gets_no_loan_for_it():
    """No GPU is there for either, and with both the tenant would be beyond its guaranteed quota."""
    jobs = one(1, "b", "3g.40gb"), one(2, "b", "1g.10gb", 2), one(3, "b", "7g.80gb", borrowed=True)
    tenants = policy({"b": 4000, "c": 2500, "d": 500})
    cluster = Cluster(tenants, {"n": {"7g.80gb": 1}}, {job.job_id: job for job in jobs})
    for _ in range(3):
        cluster.round()
    assert cluster.loans == ()


def test_for_who_takes_its_quota_back_without_a_guarantee_no_replica_goes():
    """A GPU is free for it, and only quota is lacking: it comes at the end of the grace."""
    tenants = tenants_of({"a": 3500, "b": 0, "c": 3500}, {}, keeps="c")
    loan = Loan("a", "b", Millislices(3500))
    jobs = {1: replace(runs(1, "b", "3g.40gb"), nodes=("n",))}
    cluster = Cluster(tenants, {"n": {"3g.40gb": 2}}, jobs, loans=(loan,))
    cluster.round()
    now = {"submit_s": cluster.now_s, "eligible_s": cluster.now_s}
    cluster.jobs[2] = replace(one(2, "a", "3g.40gb", borrowed=True), **now)
    for _ in range(6):
        cluster.round()
    assert {job.state for job in cluster.jobs.values()} == {JobState.RUNNING}
    assert not any(cluster.evictions)


@pytest.mark.parametrize("own", [("7g.80gb",), ("1g.10gb", "1g.10gb")])
def test_what_is_too_large_for_the_own_part_keeps_nothing_from_a_loan(own: tuple[str, ...]):
    """The own QOS has no job that may start on what is left there: a loan counts on that."""
    count = 3 - len(own)
    guaranteed = [one(n, "a", kind, 1 if count > 1 else 2) for n, kind in enumerate(own)]
    jobs = [*guaranteed, one(9, "a", "7g.80gb", borrowed=True)]
    nodes = {"n1": {"1g.10gb": 7}, "n2": {"7g.80gb": 1}}
    tenants = policy({"a": 3000, "c": 11000})
    cluster = Cluster(tenants, nodes, {job.job_id: job for job in jobs})
    for _ in range(4):
        cluster.round()
    assert cluster.jobs[9].state is JobState.RUNNING


@pytest.mark.parametrize(
    ("own", "kinds"),
    [
        (5000, ["1g.10gb"] * 2 + ["3g.40gb"]),
        (4000, ["3g.40gb", "3g.40gb", "1g.10gb"]),
    ],
)
def test_who_has_begun_on_its_own_part_goes_first_and_nobody_goes_for_it(
    own: int, kinds: list[str]
):
    """Others began on the rest in each other round, and had to go in those between."""
    mine = [one(210 + n, "c", kind, borrowed=True) for n, kind in enumerate(kinds)]
    others = [one(200 + n, "b", "1g.10gb", borrowed=True) for n in range(5)]
    nodes = {"n0": {"1g.10gb": 7}, "n1": {"3g.40gb": 2}}
    tenants = policy({"a": 1000, "b": 0, "c": own})
    cluster = Cluster(tenants, nodes, {job.job_id: job for job in (*others, *mine)})
    for _ in range(8):
        cluster.round()
    assert not any(cluster.evictions[1:])


def test_a_turn_for_which_its_tenant_takes_back_its_own_part_stays():
    """It was lost in the next round, as who takes back borrowed nothing, and came again with the
    one after.
    """
    there = [
        one(1, "c", "1g.10gb", 2, borrowed=True),
        one(2, "b", "1g.10gb", 4, borrowed=True),
        one(3, "b", "3g.40gb", borrowed=True),
        one(4, "a", "1g.10gb", borrowed=True),
        one(7, "c", "1g.10gb", 2, borrowed=True),
    ]
    come = [
        one(5, "b", "1g.10gb"),
        one(6, "a", "1g.10gb", 4, borrowed=True),
        one(8, "c", "1g.10gb", borrowed=True),
    ]
    nodes = {"n0": {"1g.10gb": 3, "3g.40gb": 1}, "n1": {"1g.10gb": 7}, "n2": {"3g.40gb": 2}}
    tenants, jobs = policy({"a": 4000, "b": 0, "c": 6000}), {job.job_id: job for job in there}
    cluster = Cluster(tenants, nodes, jobs, turn_s=60, batch=frozenset({1}), drains=False)
    for _ in range(3):
        cluster.round()
    now = {"submit_s": cluster.now_s, "eligible_s": cluster.now_s}
    cluster.jobs |= {job.job_id: replace(job, **now) for job in come}
    seen = []
    for _ in range(12):
        cluster.round()
        seen.append(cluster.loans)
    assert seen[0] != seen[-1], "it has its turn"
    assert len(set(seen[-7:])) == 1


@pytest.mark.parametrize("waits", [False, True])
def test_of_a_loan_that_a_rule_cuts_replicas_go_whatever_large_job_the_lender_has(waits: bool):
    jobs = {n: one(n, "b", "1g.10gb", borrowed=True) for n in (1, 2, 3)}
    cluster = Cluster(policy({"a": 3000, "b": 0}), {"n1": {"1g.10gb": 7}}, jobs)
    cluster.jobs |= {9: one(9, "a", "1g.10gb", 7, borrowed=True)} if waits else {}
    cluster.round()
    cluster.round()
    assert cluster.limits()["slicewise_b_borrowed"] == 3000
    quota = replace(cluster.policy["a"].quota, lending_limit_millislices=Millislices(0))
    cluster.policy = {**cluster.policy, "a": replace(cluster.policy["a"], quota=quota)}
    for _ in range(3):
        cluster.round()
    assert sum(cluster.evictions) == 3


def test_who_has_lent_what_was_too_small_starts_once_there_is_enough():
    a, b = one(1, "a", "7g.80gb", borrowed=True), one(2, "b", "1g.10gb", 3, borrowed=True)
    runs = replace(b, state=JobState.RUNNING, nodes=("n1",), start_s=0)
    cluster = Cluster(
        policy({"a": 3000, "b": 0, "c": 7000}),
        {"n0": {"7g.80gb": 1}, "n1": {"1g.10gb": 7}},
        {1: a, 2: runs},
        loans=(Loan("a", "b", Millislices(3000)),),
    )
    cluster.round()
    assert {each.state for each in cluster.jobs.values()} == {JobState.RUNNING}


def test_tasks_of_arrays_go_in_turns():
    tenants = policy({"lender": 4000, "a": 0, "b": 0})
    there = waiting({"1g.10gb": 7}, a=[wait(1, SMALL, tasks=9)], b=[wait(2, SMALL, tasks=9)])
    assert lent(tenants, there)[0] == {"a": 2000, "b": 2000}


def test_what_runs_keeps_what_nobody_else_can_start_on():
    """Half of it would be the other's share."""
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    there = waiting({}, running(8, "a"), b=[wait(2)])
    assert lent(tenants, there, {"a": 3500}) == ({"a": 3500}, None)


def test_who_has_more_than_its_share_gets_what_nobody_else_can_start_on():
    """The other waits for GPUs that are nowhere; its share is no reason to leave slices idle. Where
    a run has to go, none of its tenant starts in place of it.
    """
    tenants = policy({"lender": 7000, "a": 0, "b": 0})
    runs = [running(8, "a", instances={"n": {"1g.10gb": 1}}, cost_millislices=5000)]
    there = waiting({"1g.10gb": 7}, *runs, a=[wait(1, SMALL, tasks=4)], b=[wait(2)])
    assert lent(tenants, there, {"a": 5000}) == ({"a": 7000}, None)
    small = replace(there, queues={**there.queues, "b": [wait(2, SMALL, tasks=3)]})
    assert lent(tenants, small, {"a": 5000})[0] == {"a": 4000, "b": 3000}


@pytest.mark.parametrize(
    ("now_s", "waited_s", "loans"),
    [
        (NOW_S, 60, {"a": 7000}),
        (NOW_S, TURN_S, {"a": 5000, "b": 3500}),
        (NOW_S + TURN_S, 2 * TURN_S, {"a": 7000}),
    ],
)
def test_what_a_tenant_beyond_its_share_can_start_waits_for_plans_in_every_second_window(
    now_s: int, waited_s: int, loans: Mapping[str, int]
):
    """The other waits for GPUs that have to be cut first. It is served in bounded time, and keeps
    nothing idle for ever.
    """
    tenants = policy({"lender": 8500, "a": 0, "b": 0})
    runs = [running(8, "a", instances={"n": {"1g.10gb": 1}}, cost_millislices=5000)]
    late = wait(2, since_s=now_s - waited_s, tasks=2)
    there = waiting({"1g.10gb": 2}, *runs, a=[wait(1, SMALL, tasks=2)], b=[late])
    at = replace(there, reclaim_input=replace(there.reclaim_input, now_s=now_s))
    assert lent(tenants, at, {"a": 5000})[0] == loans


def test_nothing_starts_in_place_of_a_run_that_goes_for_a_turn():
    tenants = policy({"lender": 9000, "a": 0, "b": 0, "c": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    runs = running(8, "a"), running(9, "a")
    there = waiting({"1g.10gb": 1}, *runs, a=[wait(1, SMALL)], b=[late], c=[wait(3, WHOLE)])
    loans, turn = lent(tenants, there, {"a": 7000})
    assert turn == turn_of("b", late)
    assert loans == {"a": 3500, "b": 3500}, "there is room for one more"


def test_who_has_waited_for_its_turn_keeps_its_share():
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    there = waiting({}, running(8, "a"), b=[late])
    assert lent(tenants, there, {"a": 3500}) == ({"a": 1750, "b": 1750}, turn_of("b", late, a=3500))


def test_no_turn_without_gpus_within_reach_or_quota_that_others_borrow():
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    small = running(8, "a", instances={"n": {"1g.10gb": 7}})
    assert lent(tenants, waiting({}, small, b=[late]), {"a": 3500})[1] is None
    large = late._replace(cost_millislices=7000)
    assert lent(tenants, waiting({}, running(8, "a"), b=[large]), {"a": 3500})[1] is None


def test_whose_turn_it_is_starts_before_who_has_less():
    tenants = policy({"lender": 4500, "a": 0, "b": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    there = waiting({"3g.40gb": 1}, a=[wait(1, since_s=NOW_S - 100)], b=[late])
    assert lent(tenants, there, {"b": 1000}) == ({"b": 4500}, None)
    soon = replace(there, queues={**there.queues, "b": [wait(2)]})
    assert lent(tenants, soon, {"b": 1000}) == ({"a": 3500, "b": 1000}, None)


def test_a_turn_that_only_batch_jobs_could_serve_is_the_next_one_s():
    tenants = policy({"lender": 7000, "a": 0, "c": 0, "b": 0, "d": 0})
    first, second = wait(2, since_s=0), wait(4, (("1g.10gb", 3),), since_s=NOW_S - TURN_S)
    held = {"a": 3500, "c": 3500}
    batch = running(8, "a", is_replica=False)
    small = running(9, "c", "1g.10gb", cost_millislices=3500, instances={"n": {"1g.10gb": 3}})
    queues = {"b": [first], "d": [second]}
    only_batch = waiting({}, batch, replace(small, is_replica=False), **queues)
    assert lent(tenants, only_batch, held)[1] is None
    assert lent(tenants, waiting({}, batch, small, **queues), held)[1] == turn_of("d", second, "n")
    within = waiting({}, batch, running(7, "b"), **queues)
    assert lent(tenants, within, held)[1] is None, "b is not beyond its share"


@pytest.mark.parametrize("held", [1, 2])
def test_a_place_beyond_one_share_goes_to_who_is_below_its_own_and_to_nobody_else(held: int):
    """Its batch jobs run to their end, and then one of the other's starts."""
    tenants = policy({"lender": 4000, "a": 0, "b": 0})
    names = ["a"] * 3 + ["b"] * held
    runs = tuple(running(n, of, "1g.10gb", is_replica=False) for n, of in enumerate(names, 7))
    there = replace(waiting({}, *runs, b=[wait(2, SMALL, tasks=2)]), batch=runs)
    assert lent(tenants, there, {"a": 3000, "b": 1000 * held})[0] == {"a": 2000, "b": 2000}


def test_who_has_had_its_turn_without_a_start_lets_the_others_have_theirs():
    tenants = policy({"lender": 7000, "a": 0, "b": 0, "c": 0})
    b, c = wait(2, since_s=NOW_S - 2 * TURN_S), wait(3, since_s=NOW_S - TURN_S - 60)
    there = waiting({}, running(8, "a"), running(9, "a"), b=[b], c=[c])
    turns = [
        lent(
            tenants,
            replace(there, reclaim_input=replace(there.reclaim_input, now_s=NOW_S + s)),
            {"a": 7000},
        )[1]
        for s in (0, TURN_S, 2 * TURN_S, 3 * TURN_S)
    ]
    assert sorted(turn.job.tenant for turn in turns if turn) == ["b", "b", "c", "c"]


def test_who_has_waited_longest_has_every_second_turn_and_the_others_those_between():
    def order(*since_s: int) -> list[int]:
        return [whose_turn(since_s, now_s, 100) for now_s in range(1000, 1800, 100)]

    assert order(0, 10, 500) == [0, 2, 0, 1, 0, 2, 0, 1]
    assert order(0) == [0] * 8
    assert whose_turn([0, 10], 1099.9, 100) == 0


def test_who_waits_for_nodes_lets_the_next_have_its_turn():
    tenants = policy({"lender": 3500, "a": 0, "b": 0, "c": 0})
    down = wait(2, since_s=NOW_S - TURN_S - 60, would_start=False)
    late = wait(3, since_s=NOW_S - TURN_S)
    there = waiting({}, running(8, "a"), b=[down], c=[late])
    assert lent(tenants, there, {"a": 3500})[1] == turn_of("c", late, a=3500)


OTHER_LIMITS = (
    "AssocGrpBilling",
    "QOSGrpGRES",
    "QOSMaxJobsPerUserLimit",
    "AssocGrpCpuLimit",
    "MaxCpuPerAccount",
)


LARGE_KIND, SMALL_KIND = "3g.40gb", "1g.10gb"


def runs(job_id: int, account: str, kind: str, count: int = 1, **changes: Any) -> JobView:
    """A replica on borrowed quota."""
    start = {"state": JobState.RUNNING, "nodes": ("n",), "start_s": 1_000_000 - 500, **changes}
    return replace(one(job_id, account, kind, count, borrowed=True), **start)


def due(job_id: int, account: str, kind: str, count: int = 1) -> JobView:
    waiting = one(job_id, account, kind, count, borrowed=True)
    return replace(waiting, submit_s=0, eligible_s=0)


def new(job_id: int, account: str, kind: str) -> JobView:
    return replace(due(job_id, account, kind), submit_s=1_000_000, eligible_s=1_000_000)


def tenants_of(nominal: Mapping[str, int], weights: Mapping[str, int], keeps: str = "") -> Policy:
    """``keeps`` lends nothing."""
    found = policy(nominal)
    for name, weight in weights.items():
        found[name] = replace(found[name], quota=replace(found[name].quota, weight=weight))
    if keeps:
        quota = replace(found[keeps].quota, lending_limit_millislices=Millislices(0))
        found[keeps] = replace(found[keeps], quota=quota)
    return found


def never_goes(why: str) -> Cluster:
    """The job of b is due, and only replicas of a could make room for it; d has two small ones."""
    nominal = {"lender": 5500, "a": 0, "b": 0, "d": 0}
    weights: dict[str, int] = {}
    jobs, wants = [runs(3, "a", LARGE_KIND)], due(9, "b", LARGE_KIND)
    nodes = {LARGE_KIND: 1, SMALL_KIND: 6}
    changes: dict[str, Any] = {}
    if why == "in its term":
        changes["term_s"] = 600
    if why == "doubtful":
        jobs = [replace(jobs[0], unread=frozenset({"tres"}))]
    if why == "dearer than what its tenant holds above its guaranteed quota":
        nominal |= {"lender": 3500, "a": 3000}
        weights = {"b": 9, "d": 9}
    if why == "of two of which one may go":
        nominal |= {"lender": 7000, "a": 3500}
        weights = {"b": 9}
        jobs, nodes[LARGE_KIND] = [*jobs, runs(4, "a", LARGE_KIND)], 2
        wants = due(9, "b", LARGE_KIND, 2)
    if why == "of a tenant that gives a cap back with another":
        nominal["lender"], weights = 6500, {"a": 4}
        jobs.append(runs(4, "a", SMALL_KIND))
        changes["windows"] = (Window(1, "a", WindowKind.CAP, Millislices(3500)),)
    waiting = [wants, new(10, "d", SMALL_KIND), new(11, "d", SMALL_KIND)]
    return Cluster(
        tenants_of(nominal, weights),
        {"n": nodes},
        {job.job_id: job for job in (*jobs, *waiting)},
        turn_s=60,
        **changes,
    )


@pytest.mark.parametrize(
    "why",
    [
        "in its term",
        "doubtful",
        "dearer than what its tenant holds above its guaranteed quota",
        "of two of which one may go",
        "of a tenant that gives a cap back with another",
    ],
)
def test_nothing_is_kept_for_a_turn_for_which_a_replica_had_to_go_that_never_does(why: str):
    cluster = never_goes(why)
    cluster.round()
    running = {job_id for job_id, job in cluster.jobs.items() if job.state is JobState.RUNNING}
    assert {10, 11} <= running
    assert 3 not in cluster.going


def test_for_a_turn_that_lacks_only_quota_those_beyond_their_shares_give_it():
    """GPUs are free, of one who lends nothing: a's two replicas hold what b's job needs."""
    tenants = tenants_of({"lender": 3500, "owner": 5000, "a": 0, "b": 0}, {}, keeps="owner")
    small = {3: runs(3, "a", SMALL_KIND), 4: runs(4, "a", SMALL_KIND)}
    jobs = {**small, 9: due(9, "b", LARGE_KIND)}
    cluster = Cluster(tenants, {"n": {LARGE_KIND: 2, SMALL_KIND: 2}}, jobs, turn_s=10**6)
    cluster.round()
    assert cluster.going == {3, 4}
    cluster.round()
    assert cluster.jobs[9].state is JobState.RUNNING


def test_a_tenant_beyond_its_cap_gives_up_the_excess_and_nothing_for_a_turn():
    """a's large replica with c's small one would be less than c's two large ones."""
    over_cap = [runs(3, "a", LARGE_KIND), runs(4, "a", SMALL_KIND), runs(5, "a", SMALL_KIND)]
    over_share = [runs(6, "c", LARGE_KIND, 2), runs(7, "c", SMALL_KIND)]
    jobs = [*over_cap, *over_share, due(9, "b", LARGE_KIND)]
    cluster = Cluster(
        tenants_of({"lender": 15_000, "a": 0, "b": 0, "c": 0}, {}),
        {"n": {LARGE_KIND: 3, SMALL_KIND: 6}},
        {one.job_id: one for one in jobs},
        turn_s=60,
        windows=(Window(1, "a", WindowKind.CAP, Millislices(4500)),),
    )
    cluster.round()
    assert cluster.going in ({4, 6}, {5, 6})


def pair(key: int, **changes: Any) -> WaitingJob:
    """It needs two instances on one node."""
    return wait(key, (("3g.40gb", 2),), since_s=NOW_S - TURN_S, **changes)


def test_what_is_kept_for_a_turn_is_on_the_nodes_where_others_go_for_it():
    """On n2 one has to go, on n1 two would: another tenant's replica runs there, too."""
    tenants = policy({"lender": 21000, "a": 0, "b": 0, "c": 0})
    free = {"n1": {"3g.40gb": 0}, "n2": {"3g.40gb": 1}}
    runs = [
        running(job_id, "a", instances={node: {"3g.40gb": 1}})
        for job_id, node in ((7, "n1"), (8, "n1"), (9, "n2"))
    ]
    batch = running(6, "a", is_replica=False, cost_millislices=10500, instances={})
    there = replace(waiting({}, batch, *runs, b=[pair(2)]), free=free)
    turn = lent(tenants, there, {"a": 21000})[1]
    assert turn == turn_of("b", pair(2), "n2")
    assert victims(turn, reclaim_input(*runs), {"a": 21000}, free) == [9]
    # Told to go, it has left the node's replicas: the choice stays.
    told = replace(there, reclaim_input=replace(there.reclaim_input, leaving=frozenset({(9, 9)})))
    assert lent(tenants, told, {"a": 21000})[1] == turn


def victims(
    turn: Turn, there: ReclaimInput, over: Mapping[str, int], free: Mapping[str, Mapping[str, int]]
) -> list[int]:
    found = reclaim_for(turn, there, over, free)
    return [] if found is None else [job_id for job_id, _ in found.victims]


def test_replicas_go_only_on_the_nodes_of_the_turn():
    """On n1 the smaller ones run, and more of it is free."""
    turn = turn_of("b", pair(2), "n2")
    there = reclaim_input(
        running(7, "a", instances={"n1": {"3g.40gb": 1}}, cost_millislices=1000),
        running(9, "a", instances={"n2": {"3g.40gb": 1}}),
    )
    free = {"n1": {"3g.40gb": 1}, "n2": {"3g.40gb": 1}}
    assert victims(turn, there, {"a": 4500}, free) == [9]


def test_for_a_turn_nothing_counts_as_free_that_a_guaranteed_job_is_about_to_take():
    turn = turn_of("b", wait(2))
    there = replace(reclaim_input(running(8, "a")), free={"n": {"3g.40gb": 1}})
    assert victims(turn, there, {"a": 1750}, {"n": {}}) == [8]


def wants(kind: str) -> WaitingJob:
    return WaitingJob(1, "lender", int(COSTS[kind]), ((kind, 1),))


def test_only_a_lender_that_waits_for_the_same_type_comes_before_a_turn():
    turn = turn_of("b", wait(2))
    there = reclaim_input(running(7, "a", "1g.10gb"), running(8, "a"))
    other = replace(there, wanting=(wants("1g.10gb"),))
    assert set(runs_to_end(other, turn, {"a": 4500}, there.free).victims) == {(7, 7), (8, 8)}
    same = replace(
        reclaim_input(running(8, "a"), running(9, "a")),
        above_nominal_millislices={"a": 7000},
        wanting=(wants("3g.40gb"),),
    )
    both = turn_of("b", pair(2), "n")
    assert len(runs_to_end(same, both, {"a": 7000}, there.free).victims) == 1


def test_a_lender_and_a_turn_of_another_type_are_served_in_one_round():
    runs = {7: one(7, "a", "1g.10gb", borrowed=True), 8: one(8, "a", "3g.40gb", borrowed=True)}
    nodes = {"n": {"1g.10gb": 1, "3g.40gb": 1}}
    cluster = Cluster(policy({"lender": 4500, "a": 0, "b": 0}), nodes, runs, turn_s=60)
    cluster.round()
    assert {job.state for job in cluster.jobs.values()} == {JobState.RUNNING}
    late = replace(one(9, "b", "3g.40gb", borrowed=True), submit_s=0, eligible_s=0)
    cluster.jobs |= {9: late, 4: one(4, "lender", "1g.10gb")}
    cluster.round()
    assert cluster.going == {7, 8}


def test_for_a_turn_somebody_goes_though_something_is_free_for_a_guaranteed_job():
    tenants = tenants_of({"lender": 7000, "owner": 3500, "a": 0, "b": 0}, {}, keeps="owner")
    going = {8: runs(8, "a", LARGE_KIND), 7: runs(7, "a", SMALL_KIND)}
    waiting = {9: due(9, "b", LARGE_KIND), 4: one(4, "owner", LARGE_KIND)}
    cluster = Cluster(tenants, {"n": {LARGE_KIND: 2, SMALL_KIND: 4}}, going | waiting, turn_s=60)
    cluster.round()
    assert cluster.going == {8}


def test_who_gives_something_back_anyway_makes_room_for_a_turn():
    there = replace(reclaim_input(running(8, "a"), running(9, "a")), shrink={"a": 3500})
    gone = reclaim(there).victims
    assert len(gone) == 1
    assert runs_to_end(there, turn_of("b", wait(2)), {"a": 7000}, there.free).victims == gone


def test_for_a_turn_nobody_goes_who_has_only_to_give_back():
    batch = running(7, "a", kind="1g.10gb", is_replica=False)
    there = replace(reclaim_input(batch, running(8, "a")), shrink={"a": 1000})
    turn = turn_of("b", wait(2, (("1g.10gb", 1),)))
    free = {"n": {"1g.10gb": 1}}
    assert victims(turn, replace(there, free=free), {"a": 1}, free) == []


def test_who_is_to_borrow_no_more_has_no_turn():
    """Its job wants more than its guaranteed quota, and its demand is cut to that."""
    tenants = policy({"lender": 3500, "a": 0, "b": 3500})
    there = waiting({}, running(8, "a"), a=[wait(1)], b=[wait(2, since_s=0, cost_millislices=7000)])
    found = lend_whole_jobs(
        tenants,
        {"a": 7000, "b": 7000},
        there,
        (),
        capacity=10**6,
        lately={},
        at_most={"b": 3500},
    )
    assert found.turn is None


def test_what_a_tenant_holds_counts_in_full_though_it_is_to_borrow_no_more():
    """What it may have is what runs: its job that waits has no turn on that."""
    tenants = policy({"lender": 7000, "a": 0, "b": 0})
    there = waiting({}, running(8, "b"), a=[wait(1, since_s=0)])
    found = lend_whole_jobs(
        tenants,
        {"a": 7000, "b": 3500},
        there,
        (),
        capacity=10**6,
        lately={},
        at_most={"a": 3500},
    )
    assert sum(loan.amount_millislices for loan in found.loans) == 7000
    assert found.turn is None


def running(job_id: int, tenant: str, kind: str = "3g.40gb", **changes: Any) -> Running:
    run = Running(
        job_id=job_id,
        tenant=tenant,
        cost_millislices=int(COSTS[kind]),
        start_s=job_id,
        is_replica=True,
        instances={"n": {kind: 1}},
    )
    return replace(run, **changes)


def reclaim_input(*runs: Running) -> ReclaimInput:
    return ReclaimInput(
        wanting=(),
        running=runs,
        free={"n": {}},
        above_nominal_millislices={"a": 7000, "c": 7000},
        shrink={},
        leaving=frozenset(),
        weights={},
        now_s=NOW_S,
        term_s=0,
    )


def test_for_a_turn_the_replica_goes_that_makes_room():
    turn = turn_of("b", wait(2))
    there = reclaim_input(running(7, "a", "1g.10gb"), running(8, "a"), running(9, "c"))
    found = reclaim_for(turn, there, {"a": 1750}, there.free)
    assert found is not None
    assert found.victims == {(8, 8): "b has its turn of 3.5 slices: job 2 has waited longest"}
    assert found.ready == {}


def test_for_a_turn_nobody_else_goes_while_who_was_told_ends():
    """Its slot is no replica any more then."""
    turn = turn_of("b", wait(2))
    there = reclaim_input(running(8, "a", is_replica=False), running(9, "a"))
    told = replace(there, leaving=frozenset({(8, 8)}))
    assert victims(turn, told, {"a": 1750}, there.free) == []


def test_for_a_turn_no_batch_job_goes_and_nobody_within_its_share():
    turn = turn_of("b", wait(2))
    batch, replica = (
        reclaim_input(running(8, "a", is_replica=False)),
        reclaim_input(running(8, "a")),
    )
    assert reclaim_for(turn, batch, {"a": 1750}, batch.free) is None
    assert reclaim_for(turn, replica, {"c": 1750}, replica.free) is None


def seen(
    *jobs: JobView,
    nodes: tuple[NodeView, ...],
    tenants: Policy = OWNERS,
    stuck: frozenset[int] = frozenset(),
) -> Waits:
    ledger_view = ledger_view_of(Moment(NOW_S, 0, 0), tenants=tenants)
    rules = QuotaRules(PARTITIONS, COSTS, {}, {}, grace_s=0, term_s=0, turn_s=TURN_S)
    there = world(ledger_view, SlurmView(jobs, nodes, (), stuck=stuck), rules)
    return waits(there, reclaim_inputs.reclaim_input(there))


def large(job_id: int, account: str = "a", **changes: Any) -> JobView:
    changes = {"account": account, "submit_s": 5, "reason": "QOSGrpBilling"} | changes
    return replace(one(job_id, account, "3g.40gb", borrowed=True), **changes)


N = a_node("n", "MIXED", gpus={"3g.40gb": 2}, gpus_allotted={"3g.40gb": 1}, partitions=PARTITIONS)


def test_jobs_in_their_tenants_own_qos_come_first_to_what_is_free():
    own = replace(one(4, "b", "3g.40gb"), priority=0)
    there = seen(large(3), own, nodes=(N,))
    assert [queue[0].job_id for queue in there.queues.values()] == [3]
    assert there.free == {"n": {"3g.40gb": 0}}


def test_jobs_in_their_tenants_own_qos_take_nothing_that_their_own_limit_forbids():
    own = replace(one(4, "b", "3g.40gb"), priority=9000, untouched=frozenset({1, 2}))
    run = replace(one(5, "b", "3g.40gb"), state=JobState.RUNNING, nodes=("n",))
    part = policy({"a": 0, "b": 7000})
    idle = replace(N, gpus_allotted={})
    assert seen(own, nodes=(idle,), tenants=part).free == {"n": {"3g.40gb": 0}}
    assert seen(own, run, nodes=(idle,), tenants=part).free == {"n": {"3g.40gb": 1}}


def test_what_ends_is_not_free():
    ending = large(5, state=JobState.COMPLETING, nodes=("n",))
    assert seen(ending, nodes=(N,)).free == {"n": {}}


def test_who_waits_for_nodes_has_no_turn_unless_gpus_are_cut_for_it():
    reasons = {
        3: "ReqNodeNotAvail, UnavailableNodes:n",
        4: "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved",
        5: f"ReqNodeNotAvail, UnavailableNodes:{SHAPES_NODE}",
        6: "QOSGrpBilling",
    }
    jobs = (large(job_id, reason=reason) for job_id, reason in reasons.items())
    (queue,) = seen(*jobs, nodes=(N,)).queues.values()
    could = {job.job_id: job.would_start for job in queue}
    assert could == {4: False, 5: True, 6: True}


@pytest.mark.parametrize(
    "reason", ["QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit", "MaxCpuPerAccount"]
)
def test_who_is_over_a_limit_that_slicewise_has_not_set_waits_for_no_loan(reason: str):
    assert seen(large(3, reason=reason), nodes=(N,)).queues == {}


def test_who_stood_still_would_not_start():
    (queue,) = seen(large(3), large(4), nodes=(N,), stuck=frozenset({4})).queues.values()
    assert {one.job_id: one.would_start for one in queue} == {3: True, 4: False}


def test_a_queue_is_in_slurm_s_order_with_all_tasks_of_an_array():
    first = large(9, priority=2000)
    array = large(8, array_job_id=8, task_index=None, untouched=frozenset({1, 2}))
    held = job(3, account="a", qos="slicewise_a_borrowed")
    (queue,) = seen(array, first, held, nodes=(N,)).queues.values()
    assert [(one.job_id, one.tasks, one.since_s) for one in queue] == [(9, 1, 5), (8, 2, 5)]
