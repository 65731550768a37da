"""Tests what ``slicewise why`` says of jobs."""

from dataclasses import replace

import pytest
from builders.nodes import a_node
from builders.service_views import a_report
from builders.tenants import free_tenant, tenant
from builders.why_world import LARGE, NOW_S, SMALL, job, running, sight, task

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.jobs import SHAPES_NODE, JobState, JobTag, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.messages import ServiceReport
from slicewise.cluster.rpc.read_messages import WhyAnswer
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.explain.shortage import WhyInput
from slicewise.slurm_plugin.rules.explain.why_job import jobs_named, why_job
from slicewise.slurm_plugin.rules.quota.types import Budget, Recall

VISION = tenant("vision", 2000)
HOUR_S = 3600


def asked(about: str, now: WhyInput) -> WhyAnswer:
    return why_job(about, jobs_named(about, now.jobs), now)


def rows(answer: WhyAnswer, table: int = 0) -> list[tuple[str, int | None, int | None]]:
    return [(row.what, row.amount_millislices, row.ends_s) for row in answer.tables[table].rows]


# -- Which job


def test_a_job_an_array_and_a_task_are_named_as_slurm_names_them():
    single = job(7)
    rest = replace(job(814), array_job_id=814, untouched=frozenset({4, 5}))
    split = task(job(820), 3)
    every = (single, rest, split)
    assert jobs_named("7", every) == (single,)
    assert jobs_named("814", every) == (rest, split)
    assert jobs_named("820", every) == (split,)
    assert jobs_named("814_3", every) == (split,)
    assert jobs_named("814_5", every) == (replace(rest, task_index=5, untouched=frozenset()),)
    for nothing in ("814_9", "9", "vision", "", "814_", "-7", "7; scancel 8", "٧"):
        assert jobs_named(nothing, every) == ()


# -- Waiting for quota


def test_waiting_for_the_guarantee_it_says_who_holds_it_and_until_when():
    now = sight(
        running(1, NOW_S + 600),
        running(2, NOW_S + 60),
        running(3, account="nlp"),
        running(4, qos="slicewise_vision_borrowed"),
        job(9, "QOSGrpBilling"),
        tenants=(VISION, tenant("nlp", 2000)),
    )
    answer = asked("9", now)
    assert answer.headline == "Job 9 of alice waits: its tenant's guaranteed part is used up."
    assert answer.sentences == (
        "It asks for 1 × 1g.10gb (1 slice) for at most 1 h, guaranteed (QOS slicewise_vision).",
        "The jobs of vision in QOS slicewise_vision hold 2 of 2 slices; this one needs 1.",
    )
    assert rows(answer) == [
        ("job 2 of alice", 1000, NOW_S + 60),
        ("job 1 of alice", 1000, NOW_S + 600),
    ]
    assert answer.start_s == NOW_S + 60
    assert "at the latest" in answer.start


def test_of_an_account_without_a_quota_it_says_what_the_tenant_of_its_qos_has_left():
    now = sight(
        running(1, NOW_S + 600),
        running(2, NOW_S + 60),
        job(9, "QOSGrpBilling", account="students", qos="slicewise_vision"),
        tenants=(VISION,),
    )
    answer = asked("9", now)
    assert answer.sentences[1].startswith("The jobs of vision in QOS slicewise_vision hold 2 of 2")
    assert answer.start_s == NOW_S + 60
    assert rows(answer) == [("other tenants (2 jobs)", 2000, None)], "it may not see whose"


def test_it_waits_until_enough_has_come_back():
    now = sight(
        running(1, NOW_S + 600),
        running(2, NOW_S + 60),
        job(9, "QOSGrpBilling", tres={f"gres/gpu:{SMALL}": "2"}),
        tenants=(VISION,),
    )
    assert asked("9", now).start_s == NOW_S + 600


def test_jobs_without_a_time_limit_allow_no_estimate():
    now = sight(running(1, None), running(2, None), job(9, "QOSGrpBilling"), tenants=(VISION,))
    answer = asked("9", now)
    assert answer.start_s is None
    assert answer.start == "no estimate: jobs that must end first have no time limit"
    assert answer.tables[0].rows[0].note == "no time limit"


def test_what_can_never_fit_is_told_so():
    now = sight(job(9, "QOSGrpBilling", tres={f"gres/gpu:{LARGE}": "1"}), tenants=(VISION,))
    answer = asked("9", now)
    assert "needs 3.5" in answer.sentences[1]
    assert "would not fit" in answer.start


