"""Tests which shapes guarantees need: present use, then recent use, up to the guaranteed quota."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from builders.jobs import a_job
from builders.runs import a_run_record
from builders.tenants import policy_of, tenant
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView, RunRecord
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.mig.guaranteed_shapes import Needs, needs
from slicewise.slurm_plugin.rules.quota.types import Policy

ONE, THREE, WHOLE = "1g.10gb", "3g.40gb", "7g.80gb"
COSTS = {kind: Millislices(cost) for kind, cost in ((ONE, 1000), (THREE, 3500), (WHOLE, 7000))}
MODELS = dict.fromkeys(COSTS, "A100-80GB")
GPU = frozenset({"gpu"})
VISION = policy_of(tenant("vision", 7000))


def plain(
    number: int, kind: str = ONE, state: JobState = JobState.RUNNING, **changes: Any
) -> JobView:
    tres = {"tres": {f"gres/gpu:{kind}": "1"}, "reason": "Resources"}
    return a_job(number, state=state, **({"admin_comment": ""} | tres | changes))


def run(start_s: int, end_s: int | None, kind: str, count: int = 1, **changes: Any) -> RunRecord:
    tres = {f"gres/gpu:{kind}": str(count)}
    return a_run_record(start_s, end_s, job_id=start_s, tres=tres, **changes)


def seen(*what: JobView | RunRecord, policy: Policy = VISION) -> Needs:
    jobs = [one for one in what if isinstance(one, JobView)]
    runs = [one for one in what if isinstance(one, RunRecord)]
    return needs(policy, jobs, runs, GPU, costs=COSTS, models=MODELS)


def need(*what: JobView | RunRecord, policy: Policy = VISION) -> Mapping[str, int]:
    return {kind: count for kind, count in seen(*what, policy=policy).all.items() if count}


def test_who_used_whole_gpus_lately_needs_as_many_as_its_guarantee_pays():
    runs = [run(10, 50, WHOLE), run(20, 60, WHOLE), run(60, None, WHOLE)]
    assert need(*runs) == {WHOLE: 1}
    assert need(*runs, policy=policy_of(tenant("vision", 20_000))) == {WHOLE: 2}
    assert need(*runs, policy=policy_of(tenant("vision", 6_999))) == {}
    assert need(*runs, policy=policy_of(tenant("nlp", 7_000))) == {}


def test_a_run_that_begins_in_the_second_in_which_another_ends_follows_it():
    twice = policy_of(tenant("vision", 14_000))
    assert need(run(10, 50, WHOLE), run(50, 90, WHOLE), policy=twice) == {WHOLE: 1}
    assert need(run(10, 51, WHOLE), run(50, 90, WHOLE), policy=twice) == {WHOLE: 2}


def test_what_it_uses_now_comes_before_what_it_used():
    lately = run(10, 50, WHOLE)
    assert need(lately, plain(1)) == {ONE: 1}
    waiting = plain(2, THREE, JobState.PENDING)
    assert need(lately, waiting) == {THREE: 1}
    assert need(lately, waiting, plain(1)) == {ONE: 1, THREE: 1}
    assert need(plain(1), run(10, 50, ONE, 3), run(70, 90, THREE)) == {ONE: 3, THREE: 1}


def test_only_what_is_used_now_is_claimed():
    found = seen(plain(1), plain(2, THREE, JobState.PENDING), run(10, 50, ONE, 9), job(0))
    assert +Counter(found.claimed) == {ONE: 1, THREE: 1}
    assert +Counter(found.all) == {ONE: 3, THREE: 1}
    assert not +Counter(seen(run(10, 50, WHOLE)).claimed)


def test_slots_and_runs_of_an_account_in_the_qos_of_a_tenant_count_for_that_tenant():
    slot = job(0, account="students", tres={f"gres/gpu:{WHOLE}": "1"})
    assert need(slot) == {WHOLE: 1}
    assert need(replace(slot, qos="normal")) == {}
    lately = run(10, 50, WHOLE, account="students")
    assert need(replace(lately, qos="slicewise_vision_borrowed")) == {WHOLE: 1}
    assert need(lately) == {}


def test_who_holds_comes_before_who_waits_and_never_more_than_the_own_part_counts():
    held = [plain(number, THREE) for number in (1, 2)]
    assert need(*held, plain(3, WHOLE, JobState.PENDING)) == {THREE: 2}
    many = plain(4, ONE, JobState.PENDING, untouched=frozenset(range(50)))
    assert need(plain(1, THREE), many) == {THREE: 1, ONE: 3}


def test_what_is_borrowed_is_no_guarantee_but_says_what_is_used():
    borrowed = plain(1, THREE, qos="slicewise_vision_borrowed")
    assert need(borrowed) == {}
    assert need(borrowed, run(10, None, THREE)) == {THREE: 1}


def test_the_slots_of_services_at_rest_are_wanted_any_moment():
    assert need(job(0), job(1), run(10, 50, THREE)) == {THREE: 1, ONE: 2}
    rest = job(0, task_index=None, untouched=frozenset(range(20)))
    assert need(rest) == {ONE: 7}
    assert need(replace(rest, admin_comment="")) == {}


def test_limits_on_types_and_other_partitions_count():
    limited = policy_of(tenant("vision", 7000, type_limits={THREE: 1, WHOLE: 0}))
    assert need(run(10, 50, WHOLE), run(10, 50, THREE, 2), policy=limited) == {THREE: 1}
    by_type = policy_of(tenant("vision", 7000, type_nominals={THREE: 1, WHOLE: 0}))
    assert need(run(10, 50, WHOLE), run(10, 50, THREE, 2), policy=by_type) == {THREE: 1}
    assert need(policy=by_type) == {THREE: 1}
    elsewhere = (plain(1, partition="cpu"), run(10, 50, WHOLE, partition="cpu"))
    assert need(*elsewhere) == {}
    assert need(run(10, 50, "unpriced", 4)) == {}


def test_of_a_named_type_one_more_is_needed_than_is_claimed():
    by_type = policy_of(tenant("vision", 14_000, type_nominals={THREE: 3}))
    assert need(policy=by_type) == {THREE: 1}
    assert need(plain(1, THREE), policy=by_type) == {THREE: 2}
    assert need(run(10, 50, THREE, 2), policy=by_type) == {THREE: 2}
    held = [plain(number, THREE) for number in (1, 2, 3)]
    assert need(*held, policy=by_type) == {THREE: 3}


def test_all_tenants_together_need_no_more_than_their_own_parts():
    policy = policy_of(tenant("vision", 7000), tenant("nlp", 3500, parent="vision"))
    runs = [run(10, 50, THREE, 2), replace(run(10, 50, ONE, 9), account="nlp")]
    assert need(*runs, policy=policy) == {THREE: 1, ONE: 3}
