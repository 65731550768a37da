"""Tests what ``slicewise why`` says of tenants, and how its screen looks."""

from dataclasses import replace

import pytest
from builders.tenants import tenant
from builders.why_world import NOW_S, job, running, sight
from printed_text import printed_text

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.jobs import JobTag
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyRow, WhyTable
from slicewise.slurm_plugin.cli.views.why import screen
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.explain.why_tenant import why_no_tenant, why_tenant
from slicewise.slurm_plugin.rules.explain.why_texts import span_text
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Budget

pytestmark = pytest.mark.usefixtures("clock")


def test_what_is_left_of_a_removed_tenant_is_shown_with_what_lets_it_start():
    rest = replace(job(9, "InvalidQOS", account="nlp"), array_job_id=9, untouched=frozenset({0, 1}))
    others = job(11, "InvalidQOS", account="nlp", partition="cpu"), running(3)
    now = sight(running(1, account="nlp"), rest, *others, tenants=(tenant("vision", 4000),))
    answer = why_no_tenant("nlp", now)
    assert answer is not None
    assert answer.headline == "nlp is no tenant, and its jobs hold 1 slice; 2 jobs wait."
    assert answer.sentences[-1].startswith("What waits never starts in the managed partitions")
    holding, waiting = answer.tables
    assert [row.what for row in holding.rows] == ["job 1 of alice"]
    assert [row.amount_millislices for row in waiting.rows] == [2000]
    assert [hint.rpartition(": ")[2] for hint in answer.hints] == [
        "slicewise tenant-quota set nlp --nominal N",
        "scancel --state=PENDING -A nlp",
    ]
    assert why_no_tenant("guest", now) is None


def test_nothing_is_said_of_what_waits_where_nothing_of_a_removed_tenant_waits():
    now = sight(running(1, account="nlp"), tenants=(tenant("vision", 4000),))
    answer = why_no_tenant("nlp", now)
    assert answer is not None
    assert "waits" not in str(answer.sentences)


def test_an_account_in_the_qos_of_a_tenant_is_told_for_whom_its_jobs_count():
    students = {"account": "students", "qos": "slicewise_vision"}
    runs, waits = running(1, **students), job(2, "Resources", **students)
    answer = why_no_tenant("students", sight(runs, waits, tenants=(tenant("vision", 4000),)))
    assert answer is not None
    assert answer.sentences[1:] == ("Its jobs in the QOS of vision count for vision.",)
    assert not any("scancel" in hint for hint in answer.hints), "it may start"
    never = job(3, "InvalidQOS", account="students", qos="normal")
    answer = why_no_tenant("students", sight(waits, never, tenants=(tenant("vision", 4000),)))
    assert answer is not None
    assert answer.sentences[-1].startswith("What waits in no tenant's QOS never starts")


def test_a_tenant_s_situation_on_one_screen():
    paid = Budget(Period.DAY, MillisliceSeconds(10**9))
    vision = replace(tenant("vision", 4000, borrowing_limit_millislices=2000), budget=paid)
    now = sight(
        running(1),
        running(2, qos=borrowed_qos("vision")),
        running(3, account="nlp"),
        job(8, "QOSGrpBilling", partition="cpu,gpu"),
        replace(job(9, "QOSGrpBilling"), array_job_id=9, untouched=frozenset({0, 1})),
        job(10, "JobHeldUser", held=True, priority=0),
        job(11, "Resources", partition="cpu", tres={}),
        job(12, "JobHeldAdmin", held=True, admin_comment=JobTag("ab", "vision", "bert").text()),
        job(13, "JobHeldAdmin", held=True),
        tenants=(vision, tenant("nlp", 3000, lending_limit_millislices=2000)),
        loans={("nlp", "vision"): 1000},
        allotted=3,
        available={"vision": 9 * 3600 * 500},
        refusals={13: Refusal("SW-QUOTA-EXCEEDED", "Too much.")},
    )
    answer = why_tenant("vision", now)
    assert answer.headline == "vision holds 2 of 5 slices; 5 jobs wait."
    assert answer.sentences == (
        "Its nominal quota is 4 slices; 0 of it are lent, 1 borrowed from others.",
        "Guaranteed in its own QOS: 1 of 4 slices in use.",
        "The budget of vision leaves 4.5 slice-hours for new runs.",
    )
    holding, waiting, room = answer.tables
    assert [row.what for row in holding.rows] == ["job 1 of alice", "job 2 of alice"]
    assert [(row.what, row.amount_millislices) for row in waiting.rows] == [
        ("1 wait: Slicewise refuses it", 1000),
        ("3 wait: its tenant's guaranteed part is used up", 3000),
        ("1 wait: its user holds it", 1000),
        ("1 at rest: no more replicas are needed", None),
    ]
    assert [(row.what, row.note) for row in room.rows] == [
        ("1g.10gb", "3 guaranteed; no more: vision holds 1 of 4 guaranteed slices")
    ]
    assert "nlp" not in answer.model_dump_json()


