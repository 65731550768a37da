"""Tests whole decisions: restart, stale and incomplete looks, backoff, expiry, drain to the end."""

from dataclasses import replace
from typing import Any

import pytest
from builders.gateways import NOWHERE, a_server
from builders.service_specs import DIRECTIVES
from builders.service_views import a_running_slot, a_service, a_slot, a_tenant_view
from pydantic import TypeAdapter
from stand_ins.plain_scaling import decide

from slicewise.cluster.language.service import DEFAULT_START_TIMEOUT_S
from slicewise.cluster.language.starts import Weights
from slicewise.cluster.rpc.messages import (
    WHEN_REPLACED_S,
    BudgetView,
    DesiredSlotsAnswer,
    SlotView,
    ViewAnswer,
)
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity
from slicewise.launcher.rules.autoscale.policy import LastCounters, Memory, initial
from slicewise.launcher.rules.autoscale.types import ReplicaStart, Supply
from slicewise.launcher.rules.engines.engine import Answer, Probe, ReadyTimes
from slicewise.launcher.rules.gateway.routing import (
    AddRoute,
    EndSessions,
    GatewayChange,
    SetMode,
    SetTarget,
    SetTerms,
)
from slicewise.launcher.rules.gateway.types import (
    Backend,
    Endpoint,
    Gateway,
    Server,
    ServerMode,
    Terms,
)
from slicewise.launcher.rules.turn import plan as services
from slicewise.launcher.rules.turn.backoff import FAILING, Backoff
from slicewise.launcher.rules.turn.clock_step import after_step
from slicewise.launcher.rules.turn.endpoints import REFUSED_S, UNHEALTHY_S, ReplicaRun, Verified
from slicewise.launcher.rules.turn.generations import (
    Answers,
    GenerationInput,
    generation,
    unverified,
)
from slicewise.launcher.rules.turn.plan import STALE_S, TurnPlan
from slicewise.launcher.rules.turn.service import ASK_AGAIN_S
from slicewise.launcher.rules.turn.slots import DRAIN_DEADLINE_S, Expiry, Phase, loss_text
from slicewise.launcher.rules.turn.state import (
    DesiredSlots,
    Failure,
    GenerationState,
    ServiceState,
    State,
    after_answer,
    after_restart,
)

SERVICE = "vision/chat"
ARRAY = 814
KEYS = DIRECTIVES | {
    "max_replicas": "3",
    "concurrency": "2",
    "keep_alive_s": "10",
    "lease_s": "3600",
}


def running(
    index: int,
    *,
    left_s: int | None = 3000,
    ends_in_s: int | None = None,
    job_id: int = 900,
    released_s: int | None = None,
) -> SlotView:
    times_s = {"time_left_s": left_s, "ends_in_s": ends_in_s, "released_s": released_s}
    return a_running_slot(index, job_id=job_id + index, **times_s)


def view(*slots: SlotView, at_s: float = 100.0, complete: bool = True, **change: str) -> ViewAnswer:
    service = a_service(array_job_id=ARRAY, directives=KEYS | change, slots=slots)
    return ViewAnswer(observed_s=at_s, complete=complete, services=(service,), tenants=())


def gateway(*servers: Server, sessions: int = 0, queued: int = 0) -> Gateway:
    lines = (*servers, *(NOWHERE,) * (3 - len(servers)))
    group = {"triton1": Backend(sessions, queued, lines)}
    return Gateway({"vision/chat": "triton1"}, group, complete=True)


def decided(
    seen: ViewAnswer,
    shown: Gateway,
    state: State | None = None,
    answers: Answers | None = None,
    now_s: float = 100.0,
) -> tuple[State, TurnPlan]:
    found = decide(seen, shown, answers or {}, state or {}, now_s)
    assert found is not None
    return found


def changes(plan: TurnPlan) -> tuple[GatewayChange, ...]:
    """But what clients are told."""
    return tuple(one for one in plan.routes.changes if not isinstance(one, SetTerms))


def with_order(seen: ViewAnswer, order: ServiceOrder) -> ViewAnswer:
    ordered = tuple(one.model_copy(update={"order": order}) for one in seen.services)
    return seen.model_copy(update={"services": ordered})


def with_wish(state: State, desired: DesiredSlots, released: frozenset[int]) -> State:
    answer = DesiredSlotsAnswer(released=tuple(released))
    return {SERVICE: after_answer(state[SERVICE], ARRAY, desired, answer)}


def known(state: State, array: int = ARRAY, service: str = SERVICE) -> GenerationState:
    return state[service].generations[array]


def having(generation: GenerationState, replicas: int = 0) -> State:
    """A launcher that has seen so many replicas run long ago."""
    memory = initial(Supply(ready=replicas), 0.0)
    return {SERVICE: ServiceState(memory, {ARRAY: generation})}


OURS = {(ARRAY, 0): Answer(Probe.OURS)}


def test_an_incomplete_look_decides_nothing():
    assert decide(view(complete=False), gateway(), {}, {}, 100.0) is None


def test_a_new_service_is_routed_and_sleeps():
    empty = Gateway({}, {"triton1": Backend(0, 0, (NOWHERE,) * 3)}, complete=True)
    _, plan = decided(view(*(a_slot(i, "held") for i in range(3))), empty)
    assert changes(plan) == (AddRoute("vision/chat", "triton1"),)
    assert plan.services[0].desired == frozenset()


def test_the_gateway_is_told_of_a_service_whose_sequences_stay_together():
    told = [
        decided(seen, gateway())[1].services[0].route.terms.sequences
        for seen in (
            view(a_slot(0, "held"), session_affinity="sequence"),
            view(a_slot(0, "held")),
        )
    ]
    assert told == [True, False]


def test_a_held_request_wakes_it():
    _, plan = decided(view(*(a_slot(i, "held") for i in range(3))), gateway(sessions=1))
    assert plan.services[0].desired == {0}


def test_an_engine_s_only_port_is_that_of_both_protocols():
    seen = view(running(0).model_copy(update={"ports": (21001,)}))
    _, plan = decided(seen, gateway(sessions=1), answers=OURS)
    assert SetTarget("triton1", 0, Endpoint("10.0.0.1", 21001, 21001, "CCCC"), 2) in changes(plan)


def test_a_replica_gets_its_route_once_it_says_who_it_is():
    seen, shown = view(running(0)), gateway(sessions=1)
    _, silent = decided(seen, shown, answers={(ARRAY, 0): Answer(Probe.SILENT)})
    _, ours = decided(seen, shown, answers=OURS)
    assert changes(silent) == ()
    assert SetTarget("triton1", 0, Endpoint("10.0.0.1", 21001, 22001, "CCCC"), 2) in changes(ours)


def test_a_stranger_on_its_port_gets_no_request():
    shown = gateway(a_server(0, ServerMode.READY), sessions=1)
    _, plan = decided(view(running(0)), shown, answers={(ARRAY, 0): Answer(Probe.STRANGER)})
    assert changes(plan) == (SetMode("triton1", 0, ServerMode.MAINT),)


def test_after_a_restart_nothing_changes_while_nothing_has_changed():
    shown = gateway(a_server(0, ServerMode.READY, 1), a_server(1, ServerMode.READY), sessions=1)
    _, plan = decided(view(running(0), running(1)), shown)
    assert changes(plan) == ()
    assert plan.services[0].desired == {0, 1}


def test_after_a_restart_an_idle_service_is_kept_for_a_while():
    shown = gateway(a_server(0, ServerMode.READY))
    state, first = decided(view(running(0)), shown, now_s=100.0)
    _, late = decided(view(running(0), at_s=900.0), shown, state, now_s=900.0)
    assert (changes(first), changes(late)) == ((), (SetMode("triton1", 0, ServerMode.DRAIN),))


IDLE = having(GenerationState())


