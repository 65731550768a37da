"""Property: ``slicewise why`` always answers, names no other users, and estimates soundly."""

from dataclasses import replace

from builders.tenants import tenant
from builders.why_world import NOW_S, SMALL, job, running, sight
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.explain.reasons import REASONS
from slicewise.slurm_plugin.rules.explain.shortage import WhyInput, ends_s
from slicewise.slurm_plugin.rules.explain.why_job import jobs_named, why_job
from slicewise.slurm_plugin.rules.explain.why_tenant import why_tenant

TENANTS = (tenant("lab", 6000), tenant("vision", 2000, "lab"), tenant("other", 2000, "lab"))
USERS = {"lab": "laura", "vision": "alice", "other": "mallory", "none": "nobody"}
TIMES = st.none() | st.integers(NOW_S - 5000, NOW_S + 5000)
TAGS = st.builds(
    JobTag,
    st.just("ab"),
    st.just("vision"),
    st.sampled_from([None, "bert"]),
    is_flexible=st.booleans(),
    is_undecided=st.booleans(),
)


ACCOUNTS = st.sampled_from(sorted(USERS))
CLASSES = {name: st.sampled_from([qos_name(name), borrowed_qos(name), "normal"]) for name in USERS}
UNTOUCHED = st.frozensets(st.integers(0, 9), max_size=4)
PENDING = st.sampled_from([*REASONS, "AssocGrpMemLimit", "Odd", ""])
STATES = st.sampled_from(JobState)
TRES = st.sampled_from([{f"gres/gpu:{SMALL}": "1"}, {f"gres/gpu:{SMALL}": "3"}, {}])
NODES = st.sampled_from([(), ("node1",), ("elsewhere",)])
LIMITS_S = st.none() | st.integers(0, 5000)
PARTITIONS = st.sampled_from(["gpu", "gpu,cpu", "cpu"])


def view(draw: st.DrawFn, number: int) -> JobView:
    account = draw(ACCOUNTS)
    in_array = draw(st.booleans())
    untouched = draw(UNTOUCHED) if in_array else frozenset()
    return replace(
        job(number, draw(PENDING)),
        account=account,
        user=USERS[account],
        array_job_id=number if in_array else None,
        task_index=3 if in_array and not untouched else None,
        untouched=untouched,
        state=draw(STATES),
        qos=draw(CLASSES[account]),
        held=draw(st.booleans()),
        priority=draw(st.integers(0, 3)),
        admin_comment=draw(TAGS).text() if draw(st.booleans()) else "",
        tres=draw(TRES),
        nodes=draw(NODES),
        start_s=draw(TIMES),
        end_s=draw(TIMES),
        eligible_s=draw(TIMES),
        time_limit_s=draw(LIMITS_S),
        partition=draw(PARTITIONS),
    )


@st.composite
def worlds(draw: st.DrawFn) -> WhyInput:
    jobs = tuple(view(draw, number) for number in range(1, draw(st.integers(2, 9))))
    return sight(
        *jobs,
        tenants=TENANTS,
        allotted=draw(st.integers(0, 10)),
        loans={("other", "vision"): 1000},
    )


@settings(max_examples=examples(60, nightly=4000), deadline=None)
@given(worlds())
def test_it_always_answers_and_names_nobody_of_another_tenant(now: WhyInput):
    for view in now.jobs:
        answer = why_job(str(view.job_id), jobs_named(str(view.job_id), now.jobs), now)
        text = answer.model_dump_json()
        assert answer.headline
        strangers = {user for account, user in USERS.items() if account != view.account}
        assert not any(user in text for user in strangers)
        assert answer.start_s is None or answer.start
    for name in ("lab", "vision", "other"):
        text = why_tenant(name, now).model_dump_json()
        assert not any(user in text for account, user in USERS.items() if account != name)


@settings(max_examples=examples(60, nightly=4000), deadline=None)
@given(
    limits=st.lists(st.none() | st.integers(1, 4000), min_size=1, max_size=6),
    need=st.integers(1, 7),
)
def test_at_the_estimate_enough_has_come_back_and_not_before(limits: list[int | None], need: int):
    """If every job runs to its limit; the tenant may hold as much as its jobs do."""
    held = [
        running(number, None if limit is None else NOW_S + limit)
        for number, limit in enumerate(limits, start=1)
    ]
    waits = job(99, "QOSGrpBilling", tres={f"gres/gpu:{SMALL}": str(need)})
    now = sight(*held, waits, tenants=(tenant("vision", 1000 * len(held)),))
    start_s = why_job("99", (waits,), now).start_s
    ends = [end_s for one in held if (end_s := ends_s(one)) is not None]
    if need > len(ends):
        assert start_s is None
    else:
        assert start_s is not None
        assert sum(end_s <= start_s for end_s in ends) >= need
        assert sum(end_s < start_s for end_s in ends) < need
