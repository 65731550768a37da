"""Tests how many replicas are wanted, in the order of the policy's steps."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from slicewise.launcher.rules.autoscale.arrivals import Arrivals
from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity
from slicewise.launcher.rules.autoscale.policy import Memory, Peak, autoscale, horizon_of, initial
from slicewise.launcher.rules.autoscale.service_time import WorkDone
from slicewise.launcher.rules.autoscale.types import (
    ReplicaStart,
    Scaling,
    ScalingDecision,
    ServiceLook,
    Supply,
)
from slicewise.launcher.rules.gateway.types import Load
from slicewise.sandbox.demo.scenario import COMPRESSION, SERVING, VISION
from slicewise.sandbox.demo.trace import arrivals, read_extract

SCALING = Scaling(0, 40, 2, max_queue_s=2.0)
SERVICE_S = 4.0
Rate = Callable[[int], float]


def lived(
    seconds: int,
    rate: Rate,
    scaling: Scaling = SCALING,
    memory: Memory | None = None,
    begun_s: int = 0,
    **look: object,
) -> tuple[Memory, list[ScalingDecision]]:
    """A service whose replicas are always enough: what is wanted each second."""
    memory = memory or initial(Supply(), 0.0)
    arrived = 0.0 if memory.seen is None else memory.seen.arrived
    decisions = []
    for second in range(begun_s, begun_s + seconds):
        arrived += rate(second)
        busy = round(rate(second) * SERVICE_S)
        load = Load(busy, arrived=int(arrived), answered=max(0, int(arrived) - busy))
        wanted = decisions[-1].wanted if decisions else 0
        values = {"supply": Supply(ready=wanted), **look}
        memory, decision = autoscale(scaling, memory, ServiceLook(second, load, **values))
        decisions.append(decision)
    return memory, decisions


def steady(per_s: float) -> Rate:
    return lambda _: per_s


def wanted(load: Load, scaling: Scaling) -> int:
    """Of a launcher that has just begun."""
    return autoscale(scaling, Memory(), ServiceLook(100.0, load, Supply()))[1].wanted


@pytest.mark.parametrize(
    ("load", "change", "replicas"),
    [
        (Load(), {}, 0),
        (Load(held=1), {}, 1),
        (Load(in_flight=1), {}, 1),
        (Load(), {"min_replicas": 2}, 2),
        (Load(held=500), {"max_replicas": 3}, 3),
    ],
)
def test_a_request_wakes_it_and_the_bounds_hold(load: Load, change: dict[str, int], replicas: int):
    assert wanted(load, replace(SCALING, **change)) == replicas


def test_a_backlog_is_reckoned_in_seconds_of_work():
    """Short requests are soon done: not each of them needs a place of its own."""
    memory, _ = lived(300, steady(1.0))
    backlog = Load(2, 60, arrived=400, answered=338)
    _, decision = autoscale(SCALING, memory, ServiceLook(301.0, backlog, Supply(ready=1)))
    assert 4 <= decision.wanted < 31


def test_what_comes_steadily_has_its_places_and_some_headroom():
    _, decisions = lived(1800, steady(2.0))
    offered = 2.0 * SERVICE_S / SCALING.concurrency
    assert offered <= decisions[-1].wanted <= 1.5 * offered


def test_it_learns_how_long_requests_take():
    memory, _ = lived(600, steady(2.0))
    assert memory.work.service_s == pytest.approx(SERVICE_S, rel=0.1)


@pytest.mark.parametrize(("aim", "more_than"), [(0.9, 0.5), (0.99, 0.9), (0.999, 0.99)])
def test_a_higher_aim_takes_no_fewer(aim: float, more_than: float):
    def bursts(second: int) -> float:
        return 8.0 if second % 97 < 5 else 1.0

    found = [
        sum(d.wanted for d in lived(1800, bursts, replace(SCALING, aim=a))[1])
        for a in (more_than, aim)
    ]
    assert found[0] <= found[1]


@pytest.mark.parametrize("aim", [0.9, 0.99, 0.999])
def test_rare_short_requests_never_get_a_crowd_of_replicas(aim: float):
    """Nobody knows yet what bursts such a service has."""
    scaling = replace(SCALING, aim=aim)
    _, decisions = lived(3600, lambda second: float(second % 20 == 0), scaling)
    assert max(decision.wanted for decision in decisions) <= 2


def test_longer_starts_look_further_ahead():
    quick, slow = (
        autoscale(
            SCALING, Memory(), ServiceLook(0.0, Load(), Supply(), (ReplicaStart(1.0, load_s),) * 20)
        )[0]
        for load_s in (2.0, 60.0)
    )
    assert quick.delays.start_s < 5
    assert slow.delays.start_s > 50


def test_a_slow_queue_never_multiplies_jobs():
    """Nothing starts for an hour: what is wanted follows the load, not the time."""
    memory, found = Memory(), []
    for second in range(3600):
        supply = Supply(pending=found[-1] if found else 0)
        look = ServiceLook(float(second), Load(held=20, arrived=20), supply)
        memory, decision = autoscale(SCALING, memory, look)
        found.append(decision.wanted)
    assert max(found) <= 10
    assert found[-1] <= found[600]


def test_what_is_pending_is_withdrawn_when_nothing_is_asked_any_more():
    memory, decisions = lived(300, steady(4.0))
    assert decisions[-1].wanted > 0
    _, decisions = lived(7200, steady(0.0), memory=memory, begun_s=300)
    assert decisions[-1].wanted == 0


def test_zero_only_when_a_pause_is_long_for_the_service():
    """Requests each 20 s: the last replica stays in between, and goes when they stop."""
    memory, decisions = lived(1200, lambda second: float(second % 20 == 0))
    assert min(decision.wanted for decision in decisions[200:]) == 1
    _, decisions = lived(3600, steady(0.0), memory=memory, begun_s=1200)
    assert decisions[-1].wanted == 0


@pytest.mark.parametrize("gap_s", [12, 30, 300])
def test_after_a_gap_between_looks_nothing_shrinks_for_as_long_and_for_a_minute_at_most(gap_s: int):
    """A stall of the machine by eleven seconds kept idle replicas from others for a minute."""
    eager = replace(SCALING, keep_alive_s=1.0)
    memory, (*_, last) = lived(60, steady(2.0), eager)
    ready, seen = last.wanted, memory.seen
    assert ready > 1
    load = Load(0, arrived=seen.arrived, answered=seen.arrived)
    held_s = 0
    for second in range(180):
        look = ServiceLook(59.0 + gap_s + second, load, Supply(ready=ready))
        memory, decision = autoscale(eager, memory, look)
        if decision.wanted < ready:
            break
        held_s = second
    assert min(gap_s, 60) - 1 <= held_s <= min(gap_s, 60) + 1


@pytest.mark.parametrize("rest_s", [20, 300, 3000])
def test_a_request_after_a_rest_wakes_one_replica_whatever_the_service_did_before(rest_s: int):
    """The demo's service: woken, 23 requests a second of 0.2 s each, then none, then one."""
    scaling = Scaling(0, 40, 2, max_queue_s=0.3, keep_alive_s=3)
    memory, at_s, arrived, ready = initial(Supply(), 0.0), 0.0, 0, 0
    piled = (1, 0, 0, 23, 23, 23)
    for came in (*piled, *[23] * 80):
        arrived += came
        waiting = 0 if ready else arrived
        load = Load(5 if ready else 0, waiting, arrived=arrived, answered=arrived - waiting)
        look = ServiceLook(at_s, load, Supply(ready=ready, starting=0 if ready else 1))
        memory, decision = autoscale(scaling, memory, look)
        at_s, ready = at_s + 1, decision.wanted if at_s > len(piled) else 0
    assert decision.wanted > 2
    quiet = Load(arrived=arrived, answered=arrived)
    for _ in range(rest_s):
        memory, decision = autoscale(scaling, memory, ServiceLook(at_s, quiet, Supply()))
        at_s += 1
    assert decision.wanted == 0
    one = Load(0, 1, arrived=arrived + 1, answered=arrived)
    for supply in (Supply(), Supply(starting=1), Supply(starting=1), Supply(ready=1)):
        memory, decision = autoscale(scaling, memory, ServiceLook(at_s, one, supply))
        assert decision.wanted == 1
        at_s += 1


