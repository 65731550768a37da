"""Turns jobs of the history into what is submitted to Slurm, and into what admission is asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.messages import VERSION, SubmitRequest
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import is_ours

ANY_TYPE = ""
"""The type of GPUs that were asked for without one."""
_FIRST_UID = 10_000
NO_PARTITION = "their partition is not in the cluster"
NO_NODES = "no nodes of their partition have the GPUs, CPUs and memory that they asked for"


@dataclass(frozen=True)
class Replay:
    """A job of the history that can be replayed, and what it costs.

    Attributes:
        number: its place in the history; -1 for what was there at the beginning.
        cost_millislices: of all of its GPUs; those without a type cost what the partition's
            cheapest type costs.
    """

    number: int
    at_s: float
    request: ModelRequest
    cost_millislices: int
    gives_up_s: float | None = None


class Replayable:
    """Says which jobs of a history a cluster can replay, and as what."""

    def __init__(self, cluster: SimulatedCluster, costs: Mapping[str, Millislices]) -> None:
        self._cluster, self._costs = cluster, costs
        self._partitions = {name for node in cluster.nodes for name in node.partitions}
        self._uids: dict[str, int] = {}
        self._known: dict[tuple[object, ...], bool] = {}

    def of(self, number: int, job: HistoryJob, at_s: float) -> Replay | str:
        """The job as it is submitted at ``at_s``, or why it can't be."""
        named = job.partition.split(",")
        partition = next((name for name in named if name in self._partitions), None)
        if partition is None:
            return NO_PARTITION
        nodes = max(1, job.nodes)
        request = ModelRequest(
            user=job.user,
            uid=self._uids.setdefault(job.user, _FIRST_UID + len(self._uids)),
            account=account_name(job.account),
            partition=partition,
            qos=job.qos.lower(),
            gpus={kind: ceil(count / nodes) for kind, count in job.gpus.items() if count},
            # A run of the past was measured from its start on.
            run_s=max(0.0, job.run_s - self._cluster.scheduling.start_s),
            nodes=nodes,
            cpus=ceil(job.cpus / nodes),
            memory_mib=ceil(job.memory_mib / nodes),
            time_limit_s=job.time_limit_s,
        )
        if not self._fits(request):
            return NO_NODES
        gives_up_s = at_s + job.run_s if job.is_cancelled_waiting else None
        return Replay(number, at_s, request, self._cost(request), gives_up_s)

    def _fits(self, request: ModelRequest) -> bool:
        """Whether as many nodes as it asks for could ever have it."""
        gpus = tuple(sorted(request.gpus.items()))
        key = (request.partition, request.nodes, gpus, request.cpus, request.memory_mib)
        if key not in self._known:
            nodes_enough = sum(
                request.partition in node.partitions
                and all(_has(_ever(node), kind) >= count for kind, count in gpus)
                and (not node.cpus or request.cpus <= node.cpus)
                and (not node.memory_mib or request.memory_mib <= node.memory_mib)
                for node in self._cluster.nodes
            )
            self._known[key] = nodes_enough >= request.nodes
        return self._known[key]

    def _cost(self, request: ModelRequest) -> int:
        """Millislices of all GPUs that it asks for."""
        return self.cost(request.gpus, request.partition) * request.nodes

    def cost(self, gpus: Mapping[str, int], partition: str) -> int:
        """Millislices of these GPUs; those without a type cost what its cheapest type costs."""
        if ANY_TYPE not in gpus:
            return run_cost(gpus, self._costs)
        named = partition.split(",")
        gpus_of_nodes = (n.gpus for n in self._cluster.nodes if not n.partitions.isdisjoint(named))
        kinds = {kind for of in gpus_of_nodes for kind in of}
        cheapest = min((self._costs.get(kind, 0) for kind in kinds), default=0)
        return run_cost(gpus, {**self._costs, ANY_TYPE: Millislices(cheapest)})


