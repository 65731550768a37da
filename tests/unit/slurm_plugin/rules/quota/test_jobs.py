"""Tests what jobs hold, and that values beside others carry nothing on but their own parts."""

from dataclasses import replace

from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder

GPU, COSTS = frozenset({"gpu"}), {"1g.10gb": Millislices(1000)}


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
