"""Tests Kueue's rules as the headline benchmark has them: nominal quota, borrowing, reclaim."""

from builders.site_world import BEGIN_S, COSTS, DAY_S, GPU, cluster, past

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.site.simulated_site import SiteTimes
from studies.headline.kueue import Admissions, Workload, cycle
from studies.headline.kueue_site import KueueSite

QUOTAS = {"a": 4, "b": 4}


def work(job_id: int, queue: str, amount: int, since_s: float = 0.0) -> Workload:
    return Workload(job_id, queue, amount, since_s)


def site(*jobs: HistoryJob) -> SiteRecord:
    """Two queues with four GPUs each, on two nodes of four."""
    on, times = cluster(), SiteTimes(BEGIN_S, BEGIN_S + DAY_S, BEGIN_S + DAY_S)
    found = replays(enumerate(jobs), Replayable(on, COSTS), begin_s=BEGIN_S, end_s=times.last_s)
    quotas = {name: count * GPU for name, count in QUOTAS.items()}
    return KueueSite(on, COSTS, {"a100": quotas}, found, times).run()


def test_a_queue_borrows_what_its_cohort_leaves_idle() -> None:
    assert cycle(QUOTAS, [work(1, "a", 8)], []) == Admissions((1,))
    assert cycle(QUOTAS, [work(1, "a", 9)], []) == Admissions()


def test_who_stays_within_nominal_comes_before_an_older_borrower() -> None:
    waiting = work(1, "a", 6, 0), work(2, "b", 3, 1)
    assert cycle(QUOTAS, waiting, []) == Admissions((2,))


def test_a_workload_that_does_not_fit_lets_younger_ones_pass() -> None:
    waiting = work(2, "a", 8, 1), work(3, "a", 2, 2)
    assert cycle(QUOTAS, waiting, [work(1, "a", 4)]) == Admissions((3,))


def test_nominal_quota_is_reclaimed_from_the_newest_borrowers() -> None:
    running = work(1, "a", 4, 0), work(2, "a", 2, 1), work(3, "a", 2, 2)
    assert cycle(QUOTAS, [work(4, "b", 2, 3)], running) == Admissions((4,), (3,))
    assert cycle(QUOTAS, [work(4, "b", 4, 3)], running) == Admissions((4,), (3, 2))


def test_who_need_not_end_is_spared() -> None:
    running = work(1, "a", 3, 0), work(2, "a", 4, 1), work(3, "a", 1, 2)
    assert cycle(QUOTAS, [work(4, "b", 4, 3)], running) == Admissions((4,), (2,))


def test_a_queue_that_does_not_borrow_loses_nothing() -> None:
    running = work(1, "a", 4), work(2, "b", 4)
    assert cycle(QUOTAS, [work(3, "b", 1)], running) == Admissions()


def test_a_preempted_job_runs_again_from_the_beginning() -> None:
    jobs = past("a", 4, 0, 9000.0), past("a", 4, 1, 3000.0), past("b", 4, 1000)
    borrower, lender = site(*jobs).jobs[1:]
    assert lender.runs[0].start_s - BEGIN_S <= 1010
    first, second = borrower.runs
    assert first.end_s is not None
    assert first.end_s <= lender.runs[0].start_s
    assert second.end_s == second.start_s + 3000
    assert not borrower.waits_again


def test_who_gives_up_waiting_is_cancelled() -> None:
    jobs = past("a", 4), past("b", 4), past("a", 4, 5, 100.0, is_cancelled_waiting=True)
    record = site(*jobs)
    assert record.jobs[2].given_up_s == BEGIN_S + 105
    assert record.jobs[2].runs == ()
