"""Tests the explained priority of a waiting job: its terms, the jobs before it, what users see."""

from typing import Any

import pytest
from builders.jobs import a_job
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.scripted import ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import PriorityRow
from slicewise.cluster.rpc.read_messages import PriorityAnswer
from slicewise.cluster.runtime.console import console
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.priority_reads import explain_priority
from slicewise.slurm_plugin.cli.views.priority import place_text, screen
from slicewise.slurm_plugin.rules.admission.priority import Formula, PriorityTerms, site_factor
from slicewise.slurm_plugin.rules.admission.priority_changes import Ranked
from slicewise.slurm_plugin.rules.explain.priority import InSlurm, explained

pytestmark = pytest.mark.usefixtures("clock")

NOW_S = 10_000.0
FORMULA = Formula(3, 5, 2, 0, max=10_000, wait_full_s=1000, wait_full_limits=4, quantum=100)
IN_SLURM = InSlurm(6_400, 7_450, {"age": 50, "qos": 1000, "nice": 0}, {"qos": "2000"}, 2000)
ALICE, BOB = 61001, 61002


def waiting(job_id: int, **changes: Any) -> JobView:
    return a_job(job_id, **({"priority": 7_450, "eligible_s": 9_900} | changes))


def answer(*others: JobView, **terms: Any) -> PriorityAnswer:
    own = PriorityTerms(**({"share": 0.8, "wait_s": 100.0} | terms))
    ranked = Ranked(waiting(50), own, site_factor(own, FORMULA))
    return explained(ranked, (ranked.job, *others), FORMULA, NOW_S, IN_SLURM)


def test_each_term_has_its_part_of_the_site_factor() -> None:
    found = answer(job_class="high", urgency=0.5)
    points = {term.name: term.points for term in found.terms}
    assert points == {"class": 3000, "share": 4000, "urgency": 1000, "smallness": 0, "wait": 2}
    assert found.site_factor == 8002


def test_a_job_that_is_passed_over_has_the_maximum_and_why_says_so() -> None:
    found = answer(is_passed_over=True)
    assert (found.terms[-1].name, found.terms[-1].points) == ("passed_over", 4496)
    assert found.site_factor == 10_000
    assert "its GPUs are free" in shown_text(found)
    assert "its GPUs are free" not in shown_text(answer())


def test_the_bound_that_is_shown_is_that_of_the_job_s_own_time_limit() -> None:
    found = answer(wait_s=500.0, time_limit_s=250)
    assert (found.wait_full_s, found.full_s) == (2000, NOW_S - 500 + 2000)
    assert {one.name: one.value for one in found.terms}["wait"] == 0.25
    assert "8 min of 33 min" in shown_text(found)
    full = answer(wait_s=2000.0, time_limit_s=250)
    assert (full.site_factor, full.max) == (10_000, 10_000)
    assert "It has waited its 33 min" in place_text(full)


@given(
    st.builds(
        PriorityTerms,
        st.sampled_from(("low", "normal", "high")),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(0, 1),
        st.floats(0, 2000),
        st.none() | st.floats(0, 500),
        st.booleans(),
    )
)
def test_the_parts_add_up(terms: PriorityTerms) -> None:
    ranked = Ranked(waiting(50), terms, site_factor(terms, FORMULA))
    found = explained(ranked, (), FORMULA, NOW_S, IN_SLURM)
    assert sum(term.points for term in found.terms) == found.site_factor
    assert all(term.points >= 0 for term in found.terms)


def test_who_goes_before_it_is_who_slurm_puts_there() -> None:
    others = (
        waiting(49),  # as high, older
        waiting(51),  # as high, newer
        waiting(60, priority=8_000, account="nlp"),
        waiting(61, priority=8_000, account="nlp", untouched=frozenset({1, 2, 3})),
        waiting(62, priority=9_000, partition="other"),
        waiting(63, priority=9_000, held=True),
        waiting(64, priority=9_000, state=JobState.RUNNING),
        waiting(65, priority=7_000, account="nlp"),
    )
    found = answer(*others)
    assert (found.ahead, found.ahead_own) == (5, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ahead": 0}, "No job goes before it. From "),
        ({"ahead": 1, "ahead_own": 0}, "1 job goes before it. From "),
        ({"ahead": 9, "ahead_own": 2}, "9 jobs go before it, 2 of them of vision. From "),
        ({"wait_s": 1000}, "It has waited its 16 min: no job that began to wait later"),
        ({"others_at_most": 0}, "goes before it, whatever its class and tenant."),
        ({}, "but for what Slurm's own factors may give it (2,000 at most)."),
    ],
)
def test_the_sentence_says_from_when_no_newer_job_goes_before_it(
    changes: dict[str, Any], said: str
) -> None:
    assert said in place_text(answer().model_copy(update=changes))


