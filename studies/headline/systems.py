"""The systems: one cluster and one plan each, of the same nodes and for the same jobs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import (
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replay, Replayable, replays
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan, SlurmPlan
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.simulation.rules.slurm_model.job_requests import QosLimits
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Policy, Quota, Tenant
from studies.headline.kueue_site import KueueSite
from studies.headline.loads import GPU, GPUS_OF_NODE, Load

STATIC, FAIR_SHARE, FIFO = "static", "fair_share", "fifo"
PRIORITY, KUEUE, SLICEWISE = "priority", "kueue", "slicewise"
SLICEWISE_BY_ID = "slicewise_by_id"
"""As slicewise, where Slurm preempts those with the lowest ids first, which is its default."""
POOL = "gpu"
SETTINGS = Settings.model_validate(
    {
        "cluster": {"name": "headline", "partitions": [POOL]},
        "gpus": {"Tesla-V100-SXM2-32GB": {"whole": [GPU]}},
    }
)
COSTS = SETTINGS.costs
GPU_MILLISLICES = COSTS[GPU]
_TAIL_S = 86_400.0
SHARES_FIRST = PriorityWeights(age=1_000, fair_share=100_000)
QOS_FIRST = PriorityWeights(qos=100_000)


@dataclass(frozen=True)
class _Set:
    """Where a system's jobs run, and how it decides."""

    cluster: SimulatedCluster
    jobs: tuple[tuple[int, HistoryJob], ...]
    plan: SitePlan


def fair_share(load: Load) -> _Set:
    """One pool: who has used least for its share, the GPUs that it would own, comes first."""
    return _Set(_cluster(load, weights=SHARES_FIRST), _numbered(load), SlurmPlan(FAIR_SHARE))


def fifo(load: Load) -> _Set:
    """One pool: first come, first served, with backfill."""
    return _Set(_cluster(load), _numbered(load), SlurmPlan(FIFO))


def priority(load: Load) -> _Set:
    """One pool: jobs of larger virtual clusters come first, by the priority of their QOS."""
    qos = {name: QosLimits(priority=gpus) for name, gpus in load.gpus.items()}
    jobs = _numbered(load, by_qos=True)
    return _Set(_cluster(load, weights=QOS_FIRST), jobs, SlurmPlan(PRIORITY, qos))


def slicewise(load: Load, term_s: int | None = None, *, youngest_first: bool = True) -> _Set:
    """One pool under Slicewise, in which each guarantees, lends and borrows without a limit.

    Its settings are the default ones, but for the term of loans where one is given. Slurm preempts
    the youngest first, as Slicewise advises.
    """
    settings = SETTINGS
    if term_s is not None:
        lending = settings.lending.model_copy(update={"term_s": term_s})
        settings = settings.model_copy(update={"lending": lending})
    plan = SlicewisePlan(SLICEWISE, settings, tenants(load.gpus))
    return _Set(_cluster(load, youngest_first=youngest_first), _numbered(load), plan)


def slicewise_by_id(load: Load) -> _Set:
    """The same under a Slurm that preempts as it does by default."""
    return slicewise(load, youngest_first=False)


def tenants(gpus: Mapping[str, int]) -> Policy:
    """Each virtual cluster is guaranteed its GPUs, and lends and borrows without a limit."""
    no_limit = MAX_NOMINAL_MILLISLICES
    return {
        name: Tenant(name, "", Quota(Millislices(own * GPU_MILLISLICES), no_limit, no_limit, own))
        for name, own in gpus.items()
    }


SETS: Mapping[str, Callable[[Load], _Set]] = {
    FAIR_SHARE: fair_share,
    FIFO: fifo,
    PRIORITY: priority,
    SLICEWISE_BY_ID: slicewise_by_id,
    SLICEWISE: slicewise,
}
SYSTEMS = (STATIC, FAIR_SHARE, FIFO, PRIORITY, KUEUE, SLICEWISE_BY_ID, SLICEWISE)


def run(system: str, load: Load, term_s: int | None = None) -> SiteRecord:
    """Simulate a system; ``term_s`` is the term of loans, which only Slicewise has."""
    times = SiteTimes(load.begin_s, load.end_s, load.end_s + _TAIL_S)
    if system == STATIC:
        return _static(load, times)
    if system == KUEUE:
        cluster, jobs = _cluster(load), _numbered(load)
        found = _replays(cluster, jobs, times)
        quotas = {name: own * GPU_MILLISLICES for name, own in load.gpus.items()}
        return KueueSite(cluster, COSTS, {GPU: quotas}, found, times).run()
    made = slicewise(load, term_s) if system == SLICEWISE else SETS[system](load)
    found = _replays(made.cluster, made.jobs, times)
    return Site(made.cluster, made.plan, COSTS, found, times).run()


def _static(load: Load, times: SiteTimes) -> SiteRecord:
    """Each virtual cluster has its own nodes, as Helios had, and is simulated by itself.

    Nothing is lent, so none depends on another.
    """
    records = []
    for name, own in sorted(load.gpus.items()):
        cluster = _cluster(replace(load, gpus={name: own}))
        jobs = ((number, job) for number, job in _numbered(load) if job.account == name)
        found = _replays(cluster, jobs, times)
        records.append(Site(cluster, SlurmPlan(STATIC), COSTS, found, times).run())
    return SiteRecord(
        begin_s=times.begin_s,
        stopped_s=max(one.stopped_s for one in records),
        jobs=tuple(job for one in records for job in one.jobs),
    )


def _replays(
    cluster: SimulatedCluster, jobs: Iterable[tuple[int, HistoryJob]], times: SiteTimes
) -> tuple[Replay, ...]:
    can = Replayable(cluster, COSTS)
    return replays(jobs, can, begin_s=times.begin_s, end_s=times.last_s)


def _numbered(load: Load, *, by_qos: bool = False) -> tuple[tuple[int, HistoryJob], ...]:
    """The jobs of the pool; each in its virtual cluster's QOS where it is asked for."""
    return tuple(
        (number, replace(job, partition=POOL, qos=job.account if by_qos else job.qos))
        for number, job in enumerate(load.jobs)
    )


def _cluster(
    load: Load, weights: PriorityWeights | None = None, *, youngest_first: bool = False
) -> SimulatedCluster:
    each = GPUS_OF_NODE if load.has_nodes else sum(load.gpus.values())
    count = sum(load.gpus.values()) // each
    nodes = tuple(SimulatedNode(f"n{i}", frozenset({POOL}), {GPU: each}) for i in range(count))
    return SimulatedCluster(
        name="headline",
        nodes=nodes,
        scheduling=Scheduling(
            weights=weights or PriorityWeights(), preempts_youngest_first=youngest_first
        ),
        accounts=dict.fromkeys(load.gpus, "root"),
        shares=load.gpus,
    )