def test_what_its_tenants_borrowed_jobs_hold_of_the_guarantee_comes_back_with_them():
    """It was told that it would not fit even if all of these jobs ended, and started 5 s later."""
    now = sight(
        running(1, NOW_S + 600),
        running(2, NOW_S + 5, qos=borrowed_qos("vision")),
        running(3, NOW_S + 9, qos=borrowed_qos("vision")),
        job(9, "QOSGrpBilling", tres={f"gres/gpu:{SMALL}": "2"}),
        tenants=(free_tenant("vision", 3000), free_tenant("nlp", 1000)),
        loans={("nlp", "vision"): 1000},
    )
    answer = asked("9", now)
    assert answer.sentences[1] == (
        "The jobs of vision in QOS slicewise_vision hold 1 of 2 slices; this one needs 2;"
        " its jobs on borrowed quota hold 1 of its guaranteed part."
    )
    assert answer.start_s == NOW_S + 5
    assert "at the latest" in answer.start
    assert rows(answer) == [
        ("job 2 of alice", 1000, NOW_S + 5),
        ("job 1 of alice", 1000, NOW_S + 600),
    ]


def test_room_that_has_just_come_is_seen():
    answer = asked("9", sight(job(9, "QOSGrpBilling"), tenants=(VISION,)))
    assert answer.start_s is None
    assert "there is room for it now" in answer.start
    assert answer.headline.endswith("guaranteed part is used up, as Slurm last said.")
    assert answer.sentences[2].startswith("By these numbers it fits now: Slurm's reason is older")


def test_waiting_for_borrowed_quota_it_says_who_holds_it():
    borrowed = {"qos": "slicewise_vision_borrowed"}
    now = sight(
        running(1, NOW_S + 900),
        running(2, NOW_S + 60, **borrowed),
        running(3, NOW_S + 120, account="other", user="mallory", qos="slicewise_other_borrowed"),
        job(9, "QOSGrpBilling", **borrowed),
        tenants=(
            tenant("vision", 1500, borrowing_limit_millislices=9000),
            tenant("other", 1500, lending_limit_millislices=1500),
        ),
        loans={("other", "vision"): 1500},
    )
    answer = asked("9", now)
    assert answer.headline == "Job 9 of alice waits: its tenant is at its limit."
    assert "The borrowed jobs of vision hold 1 of 1.5 slices" in answer.sentences[1]
    assert rows(answer) == [("job 2 of alice", 1000, NOW_S + 60)]
    assert answer.sentences[2] == "Of its quota vision lends 0 now; it borrows 1.5 of at most 9."
    assert "mallory" not in answer.model_dump_json()
    assert answer.start_s == NOW_S + 60


def test_in_another_qos_it_waits_at_the_gate():
    answer = asked("9", sight(job(9, "QOSGrpBilling", qos="normal"), tenants=(VISION,)))
    assert "gives GPUs only to jobs in Slicewise's QOS" in answer.headline
    assert "scontrol update JobId=9 QOS=slicewise_vision" in answer.hints[0]


def test_at_the_gate_an_account_without_a_quota_has_no_qos_to_name():
    waits = job(9, "QOSGrpBilling", qos="normal", account="guest")
    (hint,) = asked("9", sight(waits, tenants=(VISION,))).hints
    assert hint == "guest has no quota, so it may not use these GPUs. Ask the operator."


def recall(amount: int, called_s: int, borrower: str = "nlp") -> Recall:
    return Recall("vision", borrower, Millislices(amount), called_s)


def test_what_its_tenant_has_lent_comes_back_after_the_grace_at_the_latest():
    """Slurm says that its own QOS, or its account, may hold no more: of what is not back yet."""
    now = sight(
        job(9, "QOSGrpBilling"),
        tenants=(VISION, tenant("nlp", 2000), tenant("audio", 2000)),
        recalls=(recall(1000, NOW_S - 10), recall(500, NOW_S - 40), recall(500, NOW_S, "audio")),
        grace_s=60,
    )
    answer = asked("9", now)
    assert answer.headline == "Job 9 of alice waits: what its tenant has lent is not back yet."
    assert (
        answer.sentences[2] == "vision gets 2 slices back from audio, nlp, in 1 min at the latest."
    )
    assert answer.hints == ()


@pytest.mark.parametrize(
    ("needs", "start_s"), [(1, NOW_S + 20), (2, NOW_S + 50), (3, None)], ids=str
)
def test_it_starts_when_enough_of_it_is_back(needs: int, start_s: int | None):
    now = sight(
        job(9, "QOSGrpBilling", tres={f"gres/gpu:{SMALL}": str(needs)}),
        tenants=(VISION, tenant("nlp", 2000), tenant("audio", 2000)),
        recalls=(recall(1000, NOW_S - 10), recall(1000, NOW_S - 40)),
        grace_s=60,
    )
    assert asked("9", now).start_s == start_s