LOOK_S = 0.25


NOT_LEARNT = ReplicaCapacity()


class Served:
    """A service whose starts take 1.75 s; each of its replicas works on one request at a time."""

    def __init__(self, scaling: Scaling, capacity: ReplicaCapacity = NOT_LEARNT) -> None:
        self._scaling, self.at_s = scaling, 0.0
        self._memory = replace(initial(Supply(), 0.0), capacity=capacity)
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._waiting: list[float] = []
        self._arrived = 0

    def looks(self, seconds: float, requests: Iterable[tuple[float, float]] = ()) -> list[int]:
        """How many replicas there are or will be after each look.

        ``requests`` come at these seconds from now on, and each takes so long.
        """
        found, due = [], sorted((self.at_s + at_s, takes_s) for at_s, takes_s in requests)
        for _ in range(round(seconds / LOOK_S)):
            came = [takes_s for at_s, takes_s in due if at_s <= self.at_s]
            due = due[len(came) :]
            self._arrived += len(came)
            self._waiting += came
            ready = sum(start_s + 1.75 <= self.at_s for start_s in self._starts)
            self._work(ready)
            load = Load(
                len(self._ends),
                len(self._waiting),
                arrived=self._arrived,
                answered=self._arrived - len(self._ends) - len(self._waiting),
            )
            begun = sum(start_s + 1.75 == self.at_s for start_s in self._starts)
            supply = Supply(starting=len(self._starts) - ready, ready=ready)
            starts = (ReplicaStart(0.5, 1.25),) * begun
            look = ServiceLook(self.at_s, load, supply, starts)
            self._memory, decision = autoscale(self._scaling, self._memory, look)
            more = decision.wanted - len(self._starts)
            self._starts = (self._starts + [self.at_s] * more)[: decision.wanted]
            found.append(len(self._starts))
            self.at_s += LOOK_S
        return found

    def _work(self, ready: int) -> None:
        """Requests that have waited begin as soon as others have ended."""
        now_s = self.at_s - LOOK_S
        while now_s <= self.at_s:
            self._ends = [end_s for end_s in self._ends if end_s > now_s]
            free = max(0, ready - len(self._ends))
            self._ends += [now_s + takes_s for takes_s in self._waiting[:free]]
            self._waiting = self._waiting[free:]
            now_s += LOOK_S / 8


