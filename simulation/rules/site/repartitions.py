"""Repartitions on a simulated site: when they are planned, and what becomes of each.

A timer runs ``slicewise rebalance`` every half a minute. A run plans by the code of the product
(``mig.due.cuts_due``), and carries out one repartition after the other: the node is reserved, jobs
on loan end that are in the way of one that is owed its type, replicas in the way are told to move,
the run waits until no job holds what is destroyed, the GPU is cut beside the jobs that stay, and
the node takes jobs again. Before each further one it plans anew. A run ends once there is nothing
more to plan, after ``MOST_IN_A_RUN``, or with the first repartition that is in vain.

Replicas are told as the daemon is asked to tell them: a successor starts on another node, then the
one in the way drains and ends. A plan reckons with the seconds that earlier moves took.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    RepartitionStep,
)
from slicewise.cluster.language.jobs import (
    ALLOTTED,
    JobState,
    JobView,
    NodeView,
    RunOfJob,
    RunRecord,
)
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.site.node_cuts import NodeCuts
from slicewise.simulation.rules.site.records import SimulatedRepartition
from slicewise.simulation.rules.slurm_model.job_records import EndedRun
from slicewise.simulation.rules.slurm_model.model import SlurmModel
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import is_own
from slicewise.slurm_plugin.rules.mig.cuts_due import MOST_IN_A_RUN, STARTS_S, cuts_due
from slicewise.slurm_plugin.rules.mig.gpu_state import NodeLook, Past, holder_name
from slicewise.slurm_plugin.rules.mig.guaranteed_shapes import needs
from slicewise.slurm_plugin.rules.mig.instance_demand import (
    MOVE_S,
    REPARTITION_S,
    in_use,
    move_s,
    owed_tasks,
    preempting,
    room_of,
    waiting_for_instances,
)
from slicewise.slurm_plugin.rules.mig.planner import HORIZON_S, RepartitionTerms
from slicewise.slurm_plugin.rules.mig.problem import SiteObservation, inputs
from slicewise.slurm_plugin.rules.mig.repartition_steps import POLL_S
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.nodes import free_on_nodes, node_capacity
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.reclaim.busy import busy_tasks
from slicewise.slurm_plugin.rules.services.state import used_by_tenant
from slicewise.slurm_plugin.rules.slurm_config.gres import types_by_kind

EVERY_S = 30.0
"""Seconds between two runs, as etc/slicewise-rebalance.timer has it."""
_LATELY_S = 86_400.0
"""Seconds of past use that a tenant's guarantee may claim again, as in the product."""
_NOT_CUT = "its boards are not known"

Leave = Callable[[frozenset[RunOfJob], str], None]
"""Tells these runs, if they are replicas, to move, and why; must be repeated every few seconds."""


@dataclass
class _Work:
    """A repartition at work.

    Attributes:
        tell_s: when replicas in the way are told again to move.
        left_s: when no job was in the way any more.
        cut_until_s: when the GPU is cut and Slurm knows it; None while jobs are in the way.
        free_millislices: what nothing holds on the node since ``seen_s``.
    """

    planned: PlannedRepartition
    began_s: float
    seen_s: float
    free_millislices: int
    tell_s: float
    lost_millislice_s: float = 0.0
    left_s: float = inf
    cut_until_s: float | None = None


