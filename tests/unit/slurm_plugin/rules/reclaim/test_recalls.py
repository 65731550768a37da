"""Tests recalls: how much a lender takes back, from which borrowers, and when."""

import pytest
from builders.tenants import policy_of, tenant
from builders.waiting import waiting_since

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.reclaim.recalls import have_room, recalled

NOW_S, GRACE_S = 1000, 60
POLICY = policy_of(
    tenant("vision", 4000, lending_limit_millislices=4000),
    tenant("audio", 2000, lending_limit_millislices=2000),
    tenant("nlp", 1000, borrowing_limit_millislices=6000),
)


def loan(amount: int, lender: str = "vision") -> Loan:
    return Loan(lender, "nlp", Millislices(amount))


def recall(amount: int, called_s: int = NOW_S, lender: str = "vision") -> Recall:
    return Recall(lender, "nlp", Millislices(amount), called_s)


def after(
    before: tuple[Loan, ...],
    now: tuple[Loan, ...],
    *recalls: Recall,
    nlp: int,
    vision: int = 0,
    ready: int = 0,
    waiting: tuple[WaitingJob, ...] = (),
    policy: Policy = POLICY,
    grace_s: int = GRACE_S,
) -> tuple[Recall, ...]:
    held = {"nlp": nlp, "vision": vision}
    return recalled(
        policy,
        before,
        now,
        recalls,
        held,
        ready={"vision": ready},
        waiting={"vision": waiting},
        now_s=NOW_S,
        grace_s=grace_s,
    )


@pytest.mark.parametrize(
    ("nlp", "expected"),
    [(5000, 2000), (4000, 1000), (3000, 0), (0, 0)],
    ids=["all of it", "some", "none", "nothing at all"],
)
def test_of_what_a_loan_loses_that_is_recalled_which_the_borrower_holds(nlp: int, expected: int):
    found = after((loan(4000),), (loan(2000),), nlp=nlp)
    assert found == ((recall(expected),) if expected else ())


def test_what_was_called_before_stays_called_since_then():
    earlier = recall(1000, NOW_S - 30)
    assert after((loan(3000),), (loan(2000),), earlier, nlp=5000) == (earlier, recall(1000))
    assert after((loan(3000),), (loan(2000),), earlier, nlp=4000) == (earlier,)


def test_after_the_grace_nothing_is_left_of_it():
    for age_s, expected in ((59, (recall(1000, NOW_S - 59),)), (60, ()), (6000, ())):
        assert after((), (), recall(1000, NOW_S - age_s), nlp=2000) == expected
    assert after((loan(1000),), (), nlp=2000, grace_s=0) == ()


def test_no_part_gets_younger_while_who_waits_longest_has_room_and_may_lose_it():
    """Else a recall would never end where one small job after the other takes that room."""
    first = recall(1000, NOW_S - 50)
    jobs = waiting_since(NOW_S - 50, 1000), waiting_since(NOW_S - 1, 1000)
    assert after((), (), first, nlp=2000, vision=2000, waiting=jobs) == (first,)


def test_what_has_come_home_does_not_age_what_is_called_for_the_same_job_now():
    home = Recall("vision", "hpc", Millislices(1000), NOW_S - 50)
    job = waiting_since(NOW_S - 55, 2000)
    assert after((loan(1000),), (), home, nlp=2000, vision=3000, waiting=(job,)) == (recall(1000),)


@pytest.mark.parametrize(
    ("vision", "recalls", "expected"),
    [
        (0, (), 2000),
        (0, (recall(1500),), 1500),
        (0, (recall(1500, NOW_S - GRACE_S),), 2000),
        (2500, (), 500),
        (3500, (), 0),
    ],
    ids=["no more than wanted", "what is called is not there yet", "over", "some", "none"],
)
def test_waiting_jobs_have_the_room_that_is_in_their_lender_s_limit(
    vision: int, recalls: tuple[Recall, ...], expected: int
):
    jobs, held = (waiting_since(NOW_S, 1000, tasks=2),), {"vision": vision}
    found = have_room(
        POLICY, (loan(1000),), recalls, held, {"vision": jobs}, now_s=NOW_S, grace_s=GRACE_S
    )
    assert found.get("vision", 0) == expected


def test_one_of_the_future_is_one_of_now():
    """The clock was set back."""
    assert after((), (), recall(1000, NOW_S + 500), nlp=2000) == (recall(1000),)


def test_a_lender_that_wants_no_more_lends_anew_and_recalls_nothing():
    assert after((loan(1000),), (loan(3000),), recall(2000), nlp=4000) == ()


