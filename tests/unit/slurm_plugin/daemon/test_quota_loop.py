"""Tests the loop that lends and compiles, on a scripted Slurm: when it acts, and when not."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from builders.nodes import a_node
from builders.tenants import policy_of, tenant
from stand_ins import rebalance_world as stage
from stand_ins.rebalance_world import Calls, RebalanceLedger, Watched
from stand_ins.scripted import DOWN, SCRIPT, ScriptedLedger, ScriptedSlurm, job, settings, sync_of

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.slurm.asked import waited
from slicewise.cluster.language.slurm.interface import Association, JobChange, Qos, Target
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.daemon import quota_loop
from slicewise.slurm_plugin.daemon.quota_loop import QuotaLoop
from slicewise.slurm_plugin.quota_cycle import compile as compilation
from slicewise.slurm_plugin.quota_cycle import lend
from slicewise.slurm_plugin.quota_cycle.compile import Compiled, compile_in_turn
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.limits.desired import BILLING, Difference
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind
from slicewise.slurm_plugin.rules.quota.types import Budget, LimitKey, Loan, Recall
from slicewise.slurm_plugin.rules.round.round import RoundPlan, plan
from slicewise.slurm_plugin.rules.round.what_if import ImaginedRound
from slicewise.slurm_plugin.rules.round.world import World as RoundWorld
from slicewise.slurm_plugin.rules.round.world import world_of
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

NODE = a_node("gpu01")
VISION = tenant("vision", 4000, lending_limit_millislices=Millislices(4000))
NLP = tenant("nlp", 3000, borrowing_limit_millislices=Millislices(4000))


class World:
    """vision lends, nlp borrows, on seven slices."""

    def __init__(self, *jobs: JobView, mode: str = "enforce") -> None:
        self.slurm = ScriptedSlurm(*jobs)
        self.slurm.known_nodes = (NODE,)
        self.ledger = ScriptedLedger(shown=policy_of(VISION, NLP))
        self.cluster_state: ClusterState = sync_of(self.slurm, mode)
        self.limits = QuotaLoop(
            settings(mode),
            self.slurm,
            self.ledger,  # type: ignore[arg-type]
            self.cluster_state,
        )

    async def look(self, *jobs: JobView) -> None:
        self.slurm.shown = jobs
        await self.cluster_state.turn()


class Steady:
    """The loop's clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Slow(ScriptedSlurm):
    """Whose associations take a while to read."""

    def __init__(self, clock: Steady, took_s: float = 6.0) -> None:
        super().__init__()
        self.clock, self.took_s, self.looks = clock, took_s, 0
        self.shown_associations: tuple[Association, ...] = ()

    async def associations(self) -> tuple[Association, ...]:
        self.looks += 1
        self.clock.now_s += self.took_s
        waited(self.took_s)
        if self.failure is not None:
            raise self.failure
        return self.shown_associations


def running(account: str, count: int, *, is_own: bool = False) -> tuple[JobView, ...]:
    """Plain jobs of one slice each, on loan unless they run on the tenant's own quota."""
    whose = {"account": account, "qos": qos_name(account) if is_own else borrowed_qos(account)}
    view = job(0, JobState.RUNNING, **whose, array_job_id=None, admin_comment="")
    first = 10 * (1 + ord(account[0]))
    return tuple(replace(view, job_id=first + number) for number in range(count))


async def test_accounts_are_looked_at_again_once_in_a_while_however_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, world = Steady(), World()
    slurm = Slow(clock, took_s=0.1)
    monkeypatch.setattr(quota_loop, "time", clock)
    monkeypatch.setattr(quota_loop, "_uid", {"alice": 61001}.get)
    slurm.shown_associations = (
        Association("c", "vision", "alice", "", frozenset(), "", grp_tres={}),
    )
    limits = QuotaLoop(settings(), slurm, world.ledger, world.cluster_state)  # type: ignore[arg-type]
    await asyncio.gather(*(limits.see_accounts() for _ in range(5)))
    assert slurm.looks == 1
    assert world.cluster_state.quotas.accounts_by_uid == {61001: {"vision": frozenset()}}
    clock.now_s += 5
    slurm.failure = DOWN
    await limits.see_accounts()
    assert slurm.looks == 2
    assert world.cluster_state.quotas.accounts_by_uid == {61001: {"vision": frozenset()}}


async def test_users_who_are_refused_together_wait_for_one_look_however_slow_slurmdbd_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, world = Steady(), World()
    slurm = Slow(clock, took_s=6)
    monkeypatch.setattr(quota_loop, "time", clock)
    limits = QuotaLoop(settings(), slurm, world.ledger, world.cluster_state)  # type: ignore[arg-type]
    await asyncio.gather(*(limits.see_accounts() for _ in range(5)))
    assert (slurm.looks, clock.now_s) == (1, 6)
    clock.now_s += 23
    await limits.see_accounts()
    assert slurm.looks == 1
    clock.now_s += 1
    slurm.failure = DOWN
    await asyncio.gather(*(limits.see_accounts() for _ in range(5)))
    assert slurm.looks == 2


async def test_what_is_idle_is_lent_as_far_as_it_is_asked_for() -> None:
    world = World()
    await world.look(*running("nlp", 5), *running("vision", 1))
    await world.limits.compile()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
    assert world.ledger.marked == [7]


@pytest.mark.parametrize(("past_use", "to_nlp"), [(True, 0), (False, 2000)])
async def test_what_was_held_lately_counts_only_where_the_settings_say_so(
    *, past_use: bool, to_nlp: int
) -> None:
    world = World()
    borrower = {"borrowing_limit_millislices": Millislices(4000)}
    others = (tenant(name, 1000, **borrower) for name in ("audio", "nlp"))
    world.ledger.shown = policy_of(VISION, *others)
    lending = settings().lending.model_copy(update={"past_use": past_use})
    world.limits = QuotaLoop(
        settings().model_copy(update={"lending": lending}),
        world.slurm,
        world.ledger,  # type: ignore[arg-type]
        world.cluster_state,
        held_lately=lambda: {"nlp": 5000},
    )
    await world.look(*running("nlp", 5), *running("audio", 5))
    await world.limits.compile()
    lent = {one.borrower: one.amount_millislices for one in world.ledger.lent}
    assert (lent["audio"], lent.get("nlp", 0)) == (4000 - to_nlp, to_nlp)