def test_a_drain_goes_on_after_a_restart():
    shown = gateway(a_server(0, ServerMode.DRAIN, 1), a_server(1, ServerMode.READY, 2))
    seen = view(running(0), running(1), concurrency="3")
    state, plan = decided(seen, shown, IDLE, now_s=20.0)
    assert plan.services[0].slots[0].phase is Phase.DRAINING
    assert (changes(plan), plan.services[0].desired) == ((), {0, 1})
    assert known(state).draining_since_s == {0: 20.0}


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (DRAIN_DEADLINE_S - 1, ()),
        (DRAIN_DEADLINE_S, (SetMode("triton1", 0, ServerMode.MAINT), EndSessions("triton1", 0))),
    ],
)
def test_draining_work_is_cut_at_the_deadline(after_s: float, expected: tuple[GatewayChange, ...]):
    late = having(GenerationState(draining_since_s={0: 0.0}))
    busy = gateway(a_server(0, ServerMode.DRAIN, 1), a_server(1, ServerMode.READY, 2))
    seen = view(running(0), running(1), at_s=after_s, concurrency="1024")
    _, plan = decided(seen, busy, late, now_s=after_s)
    assert changes(plan) == expected


def test_a_look_older_than_the_last_wish_leaves_the_service_alone():
    state, _ = decided(view(a_slot(0, "held")), gateway(sessions=1))
    state = with_wish(state, DesiredSlots(frozenset({0}), 105.0), frozenset({0}))
    after, plan = decided(view(a_slot(0, "held"), at_s=104.0), gateway(), state, now_s=106.0)
    assert (plan.services, changes(plan), after) == ((), (), state)


def test_a_kept_wish_is_repeated_only_after_a_while():
    state, _ = decided(view(a_slot(0, "held")), gateway(sessions=1), now_s=100.0)
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.5), frozenset())
    soon, late = 101.0, 100.5 + ASK_AGAIN_S
    _, first = decided(view(a_slot(0, "held"), at_s=soon), gateway(sessions=1), state, now_s=soon)
    _, then = decided(view(a_slot(0, "held"), at_s=late), gateway(sessions=1), state, now_s=late)
    assert (first.services[0].desired, then.services[0].desired) == (None, {0})


def test_the_next_launcher_asks_once_more_for_what_the_last_one_has_saved():
    """It may have asked for other slots after that: the daemon would extend no lease of slot 0."""
    shown = gateway(a_server(0, ServerMode.READY, 2), sessions=2)
    state, _ = decided(view(running(0)), shown, answers=OURS)
    wish = DesiredSlots(frozenset({0}), 100.1)
    state = with_wish(state, wish, frozenset())
    at_s = 110.0
    for saved, desired, failures in (
        (state[SERVICE], None, 1),
        (after_restart(state[SERVICE]), {0}, 0),
    ):
        seen = view(running(0), at_s=at_s)
        after, plan = decided(seen, shown, {SERVICE: saved}, now_s=at_s)
        assert plan.services[0].desired == desired
        ended, _ = decided(view(a_slot(0, "held"), at_s=at_s), shown, {SERVICE: saved})
        assert known(ended).backoff.failures == failures
    after = with_wish(after, wish, frozenset())
    _, plan = decided(view(running(0), at_s=111.0), shown, after, now_s=111.0)
    assert plan.services[0].desired is None


@pytest.mark.parametrize("end", ["held", "gone", "ending"])
def test_a_failed_start_is_not_repeated_at_once(end: str):
    slots = (a_slot(0, "held"), a_slot(1, "held"))
    state, _ = decided(view(*slots), gateway(sessions=1))
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.1), frozenset({0}))
    failed = view(a_slot(0, end), slots[1], at_s=101.0)
    state, plan = decided(failed, gateway(sessions=1), state, now_s=101.0)
    assert plan.services[0].desired == frozenset()
    assert "1 start has failed, the next is tried in 1 s" in plan.services[0].decision.reason
    assert plan.services[0].note == "1 start has failed: slicewise service logs chat"
    _, then = decided(
        view(a_slot(0, end), slots[1], at_s=102.5), gateway(sessions=1), state, now_s=102.5
    )
    assert len(then.services[0].desired or ()) == 1


@pytest.mark.parametrize("was_ready", [True, False])
@pytest.mark.parametrize("end", ["ending", "held"])
def test_a_run_that_slurm_requeues_has_not_failed(end: str, was_ready: bool):
    """A node's failure leaves none that ends: the slot waits, and is held for its next start."""
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    state = having(GenerationState(backoff=Backoff(FAILING - 1, 90.0)))
    slot = running(0) if was_ready else a_slot(0, "starting")
    state, _ = decided(view(slot), shown, state, answers=OURS if was_ready else {})
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.1), frozenset({0}))
    requeued = a_slot(0, end).model_copy(update={"is_requeued": True})
    for at_s, seen in ((101.0, requeued), (102.0, a_slot(0, "held"))):
        state, plan = decided(view(seen, at_s=at_s), shown, state, now_s=at_s)
        assert known(state).backoff.failures == FAILING - 1
    assert plan.services[0].desired in (None, {0})


CANCELLED = a_slot(state="gone", slurm_state="CANCELLED")


@pytest.mark.parametrize("ends", [True, False])
def test_a_slot_that_somebody_cancelled_has_not_failed(ends: bool):
    """While it ends that is not known yet."""
    state, _ = decided(view(a_slot(0, "held")), gateway(sessions=1))
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.1), frozenset({0}))
    if ends:
        for at_s in (101.0, 101.5):
            ending = view(a_slot(0, "ending"), at_s=at_s)
            state, _ = decided(ending, gateway(sessions=1), state, now_s=at_s)
            assert known(state).backoff.failures == 1
    state, plan = decided(view(CANCELLED, at_s=102.0), gateway(sessions=1), state, now_s=102.0)
    assert (known(state).backoff.failures, plan.services[0].note) == (0, "")
    state, _ = decided(view(CANCELLED, at_s=103.0), gateway(sessions=1), state, now_s=103.0)
    assert known(state).backoff == Backoff(0, known(state).backoff.failed_s)


def test_a_new_note_is_told_at_once():
    state, _ = decided(view(a_slot(0, "held")), gateway(), now_s=100.0)
    told = with_wish(state, DesiredSlots(frozenset(), 100.0, "old"), frozenset())
    seen = view(a_slot(0, "held"), at_s=100.5)
    _, plan = decided(seen, gateway(), told, now_s=100.5)
    assert (plan.services[0].desired, plan.services[0].note) == (frozenset(), "")


def test_while_slots_wait_for_slurm_a_changed_urgency_is_told_after_a_while():
    slots, shown = (running(0), a_slot(1, "released")), gateway(a_server(0, ServerMode.READY, 2))
    group = shown.backends["triton1"]
    busy = replace(shown, backends={"triton1": replace(group, sessions=3, queued=1)})
    state, plan = decided(view(*slots), busy)
    assert plan.services[0].urgency == pytest.approx(0.4)  # one waits, two are served
    told = DesiredSlots(frozenset({0, 1}), 100.1, urgency=0.4)
    state = with_wish(state, told, frozenset())
    fuller = replace(shown, backends={"triton1": replace(group, sessions=4, queued=2)})
    for slot, late_s, desired in (
        ("released", 1.0, None),
        ("released", 100.1 + ASK_AGAIN_S, {0, 1}),
        ("starting", 100.1 + ASK_AGAIN_S, None),
    ):
        seen = view(running(0), a_slot(1, slot), at_s=100.1 + late_s)
        _, plan = decided(seen, fuller, state, now_s=100.1 + late_s)
        assert (plan.services[0].desired, plan.services[0].urgency) == (desired, pytest.approx(0.5))