def test_the_screen_has_the_terms_and_slurms_factors_that_count() -> None:
    shown = shown_text(answer(urgency=1.0))
    for words in (
        "priority 7,450",
        "urgency",
        "slices × time limit",
        "100 s of 16 min",
        "qos",
        "2000",
        "6,400",
    ):
        assert words in shown
    assert "fairshare" not in shown


def shown_text(found: PriorityAnswer) -> str:
    out = console()
    with out.capture() as captured:
        out.print(screen(found))
    return captured.get()


class Slurm(ScriptedSlurm):
    async def config(self) -> dict[str, str]:
        return {"PriorityWeightQOS": "2000", "PriorityWeightAge": "500"}

    async def priorities(self, job_ids: Any) -> tuple[PriorityRow, ...]:
        return tuple(PriorityRow(one, 6_500, 6_400, {"qos": 100}) for one in job_ids)


async def asked(about: str, reader: Principal, *jobs: JobView) -> PriorityAnswer:
    slurm = Slurm(*jobs)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    return await explain_priority(about, reader, slurm, settings(), cluster_state)


OWNER = Principal(ALICE, "alice", frozenset({"vision"}))
STRANGER = Principal(BOB, "bob", frozenset({"nlp"}))
OPERATOR = Principal(0, "root", None)


@pytest.mark.parametrize("reader", [OWNER, OPERATOR, Principal(BOB, "bob", frozenset({"vision"}))])
async def test_the_owner_his_tenants_users_and_operators_may_ask(reader: Principal) -> None:
    found = await asked("50", reader, waiting(50))
    assert (found.job, found.tenant, found.site_factor_in_slurm) == ("50", "vision", 6_400)
    assert (found.others_at_most, found.priority) == (2000, 6_500)


async def test_what_it_asks_for_is_counted_by_the_site_s_costs() -> None:
    ten = waiting(50, tres={"gres/gpu:1g.10gb": "10"}, time_limit_s=36_000)
    values = {term.name: term.value for term in (await asked("50", OPERATOR, ten)).terms}
    assert values["smallness"] == pytest.approx(0.6)


@pytest.mark.parametrize("about", ["50", "51", "vision", "50_1", "x"])
async def test_others_learn_nothing_not_even_that_it_is_there(about: str) -> None:
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN") as refused:
        await asked(about, STRANGER, waiting(50))
    assert str(refused.value).startswith(f"There is no job {about!r} that you may see.")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": JobState.RUNNING}, "it is RUNNING"),
        ({"held": True}, "it is held"),
        ({"eligible_s": None}, "it may not start yet"),
        ({"admin_comment": ""}, "Slicewise has not admitted it"),
    ],
)
async def test_a_job_that_is_not_in_the_queue_has_no_priority(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidInputError, match=rf"{why}\..*SW-NOTHING"):
        await asked("50", OWNER, waiting(50, **changes))


async def test_one_task_of_an_arrays_rest_is_explained_as_the_rest() -> None:
    rest = waiting(50, array_job_id=50, untouched=frozenset({3, 4}))
    slurm = Slurm(rest)
    cluster_state = sync_of(slurm)
    await cluster_state.turn()
    # Both at one moment: what the wait is worth grows.
    whole, one = [
        await explain_priority(about, OWNER, slurm, settings(), cluster_state)
        for about in ("50", "50_4")
    ]
    assert (whole.job, whole.tasks, one.job, one.tasks) == ("50", 2, "50_4", 1)
    assert nameless(one) == nameless(whole)


def nameless(found: PriorityAnswer) -> PriorityAnswer:
    return found.model_copy(update={"job": "", "tasks": 0})
