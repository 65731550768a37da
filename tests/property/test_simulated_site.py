"""Sites of made-up jobs: what quotas promise holds on the model of Slurm, whatever comes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from builders.settings import site_settings
from builders.site_world import (
    ALONE,
    BEGIN_S,
    COSTS,
    GPU,
    SETTINGS,
    cluster,
    past,
    simulated,
    slicewise,
    starts,
    tenants,
)
from builders.tenants import tenant
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.simulation.rules.cluster import SimulatedNode
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.measure import Guarantee, Yardstick, measured
from slicewise.simulation.rules.site.plans import SlurmPlan
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.slurm_model.job_requests import QosLimits
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.quota.demand import late_before_s
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy

NAMES = ("a", "b", "c")
ON = cluster(2, 4)
CAPACITY = 8 * GPU
ROUNDS_S = 40
"""Seconds that a round, its limits and Slurm's next runs may take beside the grace."""
LAST_S = 20_000.0
STEP_S = 300.0
"""Seconds between two rounds while jobs wait, in which limits stay as they are."""


@st.composite
def histories(draw: st.DrawFn, sizes: st.SearchStrategy[int]) -> tuple[HistoryJob, ...]:
    """Jobs of so many GPUs each."""
    count = draw(st.integers(1, 25))
    return tuple(
        past(
            draw(st.sampled_from(NAMES)),
            draw(sizes),
            draw(st.integers(0, 6000)),
            float(draw(st.integers(1, 4000))),
        )
        for _ in range(count)
    )


jobs_of_one_size = st.integers(1, 4).flatmap(lambda size: histories(st.just(size)))


policies = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)).map(
    lambda gpus: tenants(**dict(zip(NAMES, gpus, strict=True)))
)


def held_over_time(record: SiteRecord, *, on_loan: bool | None = None) -> list[Counter[str]]:
    """What each tenant held after each moment at which something changed."""
    events = []
    for job in record.jobs:
        for run in job.runs:
            if on_loan in {None, run.is_on_loan}:
                events.append((run.start_s, 1, job))
                events.append((inf if run.end_s is None else run.end_s, -1, job))
    held: Counter[str] = Counter()
    found = []
    in_order = sorted(events, key=lambda event: event[:2])
    for _, together in groupby(in_order, key=lambda event: event[0]):
        for _, sign, job in together:
            held[job.tenant] += sign * job.cost_millislices
        found.append(Counter(held))
    return found


@given(histories(st.integers(1, 4)), policies)
@settings(max_examples=examples(25), deadline=None)
def test_no_more_is_held_than_there_is_nor_than_its_own_in_a_tenant_s_own_qos(
    jobs: Sequence[HistoryJob], policy: Policy
) -> None:
    record = simulated(slicewise(policy), *jobs, on=ON, last_s=LAST_S)
    for held in held_over_time(record):
        assert held.total() <= CAPACITY
    for held in held_over_time(record, on_loan=False):
        for name, amount in held.items():
            assert amount <= policy[name].quota.nominal_millislices


@given(jobs_of_one_size, policies)
@settings(max_examples=examples(25), deadline=None)
def test_a_lender_s_own_job_waits_at_most_for_the_grace_and_its_rounds(
    jobs: Sequence[HistoryJob], policy: Policy
) -> None:
    """On GPUs of one node, so that no job lacks room while enough GPUs are free.

    With jobs of several sizes a tenant's older and larger job, which the guaranteed quota could
    hold, keeps its younger ones waiting, also those for which there is room.
    """
    on = cluster(1, 8)
    record = simulated(slicewise(policy), *jobs, on=on, last_s=LAST_S)
    own = {name: int(one.quota.nominal_millislices) for name, one in policy.items()}
    grace_s = SETTINGS.lending.grace_s
    by = Yardstick(BEGIN_S, BEGIN_S + LAST_S, CAPACITY, (Guarantee(BEGIN_S, own),), grace_s)
    found = measured(record, by)
    for sums in found.tenants.values():
        assert sums.own_waited_s <= grace_s + ROUNDS_S
        assert sums.late_jobs == 0
    assert late_before_s(0.0, grace_s) < -grace_s


