"""Tests services on the model of Slurm: up, down, to zero, within quota, and told to end."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from builders.simulated_services import (
    PARTITION,
    PROFILE,
    PROMPT,
    START_S,
    TENANT,
    Quota,
    SimulatedWorld,
    a_service,
)
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobState, JobTag
from slicewise.cluster.language.slurm.interface import Tasks
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, ServiceView
from slicewise.simulation.rules.services.gateway_place import ReplicaCount, ServiceGateway
from slicewise.simulation.rules.services.launcher import ServiceLauncher
from slicewise.simulation.rules.services.request_figures import ServiceOutcome, joined_outcome
from slicewise.simulation.rules.services.service import EngineModel, array_of
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest, QosLimits
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos

CHAT = "nlp/chat"
BUSY = [5 + number / 4 for number in range(120)]
"""Four requests in a second for half a minute: what two replicas can work on."""


def gateway_of(world: SimulatedWorld) -> ServiceGateway:
    return world.services.gateway(CHAT)


def figures(world: SimulatedWorld) -> ServiceOutcome:
    (found,) = world.services.outcomes(START_S, world.model.now_s)
    return found


def counts(world: SimulatedWorld) -> Sequence[tuple[float, int, int]]:
    return [(one.at_s - START_S, one.allotted, one.ready) for one in gateway_of(world).counts]


def states(world: SimulatedWorld) -> Sequence[str]:
    (view,) = world.services.views
    return [slot.state for slot in view.slots]


def test_its_array_is_that_of_apply_and_a_service_for_the_daemon():
    world = SimulatedWorld(a_service([]))
    world.pass_until(10)
    (job,) = world.model.jobs
    tag = JobTag.find(job.admin_comment)
    assert tag is not None
    assert (tag.tenant, tag.service) == (TENANT, "chat")
    assert (job.account, job.qos, job.reason) == (TENANT, "slicewise_nlp", "JobHeldAdmin")
    assert job.untouched == frozenset(range(4))
    (view,) = world.services.views
    assert (view.array_job_id, view.cost_millislices) == (job.job_id, 1000)
    assert states(world) == ["held"] * 4


def test_a_service_without_a_profile_is_refused():
    world = SimulatedWorld(a_service([], spec={"profile": None, "need_gib": 10}))
    with pytest.raises(InvalidInputError, match="no profile"):
        world.pass_until(1)


def test_a_request_wakes_it_and_it_goes_back_to_zero():
    world = SimulatedWorld(a_service([20.0], loads_s=(3.0,)))
    world.pass_until(60)
    found = gateway_of(world)
    assert found.requests.waits == [3.0]
    assert [ready for _, _, ready in counts(world)] == [0, 1, 0, 0]
    assert states(world) == ["held"] * 4
    ended_s = counts(world)[-1][0]
    # It is kept for 5 s, and goes on for 3 s once it is told to end.
    assert 20 + 4 + 5 + 3 <= ended_s <= 20 + 4 + 5 + 3 + 2
    assert figures(world) == ServiceOutcome(
        CHAT, (3.0,), 1, 0, pytest.approx(ended_s - 20.0, abs=0.5), 2, 0
    )


def test_it_follows_its_load_up_and_down():
    world = SimulatedWorld(a_service(BUSY, spec={"keep_alive_s": 1}))
    world.pass_until(35)
    assert max(ready for _, _, ready in counts(world)) >= 2
    world.pass_until(60)
    assert counts(world)[-1][1:] == (0, 0)
    found = figures(world)
    assert (found.requests, found.lost) == (120, 0)
    assert found.attainment > 0.8


def test_at_rest_no_turn_is_made_until_a_request_comes():
    world = SimulatedWorld(a_service([30_000.0]))
    assert world.pass_until(29_999) < 2_000
    world.pass_until(30_010)
    assert gateway_of(world).requests.waits == [3.0]


def test_jobs_of_an_account_without_a_quota_take_of_the_tenant_in_whose_qos_they_are():
    """Slurm's limit counts them: a slot that is let go for what they hold would not start."""
    world = SimulatedWorld(
        a_service([], spec={"min_replicas": 2, "max_replicas": 2}), of={TENANT: Quota(2)}
    )
    asked = ModelRequest("ann", 1, "students", PARTITION, "slicewise_nlp", {PROFILE: 1}, run_s=inf)
    world.model.submit(asked)
    world.pass_until(30)
    assert sorted(states(world)) == ["held", "running"]


STEADY = [5 + 2 * number for number in range(100)]
"""A request each two seconds, of a second: one replica works on them, and none waits."""


