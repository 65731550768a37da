"""The model of slurmctld: what is asked of it, and what happens by itself, second by second.

Modelled, after Slurm 22.05 to 26.05's own source and what was tried on real clusters: the main
scheduler and backfill (``scheduler.py``, ``backfill.py``), limits of QOS and accounts in Slurm's
order (``qos_limits.py``), multifactor priority with fair share (``priority.py``), preemption by QOS
(``preemption.py``), holds, releases, requeues and their wait, arrays whose tasks become records of
their own once touched, time limits, COMPLETING, nodes that fail, other GPUs of a node, and
maintenance reservations of whole nodes from now on until they are deleted.

Not modelled: dependencies, other reservations, features, licenses, several partitions or QOS of one
job, the partition's own QOS, partitions of different tiers, steps, JobArrayTaskLimit, exclusive
nodes, EnforcePartLimits (what a partition's limits forbid waits, as where it is NO: jobs of the
past were taken), drained nodes (a node is in use, reserved or down), suspending, GPUs that jobs
share, a prolog, CompleteWait, the time that slurmctld itself needs, and that it looks at time
limits only every thirty seconds.

Nothing here reads a clock or draws a random number: the same calls give the same answers.
"""

from collections.abc import Mapping
from math import ceil, inf

from slicewise.cluster.language.gres import parse_gpu_requests
from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.slurm_model.backfill import run_backfill
from slicewise.simulation.rules.slurm_model.job_records import (
    BEGIN_TIME,
    HELD_BY_ADMIN,
    HELD_BY_USER,
    NO_REASON,
    NODE_FAIL,
    SPECIAL_EXIT,
    EndedRun,
    JobRecord,
    job_view,
)
from slicewise.simulation.rules.slurm_model.job_requests import (
    AccountLimits,
    ModelRequest,
    QosLimits,
)
from slicewise.simulation.rules.slurm_model.model_state import ModelState
from slicewise.simulation.rules.slurm_model.nodes import ModelNode, bits
from slicewise.simulation.rules.slurm_model.priority import next_period_s
from slicewise.simulation.rules.slurm_model.qos_limits import CALC_PERIOD_S
from slicewise.simulation.rules.slurm_model.scheduler import run_scheduler

NOT_PENDING = "Job is no longer pending execution"


