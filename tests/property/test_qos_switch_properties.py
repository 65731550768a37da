"""Property: moves between the two QOS settle in one turn, and keep to what may be held."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from builders.tenants import policy_of, tenant
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.scripted import job as slot

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.slurm.interface import Target, Tasks
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.qos_switch import moves
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Policy

COSTS = {"a": Millislices(1000), "b": Millislices(2500)}
MANAGED = frozenset({"gpu"})
TREE = {"lab": "", "vision": "lab", "audio": "lab", "nlp": ""}
amounts = st.integers(0, 8).map(lambda slices: Millislices(slices * 500))
accounts = st.sampled_from(sorted(TREE))
classes = {name: st.sampled_from([qos_name(name), borrowed_qos(name)]) for name in TREE}
sizes = st.sampled_from([0, 0, 2, 7])
reasons = st.sampled_from(["Resources", "BeginTime"])
kinds = st.sampled_from(sorted(COSTS))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return policy_of(
        *(
            tenant(name, draw(amounts), parent, borrowing_limit_millislices=draw(amounts))
            for name, parent in TREE.items()
        )
    )


@st.composite
def queues(draw: st.DrawFn) -> list[JobView]:
    return [record(draw, number) for number in range(1, draw(st.integers(1, 13)))]


def record(draw: st.DrawFn, number: int) -> JobView:
    account = draw(accounts)
    size = draw(sizes)
    runs = not size and draw(st.booleans())
    values: dict[str, Any] = {
        "job_id": 100 * number,
        "array_job_id": 100 * number if size else None,
        "task_index": None,
        "untouched": frozenset(range(size)),
        "account": account,
        "qos": draw(classes[account]),
        "priority": draw(st.integers(1, 3)),
        "held": False,
        "reason": draw(reasons),
        "state": JobState.RUNNING if runs else JobState.PENDING,
        "tres": {f"gres/gpu:{draw(kinds)}": str(draw(st.integers(1, 2)))},
        "admin_comment": JobTag("ab", account, is_flexible=draw(st.booleans())).text(),
    }
    return replace(slot(0), **values)


def moves_of(policy: Policy, jobs: Sequence[JobView]) -> Mapping[Target, str]:
    return moves(policy, jobs_by_holder(jobs, MANAGED, COSTS, {}), standings(policy, ()))


def moved(policy: Policy, jobs: Sequence[JobView]) -> list[JobView]:
    """What Slurm makes of the moves."""
    after = {job.job_id: job for job in jobs}
    for target, qos in moves(
        policy, jobs_by_holder(jobs, MANAGED, COSTS, {}), standings(policy, ())
    ).items():
        record = record_of(target, after)
        assert not isinstance(target, Tasks) or target.indices == record.untouched
        after[record.job_id] = replace(record, qos=qos)
    return list(after.values())


def record_of(target: Target, jobs: Mapping[int, JobView]) -> JobView:
    return jobs[target.array_job_id if isinstance(target, Tasks) else target]


@given(policies(), queues())
def test_after_one_turn_nothing_is_left_to_move(policy: Policy, jobs: list[JobView]) -> None:
    after = moved(policy, jobs)
    assert moves_of(policy, after) == {}


@given(policies(), queues())
def test_what_moves_has_room_where_it_goes(policy: Policy, jobs: list[JobView]) -> None:
    """The next tasks of all that move to a tenant's own QOS fit there with what runs."""
    own = guaranteed_quota(policy)
    holds: Counter[tuple[str, str]] = Counter()
    arrives: Counter[tuple[str, str]] = Counter()
    for job in jobs:
        if job.state is JobState.RUNNING:
            holds[job.account, job.qos] += cost(job)
    for target, qos in moves(
        policy, jobs_by_holder(jobs, MANAGED, COSTS, {}), standings(policy, ())
    ).items():
        job = record_of(target, {job.job_id: job for job in jobs})
        arrives[job.account, qos] += cost(job)
    for (name, qos), amount in arrives.items():
        if qos == qos_name(name):
            assert holds[name, qos] + amount <= own[name]
        else:
            assert policy[name].quota.borrowing_limit_millislices


@given(policies(), queues())
def test_only_flexible_jobs_that_could_start_move(policy: Policy, jobs: list[JobView]) -> None:
    known = {job.job_id: job for job in jobs}
    for target in moves_of(policy, jobs):
        job = record_of(target, known)
        tag = JobTag.find(job.admin_comment)
        assert tag is not None
        assert tag.is_flexible
        assert (job.state, job.reason) == (JobState.PENDING, "Resources")


def cost(job: JobView) -> int:
    return sum(COSTS[name.removeprefix("gres/gpu:")] * int(n) for name, n in job.tres.items())