def test_a_job_of_another_tenant_or_that_waits_for_something_else_hears_nothing_of_it():
    for one in (job(9, "QOSGrpBilling", account="nlp"), job(9, "Resources")):
        now = sight(one, tenants=(VISION, tenant("nlp", 0)), recalls=(recall(1000, NOW_S),))
        assert "back" not in asked("9", now).model_dump_json()


def test_from_the_eleventh_on_jobs_are_a_sum():
    held = [running(number, NOW_S + number) for number in range(1, 13)]
    now = sight(*held, job(99, "QOSGrpBilling"), tenants=(tenant("vision", 12000),))
    found = rows(asked("99", now))
    assert len(found) == 11
    assert found[-1] == ("further jobs (2 jobs)", 2000, None)


def test_a_type_s_limit_counts_instances():
    limited = tenant("vision", 9000, type_limits={SMALL: 2})
    now = sight(
        running(1, NOW_S + 600),
        running(2, NOW_S + 60),
        running(3, tres={f"gres/gpu:{LARGE}": "1"}),
        job(9, "AssocGrpGRES"),
        tenants=(limited,),
    )
    answer = asked("9", now)
    assert answer.sentences[1] == (
        "Of 1g.10gb, vision holds 2 of at most 2 instances; this one needs 1."
    )
    assert [row.what for row in answer.tables[0].rows] == ["job 2 of alice", "job 1 of alice"]
    assert answer.start_s == NOW_S + 60


@pytest.mark.parametrize(
    ("borrowing_limit", "flexible", "hint"),
    [
        (0, True, "may not borrow"),
        (1000, True, "moves to borrowed quota by itself"),
        (1000, False, "--qos=slicewise_vision_borrowed"),
    ],
)
def test_it_says_whether_it_may_borrow(borrowing_limit: int, flexible: bool, hint: str):
    tag = JobTag("ab", "vision", is_flexible=flexible)
    waits = job(9, "QOSGrpBilling", admin_comment=tag.text())
    one = tenant("vision", 1000, borrowing_limit_millislices=borrowing_limit)
    answer = asked("9", sight(running(1), waits, tenants=(one,)))
    assert any(hint in text for text in answer.hints)


def test_of_a_job_that_gets_whole_nodes_it_says_what_slurm_counts():
    """Slurm shows no GPU of it while it waits: it was told that there is room for it."""
    tag = JobTag("ab", "vision", whole_millislices=7000)
    one = tenant("vision", 2000, borrowing_limit_millislices=9000)
    waits = job(9, "QOSGrpBilling", tres={}, admin_comment=tag.text())
    answer = asked("9", sight(running(1), waits, tenants=(one,)))
    asks = "It asks for whole nodes, of which Slurm counts all GPUs (7 slices) for at most 1 h, "
    assert answer.sentences[:2] == (
        asks + "guaranteed (QOS slicewise_vision).",
        "The jobs of vision in QOS slicewise_vision hold 1 of 2 slices; this one needs 7.",
    )
    assert answer.start == "no estimate: it would not fit even if all of these jobs ended"
    assert "without --exclusive only the GPUs it names count" in answer.hints[0]
    assert not any("--qos=" in text for text in answer.hints)


def test_those_ahead_of_it_are_counted():
    now = sight(
        running(1),
        job(5, "Priority", priority=2000),
        job(6, "Priority", priority=2000, account="nlp"),
        job(7, "JobHeldUser", priority=0, held=True),
        replace(job(814, "Priority", priority=1500), array_job_id=814, untouched=frozenset({1, 2})),
        job(9, "QOSGrpBilling"),
        job(10, "Priority"),
        tenants=(tenant("vision", 1000), tenant("nlp", 1000)),
    )
    assert "3 waiting jobs of vision have a higher priority." in asked("9", now).sentences
    assert "4 waiting jobs have a higher priority." in asked("10", now).sentences


# -- Waiting for a budget


def budgeted(available: int, resets_s: int | None = NOW_S + 86400) -> WhyInput:
    paid = replace(VISION, budget=Budget(Period.DAY, MillisliceSeconds(10**9)))
    return sight(
        job(9, "QOSGrpBillingRunMinutes"),
        tenants=(paid,),
        available={"vision": available},
        resets_s={"vision": resets_s},
    )


def test_a_budget_says_what_is_left_and_how_long_a_run_it_allows():
    answer = asked("9", budgeted(500 * HOUR_S))
    assert answer.sentences[1] == (
        "The budget of vision leaves 0.5 slice-hours for new runs;"
        " this one could use 1 by its time limit."
    )
    assert any("TimeLimit=30" in hint for hint in answer.hints)
    assert answer.start_s == NOW_S + 86400