async def test_who_does_not_start_on_a_loan_leaves_it_to_who_could(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its user may have left out all nodes where something is free: only Slurm sees that."""
    steady, world = Steady(), World()
    monkeypatch.setattr("time.monotonic", steady.monotonic)
    lender = replace(VISION.quota, lending_limit_millislices=Millislices(1000))
    borrowers = (
        tenant(name, 0, borrowing_limit_millislices=Millislices(4000)) for name in ("audio", "nlp")
    )
    world.ledger.shown = policy_of(replace(VISION, quota=lender), *borrowers)
    # Neither has waited so long that it has its turn.
    now_s = int(world.cluster_state.clock.now_s())
    older, newer = (
        replace(
            WAITS,
            job_id=nth,
            array_job_id=None,
            account=name,
            qos=f"slicewise_{name}_borrowed",
            submit_s=now_s + nth,
        )
        for nth, name in enumerate(("audio", "nlp"), 1)
    )
    found, over = [], []
    for after_s in (0, 20, 5, 275, 20, 15, 290):
        steady.now_s += after_s
        await world.look(older, newer)
        await world.limits.turn()
        found += [loan.borrower for loan in world.ledger.lent]
        over.append(set(world.cluster_state.first_until_s))
    assert over[:3] == [set(), set(), {1}], "it may also be that Slurm keeps nodes for others"
    assert found == [*["audio"] * 4, "nlp", "nlp", "audio"], "it is tried again"


async def test_nothing_is_lent_on_half_a_look() -> None:
    world = World()
    await world.look(*running("nlp", 5))
    world.slurm.failure = DOWN
    with pytest.raises(UnreachableError):
        await world.cluster_state.turn()
    with pytest.raises(UnreachableError):
        await world.limits.compile()
    assert world.ledger.lent == ()


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_only_in_mode_enforce_it_lends_or_compiles(mode: str) -> None:
    world = World(mode=mode)
    await world.look(*running("nlp", 5))
    await world.limits.compile()
    assert (world.ledger.lent, world.ledger.marked) == ((), [])
    assert [view.nominal_millislices for view in world.cluster_state.view.tenants] == [3000, 4000]


async def test_in_observe_it_says_what_it_would_lend_and_call_back() -> None:
    world, rounds = World(mode="observe"), list[ImaginedRound]()
    parts: Any = (world.slurm, world.ledger, world.cluster_state)
    limits = QuotaLoop(settings("observe"), *parts, on_imagined=rounds.append)
    await world.look(*running("nlp", 5), *running("vision", 1))
    await limits.compile()
    await world.look(*running("nlp", 5), *running("vision", 3))
    await limits.compile()
    first, second = rounds
    assert first.loans == (Loan("vision", "nlp", Millislices(2000)),)
    assert first.guaranteed == {"vision": 4000, "nlp": 3000}
    assert (first.idle, first.wanted) == ({"vision": 3000, "nlp": 0}, {"vision": 0, "nlp": 2000})
    assert second.loans == (Loan("vision", "nlp", Millislices(1000)),)
    assert (first.recalled, second.recalled) == ({}, {("vision", "nlp"): 1000})
    assert (world.ledger.lent, world.ledger.marked) == ((), [])


async def test_a_round_asks_the_ledger_a_few_times_and_not_for_each_thing_it_goes_by() -> None:
    world, calls = World(), Calls()
    ledger = Watched(world.ledger, calls)
    world.limits = QuotaLoop(settings("enforce"), world.slurm, ledger, world.cluster_state)  # type: ignore[arg-type]
    await world.look(*running("nlp", 5), *running("vision", 1))
    await world.limits.compile()
    # Beside the lock: one look, then what is lent, what is remembered, and that it is in force.
    assert calls.made == ["compiling", "view", "replace", "know", "mark_compiled"]
    world.ledger.compiled_id, calls.made = world.ledger.newest, []
    await world.limits.compile()
    # This Slurm never has the gate that it is told to make.
    assert calls.made == ["compiling", "view", "know"]


async def test_a_quiet_round_takes_jobs_and_nodes_from_the_last_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Steady()
    monkeypatch.setattr(quota_loop, "time", clock)
    world, calls = World(), Calls()
    slurm = Watched(world.slurm, calls)
    world.limits = QuotaLoop(settings("enforce"), slurm, world.ledger, world.cluster_state)  # type: ignore[arg-type]
    await world.look(*running("nlp", 5))
    await world.limits.compile()
    assert calls.made == ["associations", "qos", "config", "partitions"]
    calls.made = []
    await world.limits.compile()
    assert calls.made == ["associations", "qos"]
    clock.now_s += 120
    await world.limits.compile()
    assert calls.made[2:] == ["associations", "qos", "config", "partitions"]


class Site:
    """A lender and a borrower on a Slurm that takes limits; calls of a round are noted."""

    def __init__(self) -> None:
        self.leader = LeadsOrNot()
        self.slurm, self.ledger = stage.World(), RebalanceLedger()
        self.slurm.shown = ()
        self.of_slurm, self.of_ledger = Calls(), Calls()
        self.cluster_state = sync_of(self.slurm, "enforce")
        watched: Any = Watched(self.slurm, self.of_slurm), Watched(self.ledger, self.of_ledger)
        self.limits = QuotaLoop(stage.settings(), *watched, self.cluster_state, self.leader)  # type: ignore[arg-type]

    def set_nominal(self, slices: int) -> None:
        """Change the lender's."""
        self.ledger.newest += 1
        vision = self.ledger.shown["vision"]
        quota = replace(vision.quota, nominal_millislices=Millislices(1000 * slices))
        self.ledger.shown = {**self.ledger.shown, "vision": replace(vision, quota=quota)}

    async def round(self, *, looks: bool = True) -> tuple[list[str], list[str]]:
        """What it asks of Slurm and of the ledger, but for its lock."""
        self.of_slurm.made, self.of_ledger.made = [], []
        if looks:
            await self.cluster_state.turn()
        await self.limits.compile()
        self.ledger.compiled_id = self.ledger.newest
        asked = [name for name in self.of_ledger.made if name != "compiling"]
        return self.of_slurm.made, asked


async def test_a_busy_round_looks_again_only_at_what_it_has_changed() -> None:
    """Also at the borrower: a job may have started while the lender's QOS shrank."""
    site = Site()
    await site.round()
    assert await site.round() == (["associations", "qos"], ["view"])
    site.slurm.at(0)
    to_slurm, to_ledger = await site.round()
    # The last one has slurmctld schedule.
    assert to_slurm == ["associations", "qos", "set_limits", "jobs", "set_limits", "update"]
    assert to_ledger == ["view", "replace", "know", "know"]
    assert site.slurm.database.limits("vision", "nlp") == [3000, 3000, 0, 4000]
    assert await site.round() == (["associations", "qos"], ["view"])


async def test_where_limits_only_shrink_or_only_grow_it_asks_for_less() -> None:
    site = Site()
    for moment in (0, 60):
        site.slurm.at(moment)
        to_slurm, to_ledger = await site.round()
    assert to_slurm == ["associations", "qos", "set_limits"], "a loan is called back"
    assert to_ledger == ["view", "replace", "know", "know"]
    site.slurm.at(200)
    to_slurm, to_ledger = await site.round()
    assert to_slurm == ["associations", "qos", "set_limits"], "its lender has it again"
    assert to_ledger == ["view", "replace", "know", "know"]


@pytest.mark.parametrize("by_hand", [False, True])
async def test_nothing_grows_on_a_look_that_a_change_of_limits_may_have_overtaken(
    *, by_hand: bool
) -> None:
    """A job may have started before a QOS shrank, and the look not show it."""
    site = Site()
    for slices in (7, 5):
        site.set_nominal(slices)
        await site.round()
    site.set_nominal(6)
    if by_hand:
        await site.slurm.sacctmgr([("add", "qos", "debug", "grptres=billing=0")])
    to_slurm, _ = await site.round(looks=by_hand)
    assert to_slurm == ["associations", "qos", "jobs", "set_limits"]
    # This changes none, so what its look shows is as good as what another would.
    assert await site.round() == (["associations", "qos"], ["view"])
    site.set_nominal(7)
    to_slurm, _ = await site.round(looks=False)
    assert to_slurm == ["associations", "qos", "set_limits"]


async def test_who_leads_again_lets_nothing_grow_on_a_look_of_when_another_led() -> None:
    """That one may have let a limit grow, and shrink again."""
    site = Site()
    for slices in (7, 5, 5):
        site.set_nominal(slices)
        await site.round()
    for site.leader.now in (False, True):
        site.set_nominal(6)
        to_slurm, _ = await site.round()
    assert to_slurm == ["associations", "qos", "jobs", "set_limits"]


async def test_a_change_of_the_policy_costs_the_ledger_the_word_that_it_is_in_force() -> None:
    site = Site()
    await site.round()
    site.set_nominal(5)
    to_slurm, to_ledger = await site.round()
    assert to_slurm == ["associations", "qos", "set_limits"]
    assert to_ledger == ["view", "know", "know", "mark_compiled"]


async def test_what_a_hand_has_changed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def by_hand(*args: Any) -> Compiled:
        change = OutOfBandChange(LimitKey("qos", "slicewise_nlp", BILLING), "1000", "9000")
        return replace(await compile_in_turn(*args), out_of_band=(change, change))

    world = World()
    await world.look()
    await world.limits.compile()
    assert world.cluster_state.quotas.changed_by_hand == 0
    monkeypatch.setattr(quota_loop, "compile_in_turn", by_hand)
    await world.limits.compile()
    assert world.cluster_state.quotas.changed_by_hand == 2


async def test_a_limit_that_is_still_to_grow_is_told_of_and_not_in_force(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def all_but_one(*args: Any) -> Compiled:
        left = Difference(LimitKey("qos", "slicewise_nlp", BILLING), "0", "1000", "")
        return replace(await compile_in_turn(*args), waits=(left,))

    caplog.set_level("INFO")
    world = World()
    await world.look()
    with monkeypatch.context() as patched:
        patched.setattr(quota_loop, "compile_in_turn", all_but_one)
        await world.limits.compile()
    assert world.ledger.marked == []
    (told,) = (one.message for one in caplog.records if one.message.startswith("limit_waits"))
    assert told == 'limit_waits limit="qos slicewise_nlp grptres=billing: 0 to 1000"'
    await world.limits.compile()
    assert world.ledger.marked == [7]


async def test_nothing_new_nothing_done() -> None:
    world = World()
    await world.look()
    for _ in range(3):
        await world.limits.turn()
    assert world.ledger.marked == [7]


async def test_a_change_of_the_policy_is_compiled_at_once() -> None:
    world = World()
    await world.look()
    await world.limits.turn()
    world.ledger.newest = 8
    world.ledger.shown = policy_of(tenant("physics", 0), tenant("vision", 2500, "physics"))
    await world.limits.turn()
    assert world.ledger.marked == [7, 8]
    views = {view.name: view.nominal_millislices for view in world.cluster_state.view.tenants}
    assert views == {"physics": 2500, "vision": 2500}


async def test_what_slurm_refuses_does_not_keep_a_change_from_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object) -> None:
        raise OutsideError("SW-SLURM-FAILED", "no")

    world = World()
    await world.look()
    await world.limits.turn()
    world.ledger.newest, world.ledger.shown = 8, policy_of(tenant("physics", 1000))
    monkeypatch.setattr(world.slurm, "qos", refuse)
    with pytest.raises(OutsideError):
        await world.limits.turn()
    assert [view.name for view in world.cluster_state.view.tenants] == ["physics"]
    assert world.ledger.marked == [7]


async def test_by_the_calendar_it_is_compiled_at_once(clock: "Clock") -> None:
    world, begins_s = World(), int(NOW_S) + 2
    await world.look()
    await world.limits.turn()
    window = Window(1, "vision", WindowKind.NOMINAL, Millislices(2000), first_s=begins_s)
    world.ledger.calendar = (window,)
    for now_s, compiled in ((0, 2), (1, 2), (2, 3), (3, 3)):
        clock.now_s = NOW_S + now_s
        await world.limits.turn()
        assert len(world.ledger.marked) == compiled
    views = {view.name: view.nominal_millislices for view in world.cluster_state.view.tenants}
    assert views["vision"] == 2000


async def test_a_lender_that_needs_its_own_has_it_back_at_once() -> None:
    """From jobs that can't go in good order."""
    world = World()
    await world.look(*running("nlp", 5))
    await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
    own = running("vision", 2, is_own=True)
    await world.look(*running("nlp", 5), *own)
    await world.limits.turn()
    assert len(world.ledger.marked) == 1
    await world.look(*running("nlp", 5), *own, WAITS)
    await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(1000)),)
    assert len(world.ledger.marked) == 2
    await world.limits.turn()
    assert len(world.ledger.marked) == 2


