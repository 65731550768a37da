"""A whole decision: restart, stale and incomplete looks, backoff, expiry, drain to the end."""

from dataclasses import replace

import pytest

from cluster.wire import ServiceView, SlotView, ViewAnswer
from launcher.decide.autoscale import Peak
from launcher.decide.backoff import Backoff
from launcher.decide.gateway import Backend, Gateway, Mode, Server
from launcher.decide.routing import AddRoute, Change, EndSessions, SetMode, SetTarget
from launcher.decide.runs import UNHEALTHY_S, Run
from launcher.decide.services import (
    WISH_AGAIN_S,
    Plan,
    Probe,
    Probes,
    ServiceState,
    State,
    Verified,
    Wish,
    decide,
    unverified,
    with_wish,
)
from launcher.decide.slots import DRAIN_DEADLINE_S, Expiry, Phase, loss_text

ARRAY = 814
NOWHERE = Server("127.0.0.1", 1, Mode.MAINT, up=False, in_flight=0, queued=0)
DIRECTIVES = {
    "name": "chat",
    "tenant": "vision",
    "model_repository": "/models",
    "model": "m",
    "profile": "1g.10gb",
    "max_replicas": "3",
    "concurrency": "2",
    "keep_alive_s": "10",
    "time_limit_min": "60",
}


def running(index: int, *, left_s: int | None = 3000, job_id: int = 900) -> SlotView:
    return SlotView(
        index=index,
        state="running",
        job_id=job_id + index,
        address="10.0.0.1",
        ports=(21001 + index, 22001, 23001),
        start_s=50,
        time_left_s=left_s,
    )


def in_state(index: int, state: str) -> SlotView:
    return SlotView.model_validate({"index": index, "state": state})


def view(*slots: SlotView, at_s: float = 100.0, complete: bool = True, **change: str) -> ViewAnswer:
    service = ServiceView(
        array_job_id=ARRAY,
        tenant="vision",
        name="chat",
        user="alice",
        submit_s=1,
        directives=DIRECTIVES | change,
        profile="1g.10gb",
        cost_millislices=1000,
        slots=slots,
    )
    return ViewAnswer(observed_s=at_s, complete=complete, services=(service,), tenants=())


def server(index: int, mode: Mode, in_flight: int = 0) -> Server:
    return Server("10.0.0.1", 21001 + index, mode, up=True, in_flight=in_flight, queued=0)


def gateway(*servers: Server, sessions: int = 0, queued: int = 0) -> Gateway:
    lines = (*servers, *(NOWHERE,) * (3 - len(servers)))
    pool = {"pool1": Backend(sessions, queued, lines)}
    return Gateway({"vision/chat": "pool1"}, pool, complete=True)


def decided(
    seen: ViewAnswer,
    shown: Gateway,
    state: State | None = None,
    probes: Probes | None = None,
    now_s: float = 100.0,
) -> tuple[State, Plan]:
    found = decide(seen, shown, probes or {}, state or {}, now_s)
    assert found is not None
    return found


def changes(plan: Plan) -> tuple[Change, ...]:
    return plan.routes.changes


OURS = {(ARRAY, 0): Probe.OURS}


def test_an_incomplete_look_decides_nothing():
    assert decide(view(complete=False), gateway(), {}, {}, 100.0) is None


def test_a_new_service_is_routed_and_sleeps():
    empty = Gateway({}, {"pool1": Backend(0, 0, (NOWHERE,) * 3)}, complete=True)
    _, plan = decided(view(*(in_state(i, "held") for i in range(3))), empty)
    assert changes(plan) == (AddRoute("vision/chat", "pool1"),)
    assert plan.services[0].wish == frozenset()


def test_a_held_request_wakes_it():
    _, plan = decided(view(*(in_state(i, "held") for i in range(3))), gateway(sessions=1))
    assert plan.services[0].wish == {0}


def test_a_replica_gets_its_route_once_it_says_who_it_is():
    seen, shown = view(running(0)), gateway(sessions=1)
    _, silent = decided(seen, shown, probes={(ARRAY, 0): Probe.SILENT})
    _, ours = decided(seen, shown, probes=OURS)
    assert changes(silent) == ()
    assert SetTarget("pool1", 0, "10.0.0.1", 21001, 2) in changes(ours)