def test_who_is_over_slices_and_budget_is_told_of_the_budget():
    """Slurm names the slices, and more of them would not help: none are lent for such a job."""
    now = budgeted(500 * HOUR_S)
    over_slices = replace(now.jobs[0], reason="QOSGrpBilling", qos="slicewise_vision_borrowed")
    now = replace(now, jobs=(over_slices,), over_budget=frozenset({9}))
    answer = asked("9", now)
    assert "the budget does not allow a run this long now" in answer.headline
    assert answer.sentences[1].startswith("The budget of vision leaves 0.5 slice-hours")
    assert answer.reason == "QOSGrpBilling"


@pytest.mark.parametrize(("left", "is_old"), [(1000 * HOUR_S, True), (999 * HOUR_S, False)])
def test_where_the_budget_suffices_the_reason_is_slurm_s_last(left: int, is_old: bool):
    headline = asked("9", budgeted(left)).headline
    assert headline.endswith(", as Slurm last said.") is is_old


def test_free_gpus_make_no_reason_old_for_they_may_lie_apart():
    answer = asked("9", sight(job(9, "Resources"), tenants=(VISION,)))
    assert "last said" not in answer.headline


def test_a_budget_that_never_begins_anew_allows_no_estimate():
    answer = asked("9", budgeted(0, None))
    assert answer.start_s is None
    assert "has no further period" in answer.start
    assert not any("TimeLimit=" in hint for hint in answer.hints)


# -- Waiting for GPUs


def full(*more: JobView) -> WhyInput:
    """All ten are held, two of them by vision."""
    own = (running(1, NOW_S + 600), running(2, NOW_S + 900))
    others = [running(n, NOW_S + 60 * n, account="nlp", user="mallory") for n in range(3, 11)]
    return sight(*own, *others, *more, tenants=(tenant("vision", 5000),), allotted=10)


def test_waiting_for_gpus_it_says_how_many_are_free_and_who_holds_them():
    answer = asked("99", full(job(99, "Resources")))
    assert answer.sentences[1] == "0 of 10 1g.10gb are free; this one needs 1."
    assert answer.tables[0].heading == "Jobs that hold 1g.10gb"
    assert [(row.what, row.gpus) for row in answer.tables[0].rows] == [
        ("job 1 of alice", "1 × 1g.10gb"),
        ("job 2 of alice", "1 × 1g.10gb"),
        ("other tenants (8 jobs)", "8 × 1g.10gb"),
    ]
    assert answer.start_s == NOW_S + 180
    assert "mallory" not in answer.model_dump_json()


@pytest.mark.parametrize(
    ("gpus", "nodes", "said"),
    [
        (2, 1, "2 on one node, and 2 nodes have 2 free."),
        (5, 1, "5 on one node, and 1 node has 5 free."),
        (9, 1, "9 on one node, and no node has 9 free."),
        (3, 2, "6, 3 on each of 2 nodes, and 1 node has 3 free."),
    ],
)
def test_a_replica_of_several_gpus_needs_them_together(gpus: int, nodes: int, said: str):
    """What is free in all may be too far apart."""
    tag = JobTag("ab", "vision", "bert").text()
    tres = {"node": str(nodes), f"gres/gpu:{SMALL}": str(gpus * nodes)}
    waits = job(99, "Resources", tres=tres, admin_comment=tag, array_job_id=99, task_index=0)
    now = sight(waits, tenants=(tenant("vision", 9000),), allotted=4)
    (node,) = now.nodes
    other = replace(node, name="node2", gpus_allotted={SMALL: 8})
    answer = asked("99", replace(now, nodes=(node, other)))
    assert answer.sentences[1] == f"8 of 20 1g.10gb are free; this one needs {said}"


def test_gpus_of_nodes_without_anything_left_are_not_free():
    now = sight(job(99, "Resources"), tenants=(tenant("vision", 5000),), allotted=4)
    (node,) = now.nodes
    blocked = replace(node, name="node2", blocked="all of its CPUs are taken")
    down = replace(blocked, name="node3", states=frozenset({"DOWN"}))
    answer = asked("99", replace(now, nodes=(blocked, down)))
    assert answer.sentences[1] == (
        "0 of 20 1g.10gb are free; this one needs 1;"
        " 6 that no job holds can't be used, on node2 (all of its CPUs are taken)."
    )
    many = tuple(replace(blocked, name=f"node{n}") for n in range(12))
    answer = asked("99", replace(now, nodes=(node, *many)))
    assert "6 of 130 1g.10gb are free" in answer.sentences[1]
    assert answer.sentences[1].endswith("node4 (all of its CPUs are taken) and 7 more nodes.")


def test_parts_of_shared_gpus_are_counted_by_themselves():
    waits = job(99, "Resources", tres={"node": "1", "gres/shard": "3"})
    now = sight(waits, tenants=(tenant("vision", 5000),), allotted=4)
    (node,) = now.nodes
    shared = replace(node, shared={"shard": 8}, shared_allotted={"shard": 6})
    answer = asked("99", replace(now, nodes=(shared,)))
    assert answer.sentences[1] == "2 of 8 shard are free; this one needs 3."