DEMO = Scaling(0, 7, 1, max_queue_s=0.3, keep_alive_s=3)
ONE = ((0.0, 0.2),)


def trace_of_the_demo() -> Iterator[tuple[float, float]]:
    """What its first service gets: when, and how long it takes."""
    schedules = {plan.service: plan.schedule for plan in SERVING}
    for one in arrivals(read_extract(), COMPRESSION, schedules):
        if one.service == VISION.service:
            yield one.at_s, one.context_tokens * 50e-6 + one.generated_tokens * 1200e-6


@pytest.mark.parametrize("rest_s", [8, 120])
def test_one_request_after_the_demo_wakes_no_crowd(rest_s: int):
    """It begins with one request, and a load that rises right after it.

    All that the service was seen to do while it was quiet was to become busy.
    """
    demo = Served(DEMO)
    demo.looks(2)
    demo.looks(2, ONE)
    assert max(demo.looks(60, trace_of_the_demo())) == 7
    assert demo.looks(rest_s)[-1] == 0
    assert max(demo.looks(10, ONE)) <= 2


LEARNS = Scaling(0, 7, 64, p95_s=12.0, learns=True)
LEARNT = ReplicaCapacity(limit=9, full_s=4.5)


@pytest.mark.parametrize("keep_alive_s", [None, 30.0])
def test_one_request_wakes_one_replica_where_a_full_one_would_be_slower(keep_alive_s: float | None):
    """A request takes 0.6 s alone, and 4.5 s in a full replica: one is no crowd of eight."""
    served = Served(replace(LEARNS, keep_alive_s=keep_alive_s), LEARNT)
    for _ in range(6):
        assert max(served.looks(120, ((0.0, 0.6),))) == 1


