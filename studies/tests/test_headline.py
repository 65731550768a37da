"""Tests the headline benchmark: each system's rule on a small cluster, and the figures by hand."""

import lzma
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pool_world import HOUR_S, pool_job, pool_load

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.records import ReplayedJob, ReplayedRun
from studies.headline.figures import (
    Idle,
    figures_of,
    idle,
    recovered,
    replay_error,
    work,
)
from studies.headline.large_jobs import GPUS, SIZES, drawn, waits_by_size
from studies.headline.loads import GPU, HELIOS, Load, Minute, helios, ready, sized, spread
from studies.headline.systems import GPU_MILLISLICES, SYSTEMS, run

SOON_S = 60.0


def load(*jobs: HistoryJob, end_s: float = 10 * HOUR_S, **more: object) -> Load:
    """Two virtual clusters: a has two nodes of eight GPUs, b has one."""
    return pool_load({"a": 16, "b": 8}, *jobs, end_s=end_s, **more)


def starts(system: str, *jobs: HistoryJob) -> Sequence[float]:
    """When each job first started."""
    found = {one.number: one for one in run(system, load(*jobs)).jobs}
    return [found[number].runs[0].start_s for number in range(len(jobs))]


def test_static_partitions_lend_nothing() -> None:
    first, second = starts("static", pool_job("b", 8), pool_job("b", 8, 1))
    assert first < SOON_S
    assert second >= HOUR_S


@pytest.mark.parametrize("system", [one for one in SYSTEMS if one != "static"])
def test_all_other_systems_let_a_virtual_cluster_have_what_others_leave_idle(system: str) -> None:
    assert max(starts(system, pool_job("b", 8), pool_job("b", 8, 1))) < SOON_S


def test_first_come_first_served_in_the_pool_whoever_has_much() -> None:
    found = starts(
        "fifo",
        *[pool_job("b", 8, at_s) for at_s in range(3)],
        pool_job("b", 8, 3),
        pool_job("a", 8, 4),
    )
    assert found[3] <= found[4]


def test_fair_share_prefers_who_has_used_less() -> None:
    # Slurm ranks only those who have ever run something.
    before = pool_job("a", 8, 0, 10.0), *[pool_job("b", 8, at_s) for at_s in range(1, 4)]
    found = starts("fair_share", *before, pool_job("b", 16, 1800), pool_job("a", 16, 1801))
    assert found[5] < found[4]


def test_priority_prefers_the_larger_virtual_cluster() -> None:
    found = starts(
        "priority",
        *[pool_job("b", 8, at_s) for at_s in range(3)],
        pool_job("b", 16, 3),
        pool_job("a", 16, 4),
    )
    assert found[4] < found[3]


@pytest.mark.parametrize(("system", "goes"), [("slicewise", 2), ("slicewise_by_id", 1)])
def test_slurm_preempts_who_started_last_or_has_the_lowest_id(system: str, goes: int) -> None:
    record = run(
        system, load(*[pool_job("b", 8, at_s) for at_s in (0, 100, 200)], pool_job("a", 8, 1000))
    )
    assert [one.number for one in record.jobs if len(one.runs) == 2] == [goes]


@pytest.mark.parametrize("system", ["kueue", "slicewise", "slicewise_by_id"])
def test_a_lender_gets_its_guarantee_back_and_the_borrower_runs_again(system: str) -> None:
    borrowers = [pool_job("b", 8, at_s) for at_s in range(3)]
    record = run(system, load(*borrowers, pool_job("a", 8, 1000)))
    lender = next(one for one in record.jobs if one.tenant == "a")
    assert lender.runs[0].start_s - lender.submit_s < 2 * SOON_S
    assert sorted(len(one.runs) for one in record.jobs) == [1, 1, 1, 2]


def test_a_job_that_runs_into_its_limit_leaves_its_quota_to_the_next() -> None:
    first = replace(pool_job("b", 24), time_limit_s=600)
    assert 600 <= starts("kueue", first, pool_job("b", 24, 1))[1] <= 600 + SOON_S


def test_static_partitions_are_simulated_each_for_itself_and_joined() -> None:
    record = run("static", load(pool_job("b", 8), pool_job("a", 16, 5), pool_job("b", 8, 6)))
    assert sorted(one.number for one in record.jobs) == [0, 1, 2]
    assert {one.number: one.tenant for one in record.jobs} == {0: "b", 1: "a", 2: "b"}


def test_a_term_of_loans_lets_the_lender_wait_for_it() -> None:
    borrowers = [pool_job("b", 8, at_s) for at_s in range(3)]
    record = run("slicewise", load(*borrowers, pool_job("a", 8, 300)), term_s=1200)
    lender = next(one for one in record.jobs if one.tenant == "a")
    assert 1200 <= lender.runs[0].start_s <= 1200 + 2 * SOON_S


def replayed(tenant: str, gpus: int, submit_s: float, *runs: ReplayedRun) -> ReplayedJob:
    return ReplayedJob(0, tenant, gpus * GPU_MILLISLICES, submit_s, HOUR_S, runs)


def test_only_the_last_run_of_a_job_is_work() -> None:
    ran = replayed("a", 2, 0, ReplayedRun(0, 100), ReplayedRun(200, 500))
    goes_on = replayed("b", 1, 0, ReplayedRun(900, None))
    gone = replace(replayed("a", 1, 0, ReplayedRun(0, 50)), waits_again=True)
    assert work((ran, goes_on, gone), 0, 1000) == (2 * 300 + 100, 2 * 100 + 50, 2)