class SlurmModel:
    """A slurmctld.

    Nothing happens between calls: ``advance`` lets time pass. Ids of jobs rise by one.

    Attributes:
        now_s: Unix seconds.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        *,
        start_s: float,
        costs: Mapping[str, int],
    ) -> None:
        """Begin with an empty queue.

        Args:
            cluster: nodes, accounts and how Slurm schedules.
            start_s: Unix seconds.
            costs: TRESBillingWeights: the billing of one GPU or instance by GRES type.
        """
        self._state = ModelState(cluster, start_s, costs)
        self._names = tuple(self._state.nodes.index)
        self._start_s = start_s
        self._backfills = cluster.scheduling.backfills
        self._scheduler_s = self._batch_s = self._full_s = self._backfill_s = inf
        self._last_s = self._last_batch_s = self._last_full_s = -inf
        self._last_backfill_s = self._ticked_s = start_s
        self._jobs: tuple[JobView, ...] = ()

    # --- what it shows ---------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Unix seconds."""
        return self._state.now_s

    @property
    def kill_wait_s(self) -> float:
        """Slurm's KillWait."""
        return self._state.scheduling.kill_wait_s

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """Every job that slurmctld knows; each the same object until it changes."""
        state = self._state
        if not state.is_shown:
            names = self._names
            self._jobs = tuple(
                [
                    record.view if record.view is not None else job_view(record, names)
                    for record in state.records.values()
                ]
            )
            state.is_shown = True
        return self._jobs

    def array(self, array_job_id: int) -> tuple[JobView, ...]:
        """The records of one array among ``jobs``."""
        state = self._state
        tasks = state.arrays.get(array_job_id, {}).values()
        views = {task.job_id: task for task in tasks}
        if (first := state.records.get(array_job_id)) is not None:
            views[array_job_id] = first
        return tuple(job_view(views[job_id], self._names) for job_id in sorted(views))

    @property
    def nodes(self) -> tuple[NodeView, ...]:
        """Every node; each the same object until it changes."""
        return tuple(node.shown() for node in self._state.nodes.nodes)

    def take_ended(self) -> tuple[EndedRun, ...]:
        """Return the runs that have ended since the last call."""
        runs = tuple(self._state.ended)
        self._state.ended.clear()
        return runs

    # --- what users and operators do -------------------------------------------------------------

    def begin_with(self, used: Mapping[tuple[str, str], float]) -> None:
        """Say what users, by account and name, have used so far: billing × seconds, decayed."""
        self._state.priorities.begin_with(used, self._state.now_s)

    def submit(self, job: ModelRequest) -> int:
        """Submit a job or an array; return its id."""
        record = self._state.add(job)
        if job.held:
            record.held, record.reason = True, HELD_BY_USER
        self._settle(record)
        return record.job_id

    def cancel(self, target: Target) -> None:
        """Cancel; a task's index never comes back."""
        for record in self._records(target):
            self._cancel(record)

    def hold(self, target: Target) -> None:
        """Hold what waits, as administrator; what runs or completes is left alone."""
        for record in self._waiting(target):
            self._state.dequeue(record)
            record.turn += 1
            record.held, record.priority = True, 0
            self._state.say(record, HELD_BY_ADMIN)
            self._state.touch(record)

    def release(self, target: Target, limit_min: int | None = None) -> None:
        """Make what waits eligible now, and release it; ``limit_min`` is its new time limit."""
        for record in self._waiting(target):
            self._state.dequeue(record)
            record.turn += 1
            if limit_min is not None:
                record.limit_s = limit_min * 60
            if record.held or record.begin_s > self.now_s:
                record.begin_s = self.now_s
            record.held = False
            record.reason = NO_REASON
            self._state.touch(record)
            self._settle(record)

    def requeue_hold(self, target: Target) -> None:
        """End the runs; the jobs come back held, those whose run has ended, too.

        A job that may not be requeued runs on. What waits is left alone.
        """
        for record in self._records(target):
            if not record.request.requeues:
                continue
            if record.state is JobState.RUNNING:
                self._state.stop(record, "REQUEUED", returns=True, held=True)
            elif record.state is JobState.COMPLETING:
                record.returns = record.returns_held = True
            elif record.state is JobState.ENDED and record.start_s is not None:
                record.returns_held = True
                self._state.wait_again(record)

    def requeue(self, target: Target) -> None:
        """End the runs, as a preemption does: who may be requeued waits again, others are gone."""
        for record in self._records(target):
            if record.state is JobState.RUNNING:
                returns = record.request.requeues
                self._state.stop(record, "REQUEUED" if returns else "CANCELLED", returns=returns)

    def would_requeue(self, job_id: int) -> bool:
        """Whether a preemption of the run would be possible now, and would requeue its job."""
        record = self._state.records[job_id]
        limits = self._state.limits.of_qos(record.qos)
        runs_s = -inf if record.start_s is None else self.now_s - record.start_s
        requeues = limits.preempt_requeues and record.request.requeues
        return requeues and runs_s >= limits.preempt_exempt_s

    def finish(self, target: Target) -> None:
        """End, by themselves, runs that were told to end and go on (``ModelRequest.finishes``)."""
        for record in self._records(target):
            if record.state is JobState.COMPLETING:
                self._state.finish_run(record)

    def update(self, target: Target, change: JobChange) -> str:
        """Change what waits; return Slurm's refusal, or "".

        Of a running job the time limit, the site_factor and the administrator's comment.
        """
        job_records = self._records(target)
        if (
            any(not _may_change(job_record, change) for job_record in job_records)
            or not job_records
        ):
            return NOT_PENDING
        for record in job_records:
            if record.state is JobState.RUNNING:
                self._change_run(record, change)
            else:
                self._change(record, change)
        return ""

    # --- what operators and nodes do -------------------------------------------------------------

    def set_qos(self, name: str, limits: QosLimits) -> None:
        """Add a QOS or change it."""
        before = self._state.limits.qos.get(name)
        self._state.limits.set_qos(name, limits)
        if before is None or _ranks(before) != _ranks(limits):
            self._state.rank_again()
        self._state.limits_changed()

    def remove_qos(self, name: str) -> None:
        """Delete a QOS: its waiting jobs wait with InvalidQOS until they get another one."""
        self._state.limits.remove_qos(name)
        self._state.rank_again()
        self._state.limits_changed()

    def set_account(self, name: str, limits: AccountLimits) -> None:
        """Add an account, or change its limits and share."""
        self._state.limits.set_account(name, limits)
        self._state.limits_changed()

    def fail_node(self, name: str) -> None:
        """Let a node fail: its jobs end, and wait again if they may be requeued."""
        node = self._node(name)
        node.is_up = False
        self._end_all(list(node.jobs.values()))
        self._node_changed(name)

    def restore_node(self, name: str) -> None:
        """Let a node that failed come back, empty."""
        self._node(name).is_up = True
        self._node_changed(name)

    def reserve_node(self, name: str) -> None:
        """Let nothing start on a node: a maintenance reservation. What runs there goes on."""
        self._node(name).is_reserved = True
        self._node_changed(name)

    def release_node(self, name: str) -> None:
        """Delete the reservation."""
        self._node(name).is_reserved = False
        self._node_changed(name)

    def weigh_node(self, name: str, weight: int) -> None:
        """Give a node another weight."""
        self._node(name).weight = weight
        self._node_changed(name)

    def devices(self, name: str) -> Mapping[int, frozenset[int]]:
        """The indices of the node's GPUs that each job holds, by job id; also while it completes.

        They are in the order of the node's types, as ``NodeView.gpus`` has them.
        """
        node = self._node(name)
        return {
            job_id: frozenset(
                index
                for owner, _, _, held in job.held_gpus
                if owner is node
                for index in bits(held)
            )
            for job_id, job in node.jobs.items()
        }

    def cut_node(self, name: str, gpus: Mapping[str, int]) -> None:
        """Give a node other GPUs beside its jobs, each of which keeps the indices of its own.

        Raises ValueError, and changes nothing, if one of these would be of another type.
        """
        self._state.nodes.cut(self._state.nodes.index[name], gpus)
        self._node_changed(name)

    def set_node_gpus(self, name: str, gpus: Mapping[str, int]) -> None:
        """Give a node other GPUs; the jobs on it end, and wait again if they may be requeued."""
        node = self._node(name)
        self._end_all(list(node.jobs.values()))
        for record in list(node.jobs.values()):
            self._complete(record)
        self._state.nodes.set_gpus(self._state.nodes.index[name], gpus)
        self._node_changed(name)

    # --- time ------------------------------------------------------------------------------------

    def next_s(self) -> float | None:
        """When something happens by itself next; None if never."""
        at_s = self._next_s()
        return None if at_s == inf else at_s

    def advance(self, until_s: float) -> None:
        """Let everything happen that is due until then, in order, and let it be then."""
        state = self._state
        while (at_s := self._next_s()) <= until_s:
            state.now_s = at_s
            if state.next_event_s() <= at_s:
                self._happen(state.next_event())
            elif self._tick_s() <= at_s:
                self._tick()
            elif state.wake_s <= at_s:
                state.wake_s = inf
                state.is_changed = True
            elif min(self._scheduler_s, self._batch_s, self._full_s) <= at_s:
                self._schedule()
            else:
                self._backfill_s = inf
                self._last_backfill_s = at_s
                run_backfill(state)
        state.now_s = max(state.now_s, until_s)

    def _next_s(self) -> float:
        state = self._state
        if state.is_changed:
            state.is_changed = False
            self._plan_run()
            self._plan_further_runs()
        own = min(self._scheduler_s, self._batch_s, self._full_s, self._backfill_s)
        own = min(own, state.wake_s)
        return max(state.now_s, min(own, state.next_event_s(), self._tick_s()))

    def _plan_run(self) -> None:
        due_s = max(self.now_s, self._last_s + self._state.scheduling.interval_s)
        self._scheduler_s = min(self._scheduler_s, due_s)

    def _plan_batch_run(self) -> None:
        """Plan a run for jobs that were submitted or released."""
        of = self._state.scheduling
        due_s = max(self.now_s, self._last_s + of.interval_s, self._last_batch_s + of.batch_delay_s)
        self._batch_s = min(self._batch_s, due_s)

    def _plan_further_runs(self) -> None:
        full_s = self._state.scheduling.full_run_s
        self._full_s = min(self._full_s, self._phase_s(full_s, self._last_full_s))
        if self._backfills:
            every_s = self._state.scheduling.backfill_s
            self._backfill_s = min(self._backfill_s, self._phase_s(every_s, self._last_backfill_s))

    def _phase_s(self, every_s: float, last_s: float) -> float:
        """The next time of something that happens every so many seconds since the beginning."""
        number = ceil((self.now_s - self._start_s) / every_s)
        at_s = self._start_s + number * every_s
        return at_s if at_s > last_s else at_s + every_s

    def _schedule(self) -> None:
        state = self._state
        is_full = self._full_s <= state.now_s
        if self._batch_s <= state.now_s:
            self._last_batch_s = state.now_s
        self._scheduler_s = self._batch_s = inf
        self._last_s = state.now_s
        if is_full:
            self._full_s = inf
            self._last_full_s = state.now_s
        elif len(state.queue) <= state.scheduling.depth:
            self._full_s = inf
        run_scheduler(state, is_full=is_full)

    def _tick_s(self) -> float:
        state = self._state
        is_needed = state.priorities.changes_by_itself or state.limits.counts_minutes
        if not is_needed or not state.waiting:
            return inf
        return next_period_s(self._ticked_s)

    def _tick(self) -> None:
        state = self._state
        self._ticked_s = state.now_s // CALC_PERIOD_S * CALC_PERIOD_S
        if state.priorities.changes_by_itself:
            state.priorities.pass_period(state.now_s)
            state.sort_again()
        state.limits_changed()

    def _happen(self, record: JobRecord) -> None:
        if record.state is JobState.RUNNING:
            if record.until_s <= self.now_s:
                self._state.stop(record, "TIMEOUT")
            elif record.request.exits_held:
                self._state.stop(record, SPECIAL_EXIT, returns=True, held=True)
            else:
                self._state.stop(record, "COMPLETED")
        elif record.state is JobState.COMPLETING:
            self._complete(record)
        elif record.state is JobState.PENDING:
            self._settle(record)
        else:
            self._state.forget(record)

    # --- parts -----------------------------------------------------------------------------------

    def _settle(self, record: JobRecord) -> None:
        """Put a waiting job into the queue, if it may start, or say why it may not."""
        state = self._state
        if record.held:
            return
        if record.begin_s > state.now_s:
            state.say(record, BEGIN_TIME)
            state.at(record.begin_s, record)
            return
        if record.reason == BEGIN_TIME:
            record.reason = NO_REASON
        record.eligible_s = record.begin_s
        record.priority = state.priorities.of(record, state.now_s)
        state.enqueue(record)
        state.touch(record)
        self._plan_batch_run()
        self._plan_further_runs()

    def _complete(self, record: JobRecord) -> None:
        self._state.complete(record)
        if record.state is JobState.PENDING:
            self._settle(record)

    def _cancel(self, record: JobRecord) -> None:
        state = self._state
        if record.state is JobState.RUNNING:
            state.stop(record, "CANCELLED")
        elif record.state is JobState.COMPLETING:
            record.returns = False
        elif record.state is JobState.PENDING:
            state.dequeue(record)
            state.note_end(record, "CANCELLED")
            state.finish(record, "CANCELLED")

    def _records(self, target: Target) -> list[JobRecord]:
        """The records of a target; untouched tasks of it get records of their own."""
        state = self._state
        array_id = target.array_job_id if isinstance(target, Tasks) else target
        tasks = state.arrays.get(array_id)
        first = state.records.get(array_id)
        if not isinstance(target, Tasks):
            if tasks is None:
                return [] if first is None else [first]
            together = [first] if first is not None and first.task_index is None else []
            return [*together, *tasks.values()]
        if tasks is None:
            return []
        job_records = [tasks[index] for index in sorted(target.indices) if index in tasks]
        if first is None or not first.untouched or first.state is not JobState.PENDING:
            return job_records
        if target.indices.issuperset(first.untouched):
            return [first, *job_records]
        asked = [index for index in first.untouched if index in target.indices]
        return [*job_records, *(state.split(first, index) for index in asked)]

    def _waiting(self, target: Target) -> list[JobRecord]:
        return [record for record in self._records(target) if record.state is JobState.PENDING]

    def _change_run(self, record: JobRecord, change: JobChange) -> None:
        state = self._state
        if change.site_factor is not None:
            record.site_factor = change.site_factor
        if change.admin_comment is not None:
            record.admin_comment = change.admin_comment
        state.touch(record)
        if change.time_limit_min is None:
            return
        state.limits.end(record, state.now_s)
        record.limit_s = change.time_limit_min * 60
        state.limits.begin(record, state.now_s)
        state.set_ends(record)
        state.limits_changed()

    def _change(self, record: JobRecord, change: JobChange) -> None:
        state = self._state
        is_queued = record.key is not None
        state.dequeue(record)
        record.qos = record.qos if change.qos is None else change.qos
        if change.site_factor is not None:
            record.site_factor = change.site_factor
        if change.admin_comment is not None:
            record.admin_comment = change.admin_comment
        if change.time_limit_min is not None:
            record.limit_s = change.time_limit_min * 60
        if change.excluded_nodes is not None:
            names = state.nodes.index
            record.excluded = sum(1 << names[key] for key in change.excluded_nodes if key in names)
        self._reshape(record, change)
        state.touch(record)
        if is_queued:
            record.priority = state.priorities.of(record, state.now_s)
            state.enqueue(record)
            state.is_changed = True

    def _reshape(self, record: JobRecord, change: JobChange) -> None:
        asked = [text for text in (change.gres, change.tres_per_job, change.tres_per_task) if text]
        if not asked:
            return
        shape = record.shape
        gpus = {
            request.gres_type or "": request.count
            for text in asked
            for request in parse_gpu_requests(text)
        }
        record.shape = self._state.nodes.shape(gpus, shape.cpus, shape.memory_mib)
        record.tres = self._state.amounts(record.shape, record.request.nodes)

    def _node(self, name: str) -> ModelNode:
        return self._state.nodes.nodes[self._state.nodes.index[name]]

    def _end_all(self, records: list[JobRecord]) -> None:
        for record in records:
            if record.state is JobState.RUNNING:
                self._state.stop(record, NODE_FAIL, returns=record.request.requeues)

    def _node_changed(self, name: str) -> None:
        self._state.nodes.changed(self._state.nodes.index[name])
        self._state.is_changed = True


def _ranks(limits: QosLimits) -> tuple[frozenset[str], int]:
    """What of a QOS decides the order of the queue."""
    return limits.preempts, limits.priority


def _may_change(record: JobRecord, change: JobChange) -> bool:
    if record.state is JobState.RUNNING:
        return change == JobChange(
            site_factor=change.site_factor,
            admin_comment=change.admin_comment,
            time_limit_min=change.time_limit_min,
        )
    return record.state is JobState.PENDING
