"""Runs an experiment: every part under every plan, in several processes, and joins the figures.

The result does not depend on the number of processes.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Protocol

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.simulation.rules.runs.experiment import Experiment
from slicewise.simulation.rules.runs.measure import joined
from slicewise.simulation.rules.runs.run_figures import Figures, SelfCheck, SimulationResult
from slicewise.simulation.rules.runs.self_check import compared_jobs, self_check
from slicewise.simulation.rules.runs.summary import (
    difference_estimates,
    estimates,
    figures,
    service_difference_estimates,
    service_estimates,
)
from slicewise.simulation.rules.site.node_capacity import capacity_millislices
from slicewise.simulation.rules.site.past_requests import Replayable
from slicewise.simulation.runs.left_out import Refusals, lost_jobs, notes
from slicewise.simulation.runs.part_run import PartRun, all_parts, part_run, span_s

_POLL_S = 0.5
"""Seconds between two looks at how far other processes have come."""


class _Shares(Protocol):
    """Shares of tasks that are done, which all processes see."""

    def __setitem__(self, task: int, share: float) -> None: ...

    def __getitem__(self, tasks: slice) -> list[float]: ...


class _Flag(Protocol):
    """Is set once, which all processes see; ``wait`` returns whether it is, within the seconds."""

    def set(self) -> None: ...

    def wait(self, timeout: float) -> bool: ...


@dataclass(frozen=True, order=True)
class _Task:
    is_changed: bool
    number: int


def simulate(
    experiment: Experiment,
    *,
    processes: int = 2,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Simulate it all; ``progress`` is told which share is done, 0 to 1.

    Raises InvalidInputError (SW-USAGE) if jobs came, no plan could take one, and
    none runs services: there would be nothing but zeros to show.
    """
    began_s = time.monotonic()
    parts = all_parts(experiment)
    tasks = [
        _Task(is_changed, number)
        for is_changed in ((False, True) if experiment.changed is not None else (False,))
        for number in range(len(parts))
    ]
    runs = (
        _in_this_process(experiment, tasks, progress)
        if processes <= 1 or len(tasks) == 1
        else _in_processes(experiment, tasks, processes, progress)
    )
    present = [runs[task] for task in tasks if not task.is_changed]
    changed = [runs[task] for task in tasks if task.is_changed]
    whole = _whole(experiment, present)
    then = _whole(experiment, changed) if changed else None
    refused = (_refusals(present), _refusals(changed))
    lost = lost_jobs(experiment, *refused)
    if lost and not any(part.jobs or part.services for part in (whole, then) if part is not None):
        raise _nothing(lost)
    check = _checked(experiment, present)
    own, others = [run.figures for run in present], [run.figures for run in changed]
    return SimulationResult(
        cluster=experiment.cluster.name,
        seed=experiment.seed,
        offsets=len(parts),
        self_check=check,
        unchecked="" if check else _unchecked(experiment, present),
        present=whole,
        changed=then,
        estimates=estimates(own),
        changed_estimates=estimates(others) if changed else {},
        difference_estimates=difference_estimates(own, others) if changed else {},
        service_estimates=service_estimates(own),
        service_difference_estimates=service_difference_estimates(own, others) if changed else {},
        seconds=time.monotonic() - began_s,
        notes=notes(experiment, *refused),
    )


