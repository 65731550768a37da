"""Tests which leases are extended, which replicas must end, and what the loop does about it."""

import time
from dataclasses import replace
from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import DOWN, ScriptedSlurm, desire, job, settings, sync_of

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView, PlannedStart, ReservationView
from slicewise.cluster.language.slurm.interface import JobChange
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import SlotView
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.daemon.lease_loop import LeaseLoop
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos
from slicewise.slurm_plugin.rules.services.leases import (
    Leased,
    LeaseEnd,
    LeasePlan,
    Spare,
    Wall,
    leased,
    plan_leases,
    spare_minutes,
    walls_of,
    with_end,
)
from slicewise.slurm_plugin.rules.services.state import Observation, services

pytestmark = pytest.mark.usefixtures("clock")

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
NOW_S = 10_000
LEASE_S = 600
RUN = job(0, JobState.RUNNING, nodes=("gpu01",), tres={"gres/gpu:1g.10gb": "1", "cpu": "2"})
KEY = (814, 0)
RUN_KEY = (814, 0, 1000)
EARLY_S = 60
"""Before its limit a script gives its slot back, with a lease of ten minutes or more."""


def slot(left_s: int, **changes: Any) -> Leased:
    one = Leased(KEY, RUN, NOW_S + left_s, 10, LEASE_S, is_wanted=True)
    return replace(one, **changes)


def planned(
    one: Leased, *walls: Wall, extends: bool = True, spare: dict[str, int] | None = None
) -> LeasePlan:
    paid = Spare(spare or {}, {name: (name,) for name in spare or {}})
    return plan_leases((one,), {"gpu01": walls}, paid, NOW_S, COSTS, extends=extends)


@pytest.mark.parametrize(
    ("left_s", "more_min"), [(600, 0), (300, 0), (299, 6), (240, 6), (10, 10), (-20, 11)]
)
def test_a_lease_that_is_half_over_is_made_whole_again(left_s: int, more_min: int) -> None:
    expected = {RUN_KEY: 10 + more_min} if more_min else {}
    assert planned(slot(left_s)) == LeasePlan(expected)


def test_what_nobody_wants_is_not_extended() -> None:
    assert planned(slot(10, is_wanted=False)) == LeasePlan()


def test_where_leases_are_not_extended_each_says_its_end() -> None:
    ends = {RUN_KEY: LeaseEnd(NOW_S + 500 - EARLY_S, "leases are not extended here")}
    assert planned(slot(500), extends=False) == LeasePlan({}, ends)


def test_up_to_a_wall_and_no_further() -> None:
    maintenance = Wall(NOW_S + 399, "reservation maint of gpu01 begins")
    last_s = NOW_S + 280 + 60
    assert planned(slot(280), maintenance) == LeasePlan(
        {RUN_KEY: 11}, {RUN_KEY: LeaseEnd(last_s - EARLY_S, maintenance.why)}
    )
    assert planned(slot(340), maintenance) == LeasePlan(
        {}, {RUN_KEY: LeaseEnd(NOW_S + 340 - EARLY_S, maintenance.why)}
    )


def test_a_far_wall_is_no_news() -> None:
    assert planned(slot(280), Wall(NOW_S + 2000, "far")) == LeasePlan({RUN_KEY: 16})


def test_a_wall_before_the_end_is_the_end() -> None:
    ends = planned(slot(500), Wall(NOW_S + 100, "maint"), Wall(NOW_S + 300, "later")).ends
    assert ends == {RUN_KEY: LeaseEnd(NOW_S + 100 - EARLY_S, "maint")}


def test_behind_a_wall_it_ends_with_its_lease() -> None:
    """It runs in that reservation itself, or was there before."""
    plan = planned(slot(100), Wall(NOW_S - 100, "maint"))
    assert plan == LeasePlan({}, {RUN_KEY: LeaseEnd(NOW_S + 100 - EARLY_S, "maint")})


def test_a_wall_on_another_node_is_none() -> None:
    elsewhere = {"gpu02": (Wall(NOW_S + 100, "maint"),)}
    assert plan_leases((slot(100),), elsewhere, Spare(), NOW_S, COSTS, extends=True).ends == {}


