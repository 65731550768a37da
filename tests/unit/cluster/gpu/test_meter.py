"""Tests the meter's adapter and the emulated driver, through real pynvml."""

from collections.abc import Iterator
from typing import Any

import pynvml
import pytest
from stand_ins.emulated_gpus import FaultyDriver, amd_node, gpu_node

from slicewise.cluster.gpu import meter
from slicewise.cluster.language.gpus.energy import NOBODY, BoardHolding
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.sandbox.amd_smi.driver import EmulatedAmdGpu
from slicewise.sandbox.nvml.driver import EmulatedGpu

TWO_G, THREE_G = Placement("2g.35gb", 4, 2), Placement("3g.71gb", 0, 4)


@pytest.fixture
def node() -> Iterator[FaultyDriver]:
    with gpu_node(EmulatedGpu("H200-141GB"), EmulatedGpu("A100-80GB", mig=False)) as driver:
        yield driver


def let_job(node: FaultyDriver, pid: int, job_id: int) -> None:
    """Let a process belong to a job."""
    place = node.host_root / "proc" / str(pid) / "cgroup"
    place.parent.mkdir(parents=True)
    place.write_text(f"0::/system.slice/slurmstepd.scope/job_{job_id}/step_0\n", encoding="ascii")


def test_boards_say_what_they_count_and_who_holds_them(node: FaultyDriver) -> None:
    half, quarter = node.create(THREE_G), node.create(TWO_G)
    let_job(node, 11, 801)
    let_job(node, 12, 802)
    node.hold(0, half.gi_id, 0, 11, 100)
    node.hold(0, quarter.gi_id, 0, 12, 100)
    node.hold(0, quarter.gi_id, 0, 13, 100)
    node.hold(1, -1, -1, 11, 100)
    node.count(0, 123_456_789_012_345)
    node.count(1, None)
    with meter.opened(node.host_root) as found:
        h200, a100 = found.read()
    assert (h200.model, h200.counter_mj, h200.power_mw, h200.idle_mw) == (
        "H200-141GB",
        123_456_789_012_345,
        68_000,
        80_000,
    )
    assert h200.holdings == (BoardHolding(3, (801,)), BoardHolding(2, (NOBODY, 802)))
    assert (a100.counter_mj, a100.holdings) == (None, (BoardHolding(1, (801,)),))


def test_the_driver_says_how_busy_an_instance_was_from_the_second_look_on(
    node: FaultyDriver,
) -> None:
    half, quarter = node.create(THREE_G), node.create(TWO_G)
    node.hold(0, half.gi_id, 0, 11, 100)
    node.hold(0, quarter.gi_id, 0, 12, 100)
    node.work(0, half.gi_id, 640_000)
    with meter.opened(node.host_root) as found:
        assert [held.activity_ppm for held in found.read()[0].holdings] == [None, None]
        assert [held.activity_ppm for held in found.read()[0].holdings] == [640_000, None]


def test_what_the_driver_can_t_mean_is_not_known(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drivers say NaN of what they have no figure for, and watts of a sensor that failed."""
    half = node.create(THREE_G)
    node.hold(0, half.gi_id, 0, 11, 100)

    def no_number(asked: Any) -> None:
        asked.metrics[0].value = float("nan")

    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", no_number)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 4_294_967_295)
    with meter.opened(node.host_root) as found:
        found.read()
        h200, _ = found.read()
    assert [held.activity_ppm for held in h200.holdings] == [None]
    assert h200.power_mw is None


def test_a_board_that_is_lost_is_left_out(node: FaultyDriver) -> None:
    node.lose(0)
    with meter.opened(node.host_root) as found:
        assert [reading.model for reading in found.read()] == ["A100-80GB"]


def test_of_amd_the_power_is_known() -> None:
    with (
        amd_node(EmulatedAmdGpu("MI300X-192GB", "cpx.nps4")) as driver,
        meter.opened(driver.host_root) as found,
    ):
        (reading,) = found.read()
    assert (reading.counter_mj, reading.idle_mw) == (None, None)
    assert reading.power_mw
