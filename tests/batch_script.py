"""Runs the batch script of a service as Slurm does, with stand-ins for what it starts."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from waiting import PATIENCE_S

_HELD_AGAIN = 187


def run_batch_script(text: str, told: Path, variables: Mapping[str, str]) -> str:
    """Run the script as slot 3 of array 7 on node n1; return its log once it has ended.

    ``told`` has the stand-ins in its ``bin``; they find it as ``$TOLD``.
    """
    slot = {
        "PATH": f"{told}/bin:/usr/bin:/bin",
        "TOLD": str(told),
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_ID": "10",
        "SLURMD_NODENAME": "n1",
    }
    # Into a file: what the script leaves sleeping for a second would hold a pipe open.
    with (told / "log").open("a") as log:
        ran = subprocess.run(
            ("bash", "-s"),
            input=text,
            text=True,
            stdout=log,
            stderr=log,
            check=False,
            env=slot | dict(variables),
            timeout=PATIENCE_S,
        )
    said = (told / "log").read_text()
    assert ran.returncode == _HELD_AGAIN, said
    return said