def test_as_far_as_the_budget_pays() -> None:
    why = "the budget of vision is used up then"
    assert planned(slot(280), spare={"vision": 3999, "nlp": 0}) == LeasePlan(
        {RUN_KEY: 13}, {RUN_KEY: LeaseEnd(NOW_S + 280 + 180 - EARLY_S, why)}
    )
    assert planned(slot(280), spare={"vision": -1}) == LeasePlan(
        {}, {RUN_KEY: LeaseEnd(NOW_S + 280 - EARLY_S, why)}
    )
    assert planned(slot(280), spare={"nlp": 0, "vision": 10**6}) == LeasePlan({RUN_KEY: 16})


def test_an_account_without_quota_is_bound_by_the_budget_of_its_qos_tenant() -> None:
    below = slot(280, run=replace(RUN, account="students", qos="slicewise_vision"))
    assert planned(below, spare={"vision": -1}) == planned(slot(280), spare={"vision": -1})


def test_what_the_budget_pays_for_is_given_once() -> None:
    of_sibling = slot(280, key=(815, 0), run=replace(RUN, account="nlp", qos="slicewise_nlp"))
    slots = (slot(280), of_sibling, slot(280, key=(814, 1)))
    spare = Spare({"site": 8000, "nlp": 9000}, {"vision": ("site",), "nlp": ("nlp", "site")})
    plan = plan_leases(slots, {}, spare, NOW_S, COSTS, extends=True)
    assert plan.limits_min == {RUN_KEY: 16, (815, 0, 1000): 12}


def test_what_a_budget_spares_is_what_running_jobs_leave_of_it() -> None:
    policy = policy_of(tenant("site", 9000), tenant("vision", 3000, "site"), tenant("nlp", 1))
    runs = tuple(replace(RUN, job_id=n, end_s=NOW_S + 600) for n in (1, 2))
    others = (
        replace(RUN, end_s=NOW_S - 30),
        replace(RUN, account="unknown", qos="normal", end_s=NOW_S + 600),
        replace(RUN, state=JobState.PENDING, end_s=NOW_S + 600),
    )
    limits = {"site": 90_000, "vision": 25_000}
    spare = spare_minutes(policy, limits, runs + others, NOW_S, COSTS)
    assert spare.left == {"site": 70_000, "vision": 5_000}
    assert spare.limits == {"site": ("site",), "vision": ("vision", "site"), "nlp": ()}
    below = replace(RUN, job_id=3, account="students", end_s=NOW_S + 600)
    spare = spare_minutes(policy, limits, (*runs, below), NOW_S, COSTS)
    assert spare.left == {"site": 60_000, "vision": -5_000}, "no quota: in its tenant's QOS"
    of_site = spare_minutes(policy, {"site": 20_000}, runs, NOW_S, COSTS)
    assert (of_site.left, of_site.limits["vision"]) == ({"site": 0}, ("site",))
    assert spare_minutes(policy, {}, runs, NOW_S, COSTS).left == {}


WAITING = replace(
    RUN, job_id=7, array_job_id=None, task_index=None, state=JobState.PENDING, nodes=()
)
BIGGER = [
    ({"gres/gpu:1g.10gb": "2", "cpu": "2"}, True),
    ({"gres/gpu:1g.10gb": "1", "cpu": "3"}, True),
    ({"gres/gpu:1g.10gb": "1", "cpu": "2", "node": "2"}, True),
    ({"cpu": "64"}, True),
    ({"gres/gpu:1g.10gb": "1", "cpu": "2"}, False),
    ({"cpu": "1"}, False),
    # Of what it waits for the replica has nothing.
    ({"gres/gpu:3g.40gb": "1", "cpu": "64"}, False),
]


@pytest.mark.parametrize(("tres", "is_wall"), BIGGER)
def test_only_a_bigger_job_is_a_wall(tres: dict[str, str], is_wall: bool) -> None:
    wall = Wall(NOW_S + 30, "job 7", replace(WAITING, tres=tres))
    assert (planned(slot(100), wall).limits_min == {}) is is_wall


def test_a_borrowed_replica_ends_before_the_planned_start_of_a_bigger_job() -> None:
    """No job that Slurm has planned waits for what its slices were lent to."""
    bigger = Wall(NOW_S + 399, "job 7 is to start", replace(WAITING, tres=BIGGER[0][0]))
    plan = planned(slot(280, run=replace(RUN, qos=borrowed_qos("vision"))), bigger)
    last_s = NOW_S + 280 + 60
    assert plan == LeasePlan({RUN_KEY: 11}, {RUN_KEY: LeaseEnd(last_s - EARLY_S, bigger.why)})
    assert last_s <= bigger.at_s


