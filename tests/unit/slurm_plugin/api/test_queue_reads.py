"""Tests what the queue says of own and of others' jobs, in which order, and when they start."""

import pytest
from builders.overview_world import ALICE, ROOT, facts
from builders.tenants import policy_of, tenant
from builders.why_world import NOW_S, job
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of

from slicewise.cluster.rpc.overview_messages import QueueAnswer, QueueRequest
from slicewise.slurm_plugin.api import queue_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.queue_reads import queue
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts

pytestmark = pytest.mark.usefixtures("clock")

FIRST = QueueRequest()
NLP = {"account": "nlp", "uid": 61002, "user": "bob"}


def line() -> OverviewFacts:
    """Four of alice and bob in turn; the rest of bob's array has three tasks."""
    return facts(
        job(1, "Resources", priority=900),
        job(2, "Priority", priority=800, untouched=frozenset({0, 1, 2}), array_job_id=2, **NLP),
        job(3, "QOSGrpBilling", priority=700),
        job(4, "Priority", priority=600, **NLP),
        job(5, "JobHeldUser", held=True),
    )


def test_an_operator_sees_every_job_that_waits_in_its_place():
    answer = queue(FIRST, ROOT, line())
    assert [(one.position, one.tenant, one.tasks) for one in answer.rows] == [
        (1, "vision", 1),
        (2, "nlp", 3),
        (3, "vision", 1),
        (4, "nlp", 1),
    ]
    assert (answer.other_jobs, answer.other_millislices, answer.more) == (0, 0, None)


def test_a_user_sees_own_jobs_in_their_places_and_others_as_sums():
    answer = queue(FIRST, ALICE, line())
    assert [(one.position, one.job) for one in answer.rows] == [(1, "1"), (3, "3")]
    assert (answer.other_jobs, answer.other_millislices) == (4, 4000)
    said = answer.model_dump_json()
    assert "nlp" not in said
    assert "bob" not in said


def test_who_has_left_a_tenant_sees_own_jobs_of_it():
    bob = Principal(61002, "bob", frozenset())
    answer = queue(FIRST, bob, line())
    assert [one.position for one in answer.rows] == [2, 4]
    assert answer.other_jobs == 2


@pytest.mark.parametrize(("reader", "pages"), [(ROOT, [[1, 2], [3, 4]]), (ALICE, [[1, 3]])])
def test_a_long_queue_comes_in_pages(
    reader: Principal, pages: list[list[int]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(queue_reads, "_PAGE_ROWS", 2)
    found: list[list[int]] = []
    after: int | None = 0
    while after is not None:
        page = queue(QueueRequest(after=after), reader, line())
        found.append([one.position for one in page.rows])
        after = page.more
    assert found == pages
    assert queue(QueueRequest(after=4), reader, line()).rows == ()


def test_a_job_starts_as_slurm_plans_where_gpus_are_what_it_waits_for():
    now = facts(job(1, "Resources", start_s=NOW_S + 60), job(2, "Priority", start_s=NOW_S - 60))
    first, second = queue(FIRST, ROOT, now).rows
    assert (first.why, first.start_s, first.start) == (
        "no node has enough free for it",
        NOW_S + 60,
        "as Slurm plans now",
    )
    assert second.start_s is None
    assert second.start == "no estimate: jobs of higher priority go first"


def test_slurms_plan_says_nothing_of_a_job_that_waits_for_quota_which_why_estimates():
    (row,) = queue(FIRST, ROOT, facts(job(1, "QOSGrpBilling", start_s=NOW_S + 60))).rows
    assert row.start_s is None
    assert row.start == "not estimated in the queue: see slicewise why 1"


def test_a_job_that_waits_for_a_budget_starts_with_the_period_of_the_one_that_binds():
    now = facts(
        job(1, "QOSGrpBillingRunMinutes"),
        left_millislice_s={"vision": 500, "lab": 20, "bio": 1},
        resets_s={"vision": NOW_S + 10, "lab": NOW_S + 99},
    )
    (row,) = queue(FIRST, ROOT, now).rows
    assert row.start_s == NOW_S + 99
    assert row.start == "when the next period of lab's budget begins, if not before"


async def test_the_queue_is_told_while_the_ledger_is_down():
    slurm = ScriptedSlurm(job(8, "Resources"))
    state = sync_of(slurm)
    state.set_policy(policy_of(tenant("vision", 2000)), {})
    await state.turn()
    reads = Reads(settings(), slurm, ScriptedLedger(), state)
    for threads in reads._threads.values():
        threads.shutdown()
    answer = await reads.handlers()[QueueRequest](FIRST, ALICE)
    assert isinstance(answer, QueueAnswer)
    assert [one.job for one in answer.rows] == ["8"]