def test_a_replica_that_ends_after_a_long_life_is_no_failure():
    state, _ = decided(view(running(0)), gateway(sessions=1), answers=OURS, now_s=100.0)
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.1), frozenset({0}))
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    state, _ = decided(view(running(0), at_s=200.0), shown, state, now_s=200.0)
    _, plan = decided(view(a_slot(0, "held"), at_s=201.0), shown, state, now_s=201.0)
    assert plan.services[0].decision.reason == "1 wanted"


def test_a_slot_that_was_not_released_has_not_failed():
    state, _ = decided(view(a_slot(0, "held")), gateway(sessions=1))
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.1), frozenset())
    state, _ = decided(view(a_slot(0, "held"), at_s=101.0), gateway(sessions=1), state)
    assert known(state).backoff.failures == 0


def test_a_new_run_of_a_slot_is_asked_again():
    state, _ = decided(view(running(0)), gateway(), answers=OURS)
    before = known(state)
    assert unverified(view(running(0)).services[0], before) == ()
    again = view(running(0, job_id=950)).services[0]
    assert [slot.index for slot in unverified(again, before)] == [0]


def test_what_waits_at_a_replica_is_its_to_finish():
    waits = replace(a_server(0, ServerMode.DRAIN, 1), queued=2)
    _, plan = decided(view(running(0)), gateway(waits))
    assert plan.services[0].slots[0].in_flight == 3


def test_before_an_announced_end_a_successor_starts_first():
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    seen = view(running(0, ends_in_s=200), a_slot(1, "held"))
    _, plan = decided(seen, shown)
    assert (plan.services[0].desired, changes(plan)) == ({0, 1}, ())


def test_at_the_announced_end_it_drains():
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    _, plan = decided(view(running(0, ends_in_s=60), a_slot(1, "held")), shown)
    assert changes(plan) == (SetMode("triton1", 0, ServerMode.DRAIN),)


@pytest.mark.parametrize(
    ("lease_s", "left_s", "ends_in_s", "expiry"),
    [
        (900, 900, None, Expiry.FAR),
        (900, 65, None, Expiry.FAR),  # the daemon extends its lease
        (900, 64, None, Expiry.NOW),  # it should have: the script gives back at 60
        (60, 20, None, Expiry.FAR),
        (60, 19, None, Expiry.NOW),
        (900, 240, 240, Expiry.FAR),
        (900, 239, 239, Expiry.SOON),
        (900, 70, 70, Expiry.SOON),
        (900, 69, 69, Expiry.NOW),
        (60, 60, 40, Expiry.FAR),  # a short lease has less time for both
        (60, 60, 39, Expiry.SOON),
        (60, 60, 20, Expiry.SOON),
        (60, 60, 19, Expiry.NOW),
        (7200, 3599, 3599, Expiry.FAR),
        (900, 900, 3, Expiry.NOW),  # it is preempted
    ],
)
def test_how_near_the_end_is(lease_s: int, left_s: int, ends_in_s: int | None, expiry: Expiry):
    shown = gateway(a_server(0, ServerMode.READY))
    slot = running(0, left_s=left_s, ends_in_s=ends_in_s)
    _, plan = decided(view(slot, lease_s=str(lease_s)), shown)
    assert plan.services[0].slots[0].expiry is expiry


@pytest.mark.parametrize(
    ("reason", "waited_s", "is_stuck"),
    [
        ("Priority", 59, False),
        ("Priority", 60, True),
        ("Resources", 60, True),
        ("QOSGrpBilling", 1, True),
        ("AssocGrpBilling", 1, True),
    ],
)
def test_when_a_slot_is_stuck_in_slurms_queue(reason: str, waited_s: int, is_stuck: bool):
    change = {"reason": reason, "released_s": 100 - waited_s}
    slot = a_slot(0, "released").model_copy(update=change)
    _, plan = decided(view(slot), gateway(sessions=1))
    assert plan.services[0].slots[0].is_stuck is is_stuck


def test_on_a_drained_node_it_is_outdated_and_makes_room_for_its_successor():
    drained = running(0, ends_in_s=WHEN_REPLACED_S)
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    _, plan = decided(view(drained, a_slot(1, "held"), lease_s="7200"), shown)
    assert (plan.services[0].desired, changes(plan)) == ({0, 1}, ())
    assert plan.services[0].slots[0].is_outdated
    full = DesiredSlots(frozenset({0, 1}), 99.0, kept_back=frozenset({1}), is_firm=True)
    _, plan = decided(
        view(drained, a_slot(1, "held"), lease_s="7200"),
        shown,
        having(GenerationState(desired=full), replicas=1),
    )
    assert changes(plan) == (SetMode("triton1", 0, ServerMode.DRAIN),)


def test_what_must_end_now_and_is_not_ready_is_given_up_for_another_try():
    """Who waits for its slice should not wait for a model to load."""
    starts = running(0, ends_in_s=0).model_copy(update={"state": "starting", "ports": ()})
    serves = gateway(a_server(1, ServerMode.READY, 1), sessions=1)
    for shown in (gateway(sessions=1), serves):
        state, plan = decided(view(starts, a_slot(1, "held"), a_slot(2, "held")), shown)
        assert 0 not in (plan.services[0].desired or {0})
    held = a_slot(0, "held")
    state, plan = decided(view(held, a_slot(1, "held"), at_s=101.0), gateway(), state)
    assert known(state).backoff.failures == 0, "it did not fail"


def test_what_slurm_ends_finishes_what_it_has_and_gets_no_more():
    ending = running(0).model_copy(update={"state": "ending"})
    for in_flight, mode in ((1, ServerMode.DRAIN), (0, ServerMode.MAINT)):
        shown = gateway(a_server(0, ServerMode.READY, in_flight), sessions=in_flight)
        _, plan = decided(view(ending, a_slot(1, "held")), shown)
        assert changes(plan) == (SetMode("triton1", 0, mode),)


def test_what_slurm_ends_is_known_by_its_run_when_its_ports_are_not_shown_any_more():
    state, _ = decided(view(running(0)), gateway(sessions=1), answers=OURS)
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    for at_s in (101.0, 102.0, 103.0):
        seen = view(a_slot(0, "ending"), a_slot(1, "held"), at_s=at_s)
        state, plan = decided(seen, shown, state, now_s=at_s)
        assert changes(plan) == (SetMode("triton1", 0, ServerMode.DRAIN),)


def test_a_look_that_misses_its_ports_cuts_nothing():
    state, _ = decided(view(running(0)), gateway(sessions=1), answers=OURS)
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    blind = running(0).model_copy(update={"state": "starting", "ports": ()})
    _, plan = decided(view(blind, at_s=101.0), shown, state, now_s=101.0)
    assert changes(plan) == ()
    other = blind.model_copy(update={"start_s": 99})
    _, plan = decided(view(other, at_s=101.0), shown, state, now_s=101.0)
    assert SetMode("triton1", 0, ServerMode.MAINT) in changes(plan)


def half_seen(at_s: float, start_s: int = 50) -> ViewAnswer:
    slot = a_slot(0, "starting").model_copy(
        update={"job_id": 900, "address": "10.0.0.1", "start_s": start_s}
    )
    return view(slot, a_slot(1, "held"), at_s=at_s)


def test_a_first_look_that_misses_a_step_leaves_what_serves_at_its_address():
    """As after a restart without a database: its ports are forgotten."""
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    state, plan = decided(half_seen(100.0), shown)
    assert (changes(plan), plan.services[0].desired) == ((), {0})
    state, plan = decided(half_seen(101.0), shown, state, now_s=101.0)
    assert changes(plan) == ()
    asked = {(ARRAY, 0): Answer(Probe.OURS)}
    _, plan = decided(view(running(0), a_slot(1, "held")), shown, state, asked, now_s=102.0)
    assert changes(plan) == ()
    _, plan = decided(half_seen(106.0), shown, state, now_s=106.0)
    assert changes(plan) == (SetMode("triton1", 0, ServerMode.MAINT), EndSessions("triton1", 0))


