"""Tests the rules of priority, both schedulers that replay them, and the figures."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pool_world import HOUR_S, pool_job, pool_load

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.records import ReplayedJob, ReplayedRun, SiteRecord
from studies.headline.loads import Load
from studies.headline.systems import GPU_MILLISLICES
from studies.priorities import rules
from studies.priorities.__main__ import RULES, with_whole_days
from studies.priorities.figures import beside_best, chosen, figures_of, means
from studies.priorities.light import LightPool, in_order_of, mean_slowdown
from studies.priorities.loads import Window, busy_windows, split
from studies.priorities.processor_logs import ProcessorLog, read_log
from studies.priorities.queues import Policy, Queue, site_factors
from studies.priorities.site import replay

DAY_S = 86_400.0
SOON_S = 60.0


def queue(**columns: Sequence[float]) -> Queue:
    size = len(next(iter(columns.values())))
    plain = {"gpus": 1.0, "limit_s": HOUR_S, "came_s": 0.0, "waited_s": 0.0}
    plain |= {"held": 0.0, "share": 1.0}
    arrays = {
        name: np.array(columns.get(name, [value] * size), dtype=float)
        for name, value in plain.items()
    }
    return Queue(**arrays, pool_gpus=64, free=0.5)


def first(policy: Policy, **columns: Sequence[float]) -> int:
    return int(np.argmax(policy(queue(**columns))))


def test_site_factors_have_the_order_of_the_scores() -> None:
    scores = np.array([-1e12, -3.5, -1e-9, 0.0, 1e-9, 0.5, 2.0, 1e12])
    found = site_factors(scores)
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert 0 <= found[0] <= found[-1] < 2**32 - 2


def test_each_rule_prefers_what_it_says() -> None:
    assert first(rules.fifo, came_s=[5, 2, 9]) == 1
    assert first(rules.saf, gpus=[1, 8, 2], limit_s=[8 * HOUR_S, HOUR_S, HOUR_S]) == 2
    assert first(rules.wfp3, waited_s=[HOUR_S, HOUR_S], limit_s=[HOUR_S, 2 * HOUR_S]) == 0
    assert first(rules.wfp3, waited_s=[HOUR_S, HOUR_S], gpus=[1, 8]) == 1
    assert first(rules.f1, came_s=[1000, 1000], gpus=[8, 1]) == 1
    assert first(rules.f1, came_s=[1000, 10], gpus=[1, 8]) == 1


@pytest.mark.parametrize("policy", [rules.slicewise, rules.slicewise_sizeless])
def test_with_slicewise_s_formula_tenants_that_used_less_go_first_until_the_wait_is_full(
    policy: Policy,
) -> None:
    assert first(policy, share=[0.2, 0.9]) == 1
    old = policy(queue(share=[0.0, 1.0], waited_s=[DAY_S, 2 * DAY_S], gpus=[64, 1]))
    assert old[0] == old[1] == old.max()
    assert policy(queue(share=[1.0], waited_s=[15 * HOUR_S]))[0] < old[0]


def test_with_a_bound_the_smallest_area_is_first_until_a_job_has_waited_in_full() -> None:
    # Who asks for an hour has waited in full after 16 hours, who asks for three after 24.
    asked = {"gpus": [8, 1], "limit_s": [3 * HOUR_S, HOUR_S], "came_s": [0, 1]}
    assert first(rules.saf_bounded, **asked, waited_s=[23 * HOUR_S, 15 * HOUR_S]) == 1
    assert first(rules.saf_bounded, **asked, waited_s=[24 * HOUR_S, 15 * HOUR_S]) == 0
    both = rules.saf_bounded(queue(**asked, waited_s=[24 * HOUR_S, 16 * HOUR_S]))
    assert both[0] == both[1]


def test_with_one_bound_for_all_it_does_not_matter_what_a_job_asks_for() -> None:
    asked = {"limit_s": [HOUR_S, 40 * HOUR_S], "waited_s": [23 * HOUR_S, 24 * HOUR_S]}
    assert first(rules.slicewise_24h, **asked) == 1
    assert first(rules.slicewise_72h, **asked) == 0
    assert first(rules.slicewise, **asked) == 0


def log(folder: Path, *lines: str) -> Path:
    (folder / "made.swf").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_log_of_processors_becomes_a_load_of_whole_gpus_with_real_limits(tmp_path: Path) -> None:
    line = "{} {} 0 60 {} -1 -1 {} {} -1 1 {} 3 -1 -1 {} -1 -1"
    lines = (
        line.format(1, 10_000, 8, 1, 600, 7, 8),
        line.format(2, 20_000, 6, 6, -1, 7, 8),
        line.format(3, 30_000, 4, 4, 600, 7, 9),
        line.format(4, 400_000, 8, 8, 600, 8, 8),
    )
    made = ProcessorLog("made", "made.swf", "8", 4, 1.0, None, has_nodes=True)
    found = read_log(made, log(tmp_path, *lines), 1, None)
    assert [sum(job.gpus.values()) for job in found.jobs] == [2, 2]
    assert found.jobs[0].time_limit_s == 600
    assert found.jobs[1].time_limit_s == 3600
    assert len({job.account for job in found.jobs}) == 1
    assert all(abs(job.submit_s - 10_000 * job.job_id) <= 1800 for job in found.jobs)
    assert read_log(made, tmp_path, 1, None) == found


def test_the_term_for_areas_prefers_small_jobs_only() -> None:
    assert first(rules.slicewise, gpus=[8, 1], limit_s=[8 * HOUR_S, 2 * HOUR_S]) == 1
    assert first(rules.slicewise_sizeless, gpus=[8, 1], limit_s=[8 * HOUR_S, 2 * HOUR_S]) == 0


def window(*jobs: tuple[float, float, float], gpus: float = 8.0) -> Window:
    """Jobs of one tenant: when they come, their GPUs, and seconds that they run and ask for."""
    come, size, run = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    tenant = np.zeros(come.size, dtype=np.int64)
    return Window(come, size, run, run, tenant, np.ones(come.size, dtype=bool), np.array([gpus]), 0)


def waits(of: Window, policy: Policy) -> list[float]:
    found: list[float] = LightPool(of, in_order_of(policy)).run().tolist()
    return found


def test_the_light_pool_starts_jobs_in_the_policy_s_order() -> None:
    of = window((0, 8, 100), (1, 8, 50), (2, 8, 10))
    assert waits(of, rules.fifo) == [0, 99, 148]
    assert waits(of, rules.saf) == [0, 109, 98]


def test_it_backfills_what_does_not_delay_the_first_that_waits() -> None:
    # 4 GPUs are free; the second waits for all 8. Of the others only a short one may start.
    of = window((0, 4, 100), (1, 8, 50), (2, 4, 97), (3, 4, 98))
    assert waits(of, rules.fifo) == [0, 99, 0, 147]
    # A long one may start beside the first that waits, on GPUs which that one leaves.
    of = window((0, 4, 100), (1, 6, 50), (2, 2, 500), (3, 2, 500))
    assert waits(of, rules.fifo) == [0, 99, 0, 147]


def test_slowdowns_are_bounded_by_ten_seconds_and_counted_jobs() -> None:
    of = window((0, 8, 100), (0, 8, 1))
    assert mean_slowdown(of, in_order_of(rules.fifo)) == pytest.approx((1 + 101 / 10) / 2)
    only = replace(of, counts=np.array([True, False]))
    assert mean_slowdown(only, in_order_of(rules.fifo)) == 1.0


def test_what_waiting_costs_is_counted_in_lengths_of_runs() -> None:
    pool = LightPool(window((0, 8, 100), (0, 8, 50)), in_order_of(rules.fifo))
    pool.run()
    assert pool.cost == pytest.approx(100 / 50)


def load(*jobs: HistoryJob, end_s: float = DAY_S) -> Load:
    return pool_load({"a": 8, "b": 8}, *jobs, end_s=end_s)


def started(policy: Policy, *jobs: HistoryJob, **how: Any) -> Sequence[float]:
    found = {one.number: one for one in replay(load(*jobs), policy, **how).jobs}
    return [found[number].runs[0].start_s for number in range(len(jobs))]


def test_on_slurm_s_model_the_policy_orders_the_queue() -> None:
    large, small = pool_job("a", 16, 10, 2 * HOUR_S), pool_job("b", 16, 20, 600)
    full = pool_job("a", 16, 0, HOUR_S)
    by_time = started(rules.fifo, full, large, small)
    by_area = started(rules.saf, full, large, small)
    assert by_time[1] < by_time[2]
    assert by_area[2] < by_area[1]
    assert by_area[0] == pytest.approx(0, abs=SOON_S)


def test_scores_that_change_while_a_job_waits_are_written_to_slurm() -> None:
    # At its submission the second has waited for nothing; later its short limit counts.
    full = pool_job("a", 16, 0, HOUR_S)
    early, late = pool_job("a", 16, 10, 2 * HOUR_S), pool_job("b", 16, 20, 600)
    found = started(rules.wfp3, full, early, late)
    assert found[2] < found[1]


def test_nodes_are_kept_for_the_first_as_far_as_backfill_plans() -> None:
    # The second waits for both nodes, of which one is held for more than a day.
    held = pool_job("a", 8, 0, 30 * HOUR_S)
    large, other = pool_job("a", 16, 60, HOUR_S), pool_job("b", 8, 120, 40 * HOUR_S)
    near = started(rules.fifo, held, large, other)
    far = started(rules.fifo, held, large, other, window_s=2 * DAY_S)
    assert near[2] < HOUR_S < DAY_S < near[1]
    assert far[1] < far[2]


def test_fair_share_decides_between_equal_scores() -> None:
    # Slurm ranks only those who have ever run something.
    before = pool_job("a", 16, 0, 10.0), pool_job("b", 16, 1)
    jobs = *before, pool_job("b", 16, 1800), pool_job("a", 16, 1801)
    found = started(RULES["fair_share"], *jobs, by_shares=True)
    assert found[3] < found[2]


def test_a_load_is_split_in_time_and_fills_its_pools() -> None:
    jobs = [pool_job("a", 8, hour * HOUR_S, 2 * HOUR_S) for hour in range(48)]
    gone = replace(jobs[0], is_cancelled_waiting=True)
    found = split(load(gone, *jobs, end_s=2 * DAY_S), 1.0)
    assert found.count_from_s == DAY_S
    assert [one.submit_s for one in found.trained.jobs] == [one.submit_s for one in jobs[:24]]
    assert len(found.counted.jobs) == 48
    assert found.counted.begin_s == 0.0
    # 16 GPUs are wanted all the time: 17.8 for 90 %, in whole nodes.
    assert sum(found.counted.gpus.values()) == 24
    assert set(found.counted.gpus) == {"a", "b"}


def test_windows_begin_with_what_ran_for_the_rest_of_its_time() -> None:
    jobs = (
        pool_job("a", 8, 0.0, 2 * DAY_S),
        pool_job("b", 4, DAY_S + 5, 100),
        pool_job("b", 1, 3 * DAY_S),
    )
    both = busy_windows(load(*jobs, end_s=2 * DAY_S), 24.0, 2)
    assert [one.begin_s for one in both] == [0.0, DAY_S]
    (second,) = busy_windows(load(*jobs, end_s=2 * DAY_S), 24.0, 1)
    assert second.begin_s == DAY_S
    assert second.run_s.tolist() == [DAY_S, 100]
    assert second.submit_s.tolist() == [DAY_S, DAY_S + 5]
    assert second.counts.tolist() == [False, True]


def test_blunt_limits_are_whole_days() -> None:
    found = with_whole_days(load(pool_job("a", 1, 0), pool_job("a", 1, 0, DAY_S + 1)))
    assert [one.time_limit_s for one in found.jobs] == [DAY_S, 2 * DAY_S]


def replayed(tenant: str, gpus: int, wait_s: float, run_s: float, number: int = 0) -> ReplayedJob:
    run = ReplayedRun(100 + wait_s, 100 + wait_s + run_s)
    return ReplayedJob(number, tenant, gpus * GPU_MILLISLICES, 100, run_s, (run,))


def test_figures_of_jobs_that_count() -> None:
    jobs = (
        replayed("a", 1, 0, 100),
        replayed("a", 8, 300, 100),
        replayed("b", 1, 20, 5),
        replayed("b", 1, 9999, 5, number=-1),
    )
    found = figures_of(SiteRecord(0, 1000, jobs), 50)
    assert found.jobs == 3
    assert found.slowdown == pytest.approx((1 + 4 + 2.5) / 3)
    assert found.wait_s == pytest.approx(320 / 3)
    assert found.worst_s == 150
    assert (found.large_s, found.longest_s, found.large_longest_s) == (300, 300, 300)
    assert found.jain == pytest.approx(1.0)
    assert figures_of(SiteRecord(0, 1000, (*jobs, replace(jobs[0], runs=()))), 50).unstarted == 1


def test_the_simplest_within_two_percent_of_the_best_is_chosen() -> None:
    def result(policy: str, seed: int, slowdown: float) -> dict[str, object]:
        return {"load": "x", "seed": seed, "policy": policy, "figures": {"slowdown": slowdown}}

    results = [
        result("fifo", 1, 9),
        result("saf", 1, 1),
        result("saf", 2, 3),
        result("ppo", 1, 1.97),
    ]
    shown = means(results)
    assert shown["x"]["saf"]["slowdown"] == 2.0
    ratios = beside_best(shown, "slowdown")
    assert ratios["saf"] == pytest.approx(2 / 1.97)
    assert chosen(ratios, ("fifo", "saf", "ppo")) == "saf"
    assert chosen({**ratios, "saf": 1.03}, ("fifo", "saf", "ppo")) == "ppo"
