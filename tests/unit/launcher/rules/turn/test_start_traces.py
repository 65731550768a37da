"""Tests how the launcher follows starts: each row of a story is one turn."""

from dataclasses import replace

import pytest
from builders.gateways import DIGEST, a_server
from builders.service_specs import DIRECTIVES
from builders.service_views import a_running_slot, a_service, a_slot
from pydantic import TypeAdapter
from stand_ins.plain_scaling import decide

from slicewise.cluster.language.starts import (
    LONGEST_NODE,
    MOST_STARTS,
    Moment,
    StartTrace,
    Weights,
    phases_of,
    total_s,
)
from slicewise.cluster.rpc.messages import DesiredSlotsAnswer, SlotView, ViewAnswer
from slicewise.launcher.rules.engines.engine import Answer, Probe, ReadyTimes
from slicewise.launcher.rules.gateway.types import Backend, Gateway, Server, ServerMode
from slicewise.launcher.rules.turn.clock_step import after_step
from slicewise.launcher.rules.turn.service import Heard
from slicewise.launcher.rules.turn.start_traces import HEARD_S, HeardOfStarts, Starts, joined
from slicewise.launcher.rules.turn.state import ServiceState, State, after_answer, after_restart

SERVICE, ARRAY, BEGAN_S = "vision/chat", 814, 1_000_000.0
KEYS = DIRECTIVES | {"max_replicas": "2", "concurrency": "2", "keep_alive_s": "10"}
MARKS_S = {"script": BEGAN_S + 1.6, "brought": BEGAN_S + 1.9, "engine": BEGAN_S + 2.1}
TIMES = ReadyTimes(BEGAN_S + 4.5, BEGAN_S + 4.9, MARKS_S, Weights("node", 7))
READY = {(ARRAY, 0): Answer(Probe.OURS, times=TIMES)}


class Story:
    """A launcher's turns over one service that sleeps at first."""

    def __init__(self) -> None:
        self.state: State = {}
        self.heard = HeardOfStarts()

    def turn(
        self,
        after_s: float,
        *slots: SlotView,
        servers: tuple[Server, ...] = (),
        held: int = 0,
        answers: dict[tuple[int, int], Answer] | None = None,
        released: tuple[int, ...] = (),
    ) -> None:
        """Look, decide, and let the daemon answer that it has released these slots."""
        now_s = BEGAN_S + after_s
        others = tuple(a_slot(index) for index in range(len(slots), 2))
        service = a_service(array_job_id=ARRAY, directives=KEYS, slots=(*slots, *others))
        seen = ViewAnswer(observed_s=now_s, complete=True, services=(service,), tenants=())
        lines = (*servers, *(a_server(5, ServerMode.MAINT),) * (2 - len(servers)))
        sessions = held + sum(server.in_flight for server in servers)
        gateway = Gateway(
            {SERVICE: "triton1"}, {"triton1": Backend(sessions, 0, lines)}, complete=True
        )
        found = decide(
            *(seen, gateway, answers or {}, self.state, now_s), heard=Heard(starts=self.heard)
        )
        assert found is not None
        self.state, plan = dict(found[0]), found[1]
        for array, desired in plan.services[0].desired_by_array.items():
            answered = replace(desired, at_s=now_s + 0.1)
            answer = DesiredSlotsAnswer(released=released)
            service_state = after_answer(self.state[SERVICE], array, answered, answer)
            self.state = {SERVICE: service_state}

    @property
    def starts(self) -> Starts:
        return self.state[SERVICE].starts

    def wakes(self) -> None:
        """A request waits, and its slot is released."""
        self.turn(-1.0)
        self.heard = HeardOfStarts({"triton1": BEGAN_S})
        self.turn(0.2, held=1, released=(0,))

    def starts_up(self) -> None:
        """Slurm starts the slot; it gets ready, and into the gateway."""
        whole_s = int(BEGAN_S)
        self.turn(0.6, a_slot(0, "released", released_s=whole_s), held=1)
        under_way = a_slot(0, "starting", released_s=whole_s, start_s=whole_s + 1, node="gpu1")
        self.turn(2.0, under_way, held=1)
        self.turn(5.0, RUNNING, held=1, answers=READY)