def test_idle_hours_count_where_another_one_waits() -> None:
    # b waits for 8 GPUs for an hour, while all of a's 16 are idle; then nobody waits.
    first = replayed("b", 8, 0, ReplayedRun(0, HOUR_S))
    second = replayed("b", 8, 0, ReplayedRun(HOUR_S, 2 * HOUR_S))
    found = idle((first, second), load(end_s=2 * HOUR_S), is_pool=False)
    assert found == Idle(all_hours=32.0, while_wanted=16.0, wanted=8.0)
    # A virtual cluster's own idle GPUs are none that others left.
    own = idle((replayed("b", 16, 0),), load(end_s=HOUR_S), is_pool=False)
    assert (own.while_wanted, own.wanted) == (16.0, 16.0)


def test_what_is_left_of_recoverable_hours_is_not_recovered() -> None:
    # In the pool b waits half an hour for 8 of the 16 GPUs that are free.
    first = replayed("b", 8, 0, ReplayedRun(0, HOUR_S))
    second = replayed("b", 8, 0, ReplayedRun(HOUR_S / 2, 1.5 * HOUR_S))
    pool = idle((first, second), load(end_s=2 * HOUR_S), is_pool=True)
    assert (pool.while_wanted, pool.wanted) == (8.0, 4.0)
    static = Idle(all_hours=32.0, while_wanted=16.0, wanted=8.0)
    assert recovered(static, pool) == 0.5
    assert recovered(Idle(1.0, 0.0, 0.0), Idle(1.0, 0.0, 0.0)) == 1.0


def test_the_replay_is_held_against_recorded_minutes() -> None:
    jobs = (replayed("b", 8, 0, ReplayedRun(0, 60)), replayed("b", 8, 30, ReplayedRun(60, 120)))
    recorded: Mapping[str, Sequence[Minute]] = {"b": (Minute(8, 4), Minute(6, 0))}
    by = load(end_s=120, recorded=recorded)
    record = replace(run("static", by), jobs=jobs)
    error = replay_error(record, by)
    assert error is not None
    assert (error.running, error.waiting) == (2 / 14, 4 / 4)
    assert (error.running_recorded, error.running_replayed) == (7.0, 8.0)
    assert error.idle_recorded.while_wanted == 16 / 60
    assert replay_error(record, load()) is None


def test_figures_name_who_waits_longest_and_who_was_late() -> None:
    by = load(pool_job("b", 8), pool_job("b", 8, 1), pool_job("a", 8))
    found = figures_of("static", run("static", by), by, is_pool=False)
    assert (found.jobs, found.unstarted, found.worst_tenant) == (3, 0, "b")
    assert found.starved_s == pytest.approx(HOUR_S, abs=SOON_S)
    assert found.late_jobs == 0
    assert found.used == pytest.approx(found.allocated)


def test_jobs_go_over_whole_nodes_with_as_many_gpus_on_each() -> None:
    assert [spread(gpus) for gpus in (0, 1, 8, 12, 14, 16)] == [
        (0, 0), (1, 1), (1, 8), (2, 6), (2, 7), (2, 8),
    ]  # fmt: skip
    assert spread(118) == (15, 8)


def test_each_job_asks_for_more_time_than_it_runs_the_same_for_a_seed() -> None:
    jobs = (
        replace(pool_job("A", 8), gpus={"": 8}),
        replace(pool_job("b", 0), gpus={}),
        pool_job("b", 8, 50),
    )
    found = ready(jobs, 1, 0, 40)
    assert [one.account for one in found] == ["a"]
    assert found[0].time_limit_s in {3600, 7200, 10_800, 14_400}
    assert ready(jobs, 1, 0, 100)[0] == found[0]


def test_virtual_clusters_of_unknown_size_have_their_demand_and_their_largest_job() -> None:
    jobs = (pool_job("a", 8, 0, 60.0), pool_job("b", 1, 0, 10.0), pool_job("b", 17, 100, 1.0))
    assert sized(jobs, 100, 0.5) == {"a": 16, "b": 24}


def test_helios_counts_become_jobs_and_sizes_of_virtual_clusters(tmp_path: Path) -> None:
    counts = "0,vcA,4,0,4,1,0\n1,vcA,8,4,0,2,1\n0,vcB,0,0,8,0,0\n1,vcB,0,0,8,0,0\n"
    header = "minute,vc,running_gpu,pending_gpu,idle_gpu,running_jobs,pending_jobs\n"
    with lzma.open(tmp_path / HELIOS, "wt") as file:
        file.write(header + counts)
    found = helios(tmp_path, 1)
    assert found.gpus == {"vca": 8, "vcb": 8}
    assert found.recorded["vca"] == [Minute(4, 0), Minute(8, 4)]
    assert sum(job.gpus[GPU] for job in found.jobs) == 12
    assert {(job.account, job.nodes) for job in found.jobs} == {("vca", 1)}
    assert found.end_s == 120.0


def test_drawn_jobs_ask_for_the_share_and_wait_by_their_size() -> None:
    by = drawn(1, 0.2, 2.0)
    assert sum(by.gpus.values()) == GPUS
    asked = sum(sum(one.gpus.values()) * one.run_s for one in by.jobs)
    assert 0.2 <= asked / (GPUS * by.end_s) < 0.6
    assert all(one.time_limit_s and one.run_s < one.time_limit_s for one in by.jobs)
    found = waits_by_size(run("fifo", by))
    assert found.keys() <= set(SIZES)
    assert sum(map(len, found.values())) == len(by.jobs)
