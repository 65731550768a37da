"""The loop that lends and compiles, on a scripted Slurm: when it does, and what it leaves alone."""

from dataclasses import replace

import pytest
from scripted import (
    DOWN,
    ScriptedLedger,
    ScriptedSlurm,
    job,
    policy_of,
    settings,
    sync_of,
    tenant,
)

from cluster.errors import OutsideError, UnreachableError
from cluster.jobs import JobState, JobView, NodeView
from cluster.units import Millislices, MillisliceSeconds
from slurm_plugin.decide.model import BudgetEntry
from slurm_plugin.decide.policy import Budget, Loan, Period
from slurm_plugin.enforcement import Enforcement
from slurm_plugin.sync import Sync

NODE = NodeView(
    "gpu01", "10.0.0.1", frozenset({"IDLE"}), {"1g.10gb": 7}, {}, partitions=frozenset({"gpu"})
)
VISION = tenant("vision", 4000, lending_limit_millislices=Millislices(4000))
NLP = tenant("nlp", 3000, borrowing_limit_millislices=Millislices(4000))


class World:
    """vision lends, nlp borrows, on seven slices."""

    def __init__(self, *jobs: JobView, mode: str = "enforce") -> None:
        self.slurm = ScriptedSlurm(*jobs)
        self.slurm.known_nodes = (NODE,)
        self.ledger = ScriptedLedger(shown=policy_of(VISION, NLP))
        self.sync: Sync = sync_of(self.slurm, mode)
        self.limits = Enforcement(
            settings(mode),
            self.slurm,
            self.ledger,  # type: ignore[arg-type]
            self.sync,
        )

    async def look(self, *jobs: JobView) -> None:
        self.slurm.shown = jobs
        await self.sync.turn()


def running(account: str, count: int) -> tuple[JobView, ...]:
    """Plain jobs of one slice each."""
    view = job(0, JobState.RUNNING, account=account, array_job_id=None, admin_comment="")
    first = 10 * (1 + ord(account[0]))
    return tuple(replace(view, job_id=first + number) for number in range(count))


async def test_what_is_idle_is_lent_as_far_as_it_is_asked_for() -> None:
    world = World()
    await world.look(*running("nlp", 5), *running("vision", 1))
    await world.limits.compile()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
    assert world.ledger.marked == [7]


async def test_nothing_is_lent_on_half_a_look() -> None:
    world = World()
    await world.look(*running("nlp", 5))
    world.slurm.failure = DOWN
    with pytest.raises(UnreachableError):
        await world.sync.turn()
    await world.limits.compile()
    assert world.ledger.lent == ()


@pytest.mark.parametrize("mode", ["observe", "advise"])
async def test_only_in_mode_enforce_it_lends_or_compiles(mode: str) -> None:
    world = World(mode=mode)
    await world.look(*running("nlp", 5))
    await world.limits.compile()
    assert (world.ledger.lent, world.ledger.marked) == ((), [])
    assert [view.nominal_millislices for view in world.sync.view.tenants] == [3000, 4000]


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
    views = {view.name: view.nominal_millislices for view in world.sync.view.tenants}
    assert views == {"physics": 0, "vision": 2500}


async def test_what_slurm_refuses_does_not_keep_a_change_from_admission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse() -> None:
        raise OutsideError("SW-SLURM-FAILED", "no")

    world = World()
    await world.look()
    await world.limits.turn()
    world.ledger.newest, world.ledger.shown = 8, policy_of(tenant("physics", 1000))
    monkeypatch.setattr(world.slurm, "qos", refuse)
    with pytest.raises(OutsideError):
        await world.limits.turn()
    assert [view.name for view in world.sync.view.tenants] == ["physics"]
    assert world.ledger.marked == [7]


async def test_a_lender_that_needs_its_own_has_it_back_at_once() -> None:
    world = World()
    await world.look(*running("nlp", 5))
    await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(2000)),)
    await world.look(*running("nlp", 5), *running("vision", 2))
    await world.limits.turn()
    assert len(world.ledger.marked) == 1
    await world.look(*running("nlp", 5), *running("vision", 3))
    await world.limits.turn()
    assert world.ledger.lent == (Loan("vision", "nlp", Millislices(1000)),)
    assert len(world.ledger.marked) == 2
    await world.limits.turn()
    assert len(world.ledger.marked) == 2


async def test_a_grant_counts_at_once() -> None:
    world = World()
    budget = Budget(Period.NONE, MillisliceSeconds(5))
    world.ledger.shown = policy_of(replace(VISION, budget=budget))
    await world.look()
    await world.limits.turn()
    grant = BudgetEntry("vision", "grant", 7, None, "olga", "for the deadline")
    world.ledger.book_budget(grant, None)
    for _ in range(2):
        await world.limits.turn()
    assert world.ledger.marked == [7, 7]
