"""Tests that joules which meters tell by parts, again or late are counted once."""

import pytest

from slicewise.cluster.language.gpus.energy import EnergyMeasure, Split
from slicewise.cluster.rpc.energy_messages import EnergyPostRequest, ToldHour, ToldPart
from slicewise.slurm_plugin.state.node_power import NodePower

pytestmark = pytest.mark.usefixtures("clock")

HOUR_S = 1_764_500_400
TENANTS = {7: "vision"}


def told(*hours: tuple[int, str, int], meter: str = "m1") -> EnergyPostRequest:
    """By hour and board what job 7 took."""
    return EnergyPostRequest(
        node="gpu01",
        seen_by=meter,
        boards=(),
        hours=tuple(
            ToldHour(
                hour_s=HOUR_S + hour * 3600,
                gpu_uuid=board,
                measure=EnergyMeasure.COUNTER,
                model="H200-141GB",
                energy_mj=energy_mj,
                covered_ms=60_000,
                checked_mj=0,
                power_mj=0,
                parts=(ToldPart(job_id=7, split=Split.ALONE, energy_mj=energy_mj),),
            )
            for hour, board, energy_mj in hours
        ),
    )


def test_a_board_that_one_message_lacks_is_not_counted_again() -> None:
    power = NodePower()
    for message in (
        told((0, "GPU-1", 1000), (0, "GPU-2", 500)),
        told((0, "GPU-1", 1100)),
        told((0, "GPU-2", 600)),
        told((1, "GPU-2", 30)),
        told((0, "GPU-1", 1105), (1, "GPU-2", 30)),
    ):
        power.hear(message, TENANTS)
    assert power.energy_mj == {"vision": 100 + 100 + 30 + 5}


def test_sums_of_a_new_meter_are_its_own() -> None:
    power = NodePower()
    power.hear(told((0, "GPU-1", 1000)), TENANTS)
    power.hear(told((0, "GPU-1", 10), meter="m2"), TENANTS)
    assert power.energy_mj == {"vision": 10}


def test_hours_of_a_clock_that_was_wrong_are_forgotten_alone() -> None:
    power = NodePower()
    for hour in (0, 1000, 0, 0):
        power.hear(told((hour, "GPU-1", 1000)), TENANTS)
    assert power.energy_mj["vision"] <= 2000
