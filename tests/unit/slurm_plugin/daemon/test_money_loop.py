"""Tests that budgets in money are looked at each ten minutes, and not while PostgreSQL is away."""

from types import SimpleNamespace
from typing import Any

import pytest
from builders.ledger_parts import KeptTariffs
from builders.tariffs import record, tariff
from stand_ins.memory_ledger import MemoryStore

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.daemon import money_loop
from slicewise.slurm_plugin.daemon.money_loop import MoneyLoop
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

NOW_S = 1_700_000_000
BUDGET = "[budgets.vision]\namount = 5"


async def test_it_looks_each_ten_minutes_and_forgets_what_it_can_no_longer_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monotonic_s = [1000.0]
    monkeypatch.setattr(money_loop, "time", SimpleNamespace(monotonic=lambda: monotonic_s[0]))
    ledger: Any = MemoryStore()
    ledger.tariffs = KeptTariffs(record(1, 0, tariff(BUDGET)))
    key = RunKey("c", 1, NOW_S - 7200)
    run = Run(key, "vision", "alice", "1", {"1g.10gb": 1}, Millislices(1000), "vision")
    kinds = TransferKind.RESERVE, TransferKind.POST
    steps = tuple(Transfer(kind, 3_600_000, NOW_S - 3600) for kind in kinds)
    ledger.charges.post([Charge(run, 0, steps)])
    state: Any = SimpleNamespace(clock=SimpleNamespace(shown_s=float(NOW_S)), money_budgets=())
    loop = MoneyLoop(ledger, state, "UTC")
    await loop.turn()
    (status,) = state.money_budgets
    assert status == MoneyBudgetStatus("vision", 5_000_000, 4_640_000, 0.8, status.ends_s)
    assert status.ends_s > NOW_S

    def refuse(_zone: str) -> None:
        raise OutsideError("SW-DATABASE-FAILED", "no")

    ledger.tariffs.book = refuse
    monotonic_s[0] += 599
    await loop.turn()
    assert state.money_budgets == (status,)
    monotonic_s[0] += 1
    with pytest.raises(OutsideError):
        await loop.turn()
    assert state.money_budgets == ()
    await loop.turn()