RUNNING = a_running_slot(0, released_s=int(BEGAN_S), start_s=int(BEGAN_S) + 1, node="gpu1")
SERVING = (a_server(0, in_flight=1),)


def moments(trace: StartTrace) -> dict[Moment, float]:
    return {moment: round(at_s - BEGAN_S, 3) for moment, at_s in trace.at_s.items()}


def test_a_wake_is_followed_from_the_request_to_the_first_byte():
    story = Story()
    story.wakes()
    story.starts_up()
    (trace,) = story.starts.under_way
    assert trace.state == "starting"
    story.heard = HeardOfStarts({"triton1": BEGAN_S}, {("triton1", DIGEST): BEGAN_S + 5.4})
    story.turn(5.5, RUNNING, servers=SERVING)
    (trace,) = story.starts.over
    assert (trace.state, trace.node, trace.weights, trace.seen_s) == (
        *("ready", "gpu1", Weights("node", 7)),
        None,
    )
    assert moments(trace) == {
        "held": 0.0,
        "seen": 0.2,
        "desired": 0.2,
        "released": 0.3,
        "started": 1.3,
        "script": 1.6,
        "brought": 1.9,
        "engine": 2.1,
        "loaded": 4.5,
        "ready": 4.9,
        "routed": 5.0,
        "answered": 5.4,
    }
    assert total_s(trace) == 5.4
    assert round(sum(phase.seconds for phase in phases_of(trace)), 3) == 5.4
    assert story.starts.under_way == ()


def test_a_request_of_which_the_gateway_told_long_ago_is_not_the_one_that_waits():
    story = Story()
    story.turn(-1.0)
    story.heard = HeardOfStarts({"triton1": BEGAN_S - HEARD_S - 1.0, "triton2": BEGAN_S})
    story.turn(0.2, held=1, released=(0,))
    assert moments(story.starts.under_way[0])["held"] == 0.2


def test_requests_that_come_later_move_no_start():
    story = Story()
    story.wakes()
    story.heard = HeardOfStarts({"triton1": BEGAN_S + 0.55})
    story.starts_up()
    assert moments(story.starts.under_way[0])["held"] == 0.0


def test_a_replica_that_got_none_of_the_waiting_requests_ends_in_the_gateway():
    story = Story()
    story.wakes()
    story.starts_up()
    story.turn(6.0, RUNNING, servers=SERVING)
    story.turn(9.0, RUNNING, servers=SERVING)
    assert story.starts.over == ()
    story.turn(9.5, RUNNING, servers=(a_server(0),))
    (trace,) = story.starts.over
    assert "answered" not in trace.at_s
    assert trace.state == "ready"


def test_a_start_that_ends_before_it_is_ready_says_so():
    story = Story()
    story.wakes()
    whole_s = int(BEGAN_S)
    under_way = a_slot(0, "starting", released_s=whole_s, start_s=whole_s + 1, node="gpu1")
    story.turn(2.0, under_way, held=1)
    story.turn(3.0, a_slot(0), held=1)
    (trace,) = story.starts.over
    assert trace.state == "ended"
    assert phases_of(trace)[-1].phase == "ended"
    assert moments(trace)["ended"] == 3.0


def test_a_slot_that_quota_keeps_back_waits_for_its_grant_and_leaves_no_trace():
    story = Story()
    story.turn(-1.0)
    story.turn(0.2, held=1)
    story.turn(4.0, held=1)
    (trace,) = story.starts.under_way
    assert phases_of(trace)[-1].phase == "grant"
    assert phases_of(trace)[-1].seconds == 3.8
    story.turn(900.0)
    assert story.starts == Starts()


