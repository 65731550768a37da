"""What tenants may hold."""

from cluster.units import Millislices
from slurm_plugin.decide.ceilings import Ceiling, ceilings
from slurm_plugin.decide.policy import Loan, Policy, Quota, Tenant

NO_LIMIT = Millislices(10**9)


def tenant(name: str, nominal: int, parent: str = "") -> Tenant:
    return Tenant(name, parent, Quota(Millislices(nominal), NO_LIMIT, NO_LIMIT))


POLICY: Policy = {
    one.name: one
    for one in (
        tenant("lab", 6000),
        tenant("a", 3000, "lab"),
        tenant("b", 1000, "lab"),
        tenant("c", 4000),
    )
}


def ceiling(amount: int, guarantee: int, lent: int = 0, borrowed: int = 0) -> Ceiling:
    return Ceiling(
        Millislices(amount), Millislices(guarantee), Millislices(lent), Millislices(borrowed)
    )


def loan(lender: str, borrower: str, amount: int) -> Loan:
    return Loan(lender, borrower, Millislices(amount))


def test_without_loans_everybody_has_its_nominal():
    for capacity in (None, 10_000):
        assert ceilings(POLICY, (), capacity) == {
            "lab": ceiling(6000, 2000),
            "a": ceiling(3000, 3000),
            "b": ceiling(1000, 1000),
            "c": ceiling(4000, 4000),
        }


def test_a_loan_lowers_the_lender_and_raises_the_borrower_up_to_where_they_meet():
    loans = (loan("a", "b", 500), loan("a", "c", 1000))
    assert ceilings(POLICY, loans, 10_000) == {
        "lab": ceiling(5000, 2000, lent=1000),
        "a": ceiling(1500, 1500, lent=1500),
        "b": ceiling(1500, 1000, borrowed=500),
        "c": ceiling(5000, 4000, borrowed=1000),
    }


def test_short_of_capacity_all_are_squeezed_in_proportion():
    found = ceilings(POLICY, (loan("c", "b", 1000),), 5000)
    assert found == {
        "lab": ceiling(3500, 2000, borrowed=1000),
        "a": ceiling(2100, 2100),
        "b": ceiling(1400, 1000, borrowed=1000),
        "c": ceiling(1500, 1500, lent=1000),
    }


def test_nothing_to_share_out_is_nothing():
    assert ceilings(POLICY, (), 0)["a"] == ceiling(0, 0)
    assert ceilings({"a": tenant("a", 0)}, (), 0) == {"a": ceiling(0, 0)}
    assert ceilings({}, (), 0) == {}


def test_a_loan_of_somebody_who_is_no_tenant_does_not_count():
    assert ceilings(POLICY, (loan("gone", "c", 1000),), None)["c"] == ceiling(4000, 4000)
