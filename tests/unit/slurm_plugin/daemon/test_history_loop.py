"""Tests that history is looked at once in ten seconds, and what is lost when nothing is written."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders.tenants import policy_of, tenant
from builders.why_world import running
from stand_ins.scripted import ScriptedSlurm, settings, sync_of

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.slurm_plugin.daemon import history_loop
from slicewise.slurm_plugin.daemon.history_loop import HistoryLoop
from slicewise.slurm_plugin.rules.common.history import HistorySample
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

T0_S = 1_790_000_000


class Kept:
    """A ledger's history."""

    def __init__(self) -> None:
        self.history = self
        self.written: list[HistorySample] = []
        self.done: list[str] = []
        self.left = 0
        self.failure: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def add(self, samples: tuple[HistorySample, ...]) -> None:
        if self.failure is not None:
            raise self.failure
        self.written += samples
        self.meanwhile()

    def sum_up(self, now_s: int) -> None:
        self.done.append("summed up")

    def forget(self, now_s: int, kept_s: dict[int, int], most: int) -> bool:
        self.done.append(f"forgot {most}")
        self.left -= 1
        return self.left <= 0

    def forget_names(self) -> None:
        self.done.append("forgot names")


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def state() -> ClusterState:
    state = sync_of(ScriptedSlurm(running(1)))
    state.set_policy(policy_of(tenant("vision", 2000)), {})
    await state.turn()
    state.clock = SimpleNamespace(shown_s=T0_S + 3.0)  # type: ignore[assignment]
    return state


@pytest.fixture
def loop(kept: Kept, state: ClusterState) -> HistoryLoop:
    return HistoryLoop(settings(), kept, state)  # type: ignore[arg-type]


def at(state: ClusterState, seconds: float) -> None:
    state.clock = SimpleNamespace(shown_s=T0_S + seconds)  # type: ignore[assignment]


async def looks(loop: HistoryLoop, state: ClusterState, *seconds: float) -> None:
    for each in seconds:
        at(state, each)
        await loop.look()


async def test_ten_seconds_have_one_look(loop: HistoryLoop, state: ClusterState, kept: Kept):
    await looks(loop, state, 3, 4, 9.9, 10, 19, 20)
    await loop.turn()
    assert [one.at_s - T0_S for one in kept.written] == [0, 10, 20]
    (figures,) = kept.written[0].tenants
    assert (figures.tenant, figures.nominal, figures.in_use) == ("vision", 2000, 1000)
    await loop.turn()
    assert len(kept.written) == 3


async def test_a_clock_that_was_set_back_makes_no_second_look(
    loop: HistoryLoop, state: ClusterState, kept: Kept
):
    await looks(loop, state, 30, 12, 31, 40)
    await loop.turn()
    assert [one.at_s - T0_S for one in kept.written] == [30, 40]


async def test_a_clock_that_was_far_ahead_costs_no_looks_once_it_is_set(
    loop: HistoryLoop, state: ClusterState, kept: Kept
):
    await looks(loop, state, 3600, 20, 30)
    await loop.turn()
    assert [one.at_s - T0_S for one in kept.written] == [3600, 20, 30]
    await loop.turn()
    assert len(kept.written) == 3


async def test_while_slurm_is_away_nothing_is_recorded(
    loop: HistoryLoop, state: ClusterState, kept: Kept
):
    """It would be the figures of before."""
    state.view = state.view.model_copy(update={"complete": False})
    await looks(loop, state, 3, 10)
    await loop.turn()
    assert kept.written == []


async def test_a_minute_waits_for_postgresql_and_older_looks_are_dropped(
    loop: HistoryLoop, state: ClusterState, kept: Kept
):
    kept.failure = UnreachableError("SW-DATABASE-DOWN", "gone")
    await looks(loop, state, *range(0, 90, 10))
    with pytest.raises(UnreachableError):
        await loop.turn()
    assert kept.done == []
    kept.failure = None
    await loop.turn()
    assert [one.at_s - T0_S for one in kept.written] == list(range(30, 90, 10))


async def test_a_right_that_lacks_is_asked_for_again_ten_minutes_later(
    loop: HistoryLoop, state: ClusterState, kept: Kept, monkeypatch: pytest.MonkeyPatch
):
    clock = SimpleNamespace(s=50.0)
    monkeypatch.setattr(history_loop, "time", SimpleNamespace(monotonic=lambda: clock.s))
    kept.failure = OutsideError("SW-DATABASE-RIGHTS", "no")
    await looks(loop, state, 0)
    with pytest.raises(OutsideError):
        await loop.turn()
    kept.failure = None
    await loop.turn()
    assert kept.written == []
    clock.s += 600
    await loop.turn()
    assert len(kept.written) == 1


async def test_once_a_minute_it_sums_up_and_then_deletes_until_nothing_old_is_left(
    loop: HistoryLoop, state: ClusterState, kept: Kept
):
    kept.left = 3
    await looks(loop, state, 0)
    await loop.turn()
    forgot = ["forgot 20000"]
    assert kept.done == ["summed up", *forgot * 3, "forgot names"]
    await looks(loop, state, 10)
    await loop.turn()
    assert len(kept.done) == 5
    at(state, 60)
    await loop.turn()
    assert kept.done[5:] == ["summed up", *forgot]


async def test_nothing_is_summed_up_while_a_look_waits_to_be_written(
    loop: HistoryLoop, state: ClusterState, kept: Kept
):
    await looks(loop, state, 50)
    next_one = replace(loop._unwritten[0], at_s=T0_S + 60)
    kept.meanwhile = lambda: loop._unwritten.append(next_one)
    await loop.turn()
    assert kept.done == []
    kept.meanwhile = lambda: None
    await loop.turn()
    assert kept.done[0] == "summed up"
    assert [one.at_s - T0_S for one in kept.written] == [50, 60]
