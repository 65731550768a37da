"""What the model's schedulers read and change: nodes, records, the queue, starts and ends."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heappop, heappush
from math import floor, inf

from slicewise.cluster.language.gres import tres_name
from slicewise.cluster.language.jobs import JobState
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.slurm_model.job_records import (
    BECOMES_PRIORITY,
    HELD_AFTER_REQUEUE,
    HELD_BY_USER,
    NO_REASON,
    NODE_FAIL,
    PARTITION_TIME_LIMIT,
    SPECIAL_EXIT,
    EndedRun,
    JobRecord,
    Key,
    Shape,
)
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.simulation.rules.slurm_model.nodes import ANY_TYPE, NodeTable
from slicewise.simulation.rules.slurm_model.priority import Priorities
from slicewise.simulation.rules.slurm_model.qos_limits import ModelLimits

MIN_JOB_AGE_S = 300.0
"""MinJobAge: how long slurmctld keeps a job that has ended."""
_CREDENTIAL_S = 1.0
"""Seconds more: the credential of the next run must be younger than the revocation of the last."""
_LAST_TASK = 1 << 32
"""Index by which an array's untouched tasks stand in the queue: behind those that were touched."""


class ModelState:
    """The state of slurmctld, and the steps that change it without deciding anything.

    Attributes:
        records: every record, by id, in the order in which they were made.
        queue: keys of the jobs that may start, best first; ``waiting`` has their records by id.
        fresh: of these, by partition, those that would be said to wait for Priority if they are
            behind another; and ``partitions`` how many wait in each.
        running: the jobs that run, by QOS and id.
        wake_s: when preemption may succeed that does not now, though nothing else happens.
        ended: runs that have ended and were not fetched yet.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        start_s: float,
        costs: Mapping[str, int],
    ) -> None:
        self.scheduling = cluster.scheduling
        self._max_time_s, self._default_time_s = cluster.max_time_s, cluster.default_time_s
        self.now_s = start_s
        self.costs = costs
        self.nodes = NodeTable(cluster)
        self.limits = ModelLimits(cluster.accounts, cluster.shares, start_s)
        self.priorities = Priorities(cluster.scheduling.weights, len(cluster.nodes), self.limits)
        self.priorities.begin_at(start_s)
        self.records: dict[int, JobRecord] = {}
        self.arrays: dict[int, dict[int, JobRecord]] = {}
        self.queue: list[Key] = []
        self.waiting: dict[int, JobRecord] = {}
        self.fresh: dict[str, dict[int, JobRecord]] = {}
        self.partitions: dict[str, int] = {}
        self.running: dict[str, dict[int, JobRecord]] = {}
        self.ended: list[EndedRun] = []
        self.wake_s = inf
        self.is_changed = True
        self.is_shown = False
        self.next_id = 1
        self._events: list[tuple[float, int, int, JobRecord]] = []
        self._event_number = 0
        self._limited: dict[int, str] = {}
        self._ranks: dict[str, int] = {}
        self._kinds: dict[tuple[str, str, str, Shape, int, float, int], int] = {}

    # --- records -------------------------------------------------------------------------------

    def add(self, request: ModelRequest) -> JobRecord:
        """Add a record for a job or a whole array."""
        shape = self.nodes.shape(request.gpus, request.cpus, request.memory_mib)
        record = JobRecord(self.next_id, request, shape, self.now_s)
        self.next_id += 1
        record.tres = self.amounts(record.shape, request.nodes)
        times_s = (
            request.time_limit_s,
            self._default_time_s.get(request.partition),
            self._max_time_s.get(request.partition),
        )
        record.limit_s = next((time_s for time_s in times_s if time_s), inf)
        record.begin_s = max(self.now_s, request.begin_s or 0.0)
        self.records[record.job_id] = record
        self.touch(record)
        if indices := request.indices or range(request.tasks):
            record.array_job_id = record.job_id
            record.untouched = list(indices)
            self.arrays[record.job_id] = {}
        return record

    def split(self, array: JobRecord, index: int) -> JobRecord:
        """Return a record of its own for an untouched task; the last one keeps the array's."""
        self.touch(array)
        if len(array.untouched) == 1:
            array.task_index = array.untouched.pop()
            self.arrays[array.job_id][index] = array
            if array.key is not None:
                self.dequeue(array)
                self.enqueue(array)
            return array
        task = array.split(self.next_id, index)
        self.next_id += 1
        self.records[task.job_id] = task
        self.arrays[array.job_id][index] = task
        if array.key is not None:
            self.enqueue(task)
        elif not task.held:
            self.at(task.begin_s, task)
        return task

    def forget(self, record: JobRecord) -> None:
        """Forget a job that ended a while ago."""
        del self.records[record.job_id]
        array = record.array_job_id
        if array is not None:
            tasks = self.arrays[array]
            if record.task_index is not None:
                del tasks[record.task_index]
            if not tasks and array not in self.records:
                del self.arrays[array]
        self.is_shown = False

    def touch(self, record: JobRecord) -> None:
        """Note that the record is not as it was shown."""
        record.view = None
        self.is_shown = False

    def say(self, record: JobRecord, reason: str) -> None:
        """Set the reason for which the job waits."""
        if record.reason != reason:
            record.reason = reason
            self.touch(record)
            if record.key is not None:
                self._note_reason(record)

    def amounts(self, shape: Shape, nodes: int) -> Mapping[str, int]:
        """What limits count of a job, on all of its nodes together.

        GPUs without a type bill nothing before they are allotted, as in Slurm.
        """
        usage: dict[str, int] = {"cpu": shape.cpus * nodes, "mem": shape.memory_mib * nodes}
        usage["node"] = nodes
        usage["billing"] = 0
        for kind, count in shape.gpus:
            usage["billing"] += self.costs.get(kind, 0) * count * nodes
            usage["gres/gpu"] = usage.get("gres/gpu", 0) + count * nodes
            if kind != ANY_TYPE:
                usage[tres_name(kind)] = count * nodes
        return usage

    def limit(self, record: JobRecord) -> str:
        """The reason why limits keep a waiting job from its start now; "" if none does."""
        reason = self._limited.get(record.kind)
        if reason is None:
            most_s = self._max_time_s.get(record.request.partition, inf)
            is_too_long = record.limit_s > most_s
            reason = (
                PARTITION_TIME_LIMIT if is_too_long else self.limits.blocking(record, self.now_s)
            )
            if reason:
                self._limited[record.kind] = reason
        return reason

    def keeps_nodes(self, record: JobRecord) -> bool:
        """Whether others wait for nodes that the job waits for: bf_min_age_reserve and its like."""
        scheduling, eligible_s = self.scheduling, record.eligible_s
        if record.priority < scheduling.reserve_priority:
            return False
        waited_s = 0.0 if eligible_s is None else self.now_s - eligible_s
        return waited_s >= scheduling.reserve_age_s

    def limits_changed(self) -> None:
        """Note that limits may let jobs start that they did not before."""
        self._limited.clear()
        self.is_changed = True

    # --- events --------------------------------------------------------------------------------

    def at(self, at_s: float, record: JobRecord) -> None:
        """Have this job looked at in this second; void if its ``turn`` changes before."""
        if at_s != inf:
            self._event_number += 1
            heappush(self._events, (at_s, self._event_number, record.turn, record))

    def next_event_s(self) -> float:
        """When the next event is; inf if there is none."""
        while self._events and self._events[0][2] != self._events[0][3].turn:
            heappop(self._events)
        return self._events[0][0] if self._events else inf

    def next_event(self) -> JobRecord:
        """Take the next event: the job that is to be looked at."""
        return heappop(self._events)[3]

    # --- the queue -----------------------------------------------------------------------------

    def key(self, record: JobRecord) -> Key:
        """Where the job stands: before those that its QOS preempts, then by priority."""
        array = record.array_job_id or record.job_id
        task = record.task_index if record.task_index is not None else _LAST_TASK
        rank = self._rank(record.qos)
        return rank, -record.priority, record.submit_s, array, task, record.job_id

    def enqueue(self, record: JobRecord) -> None:
        """Let the job be considered for a start, with its priority as it is now."""
        record.key = self.key(record)
        record.kind = self._kind(record)
        self.waiting[record.job_id] = record
        partition = record.request.partition
        self.partitions[partition] = self.partitions.get(partition, 0) + 1
        self._note_reason(record)
        insort(self.queue, record.key)

    def dequeue(self, record: JobRecord) -> None:
        """Take the job out of the queue."""
        if record.key is not None:
            del self.queue[bisect_left(self.queue, record.key)]
            del self.waiting[record.job_id]
            partition = record.request.partition
            self.partitions[partition] -= 1
            if not self.partitions[partition]:
                del self.partitions[partition]
            self.fresh[partition].pop(record.job_id, None)
            record.key = None

    def rank_again(self) -> None:
        """Follow the QOS after a change of them."""
        self._ranks.clear()
        self.priorities.qos_changed()
        self.sort_again()

    def sort_again(self) -> None:
        """Compute the priority of every waiting job, and sort the queue by it."""
        for record in self.waiting.values():
            priority = self.priorities.of(record, self.now_s)
            if priority != record.priority:
                record.priority = priority
                self.touch(record)
            record.key = self.key(record)
        self.queue = sorted(
            job_record.key for job_record in self.waiting.values() if job_record.key is not None
        )

    def _note_reason(self, record: JobRecord) -> None:
        fresh = self.fresh.setdefault(record.request.partition, {})
        if record.reason in BECOMES_PRIORITY:
            fresh[record.job_id] = record
        else:
            fresh.pop(record.job_id, None)

    def _kind(self, record: JobRecord) -> int:
        request = record.request
        asked = (request.partition, record.shape, request.nodes, record.limit_s, record.excluded)
        key = (record.qos, request.account, *asked)
        return self._kinds.setdefault(key, len(self._kinds))

    def _rank(self, qos: str) -> int:
        """How many QOS one above the other preempt this one."""
        rank = self._ranks.get(qos)
        if rank is None:
            self._ranks[qos] = 0  # Two QOS that preempt each other are of one rank.
            above = [name for name, row in self.limits.qos.items() if qos in row.preempts]
            rank = max((self._rank(name) + 1 for name in above), default=0)
            self._ranks[qos] = rank
        return rank

    # --- runs ----------------------------------------------------------------------------------

    def start(self, record: JobRecord, nodes: tuple[int, ...]) -> JobRecord:
        """Start a job on these nodes, of an array its first untouched task; return what runs."""
        if record.untouched:
            record = self.split(record, record.untouched[0])
        self.dequeue(record)
        now_s = self.now_s
        record.state, record.reason = JobState.RUNNING, NO_REASON
        record.start_s, record.nodes = now_s, nodes
        record.preempting_s = None
        self.set_ends(record)
        self.nodes.take(record, nodes)
        if any(kind == ANY_TYPE for kind, _ in record.shape.gpus):
            record.tres = self._allotted(record)
        self.limits.begin(record, now_s)
        self.priorities.begin(record, now_s)
        self.running.setdefault(record.qos, {})[record.job_id] = record
        self.touch(record)
        return record

    def set_ends(self, record: JobRecord) -> None:
        """Follow a running job's time limit."""
        start_s = record.start_s or 0.0
        # Slurm has the start, so also this end, in whole seconds.
        record.until_s = floor(start_s) + record.limit_s
        record.ends_s = min(
            start_s + self.scheduling.start_s + record.request.run_s, record.until_s
        )
        record.ends_s = max(record.ends_s, self.now_s)
        record.turn += 1
        self.at(record.ends_s, record)
        for i in record.nodes:
            self.nodes.changed(i)

    def stop(
        self, record: JobRecord, word: str, *, returns: bool = False, held: bool = False
    ) -> None:
        """End a run: the limits no longer count it, and it holds its GPUs until it completes."""
        now_s = self.now_s
        self.limits.end(record, now_s)
        self.limits_changed()
        self.priorities.end(record, now_s)
        del self.running[record.qos][record.job_id]
        record.state = JobState.COMPLETING
        record.end_s = now_s
        record.word = word
        record.returns, record.returns_held = returns, held
        record.until_s = now_s + self.scheduling.complete_s
        if record.request.finishes and word != NODE_FAIL:
            record.until_s += self.scheduling.kill_wait_s
            if word == "TIMEOUT":
                record.returns = record.returns_held = True
        record.turn += 1
        self.at(record.until_s, record)
        self.note_end(record, word)
        self.nodes.complete_on(record.nodes, 1)
        for i in record.nodes:
            self.nodes.changed(i)
        self.touch(record)

    def finish_run(self, record: JobRecord) -> None:
        """Let a run that was told to end, and went on, be over before KillWait is."""
        record.until_s = min(record.until_s, self.now_s + self.scheduling.complete_s)
        record.turn += 1
        self.at(record.until_s, record)
        for i in record.nodes:
            self.nodes.changed(i)

    def note_end(self, record: JobRecord, word: str) -> None:
        """Note a run that has ended, or a job that was cancelled before it ran."""
        request = record.request
        self.ended.append(
            EndedRun(
                record.job_id,
                record.array_job_id,
                record.task_index,
                request.account,
                request.user,
                request.partition,
                record.qos,
                record.gpus,
                record.submit_s,
                record.eligible_s,
                record.start_s,
                self.now_s,
                word,
            )
        )

    def complete(self, record: JobRecord) -> None:
        """Take back what a stopped job holds; it has ended, or waits again."""
        self.nodes.complete_on(record.nodes, -1)
        self.nodes.give_back(record)
        record.nodes = ()
        self.is_changed = True
        if record.returns:
            self.wait_again(record)
        else:
            self.finish(record, record.word)

    def wait_again(self, record: JobRecord) -> None:
        """Let a job whose run is over wait for another one."""
        record.returns = False
        record.state, record.ended = JobState.PENDING, ""
        record.restarts += 1
        record.submit_s = self.now_s
        wait_s = self.scheduling.requeue_wait_s + _CREDENTIAL_S
        record.begin_s = (record.end_s or self.now_s) + wait_s
        record.eligible_s = record.start_s = record.end_s = None
        record.tres = self.amounts(record.shape, record.request.nodes)
        record.held = record.returns_held
        held = HELD_BY_USER if record.word == SPECIAL_EXIT else HELD_AFTER_REQUEUE
        record.reason = held if record.held else NO_REASON
        record.turn += 1
        self.touch(record)

    def finish(self, record: JobRecord, word: str) -> None:
        """Let a job that holds nothing be over, and forget it after a while."""
        record.state, record.ended = JobState.ENDED, word
        record.end_s = self.now_s
        record.nodes = ()
        record.turn += 1
        self.at(self.now_s + MIN_JOB_AGE_S, record)
        self.touch(record)

    def _allotted(self, record: JobRecord) -> Mapping[str, int]:
        shape = self.nodes.shape(record.gpus, record.shape.cpus, record.shape.memory_mib)
        nodes = len(record.nodes)
        whole = self.amounts(shape, 1)
        per_node = {"cpu": shape.cpus * nodes, "mem": shape.memory_mib * nodes, "node": nodes}
        return {**whole, **per_node}