def test_without_the_word_of_node_and_door_the_start_is_followed_all_the_same():
    story = Story()
    story.wakes()
    story.turn(2.0, a_slot(0, "starting"), held=1)
    story.turn(5.0, RUNNING, held=1, answers={(ARRAY, 0): Answer(Probe.OURS)})
    phases = [phase.phase for phase in phases_of(story.starts.under_way[0])]
    assert phases == ["notice", "decide", "grant", "queue", "check", "route", "answer"]


def test_of_a_service_the_last_starts_are_kept():
    over = tuple(
        StartTrace(ARRAY, 0, {"desired": float(number), "ready": number + 1.0}, "ready")
        for number in range(MOST_STARTS)
    )
    story = Story()
    story.wakes()
    story.state = {SERVICE: replace(story.state[SERVICE], starts=replace(story.starts, over=over))}
    assert len(story.starts.newest) == MOST_STARTS
    story.starts_up()
    story.heard = HeardOfStarts({}, {("triton1", DIGEST): BEGAN_S + 5.4})
    story.turn(5.5, RUNNING, servers=SERVING)
    assert len(story.starts.over) == MOST_STARTS
    assert story.starts.over[:-1] == over[1:]


def test_another_launcher_goes_on_with_what_is_over():
    story = Story()
    story.wakes()
    saved = TypeAdapter(ServiceState).dump_json(story.state[SERVICE])
    read = TypeAdapter(ServiceState).validate_json(saved)
    assert read.starts == story.starts
    over = StartTrace(ARRAY, 1, {"desired": 1.0, "ready": 2.0}, "ready")
    had = replace(read, starts=replace(read.starts, over=(over,)))
    assert after_restart(had).starts == Starts((over,))
    now = Starts((replace(over, slot=0),), held_s=3.0)
    assert joined(Starts((over,)), now) == Starts((over, replace(over, slot=0)), held_s=3.0)


def test_a_step_of_the_clock_moves_all_moments():
    story = Story()
    story.wakes()
    later = after_step(story.state, 3600.0)[SERVICE].starts
    before = story.starts.under_way[0]
    assert phases_of(later.under_way[0]) == phases_of(before)
    assert later.under_way[0].at_s["held"] == BEGAN_S + 3600.0
    assert later.held_s == BEGAN_S + 3600.0


def test_a_service_without_starts_keeps_its_value():
    """Thousands of services are decided for each turn."""
    story = Story()
    story.turn(-1.0)
    before = story.starts
    story.turn(0.5)
    assert story.starts is before


def test_a_long_name_of_a_node_is_cut():
    """The daemon would refuse the whole report."""
    story = Story()
    story.wakes()
    story.turn(2.0, a_slot(0, "starting", node="n" * 100), held=1)
    (trace,) = story.starts.under_way
    assert trace.node == "n" * LONGEST_NODE
    TypeAdapter(StartTrace).validate_json(TypeAdapter(StartTrace).dump_json(trace))


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_times_of_a_clock_that_was_set_meanwhile_are_left_out(step_s: float):
    """The state was moved with the clock; what a replica and the gateway have told was not."""
    story = Story()
    story.wakes()
    story.state = after_step(story.state, step_s)
    told = {(ARRAY, 0): Answer(Probe.OURS, times=TIMES)}
    story.turn(5.0 + step_s, RUNNING, held=1, answers=told)
    story.heard = HeardOfStarts({}, {("triton1", DIGEST): BEGAN_S + 5.4})
    story.turn(5.5 + step_s, RUNNING, servers=SERVING)
    (trace,) = story.starts.over
    assert (trace.state, total_s(trace)) == ("ready", pytest.approx(5.0, abs=0.5))