async def test_a_lender_takes_nothing_back_for_a_job_that_its_own_part_never_fits() -> None:
    """Nobody would start on it: such a job waits for a loan, while what it can't use stays lent."""
    world = World()
    await world.look(*running("nlp", 5))
    await world.limits.turn()
    gpus = {"gres/gpu:1g.10gb": "7", "node": "1"}
    (runs,) = running("vision", 1)
    for qos in ("slicewise_vision", "slicewise_vision_borrowed"):
        large = replace(runs, state=JobState.PENDING, reason="QOSGrpBilling", tres=gpus, qos=qos)
        await world.look(*running("nlp", 5), large)
        await world.limits.turn()
        assert len(world.ledger.marked) == 1
        await world.limits.compile()
        assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
        world.ledger.marked.pop()


async def test_what_a_round_would_give_is_not_planned_all_the_time_where_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 50,000 jobs it takes a second, and a look comes every second."""
    clock, planned_s = Steady(), list[float]()
    world = World()
    await world.look(*running("nlp", 5))
    monkeypatch.setattr(quota_loop, "time", clock)
    await world.limits.turn()
    planned = lend.plan

    def slowly(inputs: RoundWorld) -> RoundPlan:
        planned_s.append(clock.now_s)
        clock.now_s += took_s
        return planned(inputs)

    monkeypatch.setattr(lend, "plan", slowly)
    took_s = 0.0625
    await world.limits.turn()
    assert planned_s == [0.0], "nothing is planned again on the same look"
    await world.limits.turn()
    took_s = 1.0
    for _ in range(6):
        await world.look(*running("nlp", 5))
        await world.limits.turn()
        clock.now_s += 0.5
    assert planned_s == [0.0, 0.0625, 2.0625, 4.0625], "half of the time is for others"


async def test_what_a_queue_lacks_is_lent_at_the_next_look() -> None:
    """A queue waited for the next of the regular rounds, for up to 15 s."""
    world = World()
    own = running("nlp", 3, is_own=True)
    await world.look(*own)
    await world.limits.turn()
    waits = replace(WAITS, account="nlp", qos=borrowed_qos("nlp"))
    await world.look(*own, waits)
    await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(1000)),)
    await world.look(*own)
    await world.limits.turn()
    assert world.ledger.lent, "what nobody uses is taken back by a regular round"


async def test_a_round_for_a_need_goes_by_the_plan_that_found_the_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 20,000 jobs each plan, and each look at what follows from them, took a good part of a
    second, and a round made four.
    """
    world, worlds, plans = World(), list[RoundWorld](), list[RoundWorld]()
    own = running("nlp", 3, is_own=True)
    waits = replace(WAITS, account="nlp", qos=borrowed_qos("nlp"))
    await world.look(*own)
    await world.limits.turn()

    def counted(*given: Any) -> RoundWorld:
        worlds.append(world_of(*given))
        return worlds[-1]

    def noted(inputs: RoundWorld) -> RoundPlan:
        plans.append(inputs)
        return plan(inputs)

    for module in (lend, compilation):
        monkeypatch.setattr(module, "world_of", counted)
    monkeypatch.setattr(lend, "plan", noted)
    await world.look(*own, waits)
    await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(1000)),)
    assert (len(worlds), len(plans)) == (1, 1)
    world.ledger.shown = policy_of(VISION, replace(NLP, quota=VISION.quota))
    await world.limits.compile()
    assert len(plans) == 2, "another policy is another plan"