def test_where_many_are_expected_requests_count_as_in_full_replicas():
    """Eight at a time of 0.6 s each are 60 at a time of 4.5 s: seven replicas of nine."""

    def decided(capacity: ReplicaCapacity) -> ScalingDecision:
        work = WorkDone(600.0, 1000.0)
        arrivals = Arrivals(900.0, 12000, (12000.0,) * 4, (900.0,) * 4)
        memory = replace(Memory(), capacity=capacity, work=work, arrivals=arrivals)
        look = ServiceLook(1000.0, Load(8), Supply(ready=1))
        return autoscale(replace(LEARNS, max_replicas=40), memory, look)[1]

    assert decided(LEARNT).wanted >= 7
    assert "if each takes 4.5 s as in a full replica; " in decided(LEARNT).reason
    assert "full replica" not in decided(ReplicaCapacity(limit=9)).reason


def test_a_service_that_is_busy_whenever_it_was_woken_is_woken_with_more_replicas():
    served = Served(DEMO)
    served.looks(10)
    for _ in range(3):
        served.looks(80, [(0.0, 0.2), *((1 + n / 28, 0.25) for n in range(560))])
    assert served.looks(1, ONE)[-1] >= 4


def test_without_a_request_nothing_starts():
    """However many are expected."""
    memory, _ = lived(600, steady(2.0))
    memory = replace(memory, peaks=(Peak(700.0, 1),))
    idle = ServiceLook(600.0, Load(arrived=1200, answered=1200), Supply(ready=1))
    assert autoscale(SCALING, memory, idle)[1].wanted == 1


def test_requests_that_no_look_sees_keep_a_replica_all_the_same():
    """Each is answered between two looks, as one of 30 ms is."""
    scaling, one = replace(SCALING, keep_alive_s=3.0), Supply(ready=1)
    memory, _ = autoscale(scaling, Memory(), ServiceLook(0.0, Load(in_flight=1, arrived=1), one))
    for second in range(1, 60):
        load = Load(arrived=second, answered=second)
        memory, decision = autoscale(scaling, memory, ServiceLook(float(second), load, one))
        assert decision.wanted == 1
    left = []
    for second in range(60, 200):
        memory, decision = autoscale(scaling, memory, ServiceLook(float(second), load, one))
        left.append(decision.wanted)
    assert left[:2] == [1, 1]
    assert left[-1] == 0


def test_keep_alive_is_kept_to_the_second():
    scaling = replace(SCALING, keep_alive_s=100.0, aim=0.5)
    memory, _ = lived(60, lambda second: float(second < 2), scaling)
    _, decisions = lived(300, steady(0.0), scaling, memory, 60)
    first_zero = next(second for second, d in enumerate(decisions, 60) if d.wanted == 0)
    assert first_zero == 102


def test_a_replica_that_has_loaded_more_models_is_kept_for_longer():
    """They are lost with it, and its successor would load them again."""

    def kept_s(refill_s: float) -> int:
        scaling = replace(SCALING, refill_s=refill_s)
        memory, busy = lived(600, steady(4.0), scaling)
        _, quiet = lived(600, steady(0.5), scaling, memory, begun_s=600)
        return sum(decision.wanted >= busy[-1].wanted for decision in quiet)

    assert kept_s(0.0) + 40 < kept_s(100.0) < kept_s(0.0) + 60


def test_a_restart_does_not_shrink_what_runs():
    memory = initial(Supply(ready=3), 100.0)
    for second in range(100, 160):
        memory, decision = autoscale(SCALING, memory, ServiceLook(second, Load(), Supply(ready=3)))
        assert decision.wanted == 3


