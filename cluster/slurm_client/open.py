"""Chooses how Slurm is asked: through its commands, or through pyslurm."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Literal

from cluster.language.errors import SlicewiseError
from cluster.slurm.interface import Slurm
from cluster.slurm.unread import Tell, Told
from cluster.slurm_client.commands import CommandSlurm
from cluster.slurm_client.pyslurm_client import PyslurmError, PyslurmSlurm, PyslurmWorker


@asynccontextmanager
async def chosen_slurm(
    which: Literal["auto", "commands", "pyslurm"], report: Tell, warn: Tell, told: Told
) -> AsyncIterator[Slurm]:
    """Provide access to Slurm; "auto" is pyslurm where it is installed and fits the running Slurm.

    With "pyslurm" it must be installed and fit Slurm's library here: SlicewiseError (SW-PYSLURM).
    ``report`` and ``warn`` log what is used, and why pyslurm is not; ``told`` takes what can't be
    read.
    """
    if which == "pyslurm":
        await _require_pyslurm()
    elif which == "commands" or find_spec("pyslurm") is None:
        report("slurm_by", implementation="commands")
        yield CommandSlurm(told)
        return
    slurm = PyslurmSlurm(report, warn, told)
    try:
        yield slurm
    finally:
        await slurm.close()


async def _require_pyslurm() -> None:
    worker = PyslurmWorker()
    try:
        await worker.start()
    except PyslurmError as error:
        raise SlicewiseError(
            "SW-PYSLURM",
            f'daemon.slurm is "pyslurm", but {sys.executable} can\'t use it: {error}.',
            'Install the pyslurm with your Slurm\'s version number, or set slurm = "auto".',
        ) from None
    finally:
        await worker.end()