async def test_what_fails_is_tried_again_at_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lender's guaranteed quota is back in the ledger by then: no tenant is short any more."""

    async def refuse(*_: object) -> None:
        raise OutsideError("SW-SLURM-FAILED", "no")

    world = World()
    await world.look(*running("nlp", 5))
    await world.limits.turn()
    await world.look(*running("nlp", 5), *running("vision", 2, is_own=True), WAITS)
    with monkeypatch.context() as patch:
        patch.setattr(quota_loop, "compile_in_turn", refuse)
        with pytest.raises(OutsideError):
            await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(1000)),)
    for _ in range(2):
        await world.limits.turn()
        assert len(world.ledger.marked) == 2


async def test_a_grant_counts_at_once() -> None:
    world = World()
    budget = Budget(Period.NONE, MillisliceSeconds(5))
    world.ledger.shown = policy_of(replace(VISION, budget=budget))
    await world.look()
    await world.limits.turn()
    grant = BudgetEntry("vision", "grant", 7, None, "olga", "for the deadline")
    world.ledger.budgets.enter(grant, None)
    for _ in range(2):
        await world.limits.turn()
    assert world.ledger.marked == [7, 7]


NOW_S = 5000.0
TAG = "slicewise:1 token=ab12 tenant=nlp service=bert"
REPLICAS = tuple(
    job(
        index,
        JobState.RUNNING,
        account="nlp",
        qos=borrowed_qos("nlp"),
        admin_comment=TAG,
        nodes=("gpu01",),
        start_s=1000 + index,
    )
    for index in range(2)
)
BACK = Recall("vision", "nlp", Millislices(1000), int(NOW_S))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = NOW_S
        monkeypatch.setattr(
            "slicewise.slurm_plugin.daemon.quota_loop.time.time", lambda: self.now_s
        )


class LeadsOrNot:
    now = True

    def leads(self) -> bool:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Lent(World):
    """Every slice is in use: two of vision's four by vision, two by replicas of nlp."""

    def __init__(self) -> None:
        super().__init__()
        self.slurm.script = SCRIPT.replace("vision", "nlp")
        self.slurm.known_nodes = (replace(NODE, gpus_allotted={"1g.10gb": 7}),)
        self.others = (*running("nlp", 3), *running("vision", 2))

    async def turn(self, *jobs: JobView, replicas: tuple[JobView, ...] = REPLICAS) -> None:
        await self.look(*self.others, *replicas, *jobs)
        await self.limits.turn()

    async def wanted(self) -> None:
        """What nlp borrows, vision's own job comes to want."""
        await self.turn()
        assert self.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
        await self.turn(WAITS)

    def told(self) -> list[int]:
        """Who must end, as the launcher sees it."""
        (service,) = self.cluster_state.view.services
        return [slot.index for slot in service.slots if slot.ends_in_s == 0]

    def tenant_limits(self) -> dict[str, int | None]:
        return {view.name: view.limit_millislices for view in self.cluster_state.view.tenants}