def test_requests_that_gave_up_between_two_looks_are_no_demand():
    """Five a second of 0.2 s each, so that each look sees one of them: it is as if one waited."""

    def woken(arrive_each_s: int, give_up_each_s: int) -> list[int]:
        memory, found = Memory(), [0]
        for second in range(20):
            load = Load(
                held=1, arrived=arrive_each_s * second + 1, given_up=give_up_each_s * second
            )
            look = ServiceLook(float(second), load, Supply(pending=found[-1]))
            memory, decision = autoscale(SCALING, memory, look)
            found.append(decision.wanted)
        return found

    assert woken(5, 5) == woken(0, 0)
    assert max(woken(5, 5)) < max(woken(5, 0))


def test_hang_ups_wake_what_waits_at_a_look_and_the_next_time_one_replica():
    """No look can know that forty that wait will have gone a moment later; the next one does."""
    memory, came, at_s = initial(Supply(), 0.0), 0, 0.0

    def look(held: int, after_s: float = 0.1) -> int:
        nonlocal memory, at_s
        at_s += after_s
        load = Load(held=held, arrived=came, given_up=came - held)
        memory, decision = autoscale(SCALING, memory, ServiceLook(at_s, load, Supply()))
        return decision.wanted

    def rests() -> None:
        assert [look(0, 1.0) for _ in range(120)][-1] == 0

    rests()
    came = 40
    assert look(0) == 0
    woken = []
    for _ in range(3):
        came += 40
        woken.append(look(40))
        rests()
    assert woken[0] > 1
    assert woken[1:] == [1, 1]


WAITS, GAVE_UP = Load(held=9, arrived=9), Load(arrived=9, given_up=9)


def after_hang_ups(scaling: Scaling, load: Load, supply: Supply) -> list[int]:
    """What is wanted each second after nine requests, of which ``load`` is left."""
    memory = autoscale(scaling, Memory(), ServiceLook(0.0, WAITS, Supply()))[0]
    found = []
    for second in range(1, 60):
        memory, decision = autoscale(scaling, memory, ServiceLook(second, load, supply))
        found.append(decision.wanted)
    return found


@pytest.mark.parametrize("keep_alive_s", [None, 300.0])
@pytest.mark.parametrize("supply", [Supply(pending=1), Supply(starting=1)])
def test_what_was_started_for_requests_that_gave_up_is_not_kept(
    keep_alive_s: float | None, supply: Supply
):
    scaling = replace(SCALING, keep_alive_s=keep_alive_s)
    wanted_each_s = after_hang_ups(scaling, GAVE_UP, supply)
    # A client whose patience is shorter than the start comes again soon: the start goes on so long.
    assert wanted_each_s[0] > 0
    assert wanted_each_s[30] == 0


def test_what_others_still_wait_for_is_kept():
    wanted_each_s = after_hang_ups(
        replace(SCALING, keep_alive_s=300.0), Load(held=1, arrived=9, given_up=8), Supply(pending=1)
    )
    assert min(wanted_each_s) == 1


def test_a_replica_that_was_ready_is_kept_though_others_gave_up():
    scaling = replace(SCALING, keep_alive_s=300.0)
    wanted_each_s = after_hang_ups(
        scaling, Load(arrived=9, answered=4, given_up=5), Supply(ready=1)
    )
    assert min(wanted_each_s) >= 1


def test_a_launcher_that_was_away_learns_nothing_of_that_time_and_shrinks_nothing_at_once():
    memory, before = lived(600, steady(2.0))
    running, answered = before[-1].wanted, memory.seen.answered
    load = Load(8, arrived=1210, answered=answered + 2)
    back, decision = autoscale(SCALING, memory, ServiceLook(1200.0, load, Supply(ready=running)))
    assert back.work == memory.work
    assert decision.wanted >= running


def test_a_gateway_that_can_not_be_seen_changes_nothing():
    memory, _ = lived(300, steady(2.0))
    look = ServiceLook(301.0, Load(), Supply(pending=1, ready=4), is_known=False)
    same, decision = autoscale(SCALING, memory, look)
    assert (same, decision.wanted) == (memory, 5)