def test_what_gpus_could_be_cut_into_is_not_counted_among_them():
    now = full(job(99, "Resources"))
    shapes = replace(now.nodes[0], name=SHAPES_NODE, states=frozenset({"DOWN"}))
    answer = asked("99", replace(now, nodes=(*now.nodes, shapes)))
    assert answer.sentences[1] == "0 of 10 1g.10gb are free; this one needs 1."


def test_slurm_s_own_plan_comes_before_ours():
    answer = asked("99", full(job(99, "Resources", start_s=NOW_S + 77)))
    assert (answer.start_s, answer.start) == (NOW_S + 77, "as Slurm plans now")


@pytest.mark.parametrize(("planned_s", "start_s"), [(77, 600), (601, 601)])
def test_of_quota_slurm_s_plan_counts_only_if_it_is_later(planned_s: int, start_s: int):
    """Slurm plans by what is free, whatever the limits say."""
    waits = job(9, "QOSGrpBilling", start_s=NOW_S + planned_s)
    held = (running(1, NOW_S + 600), running(2, NOW_S + 600))
    assert asked("9", sight(*held, waits, tenants=(VISION,))).start_s == NOW_S + start_s


def test_a_plan_that_has_passed_is_none():
    assert asked("99", full(job(99, "Resources", start_s=NOW_S - 1))).start_s == NOW_S + 180


# -- Other reasons


def test_a_held_job_starts_when_somebody_releases_it():
    answer = asked("9", sight(job(9, "JobHeldUser", held=True), tenants=(VISION,)))
    assert answer.start == "no estimate while it is held"
    assert answer.hints == ("Release it: scontrol release 9",)


def test_a_begin_time_is_the_earliest_start():
    waits = job(9, "BeginTime", eligible_s=NOW_S + 500, start_s=NOW_S + 500)
    answer = asked("9", sight(waits, tenants=(VISION,)))
    assert answer.start_s == NOW_S + 500
    assert answer.start.startswith("at the earliest")


def test_what_nobody_knows_is_shown_as_it_is():
    answer = asked("9", sight(job(9, "SomethingNew"), tenants=(VISION,)))
    assert answer.headline == "Job 9 of alice waits: Slurm says 'SomethingNew'."


def test_an_account_that_is_no_tenant_has_no_numbers():
    answer = asked("9", sight(job(9, "QOSGrpBilling", account="gone"), tenants=(VISION,)))
    assert answer.tables == ()
    assert len(answer.sentences) == 1


# -- Of Slicewise itself


def test_a_slot_at_rest_says_who_decides_about_it():
    held = replace(task(job(814), 0), held=True, reason="JobHeldAdmin")
    rests = replace(held, admin_comment=JobTag("ab", "vision", "bert").text())
    answer = asked("814_0", sight(rests, tenants=(VISION,), notes={814: "quota: 2 of 2 in use"}))
    assert answer.headline == ("814_0 is a slot of service vision/bert at rest: it costs nothing.")
    assert answer.sentences[-1] == "The service's note: quota: 2 of 2 in use."
    assert answer.hints == ("See: slicewise service status vision/bert",)


def test_a_slot_for_which_there_is_no_quota_is_not_said_to_be_unneeded():
    """Its array had "at rest: no more replicas are needed" while a request waited for quota."""
    told = a_report(name="bert", held=1, rate_per_s=0.1, reason="1 waiting: 1")
    tag = JobTag("ab", "vision", "bert").text()
    held = {"held": True, "reason": "JobHeldAdmin", "admin_comment": tag}
    slots = tuple(replace(task(job(814 + one), one), **held) for one in range(3))
    notes = {814: "quota: vision holds 4 of 4 slices; a replica needs 1"}

    def seen(report: ServiceReport) -> WhyInput:
        return sight(
            *slots,
            tenants=(VISION,),
            notes=notes,
            reports={("vision", "bert"): report},
            kept_back={814: frozenset({0, 1, 5}), 815: frozenset({2})},
        )

    answer = asked("814_0", seen(told))
    assert answer.headline == "814_0 is a slot of service vision/bert, whose requests wait."
    assert answer.sentences == (f"It is not started for want of {notes[814]}.",)
    assert answer.start == "when the quota has room"
    assert answer.hints[0] == "Which jobs hold the quota: slicewise why vision"
    assert [row[0] for row in rows(asked("814", seen(told)))] == [
        "1 at rest: no more replicas are needed",
        "2 at rest: quota has no room",
    ]
    # The launcher desires two of them; the third one would rest with any quota.
    assert "at rest: it costs nothing" in asked("814_2", seen(told)).headline
    idle = told.model_copy(update={"held": 0})
    assert "at rest" in asked("814_0", seen(idle)).headline

    # Slurm shows tasks that nothing has touched as one record.
    slots = (replace(slots[0], task_index=None, untouched=frozenset(range(4, 8))),)
    assert [row[0] for row in rows(asked("814", seen(told)))] == [
        "3 at rest: no more replicas are needed",
        "1 at rest: quota has no room",
    ]
    assert asked("814", seen(told)).sentences[0].startswith("Next: 814_5 is a slot")
    assert "whose requests wait" in asked("814_5", seen(told)).headline
    assert "at rest" in asked("814_4", seen(told)).headline


