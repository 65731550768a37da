"""Properties of the model of Slurm, whatever is submitted and done to it."""

from collections import Counter

from builders.model_world import job, model
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView
from slicewise.cluster.language.slurm.interface import JobChange
from slicewise.simulation.rules.cluster import PriorityWeights, Scheduling
from slicewise.simulation.rules.slurm_model.job_requests import (
    AccountLimits,
    ModelRequest,
    QosLimits,
)
from slicewise.simulation.rules.slurm_model.model import SlurmModel

NODES = ({"a100": 4}, {"a100": 4}, {"1g.10gb": 7, "3g.40gb": 1})
LIMIT, ACCOUNT_LIMIT = 6000, 9000
SCHEDULING = Scheduling(
    weights=PriorityWeights(age=100, fair_share=1000), interval_s=2.0, depth=3, backfill_s=30.0
)

requests = st.builds(
    job,
    st.sampled_from(({"a100": 1}, {"a100": 3}, {"a100": 4}, {"1g.10gb": 2}, {"3g.40gb": 1})),
    st.sampled_from((5.0, 90.0, 1000.0)),
    st.sampled_from((60, 600, 4000)),
    qos=st.sampled_from(("own", "loan", "plain")),
    user=st.sampled_from(("ann", "bob")),
    nodes=st.sampled_from((1, 1, 1, 2)),
    tasks=st.sampled_from((0, 0, 3)),
    held=st.sampled_from((False, False, False, True)),
    requeues=st.booleans(),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ("submit", "submit", "submit", "cancel", "hold", "requeue_hold", "release")
        ),
        requests,
        st.integers(0, 30),
        st.sampled_from((0.0, 1.0, 40.0, 700.0)),
    ),
    min_size=1,
    max_size=25,
)
Steps = list[tuple[str, ModelRequest, int, float]]


def built() -> SlurmModel:
    one = model(*NODES, scheduling=SCHEDULING, accounts={"a": "root"})
    one.set_qos("own", QosLimits(grp_tres={"billing": LIMIT}, preempts=frozenset({"loan"})))
    one.set_qos("loan", QosLimits(preempt_exempt_s=60))
    one.set_account("a", AccountLimits(grp_tres={"billing": ACCOUNT_LIMIT}))
    return one


def step(one: SlurmModel, change: str, request: ModelRequest, which: int, wait_s: float) -> None:
    if change == "submit":
        one.submit(request)
    elif one.jobs:
        getattr(one, change)(one.jobs[which % len(one.jobs)].job_id)
    one.advance(one.now_s + wait_s)


def billing(jobs: tuple[JobView, ...], qos: str = "") -> int:
    running = (one for one in jobs if one.state is JobState.RUNNING and qos in {"", one.qos})
    return sum(int(one.tres["billing"]) for one in running)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_nobody_holds_more_than_there_is_and_may_be_had(given_steps: Steps) -> None:
    one = built()
    for given_step in given_steps:
        step(one, *given_step)
        held = Counter[str]()
        for shown in one.jobs:
            if shown.state in ALLOTTED:
                held.update(shown.gpus)
        allotted = Counter[str]()
        for node in one.nodes:
            assert all(count <= node.gpus[kind] for kind, count in node.gpus_allotted.items())
            assert len(node.gpus_held) == sum(node.gpus_allotted.values())
            allotted.update(node.gpus_allotted)
        assert held == allotted
        assert billing(one.jobs, "own") <= LIMIT


@settings(max_examples=40, deadline=None)
@given(steps)
def test_an_account_starts_nothing_beyond_its_limit(given_steps: Steps) -> None:
    """What the QOS does not limit itself."""
    one = built()
    for change, request, which, wait_s in given_steps:
        before = {shown.task for shown in one.jobs if shown.state is JobState.RUNNING}
        step(one, change, request, which, wait_s)
        new = [one for one in one.jobs if one.state is JobState.RUNNING and one.task not in before]
        if any(shown.qos != "own" for shown in new) and not any(
            shown.qos == "own" for shown in new
        ):
            assert billing(one.jobs) <= ACCOUNT_LIMIT


@settings(max_examples=40, deadline=None)
@given(steps)
def test_the_same_calls_give_the_same_answers(given_steps: Steps) -> None:
    one, other = built(), built()
    for given_step in given_steps:
        step(one, *given_step)
        step(other, *given_step)
        assert one.jobs == other.jobs
        assert one.next_s() == other.next_s()
        assert one.take_ended() == other.take_ended()


@settings(max_examples=40, deadline=None)
@given(steps)
def test_everything_that_fits_alone_runs_in_the_end(given_steps: Steps) -> None:
    one = built()
    for given_step in given_steps:
        step(one, *given_step)
    one.advance(one.now_s + 10)  # What completes can't be released.
    for shown in one.jobs:
        one.release(shown.job_id)
    one.set_account("a", AccountLimits())
    one.set_qos("own", QosLimits(preempts=frozenset({"loan"})))
    one.advance(one.now_s + 400_000)
    left = {shown.task: shown.reason for shown in one.jobs}
    assert not {task for task, reason in left.items() if "Unavailable" not in reason}


@settings(max_examples=40, deadline=None)
@given(steps)
def test_a_view_is_the_same_object_until_it_changes(given_steps: Steps) -> None:
    one = built()
    for given_step in given_steps:
        before = {shown.job_id: shown for shown in one.jobs}
        step(one, *given_step)
        for shown in one.jobs:
            known = before.get(shown.job_id)
            if shown.state in {JobState.RUNNING, JobState.ENDED}:
                assert known is shown or known != shown
        assert one.jobs is one.jobs


@settings(max_examples=40, deadline=None)
@given(steps, st.integers(2, 9))
def test_time_in_small_steps_is_the_same_time(given_steps: Steps, parts: int) -> None:
    one, other = built(), built()
    for change, request, which, wait_s in given_steps:
        step(one, change, request, which, wait_s)
        step(other, change, request, which, 0.0)
        began_s = other.now_s
        for part in range(1, parts + 1):
            other.advance(began_s + wait_s * part / parts)
        assert one.jobs == other.jobs


@given(st.integers(0, 200))
def test_a_priority_of_one_more_never_goes_later(more: int) -> None:
    one = model({"a100": 1})
    one.submit(job())
    one.advance(one.now_s)
    first, second = one.submit(job()), one.submit(job())
    one.update(second, JobChange(site_factor=more))
    one.cancel(1)
    one.advance(one.now_s)
    running = next(shown.job_id for shown in one.jobs if shown.state is JobState.RUNNING)
    assert running == (second if more > 1 else first)