def test_counters_that_begin_anew_are_no_burst():
    memory, _ = lived(600, steady(2.0))
    look = ServiceLook(600.0, Load(8, arrived=2, answered=0), Supply(ready=6))
    again, _ = autoscale(SCALING, memory, look)
    assert again.arrivals.total == memory.arrivals.total + 2


def test_what_is_borrowed_goes_back_sooner():
    def held(supply: Supply) -> int:
        memory, _ = lived(600, steady(8.0))
        _, after = lived(300, steady(1.0), memory=memory, begun_s=600, supply=supply)
        return sum(decision.wanted for decision in after)

    assert held(Supply(ready=20, borrowed=4)) < held(Supply(ready=20))


@pytest.mark.parametrize(
    ("load", "supply", "said"),
    [
        (Load(2, 3), Supply(ready=1), "5 requests: 2 in progress and 3 waiting; "),
        (Load(1), Supply(ready=1), "1 request: 1 in progress; "),
        (Load(held=4), Supply(), "a replica takes 2 at a time: 1 replica needed"),
        (Load(held=500), Supply(), "; at most 2 may run"),
        (Load(), Supply(), "no requests now; no replica is needed; at least 1 shall run"),
        (Load(held=500), Supply(pending=1), "; quota has room for 0 of 1 more"),
    ],
)
def test_it_says_why(load: Load, supply: Supply, said: str):
    scaling = replace(SCALING, min_replicas=1, max_replicas=2)
    _, decision = autoscale(scaling, Memory(), ServiceLook(0.0, load, supply, room=0))
    assert said in decision.reason


@pytest.mark.parametrize(
    ("change", "ready", "in_time"),
    [
        ({}, 3, 12),
        ({"max_queue_s": 0.1}, 3, 0),
        # Of 5 s, three times the second of a request are for its work.
        ({"max_queue_s": None, "p95_s": 5.0}, 3, 12),
        ({"max_queue_s": None}, 3, None),
        ({}, 0, None),
    ],
)
def test_so_many_may_wait_as_begin_within_the_objective(
    change: dict[str, float | None], ready: int, in_time: int | None
):
    look = ServiceLook(0.0, Load(6, 30), Supply(ready=ready))
    _, decision = autoscale(replace(SCALING, **change), Memory(), look)
    assert decision.in_time == in_time


@pytest.mark.parametrize(
    ("supply", "room", "ready_in_s"),
    [
        (Supply(ready=2), None, 1.0),
        (Supply(starting=1), None, pytest.approx(25, rel=0.3)),
        (Supply(), 1, pytest.approx(28, rel=0.3)),
        (Supply(), 0, None),
        (Supply(starting=1, booting=1), None, pytest.approx(225, rel=0.3)),
        (Supply(starting=2, booting=1), None, pytest.approx(25, rel=0.3)),
    ],
)
def test_it_estimates_when_who_waits_is_served(
    supply: Supply, room: int | None, ready_in_s: float | None
):
    look = ServiceLook(0.0, Load(held=4), supply, room=room)
    assert autoscale(SCALING, Memory(), look)[1].ready_in_s == ready_in_s


def test_where_a_node_has_to_boot_it_looks_as_far_ahead():
    look = ServiceLook(0.0, Load(held=4), Supply(), wakes_node=True)
    memory, decision = autoscale(SCALING, Memory(), look)
    assert decision.ready_in_s == pytest.approx(228, rel=0.3)
    assert horizon_of(memory.delays) == pytest.approx(228, rel=0.3)
    again, _ = autoscale(SCALING, memory, replace(look, at_s=1.0, wakes_node=False))
    assert horizon_of(again.delays) < 60


def test_a_latency_objective_leaves_what_the_work_does_not_take():
    memory, _ = lived(600, steady(2.0))
    found = [
        autoscale(
            replace(SCALING, max_queue_s=None, p95_s=p95_s),
            memory,
            ServiceLook(601.0, Load(4, 40, arrived=1240, answered=1196), Supply(ready=4)),
        )[1].wanted
        for p95_s in (5.0, 60.0)
    ]
    assert found[0] > found[1]
