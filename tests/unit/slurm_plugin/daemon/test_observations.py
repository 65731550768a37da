"""Tests the sums that the daemon collects, and that a failed write loses none."""

import os
import pwd
import time

import pytest

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.admission_server.pipe import GpuVerdict
from slicewise.slurm_plugin.common.steady_clock import SteadyClock
from slicewise.slurm_plugin.daemon import observations
from slicewise.slurm_plugin.daemon.observations import OTHERS, ObservationLoop
from slicewise.slurm_plugin.rules.common.observations import (
    DAY_S,
    LentBetween,
    Observations,
    QuotaUse,
)
from slicewise.slurm_plugin.rules.quota.types import Loan
from slicewise.slurm_plugin.rules.round.what_if import ImaginedRound

pytestmark = pytest.mark.usefixtures("clock")

NOW_S = 10 * DAY_S + 100.0
ADMITTED = GpuVerdict("vision", "", "1g.10gb", False, True, False, 1000)
REFUSED = GpuVerdict("guest", "SW-QUOTA-NONE", "", False, False, False, 0)
USER = pwd.getpwuid(os.getuid()).pw_name


class Written:
    """A ledger that takes sums, unless it is down."""

    def __init__(self) -> None:
        self.observations = self
        self.taken: list[Observations] = []
        self.is_down = False

    def add(self, found: Observations, oldest_s: int) -> None:
        if self.is_down:
            raise UnreachableError("SW-DATABASE-DOWN", "gone")
        assert abs(time.time() - 100 * DAY_S - oldest_s) < DAY_S
        self.taken.append(found)


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def loop(written: Written, monkeypatch: pytest.MonkeyPatch) -> ObservationLoop:
    monkeypatch.setattr(observations, "_EVERY_S", 0.0)
    return ObservationLoop(written, SteadyClock(), 100)  # type: ignore[arg-type]


def decide(loop: ObservationLoop, *verdicts: GpuVerdict, uid: int = os.getuid()) -> None:
    for one in verdicts:
        loop.decided(one, "observe", uid, NOW_S)


async def test_submissions_of_one_kind_are_one_sum(loop: ObservationLoop, written: Written):
    decide(loop, ADMITTED, REFUSED, ADMITTED)
    await loop.turn()
    await loop.turn()
    (found,) = written.taken
    shown = {(one.tenant, one.code): one for one in found.submissions}
    one = shown["vision", ""]
    assert (one.day_s, one.mode, one.user) == (10 * DAY_S, "observe", USER)
    assert (one.submissions, one.moved_qos, one.moved_type, one.asked_millislices) == (
        2,
        2,
        0,
        2000,
    )
    assert shown["guest", "SW-QUOTA-NONE"].submissions == 1


async def test_a_write_that_fails_is_made_up_for(loop: ObservationLoop, written: Written):
    decide(loop, ADMITTED)
    written.is_down = True
    with pytest.raises(UnreachableError):
        await loop.turn()
    decide(loop, ADMITTED)
    written.is_down = False
    await loop.turn()
    assert [one.submissions for one in written.taken[0].submissions] == [2]


async def test_however_many_words_users_invent_a_day_has_few_kinds(
    loop: ObservationLoop, written: Written, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(observations, "KINDS_A_DAY", 2)
    decide(loop, *(REFUSED._replace(tenant=f"t{nth}") for nth in range(5)), REFUSED)
    await loop.turn()
    found = {one.tenant: one for one in written.taken[0].submissions}
    assert set(found) == {"t0", "t1", OTHERS}
    assert (found[OTHERS].submissions, found[OTHERS].user) == (4, OTHERS)
    assert found[OTHERS].code == "SW-QUOTA-NONE"


def imagined(at_s: float, lent: int, **more: object) -> ImaginedRound:
    loans = (Loan("vision", "nlp", Millislices(lent)),) if lent else ()
    sums = {"guaranteed": {"vision": 3000}, "idle": {"vision": 2000}, "wanted": {"vision": 0}}
    return ImaginedRound(at_s, loans, **({**sums, **more}))  # type: ignore[arg-type]


async def test_a_round_counts_until_the_next_one(loop: ObservationLoop, written: Written):
    loop.imagined(imagined(NOW_S, 2000, wanted={"vision": 0, "nlp": 500}))
    loop.imagined(imagined(NOW_S + 15, 1000, recalled={("vision", "nlp"): 1000}))
    loop.imagined(imagined(NOW_S + 1000, 0))
    await loop.turn()
    (found,) = written.taken
    day_s = 10 * DAY_S
    assert found.loans == (LentBetween(day_s, "vision", "nlp", 2000 * 15 + 1000 * 120, 1, 1000),)
    assert found.quota == (QuotaUse(day_s, "vision", 135, 3000 * 135, 2000 * 135, 500 * 15, 0),)


async def test_a_daemon_that_sees_nothing_new_writes_nothing(
    loop: ObservationLoop, written: Written
):
    await loop.turn()
    assert written.taken == []