@pytest.mark.parametrize("start_s", [-5, 3600])
def test_of_slurms_clock_that_was_set_meanwhile_nothing_is_taken(start_s: int):
    story = Story()
    story.wakes()
    whole_s = int(BEGAN_S)
    starting = a_slot(0, "starting", released_s=whole_s, start_s=whole_s + start_s, node="gpu1")
    story.turn(2.0, starting, held=1)
    (trace,) = story.starts.under_way
    assert "started" not in trace.at_s


DELAYED = a_slot(0, "released", reason="BeginTime", released_s=int(BEGAN_S) + 120)


def test_a_replica_that_slurm_requeues_starts_once_more():
    """Its delay is no part of the wait for a slice."""
    story = Story()
    story.wakes()
    story.starts_up()
    story.heard = HeardOfStarts({}, {("triton1", DIGEST): BEGAN_S + 5.4})
    story.turn(5.5, RUNNING, servers=SERVING)
    story.turn(60.0, DELAYED, held=1)
    story.turn(120.0, DELAYED, held=1)
    begun_s = int(BEGAN_S) + 120
    starting = a_slot(0, "starting", released_s=begun_s, start_s=begun_s + 1, node="gpu2")
    story.turn(122.0, starting, held=1)
    (first,), (again,) = story.starts.over, story.starts.under_way
    assert (first.state, first.node, again.node) == ("ready", "gpu1", "gpu2")
    assert moments(again) == {
        "held": 60.0,
        "seen": 60.0,
        "desired": 60.0,
        "released": 120.0,
        "started": 121.0,
    }


def test_the_boot_of_its_node_is_a_phase_of_its_own():
    story = Story()
    story.wakes()
    whole_s = int(BEGAN_S)
    place = {"released_s": whole_s, "node": "gpu1"}
    booting = a_slot(0, "starting", start_s=whole_s + 1, is_configuring=True, **place)
    story.turn(2.0, booting, held=1)
    story.turn(60.0, booting, held=1)
    (trace,) = story.starts.under_way
    # The daemon's answer came at 0.3: Slurm's second counts from there.
    assert [(phase.phase, phase.seconds) for phase in phases_of(trace)][-2:] == [
        ("queue", 1.0),
        ("boot", 58.7),
    ]
    story.turn(92.0, a_slot(0, "starting", start_s=whole_s + 91, **place), held=1)
    story.turn(93.0, a_slot(0, "starting", start_s=whole_s + 91, **place), held=1)
    (trace,) = story.starts.under_way
    assert [(phase.phase, phase.seconds) for phase in phases_of(trace)][-3:] == [
        ("queue", 1.0),
        ("boot", 90.0),
        ("load", 1.7),
    ]


def test_a_node_that_was_ready_in_a_moment_has_not_booted():
    story = Story()
    story.wakes()
    whole_s = int(BEGAN_S)
    place = {"released_s": whole_s, "start_s": whole_s + 1, "node": "gpu1"}
    story.turn(2.0, a_slot(0, "starting", is_configuring=True, **place), held=1)
    story.turn(3.0, a_slot(0, "starting", **place), held=1)
    assert "booted" not in moments(story.starts.under_way[0])


def test_one_that_slurm_requeues_before_it_is_ready_has_ended():
    story = Story()
    story.wakes()
    whole_s = int(BEGAN_S)
    starting = a_slot(0, "starting", released_s=whole_s, start_s=whole_s + 1, node="gpu1")
    story.turn(2.0, starting, held=1)
    story.turn(3.0, DELAYED, held=1)
    assert [trace.state for trace in story.starts.over] == ["ended"]
    story.turn(4.0, DELAYED, held=1)
    assert moments(story.starts.under_way[0])["desired"] == 4.0


def test_a_slot_that_has_just_run_is_delayed_before_it_waits_for_a_slice():
    story = Story()
    story.wakes()
    story.turn(9.0, DELAYED, held=1)
    assert moments(story.starts.under_way[0]) == {
        "held": 0.0,
        "seen": 0.2,
        "desired": 0.2,
        "released": 9.0,
    }
