"""Priorities on the model: recent use counts, and changes come at the daemon's rate."""

from dataclasses import replace

import pytest
from builders.model_world import job, model
from builders.site_world import BEGIN_S, GPU, SETTINGS, tenants

from slicewise.cluster.language.slurm.interface import JobChange
from slicewise.simulation.rules.site.priorities import PriorityRules, SitePriorities
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.admission.decayed_use import DecayedUse, Holding
from slicewise.slurm_plugin.rules.admission.formula import formula_of

RULES = PriorityRules(
    formula=formula_of(SETTINGS.priority),
    costs=SETTINGS.costs,
    half_life_s=SETTINGS.priority.half_life_s,
    updates_per_s=1.0,
    counts_past=True,
)
HOUR_S = 3600.0
NOTHING = DecayedUse(BEGIN_S)


def test_a_tenant_that_has_used_much_has_a_smaller_share() -> None:
    found = SitePriorities(RULES, NOTHING)
    used = Holding("a", 5 * GPU, BEGIN_S, None)
    found.follow(tenants(a=1, b=1), {}, [used], BEGIN_S + 40 * HOUR_S)
    assert found.shares["a"] < found.shares["b"] == 1.0
    assert found.lately["a"] > 0


def test_what_has_ended_since_the_last_round_was_used_and_nothing_counts_twice() -> None:
    at_once, by_and_by = SitePriorities(RULES, NOTHING), SitePriorities(RULES, NOTHING)
    policy, end_s = tenants(a=1), BEGIN_S + 40 * HOUR_S
    run = Holding("a", GPU, BEGIN_S + HOUR_S, BEGIN_S + 39 * HOUR_S)
    at_once.follow(policy, {}, [run], end_s)
    assert at_once.lately["a"] > 0
    for hour in range(1, 41):
        by_and_by.follow(policy, {}, [run], BEGIN_S + hour * HOUR_S)
    assert by_and_by.lately["a"] == pytest.approx(at_once.lately["a"], abs=1)


def test_what_was_held_all_the_time_counts_like_a_run_that_goes_on() -> None:
    held, ran = SitePriorities(RULES, NOTHING), SitePriorities(RULES, NOTHING)
    policy, end_s = tenants(a=1), BEGIN_S + 40 * HOUR_S
    held.follow(policy, {"a": GPU}, [], end_s)
    ran.follow(policy, {}, [Holding("a", GPU, BEGIN_S, None)], end_s)
    assert held.lately == ran.lately
    assert held.lately["a"] > 0


def test_past_use_counts_for_loans_only_where_the_site_says_so() -> None:
    found = SitePriorities(replace(RULES, counts_past=False), NOTHING)
    found.follow(tenants(a=1), {"a": GPU}, [], BEGIN_S + HOUR_S)
    assert found.lately == {}


def half_a_day_later(count: int) -> tuple[SlurmModel, SitePriorities]:
    """So many jobs that want one GPU, all submitted with site_factor 0."""
    there = model({"a100": 1})
    tag = "slicewise:1 token={} tenant=a flexible"
    ids = [
        there.submit(job(1, limit_s=None, account="a", admin_comment=tag.format(n)))
        for n in range(1, count + 1)
    ]
    there.advance(there.now_s + 12 * HOUR_S)
    found = SitePriorities(RULES, DecayedUse(there.now_s))
    for job_id in ids:
        found.note(job_id, 0)
    return there, found


def test_waiting_raises_a_job_no_faster_than_the_daemon_writes() -> None:
    there, found = half_a_day_later(30)
    first = found.due(there.jobs, there.now_s)
    # A second's allowance accumulates for ten seconds.
    assert len(first) == 10
    change = next(iter(first.values()))
    assert isinstance(change, JobChange)
    assert change.site_factor is not None
    assert change.site_factor > 0
    again = found.due(there.jobs, there.now_s + 15)
    assert len(again) == 15
    assert not first.keys() & again.keys()


def test_looks_at_slots_alone_leave_what_they_do_not_use_to_all_waiting_jobs() -> None:
    there, found = half_a_day_later(90)
    for after_s in (15, 30, 45):
        assert found.due((), there.now_s + after_s) == {}
    assert len(found.due(there.jobs, there.now_s + 60)) == 60


def test_who_is_passed_over_has_the_maximum() -> None:
    there = model({"a100": 1})
    tag = "slicewise:1 token={} tenant=a flexible"
    _, plain, over = (
        there.submit(job(1, limit_s=None, account="a", admin_comment=tag.format(n)))
        for n in range(1, 4)
    )
    there.advance(there.now_s + 60)
    found = SitePriorities(RULES, DecayedUse(there.now_s))
    for job_id in (plain, over):
        found.note(job_id, 0)
    due = found.due(there.jobs, there.now_s, frozenset({over}))
    assert due.keys() == {plain, over}
    assert due[over] == JobChange(site_factor=RULES.formula.max) != due[plain]


def test_a_slot_s_priority_rises_with_its_service_s_backlog_and_is_noted_once() -> None:
    there = model({"a100": 1})
    tag = "slicewise:1 token={} tenant=a service=chat"
    _, slot = (
        there.submit(job(1, limit_s=None, account="a", admin_comment=tag.format(n)))
        for n in range(1, 3)
    )
    there.advance(there.now_s + 60)
    found = SitePriorities(RULES, DecayedUse(there.now_s))
    found.note_slot(slot, 0)
    calm, pressed = (
        found.due(there.jobs, there.now_s, urgencies={slot: urgency})[slot].site_factor
        for urgency in (0.0, 1.0)
    )
    assert calm is not None is not pressed
    assert pressed >= calm + 1000
    # As it has another one by now, what it was submitted with does not count.
    found.note_slot(slot, 0)
    assert found.due(there.jobs, there.now_s, urgencies={slot: 1.0}) == {}
    found.forget(())
    assert found.due(there.jobs, there.now_s, urgencies={slot: 1.0}) == {}
    found.note_slot(slot, 0)
    assert slot in found.due(there.jobs, there.now_s, urgencies={slot: 1.0})
