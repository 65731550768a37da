"""Tests what jobs hold, and that values beside others carry nothing on but their own parts."""

from dataclasses import replace
from random import Random

from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder

GPU, COSTS = frozenset({"gpu"}), {"1g.10gb": Millislices(1000)}


def run(job_id: int, account: str = "a", qos: str = "slicewise_a", count: int = 1) -> JobView:
    tres = {"gres/gpu:1g.10gb": str(count)}
    shown = job(job_id, account=account, qos=qos, tres=tres)
    return replace(shown, state=JobState.RUNNING, held=False)


def waits(job_id: int, qos: str = "slicewise_a") -> JobView:
    return replace(run(job_id, qos=qos), state=JobState.PENDING, reason="QOSGrpBilling")


def test_the_same_runs_beside_other_jobs_hold_the_same_and_same_queues_stay() -> None:
    run = replace(job(1, tres={"gres/gpu:1g.10gb": "1"}), state=JobState.RUNNING, held=False)
    first, second = job(2, qos="slicewise_a"), job(3, qos="slicewise_b")
    before = jobs_by_holder((run, first, second), GPU, COSTS, {})
    after = before.with_others((first, moved := replace(second, priority=9)))
    assert after.held is before.held
    assert after.queues["slicewise_a"] is before.queues["slicewise_a"]
    assert after.queues["slicewise_b"].seen == (moved,)


def test_a_decision_leaves_nothing_in_a_record() -> None:
    run = replace(job(1, tres={"gres/gpu:1g.10gb": "1"}), state=JobState.RUNNING, held=False)
    cheap, dear = COSTS, {"1g.10gb": Millislices(1500)}
    held = [jobs_by_holder((run,), GPU, costs, {}).held.by_tenant for costs in (cheap, cheap, dear)]
    assert [sum(of.values()) for of in held] == [1000, 1000, 1500]
    known = {"is_doubtful", "gpus", "untyped_gpus"}
    assert {name for name in vars(run) if name not in run.__dataclass_fields__} <= known


def test_a_run_that_came_and_one_that_went_change_the_sums_of_their_places() -> None:
    nobody, first = jobs_by_holder((), GPU, COSTS, {}), (run(1), run(2), run(3, "b", "slicewise_b"))
    before = nobody.at_look(first, GPU)
    assert before.held.by_qos == {("a", "slicewise_a"): 2000, ("b", "slicewise_b"): 1000}
    fourth = run(4, "b", "slicewise_a", 5)
    after = before.at_look((first[0], fourth), GPU).held
    assert after.by_qos == {("a", "slicewise_a"): 1000, ("b", "slicewise_a"): 5000}
    assert after.by_tenant == {"a": 6000}
    assert [one.job for one in after.priced] == [first[0], fourth]


def test_the_same_runs_are_summed_up_once() -> None:
    runs, waiting = run(1), waits(2)
    before = jobs_by_holder((runs, waiting), GPU, COSTS, {})
    after = before.at_look((runs,), GPU)
    assert (after.held is before.held, after.others) == (True, ())


def test_whatever_changes_jobs_are_as_at_a_fresh_look() -> None:
    draw = Random(7)  # noqa: S311 -- jobs, no secret
    jobs = {number: run(number) for number in range(20)}
    known = jobs_by_holder((), GPU, COSTS, {})
    for _ in range(200):
        for number in draw.sample(range(30), draw.randrange(4)):
            place = draw.choice("ab"), f"slicewise_{draw.choice('ab')}"
            if draw.random() < 0.3:
                jobs.pop(number, None)
            elif draw.random() < 0.3:
                jobs[number] = waits(number, place[1])
            else:
                jobs[number] = run(number, *place, draw.randrange(4))
        known = known.at_look(jobs.values(), GPU)
        fresh = jobs_by_holder(jobs.values(), GPU, COSTS, {})
        assert (known.held.by_qos, known.held.by_tenant) == (
            fresh.held.by_qos,
            fresh.held.by_tenant,
        )
        assert (known.runs, known.others) == (fresh.runs, fresh.others)
        assert known.held.priced == fresh.held.priced
        for ours, theirs in ((known.held.places, fresh.held.places), (known.queues, fresh.queues)):
            assert ours.keys() == theirs.keys()
        assert all({*runs} == {*fresh.held.places[at]} for at, runs in known.held.places.items())
        assert (known.own, known.for_loans) == (fresh.own, fresh.for_loans)
        assert all(queue.seen == fresh.queues[qos].seen for qos, queue in known.queues.items())


def test_a_queue_in_which_nothing_changed_is_the_same_one() -> None:
    jobs = {1: waits(1), 2: waits(2, "slicewise_b"), 3: run(3)}
    before = jobs_by_holder(jobs.values(), GPU, COSTS, {})
    first = before.queues["slicewise_a"]
    for more in ({4: run(4)}, {2: replace(jobs[2], priority=9)}):
        after = before.at_look((jobs | more).values(), GPU)
        assert after.queues["slicewise_a"] is first
        assert after.queues["slicewise_b"].seen == (more.get(2, jobs[2]),)
    changed = {**jobs, 1: replace(jobs[1], priority=9)}
    assert before.at_look(changed.values(), GPU).queues["slicewise_a"].seen == (changed[1],)