def test_what_nobody_runs_any_more_at_the_address_of_a_start_is_taken_out_at_once():
    state, _ = decided(half_seen(100.0), gateway())
    shown = gateway(a_server(1, ServerMode.READY))
    _, plan = decided(half_seen(102.0, start_s=101), shown, state, now_s=102.0)
    assert changes(plan) == (SetMode("triton1", 0, ServerMode.MAINT),)


def test_an_announced_end_is_no_failed_start():
    state, _ = decided(view(running(0, ends_in_s=3)), gateway(sessions=1), answers=OURS)
    state = with_wish(state, DesiredSlots(frozenset({0}), 100.1), frozenset())
    state, _ = decided(view(a_slot(0, "held"), at_s=104.0), gateway(), state, now_s=104.0)
    assert known(state).backoff.failures == 0


def test_a_start_is_measured_when_its_model_has_answered():
    state, _ = decided(view(a_slot(0, "released")), gateway(sessions=1))
    seen = view(running(0, released_s=40), at_s=101.0)
    state, _ = decided(seen, gateway(sessions=1), state, now_s=101.0)
    before, after = (
        known(state),
        GenerationInput(seen.services[0], None, OURS, is_newest=True, now_s=102.0),
    )
    assert generation(after, before).starts == (ReplicaStart(queue_s=10.0, load_s=52.0),)
    times = ReadyTimes(101.0, 102.0, weights=Weights("node"))
    told = replace(after, answers={(ARRAY, 0): Answer(Probe.OURS, times=times)})
    assert generation(told, before).starts == (ReplicaStart(10.0, 52.0, "node"),)
    unseen = generation(after, GenerationState())
    assert unseen.starts == ()  # it may have been ready for long


def test_the_boot_of_its_node_is_no_part_of_a_start_s_load():
    state, _ = decided(view(a_slot(0, "released")), gateway(sessions=1))
    boots = {"released_s": 40, "start_s": 42, "is_configuring": True}
    for at_s in (101.0, 200.0):
        seen = view(a_slot(0, "starting", **boots), at_s=at_s)
        state, _ = decided(seen, gateway(sessions=1), state, now_s=at_s)
    # Slurm has moved its start to the end of the boot.
    ready = running(0, released_s=40).model_copy(update={"start_s": 250})
    state, _ = decided(view(ready, at_s=255.0), gateway(sessions=1), state, now_s=255.0)
    after = GenerationInput(view(ready).services[0], None, OURS, is_newest=True, now_s=260.0)
    (start,) = generation(after, known(state)).starts
    assert start == ReplicaStart(queue_s=2.0, load_s=10.0, boot_s=208.0)
    assert generation(after, known(state)).state.allotted_s == {}


def test_the_boot_of_its_node_does_not_count_as_a_late_start():
    state: State | None = None
    for at_s, seen_so, desired in (
        (100.0, {"is_configuring": True}, {0}),
        (1000.0, {"is_configuring": True}, {0}),
        (1001.0, {"start_s": 1001}, {0}),
        (1030.0, {"start_s": 1001}, {0}),
        (1031.0, {"start_s": 1001}, {1}),
    ):
        slot = running(0).model_copy(update={**_NO_PORTS, **seen_so})
        seen = view(slot, a_slot(1, "held"), at_s=at_s, start_timeout_s="30")
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
        assert plan.services[0].desired == desired


_NO_PORTS = {"state": "starting", "ports": ()}


@pytest.mark.parametrize("seen_so", [{}, _NO_PORTS])
def test_a_replica_that_never_gets_ready_gives_its_slot_back(seen_so: dict[str, object]):
    state: State | None = None
    late_s = 100.0 + DEFAULT_START_TIMEOUT_S
    for at_s, desired in ((100.0, {0}), (late_s - 1, {0}), (late_s, {1})):
        slot = running(0).model_copy(update=seen_so)
        seen = view(slot, a_slot(1, "held"), at_s=at_s)
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
        assert plan.services[0].desired == desired


def test_its_file_says_how_long_a_start_may_take():
    state: State | None = None
    for at_s, desired in ((100.0, {0}), (129.0, {0}), (130.0, {1})):
        seen = view(running(0), a_slot(1, "held"), at_s=at_s, start_timeout_s="30")
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
        assert plan.services[0].desired == desired


def test_users_are_told_that_a_start_took_too_long():
    file = {"start_timeout_s": "30", "min_replicas": "1"}
    state: State | None = None
    for at_s in (100.0, 130.0):
        seen = view(running(0), a_slot(1, "held"), at_s=at_s, **file)
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
    late = "; the last one was not ready within 30 s (start_timeout_s)"
    ends = view(a_slot(0, "ending"), a_slot(1, "held"), at_s=131.0, **file)
    state, plan = decided(ends, gateway(sessions=1), state, now_s=131.0)
    assert plan.services[0].note.endswith(late)
    held = view(a_slot(0, "held"), a_slot(1, "held"), at_s=132.0, **file)
    state, plan = decided(held, gateway(sessions=1), state, now_s=132.0)
    assert plan.services[0].note.endswith(late)
    # The next one ends by itself.
    state = with_wish(state, DesiredSlots(frozenset({0}), 132.0), frozenset({0}))
    for at_s, slot in ((133.0, running(0)), (134.0, a_slot(0, "held"))):
        seen = view(slot, a_slot(1, "held"), at_s=at_s, **file)
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
    assert plan.services[0].note.startswith("2 starts in a row have failed")
    assert "not ready" not in plan.services[0].note


def test_an_old_replica_is_asked_first_by_a_launcher_and_a_gateway_that_know_nothing():
    late_s = 50.0 + 2 * DEFAULT_START_TIMEOUT_S
    seen = view(running(0), at_s=late_s)
    state, plan = decided(seen, gateway(), now_s=late_s)
    assert plan.services[0].desired == {0}
    seen = view(running(0), at_s=late_s + 1)
    _, plan = decided(seen, gateway(), state, OURS, now_s=late_s + 1)
    assert SetMode("triton1", 0, ServerMode.READY) in changes(plan)


def test_a_clock_that_was_set_back_stops_no_decision():
    state, _ = decided(view(running(0)), gateway(), answers=OURS)
    state = with_wish(state, DesiredSlots(frozenset({0}), 5000.0), frozenset())
    _, plan = decided(view(running(0), at_s=101.0), gateway(), state, now_s=101.0)
    assert [one.service for one in plan.services] == [SERVICE]


def test_a_view_by_a_clock_that_is_behind_is_no_old_view():
    state, _ = decided(view(running(0)), gateway(), answers=OURS)
    state = with_wish(state, DesiredSlots(frozenset({0}), 5000.0), frozenset())
    for behind_s, expected in ((STALE_S, []), (STALE_S + 1, [SERVICE])):
        _, plan = decided(view(running(0), at_s=5000.0 - behind_s), gateway(), state, now_s=5001.0)
        assert [one.service for one in plan.services] == expected


def test_a_pause_after_a_failed_start_lasts_no_longer_if_the_clock_is_set_back():
    state = having(GenerationState(backoff=Backoff(1, 3690.0)))
    for after, desired in ((state, set()), (after_step(state, -3600.0), {0})):
        _, plan = decided(view(a_slot(0, "held")), gateway(sessions=1), after)
        assert plan.services[0].desired == desired