def turns(monkeypatch: pytest.MonkeyPatch, world: SimulatedWorld, at_s: float) -> int:
    """Let the time pass; return how often the launcher decided."""
    made = []
    really = ServiceLauncher.decide
    with monkeypatch.context() as patch:
        patch.setattr(ServiceLauncher, "decide", lambda *words: made.append(1) or really(*words))
        world.pass_until(at_s)
    return len(made)


def test_while_replicas_just_work_turns_are_further_apart(monkeypatch: pytest.MonkeyPatch):
    often, calm = SimulatedWorld(a_service(STEADY)), SimulatedWorld(a_service(STEADY), calm_s=5.0)
    assert turns(monkeypatch, often, 200) > 350
    assert turns(monkeypatch, calm, 200) < 80
    assert gateway_of(calm).requests.waits == gateway_of(often).requests.waits
    assert counts(calm) == counts(often)


def test_requests_that_wait_end_the_calm_and_so_does_a_loaded_replica(
    monkeypatch: pytest.MonkeyPatch,
):
    load = sorted([*STEADY, *(101 + number / 10 for number in range(40))])
    service = a_service(load, loads_s=(3.25,), spec={"max_queue_s": None})
    often, calm = SimulatedWorld(service), SimulatedWorld(service, calm_s=60.0)
    for world in (often, calm):
        world.pass_until(120)
    assert turns(monkeypatch, calm, 121) == 0
    assert [one for one in counts(calm) if one[0] < 110] == [
        one for one in counts(often) if one[0] < 110
    ]
    assert max(ready for _, _, ready in counts(calm)) > 1


def test_a_replica_that_has_loaded_gets_requests_whatever_calm_there_is():
    world = SimulatedWorld(a_service([], spec={"min_replicas": 1}), calm_s=600.0)
    world.pass_until(20)
    (at_s,) = (at_s for at_s, _, ready in counts(world) if ready)
    assert 3.0 <= at_s <= 5.0


def test_who_is_told_to_end_leaves_whatever_calm_there_is():
    world = SimulatedWorld(a_service(STEADY), calm_s=600.0)
    world.pass_until(60)
    (job,) = (one for one in world.model.jobs if one.state is JobState.RUNNING)
    world.services.evictions.end(
        {(job.job_id, job.start_s): "taken back"}, {}, world.services.views, 60.0
    )
    world.pass_until(66)
    (ended,) = world.model.take_ended()
    assert ended.job_id == job.job_id
    assert figures(world).lost == 0


def test_a_failed_node_ends_the_calm():
    world = SimulatedWorld(a_service(STEADY), nodes=2, calm_s=600.0)
    world.pass_until(60)
    world.model.fail_node("gpu1")
    world.pass_until(75)
    assert [one.state for one in world.model.jobs].count(JobState.RUNNING) == 1


def decide(launcher: ServiceLauncher, view: ServiceView, gateway: ServiceGateway) -> None:
    """Nothing is released by anybody."""
    plan = launcher.decide(view, gateway, gateway.requests.now_s)
    for array, desired in plan.desired_by_array.items() if plan is not None else ():
        launcher.hear(array, desired, DesiredSlotsAnswer())


def test_turns_that_are_not_made_at_rest_count_as_looks():
    service = a_service([400.5])
    world = SimulatedWorld(service)
    world.pass_until(1)
    (view,), gateway = world.services.views, ServiceGateway(service)
    steady, resting = ServiceLauncher(service, 1.0), ServiceLauncher(service, 1.0)
    due_s, turns = 0.0, 0
    for second in range(1, 402):
        now_s = START_S + second
        gateway.requests.pass_until(now_s)
        decide(steady, view, gateway)
        if now_s >= due_s:
            turns += 1
            decide(resting, view, gateway)
            due_s = resting.due_s(now_s, gateway.requests.arrivals[gateway.requests.arrived])
    assert resting.state == steady.state
    assert turns < 20


def test_its_own_quota_keeps_slots_back():
    world = SimulatedWorld(a_service(BUSY), of={TENANT: Quota(1)})
    world.pass_until(34)
    assert max(allotted for _, allotted, _ in counts(world)) == 1
    assert states(world).count("held") == 3


def test_what_is_lent_is_used_and_given_back_in_order():
    world = SimulatedWorld(a_service(BUSY), of={TENANT: Quota(1, limit=3, borrowed=3)})
    world.pass_until(25)
    (view,) = world.services.views
    borrowed = {slot.job_id: "taken back" for slot in view.slots if slot.is_borrowed}
    running = borrowed.keys() & {job.job_id for job in world.model.jobs if job.nodes}
    assert running
    world.limit(TENANT, Quota(1))
    starts_s = {job.job_id: job.start_s for job in world.model.jobs}
    told = {(job, starts_s[job]): "taken back" for job in running if job is not None}
    world.services.evictions.end(told, {}, world.services.views, 60.0)
    world.pass_until(32)
    holding = {job.job_id for job in world.model.jobs if job.state is JobState.RUNNING}
    assert not running & holding
    assert counts(world)[-1][1] == 1
    # One more than is borrowed was released. None is let in again for the lender's job to end.
    assert figures(world).changes == 1 + len(borrowed) + len(running)
    world.pass_until(200)
    assert (figures(world).lost, gateway_of(world).requests.answered) == (0, 120)