class SiteRepartitions:
    """The repartitions of one site."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        settings: Settings,
        model: SlurmModel,
        policy_at: Callable[[float], Policy],
        leave: Leave,
        *,
        every_s: float = EVERY_S,
    ) -> None:
        """``policy_at``: the quotas in force at a moment, in Unix seconds."""
        self._settings, self._model, self._policy_at = settings, model, policy_at
        self._leave = leave
        self._partitions = frozenset(settings.cluster.partitions)
        self._types = types_by_kind(settings.boards_by_type, settings.whole_types)
        with_boards = (node for node in cluster.nodes if node.boards is not None)
        self._cuts = {node.name: NodeCuts(node, self._types) for node in with_boards}
        self._every_s = every_s
        self._due_s = self._after(model.now_s)
        self._left = 0
        self._work: _Work | None = None
        self._runs: deque[RunRecord] = deque()
        self._ended_s: dict[str, float] = {}
        self._in_vain = set[str]()
        self._moves_s: list[float] = []
        self._found: list[SimulatedRepartition] = []

    @property
    def found(self) -> tuple[SimulatedRepartition, ...]:
        """The repartitions that have ended."""
        return tuple(self._found)

    def next_s(self) -> float:
        """When something is due next; inf if nothing ever is."""
        if not self._cuts:
            return inf
        work = self._work
        if work is None:
            return self._due_s
        due_s = work.cut_until_s
        if due_s is None:
            due_s = min(work.began_s + self._settings.repartition.move_s, work.tell_s)
        # What the node has free changes when something happens in Slurm.
        own_s = self._model.next_s()
        return due_s if own_s is None else min(due_s, own_s)

    def ended(self, run: EndedRun) -> None:
        """Note a run that has ended: what was used lately is expected again."""
        if run.start_s is not None and any(kind in self._instance_types for kind in run.gpus):
            self._runs.append(_run(run, int(run.start_s), int(run.end_s)))

    def advance(self) -> bool:
        """Do what is due; the model has passed until now. Return whether nodes have changed."""
        if self._work is not None:
            self._count(self._work)
        is_changed = False
        while self._step():
            is_changed = True
        return is_changed

    def _step(self) -> bool:
        now_s, work = self._model.now_s, self._work
        if work is not None:
            return self._go_on(work)
        if now_s < self._due_s:
            return False
        self._due_s = self._after(now_s)
        due = self._plan() if self._may_pay() else ()
        self._left = (self._left or MOST_IN_A_RUN) - 1 if due else 0
        if due:
            self._begin(due[0])
        return bool(due)

    def _after(self, now_s: float) -> float:
        return (now_s // self._every_s + 1) * self._every_s

    def _begin(self, planned: PlannedRepartition) -> None:
        self._model.reserve_node(planned.node)
        now_s, cuts = self._model.now_s, self._cuts[planned.node]
        self._work = _Work(planned, now_s, now_s, self._free(planned.node), now_s)
        # As the product checks before anything is done: a plan may have no order of devices.
        if not cuts.can_be(planned, self._held(planned.node) - cuts.going(planned)):
            self._end(self._work, is_done=False)
            return
        for job_id in self._ending(planned):
            self._model.requeue(job_id)

    def _go_on(self, work: _Work) -> bool:
        """Take the repartition a step on, if that is possible now."""
        now_s, planned = self._model.now_s, work.planned
        if "DOWN" in self._view(planned.node).states:
            self._end(work, is_done=False)
            return True
        if work.cut_until_s is None:
            in_the_way = self._in_the_way(planned)
            if not in_the_way:
                work.left_s = now_s
                work.cut_until_s = now_s + REPARTITION_S
                return True
            if now_s >= work.began_s + self._settings.repartition.move_s:
                self._end(work, is_done=False)
                return True
            if now_s >= work.tell_s:
                self._leave(in_the_way, f"a GPU of {planned.node} is being repartitioned")
                work.tell_s = now_s + POLL_S
            return False
        if now_s < work.cut_until_s:
            return False
        self._end(work, is_done=self._cut(planned))
        return True

    def _in_the_way(self, planned: PlannedRepartition) -> frozenset[RunOfJob]:
        """The runs that hold what is destroyed; also those that complete."""
        going = self._cuts[planned.node].going(planned)
        indices_by_job = self._model.devices(planned.node)
        holding = {job_id for job_id, indices in indices_by_job.items() if indices & going}
        if not holding:
            return frozenset()
        return frozenset(
            (job.job_id, job.start_s) for job in self._model.jobs if job.job_id in holding
        )

    def _ending(self, planned: PlannedRepartition) -> Sequence[int]:
        """The jobs on loan that the repartition ends, of those that hold what is destroyed."""
        holding = self._in_the_way(planned) if planned.ends else frozenset()
        return [
            job.job_id
            for job in self._model.jobs
            if (job.job_id, job.start_s) in holding and holder_name(job) in planned.ends
        ]

    def _held(self, name: str) -> frozenset[int]:
        return frozenset(i for those in self._model.devices(name).values() for i in those)

    def _cut(self, planned: PlannedRepartition) -> bool:
        """Cut the GPU; return whether Slurm has an order of devices for it."""
        cuts = self._cuts[planned.node]
        if not cuts.cut(planned, self._held(planned.node)):
            return False
        self._model.cut_node(planned.node, cuts.gpus)
        return True

    def _end(self, work: _Work, *, is_done: bool) -> None:
        """End the repartition; a run ends with the first that was in vain."""
        now_s, planned = self._model.now_s, work.planned
        self._model.release_node(planned.node)
        self._ended_s[planned.gpu] = now_s
        self._found.append(
            SimulatedRepartition(
                work.began_s, now_s, planned.node, work.lost_millislice_s, is_done=is_done
            )
        )
        self._work = None
        self._in_vain.discard(planned.gpu)
        if is_done:
            self._moves_s.insert(0, work.left_s - work.began_s)
        else:
            self._in_vain.add(planned.gpu)
            self._left = 0
        self._due_s = now_s + STARTS_S if self._left else self._after(now_s)

    def _count(self, work: _Work) -> None:
        """Count what the node had free since the last look."""
        now_s = self._model.now_s
        work.lost_millislice_s += work.free_millislices * (now_s - work.seen_s)
        work.seen_s, work.free_millislices = now_s, self._free(work.planned.node)

    def _free(self, name: str) -> int:
        """Millislices of a node that nothing holds."""
        node, settings = self._view(name), self._settings
        whole = node_capacity(node, settings.costs, settings.whole_boards)
        return max(0, whole - run_cost(node.gpus_allotted, settings.costs))

    def _view(self, name: str) -> NodeView:
        return next(node for node in self._model.nodes if node.name == name)

    # --- the plan --------------------------------------------------------------------------------

    @property
    def _instance_types(self) -> Mapping[str, object]:
        return self._settings.boards_by_type

    def _may_pay(self) -> bool:
        """Whether a plan could find anything: a job waits for instances, or a GPU was cut lately.

        What is expected beside that is no more than what there is.
        """
        kinds = self._instance_types
        since_s = self._model.now_s - HORIZON_S
        return any(ended_s > since_s for ended_s in self._ended_s.values()) or any(
            (waits_of(job).for_gpus or (is_own(job.qos) and waits_of(job).for_quota))
            and any(kind in kinds for kind in job.gpus)
            for job in self._model.jobs
        )

    def _plan(self) -> tuple[PlannedRepartition, ...]:
        """The repartitions that the product would make now."""
        seen, nodes_at_once = self._observed(), self._settings.repartition.nodes_at_once
        terms = RepartitionTerms(REPARTITION_S, HORIZON_S, nodes_at_once)
        return cuts_due(inputs(seen, self._types, terms)).now

    def _observed(self) -> SiteObservation:
        """One look at everything that a plan takes into account, as the product gathers it."""
        settings, model, now_s = self._settings, self._model, self._model.now_s
        jobs, policy = model.jobs, self._policy_at(now_s)
        while self._runs and (self._runs[0].end_s or 0) < now_s - _LATELY_S:
            self._runs.popleft()
        runs = (*self._runs, *_running(jobs))
        room = room_of(policy, used_by_tenant(jobs, self._partitions, settings.costs))
        by_holder = jobs_by_holder(jobs, self._partitions, settings.costs, settings.models)
        owed = owed_tasks(policy, by_holder)
        busy = busy_tasks(policy, by_holder, free_on_nodes(model.nodes, self._partitions))
        return SiteObservation(
            looks=tuple(self._looks()),
            jobs=tuple(job for job in jobs if job.state in ALLOTTED),
            indices=self._indices(),
            waiting=tuple(
                waiting_for_instances(
                    jobs, self._partitions, room, settings.costs, now_s, owed=owed, busy=busy
                )
            ),
            in_use=in_use(runs, now_s - HORIZON_S, now_s),
            needed=needs(
                policy, jobs, runs, self._partitions, costs=settings.costs, models=settings.models
            ),
            shapes=frozenset(self._instance_types),
            past=Past(
                {},
                {gpu: int(now_s - at_s) for gpu, at_s in self._ended_s.items()},
                frozenset(self._in_vain),
            ),
            move_s=move_s({RepartitionStep.MOVE: self._moves_s}, MOVE_S),
            term_s=settings.lending.term_s,
            preempting=preempting(policy, by_holder) if owed else {},
            at_s=now_s,
        )

    def _looks(self) -> Iterator[NodeLook]:
        """The nodes with instances; nothing is planned for those of which the boards are not
        known.
        """
        kinds = self._instance_types
        for node in self._model.nodes:
            if (cuts := self._cuts.get(node.name)) is not None:
                yield cuts.look(node)
            elif any(kind in kinds for kind in node.gpus):
                yield NodeLook(node, None, 0.0, {}, _NOT_CUT)

    def _indices(self) -> Mapping[int, Mapping[str, frozenset[int]]]:
        found: dict[int, dict[str, frozenset[int]]] = {}
        for name in self._cuts:
            for job_id, indices in self._model.devices(name).items():
                found.setdefault(job_id, {})[name] = indices
        return found


def _running(jobs: Iterable[JobView]) -> Iterator[RunRecord]:
    for job in jobs:
        if job.state is JobState.RUNNING and job.start_s is not None:
            yield _run(job, job.start_s, None)


def _run(of: JobView | EndedRun, start_s: int, end_s: int | None) -> RunRecord:
    return RunRecord(
        job_id=of.job_id,
        task=str(of.job_id),
        user=of.user,
        account=of.account,
        partition=of.partition,
        start_s=start_s,
        end_s=end_s,
        state="RUNNING" if end_s is None else "COMPLETED",
        time_limit_s=None,
        tres={f"gres/gpu:{kind}": str(count) for kind, count in of.gpus.items()},
        qos=of.qos,
    )
