"""Reads running steps and their reserved ports, or that they have none.

slurmctld reserves ports as it makes a step (step_mgr.c) and frees them when that ends, so it is
asked once per step.
"""

import re
from collections.abc import Collection, Mapping

from slicewise.cluster.language.jobs import JobView, StepView
from slicewise.cluster.language.slurm.parse import parse_step, parse_step_ids
from slicewise.cluster.language.slurm.unread import ReportsUnread, each
from slicewise.cluster.language.slurm.values import MOST_STEPS, answers, whole
from slicewise.cluster.slurm.run_command import IDS, SQUEUE, attempt, run, secret

_RUNS = re.compile(r"^ +State=RUNNING .*NodeList=", re.MULTILINE)
_Key = tuple[int, int, int | None, str]
"""Job id, number of requeues, Unix second of the start, step."""


class StepReader:
    """Reads the steps of jobs repeatedly, and remembers the ports of known ones."""

    def __init__(self, told: ReportsUnread) -> None:
        """``told`` takes what can't be read."""
        self._told = told
        self._known: Mapping[_Key, StepView | None] = {}

    async def read(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        """Steps with reserved ports, among the first eight steps of each of these running jobs.

        Runs ``squeue --steps`` for their names, then one ``scontrol`` for the ports of new steps.
        () if no job is named.
        """
        by_name = {job.task: job for job in jobs}
        listed = parse_step_ids(await run((*SQUEUE, "--steps", IDS))) if jobs else ()
        numbers: dict[str, list[int]] = {}
        for name, step in listed:
            if name in by_name:
                numbers.setdefault(name, []).append(whole(step))
        # Each step takes a call of its own, and a job may have tens of thousands.
        names = {
            _key(by_name[name], step): name
            for name, steps_of_job in numbers.items()
            for step in sorted(steps_of_job)[:MOST_STEPS]
        }
        views = {key: view for key, view in self._known.items() if key in names}
        if new := {key: name for key, name in names.items() if key not in views}:
            views |= await self._ask(new)
        self._known = views
        return tuple(view for view in views.values() if view is not None)

    async def _ask(self, names: Mapping[_Key, str]) -> Mapping[_Key, StepView | None]:
        """Ask for each step by itself, with lines between the answers that no user can write.

        A step is None if it runs and has no ports. A step that does not run yet, or no longer, is
        left out.
        """
        mark = secret()
        lines = (f"show step {job}.{step}\nshow hostnames {mark}\n" for job, _, _, step in names)
        # A step that has ended meanwhile is no failure.
        reply = await attempt(("scontrol",), stdin="".join(lines))
        answered = zip(names, answers(reply.output, mark), strict=False)
        views = each(
            "step",
            answered,
            lambda pair: (pair, parse_step(pair[1], job_id=pair[0][0], step=pair[0][-1])),
            self._told,
            lambda pair: f"{names[pair[0]]}.{pair[0][-1]}",
        )
        return {key: view for (key, text), view in views if view or _RUNS.search(text)}


def _key(job: JobView, step: int) -> _Key:
    return job.job_id, job.restarts, job.start_s, str(step)