def _nothing(lost: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(
        Code.USAGE,
        f"No job came to a queue, so there is nothing to show. {' '.join(lost)}",
        "Compare what the jobs ask for with the site's partitions, GPUs and quotas.",
    )


def _in_this_process(
    experiment: Experiment, tasks: Sequence[_Task], progress: Callable[[float], None] | None
) -> Mapping[_Task, PartRun]:
    runs = {}
    for nth, task in enumerate(tasks):

        def tell(share: float, nth: int = nth) -> None:
            if progress is not None:
                progress((nth + share) / len(tasks))

        runs[task] = part_run(experiment, task.number, is_changed=task.is_changed, progress=tell)
        tell(1.0)
    return runs


def _in_processes(
    experiment: Experiment,
    tasks: Sequence[_Task],
    processes: int,
    progress: Callable[[float], None] | None,
) -> Mapping[_Task, PartRun]:
    # Not by fork: the caller may have threads, such as that of a progress bar.
    context = get_context("spawn")
    shares: _Shares = context.Array("d", len(tasks))
    stop: _Flag = context.Event()
    given = _Given(experiment, shares, stop)
    pool = ProcessPoolExecutor(
        min(processes, len(tasks)), context, initializer=_begin, initargs=(given,)
    )
    try:
        futures = [pool.submit(_one, nth, task) for nth, task in enumerate(tasks)]
        _follow(futures, shares, progress)
        return {task: future.result() for task, future in zip(tasks, futures, strict=True)}
    except BaseException:
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _follow(
    futures: Sequence[Future[PartRun]],
    shares: _Shares,
    progress: Callable[[float], None] | None,
) -> None:
    """Tell how far all tasks together have come, until they are done or one has failed."""
    left: set[Future[PartRun]] = set(futures)
    while left:
        done, left = wait(left, timeout=_POLL_S)
        for future in done:
            future.result()
        if progress is not None:
            progress(sum(shares[:]) / len(futures))


@dataclass(frozen=True)
class _Given:
    """What another process is given when it begins.

    Attributes:
        stop: is set when its result is not wanted any more.
    """

    experiment: Experiment
    shares: _Shares
    stop: _Flag


_given: list[_Given] = []
"""In another process: what it was given."""


def _begin(given: _Given) -> None:
    # Ctrl-C reaches every process of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _given.append(given)
    Thread(target=_end_in_time, args=(given.stop,), daemon=True).start()


def _end_in_time(stop: _Flag) -> None:
    """End this process once its result is not wanted any more, or its parent is gone."""
    parent = parent_process()
    while not stop.wait(_POLL_S):
        if parent is not None and not parent.is_alive():
            break
    os._exit(1)


def _one(nth: int, task: _Task) -> PartRun:
    given = _given[0]

    def tell(share: float) -> None:
        given.shares[nth] = share

    run = part_run(given.experiment, task.number, is_changed=task.is_changed, progress=tell)
    given.shares[nth] = 1.0
    return run


def _whole(experiment: Experiment, runs: Sequence[PartRun]) -> Figures:
    capacity = capacity_millislices(experiment.cluster, experiment.costs)
    first = runs[0].figures
    owed = {tenant.tenant: tenant.guaranteed_millislices for tenant in first.tenants}
    found = figures(first.name, joined([run.measured for run in runs]), capacity, owed)
    return replace(found, refused=sum(run.figures.refused for run in runs))


def _checked(experiment: Experiment, runs: Sequence[PartRun]) -> SelfCheck | None:
    """Compare jobs alone: services are not those of the past."""
    starts_s = {number: at_s for run in runs for number, at_s in run.starts_s.items()}
    jobs = compared_jobs(experiment.jobs, starts_s)
    never = sum(1 for _ in _really_started(experiment, runs))
    use = _utilisation_of_history(experiment)
    held = sum(run.measured.held_millislice_s - run.measured.replica_millislice_s for run in runs)
    capacity = sum(run.measured.capacity_millislice_s for run in runs)
    utilisation = held / capacity if capacity else 0.0
    return self_check(jobs, use, utilisation, never_started=never)


def _utilisation_of_history(experiment: Experiment) -> float:
    """Share of the capacity that the replayed jobs really held, at the cost that they have there.

    Those without a start held nothing.
    """
    start_s, end_s = span_s(experiment)
    can = Replayable(experiment.cluster, experiment.costs)
    held = 0.0
    for number, job in enumerate(experiment.jobs):
        if job.started_s is None:
            continue
        seconds = min(end_s, job.started_s + job.run_s) - max(start_s, job.started_s)
        decision = can.of(number, job, job.submit_s) if seconds > 0 else ""
        if not isinstance(decision, str):
            held += seconds * decision.cost_millislices
    capacity = capacity_millislices(experiment.cluster, experiment.costs)
    return held / (capacity * (end_s - start_s)) if capacity else 0.0


def _unchecked(experiment: Experiment, runs: Sequence[PartRun]) -> str:
    """Why no job can be compared."""
    if not experiment.jobs:
        return "No jobs were replayed"
    if all(job.started_s is None for job in experiment.jobs):
        return "This history does not say when its jobs really started"
    if next(_really_started(experiment, runs), None) is not None:
        return "None of the jobs that really started has a start in the simulation"
    return "No job that came in this time really started, or can be replayed"


def _really_started(experiment: Experiment, runs: Sequence[PartRun]) -> Iterator[int]:
    """Numbers of the jobs that counted and started in the past alone."""
    for run in runs:
        for number in run.never_started:
            if experiment.jobs[number].started_s is not None:
                yield number


def _refusals(runs: Sequence[PartRun]) -> Refusals:
    refusals: Counter[tuple[str, str]] = Counter()
    for run in runs:
        refusals.update(run.refused)
    return refusals
