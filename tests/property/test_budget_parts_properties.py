"""Property: of any budgets in any tree nothing is given away twice, and nothing is lost."""

from collections import Counter
from collections.abc import Mapping

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.limits.budget_parts import (
    Claims,
    WaitingRun,
    drawn_on,
    larger_parts,
    parts,
)
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant

NAMES = ("a", "b", "c", "d", "e")
MINUTES = st.integers(0, 50) | st.integers(0, 10**12)
NEEDED = st.integers(1, 50) | st.integers(1, 10**12)
"""Slurm knows no time limit below a minute, so no job needs nothing of a budget."""


@st.composite
def trees(draw: st.DrawFn) -> Policy:
    return {
        name: Tenant(name, draw(st.sampled_from(("", *NAMES[:number]))), Quota(Millislices(0)))
        for number, name in enumerate(NAMES)
    }


QOS = tuple(f"slicewise_{name}{end}" for name in NAMES for end in ("", "_borrowed"))
SLICES = st.dictionaries(st.sampled_from(QOS), st.integers(0, 5).map(lambda one: one * 500))
CLAIMS = st.builds(
    Claims,
    may_take=st.dictionaries(st.sampled_from((*QOS, "normal")), MINUTES),
    elsewhere=st.dictionaries(st.sampled_from(NAMES), MINUTES),
    waiting=st.lists(
        st.builds(
            WaitingRun,
            qos=st.sampled_from((*QOS, "normal")),
            cost_millislices=st.sampled_from([500, 1000, 2000]),
            minutes=NEEDED,
        ),
        max_size=8,
    ).map(tuple),
    limits=SLICES,
    held=SLICES,
)


def slack(
    budgets: Mapping[str, int],
    draws: Mapping[str, tuple[str, ...]],
    given: Mapping[str, int],
) -> Mapping[str, int]:
    """What each budget has beyond what all that draw on it were given."""
    return {
        name: left - sum(given[qos] for qos, above in draws.items() if name in above)
        for name, left in budgets.items()
    }


@settings(max_examples=examples(100, nightly=6000))
@given(trees(), st.dictionaries(st.sampled_from(NAMES), MINUTES), CLAIMS)
def test_no_budget_is_given_twice_or_kept(
    policy: Policy, budgets: Mapping[str, int], claims: Claims
) -> None:
    draws = drawn_on(policy, budgets, policy)
    found = parts(policy, budgets, policy, claims)
    assert found.keys() == draws.keys()
    minutes = {qos: one.minutes for qos, one in found.items()}
    assert all(most >= 0 for most in minutes.values())
    taken = dict.fromkeys(budgets, 0)
    for tenant, amount in claims.elsewhere.items():
        for name in draws.get(f"slicewise_{tenant}", ()):
            taken[name] += amount
    left = {name: max(0, most - taken[name]) for name, most in budgets.items()}
    rest = slack(left, draws, minutes)
    assert all(most >= 0 for most in rest.values())
    for qos, above in draws.items():
        # Where a job could start, one of its budgets is given away to the last unit.
        if claims.limits.get(qos, 0):
            assert any(rest[name] == 0 for name in above)
        assert found[qos].least <= minutes[qos]
        running = claims.may_take.get(qos, 0)
        assert minutes[qos] >= running or any(rest[name] == 0 for name in above)


@settings(max_examples=examples(100, nightly=6000))
@given(trees(), st.dictionaries(st.sampled_from(NAMES), MINUTES), st.sets(st.sampled_from(QOS)))
def test_what_no_job_claims_is_shared_as_evenly_as_budgets_allow(
    policy: Policy, budgets: Mapping[str, int], usable: set[str]
) -> None:
    """A QOS that has less than another is held back by a budget of which no QOS has more."""
    draws = drawn_on(policy, budgets, policy)
    claims = Claims({}, {}, (), dict.fromkeys(usable, 1), {})
    found = {qos: one.minutes for qos, one in parts(policy, budgets, policy, claims).items()}
    rest = slack(budgets, draws, found)
    for qos in usable & draws.keys():
        full = [name for name in draws[qos] if rest[name] == 0]
        most = [max(found[one] for one in draws if name in draws[one]) for name in full]
        assert min(most) <= found[qos] + 1


@settings(max_examples=examples(70, nightly=4000))
@given(trees(), st.dictionaries(st.sampled_from(NAMES), MINUTES), CLAIMS)
def test_a_job_that_is_to_start_has_all_that_it_needs(
    policy: Policy, budgets: Mapping[str, int], claims: Claims
) -> None:
    found = parts(policy, budgets, policy, claims)
    for qos, one in found.items():
        starting = one.least - claims.may_take.get(qos, 0)
        if one.least:
            needs = [job.minutes for job in claims.waiting if job.qos == qos]
            assert starting in sums(needs)


@settings(max_examples=examples(100, nightly=6000))
@given(
    trees(),
    st.dictionaries(st.sampled_from(NAMES), MINUTES),
    st.dictionaries(st.sampled_from(QOS), MINUTES),
    st.lists(st.tuples(st.sampled_from(QOS), MINUTES), max_size=6),
)
def test_parts_that_only_grow_take_no_more_than_what_is_left(
    policy: Policy,
    budgets: Mapping[str, int],
    has: Mapping[str, int],
    needs: list[tuple[str, int]],
) -> None:
    draws = drawn_on(policy, budgets, policy)
    has = {qos: part for qos, part in has.items() if qos in draws}
    among = {qos for qos in has if not qos.endswith("_borrowed")}
    found = larger_parts(draws, budgets, has, needs, among)
    assert all(found[qos] >= part for qos, part in has.items())
    assert all(found[qos] == part for qos, part in has.items() if qos not in among)
    before = slack(budgets, draws, Counter(has))
    rest = slack(budgets, draws, Counter(found))
    assert all(rest[name] >= min(0, before[name]) for name in budgets)
    for qos in among:
        assert any(rest[name] <= 0 for name in draws[qos])


def sums(amounts: list[int]) -> set[int]:
    found = {0}
    for amount in amounts:
        found |= {one + amount for one in found}
    return found
