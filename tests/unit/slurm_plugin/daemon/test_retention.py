"""Tests that old rows are deleted a part in each turn, once a day."""

from types import SimpleNamespace
from typing import Any

import pytest

from slicewise.cluster.language.errors import OutsideError
from slicewise.slurm_plugin.daemon import retention
from slicewise.slurm_plugin.daemon.retention import RetentionLoop

DAY_S = 86_400
LOOKED_S = 1000.0 * DAY_S


class Journals:
    """A ledger with some old changes of loans, by id, and some old repartitions."""

    def __init__(self) -> None:
        self.loans, self.repartitions = SimpleNamespace(), SimpleNamespace()
        self.generations = SimpleNamespace(forget=self._of_generations)
        self.usage = SimpleNamespace(forget=self._of_usage)
        self.old_records = 5100
        self.old_generations, self.living = 5100, list[int]()
        self.loans.forget, self.repartitions.forget = self._of_loans, self._of_repartitions
        self.changes, self.old_repartitions = 12_000, 150
        self.asked: list[float] = []
        self.is_refused = False

    def _of_loans(self, before_s: float, after_id: int, most: int) -> int | None:
        if self.is_refused:
            raise OutsideError("SW-DATABASE-RIGHTS", "no")
        self.asked.append(before_s)
        return None if after_id >= self.changes else min(self.changes, after_id + most)

    def _of_repartitions(self, before_s: float, most: int) -> int:
        self.asked.append(before_s)
        forgotten = min(most, self.old_repartitions)
        self.old_repartitions -= forgotten
        return forgotten

    def _of_usage(self, before_s: float, most: int) -> int:
        self.asked.append(before_s)
        forgotten = min(most, self.old_records)
        self.old_records -= forgotten
        return forgotten

    def _of_generations(self, before_s: float, living: list[int], most: int) -> int:
        self.asked.append(before_s)
        self.living = living
        forgotten = min(most, self.old_generations)
        self.old_generations -= forgotten
        return forgotten


@pytest.fixture
def journals() -> Journals:
    return Journals()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(s=50.0)
    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=lambda: clock.s))
    return clock


@pytest.fixture
def loop(journals: Journals) -> RetentionLoop:
    services = (SimpleNamespace(array_job_id=814),)
    view = SimpleNamespace(complete=True, services=services)
    state = SimpleNamespace(looked_s=LOOKED_S, view=view)
    return RetentionLoop(journals, state, 400)  # type: ignore[arg-type]


async def test_a_turn_is_one_statement_and_a_day_has_one_sweep(
    loop: RetentionLoop, journals: Journals, now: SimpleNamespace
):
    for asked in (1, 2, 3, 5, 8, 12, 16):
        await loop.turn()
        assert len(journals.asked) == asked
    assert (journals.old_repartitions, journals.old_generations) == (0, 0)
    assert journals.old_records == 0
    assert journals.living == [814]
    assert set(journals.asked) == {LOOKED_S - 400 * DAY_S}
    now.s += DAY_S - 1
    await loop.turn()
    assert len(journals.asked) == 16
    # The next one begins at the oldest again.
    now.s += 1
    for _ in range(4):
        await loop.turn()
    assert len(journals.asked) == 16 + 3 + 4


async def test_no_generation_goes_while_it_is_not_known_which_live(
    loop: RetentionLoop, journals: Journals, now: SimpleNamespace
):
    state: Any = loop._cluster_state
    state.view.complete = False
    for _ in range(8):
        await loop.turn()
    assert journals.old_generations == 5100
    state.view.complete = True
    for _ in range(3):
        await loop.turn()
    assert journals.old_generations == 0


async def test_a_right_that_lacks_is_reported_once_an_hour(
    loop: RetentionLoop, journals: Journals, now: SimpleNamespace
):
    """After an upgrade, until the roles are granted again."""
    journals.is_refused = True
    with pytest.raises(OutsideError):
        await loop.turn()
    await loop.turn()
    now.s += 3600
    with pytest.raises(OutsideError):
        await loop.turn()
    journals.is_refused = False
    now.s += 3600
    await loop.turn()
    assert journals.asked