def test_walls_are_reservations_and_planned_starts_of_waiting_jobs() -> None:
    reservation = ReservationView("maint", 50, 99, ("gpu01", "gpu02"), frozenset({"MAINT"}))
    plans = (PlannedStart(7, 60, ("gpu01",)), PlannedStart(8, 70, ("gpu01",)))
    assert walls_of((reservation,), plans, (WAITING,)) == {
        "gpu01": [
            Wall(50, "reservation maint of gpu01 begins", reservation=reservation),
            Wall(60, "job 7 is to start on gpu01", WAITING),
        ],
        "gpu02": [Wall(50, "reservation maint of gpu02 begins", reservation=reservation)],
    }


def test_an_array_s_task_that_is_planned_is_named_as_one() -> None:
    task = replace(WAITING, array_job_id=5, task_index=2)
    (wall,) = walls_of((), (PlannedStart(7, 60, ("gpu01",)),), (task,))["gpu01"]
    assert wall.why == "job 5_2 is to start on gpu01"


def test_where_a_gpu_is_cut_anew_the_others_stay() -> None:
    ours = ReservationView("slicewise_repartition_7", 50, 99, ("gpu01",), frozenset({"MAINT"}))
    assert walls_of((ours,), (), ()) == {}


def reserved(**changes: Any) -> Wall:
    one = ReservationView("mine", NOW_S - 900, NOW_S + 399, ("gpu01",), frozenset())
    return Wall(NOW_S - 900, "mine begins", reservation=replace(one, **changes))


def test_in_its_own_reservation_a_lease_is_extended_until_that_ends() -> None:
    inside = slot(280, reservations=frozenset({"mine"}))
    end = LeaseEnd(NOW_S + 280 + 60 - EARLY_S, "reservation mine of gpu01 ends")
    assert planned(inside, reserved()) == LeasePlan({RUN_KEY: 11}, {RUN_KEY: end})
    assert planned(inside, reserved(end_s=NOW_S + 9999)) == LeasePlan({RUN_KEY: 16})
    # One that lets its jobs run on after its end.
    assert planned(inside, reserved(flags=frozenset({"FLEX"}))) == LeasePlan({RUN_KEY: 16})


def test_a_reservation_of_others_stands_beside_its_own() -> None:
    inside = slot(280, reservations=frozenset({"mine"}))
    maintenance = Wall(NOW_S + 300, "maint")
    assert planned(inside, reserved(end_s=NOW_S + 9999), maintenance).limits_min == {}


@pytest.mark.parametrize(
    ("theirs", "own", "is_wall"),
    [
        ({0, 1}, {2}, False),
        ({0, 1}, {1, 2}, True),
        # Not said, or not known: as if it were the whole node.
        ({0, 1}, None, True),
        (None, {2}, True),
    ],
)
def test_on_other_cores_than_the_reserved_ones_a_replica_stays(
    theirs: set[int] | None, own: set[int] | None, is_wall: bool
) -> None:
    cores = {"gpu01": frozenset(theirs)} if theirs else {}
    beside = slot(280, cores={"gpu01": frozenset(own)} if own else {})
    assert (planned(beside, reserved(cores=cores)).limits_min == {}) is is_wall


def test_the_launcher_sees_what_comes_first() -> None:
    running = SlotView(index=0, state="running")
    assert with_end(running, None, 0.0) == running
    told = with_end(running, LeaseEnd(90.0, "maint"), 30.0)
    assert (told.ends_in_s, told.ends_why) == (60, "maint")
    assert with_end(running, LeaseEnd(90.0, "maint"), 95.0).ends_in_s == 0
    preempted = SlotView(index=0, state="running", ends_in_s=20, ends_why="it is preempted")
    assert with_end(preempted, LeaseEnd(90.0, "maint"), 30.0) == preempted


