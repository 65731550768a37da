"""What is said of commands on a node that fail."""

import os
import stat
from pathlib import Path

import pytest

from cluster.errors import OutsideError, UnreachableError
from cluster.slurm import maintenance

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


def command(place: Path, name: str, script: str) -> None:
    path = place / name
    path.write_text(f'#!/bin/sh\necho "{name} $@" >> {place}/given\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def given(place: Path) -> list[str]:
    return (place / "given").read_text().splitlines()


async def test_a_command_runs_in_the_reservation_on_that_node_alone(slurm: Path) -> None:
    command(slurm, "srun", "echo found")
    assert await maintenance.run_on("gpu01", "slicewise_recut_1", ("date", "-u"), 90) == "found\n"
    srun = given(slurm)[-1].split()
    assert srun[-2:] == ["date", "-u"]
    assert {"--reservation=slicewise_recut_1", "--partition=gpu", "--nodelist=gpu01"} <= set(srun)
    assert {"--mem=1", "--time=2", "--immediate=45", "--export=PATH,LC_ALL,TZ"} <= set(srun)
    await maintenance.run_on("gpu01", "", ("date",), 90)
    assert "--reservation" not in given(slurm)[-1]


async def test_a_command_s_own_code_is_passed_on(slurm: Path) -> None:
    words = "A process holds it: it stays.\\nSee which.\\nSW-MIG-IN-USE\\nsrun: error: exit code 1"
    command(slurm, "srun", f"printf '{words}' >&2; exit 1")
    with pytest.raises(OutsideError, match=r"^gpu01: A process holds it: it stays. See") as caught:
        await maintenance.run_on("gpu01", "", ("slicewise", "node", "cut"), 90)
    assert caught.value.refusal.code == "SW-MIG-IN-USE"


async def test_any_other_failure_is_slurm_s_or_the_command_s(slurm: Path) -> None:
    command(slurm, "srun", "echo srun: error: Unable to allocate resources >&2; exit 1")
    with pytest.raises(OutsideError, match=r"Unable to allocate.*\[SW-SLURM-FAILED\]"):
        await maintenance.run_on("gpu01", "", ("slicewise",), 90)
    command(slurm, "srun", "echo systemctl: no such unit >&2; exit 5")
    with pytest.raises(OutsideError, match=r"systemctl on gpu01: systemctl: no such unit"):
        await maintenance.run_on("gpu01", "", ("systemctl",), 90)


async def test_a_reservation_that_is_there_is_prolonged(slurm: Path) -> None:
    command(slurm, "scontrol", "exit 0")
    await maintenance.reserve("slicewise_recut_1", "gpu01", 10)
    assert given(slurm) == [
        "scontrol update ReservationName=slicewise_recut_1 EndTime=now+10minutes"
    ]
    command(slurm, "scontrol", 'test "$1" = create')
    await maintenance.reserve("slicewise_recut_1", "gpu01", 10)
    assert "Flags=MAINT,IGNORE_JOBS" in given(slurm)[-1]


async def test_a_reservation_ends_with_what_still_runs_in_it(slurm: Path) -> None:
    command(slurm, "scancel", f"touch {slurm}/cancelled")
    command(slurm, "scontrol", f"{USED}; touch {slurm}/asked; exit 1")
    await maintenance.release("slicewise_recut_1")
    delete = "scontrol delete ReservationName=slicewise_recut_1"
    assert given(slurm) == ["scancel --quiet --reservation=slicewise_recut_1", delete, delete]


async def test_another_failure_to_end_a_reservation_is_said(slurm: Path) -> None:
    command(slurm, "scancel", "exit 0")
    command(slurm, "scontrol", "echo Access/permission denied >&2; exit 1")
    with pytest.raises(OutsideError, match=r"denied.*\[SW-SLURM-FAILED\]"):
        await maintenance.release("slicewise_recut_1")


async def test_only_our_own_drain_is_taken_back(slurm: Path) -> None:
    command(slurm, "scontrol", "exit 0")
    command(slurm, "sinfo", "echo slicewise re-cut 7: x")
    await maintenance.undrain("gpu01", ("gres/gpu", "slicewise re-cut 8"))
    assert not [line for line in given(slurm) if "RESUME" in line]
    await maintenance.undrain("gpu01", ("gres/gpu", "slicewise re-cut 7"))
    assert given(slurm)[-1] == "scontrol update NodeName=gpu01 State=RESUME"


async def test_a_node_s_root_does_not_take_back_an_operator_s_drain(slurm: Path) -> None:
    """By what it says of itself, which scontrol prints before the reason."""
    said = "NodeName=gpu01 Arch=x Reason=slicewise re-cut 7 State=IDLE+DRAIN Reason=compromised"
    command(slurm, "scontrol", f"echo '{said}'")
    command(slurm, "sinfo", "echo compromised")
    await maintenance.undrain("gpu01", ("slicewise re-cut 7",))
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
    command(slurm, "srun", "exit 0")
    command(slurm, "scontrol", "echo SlurmdStartTime=17")
    with pytest.raises(UnreachableError, match=r"slurmd of gpu01.*\[SW-SLURM-DOWN\]"):
        await maintenance.restart_node("gpu01", "slicewise_recut_1", ("restart",))


async def test_a_node_that_prints_without_end_is_not_listened_to(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_MOST_BYTES", 1 << 16)
    for stream in ("1", "2"):
        command(slurm, "srun", f"exec yes >&{stream}")
        with pytest.raises(OutsideError, match=r"more than 65536 bytes.*\[SW-SLURM-FAILED\]"):
            await maintenance.run_on("gpu01", "", ("slicewise",), 60)


async def test_words_of_a_node_are_one_line_without_control_characters(slurm: Path) -> None:
    words = r"\033[2J\007one\rtwo\nReason=x\nSW-MIG-CUT\n"
    command(slurm, "srun", f"printf '{words}' >&2; exit 1")
    with pytest.raises(OutsideError) as caught:
        await maintenance.run_on("gpu01", "", ("slicewise", "node", "cut"), 90)
    assert caught.value.refusal.message == "gpu01: ?[2J?one two Reason=x"
    command(slurm, "srun", "yes x | head -c 9000 >&2; exit 1")
    with pytest.raises(OutsideError) as caught:
        await maintenance.run_on("gpu01", "", ("slicewise",), 90)
    assert len(caught.value.refusal.message) < 1100
