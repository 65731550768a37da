"""Property: after any kills and failures a repartition ends as planned or as before."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stand_ins.repartition_world import (
    Crashes,
    Killed,
    MemoryJournal,
    RepartitionWorld,
    planned,
    run,
)

from slicewise.cluster.language.gpus.repartitions import (
    RepartitionState,
)

_ENDS = {RepartitionState.DONE, RepartitionState.ROLLED_BACK}
_FAILING = (
    "reserve",
    "undrain",
    "node",
    "inventory",
    "cut",
    "write gres.conf",
    "write slurm.conf",
    "restart_controller",
    "restart_node",
    "release",
    "drain",
    "put_back",
    "put_told",
)


@dataclass(frozen=True)
class Life:
    """One process: at which call it dies, what fails meanwhile, whether its reservation lapses."""

    kill_at: int
    after: bool
    fail: dict[str, int]
    lapses: bool


LIVES = st.builds(
    Life,
    kill_at=st.integers(1, 45),
    after=st.booleans(),
    fail=st.dictionaries(st.sampled_from(_FAILING), st.integers(1, 2), max_size=2),
    lapses=st.booleans(),
)


# Stuck, and taken up after its files were put back: Slurm has read others by then.
@example(
    lives=[
        Life(23, after=False, fail={}, lapses=False),
        Life(25, after=False, fail={"restart_controller": 2}, lapses=False),
    ]
)
@settings(max_examples=examples(100, nightly=3000), deadline=None)
@given(lives=st.lists(LIVES, min_size=1, max_size=4))
def test_it_ends_as_planned_or_as_before_and_the_node_takes_jobs(lives: list[Life]) -> None:
    asyncio.run(lived(lives))


async def lived(lives: list[Life]) -> None:
    crashes = Crashes()
    journal = MemoryJournal(crashes)
    repartition = journal.open(planned(), "root")
    world = RepartitionWorld(crashes)
    for number, life in enumerate(lives):
        crashes.kill_at = len(crashes.calls) + life.kill_at
        crashes.after, crashes.fail = life.after, dict(life.fail)
        with suppress(Killed):
            await unless_ended(world, journal, taken_up=number > 0)
        if life.lapses and journal.find(repartition.repartition_id).state not in _ENDS:
            world.lapse()
    crashes.kill_at, crashes.fail = 0, {}
    world.running.pop(world.intruder, None)
    await unless_ended(world, journal, taken_up=True)
    ended = journal.find(repartition.repartition_id)
    assert ended.state in _ENDS
    assert world.is_after() if ended.state is RepartitionState.DONE else world.is_before()
    assert not world.reserved
    assert not world.drained


async def unless_ended(world: RepartitionWorld, journal: MemoryJournal, *, taken_up: bool) -> None:
    if journal.find(1).state not in _ENDS:
        await run(world, journal, taken_up=taken_up)