class Loop:
    """A service of which slot 0 runs, with a lease of ten minutes of which some is left."""

    def __init__(self, left_s: int, known: Settings | None = None, **changes: Any) -> None:
        self.slurm = ScriptedSlurm()
        self.slurm.script += f"#SLICEWISE lease_s={LEASE_S}\n"
        self.cluster_state = sync_of(self.slurm)
        self.leases = LeaseLoop(known or settings(), self.slurm, self.cluster_state)
        self.left_s = left_s
        self.changes = changes
        self.host_ahead_s = 0.0
        self.began_s = time.monotonic()

    async def turn(
        self,
        monkeypatch: pytest.MonkeyPatch,
        at_s: float = NOW_S,
        waiting: tuple[JobView, ...] = (),
        passed_s: float | None = None,
    ) -> None:
        passed_s = at_s - NOW_S if passed_s is None else passed_s
        monkeypatch.setattr("time.monotonic", lambda: self.began_s + passed_s)
        monkeypatch.setattr("time.time", lambda: at_s + self.host_ahead_s)
        self.slurm.ahead_s = -self.host_ahead_s
        end_s = NOW_S + self.left_s
        run = replace(RUN, start_s=end_s - 600, end_s=end_s, time_limit_s=600)
        self.slurm.shown = (replace(run, **self.changes), job(1), *waiting)
        await self.cluster_state.turn()
        await self.leases.turn()

    def limits(self) -> list[Any]:
        return [one for one in self.slurm.actions if one[0].startswith("update")]


MORE = [(f"update {JobChange(time_limit_min=16)}", [0])]


async def test_the_loop_extends_what_is_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(280)
    await loop.turn(monkeypatch)
    assert loop.limits() == MORE


