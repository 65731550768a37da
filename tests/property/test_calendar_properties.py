"""Property: whatever the windows, the tree holds together and no tenant has more than a cap."""

from collections.abc import Sequence

from builders.tenants import tenant
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.calendar import (
    ALL,
    Moment,
    Window,
    WindowKind,
    holds,
    in_force,
    loosely_within,
)
from slicewise.slurm_plugin.rules.quota.calendar_times import moment, moments
from slicewise.slurm_plugin.rules.quota.lending import lend
from slicewise.slurm_plugin.rules.quota.tenants import by_parent, effective_nominal, subtree
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant

AMOUNTS = st.integers(0, 3000).map(Millislices)
SINCE_S = st.integers(1_700_000_000, 1_900_000_000)
NAMES = ("a", "b", "c", "d", "e", "f")
PARENTS = [st.sampled_from(["", *NAMES[:i]]) for i in range(len(NAMES))]
KINDS = st.sampled_from(WindowKind)
CONCERNED = st.sampled_from(NAMES)
CAPPED = st.sampled_from([ALL, *NAMES])
DAYS = st.frozensets(st.integers(0, 6))
FIRST_S = st.one_of(st.none(), SINCE_S)
LASTS_S = st.one_of(st.none(), st.integers(1, 10**6))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """As they must be: a nominal covers those below, or is 0."""
    size = draw(st.integers(1, len(NAMES)))
    above = ["", *(draw(parent) for parent in PARENTS[1:size])]
    below = dict.fromkeys(NAMES, 0)
    policy = {}
    for name, parent in reversed(list(zip(NAMES[:size], above, strict=True))):
        own = draw(AMOUNTS)
        nominal = draw(st.booleans()) * (below[name] + own)
        if parent:
            below[parent] += max(nominal, below[name])
        quota = Quota(Millislices(nominal), draw(AMOUNTS), draw(AMOUNTS))
        policy[name] = Tenant(name, parent, quota)
    return policy


@st.composite
def windows(draw: st.DrawFn) -> Window:
    kind = draw(KINDS)
    first_s, lasts_s = draw(FIRST_S), draw(LASTS_S)
    return Window(
        window_id=draw(st.integers(1, 99)),
        tenant=draw(CAPPED if kind is WindowKind.CAP else CONCERNED),
        kind=kind,
        amount_millislices=draw(AMOUNTS),
        days=draw(DAYS),
        begin_min=draw(st.integers(0, 1439)),
        end_min=draw(st.integers(0, 1439)),
        first_s=first_s,
        last_s=None if lasts_s is None else (first_s or 0) + lasts_s,
    )


SOME = st.lists(windows(), max_size=5)
MOMENTS = st.builds(moment, SINCE_S, st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata"]))
MANY = settings(max_examples=examples(80, nightly=20_000))


@MANY
@given(policies(), SOME, MOMENTS)
def test_those_below_never_have_more_than_the_tenant(
    policy: Policy, some: list[Window], now: Moment
) -> None:
    after = in_force(policy, some, now)
    assert after.keys() == policy.keys()
    for name, children in by_parent(after).items():
        have = sum(effective_nominal(after)[child] for child in children)
        if name and after[name].quota.nominal_millislices:
            assert have <= after[name].quota.nominal_millislices


@MANY
@given(policies(), SOME, MOMENTS)
def test_nobody_has_more_than_a_cap_above_it(
    policy: Policy, some: list[Window], now: Moment
) -> None:
    after = in_force(policy, some, now)
    nominal = effective_nominal(after)
    caps = [one for one in some if one.kind is WindowKind.CAP and holds(one, now)]
    for cap in (one for one in caps if one.tenant in {ALL, *policy}):
        if cap.tenant == ALL:
            top = by_parent(after)[""]
            assert sum(nominal[name] for name in top) <= cap.amount_millislices
        for name in after if cap.tenant == ALL else subtree(after, cap.tenant):
            borrowing = after[name].quota.borrowing_limit_millislices
            assert 0 <= nominal[name] + borrowing <= cap.amount_millislices


@MANY
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 60))
def test_a_cap_is_given_out_whole_and_in_whole_slices(slices: list[int], cap: int) -> None:
    tenants = [tenant(name, 1000 * one) for name, one in zip(NAMES, slices, strict=False)]
    every_day = Window(1, ALL, WindowKind.CAP, Millislices(1000 * cap))
    after = in_force({one.name: one for one in tenants}, [every_day], moment(1_800_000_000, "UTC"))
    has = [one.quota.nominal_millislices for one in after.values()]
    assert sum(has) == 1000 * min(cap, sum(slices))
    for before, share in zip(slices, has, strict=True):
        assert share % 1000 == 0
        exact = 1000 * before * min(cap, sum(slices)) / max(1, sum(slices))
        assert share <= 1000 * before
        assert abs(share - exact) < 1000


@MANY
@given(policies(), SOME, MOMENTS)
def test_only_holding_windows_matter_and_only_to_those_they_concern(
    policy: Policy, some: list[Window], now: Moment
) -> None:
    holding = [one for one in some if holds(one, now)]
    assert in_force(policy, some, now) == in_force(policy, holding, now)
    alone = [one for one in holding if one.kind in {WindowKind.BORROWING, WindowKind.LENDING}]
    concerned = {one.tenant for one in alone}
    after = in_force(policy, alone, now)
    assert all(after[name] == policy[name] for name in policy if name not in concerned)


@MANY
@given(policies(), SOME, MOMENTS, st.data())
def test_what_is_lent_at_any_hour_is_never_cut_by_the_ledger(
    policy: Policy, some: list[Window], now: Moment, data: st.DataObject
) -> None:
    demand = {name: data.draw(st.integers(0, 6000)) for name in policy}
    loans = lend(in_force(policy, some, now), demand, (), 10**9)
    assert loosely_within(policy, some, loans) == loans


@settings(max_examples=examples(60, nightly=2000))
@given(SOME, SINCE_S, st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata"]))
def test_between_two_moments_nothing_changes(some: list[Window], since_s: int, zone: str) -> None:
    found = [one for one in moments(some, since_s, zone) if one.at_s < since_s + 7 * 86400]
    at_s = [one.at_s for one in found]
    assert at_s == sorted(set(at_s))
    ends = [*at_s[1:], since_s + 7 * 86400]
    for one, end_s in zip(found, ends, strict=True):
        assert states(some, one) == states(some, moment(end_s - 1, zone))


def states(some: Sequence[Window], now: Moment) -> list[bool]:
    return [holds(one, now) for one in some]
