"""Fills a directory with stand-ins for the commands and pyslurm, which replay recordings."""

import shutil
import sys
from pathlib import Path

import pytest

ASSETS = Path(__file__).parents[1] / "assets" / "pyslurm"


def stand_in(directory: Path, version: str, patch: pytest.MonkeyPatch) -> None:
    """Let this process find the stand-ins in ``directory``, the $STAND_IN of assets/pyslurm."""
    replay = (sys.executable, ASSETS / "stand_in" / "replay.py")
    for name in ("squeue", "scontrol"):
        call = f'exec {replay[0]} {replay[1]} {name} {ASSETS / version / "commands.json"} "$@"'
        (directory / name).write_text(f"#!/bin/sh\n{call}\n", encoding="utf-8")
        (directory / name).chmod(0o755)
    shutil.copy(ASSETS / version / "pyslurm.json", directory)
    patch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    patch.setenv("PYTHONPATH", str(ASSETS / "stand_in"))
    patch.setenv("STAND_IN", str(directory))