def test_a_drain_is_not_cut_because_the_clock_is_set_forward():
    late_s = 1.0 + DRAIN_DEADLINE_S
    state = having(GenerationState(draining_since_s={0: 1.0}))
    busy = gateway(a_server(0, ServerMode.DRAIN, 1), a_server(1, ServerMode.READY, 2))
    seen = view(running(0), running(1), at_s=late_s, concurrency="1024")
    for after, is_cut in ((state, True), (after_step(state, DRAIN_DEADLINE_S), False)):
        _, plan = decided(seen, busy, after, now_s=late_s)
        assert (EndSessions("triton1", 0) in changes(plan)) == is_cut


def test_after_a_failed_start_one_at_a_time_is_tried():
    failed = having(GenerationState(backoff=Backoff(1, 90.0)))
    slots = (a_slot(0, "released"), running(1), a_slot(2, "released"), a_slot(3, "held"))
    shown = Gateway({SERVICE: "triton1"}, {"triton1": Backend(8, 0, (NOWHERE,) * 4)}, complete=True)
    _, plan = decided(view(*slots, max_replicas="4"), shown, failed)
    assert plan.services[0].desired == {1}
    _, plan = decided(view(*slots, max_replicas="4"), shown)
    assert plan.services[0].desired == {0, 1, 2, 3}


def refuses(failures: int, *slots: SlotView, shown: Gateway | None = None) -> str:
    state = having(GenerationState(backoff=Backoff(failures, 99.0)))
    _, plan = decided(view(*slots), shown or gateway(sessions=1), state)
    return plan.services[0].route.terms.failing


def test_while_no_start_succeeds_clients_are_told_so():
    said = a_slot(0, "held").model_copy(update={"last_failure": "ended with 1"})
    assert refuses(FAILING - 1, said) == ""
    assert refuses(FAILING, said) == (
        f"{FAILING} starts in a row have failed: slicewise service logs chat;"
        " the last one ended with 1"
    )
    ready = gateway(a_server(1, ServerMode.READY))
    assert refuses(FAILING, said, running(1), shown=ready) == ""


def with_budget(seen: ViewAnswer, left_slice_min: int, resets_s: int | None) -> ViewAnswer:
    budget = BudgetView(
        payer="science", run_millislice_min=1000 * left_slice_min, resets_s=resets_s
    )
    tenant = a_tenant_view(budget=budget)
    return seen.model_copy(update={"tenants": (tenant,)})


def unpaid(*slots: SlotView, left_slice_min: int = 59, resets_s: int | None = None) -> TurnPlan:
    shown = replace(gateway(sessions=1), hold_s=300)
    return decided(with_budget(view(*slots), left_slice_min, resets_s), shown)[1]


@pytest.mark.parametrize(
    ("resets_s", "when"),
    [
        (None, "it has no further period"),
        (401, "its next period begins at 1970-01-01 00:06 UTC"),
    ],
)
def test_clients_are_told_when_the_budget_is_used_up(resets_s: int | None, when: str):
    """They waited for as long as the gateway holds requests, in vain."""
    found = unpaid(a_slot(0, "released"), resets_s=resets_s).services[0]
    said = "the budget of science has 0.98 slice-hours left, a replica takes 1.00; " + when
    assert (found.route.terms.failing, found.note) == (said, said)
    assert found.route.terms.retry_after_s == 600
    assert found.is_unpaid


def test_a_request_waits_for_a_budget_that_may_let_a_replica_start_in_time():
    held = a_slot(0, "held")
    assert unpaid(held).services[0].route.terms.failing
    enough = unpaid(held, left_slice_min=60).services[0]
    assert (enough.route.terms.failing, enough.is_unpaid) == ("", False)
    assert not unpaid(held, resets_s=400).services[0].route.terms.failing
    for slot in (running(0), a_slot(0, "starting")):
        assert not unpaid(slot).services[0].route.terms.failing


def test_a_request_that_was_refused_since_starts_fail_has_another_one_tried():
    """None waits: without it the service would sleep for ever."""
    failed = {ARRAY: GenerationState(backoff=Backoff(FAILING, 50.0))}
    seen = LastCounters(99.0, arrived=7, answered=0, in_flight=0, given_up=7)
    found = []
    for arrived in (7, 8, 107):
        state = {SERVICE: ServiceState(Memory(seen=seen), failed)}
        group = {"triton1": Backend(0, 0, (NOWHERE,) * 3, arrived=arrived, given_up=arrived)}
        shown = Gateway({SERVICE: "triton1"}, group, complete=True)
        _, plan = decided(view(a_slot(0, "held")), shown, state)
        found.append(plan.services[0].decision.wanted)
    assert found == [0, 1, 1]


def test_a_start_that_a_refused_request_has_caused_goes_on_to_its_end():
    """Clients come again after Retry-After only: no request is there while it starts."""
    failed = {ARRAY: GenerationState(backoff=Backoff(FAILING, 50.0))}
    seen = LastCounters(99.0, arrived=7, answered=0, in_flight=0, given_up=7)
    state = {SERVICE: ServiceState(Memory(seen=seen), failed)}
    group = {"triton1": Backend(0, 0, (NOWHERE,) * 3, arrived=7, given_up=7)}
    shown = Gateway({SERVICE: "triton1"}, group, complete=True)
    wanted = []
    for slot in ("held", "released"):
        _, plan = decided(view(a_slot(0, slot)), shown, state)
        wanted.append(plan.services[0].decision.wanted)
    assert wanted == [0, 1]


@pytest.mark.parametrize(("gone", "retired"), [(0, ()), (1, (ARRAY,))])
def test_a_deleted_service_waits_for_no_client_that_has_gone(gone: int, retired: tuple[int, ...]):
    backend = Backend(1 - gone, 0, (NOWHERE,) * 3, arrived=1, given_up=gone)
    shown = Gateway({SERVICE: "triton1"}, {"triton1": backend}, complete=True)
    ending = with_order(view(a_slot(0, "held")), ServiceOrder(delete_s=95.0))
    _, plan = decided(ending, shown)
    assert plan.services[0].retired == retired


def test_a_client_of_a_failing_service_is_told_to_come_after_the_pause():
    state = having(GenerationState(backoff=Backoff(12, 90.0)))
    _, plan = decided(view(a_slot(0, "held")), gateway(sessions=1), state)
    assert plan.services[0].route.terms.retry_after_s == 600


def test_an_order_to_restart_ends_the_pause():
    failed = having(GenerationState(backoff=Backoff(12, 90.0)))
    asked = gateway(sessions=1)
    _, waits = decided(view(a_slot(0, "held")), asked, failed)
    ordered = with_order(view(a_slot(0, "held")), ServiceOrder(restart_s=95.0))
    _, starts = decided(ordered, asked, failed)
    assert (waits.services[0].desired, starts.services[0].desired) == (frozenset(), {0})


def test_how_a_failed_start_ended_is_told():
    said = a_slot(0, "held").model_copy(update={"last_failure": "ended with 1"})
    state = having(GenerationState(backoff=Backoff(2, 99.0)))
    _, plan = decided(view(said), gateway(sessions=1), state)
    assert plan.services[0].note == (
        "2 starts in a row have failed: slicewise service logs chat; the last one ended with 1"
    )


@pytest.mark.parametrize(("failed_s", "is_told"), [(90.0, False), (97.0, True)])
def test_failed_starts_are_not_told_once_a_later_one_is_ready(failed_s: float, is_told: bool):
    known = GenerationState(backoff=Backoff(7, failed_s), verified={0: Verified(RUN, 95.0)})
    _, plan = decided(view(running(0)), gateway(sessions=1), having(known), OURS)
    assert ("7 starts in a row have failed" in plan.services[0].note) == is_told


def test_why_a_replica_is_not_ready_is_told():
    refused = {(ARRAY, 0): Answer(Probe.SILENT, "the model refused the probe: é")}
    _, plan = decided(view(running(0)), gateway(sessions=1), answers=refused)
    assert plan.services[0].note == "the model refused the probe: ?"


HUNG = gateway(replace(a_server(0, ServerMode.READY, 1), up=False), sessions=1)