def test_a_stranger_on_its_port_gets_no_request():
    shown = gateway(server(0, Mode.READY), sessions=1)
    _, plan = decided(view(running(0)), shown, probes={(ARRAY, 0): Probe.STRANGER})
    assert changes(plan) == (SetMode("pool1", 0, Mode.MAINT),)


def test_after_a_restart_nothing_changes_while_nothing_has_changed():
    shown = gateway(server(0, Mode.READY, 1), server(1, Mode.READY), sessions=1)
    _, plan = decided(view(running(0), running(1)), shown)
    assert changes(plan) == ()
    assert plan.services[0].wish == {0, 1}


def test_after_a_restart_an_idle_service_is_kept_for_a_whole_keep_alive():
    shown = gateway(server(0, Mode.READY))
    state, _ = decided(view(running(0)), shown, now_s=100.0)
    state, early = decided(view(running(0), at_s=109.0), shown, state, now_s=109.0)
    _, late = decided(view(running(0), at_s=111.0), shown, state, now_s=111.0)
    assert (changes(early), changes(late)) == ((), (SetMode("pool1", 0, Mode.DRAIN),))


IDLE = {ARRAY: ServiceState(peaks=(Peak(0.0, 0),))}


def test_a_drain_goes_on_after_a_restart():
    shown = gateway(server(0, Mode.DRAIN, 1), server(1, Mode.READY, 2))
    seen = view(running(0), running(1), concurrency="3")
    state, plan = decided(seen, shown, IDLE, now_s=20.0)
    assert plan.services[0].slots[0].phase is Phase.DRAINING
    assert (changes(plan), plan.services[0].wish) == ((), {0, 1})
    assert state[ARRAY].draining_since_s == {0: 20.0}


@pytest.mark.parametrize(
    ("after_s", "expected"),
    [
        (DRAIN_DEADLINE_S - 1, ()),
        (DRAIN_DEADLINE_S, (SetMode("pool1", 0, Mode.MAINT), EndSessions("pool1", 0))),
    ],
)
def test_draining_work_is_cut_at_the_deadline(after_s: float, expected: tuple[Change, ...]):
    known = {ARRAY: replace(IDLE[ARRAY], draining_since_s={0: 0.0})}
    busy = gateway(server(0, Mode.DRAIN, 1), server(1, Mode.READY, 2))
    seen = view(running(0), running(1), at_s=after_s, concurrency="1024")
    _, plan = decided(seen, busy, known, now_s=after_s)
    assert changes(plan) == expected


def test_a_look_older_than_the_last_wish_leaves_the_service_alone():
    state, _ = decided(view(in_state(0, "held")), gateway(sessions=1))
    state = with_wish(state, ARRAY, Wish(frozenset({0}), 105.0), frozenset({0}))
    after, plan = decided(view(in_state(0, "held"), at_s=104.0), gateway(), state, now_s=106.0)
    assert (plan.services, changes(plan), after) == ((), (), state)


def test_a_kept_wish_is_repeated_only_after_a_while():
    state, _ = decided(view(in_state(0, "held")), gateway(sessions=1), now_s=100.0)
    state = with_wish(state, ARRAY, Wish(frozenset({0}), 100.5), frozenset())
    soon, late = 101.0, 100.5 + WISH_AGAIN_S
    _, first = decided(view(in_state(0, "held"), at_s=soon), gateway(sessions=1), state, now_s=soon)
    _, then = decided(view(in_state(0, "held"), at_s=late), gateway(sessions=1), state, now_s=late)
    assert (first.services[0].wish, then.services[0].wish) == (None, {0})


@pytest.mark.parametrize("end", ["held", "gone", "ending"])
def test_a_failed_start_is_not_repeated_at_once(end: str):
    slots = (in_state(0, "held"), in_state(1, "held"))
    state, _ = decided(view(*slots), gateway(sessions=1))
    state = with_wish(state, ARRAY, Wish(frozenset({0}), 100.1), frozenset({0}))
    failed = view(in_state(0, end), slots[1], at_s=101.0)
    state, plan = decided(failed, gateway(sessions=1), state, now_s=101.0)
    assert plan.services[0].wish == frozenset()
    assert "1 failed start" in plan.services[0].decision.reason
    assert f"-{ARRAY}_*.log" in plan.services[0].note
    _, then = decided(
        view(in_state(0, end), slots[1], at_s=102.5), gateway(sessions=1), state, now_s=102.5
    )
    assert len(then.services[0].wish or ()) == 1