def test_a_slot_that_slurm_holds_because_no_node_can_run_it_says_so():
    held = replace(failed(0), reason="BadConstraints")
    assert "no node can ever give" in asked("814_0", sight(held, tenants=(VISION,))).headline


FAILED = "slicewise:run=2 ended with 1"


def failing(*jobs: JobView, wanted: int = 1, next_start_s: float = NOW_S + 90) -> WhyAnswer:
    told = a_report(
        name="bert",
        held=2,
        desired_replicas=wanted,
        reason="2 waiting: 1",
        failed_starts=3,
        next_start_s=next_start_s,
    )
    return asked("814_0", sight(*jobs, tenants=(VISION,), reports={("vision", "bert"): told}))


def failed(index: int, **more: object) -> JobView:
    held = replace(task(job(814 + index), index), held=True, reason="JobHeldAdmin", **more)
    return replace(held, admin_comment=JobTag("ab", "vision", "bert").text())


def test_a_slot_of_a_service_that_fails_to_start_says_when_the_next_start_is_tried():
    answer = failing(failed(0, comment=FAILED, restarts=3))
    assert answer.headline == "814_0 is a slot of service vision/bert, which fails to start."
    assert answer.sentences == (
        "3 starts in a row have failed; the next one is tried in 1 min 30 s.",
        "The last one ended with 1.",
    )
    assert answer.start_s == NOW_S + 90


def test_a_slot_that_was_not_tried_itself_tells_what_another_one_has_left():
    words = failing(failed(0), failed(1, comment=FAILED, restarts=3)).sentences
    assert words[-1] == "The last one ended with 1."
    assert len(failing(failed(0), failed(1)).sentences) == 1


def test_a_pause_that_is_over_is_none():
    answer = failing(failed(0), next_start_s=NOW_S - 5)
    assert (answer.sentences[0], answer.start_s) == ("3 starts in a row have failed.", NOW_S)


def test_a_service_that_fails_to_start_is_told_so_also_while_no_request_waits():
    """It was told "at rest: it costs nothing", as if its next request would be served."""
    answer = failing(failed(0), wanted=0)
    assert answer.headline == "814_0 is a slot of service vision/bert, which fails to start."
    assert answer.sentences == ("3 starts in a row have failed; no request waits now.",)
    assert (answer.start_s, answer.start) == (None, "the next request tries again")


def test_the_slots_of_a_service_that_fails_to_start_are_not_said_to_be_unneeded():
    told = a_report(name="bert", failed_starts=3)
    reports = {("vision", "bert"): told}
    slots = sight(failed(0), failed(1), tenants=(VISION,), reports=reports)
    assert [row[0] for row in rows(asked("814", slots))] == [
        "2 at rest: its service fails to start"
    ]


@pytest.mark.parametrize(("desired", "headline"), [(1, "at rest"), (2, "fails to start")])
def test_a_service_that_serves_fails_only_while_it_lacks_what_it_wants(desired: int, headline: str):
    """One bad start beside a replica that serves was "fails to start" until another one settled."""
    told = a_report(name="bert", failed_starts=1, ready=((814, 1),), desired_replicas=desired)
    asks = sight(failed(0), tenants=(VISION,), reports={("vision", "bert"): told})
    assert headline in asked("814_0", asks).headline


def test_failed_starts_of_another_generation_are_none_of_the_slots():
    told = a_report(name="bert", failed_starts=3, array_job_id=900)
    asks = sight(failed(0), tenants=(VISION,), reports={("vision", "bert"): told})
    assert "at rest" in asked("814_0", asks).headline


def undecided(**more: object) -> WhyAnswer:
    tag = JobTag("ab", "vision", is_undecided=True)
    waits = job(9, "JobHeldUser", held=True, admin_comment=tag.text())
    return asked("9", sight(waits, tenants=(VISION,), **more))


