"""Tests that two parallel compilations don't take each other's changes for an operator's."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from stand_ins.slurm_database import LimitLedger, Row, SlurmDatabase, settings

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.quota_cycle import compile as compiling
from slicewise.slurm_plugin.quota_cycle.compile import Compiled, compile_limits
from slicewise.slurm_plugin.rules.quota.types import TenantUpdate

pytestmark = pytest.mark.usefixtures("clock")


class Turns:
    """One lock; each caller gets a handle of its own."""

    def __init__(self) -> None:
        self.holder: Handle | None = None


class Handle:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def hold(self) -> bool:
        self._turns.holder = self._turns.holder or self
        return self._turns.holder is self

    def give_up(self) -> None:
        if self._turns.holder is self:
            self._turns.holder = None


class SharedLedger(LimitLedger):
    """Of two processes."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()

    def compiling(self) -> Handle:  # type: ignore[override]
        return Handle(self.turns)

    def set_nominal(self, amount: int) -> None:
        self.change(TenantUpdate("a", nominal_millislices=Millislices(amount)), "op", "")


class SlowSlurm(SlurmDatabase):
    """The first sacctmgr that it is told to wait with takes longer than all that another one does,
    but not for ever; meanwhile the quota is lowered.
    """

    def __init__(self, ledger: SharedLedger) -> None:
        super().__init__([Row("a", parent="root")])
        self.ledger = ledger
        self.waits = False
        self.is_waiting, self.other_is_done = asyncio.Event(), asyncio.Event()

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        if self.waits:
            self.waits = False
            self.ledger.set_nominal(2000)
            self.is_waiting.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.other_is_done.wait(), 0.2)
        return await super().sacctmgr(changes)


@pytest.mark.parametrize("by_hand", ["put back", "adopt"])
async def test_who_compiles_waits_for_who_does_already(by_hand: str) -> None:
    ledger = SharedLedger()
    slurm = SlowSlurm(ledger)

    async def compiled() -> Compiled:
        return await compile_limits(slurm, ledger, settings(by_hand))  # type: ignore[arg-type]

    async def other() -> Compiled:
        await slurm.is_waiting.wait()
        found = await compiled()
        slurm.other_is_done.set()
        return found

    ledger.set_nominal(1000)
    await compiled()
    ledger.set_nominal(5000)
    slurm.waits = True
    ended = await asyncio.gather(compiled(), other())
    assert [one.out_of_band for one in ended] == [(), ()]
    assert slurm.limits("a")[0] == ledger.shown["a"].quota.nominal_millislices == 2000


async def test_one_that_hangs_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_PATIENCE_S", 0.0)
    ledger = SharedLedger()
    ledger.set_nominal(3000)
    ledger.locks.compiling().hold()
    slurm = SlowSlurm(ledger)
    await compile_limits(slurm, ledger, settings())  # type: ignore[arg-type]
    assert slurm.limits("a") == [3000, 0]