def test_a_new_note_is_told_at_once():
    state, _ = decided(view(in_state(0, "held")), gateway(), now_s=100.0)
    known = {ARRAY: replace(state[ARRAY], wish=Wish(frozenset(), 100.0, "old"))}
    seen = view(in_state(0, "held"), at_s=100.5)
    _, plan = decided(seen, gateway(), known, now_s=100.5)
    assert (plan.services[0].wish, plan.services[0].note) == (frozenset(), "")


def test_while_slots_wait_for_slurm_a_changed_urgency_is_told_after_a_while():
    slots, shown = (running(0), in_state(1, "released")), gateway(server(0, Mode.READY, 2))
    busy = replace(shown, backends={"pool1": replace(shown.backends["pool1"], sessions=3)})
    state, plan = decided(view(*slots), busy)
    assert plan.services[0].urgency == pytest.approx(0.4)  # one waits, two are served
    told = Wish(frozenset({0, 1}), 100.1, urgency=0.4)
    state = with_wish(state, ARRAY, told, frozenset())
    fuller = replace(shown, backends={"pool1": replace(shown.backends["pool1"], sessions=4)})
    for slot, late_s, wish in (
        ("released", 1.0, None),
        ("released", 100.1 + WISH_AGAIN_S, {0, 1}),
        ("starting", 100.1 + WISH_AGAIN_S, None),
    ):
        seen = view(running(0), in_state(1, slot), at_s=100.1 + late_s)
        _, plan = decided(seen, fuller, state, now_s=100.1 + late_s)
        assert (plan.services[0].wish, plan.services[0].urgency) == (wish, pytest.approx(0.5))


def test_a_replica_that_ends_after_a_long_life_is_no_failure():
    state, _ = decided(view(running(0)), gateway(sessions=1), probes=OURS, now_s=100.0)
    state = with_wish(state, ARRAY, Wish(frozenset({0}), 100.1), frozenset({0}))
    shown = gateway(server(0, Mode.READY, 1), sessions=1)
    state, _ = decided(view(running(0), at_s=200.0), shown, state, now_s=200.0)
    _, plan = decided(view(in_state(0, "held"), at_s=201.0), shown, state, now_s=201.0)
    assert plan.services[0].decision.reason.endswith(": 1")


def test_a_slot_that_was_not_released_has_not_failed():
    state, _ = decided(view(in_state(0, "held")), gateway(sessions=1))
    state = with_wish(state, ARRAY, Wish(frozenset({0}), 100.1), frozenset())
    state, _ = decided(view(in_state(0, "held"), at_s=101.0), gateway(sessions=1), state)
    assert state[ARRAY].backoff.failures == 0


def test_a_new_run_of_a_slot_is_asked_again():
    state, _ = decided(view(running(0)), gateway(), probes=OURS)
    known = state[ARRAY]
    assert unverified(view(running(0)).services[0], known) == ()
    again = view(running(0, job_id=950)).services[0]
    assert [slot.index for slot in unverified(again, known)] == [0]


def test_near_its_time_limit_a_successor_starts_first():
    shown = gateway(server(0, Mode.READY, 1), sessions=1)
    seen = view(running(0, left_s=200), in_state(1, "held"))
    _, plan = decided(seen, shown)
    assert (plan.services[0].wish, changes(plan)) == ({0, 1}, ())


def test_at_its_time_limit_it_drains():
    shown = gateway(server(0, Mode.READY, 1), sessions=1)
    _, plan = decided(view(running(0, left_s=100), in_state(1, "held")), shown)
    assert changes(plan) == (SetMode("pool1", 0, Mode.DRAIN),)


@pytest.mark.parametrize("limit_min", ["10", "60"])
@pytest.mark.parametrize(
    ("left_s", "expiry"),
    [(240, Expiry.FAR), (239, Expiry.SOON), (130, Expiry.SOON), (129, Expiry.NOW)],
)
def test_every_time_limit_leaves_the_same_time_to_drain(
    limit_min: str, left_s: int, expiry: Expiry
):
    shown = gateway(server(0, Mode.READY))
    _, plan = decided(view(running(0, left_s=left_s), time_limit_min=limit_min), shown)
    assert plan.services[0].slots[0].expiry is expiry


HUNG = gateway(replace(server(0, Mode.READY, 1), up=False), sessions=1)


