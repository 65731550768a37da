"""Tests that slurmctld's time is kept, whatever happens to this host's clock."""

import pytest
from fault_world.virtual_time import START_S, WorldClock

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.slurm import clock as slurm_client_clock
from slicewise.cluster.slurm.clock import slurmctld_ahead_s, slurmctld_s
from slicewise.cluster.slurm.slurmctld_clock import SlurmctldClock

YEAR_S = 365 * 86_400.0


class Slurmctld:
    """It says its time, and is asked so often."""

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock
        self.asked = 0

    async def __call__(self) -> float:
        self.asked += 1
        return self._clock.now_s


async def test_between_two_answers_time_goes_on_though_the_host_s_clock_is_set(
    clock: WorldClock,
) -> None:
    ask = Slurmctld(clock)
    known = SlurmctldClock(ask)
    assert await known.now_s(60.0) == pytest.approx(START_S)
    clock.passed_s, clock.ahead_s = 59.0, YEAR_S
    assert await known.now_s(60.0) == pytest.approx(START_S + 59)
    assert ask.asked == 1
    clock.passed_s = 61.0
    assert await known.now_s(60.0) == pytest.approx(START_S + 61)
    assert await known.now_s() == pytest.approx(START_S + 61)
    assert ask.asked == 3


@pytest.mark.parametrize("ahead_s", [0.0, YEAR_S, -7200.0])
async def test_it_is_known_to_a_second_and_exactly_where_both_agree(
    ahead_s: float, clock: WorldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sdiag(_: tuple[str, ...]) -> str:
        return f"*****\nsdiag output at Tue Nov 14 22:13:20 2023 ({int(clock.now_s)})\n*****\n"

    monkeypatch.setattr(slurm_client_clock, "run", sdiag)
    clock.passed_s, clock.ahead_s = 10.7, ahead_s
    found_s = await slurmctld_s()
    assert found_s == clock.now_s if ahead_s == 0.0 else abs(found_s - clock.now_s) <= 1.0
    assert await slurmctld_ahead_s() == pytest.approx(-ahead_s, abs=1.0)


async def test_who_is_not_told_the_time_decides_nothing(
    clock: WorldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sdiag(_: tuple[str, ...]) -> str:
        return ""

    monkeypatch.setattr(slurm_client_clock, "run", sdiag)
    with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
        await slurmctld_s()
    assert await slurmctld_ahead_s() is None