@pytest.mark.parametrize("ahead_s", [365 * 86_400.0, -7200.0])
@pytest.mark.parametrize("left_s", [280, 320])
async def test_a_host_s_clock_that_was_set_changes_no_lease(
    left_s: int, ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases end by slurmctld's clock."""
    right, wrong = Loop(left_s), Loop(left_s)
    await right.turn(monkeypatch)
    wrong.host_ahead_s = ahead_s
    await wrong.turn(monkeypatch)
    assert wrong.limits() == right.limits() == (MORE if left_s == 280 else [])
    ((service,), (of_right,)) = wrong.cluster_state.view.services, right.cluster_state.view.services
    assert service == of_right


async def test_a_clock_that_is_set_back_ends_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(280)
    await loop.turn(monkeypatch, NOW_S + 200, passed_s=0)
    before = len(loop.limits())
    await loop.turn(monkeypatch, NOW_S, passed_s=5)
    assert loop.limits()[before:] == MORE


@pytest.mark.parametrize(("held", "asks"), [(True, 0), (False, 1)])
async def test_slurm_is_asked_for_planned_starts_only_where_a_job_waits(
    held: bool, asks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, asked = Loop(280), []

    async def plans() -> tuple[PlannedStart, ...]:
        asked.append("plans")
        return ()

    monkeypatch.setattr(loop.slurm, "plans", plans)
    await loop.turn(monkeypatch, waiting=(job(7, array_job_id=None, held=held),))
    assert len(asked) == asks


async def test_reservations_are_asked_for_once_a_minute_until_they_concern_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, asked = Loop(599), []
    known = loop.slurm.reservations

    async def reservations() -> tuple[ReservationView, ...]:
        asked.append(time.monotonic())
        return await known()

    monkeypatch.setattr(loop.slurm, "reservations", reservations)
    for at_s in range(0, 121, 6):
        await loop.turn(monkeypatch, NOW_S + at_s)
    assert [at_s - loop.began_s for at_s in asked] == pytest.approx([0, 60, 120])
    loop.slurm.known_reservations = (MAINTENANCE,)
    for at_s in range(126, 199, 6):
        await loop.turn(monkeypatch, NOW_S + at_s)
    assert [at_s - loop.began_s for at_s in asked[3:]] == pytest.approx([180, 186, 192, 198])


MAINTENANCE = ReservationView("maint", NOW_S + 300, 0, ("gpu01",), frozenset())


async def test_no_lease_is_extended_into_a_reservation_made_just_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(320)
    await loop.turn(monkeypatch)
    assert loop.limits() == []
    loop.slurm.known_reservations = (MAINTENANCE,)
    await loop.turn(monkeypatch, NOW_S + 30)
    assert loop.limits() == []
    loop.slurm.known_reservations = ()
    await loop.turn(monkeypatch, NOW_S + 36)
    assert loop.limits() == MORE


async def test_in_its_own_reservation_the_loop_extends(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(280)
    one = ReservationView("mine", NOW_S - 9, NOW_S + 9999, ("gpu01",), frozenset())
    loop.slurm.known_reservations = (one,)
    await loop.turn(monkeypatch)
    assert loop.limits() == []
    loop.slurm.run_in = {RUN.job_id: frozenset({"mine"})}
    await loop.turn(monkeypatch, NOW_S + 5)
    assert loop.limits() == MORE


async def test_on_other_cores_than_the_reserved_ones_the_loop_extends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(280)
    cores = {"gpu01": frozenset({0, 1})}
    loop.slurm.known_reservations = (
        ReservationView("theirs", NOW_S - 9, NOW_S + 9999, ("gpu01",), frozenset(), cores),
    )
    await loop.turn(monkeypatch)
    assert loop.limits() == []
    loop.slurm.known_cores = {RUN.job_id: {"gpu01": frozenset({2})}}
    await loop.turn(monkeypatch, NOW_S + 5)
    assert loop.limits() == MORE


NEXT_RUN = replace(RUN, start_s=NOW_S, end_s=NOW_S + 600, time_limit_s=600)


@pytest.mark.parametrize("now", [NEXT_RUN, job(0), job(0, JobState.COMPLETING)])
async def test_a_run_that_ended_since_the_look_leaves_its_slot_alone(
    monkeypatch: pytest.MonkeyPatch, now: JobView
) -> None:
    loop = Loop(280)
    loop.slurm.meanwhile = (now, job(1))
    await loop.turn(monkeypatch)
    assert loop.limits() == []


async def test_what_a_run_was_given_that_ended_just_then_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(280)
    update = loop.slurm.update

    async def runs_anew(changes: Any) -> Any:
        loop.slurm.meanwhile = (NEXT_RUN, job(1))
        return await update(changes)

    monkeypatch.setattr(loop.slurm, "update", runs_anew)
    await loop.turn(monkeypatch)
    assert loop.limits() == [*MORE, (f"update {JobChange(time_limit_min=10)}", [0])]


async def test_the_loop_lets_end_what_is_not_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(500)
    await loop.turn(monkeypatch)
    await desire(loop.cluster_state, 814, frozenset())
    loop.left_s = 200
    await loop.turn(monkeypatch, NOW_S + 10)
    assert loop.limits() == []


async def test_without_a_launcher_leases_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(280)
    loop.cluster_state.heard_s -= LEASE_S
    await loop.turn(monkeypatch)
    assert loop.limits() == []
    loop.cluster_state.hear()
    await loop.turn(monkeypatch, NOW_S + 5)
    assert loop.limits() == MORE


async def test_an_end_is_in_the_next_view_and_of_that_run_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(280)
    loop.slurm.known_reservations = (
        ReservationView("maint", NOW_S + 300, 0, ("gpu01",), frozenset()),
    )
    await loop.turn(monkeypatch)
    assert loop.limits() == []
    await loop.cluster_state.turn()
    slots = loop.cluster_state.view.services[0].slots
    assert slots[0].ends_in_s == 280 - EARLY_S
    assert slots[0].ends_why == "reservation maint of gpu01 begins"
    assert slots[1].ends_in_s is None
    loop.left_s = 600
    await loop.turn(monkeypatch, NOW_S + 1)
    assert loop.cluster_state.view.services[0].slots[0].ends_in_s is None


async def test_the_site_may_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = settings().daemon.model_copy(update={"extend_leases": False})
    loop = Loop(280, settings().model_copy(update={"daemon": daemon}))
    await loop.turn(monkeypatch)
    await loop.cluster_state.turn()
    assert loop.limits() == []
    assert loop.cluster_state.view.services[0].slots[0].ends_in_s == 280 - EARLY_S


async def test_blind_the_loop_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(280)
    loop.slurm.failure = DOWN
    with pytest.raises(UnreachableError):
        await loop.turn(monkeypatch)
    await loop.leases.turn()
    assert loop.slurm.actions == []


def test_only_runs_with_a_limit_have_a_lease() -> None:
    def found(*jobs: JobView) -> list[Leased]:
        return list(leased(loop_services(), jobs, {814: frozenset({0})}, 0.0))

    ending = replace(RUN, end_s=NOW_S)
    assert [one.key for one in found(ending)] == [KEY]
    for other in (replace(ending, time_limit_s=None), replace(ending, state=JobState.COMPLETING)):
        assert found(other) == []


def loop_services() -> tuple[Any, ...]:
    said = {"name": "bert", "tenant": "vision"}
    return services(Observation(0.0, (RUN,), (), (), {814: said}), COSTS)
