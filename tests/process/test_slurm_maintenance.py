"""Tests reservations, drains and restarts."""

import os
from pathlib import Path

import pytest
from stand_ins.node_commands import command, given, runs_jobs

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.slurm import maintenance

USED = (
    'dir=$(dirname "$0"); test -e $dir/asked && w=invalid || w="in use";'
    ' echo "Requested reservation is $w" >&2'
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands as they stand in this directory; what they were given is in ``given``."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command(tmp_path, "sinfo", "echo gpu; echo all")
    return tmp_path


async def test_a_reservation_that_is_there_is_prolonged(slurm: Path) -> None:
    command(slurm, "scontrol", "exit 0")
    await maintenance.reserve("slicewise_repartition_1", "gpu01", 10)
    assert given(slurm) == [
        "scontrol update ReservationName=slicewise_repartition_1 EndTime=now+10minutes"
    ]
    command(slurm, "scontrol", 'test "$1" = create')
    await maintenance.reserve("slicewise_repartition_1", "gpu01", 10)
    assert "Flags=MAINT,IGNORE_JOBS" in given(slurm)[-1]


async def test_a_reservation_ends_with_what_still_runs_in_it(slurm: Path) -> None:
    command(slurm, "scancel", f"touch {slurm}/cancelled")
    command(slurm, "scontrol", f"{USED}; touch {slurm}/asked; exit 1")
    await maintenance.release("slicewise_repartition_1")
    delete = "scontrol delete ReservationName=slicewise_repartition_1"
    assert given(slurm) == ["scancel --quiet --reservation=slicewise_repartition_1", delete, delete]


async def test_another_failure_to_end_a_reservation_is_said(slurm: Path) -> None:
    command(slurm, "scancel", "exit 0")
    command(slurm, "scontrol", "echo Access/permission denied >&2; exit 1")
    with pytest.raises(OutsideError, match=r"denied.*\[SW-SLURM-FAILED\]"):
        await maintenance.release("slicewise_repartition_1")


async def test_only_our_own_drain_is_taken_back(slurm: Path) -> None:
    command(slurm, "scontrol", "exit 0")
    command(slurm, "sinfo", "echo slicewise repartition 7: x")
    await maintenance.undrain("gpu01", ("gres/gpu", "slicewise repartition 8"))
    assert not [line for line in given(slurm) if "RESUME" in line]
    await maintenance.undrain("gpu01", ("gres/gpu", "slicewise repartition 7"))
    assert given(slurm)[-1] == "scontrol update NodeName=gpu01 State=RESUME"


async def test_a_node_s_root_does_not_take_back_an_operator_s_drain(slurm: Path) -> None:
    """By what it says of itself, which scontrol prints before the reason."""
    said = (
        "NodeName=gpu01 Arch=x Reason=slicewise repartition 7 State=IDLE+DRAIN Reason=compromised"
    )
    command(slurm, "scontrol", f"echo '{said}'")
    command(slurm, "sinfo", "echo compromised")
    await maintenance.undrain("gpu01", ("slicewise repartition 7",))
    assert not [line for line in given(slurm) if "RESUME" in line]


async def test_slurmctld_is_back_when_the_node_has_registered(slurm: Path) -> None:
    node = f"test -e {slurm}/there && echo SlurmdStartTime=17 || echo SlurmdStartTime=None"
    command(slurm, "scontrol", f"{node}; touch {slurm}/there")
    command(slurm, "restart", "exit 0")
    await maintenance.restart_controller(("restart",), (22, 5, 8), "gpu01")
    assert [line.split()[0] for line in given(slurm)] == ["restart", "scontrol", "scontrol"]
    await maintenance.restart_controller(("restart",), (24, 11, 0), "gpu01")
    assert given(slurm)[-2:][0] == "scontrol reconfigure"


async def test_a_slurmd_that_does_not_come_back_is_said(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_RESTART_S", 1.0)
    runs_jobs(slurm)
    command(slurm, "restart", "exit 0")
    with pytest.raises(UnreachableError, match=r"slurmd of gpu01.*\[SW-SLURM-DOWN\]"):
        await maintenance.restart_node("gpu01", "slicewise_repartition_1", ("restart",))
