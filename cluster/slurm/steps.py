"""Running steps and their ports, or that they have none: slurmctld reserves them as it makes a step
(step_mgr.c) and frees them when that ends, so it is asked once.
"""

import re
from collections.abc import Collection, Mapping

from cluster.jobs import JobView, StepView
from cluster.slurm.job_rows import shown_name
from cluster.slurm.parse import parse_step, parse_step_ids
from cluster.slurm.run import IDS, SQUEUE, attempt, run, secret
from cluster.slurm.unread import Told, each
from cluster.slurm.values import MOST_STEPS, answers

_RUNS = re.compile(r"^ +State=RUNNING .*NodeList=", re.MULTILINE)
_Key = tuple[int, int, int | None, str]
"""Job id, how often it was requeued, when it started, step."""


class StepReader:
    """Reads the steps of jobs, again and again."""

    def __init__(self, told: Told) -> None:
        """``told`` takes what can't be read."""
        self._told = told
        self._known: Mapping[_Key, StepView | None] = {}

    async def read(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        """Those with reserved ports, of each of these running jobs the first eight.

        ``squeue --steps`` for their names, then one ``scontrol`` for the ports of new ones. Nothing
        if no job is named.
        """
        by_name = {shown_name(job): job for job in jobs}
        listed = parse_step_ids(await run((*SQUEUE, "--steps", IDS))) if jobs else ()
        numbers: dict[str, list[int]] = {}
        for name, step in listed:
            if name in by_name:
                numbers.setdefault(name, []).append(int(step))
        # Each is a call of its own, and a job may have tens of thousands.
        there = {
            _key(by_name[name], step): name
            for name, found in numbers.items()
            for step in sorted(found)[:MOST_STEPS]
        }
        known = {key: view for key, view in self._known.items() if key in there}
        if new := {key: name for key, name in there.items() if key not in known}:
            known |= await self._ask(new)
        self._known = known
        return tuple(view for view in known.values() if view is not None)

    async def _ask(self, names: Mapping[_Key, str]) -> Mapping[_Key, StepView | None]:
        """Each step's own words, told apart by lines that nobody can have written into them. None
        if it runs and has no ports; of one that does not run yet, or no more, there is nothing.
        """
        mark = secret()
        lines = (f"show step {job}.{step}\nshow hostnames {mark}\n" for job, _, _, step in names)
        # A step that has ended meanwhile is no failure.
        reply = await attempt(("scontrol",), stdin="".join(lines))
        answered = zip(names, answers(reply.output, mark), strict=False)
        views = each(
            "step",
            answered,
            lambda one: (one, parse_step(one[1], job_id=one[0][0], step=one[0][-1])),
            self._told,
            lambda one: f"{names[one[0]]}.{one[0][-1]}",
        )
        return {key: view for (key, text), view in views if view or _RUNS.search(text)}


def _key(job: JobView, step: int) -> _Key:
    return job.job_id, job.restarts, job.start_s, str(step)
