"""The main scheduler: one run through the queue, as ``_schedule`` of job_scheduler.c.

Jobs are tried in order. One that limits keep from its start is passed over. One for which nodes
have no room makes the later ones of its partition wait, and takes the partition's nodes from jobs
of other partitions. Once a task of an array was rejected, its other tasks of that partition are not
tried in this run and get the same reason, even if they have another QOS.
"""

from slicewise.cluster.language.jobs import SHAPES_NODE
from slicewise.simulation.rules.slurm_model.job_records import (
    BECOMES_PRIORITY,
    NODES_DOWN,
    NOT_AVAILABLE,
    PRIORITY,
    RESOURCES,
    JobRecord,
)
from slicewise.simulation.rules.slurm_model.model_state import ModelState
from slicewise.simulation.rules.slurm_model.preemption import preempt


def run_scheduler(state: ModelState, *, is_full: bool) -> None:
    """Start what can start, in a run that is not full among the first jobs only."""
    run = _Run(state)
    depth = state.scheduling.depth
    tried = 0
    for key in list(state.queue):
        record = state.waiting.get(key[-1])
        while record is not None:
            if run.is_rejected(record):
                break
            if not is_full and tried > depth:
                return
            tried += 1
            if not run.tries(record) or record.key is None:
                break  # It waits, or all of it runs.
        if len(run.failed) >= len(state.partitions) and run.failed.issuperset(state.partitions):
            run.let_others_wait()
            return


class _Run:
    """One run: what of the nodes is still to be had, and who has been rejected."""

    def __init__(self, state: ModelState) -> None:
        self._state = state
        self._taken = 0
        self.failed: set[str] = set()
        self._heads: list[int] = []
        self._rejected: JobRecord | None = None

    def let_others_wait(self) -> None:
        """Say of all others that they wait: no partition is left in which a job might start."""
        heads = set(self._heads)
        for partition in self.failed:
            for record in list(self._state.fresh.get(partition, {}).values()):
                if record.job_id not in heads:
                    self._state.say(record, PRIORITY)

    def is_rejected(self, record: JobRecord) -> bool:
        """Whether another task of its array was rejected; then it gets the same reason."""
        first = self._rejected
        if record.array_job_id is None or first is None or first is record:
            return False
        is_same = (record.array_job_id, record.request.partition) == (
            first.array_job_id,
            first.request.partition,
        )
        if is_same:
            self._state.say(record, first.reason)
        return is_same

    def tries(self, record: JobRecord) -> bool:
        """Start the job if that is possible now; return whether it started."""
        if record.array_job_id is not None:
            self._rejected = record
        if self._waits_behind(record):
            return False
        state = self._state
        reason = state.limit(record)
        if reason:
            state.say(record, reason)
            return False
        nodes = self._nodes(record)
        if nodes is None:
            return False
        state.start(record, nodes)
        self._rejected = None
        return True

    def _waits_behind(self, record: JobRecord) -> bool:
        partition = record.request.partition
        if partition not in self.failed:
            return False
        if record.reason in BECOMES_PRIORITY:
            self._state.say(record, PRIORITY)
        return True

    def _nodes(self, record: JobRecord) -> tuple[int, ...] | None:
        """Nodes for the job; None if it must wait, after its reason has been set."""
        state = self._state
        count, shape = record.request.nodes, record.shape
        partition = state.nodes.partitions.get(record.request.partition, 0)
        mine = partition & ~record.excluded
        left = mine & ~self._taken
        if (state.nodes.free_ever(shape) & mine).bit_count() < count:
            down = state.nodes.out_of_use(shape, mine) or (SHAPES_NODE,)
            state.say(record, NOT_AVAILABLE + ",".join(down))
            return None
        if left.bit_count() < count:
            self._fail(record, NODES_DOWN)
            return None
        left &= ~state.nodes.completing
        free = state.nodes.free_now(shape) & left
        if free.bit_count() >= count:
            return state.nodes.choose(free, count)
        preempt(state, record, left)
        self._fail(record, RESOURCES)
        return None

    def _fail(self, record: JobRecord, reason: str) -> None:
        self._state.say(record, reason)
        if not self._state.keeps_nodes(record):
            return
        self._heads.append(record.job_id)
        self.failed.add(record.request.partition)
        self._taken |= self._state.nodes.partitions.get(record.request.partition, 0)
