"""Tests what tenants may hold."""

import pytest
from builders.tenants import free_tenant, tenant

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.standings import QosUse, Standing, by_use, standings
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall

POLICY: Policy = {
    one.name: one
    for one in (
        free_tenant("lab", 6000),
        free_tenant("a", 3000, "lab"),
        free_tenant("b", 1000, "lab"),
        free_tenant("c", 4000),
    )
}


def standing(
    amount: int, guarantee: int, limits: tuple[int, int], lent: int = 0, borrowed: int = 0
) -> Standing:
    return Standing(*map(Millislices, (amount, guarantee, lent, borrowed, *limits)))


def loan(lender: str, borrower: str, amount: int) -> Loan:
    return Loan(lender, borrower, Millislices(amount))


def test_without_loans_everybody_has_its_nominal():
    assert standings(POLICY, ()) == {
        "lab": standing(6000, 2000, (2000, 0)),
        "a": standing(3000, 3000, (3000, 0)),
        "b": standing(1000, 1000, (1000, 0)),
        "c": standing(4000, 4000, (4000, 0)),
    }


def test_a_loan_lowers_the_lender_and_raises_the_borrower_up_to_where_they_meet():
    loans = (loan("a", "b", 500), loan("a", "c", 1000))
    assert standings(POLICY, loans) == {
        "lab": standing(5000, 2000, (2000, 0), lent=1000),
        "a": standing(1500, 1500, (1500, 0), lent=1500),
        "b": standing(1500, 1000, (1000, 500), borrowed=500),
        "c": standing(5000, 4000, (4000, 1000), borrowed=1000),
    }


def test_nothing_to_share_out_is_nothing():
    assert standings({"a": free_tenant("a", 0)}, ()) == {"a": standing(0, 0, (0, 0))}
    assert standings({}, ()) == {}


def test_a_loan_of_somebody_who_is_no_tenant_does_not_count():
    assert standings(POLICY, (loan("gone", "c", 1000),))["c"] == standing(4000, 4000, (4000, 0))


def test_a_tenant_above_others_can_not_take_what_they_are_due():
    """Its own jobs were let in by what its account may hold, that of those below it included."""
    above = tenant("dept", 8000, borrowing_limit_millislices=Millislices(1000))
    below = tenant("team", 4000, "dept")
    found = standings({"dept": above, "team": below}, ())
    assert found["dept"] == standing(8000, 4000, (4000, 0))
    assert found["team"] == standing(4000, 4000, (4000, 0))


def test_what_is_on_its_way_back_is_in_nobodys_limit():
    found = standings(POLICY, (loan("a", "c", 1000),), [Recall("a", "b", Millislices(500), 5)])
    assert found["a"] == standing(1500, 1500, (1500, 0), lent=1500)
    assert found["b"] == standing(1000, 1000, (1000, 0))
    assert found["c"] == standing(5000, 4000, (4000, 1000), borrowed=1000)


def use(own: tuple[int, int] = (0, 0), on_loan: tuple[int, int] = (0, 0)) -> QosUse:
    """What a's jobs hold and wait for, in both QOS."""
    names = ("slicewise_a", "slicewise_a_borrowed")
    held, waiting = zip(own, on_loan, strict=True)
    return QosUse(
        held=dict(zip(names, held, strict=True)),
        waiting=dict(zip(names, waiting, strict=True)),
        tasks={name: [cost] for name, cost in zip(names, waiting, strict=True) if cost},
    )


@pytest.mark.parametrize(
    ("used", "limits"),
    [
        (use(), (2000, 1500)),
        # One that costs more than either has both.
        (use(on_loan=(0, 3500)), (0, 3500)),
        # Jobs of its own QOS come before waiting ones, not before running ones.
        (use(own=(1000, 0), on_loan=(0, 2500)), (1000, 2500)),
        # Nothing is moved for one that could not start then either.
        (use(own=(1000, 0), on_loan=(0, 3500)), (2000, 1500)),
        # What is called back is not taken of what its own QOS holds.
        (use(own=(2000, 0), on_loan=(3500, 0)), (2000, 1500)),
        (use(own=(0, 2000), on_loan=(0, 3500)), (2000, 1500)),
        (use(own=(0, 2000), on_loan=(3500, 0)), (0, 3500)),
        # No more is moved than they lack.
        (use(on_loan=(1000, 1000)), (1500, 2000)),
    ],
)
def test_what_its_own_qos_leaves_is_for_its_borrowed_jobs(used: QosUse, limits: tuple[int, int]):
    """Its guaranteed quota is 2 slices, and 1.5 are lent to it."""
    zero, own, loan = Millislices(0), Millislices(2000), Millislices(1500)
    before = Standing(Millislices(3500), own, zero, loan, own, loan)
    after = by_use({"a": before}, used)["a"]
    assert (after.own_qos_limit_millislices, after.borrowed_qos_limit_millislices) == limits


def test_a_large_job_on_its_own_part_does_not_wait_behind_one_for_which_no_gpu_is_free():
    """Which of the two that is only Slurm knows: both could not start at once."""
    zero, own = Millislices(0), Millislices(7000)
    before = Standing(own, own, zero, zero, own, zero)
    use = QosUse(tasks={"slicewise_a_borrowed": (4000, 7000, 8000)})
    after = by_use({"a": before}, use)["a"]
    assert (after.own_qos_limit_millislices, after.borrowed_qos_limit_millislices) == (0, 7000)


def test_a_guarantee_by_type_comes_before_what_its_tenant_runs_on_loan():
    """Jobs on loan run on three of its four slices, and two wait for the guarantee."""
    before = standings(POLICY, ())["c"]
    held, waits = {"slicewise_c_borrowed": 3000}, {"slicewise_c": 2000}
    kept = by_use({"c": before}, QosUse(held, waits))["c"]
    assert (kept.own_qos_limit_millislices, kept.borrowed_qos_limit_millislices) == (1000, 3000)
    first = by_use({"c": before}, QosUse(held, waits, own_first=frozenset({"slicewise_c"})))["c"]
    assert (first.own_qos_limit_millislices, first.borrowed_qos_limit_millislices) == (2000, 2000)