def test_a_tenant_that_holds_more_than_it_may_now_is_told_what_follows():
    few = sight(running(1), running(2), tenants=(tenant("vision", 1000),))
    more = [one for one in why_tenant("vision", few).sentences if "more than it may now" in one]
    assert len(more) == 1
    assert more[0].startswith("It holds 1 slice more than it may now")
    enough = sight(running(1), running(2), tenants=(tenant("vision", 2000),))
    assert "more than it may now" not in str(why_tenant("vision", enough).sentences)


def test_a_window_that_lowers_the_quota_is_named():
    usual = tenant("vision", 4000, borrowing_limit_millislices=MAX_NOMINAL_MILLISLICES)
    by_night = tenant("vision", 1000, borrowing_limit_millislices=2000)
    now = sight(running(1), tenants=(by_night,), as_set={"vision": usual})
    words = (
        "By the calendar it has now: nominal 1 slice (otherwise 4 slices),"
        " borrowing limit 2 (otherwise unlimited)."
    )
    assert words in why_tenant("vision", now).sentences
    as_usual = sight(running(1), tenants=(usual,), as_set={"vision": usual})
    assert "calendar" not in str(why_tenant("vision", as_usual).sentences)


def test_what_stands_below_a_tenant_is_a_sum():
    now = sight(
        running(1, account="lab"),
        running(2, account="vision", user="mallory"),
        tenants=(tenant("lab", 4000), tenant("vision", 1000, "lab")),
    )
    rows = why_tenant("lab", now).tables[0].rows
    assert [(row.what, row.amount_millislices) for row in rows] == [
        ("job 1 of alice", 1000),
        ("tenants below lab", 1000),
    ]


def test_what_others_hold_in_a_tenant_s_qos_is_a_sum_and_what_it_holds_in_theirs_is_not_its_own():
    of_lab = {"qos": "slicewise_lab"}
    now = sight(
        running(1, account="lab"),
        running(2, account="students", user="mallory", **of_lab),
        running(3, account="vision", user="mallory", **of_lab),
        job(4, "Resources", account="students", **of_lab),
        job(5, "Resources", account="vision", **of_lab),
        tenants=(tenant("lab", 4000), tenant("vision", 1000)),
    )
    heads = [why_tenant(name, now).headline for name in ("lab", "vision")]
    assert [head.partition("; ")[2] for head in heads] == ["2 jobs wait.", "0 jobs wait."]
    rows = why_tenant("lab", now).tables[0].rows
    assert [(row.what, row.amount_millislices) for row in rows] == [
        ("job 1 of alice", 1000),
        ("accounts below lab", 2000),
    ]
    assert "Holding now" not in [table.heading for table in why_tenant("vision", now).tables]


def printed(answer: WhyAnswer, width: int = 80) -> str:
    return printed_text(screen(answer), width, color_system=None)


def test_columns_without_content_are_left_out_and_markup_is_not_read():
    rows = (WhyRow(what="job 1 of [red]al", amount_millislices=500), WhyRow(what="others"))
    answer = WhyAnswer(
        about="1", headline="[b]waits", tables=(WhyTable(heading="Who", rows=rows),), start="soon"
    )
    text = printed(answer)
    assert "[b]waits" in text
    assert "job 1 of [red]al" in text
    assert "0.5" in text
    assert "ends at" not in text
    assert "GPUs" not in text
    assert "Starts: soon." in text


@pytest.mark.parametrize("width", [40, 100])
def test_it_fits_the_terminal(width: int):
    now = sight(
        running(1),
        running(2, NOW_S + 86400 * 3, qos=borrowed_qos("vision")),
        tenants=(tenant("vision", 4000),),
    )
    assert max(map(len, printed(why_tenant("vision", now), width).splitlines())) <= width


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45, "45 s"),
        (60, "1 min"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (3660, "1 h 1 min"),
        (3601, "1 h"),
        (90000, "1 d 1 h"),
    ],
)
def test_spans_are_told_in_their_two_largest_units(seconds: int, text: str):
    assert span_text(seconds) == text
