"""Chooses how Slurm is asked: through its commands, pyslurm or slurmrestd.

Every program gets its ``Slurm`` here, so that a new way to ask Slurm is chosen in this module.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.language.slurm.unread import LogsEvent, ReportsUnread
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.reader_error import ReaderError


def open_slurm(settings: Settings | None, told: ReportsUnread | None = None) -> Slurm:
    """Access to Slurm for a command, which asks little and ends.

    ``settings`` are None on a host without slicewise.toml. ``told`` takes what can't be read; by
    default it is logged as a warning.
    """
    which = "commands" if settings is None else settings.daemon.slurm
    match which:
        case "auto" | "commands" | "pyslurm" | "slurmrestd":
            # The process that holds pyslurm takes longer to start than Slurm's commands to answer,
            # and users may have no token of slurmrestd.
            return CommandSlurm(told)


@asynccontextmanager
async def open_lasting_slurm(
    settings: Settings, report: LogsEvent, warn: LogsEvent, told: ReportsUnread
) -> AsyncIterator[Slurm]:
    """Access to Slurm for a process that goes on asking: by ``daemon.slurm``.

    "auto" is pyslurm where it is installed and fits the running Slurm. With "pyslurm" it must be
    installed and fit Slurm's library here: SlicewiseError (SW-PROGRAM). ``report`` and ``warn`` log
    what is used, and why pyslurm is not; ``told`` takes what can't be read.
    """
    which = settings.daemon.slurm
    if which == "slurmrestd":
        from slicewise.cluster.slurm.rest_client import RestSlurm  # noqa: PLC0415 -- as below

        place, token = settings.daemon.slurmrestd, settings.daemon.slurmrestd_token
        yield RestSlurm(place, token, report, warn, told)
        return
    if which == "pyslurm":
        await _require_pyslurm()
    elif which == "commands" or find_spec("pyslurm") is None:
        report("slurm_by", implementation="commands")
        yield open_slurm(settings, told)
        return
    # Imported here: commands, and sites without pyslurm, do not need it.
    from slicewise.cluster.slurm.pyslurm_client import PyslurmSlurm  # noqa: PLC0415

    slurm = PyslurmSlurm(report, warn, told)
    try:
        yield slurm
    finally:
        await slurm.close()


async def _require_pyslurm() -> None:
    from slicewise.cluster.slurm.pyslurm_client import PyslurmWorker  # noqa: PLC0415 -- as above

    worker = PyslurmWorker()
    try:
        await worker.start()
    except ReaderError as error:
        raise SlicewiseError(
            Code.PROGRAM,
            f'daemon.slurm is "pyslurm", but {sys.executable} can\'t use it: {error}.',
            'Install the pyslurm with your Slurm\'s version number, or set slurm = "auto".',
        ) from None
    finally:
        await worker.end()
