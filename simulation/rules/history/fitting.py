"""Fits the jobs of another site's history to a cluster: to its partitions, GPUs and tenants."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from slicewise.cluster.language.accounts import account_name
from slicewise.simulation.rules.cluster import SimulatedCluster
from slicewise.simulation.rules.history.jobs import HistoryJob, even_nodes
from slicewise.slurm_plugin.rules.common.qos_names import is_ours

_ANY_TYPE = ""


@dataclass(frozen=True)
class FittedJobs:
    """Jobs that a cluster knows what to do with.

    Attributes:
        notes: what was changed of them, as sentences.
    """

    jobs: tuple[HistoryJob, ...]
    notes: tuple[str, ...]


def fitted(
    jobs: Sequence[HistoryJob],
    cluster: SimulatedCluster,
    tenants: Mapping[str, int],
    costs: Mapping[str, int],
    *,
    start_s: float = -inf,
    end_s: float = inf,
) -> FittedJobs:
    """Return the jobs with partitions, GPU types and accounts of this cluster.

    What the cluster knows stays, GPUs without a type too. Jobs of other partitions go to the one
    with most GPUs; their GPUs, and those of other types, become the type of which the partition has
    most, by ``costs`` of one, spread over as few nodes as can have them. Accounts that are unknown
    become tenants, so that each gets work by its weight in ``tenants``, counting the jobs that come
    from ``start_s`` to ``end_s``; without tenants they stay.
    """
    site = _Site(cluster, costs)
    unknown = _unknown_work(jobs, cluster.accounts.keys() | tenants.keys(), start_s, end_s)
    accounts = _accounts(unknown, tenants)
    fitted = [_fitted(job, site, accounts) for job in jobs]
    changes = [
        (job, job_fitted)
        for job, job_fitted in zip(jobs, fitted, strict=True)
        if job is not job_fitted
    ]
    return FittedJobs(tuple(fitted), tuple(_notes(changes, site, accounts)))


class _Site:
    """What of a cluster jobs can name."""

    def __init__(self, cluster: SimulatedCluster, costs: Mapping[str, int]) -> None:
        self._types: dict[str, set[str]] = {}
        self._nodes: defaultdict[str, int] = defaultdict(int)
        self._most_gpus: defaultdict[str, int] = defaultdict(int)
        self._most_cpus: defaultdict[str, int] = defaultdict(int)
        self._most_memory_mib: defaultdict[str, int] = defaultdict(int)
        self._most: defaultdict[tuple[str, str], int] = defaultdict(int)
        gpus: defaultdict[str, int] = defaultdict(int)
        whole: defaultdict[tuple[str, str], int] = defaultdict(int)
        for node in cluster.nodes:
            for partition in node.partitions:
                self._types.setdefault(partition, set())
                self._nodes[partition] += 1
                for most, gpus_there in (
                    (self._most_gpus, sum(node.gpus.values())),
                    (self._most_cpus, node.cpus),
                    (self._most_memory_mib, node.memory_mib),
                ):
                    most[partition] = max(most[partition], gpus_there)
                if node.boards is not None:
                    self._types[partition].update(node.boards.most)
                for kind, count in node.gpus.items():
                    place = partition, kind
                    self._types[partition].add(kind)
                    self._most[place] = max(self._most[place], count)
                    gpus[partition] += count
                    whole[place] += count * costs.get(kind, 0)
        self.largest = min(gpus, key=lambda name: (-gpus[name], name), default="")
        self._main = {
            partition: min(kinds, key=lambda kind: (-whole[partition, kind], kind))
            for partition, kinds in self._types.items()
            if kinds
        }

    def partition_of(self, names: str) -> str:
        """Those that the job named, of which Slurm takes one that it has; else the largest."""
        return names if any(name in self._types for name in names.split(",")) else self.largest

    def main_type(self, partition: str) -> str:
        return self._main.get(partition, _ANY_TYPE)

    def knows(self, kind: str, names: str) -> bool:
        return kind == _ANY_TYPE or any(
            kind in self._types.get(name, ()) for name in names.split(",")
        )

    def most_on_a_node(self, partition: str, kind: str) -> int:
        return self._most[partition, kind]

    def nodes_for(self, job: HistoryJob, partition: str) -> int:
        """As few nodes as can have the job, evenly; those that it had where they fit."""
        cpus, memory_mib = self._most_cpus[partition], self._most_memory_mib[partition]
        fewest = max(
            1,
            _parts(job.cpus, cpus),
            _parts(job.memory_mib, memory_mib),
            _parts(sum(job.gpus.values()), self._most_gpus[partition]),
        )
        if job.nodes == 0:
            return fewest
        # A job of this cluster asked for just so many nodes, and so did one with GPUs.
        stays = job.gpus or not job.cpus or job.partition == partition
        return job.nodes if stays or fewest <= job.nodes <= self._nodes[partition] else fewest


def _unknown_work(
    jobs: Iterable[HistoryJob], accounts: Iterable[str], start_s: float, end_s: float
) -> Mapping[str, float]:
    """GPU-seconds of jobs that come in that time, by account, of all accounts that are unknown."""
    work: defaultdict[str, float] = defaultdict(float)
    accounts = {account_name(name) for name in accounts}
    for job in jobs:
        if account_name(job.account) not in accounts:
            counts = start_s <= job.submit_s < end_s
            work[job.account] += job.run_s * sum(job.gpus.values()) if counts else 0.0
    return work


def _accounts(work: Mapping[str, float], tenants: Mapping[str, int]) -> Mapping[str, str]:
    """Return a tenant for each account: the one that lacks most work by its weight.

    The accounts with most work are placed first.
    """
    weights = {name: weight for name, weight in tenants.items() if weight > 0}
    if not weights:
        return {}
    share = sum(work.values()) / sum(weights.values())
    lacks = {name: share * weight for name, weight in weights.items()}
    home = {}
    for account in sorted(work, key=lambda account: (-work[account], account)):
        home[account] = min(lacks, key=lambda name: (-lacks[name], name))
        lacks[home[account]] -= work[account]
    return home


def _fitted(job: HistoryJob, site: _Site, accounts: Mapping[str, str]) -> HistoryJob:
    partition = site.partition_of(job.partition)
    account = accounts.get(job.account, job.account)
    is_known = partition == job.partition and all(site.knows(gpu, partition) for gpu in job.gpus)
    if account != job.account and is_ours(job.qos):
        job = replace(job, qos="")  # That of its own tenant, which is not here.
    nodes = site.nodes_for(job, partition)
    if is_known and account == job.account and nodes == job.nodes:
        return job
    if is_known or not job.gpus:
        return replace(job, partition=partition, account=account, nodes=nodes)
    kind, count = site.main_type(partition), sum(job.gpus.values())
    most = site.most_on_a_node(partition, kind)
    if most:
        nodes = even_nodes(count, most) if job.nodes else _parts(count, most)
    return replace(job, partition=partition, account=account, gpus={kind: count}, nodes=nodes)


def _parts(whole: int, most: int) -> int:
    """Into how many parts something is cut of which none is larger than ``most``; 0 bounds none."""
    return -(-whole // most) if most else 0


def with_gpus_for_cpus(jobs: Sequence[HistoryJob], cpus_per_gpu: int) -> tuple[HistoryJob, ...]:
    """Let jobs of a history without GPUs ask for one GPU for each so many of their CPUs.

    They ask for no CPUs and no memory then: it is as if GPUs did the same work.
    """
    return tuple(
        replace(
            job,
            gpus={_ANY_TYPE: _parts(job.cpus, cpus_per_gpu)} if job.cpus else {},
            nodes=0,
            cpus=0,
            memory_mib=0,
        )
        for job in jobs
    )


def _notes(
    changes: Sequence[tuple[HistoryJob, HistoryJob]], site: _Site, accounts: Mapping[str, str]
) -> Iterator[str]:
    if any(job.partition != change.partition for job, change in changes):
        yield f"Jobs of partitions that the cluster does not have are run in {site.largest}."
    if any(job.nodes != change.nodes and not job.gpus for job, change in changes):
        yield "CPUs of jobs are spread over as few nodes as have them."
    kinds = sorted(
        {kind for job, change in changes if job.gpus != change.gpus for kind in change.gpus}
    )
    if kinds:
        yield f"GPUs of elsewhere are taken for {', '.join(kinds)}."
    if accounts:
        names = ", ".join(sorted(set(accounts.values())))
        yield f"Jobs of accounts that the cluster does not have are spread over {names}, by quota."