def test_a_replica_s_lease_is_extended_while_it_is_wanted():
    steady = [5 + number for number in range(400)]
    world = SimulatedWorld(a_service(steady, spec={"lease_s": 120}))
    world.pass_until(400)
    (job,) = (one for one in world.model.jobs if one.state is JobState.RUNNING)
    assert job.restarts == 0
    assert figures(world).lost == 0


def test_a_failed_node_loses_what_was_worked_on_there_and_the_slot_comes_back():
    service = a_service(BUSY, service_s=(2.0,), spec={"max_queue_s": None})
    world = SimulatedWorld(service, nodes=2, gpus=2)
    world.pass_until(20.2)
    node = next(job.nodes[0] for job in world.model.jobs if job.state is JobState.RUNNING)
    world.model.fail_node(node)
    world.pass_until(21)
    found = figures(world)
    assert found.lost > 0
    world.pass_until(200)
    found = figures(world)
    assert gateway_of(world).requests.answered == 120 - found.lost
    assert found.attainment == 1 - found.lost / 120
    assert states(world) == ["held"] * 4


def preempted_while_busy(request_s: float, kill_wait_s: float = 30.0) -> SimulatedWorld:
    """One replica, on borrowed quota, is preempted at 20 s by another's job for all GPUs; 50 s on.

    It begins a request of ``request_s`` at 19 s.
    """
    scheduling = replace(PROMPT, kill_wait_s=kill_wait_s)
    service = a_service([10.0, 19.0], service_s=(request_s,), spec={"max_replicas": 1})
    world = SimulatedWorld(
        service, gpus=1, of={TENANT: Quota(0, limit=1, borrowed=1)}, scheduling=scheduling
    )
    world.model.set_qos("other", QosLimits(preempts=frozenset({borrowed_qos(TENANT)})))
    world.pass_until(20)
    asked = ModelRequest("ann", 1, "other", PARTITION, "other", {PROFILE: 1}, run_s=inf)
    world.model.submit(asked)
    world.pass_until(70)
    return world


@pytest.mark.parametrize(
    ("request_s", "kill_wait_s", "lost", "start_s"),
    [
        # It goes on for 3 s in any case.
        (0.5, 30.0, 0, 23.0),
        (9.0, 30.0, 0, 28.0),
        # Its script ends it 2 s before Slurm kills it.
        (31.0, 30.0, 1, 48.0),
        (9.0, 8.0, 1, 26.0),
    ],
)
def test_a_preempted_replica_answers_what_it_has_as_kill_wait_allows(
    request_s: float, kill_wait_s: float, lost: int, start_s: float
):
    world = preempted_while_busy(request_s, kill_wait_s)
    assert figures(world).lost == lost
    assert gateway_of(world).requests.answered == 2 - lost
    (job,) = (one for one in world.model.jobs if one.account == "other")
    assert job.start_s is not None
    assert start_s <= job.start_s - START_S <= start_s + 2


def test_a_replica_that_ends_while_it_loads_is_seen_to_its_end_whatever_calm_there_is():
    service = a_service([], loads_s=(100.0,), spec={"min_replicas": 1})
    world = SimulatedWorld(service, calm_s=600.0)
    world.pass_until(60)
    (job,) = (one for one in world.model.jobs if one.state is JobState.RUNNING)
    assert job.array_job_id is not None
    assert job.task_index is not None
    world.model.requeue_hold(Tasks(job.array_job_id, frozenset({job.task_index})))
    world.pass_until(66)
    (job,) = (one for one in world.model.jobs if one.task_index == job.task_index)
    assert job.state is not JobState.COMPLETING


def test_a_slot_whose_run_has_ended_for_good_is_brought_back():
    world = SimulatedWorld(a_service(BUSY, spec={"max_queue_s": None}))
    world.pass_until(15.2)
    job = next(job for job in world.model.jobs if job.state is JobState.RUNNING)
    assert job.array_job_id is not None
    assert job.task_index is not None
    world.model.cancel(Tasks(job.array_job_id, frozenset({job.task_index})))
    world.pass_until(17)
    assert states(world)[job.task_index] == "ending"
    world.pass_until(21)
    assert states(world)[job.task_index] == "gone"
    world.pass_until(28)
    assert "gone" not in states(world)
    world.pass_until(500)
    assert states(world) == ["held"] * 4
    assert gateway_of(world).requests.answered == 120 - figures(world).lost