def test_what_lender_and_ready_jobs_have_is_not_recalled_any_more():
    assert after((), (), recall(3000), nlp=5000, vision=2000) == (recall(2000),)
    assert after((), (), recall(3000), nlp=5000, vision=2000, ready=1000) == (recall(1000),)
    assert after((), (), recall(3000), nlp=5000, vision=2000, ready=9000) == ()
    assert after((), (loan(3000),), recall(3000), nlp=5000) == (recall(1000),)


def test_two_lenders_of_one_borrower_recall_no_more_than_it_has_of_both():
    older = recall(1000, NOW_S - 9, "audio")
    assert after((loan(2000),), (), older, nlp=2500) == (older, recall(500))


def test_who_is_no_tenant_any_more_neither_takes_back_nor_keeps_back():
    gone = Recall("gone", "nlp", Millislices(1000), NOW_S)
    to_gone = Recall("vision", "gone", Millislices(1000), NOW_S)
    assert after((), (), gone, to_gone, nlp=5000) == ()


def test_what_is_recalled_is_in_no_limit():
    found = standings(POLICY, (loan(1000),), (recall(2000),))
    now = {name: one.limit_millislices for name, one in found.items()}
    assert now == {"vision": 1000, "audio": 2000, "nlp": 2000}
    assert found["vision"].lent_millislices == 3000
    assert found["vision"].guaranteed_millislices == 1000


def test_a_recall_never_takes_more_than_the_lender_has_beside_its_loans():
    smaller = {**POLICY, "vision": tenant("vision", 1500, lending_limit_millislices=4000)}
    found = standings(smaller, (loan(1000),), (recall(2000), recall(9, lender="gone")))
    assert found["vision"].limit_millislices == 0


def test_inside_a_group_the_group_keeps_what_is_on_its_way():
    lab = policy_of(
        tenant("lab", 0),
        tenant("vision", 3000, "lab", lending_limit_millislices=3000),
        tenant("nlp", 1000, "lab", borrowing_limit_millislices=3000),
        tenant("other", 1000, borrowing_limit_millislices=3000),
    )
    found = standings(lab, (), (recall(1000), Recall("vision", "other", Millislices(500), 9)))
    now = {name: one.limit_millislices for name, one in found.items()}
    assert now == {"lab": 3500, "vision": 1500, "nlp": 1000, "other": 1000}


@pytest.mark.parametrize(
    ("since_s", "called_s"),
    [(NOW_S - 90, NOW_S - 50), (NOW_S - 5, NOW_S - 5), (NOW_S + 5, NOW_S - 50)],
    ids=["older", "newer", "before the clock was set back"],
)
def test_the_grace_counts_from_the_job_that_still_waits(since_s: int, called_s: int):
    """Of an unbroken stream, each job has what was called for it: those before have started."""
    earlier = recall(1000, NOW_S - 50), recall(1000, NOW_S - 40, "audio")
    found = after((), (), *earlier, nlp=3000, vision=3000, waiting=(waiting_since(since_s, 1000),))
    assert set(found) == {recall(1000, called_s), recall(1000, NOW_S - 40, "audio")}


def test_what_is_called_for_a_job_later_is_as_old_as_what_was_called_for_it_first():
    """Slurm starts nothing on a part."""
    first, job = recall(1000, NOW_S - 40), waiting_since(NOW_S - 45, 2000)
    found = after((loan(1000),), (), first, nlp=3000, vision=2000, waiting=(job,))
    assert found == (recall(2000, NOW_S - 40),)


def test_each_part_is_as_old_as_the_job_that_it_is_for():
    first, second = recall(1000, NOW_S - 50), recall(2000, NOW_S - 20)
    jobs = waiting_since(NOW_S - 10, 2000), waiting_since(NOW_S - 50, 500, tasks=2)
    found = after((), (), first, second, nlp=4000, vision=1000, waiting=jobs)
    assert set(found) == {first, recall(2000, NOW_S - 10)}


def test_of_more_than_jobs_want_the_oldest_is_for_nobody_and_ends_first():
    first, second = recall(1000, NOW_S - 50), recall(2000, NOW_S - 20)
    found = after((), (), first, second, nlp=4000, waiting=(waiting_since(NOW_S - 10, 1000),))
    assert set(found) == {first, recall(1000, NOW_S - 20), recall(1000, NOW_S - 10)}


def test_the_room_that_a_lender_has_is_for_who_waits_longest():
    first, jobs = (
        recall(1000, NOW_S - 50),
        (waiting_since(NOW_S - 50, 2000), waiting_since(NOW_S - 5, 1000)),
    )
    found = after((loan(1000),), (), first, nlp=3000, vision=1000, waiting=jobs)
    assert found == (first, recall(1000))
