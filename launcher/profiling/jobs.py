"""Jobs of a measurement, one for each GPU type; followed by their output and what Slurm says."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.measurements import Measurement
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.launcher.rules.profiling.figures import MARK, Begun, Point, messages
from slicewise.launcher.rules.profiling.token_figures import explained
from slicewise.launcher.services.logs import plain

JOB_NAME = "slicewise-profile"
_FILE_S, _SLURM_S = 0.5, 2.0
_FILE_PATIENCE_S = 5.0
"""Seconds to wait for an ended job's output: a shared file system may show the last lines late."""
_WORDS = 3
"""Lines shown of a failed job's output."""


@dataclass(frozen=True)
class ProfileJob:
    """A job that measures a model on one GPU type.

    Attributes:
        title: the engine's.
        makes_tokens: whether a point is a number of requests at a time, not a batch.
        points: how many points it measures.
        output: the file of what it prints; Slurm writes it into the directory of the submission.
    """

    job_id: int
    model: str
    board: str
    gres_type: str
    title: str
    makes_tokens: bool
    points: int
    output: Path


@dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
        view: None while Slurm has said nothing of the job yet, and once Slurm has forgotten it.
        begun: the point that it measures now, or measured last.
    """

    job: ProfileJob
    view: JobView | None = None
    begun: Begun | None = None
    points: Sequence[Point] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all points are measured."""
        return len(self.points) >= self.job.points

    @property
    def measurements(self) -> Sequence[Measurement]:
        """What it has measured so far."""
        job = self.job
        return [
            Measurement(model=job.model, board=job.board, type=job.gres_type, **point.model_dump())
            for point in self.points
        ]


def output_file(directory: Path, job_id: int) -> Path:
    """Return the file of a job's output, as the batch script tells Slurm."""
    return directory / f"{JOB_NAME}-{job_id}.log"


def look(job: ProfileJob, view: JobView | None) -> Progress:
    """Return how far a job is, by what it has printed so far and what Slurm says."""
    text = _text(job.output)
    all_messages = tuple(messages(text))
    begun = [message for message in all_messages if isinstance(message, Begun)]
    points = tuple(explained([point for point in all_messages if isinstance(point, Point)], text))
    return Progress(job, view, begun[-1] if begun else None, points[: job.points])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def last_words(job: ProfileJob) -> str:
    """Return the last lines of a job's output that are no messages, safe on a terminal."""
    lines = [line for line in _text(job.output).split("\n") if line.strip() and MARK not in line]
    return "\n".join(plain(line.encode()) for line in lines[-_WORDS:])


async def follow(
    slurm: Slurm, jobs: Sequence[ProfileJob], tell: Callable[[Sequence[Progress]], None]
) -> Sequence[Progress]:
    """Follow jobs until all are complete or have ended; call ``tell`` after each look."""
    clock = asyncio.get_running_loop()
    views: Mapping[int, JobView] | None = None
    asked_s = float("-inf")
    ended_s: dict[int, float] = {}
    seen: Sequence[Progress] = ()
    while jobs:
        if clock.time() - asked_s >= _SLURM_S:
            views, asked_s = await _views(slurm, jobs, views), clock.time()
        now_s = clock.time()
        seen = [look(job, (views or {}).get(job.job_id)) for job in jobs]
        tell(seen)
        for task in seen:
            if views is not None and has_ended(task.view):
                ended_s.setdefault(task.job.job_id, now_s)
        late = {job_id for job_id, at_s in ended_s.items() if now_s - at_s >= _FILE_PATIENCE_S}
        if all(progress.is_complete or progress.job.job_id in late for progress in seen):
            break
        await asyncio.sleep(_FILE_S)
    return seen


async def _views(
    slurm: Slurm, jobs: Sequence[ProfileJob], before: Mapping[int, JobView] | None
) -> Mapping[int, JobView] | None:
    """Ask Slurm for the jobs, by job id; None while Slurm has not answered yet."""
    try:
        tasks = await slurm.tasks([job.job_id for job in jobs])
    except UnreachableError:
        return before
    except OutsideError:
        # Slurm has forgotten the only job that was asked for.
        tasks = ()
    return {view.job_id: view for view in tasks}


def has_ended(view: JobView | None) -> bool:
    """Whether Slurm says that the job has ended, or does not know it any more."""
    return view is None or view.state is JobState.ENDED


async def cancel(slurm: Slurm, jobs: Sequence[ProfileJob]) -> None:
    """Cancel all jobs; one that has ended is no error."""
    await asyncio.gather(*(slurm.cancel(job.job_id) for job in jobs))