def test_figures_of_times_that_follow_one_another_are_joined():
    world = SimulatedWorld(a_service(BUSY))
    world.pass_until(60)
    of = [world.services.outcomes(START_S + a, START_S + b)[0] for a, b in ((0, 20), (20, 60))]
    found = joined_outcome(of)
    assert found.slice_s == pytest.approx(figures(world).slice_s)
    assert replace(found, slice_s=0.0) == replace(figures(world), slice_s=0.0)
    assert (found.attainment, found.wait_p99_s) == (
        found.in_time / 120,
        sorted(found.waits_s)[118],
    )


def test_two_runs_are_the_same():
    def run() -> tuple[Sequence[ReplicaCount], ServiceOutcome]:
        world = SimulatedWorld(a_service(BUSY))
        world.pass_until(60)
        return gateway_of(world).counts, figures(world)

    assert run() == run()


LOADS = st.lists(st.floats(0, 60), max_size=60).map(sorted)


@settings(max_examples=examples(10), deadline=None)
@given(
    LOADS,
    st.integers(1, 5),
    st.integers(0, 2),
    st.sampled_from([0.5, 1.0, 5.0]),
    st.sampled_from([0.0, 7.0]),
)
def test_no_request_is_lost_and_no_replica_is_above_slots_gpus_or_quota(
    arrivals_s: list[float], nominal: int, lent: int, every_s: float, calm_s: float
):
    of = {TENANT: Quota(nominal, limit=lent, borrowed=lent)}
    world = SimulatedWorld(a_service(arrivals_s), gpus=3, of=of, every_s=every_s, calm_s=calm_s)
    world.pass_until(150)
    found = gateway_of(world).requests
    assert (found.answered, found.lost, len(found.queue)) == (len(arrivals_s), 0, 0)
    most = min(4, 3, nominal + lent)
    assert all(allotted <= most and ready <= allotted for _, allotted, ready in counts(world))
    assert states(world) == ["held"] * 4
    assert figures(world).slice_s <= most * 150


def test_the_nth_start_takes_the_nth_load():
    world = SimulatedWorld(a_service([20.0, 60.0, 100.0], loads_s=(2.0, 4.0)))
    world.pass_until(140)
    assert gateway_of(world).requests.waits == [2.0, 4.0, 2.0]


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [
        ({1: 1.0}, (1.0,)),
        ({2: 1.0, 4: 2.0}, (1.0, 1.0, 1.5, 2.0)),
    ],
)
def test_an_engine_by_a_table(rows: dict[int, float], seconds: tuple[float, ...]):
    assert EngineModel.measured((5.0,), rows) == EngineModel((5.0,), seconds)


def test_a_request_is_as_long_as_its_size_and_the_engine_say():
    service = a_service([20.0, 20.0], service_s=(1.0, 1.5), sizes=(1.0, 2.0))
    world = SimulatedWorld(service)
    world.pass_until(60)
    answered = [at_s - START_S - 23.0 for at_s in gateway_of(world).requests.answers]
    assert answered == [1.0, 3.0]


@pytest.mark.parametrize(
    ("spec", "attainment"),
    [
        ({"max_queue_s": 2.9}, 0.5),
        ({"max_queue_s": 3.0}, 1.0),
        ({"max_queue_s": None, "p95_ms": 3900}, 0.5),
        ({"max_queue_s": None, "p95_ms": 4100}, 1.0),
        ({"max_queue_s": None}, 1.0),
    ],
)
def test_what_is_in_time_follows_from_the_service_s_aim(spec: dict[str, object], attainment: float):
    world = SimulatedWorld(a_service([20.0, 26.0], spec=spec))
    world.pass_until(60)
    assert figures(world).attainment == attainment


def test_what_may_still_be_in_time_is_not_judged_and_what_waits_too_long_is_late():
    world = SimulatedWorld(a_service([20.0, 21.0], loads_s=(inf,)))
    world.pass_until(22.5)
    (found,) = world.services.outcomes(START_S, START_S + 22.5)
    assert (found.requests, found.attainment, found.wait_p99_s) == (2, 0.0, 2.5)
    (found,) = world.services.outcomes(START_S, START_S + 21.5)
    assert (found.requests, found.attainment) == (2, 1.0)


def test_array_names_its_tenant_s_qos_and_a_token_of_its_own():
    first, second = array_of(a_service([]), 1), array_of(a_service([]), 2)
    assert first.admin_comment != second.admin_comment
    assert (first.qos, first.tasks, first.held, first.run_s) == ("slicewise_nlp", 4, True, inf)
