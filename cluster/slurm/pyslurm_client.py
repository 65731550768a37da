"""Access to Slurm through pyslurm where it is right and faster: jobs, steps, batch scripts.

Everything else, and every call in which pyslurm fails, goes through the commands.
"""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from slicewise.cluster.language.jobs import JobView, StepView
from slicewise.cluster.language.slurm.asked import ASKED
from slicewise.cluster.language.slurm.unread import LogsEvent, ReportsUnread
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.preferred import Preferred
from slicewise.cluster.slurm.pyslurm_worker import LENGTH
from slicewise.cluster.slurm.reader_error import FAILED_REST_S, UNFIT_REST_S, ReaderError
from slicewise.cluster.slurm.run_command import DEADLINE_S, waiting

T = TypeVar("T")

_LIBRARIES = {(25, 11): 44}
"""API number of Slurm's library, which has no other name, by the Slurm of a tested pyslurm.

Older pyslurm does not show what a job was allotted.
"""
_ENDING_S = 1.0
_BROKEN_REST_S = 30.0


class PyslurmSlurm(CommandSlurm):
    """Asks pyslurm while it works and fits the running slurmctld, else the commands.

    ``report`` and ``warn`` log which of the two is used.
    """

    def __init__(self, report: LogsEvent, warn: LogsEvent, told: ReportsUnread) -> None:
        super().__init__(told)
        self._report = report
        self._worker = PyslurmWorker()
        self._preferred = Preferred("pyslurm_failed", warn, self._give_up)

    async def jobs(self) -> tuple[JobView, ...]:
        """Call ``Jobs.load()``: one look, where squeue takes two.

        It shows only a part of what jobs ask for.
        """
        by_commands = super().jobs

        async def read() -> tuple[JobView, ...]:
            return await self._typed(await self._read(("jobs",)), asked_too=True)

        return await self._preferred.ask(read, by_commands, request="jobs")

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        """Call ``JobSteps.load_all()``."""
        if not jobs:
            return ()
        by_commands, job_ids = super().steps, (str(job.job_id) for job in jobs)
        return await self._ask(lambda: by_commands(jobs), "steps", *job_ids)

    async def batch_script(self, job_id: int) -> str:
        """Call ``Job.get_batch_script()``."""
        by_commands = super().batch_script
        return await self._ask(lambda: by_commands(job_id), "batch_script", str(job_id))

    async def close(self) -> None:
        """End the worker."""
        await self._worker.end()

    async def _ask(self, by_commands: Callable[[], Awaitable[T]], *request: str) -> T:
        read = partial(self._read, request)
        return await self._preferred.ask(read, by_commands, request=request[0])

    async def _give_up(self) -> Mapping[str, object]:
        return {"status": await self._worker.end()}

    async def _read(self, request: tuple[str, ...]) -> Any:
        if not self._worker.is_started:
            built = await self._worker.start()
            running = await self.version()
            if running[:2] != built[:2]:
                raise ReaderError(
                    f"pyslurm is for Slurm {_text(built)}, slurmctld is {_text(running)}",
                    UNFIT_REST_S,
                )
            self._report("slurm_by", implementation="pyslurm", version=_text(built))
        # A ping comes before each.
        ASKED.reads["pyslurm"] += 2
        with waiting():
            return await self._worker.ask(*request)


class PyslurmWorker:
    """The process that holds pyslurm; it answers one question at a time.

    After ``start`` or ``ask`` has raised ReaderError, the process has to be ended.
    """

    def __init__(self) -> None:
        self._process: Process | None = None

    @property
    def is_started(self) -> bool:
        """Whether the process was started and not ended."""
        return self._process is not None

    async def start(self) -> tuple[int, ...]:
        """Start the process; return the version of Slurm that pyslurm is built for.

        Slurm's library on this host must be of that version, too.
        """
        # -P: load no module from the current directory, where other users may write.
        argv = (sys.executable, "-P", "-m", "slicewise.cluster.slurm.pyslurm_worker")
        # Without it, index lists end after 64 characters; libslurm reads it at the first use.
        variables = {**os.environ, "SLURM_BITSTR_LEN": "0"}
        self._process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, env=variables, start_new_session=True
        )
        try:
            built, library = await self._answer(self._process)
        except ReaderError as error:
            raise ReaderError(str(error), UNFIT_REST_S) from None
        tested = _LIBRARIES.get(built[:2])
        if tested != library:
            raise ReaderError(
                f"pyslurm of Slurm {_text(built)} with a library of API {library} is not tested",
                UNFIT_REST_S,
            )
        return tuple(built)

    async def ask(self, *words: str) -> Any:
        """The process's answer to this request."""
        if self._process is None:
            raise ReaderError("its process is not running", FAILED_REST_S)
        requests = cast("asyncio.StreamWriter", self._process.stdin)
        requests.write(f"{' '.join(words)}\n".encode())
        return await self._answer(self._process)

    async def end(self) -> int | None:
        """Kill the process if it still runs; return its exit status, None without a process."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.kill()
        while process.returncode is None:
            # A cancellation meanwhile is ignored, as a killed process ends immediately. Its answer
            # is read to the end, or ``wait`` would wait for ever for a pipe that asyncio has
            # stopped reading.
            with suppress(asyncio.CancelledError):
                await process.communicate()
        return process.returncode

    async def _answer(self, process: Process) -> Any:
        try:
            async with asyncio.timeout(DEADLINE_S):
                went_well, value = await _received(process)
        except TimeoutError:
            raise ReaderError(f"no answer within {DEADLINE_S:g} s", _BROKEN_REST_S) from None
        except asyncio.IncompleteReadError:
            # asyncio loses the status of a process that is killed while it ends.
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _ENDING_S)
            raise ReaderError("its process ended", _BROKEN_REST_S) from None
        if not went_well:
            raise ReaderError(value, FAILED_REST_S)
        return value


async def _received(process: Process) -> Any:
    replies = cast("asyncio.StreamReader", process.stdout)
    (length,) = LENGTH.unpack(await replies.readexactly(LENGTH.size))
    return pickle.loads(await replies.readexactly(length))  # noqa: S301 -- our own child


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