def hung(until_s: float, state: State, shown: Gateway = HUNG) -> tuple[State, Plan]:
    """Turns every 10 s from 100 s on, with a replica that fails its health checks."""
    seen_s = 100.0
    while True:
        seen = view(running(0), in_state(1, "held"), at_s=seen_s)
        state, plan = decided(seen, shown, state, now_s=seen_s)
        if seen_s >= until_s:
            return state, plan
        wished = plan.services[0].wish
        if wished is not None:
            state = with_wish(state, ARRAY, Wish(wished, seen_s), frozenset())
        seen_s += 10.0


def verified() -> State:
    run = Run(900, 50, "10.0.0.1", 21001)
    wish = Wish(frozenset({0}), 40.0)
    known = ServiceState((Peak(0.0, 1),), verified={0: Verified(run, 40.0)}, wish=wish)
    return {ARRAY: known}


@pytest.mark.parametrize("known", [{}, verified()], ids=["restarted", "verified"])
def test_a_replica_that_stays_unhealthy_gives_its_slot_back(known: State):
    _, plan = hung(100.0 + UNHEALTHY_S - 10, known)
    assert (changes(plan), plan.services[0].slots[0].phase) == ((), Phase.SERVING)
    _, plan = hung(100.0 + UNHEALTHY_S, known)
    assert changes(plan) == (SetMode("pool1", 0, Mode.MAINT), EndSessions("pool1", 0))
    assert plan.services[0].wish == {1}


def test_it_is_given_back_though_it_looks_well_when_the_wish_had_failed():
    state, _ = hung(100.0 + UNHEALTHY_S, verified())
    shown = gateway(server(0, Mode.MAINT), sessions=1)
    seen = view(running(0), in_state(1, "released"), at_s=161.0)
    _, plan = decided(seen, shown, state, now_s=161.0)
    assert (plan.services[0].wish, changes(plan)) == ({1}, ())


def test_an_unhealthy_replica_counts_as_a_failed_start_once():
    state, plan = hung(100.0 + UNHEALTHY_S, verified())
    state = with_wish(state, ARRAY, Wish(plan.services[0].wish or frozenset(), 160.1), frozenset())
    for at_s, end in ((161.0, "ending"), (162.0, "held"), (163.0, "held")):
        seen = view(in_state(0, end), in_state(1, "released"), at_s=at_s)
        state, plan = decided(seen, gateway(sessions=1), state, now_s=at_s)
    assert state[ARRAY].backoff == Backoff(1, 161.0)


def test_a_replica_that_recovers_in_time_stays():
    state, _ = hung(150.0, verified())
    shown = gateway(server(0, Mode.READY, 1), sessions=1)
    state, plan = decided(view(running(0), at_s=160.0), shown, state, now_s=160.0)
    assert (changes(plan), state[ARRAY].down) == ((), {})


def test_a_new_run_does_not_answer_for_the_old_one():
    state, _ = hung(100.0 + UNHEALTHY_S, verified())
    shown = gateway(server(0, Mode.MAINT), sessions=1)
    seen = view(running(0, job_id=950), at_s=165.0)
    state, plan = decided(seen, shown, state, probes=OURS, now_s=165.0)
    assert SetMode("pool1", 0, Mode.READY) in changes(plan)


def test_an_unhealthy_replica_does_not_settle_the_service():
    run = Run(900, 50, "10.0.0.1", 21001)
    known = replace(verified()[ARRAY], backoff=Backoff(2, 30.0), verified={0: Verified(run, 95.0)})
    state, _ = hung(140.0, {ARRAY: known})
    assert state[ARRAY].backoff.failures == 2


def test_lost_slots_are_told():
    _, plan = decided(
        view(in_state(0, "gone"), in_state(1, "held"), in_state(2, "gone")), gateway()
    )
    assert plan.services[0].lost == {0, 2}
    assert loss_text({0, 2}).startswith("2 slots are lost")
    assert loss_text({0}).startswith("1 slot is lost")
    assert loss_text(()) == ""


def test_a_slot_beyond_the_gateways_servers_is_never_started():
    slots = tuple(in_state(i, "held") for i in range(5))
    _, plan = decided(view(*slots, max_replicas="5"), gateway(sessions=50))
    assert plan.services[0].wish == {0, 1, 2}


def test_directives_that_are_no_service_change_nothing():
    _, plan = decided(view(in_state(0, "held"), concurrency="many"), gateway(sessions=1))
    assert (plan.services, changes(plan)) == ((), ())
    assert "concurrency" in plan.unreadable["vision/chat"]