@given(histories(st.integers(1, 4)), st.tuples(*[st.integers(1, 4)] * 3))
@settings(max_examples=examples(25), deadline=None)
def test_quotas_without_loans_are_slurm_s_own_limits(
    jobs: Sequence[HistoryJob], gpus: tuple[int, ...]
) -> None:
    """With all tenants' weights in priority out, both start the same jobs at the same time."""
    total = max(1, sum(gpus))
    quotas = {name: min(count, 8 * count // total) for name, count in zip(NAMES, gpus, strict=True)}
    policy = {name: tenant(name, count * GPU) for name, count in quotas.items()}
    plain = SETTINGS.priority.model_copy(
        update={
            **dict.fromkeys(
                ("class_weight", "share_weight", "urgency_weight", "smallness_weight"), 0
            ),
            "wait_full_h": 1e9,
        }
    )
    static = SlurmPlan(
        "static",
        {
            f"slicewise_{name}": QosLimits(grp_tres={"billing": count * GPU})
            for name, count in quotas.items()
        },
    )
    fitting = [job for job in jobs if sum(job.gpus.values()) <= quotas[job.account]]
    in_own = [replace(job, qos=f"slicewise_{job.account}") for job in fitting]
    ours = SETTINGS.model_copy(update={"priority": plain})
    first = simulated(slicewise(policy, settings=ours), *fitting, on=ON, last_s=LAST_S)
    second = simulated(static, *in_own, on=ON, last_s=LAST_S)
    assert starts(first) == starts(second)


@given(histories(st.integers(1, 4)), policies, st.integers(1, 12))
@settings(max_examples=examples(15), deadline=None)
def test_a_tenant_uses_no_more_of_a_period_than_its_budget_and_a_few_minutes(
    jobs: Sequence[HistoryJob], policy: Policy, gpu_hours: int
) -> None:
    """Limits follow the use in steps: until the next one all that it holds may go on."""
    amount = gpu_hours * 600 * GPU
    budget = Budget(Period.NONE, MillisliceSeconds(amount))
    limited = {name: replace(one, budget=budget) for name, one in policy.items()}
    record = simulated(slicewise(limited), *jobs, on=ON, last_s=LAST_S)
    used: Counter[str] = Counter()
    for job in record.jobs:
        for run in job.runs:
            # Slurm shows and charges whole seconds.
            end_s = BEGIN_S + LAST_S if run.end_s is None else run.end_s
            used[job.tenant] += int(job.cost_millislices * (end_s - run.start_s))
    for amount_used in used.values():
        assert amount_used <= amount + CAPACITY * STEP_S


@given(histories(st.integers(1, 4)), policies)
@settings(max_examples=examples(10), deadline=None)
def test_the_same_past_gives_the_same_future(jobs: Sequence[HistoryJob], policy: Policy) -> None:
    for plan in (ALONE, slicewise(policy)):
        once, again = (simulated(plan, *jobs, on=ON, last_s=LAST_S) for _ in range(2))
        assert once == again
    assert COSTS["a100"] == GPU


CUT = {"1g.10gb": 7, "a100": 2}
BOTH = site_settings(whole=["a100"], name="test")


def guaranteed(types: Mapping[str, Mapping[str, int]]) -> Policy:
    """A tenant for each name, whose nominal is what it is guaranteed of each type."""
    return {
        name: replace(
            one,
            quota=replace(
                one.quota,
                nominal_millislices=Millislices(run_cost(types[name], BOTH.costs)),
                type_nominals=types[name],
            ),
        )
        for name, one in tenants(**dict.fromkeys(NAMES, 0)).items()
    }


@st.composite
def policies_by_type(draw: st.DrawFn) -> Policy:
    """All instances of a node, each guaranteed to one of the tenants."""
    owners = {kind: [draw(st.sampled_from(NAMES)) for _ in range(n)] for kind, n in CUT.items()}
    types = {name: {kind: owners[kind].count(name) for kind in CUT} for name in NAMES}
    return guaranteed(types)


@st.composite
def jobs_of_both(draw: st.DrawFn) -> tuple[HistoryJob, ...]:
    """Jobs of one instance each."""
    return tuple(
        past(
            draw(st.sampled_from(NAMES)),
            {draw(st.sampled_from(("1g.10gb", "a100"))): 1},
            draw(st.integers(0, 6000)),
            float(draw(st.integers(1, 4000))),
        )
        for _ in range(draw(st.integers(1, 40)))
    )


def test_a_job_that_goes_first_makes_no_older_one_of_its_tenant_wait_for_another_grace() -> None:
    """The shorter job took its place in the own quota, and the grace began anew."""
    types = {"a": {"1g.10gb": 4, "a100": 1}, "b": {"1g.10gb": 2}, "c": {"1g.10gb": 1, "a100": 1}}
    policy = guaranteed(types)
    jobs = (
        past("a", {"a100": 1}, 13, 2834.0),
        past("b", {"a100": 1}, 46, 700.0),
        past("a", {"1g.10gb": 1}, 50, 2022.0),
        past("c", {"a100": 1}, 59, 1094.0),
        past("c", {"a100": 1}, 108, 1066.0),
    )
    on = replace(cluster(1), nodes=(SimulatedNode("n0", frozenset({"gpu"}), CUT),))
    plan = slicewise(policy, settings=BOTH)
    record = simulated(plan, *jobs, on=on, last_s=LAST_S, costs=BOTH.costs)
    first_s = min(job.runs[0].start_s for job in record.jobs if job.tenant == "c")
    assert first_s - BEGIN_S <= 59 + BOTH.lending.grace_s + ROUNDS_S


@given(jobs_of_both(), policies_by_type())
@settings(max_examples=examples(25), deadline=None)
def test_what_is_guaranteed_of_a_type_waits_at_most_for_the_grace_and_its_rounds(
    jobs: Sequence[HistoryJob], policy: Policy
) -> None:
    """And a tenant's own QOS never holds more of a type than that."""
    on = replace(cluster(1), nodes=(SimulatedNode("n0", frozenset({"gpu"}), CUT),))
    plan = slicewise(policy, settings=BOTH)
    record = simulated(plan, *jobs, on=on, last_s=LAST_S, costs=BOTH.costs)
    own = {name: int(one.quota.nominal_millislices) for name, one in policy.items()}
    types = {name: one.quota.type_nominals for name, one in policy.items()}
    grace_s = BOTH.lending.grace_s
    guarantee = Guarantee(BEGIN_S, own, types)
    by = Yardstick(BEGIN_S, BEGIN_S + LAST_S, 3 * GPU, (guarantee,), grace_s)
    for sums in measured(record, by).tenants.values():
        assert sums.own_waited_s <= grace_s + ROUNDS_S
    for kind in CUT:
        of_kind = replace(record, jobs=tuple(job for job in record.jobs if kind in job.gpus))
        for held in held_over_time(of_kind, on_loan=False):
            for name, amount in held.items():
                assert amount <= types[name][kind] * BOTH.costs[kind]