def hung(until_s: float, state: State, shown: Gateway = HUNG) -> tuple[State, TurnPlan]:
    """Turns every 10 s from 100 s on, with a replica that fails its health checks."""
    seen_s = 100.0
    while True:
        seen = view(running(0), a_slot(1, "held"), at_s=seen_s)
        state, plan = decided(seen, shown, state, now_s=seen_s)
        if seen_s >= until_s:
            return state, plan
        desired_slots = plan.services[0].desired
        if desired_slots is not None:
            state = with_wish(state, DesiredSlots(desired_slots, seen_s), frozenset())
        seen_s += 10.0


RUN = ReplicaRun(900, 50, Endpoint("10.0.0.1", 21001, 22001, "CCCC"))


def verified() -> State:
    desired = DesiredSlots(frozenset({0}), 40.0)
    return having(GenerationState(verified={0: Verified(RUN, 40.0)}, desired=desired), replicas=1)


@pytest.mark.parametrize("before", [{}, verified()], ids=["restarted", "verified"])
def test_a_replica_that_stays_unhealthy_gives_its_slot_back(before: State):
    _, plan = hung(100.0 + UNHEALTHY_S - 10, before)
    assert (changes(plan), plan.services[0].slots[0].phase) == ((), Phase.SERVING)
    _, plan = hung(100.0 + UNHEALTHY_S, before)
    assert changes(plan) == (SetMode("triton1", 0, ServerMode.MAINT), EndSessions("triton1", 0))
    assert plan.services[0].desired == {1}


def test_a_replica_that_refuses_connections_gives_its_slot_back_sooner():
    """Where Slurm did not notice its end, requests waited a minute for the next one."""
    server = replace(a_server(0, ServerMode.READY, 1), up=False, is_refused=True)
    refuses = gateway(server, sessions=1)
    assert changes(hung(100.0, verified(), refuses)[1]) == ()
    _, plan = hung(100.0 + REFUSED_S, verified(), refuses)
    assert plan.services[0].desired == {1}


@pytest.mark.parametrize(("well", "given_back"), [(0, [0, 2, 2, 4]), (10, [0, 10, 10, 10])])
def test_where_most_fail_together_few_give_their_slots_back(well: int, given_back: list[int]):
    """A firewall that resets connections for ten seconds cost every replica its model."""
    lines = [a_server(index) for index in range(10)]
    failing = [replace(one, up=False, is_refused=True) for one in lines]
    slots, group = tuple(map(running, range(10))), [failing, lines if well else failing]
    found, state = [], dict[str, ServiceState]()
    for second in (0, REFUSED_S, 2 * REFUSED_S - 1, 2 * REFUSED_S + 1):
        two = tuple(
            a_service(array_job_id=ARRAY + n, name=f"s{n}", directives=KEYS, slots=slots)
            for n in range(2)
        )
        shown = Gateway(
            {f"vision/s{n}": f"triton{n}" for n in range(2)},
            {f"triton{n}": Backend(0, 0, tuple(servers)) for n, servers in enumerate(group)},
            complete=True,
        )
        seen = ViewAnswer(observed_s=100.0 + second, complete=True, services=two, tenants=())
        state, _ = decided(seen, shown, state, now_s=100.0 + second)
        down = [
            one for n in range(2) for one in known(state, ARRAY + n, f"vision/s{n}").down.values()
        ]
        found.append(sum(one.unfit for one in down))
    assert found == given_back


def test_it_is_given_back_though_it_looks_well_when_the_wish_had_failed():
    state, _ = hung(100.0 + UNHEALTHY_S, verified())
    shown = gateway(a_server(0, ServerMode.MAINT), sessions=1)
    seen = view(running(0), a_slot(1, "released"), at_s=161.0)
    _, plan = decided(seen, shown, state, now_s=161.0)
    assert (plan.services[0].desired, changes(plan)) == ({1}, ())


def test_an_unhealthy_replica_counts_as_a_failed_start_once():
    state, plan = hung(100.0 + UNHEALTHY_S, verified())
    state = with_wish(
        state, DesiredSlots(plan.services[0].desired or frozenset(), 160.1), frozenset()
    )
    for at_s, end in ((161.0, "ending"), (162.0, "held"), (163.0, "held")):
        seen = view(a_slot(0, end), a_slot(1, "released"), at_s=at_s)
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
    assert known(state).backoff == Backoff(1, 161.0)


def test_a_replica_that_recovers_in_time_stays():
    state, _ = hung(150.0, verified())
    shown = gateway(a_server(0, ServerMode.READY, 1), sessions=1)
    state, plan = decided(view(running(0), at_s=160.0), shown, state, now_s=160.0)
    assert (changes(plan), known(state).down) == ((), {})


def test_a_new_run_does_not_answer_for_the_old_one():
    state, _ = hung(100.0 + UNHEALTHY_S, verified())
    shown = gateway(a_server(0, ServerMode.MAINT), sessions=1)
    seen = view(running(0, job_id=950), at_s=165.0)
    state, plan = decided(seen, shown, state, answers=OURS, now_s=165.0)
    assert SetMode("triton1", 0, ServerMode.READY) in changes(plan)


def test_an_unhealthy_replica_does_not_settle_the_service():
    before = GenerationState(
        backoff=Backoff(2, 30.0),
        verified={0: Verified(RUN, 95.0)},
        desired=DesiredSlots(frozenset({0}), 40.0),
    )
    state, _ = hung(140.0, having(before, replicas=1))
    assert known(state).backoff.failures == 2


def test_lost_slots_are_told():
    _, plan = decided(view(a_slot(0, "gone"), a_slot(1, "held"), a_slot(2, "gone")), gateway())
    assert plan.services[0].lost == {0, 2}
    assert loss_text({0, 2}).startswith("2 slots are lost")
    assert loss_text({0}).startswith("1 slot is lost")
    assert loss_text(()) == ""


def test_a_slot_beyond_the_gateways_servers_is_never_started():
    slots = tuple(a_slot(i, "held") for i in range(5))
    _, plan = decided(view(*slots, max_replicas="5"), gateway(sessions=50))
    assert plan.services[0].desired == {0, 1, 2}


def test_directives_that_are_no_service_change_nothing():
    shown = replace(
        gateway(sessions=1),
        terms={
            SERVICE: Terms(
                closing=True,
                retry_after_s=600,
                in_time=8,
                failing="no node",
                deadline_ms=900,
                retry_once=True,
                sequences=True,
            )
        },
    )
    _, plan = decided(view(a_slot(0, "held"), concurrency="many"), shown)
    assert (plan.services, plan.routes.changes) == ((), ())
    assert "concurrency" in plan.unreadable["vision/chat"]


def test_figures_that_nothing_can_be_computed_with_cost_their_own_service_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed = services.decide_service

    def divides(look: services.ServiceInput, *others: Any) -> Any:
        return 1 / 0 if look.key == SERVICE else computed(look, *others)

    state, _ = decided(view(running(0)), HUNG, answers=OURS)
    seen = view(running(0), at_s=110.0)
    other = a_service(name="bert", array_job_id=ARRAY + 1, directives=KEYS, slots=())
    both = seen.model_copy(update={"services": (*seen.services, other)})
    monkeypatch.setattr(services, "decide_service", divides)
    after, plan = decided(both, HUNG, state, now_s=110.0)
    assert "ZeroDivisionError" in plan.unreadable[SERVICE]
    assert [one.service for one in plan.services] == ["vision/bert"]
    assert after[SERVICE] == state[SERVICE]


