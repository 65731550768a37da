"""Tests that a month's money and joules are read each ten minutes, and go with the ledger."""

from types import SimpleNamespace
from typing import Any

import pytest
from builders.ledger_parts import KeptTariffs
from builders.tariffs import BERLIN, book_of, local_s, record, tariff
from stand_ins.scripted import settings

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.rpc.overview_messages import MonthNow, TenantThisMonth
from slicewise.slurm_plugin.daemon import money_loop
from slicewise.slurm_plugin.daemon.money_loop import MoneyLoop
from slicewise.slurm_plugin.ledger.energy import WantedEnergy
from slicewise.slurm_plugin.rules.accounting.energy import EnergyRow
from slicewise.slurm_plugin.rules.accounting.money_budgets import MoneyBudgetStatus, Spent

NOW_S = 1_700_000_000
BUDGET = "[budgets.vision]\namount = 5"


class Boards:
    """Joules of a tenant, and of nobody."""

    def rows(self, _: WantedEnergy) -> tuple[EnergyRow, ...]:
        common = {"day": "2023-11-14", "node": "n1", "person": "", "service": ""}
        common |= {"measure": "counter", "is_unknown": False}
        return (
            EnergyRow(**common, tenant="", split="idle", energy_mj=70),
            EnergyRow(**common, tenant="vision", split="alone", energy_mj=500),
        )

    def unmeasured(self, _wanted: WantedEnergy, _now_s: int) -> tuple[()]:
        return ()


class SlowBoards(Boards):
    """Those of too many runs."""

    def rows(self, _: WantedEnergy) -> tuple[EnergyRow, ...]:
        raise OutsideError("SW-DATABASE-DOWN", "late")


def spent_by_vision() -> KeptTariffs:
    """A tariff, and an hour of a slice."""
    tariffs = KeptTariffs(record(1, 0, tariff(BUDGET)))
    begin_s = period_start_s(Period.MONTH, NOW_S, settings().ledger.time_zone)
    tariffs.spent_sums = (
        Spent(begin_s, "vision", "vision", ("1g.10gb",), "slice-seconds", 3_600_000),
    )
    return tariffs


async def test_it_looks_each_ten_minutes_and_forgets_what_it_can_no_longer_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monotonic_s = [1000.0]
    monkeypatch.setattr(money_loop, "time", SimpleNamespace(monotonic=lambda: monotonic_s[0]))
    tariffs = spent_by_vision()
    ledger: Any = SimpleNamespace(tariffs=tariffs)
    ledger.energy = Boards()
    state: Any = SimpleNamespace(
        clock=SimpleNamespace(shown_s=float(NOW_S)), money_budgets=(), month=None
    )
    loop = MoneyLoop(settings(), ledger, state)
    await loop.turn()
    (status,) = state.money_budgets
    assert status == MoneyBudgetStatus("vision", 5_000_000, 4_640_000, 0.8, status.ends_s)
    assert status.ends_s > NOW_S
    nobody = TenantThisMonth(tenant="", energy_mj=70, measured_mj=70)
    vision = TenantThisMonth(tenant="vision", millionths=360_000, energy_mj=500, measured_mj=500)
    assert state.month == MonthNow(
        month="2023-11",
        zone=settings().ledger.time_zone,
        currency="EUR",
        seen_s=NOW_S,
        tenants=(nobody, vision),
    )

    def refuse(_zone: str) -> None:
        raise OutsideError("SW-DATABASE-FAILED", "no")

    ledger.tariffs.book = refuse
    monotonic_s[0] += 599
    await loop.turn()
    assert state.money_budgets == (status,)
    monotonic_s[0] += 1
    with pytest.raises(OutsideError):
        await loop.turn()
    assert (state.month, state.money_budgets) == (None, ())
    await loop.turn()


@pytest.mark.usefixtures("clock")
async def test_joules_that_take_too_long_keep_no_budget_back() -> None:
    tariffs = spent_by_vision()
    ledger: Any = SimpleNamespace(tariffs=tariffs, energy=SlowBoards())
    state: Any = SimpleNamespace(clock=SimpleNamespace(shown_s=float(NOW_S)))
    with pytest.raises(OutsideError):
        await MoneyLoop(settings(), ledger, state).turn()
    assert [status.tenant for status in state.money_budgets] == ["vision"]
    assert state.month.tenants == (TenantThisMonth(tenant="vision", millionths=360_000),)
    assert state.month.tenants[0].energy_mj is None


@pytest.mark.usefixtures("clock")
async def test_joules_of_too_many_runs_are_not_known_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slicewise.slurm_plugin.api.energy.MOST_ROWS", 2)
    ledger: Any = SimpleNamespace(tariffs=spent_by_vision(), energy=Boards())
    state: Any = SimpleNamespace(clock=SimpleNamespace(shown_s=float(NOW_S)))
    await MoneyLoop(settings(), ledger, state).turn()
    assert state.month.tenants == (TenantThisMonth(tenant="vision", millionths=360_000),)
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert told == ["energy_too_many"]


@pytest.mark.usefixtures("clock")
async def test_a_time_zone_that_is_not_the_tariffs_is_warned_of_once_and_not_that_of_joules(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(money_loop, "_EVERY_S", -1.0)
    book = book_of((0, tariff()), zone=BERLIN)
    tariffs = SimpleNamespace(book=lambda _zone: book, spent=lambda *_: ())
    wanted = list[WantedEnergy]()
    boards = SimpleNamespace(
        rows=lambda energy: wanted.append(energy) or (), unmeasured=lambda *_: ()
    )
    ledger: Any = SimpleNamespace(tariffs=tariffs, energy=boards)
    state: Any = SimpleNamespace(clock=SimpleNamespace(shown_s=float(NOW_S)))
    loop = MoneyLoop(settings(), ledger, state)
    for _ in range(2):
        await loop.turn()
    begin_s, end_s = local_s("2023-11-01 00:00"), local_s("2023-11-15 00:00")
    assert {(each.since_s, each.until_s, each.zone) for each in wanted} == {
        (begin_s, end_s, BERLIN)
    }
    told = [one.getMessage() for one in caplog.records]
    assert [line.split()[0] for line in told] == ["tariff_zone_differs"]
    assert BERLIN in told[0]