WAITS = job(
    7,
    account="vision",
    array_job_id=None,
    task_index=None,
    admin_comment="",
    reason="QOSGrpBilling",
    held=False,
)


async def test_the_launcher_sees_at_once_who_must_end() -> None:
    """Not at the next look, which takes seconds on a large cluster."""
    world = Lent()
    await world.wanted()
    assert world.told()


async def test_what_an_array_holds_back_itself_is_lent_until_it_may_start(clock: Clock) -> None:
    """Then it has its place back as every job has: in good order, within the grace."""
    world = Lent()
    throttled = replace(WAITS, reason="JobArrayTaskLimit", untouched=frozenset(range(1, 200)))
    await world.turn(throttled)
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
    may_start = replace(WAITS, untouched=frozenset(range(2, 200)))
    await world.turn(may_start)
    back = replace(BACK, amount_millislices=Millislices(2000))
    assert (world.ledger.lent, world.ledger.recalled) == ((), (back,))
    assert world.tenant_limits() == {"vision": 2000, "nlp": 3000}


async def test_what_replicas_hold_goes_from_the_borrower_first_and_then_to_the_lender(
    clock: Clock,
) -> None:
    world = Lent()
    await world.wanted()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(1000)),)
    assert world.ledger.recalled == (BACK,)
    world.cluster_state.pacing.begin()
    await world.turn(WAITS)
    assert world.cluster_state.pacing._stirred.is_set(), "the lender waits for looks that show it"
    compiled = len(world.ledger.marked)
    for _ in range(2):
        await world.turn(WAITS)
        assert world.tenant_limits() == {"vision": 2000, "nlp": 4000}
        assert len(world.told()) == 1
    assert len(world.ledger.marked) == compiled, "nothing new, nothing done"
    (gone,) = world.told()
    still = tuple(one for one in REPLICAS if one.task_index != gone)
    await world.turn(WAITS, replicas=still)
    await world.turn(WAITS, replicas=still)
    assert world.ledger.recalled == ()
    assert world.tenant_limits() == {"vision": 3000, "nlp": 4000}
    assert world.told() == []


async def test_who_goes_is_decided_anew_while_another_tenant_s_limit_has_to_wait(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a lender waits for the next regular round when a run that was told to go is another."""
    grows, needs = frozenset({(qos_name("audio"), 1000)}), quota_loop.needs
    monkeypatch.setattr(quota_loop, "needs", lambda *seen: replace(needs(*seen), limits=grows))
    world = Lent()
    await world.wanted()
    for _ in range(3):
        await world.turn(WAITS)
    (gone,) = world.told()
    anew = replace(REPLICAS[gone], start_s=4000)
    for _ in range(2):
        await world.turn(WAITS, replicas=(anew, REPLICAS[1 - gone]))
    assert len(world.told()) == 1
    assert world.ledger.recalled == (BACK,)


async def test_nobody_goes_for_a_job_that_is_gone_while_rounds_rest(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a slow one for up to a minute."""
    world = Lent()
    await world.wanted()
    await world.turn(WAITS)
    assert len(world.told()) == 1
    monkeypatch.setattr(quota_loop, "is_due", lambda *_: False)
    for _ in range(2):
        await world.turn()
    assert world.told() == []
    assert world.ledger.recalled == (BACK,)


async def test_its_other_slots_wait_until_the_lender_s_job_has_started(clock: Clock) -> None:
    world = Lent()
    await world.wanted()
    await world.turn(WAITS)
    (gone,) = world.told()
    world.slurm.known_nodes = (replace(NODE, gpus_allotted={"1g.10gb": 6}),)
    for _ in range(2):
        await world.turn(WAITS, replicas=(REPLICAS[1 - gone],))
        assert (world.ledger.recalled, world.cluster_state.evictions.has_waiting) == ((), True)
    await world.turn(replace(WAITS, state=JobState.RUNNING), replicas=(REPLICAS[1 - gone],))
    assert not world.cluster_state.evictions.has_waiting


async def test_what_is_completing_is_not_the_lender_s_yet(clock: Clock) -> None:
    """Slurm shows its slice as free: it would preempt another one, rather than wait for it."""
    world = Lent()
    await world.wanted()
    await world.turn(WAITS)
    (gone,) = world.told()
    world.slurm.known_nodes = (replace(NODE, gpus_allotted={"1g.10gb": 6}),)
    ending = replace(REPLICAS[gone], state=JobState.COMPLETING)
    for _ in range(2):
        await world.turn(WAITS, replicas=(ending, REPLICAS[1 - gone]))
    assert world.ledger.recalled == (BACK,)
    assert (world.tenant_limits()["vision"], world.told()) == (2000, [])


async def test_after_the_grace_the_lender_has_it_whoever_holds_it(clock: Clock) -> None:
    world = Lent()
    await world.wanted()
    clock.now_s += settings().lending.grace_s - 1
    await world.turn(WAITS)
    assert world.ledger.recalled == (BACK,)
    clock.now_s += 1
    await world.turn(WAITS)
    await world.turn(WAITS)
    assert world.ledger.recalled == ()
    assert world.tenant_limits() == {"vision": 3000, "nlp": 4000}


async def test_of_a_stream_of_jobs_each_recall_has_its_own_grace(clock: Clock) -> None:
    world = Lent()
    await world.turn()
    first, second = (
        replace(WAITS, job_id=number, eligible_s=int(NOW_S) + after_s)
        for number, after_s in ((7, 0), (8, 50))
    )
    await world.turn(first)
    clock.now_s += 50
    await world.turn(first, second)
    assert len(world.ledger.recalled) == 2
    started = replace(first, state=JobState.RUNNING, qos="slicewise_vision", nodes=("gpu01",))
    for later_s in (5, 15):
        clock.now_s += later_s
        await world.turn(started, second, replicas=REPLICAS[:1])
        assert world.ledger.recalled == (replace(BACK, called_s=int(NOW_S) + 50),)


async def test_the_next_daemon_goes_on_where_it_was_killed(clock: Clock) -> None:
    world = Lent()
    await world.wanted()
    clock.now_s += 20
    after = Lent()
    after.ledger = world.ledger
    after.limits = QuotaLoop(settings(), after.slurm, world.ledger, after.cluster_state)  # type: ignore[arg-type]
    for _ in range(2):
        await after.turn(WAITS)
    assert world.ledger.recalled == (BACK,)
    assert len(after.told()) == 1


async def test_who_wants_it_no_more_lets_it_be(clock: Clock) -> None:
    world = Lent()
    await world.wanted()
    for _ in range(2):
        await world.turn()
    assert (world.ledger.recalled, world.told()) == ((), [])
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)


