"""The pool on the model of Slurm, its queue in the order of a policy.

A job is submitted with the site_factor of its score, and those that wait get a new one each five
minutes, as Slurm's own factors do (PriorityCalcPeriod). Nothing has a limit, nothing is preempted:
only the order differs.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slicewise.cluster.language.jobs import ALLOTTED, WAITING, JobView
from slicewise.cluster.language.slurm.interface import JobChange
from slicewise.simulation.rules.cluster import Scheduling
from slicewise.simulation.rules.site.past_requests import Replay, Replayable, replays
from slicewise.simulation.rules.site.priorities import PriorityRules, SitePriorities
from slicewise.simulation.rules.site.records import ReplayedRun, SiteRecord, replayed
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.admission.decayed_use import DecayedUse, Holding
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority_changes import UPDATES_PER_S
from studies.headline.loads import Load
from studies.headline.systems import (
    COSTS,
    GPU_MILLISLICES,
    SETTINGS,
    fair_share,
    fifo,
    tenants,
)
from studies.priorities.queues import Policy, Queue, site_factors

_EVERY_S = 300.0
_TAIL_S = 30 * 86_400.0
"""Seconds after the last submission in which all jobs start, whatever the policy."""


def replay(
    load: Load,
    policy: Policy,
    *,
    by_shares: bool = False,
    window_s: float = Scheduling.backfill_window_s,
) -> SiteRecord:
    """Replay a load under a backfill that plans ``window_s`` ahead.

    ``by_shares``: Slurm's fair share decides between jobs of the same score.
    """
    made = fair_share(load) if by_shares else fifo(load)
    scheduling = replace(made.cluster.scheduling, backfill_window_s=window_s)
    cluster = replace(made.cluster, scheduling=scheduling)
    can = Replayable(cluster, COSTS)
    jobs = replays(made.jobs, can, begin_s=load.begin_s, end_s=load.end_s)
    model = SlurmModel(cluster, start_s=load.begin_s, costs=COSTS)
    return PolicySite(model, load, policy, jobs).run()


class PolicySite:
    """One pool under one policy."""

    def __init__(
        self, model: SlurmModel, load: Load, policy: Policy, jobs: Sequence[Replay]
    ) -> None:
        self._model, self._load, self._policy, self._jobs = model, load, policy, jobs
        self._next = 0
        self._look_s = load.begin_s + _EVERY_S
        self._replays: dict[int, Replay] = {}
        self._runs: dict[int, ReplayedRun] = {}
        self._factors: dict[int, int] = {}
        self._holdings: dict[int, Holding] = {}
        self._pool_gpus = sum(load.gpus.values())
        self._held = dict.fromkeys(load.gpus, 0)
        self._quotas = tenants(load.gpus)
        settings = SETTINGS.priority
        rules = PriorityRules(
            *(formula_of(settings), COSTS, settings.half_life_s, UPDATES_PER_S),
            counts_past=False,
        )
        self._use = SitePriorities(rules, DecayedUse(load.begin_s))

    def run(self) -> SiteRecord:
        """Replay all of it, until every job has started."""
        model, last_s = self._model, self._load.end_s + _TAIL_S
        while model.now_s < last_s and (self._next < len(self._jobs) or self._factors):
            due_s = self._look_s
            if self._next < len(self._jobs):
                due_s = min(due_s, self._jobs[self._next].at_s)
            model.advance(max(model.now_s, due_s))
            self._submit_due()
            if model.now_s >= self._look_s:
                self._look()
                self._look_s = model.now_s + _EVERY_S
        return self._record()

    def _submit_due(self) -> None:
        now_s, first = self._model.now_s, self._next
        while self._next < len(self._jobs) and self._jobs[self._next].at_s <= now_s:
            self._next += 1
        come = self._jobs[first : self._next]
        if not come:
            return
        factors = site_factors(self._policy(self._queue(come)))
        for job, factor in zip(come, factors, strict=True):
            job_id = self._model.submit(replace(job.request, site_factor=factor))
            self._replays[job_id], self._factors[job_id] = job, factor

    def _queue(self, jobs: Sequence[Replay]) -> Queue:
        own, now_s = self._load.gpus, self._model.now_s
        held, shares = self._held, self._use.shares
        names = [job.request.account for job in jobs]
        came_s = np.array([job.at_s for job in jobs])
        return Queue(
            gpus=np.array([job.cost_millislices / GPU_MILLISLICES for job in jobs]),
            limit_s=np.array([float(job.request.time_limit_s or 0) for job in jobs]),
            came_s=came_s - self._load.begin_s,
            waited_s=now_s - came_s,
            held=np.array([held[name] / own[name] for name in names]),
            share=np.array([shares.get(name, 1.0) for name in names]),
            pool_gpus=self._pool_gpus,
            free=1.0 - sum(held.values()) / self._pool_gpus,
        )

    def _look(self) -> None:
        """Follow what runs, and give those that wait their new places."""
        self._collect()
        views = self._model.jobs
        self._follow(views)
        waiting = [view.job_id for view in views if view.state in WAITING]
        self._factors = {job_id: self._factors[job_id] for job_id in waiting}
        if not waiting:
            return
        queue = self._queue([self._replays[job_id] for job_id in waiting])
        for job_id, factor in zip(waiting, site_factors(self._policy(queue)), strict=True):
            if factor != self._factors[job_id]:
                self._model.update(job_id, JobChange(site_factor=factor))
                self._factors[job_id] = factor

    def _collect(self) -> None:
        """Take the runs that have ended."""
        for run in self._model.take_ended():
            if run.start_s is not None:
                self._runs[run.job_id] = ReplayedRun(run.start_s, run.end_s)
                cost = self._replays[run.job_id].cost_millislices
                self._holdings[run.job_id] = Holding(run.account, cost, run.start_s, run.end_s)

    def _follow(self, views: Sequence[JobView]) -> None:
        """Count what tenants hold, and have held since the last look."""
        self._held = dict.fromkeys(self._load.gpus, 0)
        for view in views:
            if view.state in ALLOTTED and view.start_s is not None:
                cost = self._replays[view.job_id].cost_millislices
                self._held[view.account] += cost // GPU_MILLISLICES
                start_s = float(view.start_s)
                self._holdings[view.job_id] = Holding(view.account, cost, start_s, None)
        self._use.follow(self._quotas, {}, self._holdings.values(), self._model.now_s)
        self._holdings.clear()

    def _record(self) -> SiteRecord:
        self._collect()
        running = {
            view.job_id: ReplayedRun(float(view.start_s), None)
            for view in self._model.jobs
            if view.start_s is not None and view.state in ALLOTTED
        }
        return SiteRecord(
            begin_s=self._load.begin_s,
            stopped_s=self._model.now_s,
            jobs=tuple(
                replayed(
                    job,
                    [self._runs[job_id]] if job_id in self._runs else [],
                    running.get(job_id),
                    None,
                    waits=False,
                )
                for job_id, job in self._replays.items()
            ),
        )