def _ever(node: SimulatedNode) -> Mapping[str, int]:
    """The most GPUs of each type that a node could have, however it is cut."""
    return node.gpus if node.boards is None else {**node.gpus, **node.boards.most}


def _has(gpus: Mapping[str, int], kind: str) -> int:
    return sum(gpus.values()) if kind == ANY_TYPE else gpus.get(kind, 0)


def replays(
    jobs: Iterable[tuple[int, HistoryJob]], can: Replayable, *, begin_s: float, end_s: float
) -> tuple[Replay, ...]:
    """What is replayed of numbered jobs from ``begin_s`` to ``end_s``, by the time of submission.

    What ran or waited at ``begin_s`` by the history comes first: what ran, for the rest of its time
    and its limit, then what waited. So a replay begins with a site as full as it was. Histories
    that say nothing of starts begin with an empty one. Jobs that can't be replayed are left out.
    """
    running: list[Replay] = []
    waiting: list[Replay] = []
    later: list[Replay] = []
    for number, job in jobs:
        if job.submit_s >= end_s:
            continue
        is_later = job.submit_s >= begin_s
        before = None if is_later else _at_the_beginning(job, begin_s)
        if not is_later and before is None:
            continue
        decision = can.of(number if is_later else -1, before or job, max(begin_s, job.submit_s))
        if isinstance(decision, str):
            continue
        if is_later:
            later.append(decision)
        elif job.started_s is not None and job.started_s <= begin_s:
            running.append(decision)
        else:
            waiting.append(decision)
    later.sort(key=lambda replay: (replay.at_s, replay.number))
    return (*running, *waiting, *later)


def with_time_for(cluster: SimulatedCluster, jobs: Iterable[Replay]) -> SimulatedCluster:
    """The cluster with MaxTime of each partition as long as the longest limit of these jobs.

    What a site let run for longer (an operator did, or MaxTime was another) runs again.
    """
    most_s = dict(cluster.max_time_s)
    for job in jobs:
        of = job.request
        if of.partition in most_s and of.time_limit_s is not None:
            most_s[of.partition] = max(most_s[of.partition], of.time_limit_s)
    return replace(cluster, max_time_s=most_s)


def _at_the_beginning(job: HistoryJob, begin_s: float) -> HistoryJob | None:
    """What is left of a job that came earlier; None if it was over, or nobody knows."""
    if job.started_s is None:
        is_over = not job.is_cancelled_waiting or job.submit_s + job.run_s <= begin_s
        return None if is_over else replace(job, run_s=job.submit_s + job.run_s - begin_s)
    if job.started_s > begin_s:
        return job
    ran_s = begin_s - job.started_s
    if ran_s >= job.run_s:
        return None
    limit_s = None if job.time_limit_s is None else max(60, int(job.time_limit_s - ran_s))
    return replace(job, run_s=job.run_s - ran_s, time_limit_s=limit_s)


def submission(request: ModelRequest, token: str) -> SubmitRequest:
    """What slicewise.lua would ask admission for the job.

    Where the history is of a site with Slicewise, the QOS is the one that admission chose; its user
    is taken to have named none. Otherwise no such job could ever move to its tenant's other QOS.
    """
    gres = (f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for kind, n in sorted(request.gpus.items()))
    limit_s = request.time_limit_s
    return SubmitRequest(
        v=VERSION,
        op="submit",
        token=token,
        uid=request.uid,
        account=request.account,
        partition=request.partition,
        qos="" if is_ours(request.qos) else request.qos,
        gres=",".join(gres),
        min_nodes=request.nodes,
        requeue=request.requeues,
        time_limit_min=None if limit_s is None else -(-limit_s // 60),
    )


def chosen_gpus(gres: str) -> Mapping[str, int]:
    """GPUs by type of the text in which admission has chosen a type: ``gpu:a100:4``."""
    counts: dict[str, int] = {}
    for part in gres.split(","):
        _, kind, count = part.rsplit(":", 2)
        counts[kind] = counts.get(kind, 0) + int(count)
    return counts
