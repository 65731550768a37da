"""Property: a recalled slice belongs to no tenant while in transit, and returns to its lender."""

from collections.abc import Mapping
from dataclasses import dataclass

from builders.tenants import tenant
from builders.waiting import waiting_since
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.quota.lending import lend
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.tenants import effective_nominal, guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Quota, Recall, Tenant
from slicewise.slurm_plugin.rules.reclaim.recalls import over_entitlement, recalled

PLENTY = Millislices(10**9)
GRACE_S = 60
NAMES = ("a", "b", "c", "d", "e")
AMOUNTS = st.integers(0, 5000)
JOBS = st.builds(waiting_since, st.integers(900, 1100), st.integers(1, 3000), st.integers(1, 3))
PARENTS = st.sampled_from(["", "lab"])
RECALLS = st.lists(
    st.builds(
        Recall,
        st.sampled_from(NAMES[:2]),
        st.sampled_from(NAMES[2:]),
        st.integers(1, 5000).map(Millislices),
        st.integers(900, 1100),
    ),
    max_size=4,
)
HELD = st.integers(0, 10_000)
READY = st.one_of(st.just(0), AMOUNTS)
WAITING = st.lists(JOBS, max_size=3).map(tuple)


@dataclass(frozen=True)
class Case:
    """One round: loans before and after, what was recalled, who holds how much, the time."""

    policy: Policy
    before: tuple[Loan, ...]
    after: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    held: Mapping[str, int]
    ready: Mapping[str, int]
    waiting: Mapping[str, tuple[WaitingJob, ...]]
    now_s: int = 1000

    def recalled(self, recalls: tuple[Recall, ...] | None = None) -> tuple[Recall, ...]:
        return recalled(
            self.policy,
            self.before,
            self.after,
            self.recalls if recalls is None else recalls,
            self.held,
            ready=self.ready,
            waiting=self.waiting,
            now_s=self.now_s,
            grace_s=GRACE_S,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Trees of two levels; each tenant may lend and borrow without limits."""
    amounts = {name: Millislices(draw(AMOUNTS)) for name in NAMES}
    group = tenant("lab", borrowing_limit_millislices=PLENTY, lending_limit_millislices=PLENTY)
    policy = {"lab": group} | {
        name: Tenant(name, draw(PARENTS), Quota(amount, PLENTY, PLENTY))
        for name, amount in amounts.items()
    }

    def demand() -> Mapping[str, int]:
        return {name: draw(AMOUNTS) for name in NAMES}

    before = lend(policy, demand(), (), PLENTY)
    return Case(
        policy,
        before,
        lend(policy, demand(), before, PLENTY),
        tuple(draw(RECALLS)),
        {name: draw(HELD) for name in NAMES},
        {name: draw(READY) for name in NAMES},
        {name: draw(WAITING) for name in NAMES[:2]},
    )


def total(recalls: tuple[Recall, ...], **of: str) -> int:
    return sum(
        one.amount_millislices
        for one in recalls
        if all(getattr(one, end) == name for end, name in of.items())
    )


@given(cases())
@settings(max_examples=examples(80, nightly=6000))
def test_recalls_are_what_others_hold_of_what_their_lenders_have_idle(case: Case) -> None:
    found = case.recalled()
    over, own = over_entitlement(case.policy, case.after, case.held), guaranteed_quota(case.policy)
    for name in case.policy:
        lent = sum(loan.amount_millislices for loan in case.after if loan.lender == name)
        used = case.held.get(name, 0) + case.ready.get(name, 0)
        assert total(found, borrower=name) <= over.get(name, 0)
        assert total(found, lender=name) <= max(0, own[name] - lent - used)
    assert all(case.now_s - GRACE_S < one.called_s <= case.now_s for one in found)
    assert all(one.amount_millislices > 0 for one in found)


@given(cases())
@settings(max_examples=examples(80, nightly=6000))
def test_nothing_is_recalled_that_was_not_called_or_cut(case: Case) -> None:
    found = case.recalled()
    now = {(one.lender, one.borrower): one.amount_millislices for one in case.after}
    for ends in {(one.lender, one.borrower) for one in found}:
        cut = sum(
            one.amount_millislices for one in case.before if (one.lender, one.borrower) == ends
        )
        cut = max(0, cut - now.get(ends, 0))
        called = total(case.recalls, lender=ends[0], borrower=ends[1])
        assert total(found, lender=ends[0], borrower=ends[1]) <= called + cut


@given(cases())
@settings(max_examples=examples(60, nightly=4000))
def test_without_change_a_round_changes_nothing_and_time_alone_ends_it(case: Case) -> None:
    first = case.recalled()
    still = Case(case.policy, case.after, case.after, first, case.held, case.ready, case.waiting)
    assert still.recalled() == first
    over = Case(
        case.policy,
        case.after,
        case.after,
        first,
        case.held,
        case.ready,
        {},
        case.now_s + GRACE_S,
    )
    assert over.recalled() == ()


@given(cases())
@settings(max_examples=examples(80, nightly=6000))
def test_recalls_lower_their_lenders_limits_and_raise_none(case: Case) -> None:
    found = case.recalled()
    without = standings(case.policy, case.after)
    for name, one in standings(case.policy, case.after, found).items():
        lost = without[name].limit_millislices - one.limit_millislices
        assert one.limit_millislices >= 0
        assert one.borrowed_millislices == without[name].borrowed_millislices
        assert lost == total(found, lender=name) if name in NAMES else 0 <= lost <= total(found)


@given(cases())
@settings(max_examples=examples(80, nightly=6000))
def test_together_nobody_may_hold_more_than_all_nominals(case: Case) -> None:
    found = standings(case.policy, case.after, case.recalled())
    top = [name for name, tenant in case.policy.items() if not tenant.parent]
    nominal = effective_nominal(case.policy)
    have = sum(found[name].limit_millislices for name in top)
    assert have <= sum(nominal[name] for name in top)