def test_a_service_that_got_no_tag_says_why():
    """Outside enforce; its user holds it, and nothing of it is Slicewise's."""
    why = Refusal("SW-SERVICE-EXISTS", "Another user has it.", "Choose another name.")
    waits = job(9, "JobHeldUser", held=True, admin_comment="")
    told = asked("9", sight(waits, tenants=(VISION,), refusals={9: why}))
    assert "says that it is a service, and Slicewise refuses it" in told.headline
    assert told.sentences == ("Another user has it. [SW-SERVICE-EXISTS]",)
    assert told.hints[0] == "Choose another name."


def test_what_nobody_has_decided_about_says_so():
    assert "has not decided" in undecided().headline
    why = Refusal("SW-NEED-TOO-LARGE", "No GPU type fits.", "Ask for less.")
    refused = undecided(refusals={9: why})
    assert "refuses and holds it" in refused.headline
    assert refused.sentences[0] == "No GPU type fits. [SW-NEED-TOO-LARGE]"
    assert refused.hints == ("Ask for less.", "Cancel it (scancel 9) and submit it again.")


# -- Running and ended


def test_a_running_job_says_what_it_holds_and_for_how_long():
    answer = asked("1", sight(running(1), tenants=(VISION,)))
    assert answer.headline == "Job 1 of alice runs on node1 for 1 min 40 s."
    assert answer.sentences[0] == (
        "It holds 1 × 1g.10gb (1 slice), guaranteed (QOS slicewise_vision):"
        " no other tenant's job takes it away."
    )
    assert answer.sentences[1] == (
        "It ends in 10 min at the latest: its time limit is 11 min 40 s."
    )
    assert answer.start == ""


def test_a_job_whose_node_boots_says_so():
    """Slurm shows the end as if it ran already, and moves it once the node has booted."""
    starts = replace(running(1), state=JobState.CONFIGURING)
    booting = a_node("node1", "MIXED", "POWERING_UP")
    now = sight(starts, tenants=(VISION,))
    answer = asked("1", replace(now, nodes=(booting,)))
    assert answer.headline == "Job 1 of alice starts on node1 for 1 min 40 s."
    assert answer.sentences[1] == (
        "Power saving had ended node1: the job runs, and its time limit counts, from the end of"
        " the boot on."
    )
    assert asked("1", now).sentences[1].startswith("It ends in 10 min")


def test_a_borrowed_one_may_be_requeued():
    answer = asked("1", sight(running(1, None, qos=borrowed_qos("vision")), tenants=(VISION,)))
    assert "it may be requeued" in answer.sentences[0]
    assert answer.sentences[1] == "It has no time limit."


def test_a_job_that_is_requeued_has_no_start_and_a_time_limit():
    """Slurm shows its start as unknown while it ends: "no time limit" was said of it."""
    ending = replace(running(1), start_s=None)
    asked_of = asked("1", sight(ending, tenants=(VISION,)))
    assert asked_of.sentences[1].startswith("Its time limit is ")
    waiting = asked("9", sight(ending, job(9, "QOSGrpBilling"), tenants=(VISION,)))
    notes = [row.note for table in waiting.tables for row in table.rows]
    assert "no time limit" not in notes


@pytest.mark.parametrize(
    ("reason", "ending"),
    [("None", ""), ("TimeLimit", ": it reached its time limit"), ("Priority", "")],
)
def test_an_ended_job_says_what_became_of_it(reason: str, ending: str):
    over = job(1, reason, state=JobState.ENDED, start_s=NOW_S - 400, end_s=NOW_S - 100)
    answer = asked("1", sight(over, tenants=(VISION,)))
    assert answer.headline == f"Job 1 of alice ended 1 min 40 s ago{ending}."
    assert answer.sentences == ("It ran for 5 min.",)


def test_one_that_never_ran_says_so():
    over = job(1, state=JobState.ENDED, start_s=None, end_s=NOW_S)
    assert asked("1", sight(over, tenants=(VISION,))).sentences == ("It never ran.",)


# -- Arrays


def test_an_array_is_summed_up_and_its_next_task_explained():
    rest = replace(job(814, "QOSGrpBilling"), array_job_id=814, untouched=frozenset({4, 5, 6}))
    throttled = task(job(830, "JobHeldUser", held=True, priority=0), 3)
    ended = task(job(822, state=JobState.ENDED, end_s=NOW_S), 0)
    now = sight(
        rest, throttled, ended, task(running(820), 1), task(running(821), 2), tenants=(VISION,)
    )
    answer = asked("814", now)
    assert answer.headline == "Array 814 of alice: 2 run, 4 wait, 1 ended."
    assert rows(answer) == [
        ("2 run", 2000, None),
        ("3 wait: its tenant's guaranteed part is used up", 3000, None),
        ("1 wait: its user holds it", 1000, None),
        ("1 ended", None, None),
    ]
    assert answer.sentences[0].startswith("Next: Job 814_4 of alice waits:")
    assert rows(answer, 1)[0] == ("job 814_1 of alice", 1000, NOW_S + 600)
    assert answer.start_s == NOW_S + 600


