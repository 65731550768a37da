"""Tests which borrowed runs go when a lender needs its slices."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import Reclaim, ReclaimInput, reclaim

NOW_S = 100_000
COSTS = {"1g.10gb": 1000, "3g.40gb": 3500}


def wants(
    job_id: int, count: int = 1, kind: str = "1g.10gb", nodes: int = 1, **changes: Any
) -> WaitingJob:
    cost = COSTS[kind] * count * nodes
    job = WaitingJob(job_id, "vision", cost, ((kind, count),), nodes, priority=100)
    return job._replace(**changes)


def run(
    job_id: int,
    node: str = "n1",
    tenant: str = "nlp",
    *,
    count: int = 1,
    kind: str = "1g.10gb",
    **changes: Any,
) -> Running:
    cost = COSTS[kind] * count
    found = Running(job_id, tenant, cost, NOW_S - 5000, True, {node: {kind: count}})
    return replace(found, **changes)


def reclaim_input(*things: WaitingJob | Running, **changes: Any) -> ReclaimInput:
    """Tenants may be asked for all that they hold."""
    running = tuple(one for one in things if isinstance(one, Running))
    above: dict[str, int] = {}
    for each in running:
        above[each.tenant] = above.get(each.tenant, 0) + each.cost_millislices
    values: Mapping[str, Any] = {
        "wanting": tuple(one for one in things if isinstance(one, WaitingJob)),
        "running": running,
        "free": {},
        "above_nominal_millislices": above,
        "shrink": {},
        "leaving": frozenset(),
        "weights": {},
        "now_s": NOW_S,
        "term_s": 600,
    }
    return ReclaimInput(**{**values, **changes})


def requeues(*things: WaitingJob | Running, **changes: Any) -> dict[int, str]:
    found = reclaim(reclaim_input(*things, **changes)).requeues
    return {job_id: why for (job_id, _), why in found.items()}


def victims(*things: WaitingJob | Running, **changes: Any) -> set[int]:
    return ids(reclaim(reclaim_input(*things, **changes)))


def ids(found: Reclaim) -> set[int]:
    return {job_id for job_id, _ in found.victims}


def test_nobody_waits_and_nobody_goes() -> None:
    found = reclaim(reclaim_input(run(1)))
    assert (found.victims, found.ready, found.missing) == ({}, {}, {})


def test_what_fits_into_what_is_free_is_ready_by_priority() -> None:
    jobs = wants(12, priority=1), wants(13, priority=2), wants(14, 2, priority=3)
    found = reclaim(reclaim_input(*jobs, run(1), run(2), free={"n1": {"1g.10gb": 3}}))
    assert found.ready == {"vision": 3000}
    assert len(found.victims) == 1


@pytest.mark.parametrize(
    ("large_on", "ready"), [("n1", {}), ("n2", {"vision": 4500})], ids=["apart", "together"]
)
def test_what_asks_for_two_types_is_ready_where_one_node_has_both(
    large_on: str, ready: Mapping[str, int]
) -> None:
    job = wants(12, cost_millislices=4500, shape=(("1g.10gb", 1), ("3g.40gb", 1)))
    free = {"n1": {"1g.10gb": 0}, "n2": {"1g.10gb": 2}}
    free[large_on]["3g.40gb"] = 1
    assert reclaim(reclaim_input(job, free=free)).ready == ready


def test_one_goes_for_a_job_that_waits_and_says_for_which() -> None:
    found = reclaim(reclaim_input(wants(12), run(1)))
    assert found.victims == {run(1).run: "vision takes back 1 slice: job 12 waits"}
    assert found.ready == {}
    task = wants(12)._replace(task="9_3")
    found = reclaim(reclaim_input(task, run(1)))
    assert found.victims == {run(1).run: "vision takes back 1 slice: job 9_3 waits"}


def test_only_runs_of_the_type_that_is_wanted_go() -> None:
    assert victims(wants(12, kind="3g.40gb"), run(1), run(2, kind="3g.40gb")) == {2}


def test_a_job_of_several_instances_gets_them_on_one_node() -> None:
    here = [run(i, "n1") for i in (1, 2)]
    there = [run(i, "n2") for i in (3, 4, 5)]
    assert victims(wants(12, 3), *here, *there) == {3, 4, 5}


def test_what_is_free_on_a_node_is_made_use_of() -> None:
    runs = [run(i, "n1") for i in (1, 2)] + [run(i, "n2") for i in (3, 4)]
    assert len(victims(wants(12, 2), *runs, free={"n2": {"1g.10gb": 1}}) & {3, 4}) == 1


def test_a_job_of_several_nodes_gets_different_ones() -> None:
    runs = [run(i, "n1") for i in (1, 2, 3)] + [run(4, "n2")]
    gone = victims(wants(12, nodes=2), *runs)
    assert 4 in gone
    assert len(gone) == 2


def test_one_run_of_two_instances_goes_for_two_jobs() -> None:
    assert victims(wants(12), wants(13), run(1), run(2), run(3, count=2)) == {3}


def test_a_run_that_is_larger_than_needed_goes_only_without_others() -> None:
    assert victims(wants(12), run(1, count=2), run(2)) == {2}
    assert victims(wants(12), run(1, count=2)) == {1}


def test_the_largest_run_stays_where_two_smaller_ones_come_to_less() -> None:
    assert victims(wants(12, 6), run(1, count=4), run(2, count=3), run(3, count=3)) == {2, 3}


def test_jobs_of_several_nodes_that_share_them_get_different_ones_each() -> None:
    runs = [
        run(first + i, node, count=3 + (i == 0))
        for node, first in (("n1", 1), ("n2", 4))
        for i in range(3)
    ]
    found = reclaim(reclaim_input(wants(12, 3, nodes=2), wants(13, 3, nodes=2), *runs))
    assert ids(found) == {2, 3, 5, 6}
    why = [found.victims[run(job_id).run] for job_id in (2, 3)]
    assert {one[-8:] for one in why} == {"12 waits", "13 waits"}


def test_of_sets_that_come_to_the_least_the_first_in_the_order_of_victims_goes() -> None:
    def on(node: str, first: int, tenant: str) -> list[Running]:
        young = [run(first + i, node, tenant, count=3, start_s=NOW_S - 700 - i) for i in range(3)]
        return [*young, run(first + 3, node, tenant, count=4)]

    runs = [*on("n1", 10, "nlp"), *on("n2", 20, "hpc"), *on("n3", 30, "edu")]
    assert victims(wants(1, 6), *runs, weights={"nlp": 2, "edu": 3}) == {20, 21}
    assert victims(wants(1, 6), *runs, weights={"nlp": 2, "hpc": 3}) == {30, 31}
    assert victims(wants(1, 6), *runs, recalled={"nlp": 6000}) == {10, 11}


@pytest.mark.parametrize("left_s", [1, 15, 100, 600])
def test_within_its_term_a_run_stays_up_to_the_last_second(left_s: int) -> None:
    found = reclaim(reclaim_input(wants(12), run(1, start_s=NOW_S - 600 + left_s)))
    assert found.victims == {}
    assert found.missing == {
        12: f"what it needs is held by jobs in their term, which ends in {left_s} s at the earliest"
    }


def test_once_its_term_is_over_a_run_goes() -> None:
    assert victims(wants(12), run(1, start_s=NOW_S - 600)) == {1}


def test_the_tenant_with_the_largest_share_gives_first_and_the_share_falls() -> None:
    runs = [run(i) for i in (1, 2, 3)] + [run(i, tenant="hpc") for i in (4, 5, 6, 7)]
    assert len(victims(wants(12), *runs) & {4, 5, 6, 7}) == 1
    gone = victims(wants(12), wants(13), wants(14), *runs)
    assert (len(gone & {1, 2, 3}), len(gone & {4, 5, 6, 7})) == (1, 2)


def test_of_runs_of_several_types_that_come_to_the_same_the_largest_share_gives_first() -> None:
    def both(job_id: int, tenant: str, other: str) -> Running:
        instances = {"n1": {"1g.10gb": 1, other: 1}}
        return run(job_id, tenant=tenant, cost_millislices=2000, instances=instances)

    runs = both(1, "nlp", "1g.20gb"), both(2, "hpc", "2g.20gb")
    for hpc, gone in ((5000, {2}), (2000, {1})):
        above = {"nlp": 3000, "hpc": hpc}
        assert victims(wants(12), *runs, above_nominal_millislices=above) == gone


def test_shares_count_by_weight() -> None:
    runs = [run(i) for i in (1, 2)] + [run(i, tenant="hpc") for i in (4, 5, 6)]
    assert victims(wants(12), *runs, weights={"hpc": 3}) <= {1, 2}


def test_of_nodes_that_cost_the_same_the_one_of_the_largest_share_is_taken() -> None:
    runs = [run(1, "n1"), run(2, "n1"), run(3, "n2", "hpc"), run(4, "n2", "hpc")]
    above = {"nlp": 2000, "hpc": 5000}
    assert victims(wants(12, 2), *runs, above_nominal_millislices=above) == {3, 4}


def test_no_tenant_is_brought_below_its_own_part() -> None:
    found = reclaim(reclaim_input(wants(12), wants(13), run(1), run(2), **above(1000)))
    assert len(found.victims) == 1
    assert list(found.missing) == [13]
    alone = reclaim(reclaim_input(wants(12), run(1), **above(999)))
    assert alone.missing == {
        12: "the tenants that hold what it needs hold too little above their guaranteed quota"
    }


def above(amount: int) -> dict[str, Any]:
    return {"above_nominal_millislices": {"nlp": amount}}


def test_the_youngest_of_a_tenant_goes_first() -> None:
    runs = [run(i, start_s=NOW_S - 1000 * i) for i in (2, 1, 3)]
    assert victims(wants(12), *runs) == {1}


def test_no_batch_job_goes_where_a_replica_does() -> None:
    assert victims(wants(12), run(1, is_replica=False, tenant="hpc", count=1), run(2)) == {2}


def test_batch_jobs_are_left_to_slurm_and_the_replicas_beside_them_go() -> None:
    found = reclaim(reclaim_input(wants(12, 2), run(1, is_replica=False), run(2)))
    assert ids(found) == {2}
    assert found.missing == {12: "batch job 1 would have to go: left to Slurm's preemption"}


def test_of_batch_jobs_that_loses_least_work_goes() -> None:
    old = run(1, is_replica=False, start_s=NOW_S - 9000)
    young = run(2, is_replica=False, start_s=NOW_S - 700)
    assert "batch job 2 " in reclaim(reclaim_input(wants(12), old, young)).missing[12]
    may = [replace(one, may_requeue=True) for one in (old, young)]
    assert requeues(wants(12), *may) == {2: "vision takes back 1 slice: job 12 waits"}


def test_a_batch_job_is_requeued_only_where_replicas_do_not_suffice() -> None:
    batch = run(1, is_replica=False, may_requeue=True)
    assert requeues(wants(12), batch, run(2)) == {}
    both = reclaim(reclaim_input(wants(12, 2), batch, run(2)))
    assert (ids(both), both.requeues.keys(), both.missing) == ({2}, {batch.run}, {})


def test_who_may_be_requeued_goes_before_who_is_left_to_slurm() -> None:
    """However much work it loses."""
    left = run(1, is_replica=False, start_s=NOW_S - 700)
    may = run(2, is_replica=False, start_s=NOW_S - 90_000, may_requeue=True)
    assert requeues(wants(12), left, may).keys() == {2}


def test_for_a_job_of_which_slurm_must_end_a_run_no_batch_job_is_requeued() -> None:
    """Slurm chooses anew, and may take others; jobs that need nothing of Slurm get theirs."""
    left = run(1, is_replica=False, kind="3g.40gb")
    may = [run(i, "n1", is_replica=False, may_requeue=True) for i in (2, 3)]
    both = wants(12, shape=(("1g.10gb", 1), ("3g.40gb", 1)))
    assert requeues(both, left, may[0]) == {}
    other = wants(13, priority=50)
    found = reclaim(reclaim_input(both, other, left, *may))
    assert len(found.requeues) == 1
    assert found.missing.keys() == {12}


def test_nobody_is_requeued_twice_nor_in_the_term_nor_below_the_tenants_own_part() -> None:
    batch = run(1, is_replica=False, may_requeue=True)
    assert requeues(wants(12), batch, leaving=frozenset({batch.run})) == {}
    assert requeues(wants(12), replace(batch, start_s=NOW_S - 10)) == {}
    assert requeues(wants(12), batch, **above(999)) == {}


def test_a_tenant_that_must_shrink_has_no_batch_job_requeued_for_that() -> None:
    batch = run(1, is_replica=False, may_requeue=True)
    assert requeues(batch, shrink={"nlp": 1000}) == {}


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (wants(12, kind="3g.40gb"), "no node has 1 x 3g.40gb that is free or lent"),
        (wants(12, nodes=2), "no 2 nodes have 1 x 1g.10gb each that is free or lent"),
    ],
)
def test_a_job_without_room_says_why(job: WaitingJob, why: str) -> None:
    assert reclaim(reclaim_input(job, run(1))).missing == {12: why}


def test_the_first_by_priority_gets_what_there_is() -> None:
    found = reclaim(reclaim_input(wants(12, priority=1), wants(13, priority=2), run(1)))
    assert found.victims[run(1).run].endswith("job 13 waits")
    assert found.missing == {12: "what is free or lent is not enough for all waiting jobs"}


def test_of_very_many_jobs_too_the_first_by_priority_get_what_there_is() -> None:
    jobs = [wants(100 + i, priority=i) for i in range(100)]
    large = wants(200, 4, priority=1000)
    never = wants(201, 4, kind="3g.40gb", priority=1001)
    runs = [run(i, f"n{i % 10}") for i in range(1, 55)]
    found = reclaim(reclaim_input(*jobs, large, never, *runs))
    assert len(found.victims) == 54
    assert found.missing.keys() == {201, *range(100, 150)}


def test_very_many_jobs_get_nodes_of_whoever_has_the_largest_share_by_then() -> None:
    jobs = [wants(10_000 + i, 2) for i in range(300)]
    runs = [
        run(4 * node + i, f"n{node}", ("nlp", "hpc")[node % 2])
        for node in range(400)
        for i in range(4)
    ]
    found = reclaim(reclaim_input(*jobs, *runs, weights={"hpc": 3}))
    assert found.missing == {}
    # nlp is left with 250 above its guaranteed quota, hpc with three times as many.
    assert Counter(job_id // 4 % 2 for job_id in ids(found)) == {0: 550, 1: 50}


def test_what_comes_free_for_a_job_is_kept_for_it() -> None:
    big, small = wants(12, 2, priority=2), wants(13, priority=1)
    runs = [run(i) for i in (1, 2, 3)]
    found = reclaim(reclaim_input(big, small, *runs, free={"n1": {"1g.10gb": 1}}))
    assert found.ready == {}
    assert len(found.victims) == 2


def test_who_leaves_already_is_a_victim_already() -> None:
    runs = [run(i) for i in (1, 2, 3)]
    assert victims(wants(12), *runs, leaving=frozenset({run(3).run})) == {3}
    assert len(victims(wants(12), wants(13), *runs, leaving=frozenset({run(3).run}))) == 2


def test_who_leaves_is_no_victim_any_more_once_nobody_waits() -> None:
    assert victims(run(1), leaving=frozenset({run(1).run})) == set()


def test_who_runs_again_after_it_left_is_none_that_leaves() -> None:
    """It was requeued, and keeps its job id."""
    again = run(3, start_s=NOW_S - 700)
    told = frozenset({run(3, start_s=NOW_S - 5000).run})
    assert victims(wants(12), wants(13), run(1), again, leaving=told) == {1, 3}
    assert victims(wants(12), run(1, start_s=NOW_S - 650), again, leaving=told) == {1}


def test_who_must_shrink_gives_as_little_beyond_it_as_possible() -> None:
    runs = [run(1, count=4), run(2, count=2), run(3)]
    assert victims(*runs, shrink={"nlp": 3000}) == {2, 3}
    assert victims(*runs, shrink={"nlp": 500}) == {3}
    assert victims(*runs, shrink={"nlp": 9000}) == {1, 2, 3}


def test_who_must_shrink_anyway_goes_for_a_waiting_job_first() -> None:
    runs = [run(1), run(2), run(3, tenant="hpc")]
    found = reclaim(reclaim_input(wants(12), *runs, shrink={"hpc": 1000}))
    assert ids(found) == {3}
    alone = reclaim(reclaim_input(*runs, shrink={"hpc": 1000}))
    assert alone.victims == {run(3).run: "hpc has to give back 1 slice"}


def test_of_whom_a_loan_is_recalled_goes_first_as_far_as_that() -> None:
    runs = [run(1), run(2), run(3), run(4, tenant="hpc"), run(5, tenant="hpc")]
    assert victims(wants(12), *runs) <= {1, 2, 3}
    gone = victims(wants(12), wants(13), *runs, recalled={"hpc": 1000})
    assert (len(gone & {4, 5}), len(gone & {1, 2, 3})) == (1, 1)


def test_who_leaves_already_counts_for_what_must_be_given_up() -> None:
    runs = [run(1, count=4), run(2, count=2), run(3)]
    leaving = frozenset({run(2).run, run(3).run})
    assert victims(*runs, shrink={"nlp": 3000}, leaving=leaving) == {2, 3}


def test_of_a_large_amount_the_first_runs_come_before_the_best_fit() -> None:
    runs = [run(i, start_s=NOW_S - 700 - i) for i in range(1, 60)]
    assert victims(*runs, shrink={"nlp": 40_500}) == set(range(1, 42))