async def test_nobody_is_told_before_the_limits_are_in_slurm(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others of the borrower would start in place of those that go."""

    async def refuse(*_: object) -> None:
        raise OutsideError("SW-SLURM-FAILED", "no")

    world = Lent()
    await world.turn()
    with monkeypatch.context() as patch:
        patch.setattr(quota_loop, "compile_in_turn", refuse)
        for _ in range(2):
            with pytest.raises(OutsideError):
                await world.turn(WAITS)
    assert world.ledger.recalled == (BACK,)
    await world.look(*world.others, *REPLICAS, WAITS)
    assert world.told() == []
    await world.turn(WAITS)
    await world.turn(WAITS)
    assert len(world.told()) == 1


async def test_on_half_a_look_nobody_is_told(clock: Clock) -> None:
    world = Lent()
    await world.turn()
    world.slurm.failure = DOWN
    with pytest.raises(UnreachableError):
        await world.look(*world.others, *REPLICAS, WAITS)
    await world.limits.turn()
    assert world.ledger.recalled == ()


async def test_of_a_plan_that_was_made_nobody_is_told_on_half_a_look(clock: Clock) -> None:
    """Whom it names may have ended, and others hold what was to be given back."""
    world = Lent()
    await world.turn()
    await world.look(*world.others, *REPLICAS, WAITS)
    await world.limits.compile()
    world.slurm.failure = DOWN
    with pytest.raises(UnreachableError):
        await world.cluster_state.turn()
    await world.limits.turn()
    world.slurm.failure = None
    await world.look(*world.others, *REPLICAS, WAITS)
    assert world.told() == []
    await world.limits.turn()
    await world.look(*world.others, *REPLICAS, WAITS)
    assert len(world.told()) == 1


def cut_by_an_operator(world: World) -> None:
    """As ``tenant-quota set`` leaves the ledger."""
    world.ledger.lent, world.ledger.recalled = (Loan("vision", "nlp", Millislices(1000)),), (BACK,)
    lends_less = tenant("vision", 4000, lending_limit_millislices=Millislices(1000))
    world.ledger.newest, world.ledger.shown = 8, policy_of(lends_less, NLP)


async def test_a_loan_that_an_operator_has_cut_comes_back_in_good_order_too(clock: Clock) -> None:
    world = Lent()
    await world.turn()
    cut_by_an_operator(world)
    for _ in range(2):
        await world.turn(WAITS)
        assert world.ledger.recalled == (BACK,)
        assert world.tenant_limits() == {"vision": 2000, "nlp": 4000}
    await world.look(*world.others, *REPLICAS, WAITS)
    assert len(world.told()) == 1


async def test_what_a_rule_cuts_off_a_loan_to_batch_jobs_is_back_at_once(clock: Clock) -> None:
    """They are not asked to go: the lender would wait for nothing."""
    world = World()
    await world.look(*running("nlp", 5))
    await world.limits.turn()
    cut_by_an_operator(world)
    await world.limits.turn()
    assert world.ledger.recalled == ()
    views = {view.name: view.limit_millislices for view in world.cluster_state.view.tenants}
    assert views == {"vision": 3000, "nlp": 4000}


async def test_beyond_a_cap_replicas_go_though_nobody_waits(clock: Clock) -> None:
    world = Lent()
    await world.turn()
    assert world.told() == []
    world.ledger.calendar = (Window(1, "nlp", WindowKind.CAP, Millislices(4000)),)
    world.ledger.shown = policy_of(
        tenant("vision", 4000, lending_limit_millislices=Millislices(4000)),
        tenant("nlp", 3000, borrowing_limit_millislices=Millislices(1000)),
    )
    for _ in range(2):
        await world.turn()
    assert len(world.told()) == 1


async def test_who_lends_anew_on_an_older_look_does_not_cut_the_grace_short(clock: Clock) -> None:
    """``slicewise rebalance`` may have looked before the lender's job came."""
    world = Lent()
    await world.wanted()
    world.ledger.loans.replace((Loan("vision", "nlp", Millislices(2000)),), "", ())
    for _ in range(2):
        await world.turn(WAITS)
        assert world.ledger.recalled == (BACK,)
        assert world.tenant_limits() == {"vision": 2000, "nlp": 4000}


async def test_without_slurmdbd_nothing_is_called_and_no_grace_begins(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both limits would move at once when it is back after the grace, and Slurm preempt."""

    async def away() -> None:
        raise DOWN

    world = Lent()
    await world.turn()
    with monkeypatch.context() as patch:
        patch.setattr(world.slurm, "qos", away)
        for later_s in (0, settings().lending.grace_s):
            clock.now_s = NOW_S + later_s
            with pytest.raises(UnreachableError):
                await world.turn(WAITS)
            assert world.ledger.recalled == ()
    for _ in range(2):
        await world.turn(WAITS)
        assert world.ledger.recalled == (replace(BACK, called_s=int(clock.now_s)),)
        assert world.tenant_limits() == {"vision": 2000, "nlp": 4000}


async def test_a_slurmdbd_that_is_slow_takes_nothing_of_the_grace(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sees the need plans, too: before slurmdbd is asked."""
    world = Lent()
    shown = world.slurm.qos

    async def slow() -> tuple[Qos, ...]:
        clock.now_s += 50
        return await shown()

    await world.turn()
    monkeypatch.setattr(world.slurm, "qos", slow)
    await world.turn(WAITS)
    assert world.ledger.recalled == (replace(BACK, called_s=int(NOW_S) + 50),)


async def test_the_grace_begins_once_whatever_slurm_refuses(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise OutsideError("SW-SLURM-FAILED", "no")

    world = Lent()
    await world.turn()
    monkeypatch.setattr(quota_loop, "compile_in_turn", refuse)
    for _ in range(2):
        with pytest.raises(OutsideError):
            await world.turn(WAITS)
    assert world.ledger.recalled == (BACK,)
    clock.now_s += settings().lending.grace_s
    with pytest.raises(OutsideError):
        await world.turn(WAITS)
    assert world.ledger.recalled == ()


async def test_who_leads_again_recalls_nothing_for_the_loans_of_then(clock: Clock) -> None:
    world, leader = Lent(), LeadsOrNot()
    world.limits = QuotaLoop(settings(), world.slurm, world.ledger, world.cluster_state, leader)  # type: ignore[arg-type]
    await world.turn()
    leader.now = False
    await world.turn(WAITS)
    world.ledger.lent = (Loan("vision", "nlp", Millislices(1000)),)
    leader.now = True
    await world.turn(WAITS)
    assert world.ledger.recalled == ()
    assert world.tenant_limits() == {"vision": 3000, "nlp": 4000}


async def test_what_slurmdbd_is_slow_to_show_is_not_asked_for_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = Steady()
    monkeypatch.setattr(quota_loop, "time", clock)
    world = World()
    slurm = Slow(clock)
    limits = QuotaLoop(settings("enforce"), slurm, world.ledger, sync_of(slurm))  # type: ignore[arg-type]
    slurm.known_nodes = (NODE,)
    await limits.turn()
    looks, taken_s = slurm.looks, clock.now_s
    clock.now_s = taken_s + 4 * taken_s - 1
    await limits.turn()
    assert slurm.looks == looks
    clock.now_s += 2
    await limits.turn()
    assert slurm.looks > looks


async def test_of_a_slow_database_rounds_take_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
):
    """One that takes 5 s for a statement had one round after the other, with the turn to itself."""
    clock, world = Steady(), World()
    monkeypatch.setattr(quota_loop, "time", clock)
    busy_s, view = list[float](), quota_loop.ledger_view_now

    def slow(*words: Any) -> LedgerView:
        clock.now_s += 30.0
        busy_s.append(30.0)
        return view(*words)

    monkeypatch.setattr(quota_loop, "ledger_view_now", slow)
    for round_ in range(200):
        # At each look others want what is lent to them.
        own = running("vision", round_ % 4)
        await world.look(*running("nlp", 5), *own)
        await world.limits.turn()
        clock.now_s += 1.0
    assert sum(busy_s) <= 0.6 * clock.now_s


async def test_one_very_slow_look_keeps_loans_waiting_for_a_minute_at_most(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = Steady()
    monkeypatch.setattr(quota_loop, "time", clock)
    slurm = Slow(clock, took_s=40.0)
    limits = QuotaLoop(settings("enforce"), slurm, ScriptedLedger(), sync_of(slurm))  # type: ignore[arg-type]
    await limits.turn()
    looks = slurm.looks
    for later_s, more in ((59.0, False), (2.0, True)):
        clock.now_s += later_s
        await limits.turn()
        assert (slurm.looks > looks) == more


async def test_waiting_for_another_one_that_compiles_is_no_reason_to_rest(
    monkeypatch: pytest.MonkeyPatch,
):
    """One that hangs was waited for for a minute; then nothing was lent for four more."""
    clock = Steady()
    monkeypatch.setattr(quota_loop, "time", clock)

    @asynccontextmanager
    async def late(ledger: object) -> AsyncIterator[None]:
        clock.now_s += 30.0
        yield

    monkeypatch.setattr(quota_loop, "compile_turn", late)
    slurm = Slow(clock, took_s=0.0)
    limits = QuotaLoop(settings("enforce"), slurm, ScriptedLedger(), sync_of(slurm))  # type: ignore[arg-type]
    await limits.turn()
    looks = slurm.looks
    clock.now_s += 16.0
    await limits.turn()
    assert slurm.looks > looks


async def test_after_an_uninstall_the_daemon_goes_on_and_says_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sets and lends nothing, and what is submitted passes, as where it only observes."""
    caplog.set_level("INFO")
    world = World()
    world.slurm.known_nodes = (replace(NODE, weight=1_000_072),)
    with_gate = world.slurm.qos
    monkeypatch.setattr(world.slurm, "qos", no_qos)
    world.ledger.mark_uninstalled()
    await world.look(*running("nlp", 5), *running("vision", 1))
    for _ in range(3):
        await world.limits.compile()
    assert sum("SW-UNINSTALLED" in one for one in caplog.messages) == 1
    assert (world.ledger.lent, world.ledger.marked) == ((), [])
    assert world.slurm.actions == [("weigh_nodes", {NODE.name: 7})]
    assert not world.cluster_state.acts
    assert world.cluster_state.snapshot is not None
    assert world.cluster_state.snapshot.is_uninstalled

    world.ledger.compiled_id = 0
    monkeypatch.setattr(world.slurm, "qos", with_gate)
    await world.limits.compile()
    assert world.cluster_state.acts
    assert not world.cluster_state.snapshot.is_uninstalled
    assert world.ledger.marked == [7]


async def test_what_slurm_does_not_move_after_an_uninstall_is_tried_again_in_some_minutes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    clock = Steady()
    monkeypatch.setattr(quota_loop, "time", clock)
    world = World()
    own = Qos("slicewise_vision", {"billing": 3000}, frozenset())
    borrowed = Qos("slicewise_vision_borrowed", {"billing": 0}, frozenset())
    tried: list[object] = []

    async def both() -> tuple[Qos, ...]:
        return own, borrowed

    async def refusing(changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        tried.extend(changes)
        return dict.fromkeys(changes, "Invalid qos specification")

    monkeypatch.setattr(world.slurm, "qos", both)
    monkeypatch.setattr(world.slurm, "update", refusing)
    world.ledger.mark_uninstalled()
    waits = job(0, qos=borrowed.name, array_job_id=None, task_index=None)
    await world.look(waits)
    for _ in range(3):
        clock.now_s += 16.0
        await world.limits.turn()
    assert tried == [waits.job_id]
    (told,) = [one for one in caplog.messages if "qos_moved" in one]
    assert "jobs=0 refused=1" in told
    clock.now_s += 300.0
    await world.limits.turn()
    assert tried == [waits.job_id] * 2


async def test_after_an_uninstall_slots_avoid_no_node_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    world = World()
    monkeypatch.setattr(world.slurm, "qos", no_qos)
    world.ledger.mark_uninstalled()
    plain = job(0)
    world.slurm.excluded = {plain.job_id: frozenset({"gpu01"})}
    await world.look(replace(plain, admin_comment=f"{plain.admin_comment} avoids=gpu01"))
    world.slurm.done.clear()
    await world.limits.turn()
    change = JobChange(excluded_nodes=frozenset(), admin_comment=plain.admin_comment)
    assert (f"update {change}", [0]) in world.slurm.actions
    (told,) = [one for one in caplog.messages if "ExcNodeList" in one]
    assert told.startswith("uninstall_step scontrol=")


async def no_qos() -> tuple[Qos, ...]:
    """There is none of Slicewise's any more."""
    return ()


async def test_a_clock_that_is_set_changes_no_hour_of_the_calendar_and_no_budget(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    await world.look(*running("nlp", 5))
    await world.limits.compile()
    read_at_s: list[float] = []
    ledger_view = world.ledger.view

    def noted(at_s: float, zone: str) -> LedgerView:
        read_at_s.append(at_s)
        return ledger_view(at_s, zone)

    monkeypatch.setattr(world.ledger, "view", noted)
    clock.now_s = NOW_S + 365 * 86_400
    await world.limits.compile()
    assert read_at_s != []
    assert [at_s for at_s in read_at_s if abs(at_s - NOW_S) > 60] == []
    assert abs(world.cluster_state.clock.shown_s - NOW_S) < 60


async def test_who_is_in_a_look_that_stays_the_newest_has_not_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slurm may have started the job: where much waits, it is slow to show it. While quota is
    recalled, the daemon plans between looks, too.
    """
    now_s, world = [100.0], Lent()
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    world.ledger.shown = policy_of(VISION, NLP, tenant("audio", 3500))
    world.slurm.known_nodes = (*world.slurm.known_nodes, a_node("gpu02", gpus={"3g.40gb": 1}))
    whose = {"account": "audio", "qos": borrowed_qos("audio")}
    waits = replace(WAITS, job_id=8, tres={"gres/gpu:3g.40gb": "1"}, **whose)
    await world.turn(waits)
    await world.turn(waits, WAITS)
    now_s[0] += 6
    await world.limits.turn()
    assert (world.ledger.recalled, world.cluster_state.first_until_s) == ((BACK,), {})
    await world.turn(waits, WAITS)
    assert set(world.cluster_state.first_until_s) == {8}


AUDIO = tenant("audio", 0, borrowing_limit_millislices=Millislices(4000), weight=1)
"""A tenant without quota, and with less weight than nlp, that wants all that is idle."""
SLOTS = tuple(
    job(index, account="nlp", qos=borrowed_qos("nlp"), admin_comment=TAG) for index in range(2)
)


async def served(world: World, *jobs: JobView) -> None:
    """The launcher wants both slots of nlp's service while these jobs are there."""
    world.slurm.script = SCRIPT.replace("vision", "nlp")
    await world.look(*SLOTS, *jobs)
    await world.limits.turn()
    after = world.cluster_state.desired_slots_versions[814]
    await world.cluster_state.set_desired_slots(814, frozenset({0, 1}), after=after)


def lent(world: World) -> dict[str, int]:
    return {loan.borrower: loan.amount_millislices for loan in world.ledger.lent}


async def test_what_comes_free_is_lent_to_slots_that_quota_kept_back_and_not_to_others_alone() -> (
    None
):
    """Others had it all when a tenant's own job ended, a moment before the launcher released the
    slots that were waiting for it: they stood behind jobs of less weight then, for as long as these
    ran.
    """
    world = World()
    nlp = tenant("nlp", 3000, borrowing_limit_millislices=Millislices(3000), weight=10)
    world.ledger.shown = policy_of(VISION, nlp, AUDIO)
    own, on_loan = running("nlp", 3, is_own=True), running("nlp", 6)[3:]
    waits = [
        replace(WAITS, job_id=70 + nth, account="audio", qos=borrowed_qos("audio"))
        for nth in range(4)
    ]
    await served(world, *own, *on_loan, *waits)
    assert world.cluster_state.kept_back == {814: frozenset({0, 1})}
    await world.limits.turn()
    assert lent(world) == {"nlp": 3000, "audio": 1000}
    await world.look(*SLOTS, *own, *waits)
    await world.limits.compile()
    assert lent(world) == {"nlp": 2000, "audio": 2000}


async def test_slots_of_a_launcher_that_is_silent_are_lent_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would release them, so the loan would lie idle."""
    world = World()
    own, on_loan = running("nlp", 3, is_own=True), running("nlp", 7)[3:]
    await served(world, *own, *on_loan)
    world.cluster_state.heard_s -= 3600
    await world.look(*SLOTS, *own)
    await world.limits.compile()
    assert world.ledger.lent == ()


async def test_a_slot_about_to_be_released_in_its_own_qos_finds_the_limit_there() -> None:
    """The borrowed QOS got the slice that came free in the own one, and the slot, released in the
    own QOS, waited for one more round.
    """
    world = World()
    nlp = tenant("nlp", 3000, borrowing_limit_millislices=Millislices(3000), weight=10)
    world.ledger.shown = policy_of(VISION, nlp)
    own, on_loan = running("nlp", 3, is_own=True), running("nlp", 6)[3:]
    await served(world, *own, *on_loan)
    await world.look(*SLOTS, *own[1:], *on_loan)
    await world.limits.compile()
    standing = world.cluster_state.quotas.standings["nlp"]
    assert standing.own_qos_limit_millislices == 3000
    assert standing.borrowed_qos_limit_millislices == 3000


async def test_a_guarantee_without_more_of_their_type_is_lent_for_all_slots_kept_back() -> None:
    world = World()
    keeps = tenant(
        "nlp",
        3000,
        lending_limit_millislices=Millislices(3000),
        type_nominals={"1g.10gb": 1},
    )
    audio = tenant("audio", 0, borrowing_limit_millislices=Millislices(7000))
    world.ledger.shown = policy_of(VISION, keeps, audio)
    own = running("nlp", 1, is_own=True)
    waits = [
        replace(WAITS, job_id=70 + nth, account="audio", qos=borrowed_qos("audio"))
        for nth in range(6)
    ]
    await served(world, *own, *waits)
    assert world.cluster_state.kept_back == {814: frozenset({0, 1})}
    await world.limits.compile()
    assert sum(loan.amount_millislices for loan in world.ledger.lent) == 6000