def test_an_array_that_only_runs_has_no_next_task():
    now = sight(task(running(820), 1), task(running(821), 2), tenants=(VISION,))
    answer = asked("814", now)
    assert answer.headline == "Array 814 of alice: 2 run."
    assert (answer.sentences, answer.start) == ((), "")


def test_a_service_s_array_tells_slots_at_rest_from_those_that_wait():
    tag = JobTag("ab", "vision", "bert").text()
    rest = replace(
        job(814, "JobHeldAdmin", held=True, priority=0, admin_comment=tag),
        array_job_id=814,
        untouched=frozenset({2, 3, 4}),
    )
    released = task(job(821, "QOSGrpBilling", admin_comment=tag), 1)
    runs = task(running(820, admin_comment=tag), 0)
    now = sight(rest, released, runs, tenants=(VISION,))
    answer = asked("814", now)
    assert answer.headline == ("Array 814 of alice, service vision/bert: 1 run, 1 wait, 3 at rest.")
    assert rows(answer)[2] == ("3 at rest: no more replicas are needed", None, None)
    assert answer.sentences[0].startswith("Next: Job 814_1 of alice waits:")
    resting = asked("814", sight(rest, runs, tenants=(VISION,)))
    assert resting.sentences[0] == (
        "Next: 814_2 is a slot of service vision/bert at rest: it costs nothing."
    )


@pytest.mark.parametrize(
    ("reason", "ran"),
    [("NonZeroExitCode", "It ran for less than a second."), ("None", "It never ran.")],
)
def test_a_program_that_failed_at_once_has_run(reason: str, ran: str):
    over = job(1, reason, state=JobState.ENDED, start_s=NOW_S, end_s=NOW_S)
    assert asked("1", sight(over, tenants=(VISION,))).sentences == (ran,)


def test_a_guarantee_of_a_type_counts_what_its_own_qos_holds():
    by_type = tenant("vision", 9000, type_nominals={SMALL: 1})
    now = sight(
        running(1, NOW_S + 600),
        running(2, NOW_S + 60, qos="slicewise_vision_borrowed"),
        job(9, "QOSGrpGRES"),
        tenants=(by_type,),
    )
    answer = asked("9", now)
    assert "its tenant's guaranteed part has no more instances of this type" in answer.headline
    assert answer.sentences[1] == (
        "The jobs of vision in QOS slicewise_vision hold 1 of 1 guaranteed instances of 1g.10gb;"
        " this one needs 1."
    )
    assert answer.start_s == NOW_S + 600


def test_a_type_s_room_that_has_just_come_is_seen():
    by_type = tenant("vision", 9000, type_nominals={SMALL: 1})
    answer = asked("9", sight(job(9, "QOSGrpGRES"), tenants=(by_type,)))
    assert answer.headline.endswith("no more instances of this type, as Slurm last said.")
    assert answer.sentences[2].startswith("By these numbers it fits now")


def test_a_guarantee_of_a_type_is_no_larger_than_the_limit_on_its_model():
    model = {"A100-80GB": Millislices(1000)}
    by_type = tenant("vision", 9000, type_nominals={SMALL: 4}, model_limits=model)
    now = sight(running(1, NOW_S + 600), job(9, "QOSGrpGRES"), tenants=(by_type,))
    assert "hold 1 of 1 guaranteed instances of 1g.10gb" in asked("9", now).sentences[1]


def test_what_an_account_without_a_quota_holds_in_a_tenant_s_qos_counts_as_in_slurm():
    by_type = tenant("vision", 9000, type_nominals={SMALL: 1}, type_limits={SMALL: 2})
    others = (
        running(1, NOW_S + 600, account="student", qos="slicewise_vision"),
        running(2, NOW_S + 60, account="student", qos="slicewise_vision_borrowed"),
    )
    now = sight(*others, job(9, "QOSGrpGRES"), job(10, "AssocGrpGRES"), tenants=(by_type,))
    assert "hold 1 of 1 guaranteed instances of 1g.10gb" in asked("9", now).sentences[1]
    assert "vision holds 2 of at most 2 instances" in asked("10", now).sentences[1]
    assert now.situation.held["vision"].guaranteed == {SMALL: 1}


def test_a_job_that_needs_a_larger_loan_is_not_told_that_it_could_never_fit():
    """A loan grows with what its tenant wants once others leave something idle."""
    one = tenant("vision", 1000, borrowing_limit_millislices=9000)
    waits = job(9, "QOSGrpBilling", qos="slicewise_vision_borrowed")
    answer = asked("9", sight(running(1), waits, tenants=(one,)))
    assert answer.start == "no estimate: its tenant must be lent more than it is now"
