"""Property: after any kills the next run does the rest, and nothing twice."""

import pickle
from contextlib import suppress

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_ins.rebalance_world import (
    AMOUNT,
    BEGAN_S,
    MIDNIGHT_S,
    STAGES,
    Calls,
    Story,
    changed,
    record,
)
from stand_ins.repartition_world import Killed

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.rebalances import RunOutcome

pytestmark = pytest.mark.usefixtures("clock")

_CALLS = 90
"""More than any run makes."""


def lived(story: Story, kill_at: int, *, after: bool) -> Calls:
    calls = Calls(kill_at, after)
    with suppress(Killed):
        story.run(calls)
    return calls


KILLS = st.lists(st.tuples(st.integers(1, _CALLS), st.booleans()), max_size=3)


@settings(max_examples=examples(30, nightly=800), deadline=None)
@given(st.lists(KILLS, min_size=len(STAGES), max_size=len(STAGES)))
def test_whatever_dies_on_the_way_all_is_booked_once_and_slurm_has_it(
    kills: list[list[tuple[int, bool]]],
) -> None:
    story = Story()
    for stage, deaths in zip(STAGES, kills, strict=True):
        story.world.at(stage)
        for kill_at, after in deaths:
            lived(story, kill_at, after=after)
    ended = story.run()
    assert ended.outcome is RunOutcome.DONE, ended
    assert changed(story.run()) == {}
    assert used(story) == allotted(story)
    assert rolled(story) in ([MIDNIGHT_S], [MIDNIGHT_S - 86_400, MIDNIGHT_S])
    assert story.ledger.budgets.balances()["nlp"].granted >= AMOUNT
    limits = {name: story.world.held_at_most(name) for name in ("nlp", "vision")}
    assert limits == {"nlp": 3000, "vision": 7000}


def used(story: Story) -> dict[tuple[int, int], int]:
    """Millislice-seconds of each run that has ended, by the ledger."""
    rows = story.ledger.audit.statement(None, 0, int(story.world.now_s)).rows
    ended = (row for row in rows if row.end_s is not None)
    return {(row.run.key.job_id, row.run.key.start_s): row.used_millislice_s for row in ended}


def allotted(story: Story) -> dict[tuple[int, int], int]:
    """The same, by accounting."""
    runs = (record(one) for one in story.world.shown if one.state is JobState.ENDED)
    return {
        (run.job_id, run.start_s): 1000 * (run.end_s - run.start_s)
        for run in runs
        if run.end_s is not None
    }


def read(kept: bytes) -> Story:
    story: Story = pickle.loads(kept)  # noqa: S301 -- our own
    return story


def rolled(story: Story) -> list[int | None]:
    return [one.period_start_s for one in story.ledger.entered if one.kind == "roll"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stage", [60, 700])
def test_a_death_at_any_call_changes_nothing_of_the_end(stage: int, after: bool) -> None:
    before = Story()
    for earlier in STAGES:
        before.world.at(earlier)
        if earlier == stage:
            break
        before.run()
    # Reading it again takes a fifth of the time of a deep copy.
    kept = pickle.dumps(before)
    whole, calls = read(kept), Calls()
    whole.run(calls)
    for number, name in enumerate(calls.made, 1):
        story = read(kept)
        assert lived(story, number, after=after).is_dead
        ended = story.run()
        assert ended.outcome is RunOutcome.DONE, f"after {name}: {ended}"
        assert story.state() == whole.state(), f"killed at {name}"
        outcomes = [one.outcome for one in story.ledger.runs.values()]
        assert RunOutcome.RUNNING not in outcomes


def test_a_clock_that_is_set_back_begins_no_period_twice_and_prolongs_no_recall() -> None:
    story = Story()
    for stage in STAGES:
        story.world.at(stage)
        story.run()
    entries = list(story.ledger.entered)
    story.world.now_s = BEGAN_S - 3 * 86_400.0
    story.run()
    assert story.ledger.entered == entries
    story.world.now_s = MIDNIGHT_S + 100.0
    story.run()
    assert story.ledger.entered == entries
