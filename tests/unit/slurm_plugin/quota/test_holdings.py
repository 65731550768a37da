"""Tests that what is carried on of an earlier look is what a look of its own would find."""

from dataclasses import replace
from random import Random

from stand_ins.scripted import job

from cluster.language.jobs import JobState, JobView
from cluster.language.units import Millislices
from slurm_plugin.quota.demand import holdings
from slurm_plugin.quota.holdings import Holdings

GPU, COSTS = frozenset({"gpu"}), {"1g.10gb": Millislices(1000)}


def run(job_id: int, account: str = "a", qos: str = "slicewise_a", count: int = 1) -> JobView:
    tres = {"gres/gpu:1g.10gb": str(count)}
    shown = job(job_id, account=account, qos=qos, tres=tres)
    return replace(shown, state=JobState.RUNNING, held=False)


def look(jobs: dict[int, JobView]) -> Holdings:
    return holdings(jobs.values(), GPU, COSTS, {})


def test_a_run_that_came_and_one_that_went_change_the_sums_of_their_places() -> None:
    first = {1: run(1), 2: run(2), 3: run(3, "b", "slicewise_b")}
    before = look(first)
    assert before.by_qos == {("a", "slicewise_a"): 2000, ("b", "slicewise_b"): 1000}
    fourth = run(4, "b", "slicewise_a", 5)
    after = look({1: first[1], 4: fourth}).knowing(before)
    assert after.by_qos == {("a", "slicewise_a"): 1000, ("b", "slicewise_a"): 5000}
    assert after.by_tenant == {"a": 6000}
    assert [one.job for one in after.priced] == [first[1], fourth]


def test_the_same_runs_are_summed_up_once() -> None:
    first = {1: run(1), 2: replace(run(2), state=JobState.PENDING)}
    before = look(first)
    assert before.by_tenant == {"a": 1000}
    after = look({1: first[1], 3: first[2]}).knowing(before)
    assert (after.by_tenant is before.by_tenant, after.others) == (True, (first[2],))


def test_whatever_changes_a_look_that_knows_the_last_one_finds_the_same() -> None:
    draw = Random(7)  # noqa: S311 -- jobs, no secret
    jobs = {number: run(number) for number in range(20)}
    known = look({})
    for _ in range(200):
        for number in draw.sample(range(30), draw.randrange(4)):
            place = draw.choice("ab"), f"slicewise_{draw.choice('ab')}"
            if draw.random() < 0.3:
                jobs.pop(number, None)
            else:
                jobs[number] = run(number, *place, draw.randrange(4))
        known, fresh = look(jobs).knowing(known), look(jobs)
        assert (known.by_qos, known.by_tenant) == (fresh.by_qos, fresh.by_tenant)
        assert list(known.priced) == list(fresh.priced)
        assert {place: {*runs} for place, runs in known.places.items()} == {
            place: {*runs} for place, runs in fresh.places.items()
        }


def test_a_queue_in_which_nothing_changed_is_the_same_one() -> None:
    waits = {1: job(1, qos="slicewise_a"), 2: job(2, qos="slicewise_b"), 3: run(3)}
    before = look(waits)
    first = before.queues["slicewise_a"]
    for more in ({4: run(4)}, {2: replace(waits[2], priority=9)}):
        after = look(waits | more).knowing(before)
        assert after.queues["slicewise_a"] is first
        assert after.queues["slicewise_b"].seen == (more.get(2, waits[2]),)
    for less in ({1: replace(waits[1], priority=9)}, {5: job(5, qos="slicewise_a")}):
        jobs = waits | less
        found = look(jobs).knowing(before).queues["slicewise_a"]
        assert set(found.seen) == {one for one in jobs.values() if one.qos == "slicewise_a"} - {
            jobs[3]
        }