def test_what_is_remembered_can_be_written_down_and_read_again():
    state, plan = decided(view(running(0), a_slot(1, "held")), HUNG, answers=OURS)
    desired = replace(plan.services[0].desired_by_array[ARRAY], kept_back=frozenset({1}))
    state = with_wish(state, desired, frozenset({1}))
    written = TypeAdapter(State).dump_json(state)
    known = state[SERVICE].generations[ARRAY]
    assert known.watched  # It changes at each look, and is learnt again.
    saved = replace(state[SERVICE], generations={ARRAY: replace(known, watched={})})
    assert TypeAdapter(State).validate_json(written) == {SERVICE: saved}


def test_clients_are_told_when_to_come_back_while_nothing_serves():
    _, asleep = decided(view(a_slot(0, "held")), gateway(sessions=1))
    _, awake = decided(view(running(0)), gateway(a_server(0, ServerMode.READY)))
    told = [plan.services[0].route.terms.retry_after_s for plan in (asleep, awake)]
    assert told == [30, None]


@pytest.mark.parametrize(("max_queue_s", "told"), [("5", True), (None, False)])
def test_how_many_may_wait_is_told_where_an_objective_is_stated(
    max_queue_s: str | None, told: bool
):
    objective = {} if max_queue_s is None else {"max_queue_s": max_queue_s}
    shown = gateway(a_server(0, ServerMode.READY))
    found = services.decide(view(running(0), **objective), shown, {}, {}, 100.0)
    assert found is not None
    assert (found[1].services[0].route.terms.in_time is not None) == told


def both_ready() -> State:
    runs = [
        replace(RUN, job_id=900 + one, endpoint=replace(RUN.endpoint, http_port=21001 + one))
        for one in (0, 1)
    ]
    desired = DesiredSlots(frozenset({0, 1}), 40.0)
    found = {index: Verified(run, 40.0) for index, run in enumerate(runs)}
    return having(GenerationState(verified=found, desired=desired), replicas=2)


def answered(index: int, answers: int, errors: int, mode: ServerMode = ServerMode.READY) -> Server:
    return replace(a_server(index, mode, 1), answers=answers, errors=errors)


def test_a_replica_that_answers_errors_beside_a_good_one_gets_no_requests_and_is_asked():
    """leastconn loves the one that fails at once: it had half of all requests, for ever."""
    slots = (running(0), running(1))
    state, _ = decided(view(*slots), gateway(answered(0, 0, 0), answered(1, 0, 0)), both_ready())
    shown = gateway(answered(0, 20, 0), answered(1, 40, 40), sessions=2)
    seen = view(*slots, at_s=101.0)
    state, plan = decided(seen, shown, state, now_s=101.0)
    (service,) = plan.services
    assert changes(plan)[-1:] == (SetMode("triton1", 1, ServerMode.DRAIN),)
    assert "20 of its last 20 answers were errors (5xx, gRPC); it gets no" in service.note
    assert "replica 1: 20 of" in service.note
    assert [slot.index for slot in unverified(seen.services[0], known(state))] == [1]


def doubted(answer: Answer, **change: str) -> tuple[State, TurnPlan]:
    """Replica 1 of two answers 5xx only, is asked, and has answered this."""
    slots = (running(0), running(1).model_copy(update={"node": "gpu07"}))
    state, _ = decided(
        view(*slots, min_replicas="2", **change),
        gateway(answered(0, 0, 0), answered(1, 0, 0)),
        both_ready(),
    )
    bad = answered(1, 40, 40)
    state, _ = decided(
        view(*slots, at_s=101.0, min_replicas="2", **change),
        gateway(answered(0, 20, 0), bad),
        state,
        now_s=101.0,
    )
    drains = gateway(answered(0, 20, 0), replace(bad, mode=ServerMode.DRAIN), sessions=2)
    return decided(
        view(*slots, at_s=102.0, min_replicas="2", **change),
        drains,
        state,
        {(ARRAY, 1): answer},
        now_s=102.0,
    )


def test_it_is_back_once_it_has_answered():
    state, plan = doubted(Answer(Probe.OURS))
    assert changes(plan) == (SetMode("triton1", 1, ServerMode.READY),)
    assert "replica 1" not in plan.services[0].note
    assert not known(state).removed_s


def test_one_that_fails_is_given_back_and_counts_as_a_failed_start():
    failed = Answer(Probe.SILENT, "the model refused an inference of zeros: dead", is_failure=True)
    state, plan = doubted(failed)
    (service,) = plan.services
    assert changes(plan) == (SetMode("triton1", 1, ServerMode.MAINT), EndSessions("triton1", 1))
    assert service.desired == {0}
    assert (
        "taken out: replica 1 on gpu07: 20 of its last 20 answers were errors (5xx, gRPC)"
        in service.note
    )
    held = view(running(0), a_slot(1, "held"), at_s=103.0)
    state, plan = decided(held, gateway(answered(0, 20, 0)), state, now_s=103.0)
    assert known(state).backoff.failures == 1
    assert known(state).failures == (Failure("gpu07", 103.0),)
    assert "1 start has failed" in plan.services[0].note


def test_it_counts_though_slurm_shows_that_it_is_given_back_by_a_requeue():
    failed = Answer(Probe.SILENT, "the model refused an inference of zeros: dead", is_failure=True)
    state, _ = doubted(failed)
    ending = a_slot(1, "ending").model_copy(update={"is_requeued": True})
    seen = view(running(0), ending, at_s=103.0)
    state, _ = decided(seen, gateway(answered(0, 20, 0)), state, now_s=103.0)
    assert known(state).backoff.failures == 1


def test_beside_a_lone_replica_that_answers_nothing_another_starts_and_nothing_is_cut():
    """The request may be one of 400 s: what is in flight ends by itself."""
    state, plan, started_s = verified(), None, 0.0
    second = a_slot(1, "held")
    busy = replace(a_server(0, ServerMode.READY, 1), answers=40)
    for now_s in range(100, 500, 2):
        if plan is not None and plan.services[0].desired == {0, 1} and not started_s:
            started_s, second = now_s, running(1)
        lines = [busy, a_server(1, ServerMode.READY)] if started_s else [busy]
        answers = {(ARRAY, 0): Answer(Probe.SILENT), (ARRAY, 1): Answer(Probe.OURS)}
        seen = view(running(0), second, at_s=now_s, p95_ms="400", max_replicas="2")
        state, plan = decided(seen, gateway(*lines, sessions=1), state, answers, now_s=now_s)
        for change in changes(plan):
            assert not isinstance(change, EndSessions)
            if isinstance(change, SetMode) and change.index == 0:
                busy = replace(busy, mode=change.mode)
        (service,) = plan.services
        if service.desired is not None:
            state = with_wish(state, DesiredSlots(service.desired, now_s), frozenset())
        assert ("has answered nothing" in service.note) == (now_s >= 110)
    assert 170 <= started_s <= 180
    assert busy.mode is ServerMode.DRAIN
    assert (wish := known(state).desired) is not None
    assert 0 in wish.run
    busy = replace(busy, answers=41, in_flight=0)
    shown = gateway(busy, a_server(1, ServerMode.READY))
    seen = view(running(0), second, at_s=500.0, p95_ms="400", max_replicas="2")
    state, plan = decided(seen, shown, state, now_s=500.0)
    assert known(state).watched[0].doubt is None
    assert known(state).removed_s == ()


def test_of_a_replica_on_several_nodes_none_is_blamed():
    failed = Answer(Probe.SILENT, "the model refused an inference", is_failure=True)
    state, _ = doubted(failed, nodes="2")
    held = view(running(0), a_slot(1, "held"), at_s=103.0, nodes="2")
    state, _ = decided(held, gateway(answered(0, 20, 0)), state, now_s=103.0)
    assert (known(state).backoff.failures, known(state).failures) == (1, ())


def on(node: str, slot: SlotView) -> SlotView:
    return slot.model_copy(update={"node": node})


