"""Tests several generations of a service: one route, the newest grows, older ones leave in time."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.gateways import NOWHERE, a_server
from builders.service_specs import DIRECTIVES
from builders.service_views import a_running_slot, a_service, a_slot, a_tenant_view
from stand_ins.plain_scaling import decide

from slicewise.cluster.rpc.messages import ServiceView, SlotView, TenantView, ViewAnswer
from slicewise.cluster.rpc.order_messages import NO_ORDER, ServiceOrder
from slicewise.launcher.rules.autoscale.policy import initial
from slicewise.launcher.rules.autoscale.types import Supply
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.gateway.routing import SetAdapter
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Gateway, Server, ServerMode
from slicewise.launcher.rules.turn import scaling_inputs
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.generations import Generation, GenerationInput, generation
from slicewise.launcher.rules.turn.service import ASK_AGAIN_S, Heard, ServicePlan
from slicewise.launcher.rules.turn.slots import DRAIN_DEADLINE_S, Phase, Slot, SlotId
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState, State

OLD, NEW, SERVICE = 800, 814, "vision/chat"
NOW_S = 100.0
KEYS = DIRECTIVES | {"max_replicas": "2", "concurrency": "2", "keep_alive_s": "10"}
ADDRESSES = {OLD: "10.0.0.1", NEW: "10.0.0.2"}


def running(array: int, index: int = 0, start_s: int = 50) -> SlotView:
    return a_running_slot(index, job_id=array + index, address=ADDRESSES[array], start_s=start_s)


def service(
    array: int, *slots: SlotView, order: ServiceOrder = NO_ORDER, **directives: str
) -> ServiceView:
    return a_service(array_job_id=array, directives=KEYS | directives, slots=slots, order=order)


def view(*services: ServiceView, at_s: float = NOW_S) -> ViewAnswer:
    return ViewAnswer(observed_s=at_s, complete=True, services=services, tenants=())


def server(array: int, mode: ServerMode, in_flight: int = 0, index: int = 0) -> Server:
    return a_server(index, mode, in_flight, address=ADDRESSES[array])


def gateway(*servers: Server, waiting: int = 0) -> Gateway:
    lines = (*servers, *(NOWHERE,) * (4 - len(servers)))
    sessions = waiting + sum(line.in_flight for line in servers)
    queued = waiting if servers else 0
    return Gateway(
        {SERVICE: "triton1"}, {"triton1": Backend(sessions, queued, lines)}, complete=True
    )


def decided(
    seen: ViewAnswer, shown: Gateway, state: State | None = None, now_s: float = NOW_S
) -> ServicePlan:
    answers = {
        (one.array_job_id, slot.index): Answer(Probe.OURS)
        for one in seen.services
        for slot in one.slots
        if slot.state == "running"
    }
    found = decide(seen, shown, answers, state or {}, now_s)
    assert found is not None
    (plan,) = found[1].services
    return plan


def knowing(generations: Mapping[int, GenerationState], replicas: int = 0) -> State:
    memory = initial(Supply(ready=replicas), 0.0)
    return {SERVICE: ServiceState(memory, generations)}


def desired_slots(plan: ServicePlan) -> dict[int, frozenset[int]]:
    return {array: desired.run for array, desired in plan.desired_by_array.items()}


def test_a_new_generation_starts_beside_the_old_one_behind_the_same_route():
    seen = view(service(OLD, running(OLD)), service(NEW, a_slot()))
    plan = decided(seen, gateway(server(OLD, ServerMode.READY, 1)))
    assert desired_slots(plan) == {OLD: {0}, NEW: {0}}
    assert plan.route.targets == {Endpoint("10.0.0.1", 21001, 22001, "CCCC"): ServerMode.READY}


def test_the_order_of_the_daemons_list_does_not_matter():
    seen = view(service(NEW, a_slot()), service(OLD, running(OLD)))
    assert decided(seen, gateway(server(OLD, ServerMode.READY, 1))).array_job_id == NEW


def test_the_old_one_is_asked_first_so_that_what_it_gives_back_makes_room():
    seen = view(service(OLD, running(OLD)), service(NEW, a_slot()))
    assert list(decided(seen, gateway(server(OLD, ServerMode.READY, 1))).desired_by_array) == [
        OLD,
        NEW,
    ]


def test_the_old_replica_drains_once_the_new_one_serves_not_when_it_is_only_ready():
    seen = view(service(OLD, running(OLD)), service(NEW, running(NEW)))
    old, new = (
        Endpoint("10.0.0.1", 21001, 22001, "CCCC"),
        Endpoint("10.0.0.2", 21001, 22001, "CCCC"),
    )
    ready = decided(seen, gateway(server(OLD, ServerMode.READY, 1)))
    assert ready.route.targets == {old: ServerMode.READY, new: ServerMode.READY}
    serves = decided(seen, gateway(server(OLD, ServerMode.READY, 1), server(NEW, ServerMode.READY)))
    assert serves.route.targets == {old: ServerMode.DRAIN, new: ServerMode.READY}


def test_a_generation_that_has_nothing_under_way_is_retired():
    seen = view(service(OLD, a_slot()), service(NEW, a_slot()))
    assert decided(seen, gateway()).retired == (OLD,)


@pytest.mark.parametrize("state", ["released", "starting", "ending"])
def test_not_while_a_slot_of_it_is_under_way(state: str):
    seen = view(service(OLD, a_slot(0, state)), service(NEW, a_slot()))
    assert decided(seen, gateway()).retired == ()


def test_not_again_at_once():
    seen = view(service(OLD, a_slot()), service(NEW, a_slot()), at_s=NOW_S + 5)
    asked = knowing({OLD: GenerationState(retired_s=NOW_S)})
    assert decided(seen, gateway(), asked, NOW_S + ASK_AGAIN_S - 0.1).retired == ()
    assert decided(seen, gateway(), asked, NOW_S + ASK_AGAIN_S).retired == (OLD,)


PROVED = {OLD: GenerationState(is_proved=True)}


def test_not_before_a_replica_of_the_newest_was_ready_if_one_was_tried():
    seen = view(service(OLD, a_slot()), service(NEW, a_slot()))
    assert decided(seen, gateway(waiting=1), knowing(PROVED)).retired == ()
    proved = knowing(PROVED | {NEW: GenerationState(is_proved=True)})
    assert decided(seen, gateway(waiting=1), proved).retired == (OLD,)


FAILING = GenerationState(backoff=Backoff(3, NOW_S - 1))


def test_while_the_newest_fails_the_one_before_serves_on_and_starts_again():
    seen = view(
        service(700, a_slot(), a_slot(1)),
        service(OLD, running(OLD), a_slot(1)),
        service(NEW, a_slot(), a_slot(1)),
    )
    state = knowing({700: GenerationState(is_proved=True), **PROVED, NEW: FAILING})
    plan = decided(seen, gateway(server(OLD, ServerMode.READY, 2), waiting=2), state)
    assert desired_slots(plan) == {700: frozenset(), OLD: {0, 1}, NEW: frozenset()}
    assert plan.retired == (700,)
    assert plan.note.endswith("; the generation before it still serves")


def test_a_generation_that_was_never_ready_is_none_to_fall_back_to():
    seen = view(service(OLD, a_slot()), service(NEW, a_slot()))
    state = knowing({NEW: FAILING})
    plan = decided(seen, gateway(waiting=2), state)
    assert (desired_slots(plan)[OLD], plan.retired) == (frozenset(), (OLD,))


def rolling(new: SlotView, abort: str = "2") -> ViewAnswer:
    """The newest generation lets its roll-over be aborted; the old one serves."""
    newest = service(NEW, new, a_slot(1), abort_roll_after=abort)
    return view(service(OLD, running(OLD), a_slot(1)), newest)


SERVES = gateway(server(OLD, ServerMode.READY, 2), waiting=2)
SAID = a_slot(last_failure="ended with 1")


def failed(times: int, **change: bool) -> State:
    return knowing(
        PROVED | {NEW: GenerationState(backoff=Backoff(times, NOW_S - 1000), **change)}, replicas=2
    )


def test_a_roll_over_that_fails_as_often_as_its_file_says_is_aborted():
    before = decided(rolling(a_slot()), SERVES, failed(1))
    assert (before.array_job_id, before.retired) == (NEW, ())
    assert desired_slots(before)[NEW] == {0}
    plan = decided(rolling(SAID), SERVES, failed(2))
    assert (plan.array_job_id, plan.retired) == (OLD, (NEW,))
    assert desired_slots(plan) == {OLD: {0, 1}, NEW: frozenset()}
    assert plan.note == (
        "the roll-over to array job 814 was aborted after 2 failed starts in a row; the last one"
        " ended with 1; the generation before it stays"
    )


def test_not_before_its_last_start_has_ended_or_if_a_replica_was_ready_once():
    plan = decided(rolling(a_slot(0, "starting")), SERVES, failed(2))
    assert (plan.array_job_id, plan.retired) == (OLD, ())
    assert decided(rolling(SAID), SERVES, failed(2, is_proved=True)).array_job_id == NEW
    asleep = rolling(SAID, abort="3")
    assert decided(asleep, SERVES, failed(2)).array_job_id == NEW


def test_without_one_that_was_ready_before_there_is_none_to_stay():
    state = knowing({NEW: GenerationState(backoff=Backoff(2, NOW_S - 1000))})
    seen = view(service(OLD, a_slot()), service(NEW, a_slot(), abort_roll_after="2"))
    assert decided(seen, gateway(waiting=1), state).array_job_id == NEW


def test_a_sleeping_service_keeps_the_generation_before_until_the_new_one_has_proved_itself():
    asleep = view(service(OLD, a_slot()), service(NEW, a_slot(), abort_roll_after="2"))
    assert decided(asleep, gateway(), knowing(PROVED)).retired == ()
    proved = knowing(PROVED | {NEW: GenerationState(is_proved=True)})
    assert decided(asleep, gateway(), proved).retired == (OLD,)


def test_it_is_said_until_the_service_is_applied_again():
    found = decide(rolling(SAID), SERVES, {}, failed(2), NOW_S)
    assert found is not None
    left = view(service(OLD, running(OLD), a_slot(1)), at_s=NOW_S + 5)
    assert "was aborted" in decided(left, SERVES, found[0], NOW_S + 5).note
    again = view(
        service(OLD, running(OLD), a_slot(1)),
        service(NEW + 1, a_slot(), a_slot(1)),
        at_s=NOW_S + 5,
    )
    assert decided(again, SERVES, found[0], NOW_S + 5).note == ""


RESTART = ServiceOrder(restart_s=60.7)


def test_a_restart_replaces_replicas_that_started_before_it():
    slots = (running(NEW, start_s=59), a_slot(1))
    plan = decided(
        view(service(NEW, *slots, order=RESTART)), gateway(server(NEW, ServerMode.READY, 1))
    )
    assert desired_slots(plan) == {NEW: {0, 1}}
    after = (running(NEW, start_s=59), running(NEW, 1, start_s=60))
    shown = gateway(server(NEW, ServerMode.READY, 1), server(NEW, ServerMode.READY, index=1))
    plan = decided(view(service(NEW, *after, order=RESTART)), shown)
    assert sorted(plan.route.targets or {}) == [
        Endpoint("10.0.0.2", 21001, 22001, "CCCC"),
        Endpoint("10.0.0.2", 21002, 22002, "CCCC"),
    ]
    assert list((plan.route.targets or {}).values()) == [ServerMode.DRAIN, ServerMode.READY]


def test_an_order_bounds_the_replicas_instead_of_the_script():
    slots = (a_slot(), a_slot(1))
    least = service(NEW, *slots, order=ServiceOrder(min_replicas=1, max_replicas=2))
    assert desired_slots(decided(view(least), gateway())) == {NEW: {0}}
    most = service(NEW, *slots, order=ServiceOrder(min_replicas=0, max_replicas=1))
    assert desired_slots(decided(view(most), gateway(waiting=20))) == {NEW: {0}}


def test_the_idle_replica_on_the_emptier_node_goes():
    emptier = running(NEW).model_copy(update={"node_held_millislices": 1000})
    fuller = running(NEW, 1).model_copy(update={"node_held_millislices": 7000})
    one = service(NEW, emptier, fuller, order=ServiceOrder(min_replicas=1, max_replicas=1))
    plan = decided(
        view(one), gateway(server(NEW, ServerMode.READY), server(NEW, ServerMode.READY, index=1))
    )
    assert list((plan.route.targets or {}).values()) == [ServerMode.DRAIN, ServerMode.READY]


END = ServiceOrder(delete_s=NOW_S)


def test_a_service_that_is_to_end_finishes_what_it_has_then_drains_and_is_retired():
    slots = (running(NEW), running(NEW, 1))
    seen = view(service(NEW, *slots, order=END))
    shown = gateway(server(NEW, ServerMode.READY, 1), server(NEW, ServerMode.READY, index=1))
    busy = decided(seen, shown)
    assert busy.route.terms.closing
    assert list((busy.route.targets or {}).values()) == [ServerMode.READY, ServerMode.DRAIN]
    idle = decided(
        seen, gateway(server(NEW, ServerMode.READY), server(NEW, ServerMode.READY, index=1))
    )
    assert set((idle.route.targets or {}).values()) == {ServerMode.DRAIN}
    assert (busy.retired, idle.retired) == ((), ())
    held = view(service(OLD, a_slot(), order=END), service(NEW, a_slot(), order=END))
    assert decided(held, gateway()).retired == (OLD, NEW)
    assert decided(held, gateway(waiting=1)).retired == ()


def test_it_does_not_wait_longer_for_them_than_a_drain_may_take():
    late_s = NOW_S + DRAIN_DEADLINE_S
    seen = view(service(NEW, running(NEW), order=END), at_s=late_s)
    plan = decided(seen, gateway(server(NEW, ServerMode.READY, 1)), now_s=late_s)
    assert list((plan.route.targets or {}).values()) == [ServerMode.DRAIN]


def test_nor_for_a_start_that_fails_while_nobody_serves():
    seen = view(service(NEW, a_slot(), order=END))
    failing = knowing({NEW: GenerationState(backoff=Backoff(1, NOW_S - 5))})
    plan = decided(seen, gateway(waiting=1), failing)
    assert (desired_slots(plan), plan.retired) == ({NEW: frozenset()}, (NEW,))


def slot(phase: Phase, **change: object) -> Slot:
    return Slot(SlotId(NEW, 0), phase, **change)  # type: ignore[arg-type]


def test_supply_says_what_each_replica_does():
    slots = (
        slot(Phase.HELD),
        slot(Phase.STARTING),
        slot(Phase.STARTING, allotted=True),
        slot(Phase.WARM, allotted=True, is_borrowed=True),
        slot(Phase.SERVING, allotted=True, is_borrowed=True),
        slot(Phase.DRAINING, allotted=True),
        slot(Phase.ENDING, allotted=True, is_borrowed=True),
        slot(Phase.OUT),
    )
    assert scaling_inputs.supply(slots) == Supply(
        pending=1, starting=2, ready=1, draining=1, borrowed=2
    )


def seen_as(one: ServiceView, *, is_newest: bool) -> Generation:
    return generation(GenerationInput(one, None, {}, is_newest, NOW_S), GenerationState())


@pytest.mark.parametrize(
    ("tenants", "room"),
    [
        ((), None),  # not known
        ((a_tenant_view(2000),), 2),  # 2 free, 1 of them is waited for, 1 is replaced
        ((a_tenant_view(2999),), 1),
        ((a_tenant_view(2000, limit_millislices=6000),), 4),  # borrowing
        ((a_tenant_view(9000),), 0),
    ],
)
def test_room_is_what_quota_leaves_and_what_is_replaced(
    tenants: tuple[TenantView, ...], room: int | None
):
    old = service(OLD, running(OLD), a_slot(1))
    new = service(NEW, a_slot(0, "released"), a_slot(1))
    seen = view(old, new).model_copy(update={"tenants": tenants})
    generations = (seen_as(old, is_newest=False), seen_as(new, is_newest=True))
    assert scaling_inputs.room(generations, scaling_inputs.free_millislices(seen)) == room


ADAPTERS = {"engine": "vllm", "adapters": "legal=x"}


def with_adapters(shown: Gateway, *names: str) -> Gateway:
    backends = {"vllm1": shown.backends["triton1"]}
    adapters = {f"{SERVICE}:{name}": 0 for name in names}
    return Gateway({SERVICE: "vllm1"}, backends, complete=True, adapter_entries=adapters)


def test_replicas_stay_where_only_adapters_differ_and_are_told_the_newest():
    seen = view(
        service(OLD, running(OLD), **ADAPTERS),
        service(NEW, a_slot(), **{**ADAPTERS, "adapters": "legal=y&tax=z"}),
    )
    shown = with_adapters(gateway(server(OLD, ServerMode.READY, 1)), "legal")
    plan = decided(seen, shown)
    assert desired_slots(plan).get(OLD, {0}) == {0}
    assert desired_slots(plan).get(NEW, frozenset()) == frozenset()
    assert plan.spec.adapters == (("legal", "y"), ("tax", "z"))
    assert plan.fits == {OLD, NEW}
    (slot,) = (one for one in plan.slots if one.id.array_job_id == OLD)
    assert not slot.is_outdated
    # The new one is not there before replicas that serve have it; nothing is taken away meanwhile.
    assert plan.route.adapters == {"legal"}


def test_a_new_adapter_is_let_in_once_replicas_have_tried_it_and_all_are_at_zero():
    one = service(NEW, running(NEW), **{**ADAPTERS, "adapters": "legal=y&tax=z"})
    shown = with_adapters(gateway(server(NEW, ServerMode.READY, 1)))
    tried = {SERVICE: frozenset({"tax", "gone"})}
    found = decide(view(one), shown, {}, {}, NOW_S, heard=Heard(adapters=tried))
    assert found is not None
    assert found[1].services[0].route.adapters == {"tax"}
    asleep = service(NEW, a_slot(), **{**ADAPTERS, "adapters": "legal=y&tax=z"})
    assert decided(view(asleep), with_adapters(gateway())).route.adapters == {"legal", "tax"}


def test_a_gateway_that_has_been_reloaded_refuses_no_adapter_that_worked():
    one = service(NEW, running(NEW), **ADAPTERS)
    shown = replace(with_adapters(gateway(server(NEW, ServerMode.READY, 1))), complete=False)
    assert decided(view(one), shown).route.adapters == {"legal"}
    # Nor of a service that can't be read, which is left as it is.
    unreadable = service(NEW, running(NEW), **ADAPTERS, concurrency="oops")
    found = decide(view(unreadable), shown, {}, {}, NOW_S)
    assert found is not None
    assert SetAdapter(f"{SERVICE}:legal", there=True) in found[1].routes.changes


def test_replicas_that_were_started_for_no_adapters_are_replaced():
    seen = view(service(OLD, running(OLD), engine="vllm"), service(NEW, a_slot(), **ADAPTERS))
    plan = decided(seen, with_adapters(gateway(server(OLD, ServerMode.READY, 1))))
    assert desired_slots(plan) == {OLD: {0}, NEW: {0}}
    assert plan.fits == {NEW}


def test_an_order_to_restart_replaces_them_all_the_same():
    order = ServiceOrder(restart_s=90.0)
    changed = {**ADAPTERS, "adapters": "tax=z"}
    seen = view(
        service(OLD, running(OLD), order=order, **ADAPTERS),
        service(NEW, a_slot(), order=order, **changed),
    )
    plan = decided(seen, with_adapters(gateway(server(OLD, ServerMode.READY, 1))))
    assert desired_slots(plan) == {OLD: {0}, NEW: {0}}
