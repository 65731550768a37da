"""Loans in units of what waits: the cases in which a fluid starts nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reclaim_world import COSTS, PARTITIONS, one, policy
from scripted import job

from cluster.jobs import JobState, JobView, NodeView
from slurm_plugin.decide.policy import Loan, Policy
from slurm_plugin.decide.reclaim.room import Need
from slurm_plugin.decide.reclaim.turns import reclaim_for
from slurm_plugin.decide.reclaim.victims import NOBODY, Running, Taking
from slurm_plugin.decide.whole_jobs import Turn, WaitingJob, Waits, lend_whole_jobs, waits

NOW_S, TURN_S = 10_000, 1800
SMALL, LARGE = (("1g.10gb", 1),), (("3g.40gb", 1),)


def wait(key: int, shape: tuple[tuple[str, int], ...] = LARGE, **changes: Any) -> WaitingJob:
    cost = sum(COSTS[kind] * count for kind, count in shape)
    return replace(WaitingJob(Need(key, shape, 1), cost, NOW_S - 60), **changes)


def waiting(
    free: Mapping[str, int], reach: Mapping[str, int] | None = None, **queues: Any
) -> Waits:
    return Waits(queues, {"n": free}, {"n": free if reach is None else reach}, NOW_S, TURN_S)


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
    """Slurm says then that the job waits for GPUs, and they are cut anew for it."""
    tenants = policy({"lender": 7000, "a": 0, "b": 0})
    there = waiting({"1g.10gb": 1}, a=[wait(1)], b=[wait(2, SMALL)])
    assert lent(tenants, there)[0] == {"a": 3500, "b": 1000}


def test_a_smaller_job_starts_where_the_first_of_its_tenant_can_not():
    tenants = policy({"lender": 2000, "a": 0})
    there = waiting({"1g.10gb": 7, "3g.40gb": 1}, a=[wait(1), wait(2, SMALL, tasks=4)])
    assert lent(tenants, there)[0] == {"a": 2000}


def test_tasks_of_arrays_go_in_turns():
    tenants = policy({"lender": 4000, "a": 0, "b": 0})
    there = waiting({"1g.10gb": 7}, a=[wait(1, SMALL, tasks=9)], b=[wait(2, SMALL, tasks=9)])
    assert lent(tenants, there)[0] == {"a": 2000, "b": 2000}


def test_what_runs_keeps_what_nobody_else_can_start_on():
    """Half of it would be the other's share."""
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    there = waiting({}, {"3g.40gb": 1}, b=[wait(2)])
    assert lent(tenants, there, {"a": 3500}) == ({"a": 3500}, None)


def test_who_has_waited_for_its_turn_keeps_its_share():
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    there = waiting({}, {"3g.40gb": 1}, b=[late])
    assert lent(tenants, there, {"a": 3500}) == ({"a": 1750, "b": 1750}, Turn("b", late))


def test_no_turn_without_gpus_within_reach_or_quota_that_others_borrow():
    tenants = policy({"lender": 3500, "a": 0, "b": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    assert lent(tenants, waiting({}, {"1g.10gb": 7}, b=[late]), {"a": 3500})[1] is None
    large = replace(late, cost_millislices=7000)
    assert lent(tenants, waiting({}, {"3g.40gb": 1}, b=[large]), {"a": 3500})[1] is None


def test_whose_turn_it_is_starts_before_who_has_less():
    tenants = policy({"lender": 4500, "a": 0, "b": 0})
    late = wait(2, since_s=NOW_S - TURN_S)
    there = waiting({"3g.40gb": 1}, a=[wait(1, since_s=NOW_S - 100)], b=[late])
    assert lent(tenants, there, {"b": 1000}) == ({"b": 4500}, None)
    soon = replace(there, queues={**there.queues, "b": [wait(2)]})
    assert lent(tenants, soon, {"b": 1000}) == ({"a": 3500, "b": 1000}, None)


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


def taking(*runs: Running) -> Taking:
    return Taking(
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
    turn = Turn("b", wait(2))
    there = taking(running(7, "a", "1g.10gb"), running(8, "a"), running(9, "c"))
    found = reclaim_for(turn, there, {"a": 1750})
    assert found.victims == {8: "b has its turn of 3.5 slices: job 2 has waited longest"}
    assert found.ready == {}


def test_for_a_turn_nobody_else_goes_while_who_was_told_ends():
    """Its slot is no replica any more then."""
    turn = Turn("b", wait(2))
    there = taking(running(8, "a", is_replica=False), running(9, "a"))
    found = reclaim_for(turn, replace(there, leaving=frozenset({8})), {"a": 1750})
    assert found.victims == {}


def test_for_a_turn_no_batch_job_goes_and_nobody_within_its_share():
    turn = Turn("b", wait(2))
    assert reclaim_for(turn, taking(running(8, "a", is_replica=False)), {"a": 1750}) == NOBODY
    assert reclaim_for(turn, taking(running(8, "a")), {"c": 1750}) == NOBODY


def seen(*jobs: JobView, nodes: tuple[NodeView, ...]) -> Waits:
    return waits(jobs, nodes, PARTITIONS, COSTS, now_s=NOW_S, turn_s=TURN_S)


def large(job_id: int, account: str = "a", **changes: Any) -> JobView:
    changes = {"account": account, "submit_s": 5, "reason": "AssocGrpBilling"} | changes
    return replace(one(job_id, account, "3g.40gb", borrowed=True), **changes)


N = NodeView("n", "", frozenset({"MIXED"}), {"3g.40gb": 2}, {"3g.40gb": 1}, PARTITIONS)


def test_jobs_in_their_tenants_own_qos_come_first_to_what_is_free():
    own = replace(one(4, "b", "3g.40gb"), priority=0)
    there = seen(large(3), own, nodes=(N,))
    assert [queue[0].need.key for queue in there.queues.values()] == [3]
    assert there.free == {"n": {"3g.40gb": 0}}


def test_what_runs_on_borrowed_quota_is_within_reach_and_what_ends_is_not_free():
    run = large(5, state=JobState.RUNNING, nodes=("n",))
    there = seen(large(3), run, nodes=(N,))
    assert (there.free, there.reach) == ({"n": {"3g.40gb": 1}}, {"n": {"3g.40gb": 2}})
    ending = replace(run, state=JobState.COMPLETING)
    assert seen(ending, nodes=(N,)).free == {"n": {}}
    own = replace(run, qos="slicewise_a")
    assert seen(own, nodes=(N,)).reach == {"n": {"3g.40gb": 1}}


def test_a_queue_is_in_slurm_s_order_with_all_tasks_of_an_array():
    first = large(9, priority=2000)
    array = large(8, array_job_id=8, task_index=None, untouched=frozenset({1, 2}))
    held = job(3, account="a", qos="slicewise-borrowed")
    (queue,) = seen(array, first, held, nodes=(N,)).queues.values()
    assert [(one.need.key, one.tasks, one.since_s) for one in queue] == [(9, 1, 5), (8, 2, 5)]
