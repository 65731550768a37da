"""Tests which runs each policy would send away, beside the smallest possible set."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.reclaim.running import Running
from slicewise.slurm_plugin.rules.reclaim.victims import ReclaimInput
from studies.lending import evictions
from studies.lending.fewest import Fewest, fewest
from studies.lending.victims import POLICIES, Eviction, with_slurm

ONE, THREE = "1g.10gb", "3g.40gb"
NOW_S = 10_000


def run(job_id: int, node: str, kind: str = ONE, count: int = 1, **changes: int) -> Running:
    found = Running(
        job_id=job_id,
        tenant="nlp",
        cost_millislices={ONE: 1000, THREE: 3500}[kind] * count,
        start_s=NOW_S - 1000 + job_id,
        is_replica=True,
        instances={node: {kind: count}},
        priority=5,
    )
    return replace(found, **changes)


def want(kind: str = ONE, count: int = 1, nodes: int = 1, job_id: int = 100) -> WaitingJob:
    return WaitingJob(
        *(job_id, "vision", 1000 * count * nodes, ((kind, count),), nodes), priority=1
    )


def reclaim_input(
    wanting: tuple[WaitingJob, ...],
    running: tuple[Running, ...],
    free: Mapping[str, Mapping[str, int]] | None = None,
) -> ReclaimInput:
    return ReclaimInput(
        wanting=wanting,
        running=running,
        free=free or {},
        above_nominal_millislices={"nlp": sum(one.cost_millislices for one in running)},
        shrink={},
        leaving=frozenset(),
        weights={},
        now_s=NOW_S,
        term_s=0,
    )


def victims(policy: str, found: ReclaimInput) -> set[int]:
    return set(POLICIES[policy](found).victims)


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_goes_for_a_job_that_fits_into_what_is_free(policy: str):
    found = reclaim_input((want(THREE),), (run(1, "a", THREE),), {"b": {THREE: 1}})
    assert POLICIES[policy](found) == Eviction(frozenset(), frozenset())


@pytest.mark.parametrize("policy", POLICIES)
def test_who_can_not_be_served_is_named_and_costs_nobody_anything(policy: str):
    found = reclaim_input((want(THREE),), (run(1, "a", ONE), run(2, "a", ONE)))
    assert POLICIES[policy](found) == Eviction(frozenset(), frozenset({100}))


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_in_its_term_stays(policy: str):
    young, old = run(1, "a", start_s=NOW_S - 5), run(2, "a", start_s=NOW_S - 500)
    found = replace(reclaim_input((want(),), (young, old)), term_s=60)
    assert victims(policy, found) == {2}


def test_orders_differ_as_their_names_say():
    runs = (
        run(1, "a", start_s=NOW_S - 900, priority=1),
        run(2, "b", start_s=NOW_S - 10),
        run(3, "a", start_s=NOW_S - 500, priority=7),
        run(4, "b", THREE, start_s=NOW_S - 1),
    )
    found = reclaim_input((want(),), runs)
    assert victims("newest_first", found) == {2}
    assert victims("lowest_priority_first", found) == {1}
    assert victims("kueue", found) == {1}
    assert victims("slurm", found) == {1}


def test_one_by_one_sends_away_runs_on_nodes_that_do_not_help_in_the_end():
    runs = (run(1, "a"), run(2, "b"), run(3, "b"))
    found = reclaim_input((want(count=2),), runs)
    assert victims("newest_first", replace(found, running=runs[::-1])) == {2, 3}
    mixed = reclaim_input((want(count=2),), (run(1, "b"), run(2, "b"), run(3, "a")))
    assert victims("newest_first", mixed) == {1, 2, 3}
    assert victims("kueue", mixed) == {1, 2}


def test_slurm_orders_anew_so_that_few_go_but_looks_at_no_type_until_the_job_fits():
    runs = (run(1, "a"), run(2, "b", THREE), run(3, "a", THREE))
    assert victims("slurm", reclaim_input((want(THREE),), runs)) == {2}
    beside = (run(1, "a"), run(2, "a"), run(3, "a", ONE, count=4))
    assert victims("slurm", reclaim_input((want(count=4),), beside)) == {3}


def test_kueue_takes_no_more_from_a_tenant_that_borrows_no_longer():
    runs = (run(1, "a"), run(2, "a", tenant="hpc"))  # type: ignore[arg-type]
    found = replace(reclaim_input((want(),), runs), above_nominal_millislices={"hpc": 1000})
    assert victims("kueue", found) == {2}


def test_the_least_set_counts_what_one_large_run_frees_for_several():
    runs = (run(1, "a", count=2), run(2, "b"), run(3, "c", count=4))
    jobs = (want(job_id=100), want(job_id=101), want(job_id=102))
    found = reclaim_input(jobs, runs)
    assert fewest(found, runs) == Fewest(3000, is_proven=True)
    assert fewest(reclaim_input((want(count=2, nodes=2),), runs), runs) == Fewest(
        6000, is_proven=True
    )
    assert fewest(reclaim_input((want(count=2, nodes=3),), runs), runs) is None


def test_the_least_set_takes_no_tenant_below_its_own_part():
    cheap, dear = run(1, "a"), run(2, "b", count=2, tenant="hpc")  # type: ignore[arg-type]
    found = replace(
        reclaim_input((want(),), (cheap, dear)), above_nominal_millislices={"hpc": 2000}
    )
    assert fewest(found, (cheap, dear)) == Fewest(2000, is_proven=True)


@pytest.mark.parametrize("mix", evictions.MIXES)
def test_slicewise_sends_away_no_more_replicas_than_the_least_set(mix: str):
    worlds = [evictions.found(seed, mix) for seed in range(12)]
    found = evictions.report({mix: worlds})[mix]
    assert found["proven"]
    assert 0 < found["servable"] < 12
    if mix != "batch":
        assert found["policies"]["slicewise"]["mean_beside_replicas"] == 1
        assert found["policies"]["slicewise"]["unserved_share"] == 0
    for chosen in found["all_evictions"].values():
        assert 1 <= chosen["ratio"] <= 1.1
        assert chosen["by_slicewise"] > chosen["by_slurm"]
    assert all(one["mean"] >= 1 for one in found["policies"].values())


def test_whom_slurm_chooses_counts_too():
    """It takes the youngest, whatever that holds, where no others make room."""
    large = run(2, "a", count=2, is_replica=False)  # type: ignore[arg-type]
    batch = (run(1, "b", is_replica=False), large)  # type: ignore[arg-type]
    alone = reclaim_input((want(),), batch)
    assert with_slurm(alone, youngest_first=True) == Eviction(
        frozenset({2}), frozenset(), preempted=frozenset({2})
    )
    assert with_slurm(alone, youngest_first=False).preempted == {1}
    may = tuple(replace(one, may_requeue=True) for one in batch)
    first = reclaim_input((want(),), may)
    assert with_slurm(first, youngest_first=True) == Eviction(frozenset({1}), frozenset())
    beside = reclaim_input((want(),), (*batch, run(3, "c")))
    assert with_slurm(beside, youngest_first=True) == Eviction(frozenset({3}), frozenset())


@pytest.mark.parametrize("seed", [332, 455, 575])
def test_slicewise_finds_the_least_set_where_the_next_best_run_does_not_lead_to_it(seed: int):
    found = evictions.found(seed, "large_jobs")
    assert found.is_proven
    assert found.evicted["slicewise"] == found.of_replicas