def test_failures_on_a_node_are_forgotten_once_a_later_replica_was_ready_there_for_long():
    failures = (Failure("gpu01", 50.0), Failure("gpu02", 50.0), Failure("gpu01", 450.0))
    seen = GenerationState(is_proved=True, failures=failures, nodes={0: "gpu01"})
    state, slots = having(seen), (on("gpu01", running(0)),)
    served = gateway(a_server(0, ServerMode.READY))
    for at_s, left in ((100.0, 3), (699.0, 3), (700.0, 2)):
        state, _ = decided(view(*slots, at_s=at_s), served, state, OURS, now_s=at_s)
        assert len(known(state).failures) == left
    assert known(state).failures == failures[1:]


def test_while_failures_are_remembered_so_is_where_replicas_run():
    state = having(GenerationState(failures=(Failure("gpu02", 90.0),)))
    slots, served = (on("gpu01", running(0)),), gateway(a_server(0, ServerMode.READY))
    for at_s, nodes in ((100.0, set[str]()), (131.0, {"gpu01"})):
        state, _ = decided(view(*slots, at_s=at_s), served, state, OURS, now_s=at_s)
        assert known(state).ran_on == nodes
    state, _ = decided(view(a_slot(0, "held"), at_s=140.0), gateway(), state, now_s=140.0)
    assert known(state).ran_on == {"gpu01"}
    state, _ = decided(view(a_slot(0, "held"), at_s=4000.0), gateway(), state, now_s=4000.0)
    assert (known(state).failures, known(state).ran_on) == ((), set())


def test_the_daemon_is_told_which_nodes_a_service_avoids():
    twice = (Failure("gpu01", 90.0),) * 2
    wanted = view(a_slot(0, "held"), min_replicas="1")
    for failures, avoid in (((), ()), (twice[:1], ()), (twice, ("gpu01",))):
        state = having(GenerationState(is_proved=True, failures=failures))
        _, plan = decided(wanted, gateway(), state)
        assert plan.services[0].desired_by_array[ARRAY].avoid == avoid


def test_a_borrowed_replica_that_fails_is_remembered_as_such():
    slot = on("gpu07", running(0)).model_copy(update={"is_borrowed": True})
    shown = view(slot, min_replicas="1")
    state, _ = decided(shown, gateway(a_server(0, ServerMode.READY)), {}, OURS)
    state[SERVICE] = after_answer(
        state[SERVICE], ARRAY, DesiredSlots(frozenset({0}), 100.0), DesiredSlotsAnswer()
    )
    held = slot.model_copy(update={"state": "held"})
    state, _ = decided(view(held, min_replicas="1", at_s=102.0), gateway(), state, now_s=102.0)
    assert known(state).failures == (Failure("gpu07", 102.0, is_borrowed=True),)


def test_what_is_in_flight_at_a_replica_that_answers_no_health_check_ends_soon():
    """A stopped Triton's requests got their 502 after 64 s, when its slot was given back."""
    silent = replace(a_server(0, ServerMode.READY, 1), up=False, is_silent=True)
    for line, ended in ((silent, True), (replace(silent, is_silent=False), False)):
        shown = gateway(line, sessions=1)
        state, plan = decided(view(running(0)), shown, both_ready())
        assert EndSessions("triton1", 0) not in changes(plan)
        _, plan = decided(view(running(0), at_s=104.0), shown, state, now_s=104.0)
        assert (EndSessions("triton1", 0) in changes(plan)) == ended


def crowd(*names: str, states: str = "held") -> ViewAnswer:
    """One view of services, each with two slots, in the order of their arrays."""
    seen = view(a_slot(0, states), a_slot(1, "held"))
    services = (
        seen.services[0].model_copy(
            update={
                "array_job_id": ARRAY + number,
                "tenant": (tenant := name.partition("/")[0]),
                "name": (own := name.partition("/")[2]),
                "directives": KEYS | {"tenant": tenant, "name": own},
            }
        )
        for number, name in enumerate(names)
    )
    return seen.model_copy(update={"services": tuple(services)})


def lined_and_idle(names: list[str], *, waits: int = 3) -> Gateway:
    """Eight backends with lines, twelve without, where requests of all services wait."""
    lined = {f"triton{number}": Backend(0, 0, (NOWHERE,) * 3) for number in range(1, 9)}
    idle = {f"tritonidle{number}": Backend(waits, 0, ()) for number in range(1, 13)}
    routes = {name: f"tritonidle{number}" for number, name in enumerate(names, start=1)}
    return Gateway(routes, lined | idle, complete=True, per_tenant=6)


def test_no_replica_starts_of_a_service_that_could_get_no_server_lines():
    names = [f"a/{letter}" for letter in "abcdef"] + ["b/a"]
    _, plan = decided(crowd(*names), lined_and_idle(names))
    wanted = {one.service: one.decision.wanted for one in plan.services}
    assert wanted == dict(zip(names, (2, 2, 2, 2, 0, 0, 2), strict=True))
    refused = plan.services[4]
    assert "'a' has 4 services and may have at most 4" in refused.decision.reason
    assert refused.lineless == plan.services[5].lineless != ""
    assert plan.services[6].lineless == ""


def test_a_service_whose_replica_can_get_no_server_lines_gives_it_back():
    """Its requests would start further replicas that get none."""
    names = [f"a/{letter}" for letter in "abcdef"]
    _, plan = decided(crowd(*names, states="starting"), lined_and_idle(names))
    assert [one.decision.wanted for one in plan.services] == [2, 2, 2, 2, 0, 0]


def test_after_a_start_of_haproxy_who_has_server_lines_keeps_its_replicas():
    """No server carries a replica yet."""
    names = [f"a/{letter}" for letter in "abcdef"]
    shown = lined_and_idle(names)
    routes = {**shown.routes, "a/e": "triton1", "a/f": "triton2"}
    _, plan = decided(crowd(*names, states="starting"), replace(shown, routes=routes))
    assert [one.decision.wanted > 0 for one in plan.services[:4]] == [True, True, False, False]
    assert [one.lineless for one in plan.services[4:]] == ["", ""]


def test_of_a_service_that_needs_no_replica_nothing_is_said():
    names = [f"a/{letter}" for letter in "abcdef"]
    shown = lined_and_idle(names)
    none = {f"tritonidle{number}": Backend(0, 0, ()) for number in (5, 6)}
    shown = replace(shown, backends={**shown.backends, **none})
    _, plan = decided(crowd(*names), shown)
    assert [one.lineless for one in plan.services] == [""] * 6


def test_a_concurrency_that_is_learnt_is_told_the_gateway_and_remembered():
    seen = view(running(0), running(1), concurrency="auto")
    shown = gateway(a_server(0, ServerMode.READY), a_server(1, ServerMode.READY))
    state, plan = decided(seen, shown)
    (service,) = plan.services
    assert (service.route.concurrency, service.route.follows, service.concurrency) == (2, True, 2)
    memory = state[SERVICE].memory
    assert memory is not None
    known = replace(memory, capacity=replace(memory.capacity, limit=7))
    state = {SERVICE: replace(state[SERVICE], memory=known)}
    _, plan = decided(view(running(0), concurrency="auto", at_s=101), shown, state, now_s=101)
    assert plan.services[0].route.concurrency == 7
    _, plan = decided(view(running(0), at_s=102), shown, state, now_s=102)
    assert (plan.services[0].route.concurrency, plan.services[0].route.follows) == (2, False)


def test_no_more_requests_are_learnt_than_the_engine_has_slots():
    memory = Memory(capacity=ReplicaCapacity(limit=9))
    state = {SERVICE: ServiceState(memory)}
    seen = view(running(0), concurrency="auto", engine="llamacpp")
    shown = gateway(a_server(0, ServerMode.READY))
    for second in range(2):
        state, plan = decided(seen, shown, state, now_s=100.0 + second)
    assert plan.services[0].route.concurrency == 4
