"""The systems under the mixed load: who runs services and jobs where, and by which rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import floor

from slicewise.cluster.language.gpus.layouts import geometry
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.cluster import (
    PriorityWeights,
    Scheduling,
    SimulatedCluster,
    SimulatedNode,
)
from slicewise.simulation.rules.services.request_figures import ServiceRecord
from slicewise.simulation.rules.site.past_requests import Replay, Replayable, replays
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan, SlurmPlan
from slicewise.simulation.rules.site.records import SiteRecord
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.simulation.rules.slurm_model.job_requests import QosLimits
from slicewise.simulation.rules.snapshot.boards import boards_of, with_pads
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Policy, Quota, Tenant
from studies.headline.hpa_pods import HpaPods
from studies.headline.kueue_site import KueueSite
from studies.headline.mixed_load import (
    COSTS,
    HALF,
    LAYOUTS,
    NODES,
    SETTINGS,
    MixedLoad,
    Shares,
    demand_s,
    divided,
)
from studies.headline.mixed_services import (
    PARTITION,
    SLICE,
    WHOLE,
    always_on,
    places,
    recorded,
)
from studies.headline.systems import QOS_FIRST, SHARES_FIRST

STATIC_GPUS, STATIC, FAIR_SHARE = "static_gpus", "static", "fair_share"
PRIORITY, KUEUE_HPA, SLICEWISE = "priority", "kueue_hpa", "slicewise"
SLICEWISE_REPARTITION = "slicewise_repartition"

_LONG_KILL_WAIT_S = 60.0
"""Two services have requests of some 50 s, which 30 s less 2 would lose (decision 45)."""
_ON_MIG = {WHOLE: "7g.80gb"}
"""What a whole GPU is where it is cut again: one MIG instance."""
_REPARTITION = Settings.model_validate(
    {
        "cluster": {"name": "headline", "partitions": [PARTITION]},
        "gpus": {"A100-80GB": {"types": [SLICE, HALF, _ON_MIG[WHOLE]]}},
        "repartition": {"allowed": True},
    }
)


@dataclass(frozen=True)
class MixedRecord:
    """What a system left behind: its batch jobs, and what became of each service.

    Attributes:
        instances: those of the cluster by type, where they are not those of the load.
    """

    site: SiteRecord
    services: tuple[ServiceRecord, ...]
    instances: Mapping[str, int] = field(default_factory=dict, hash=False)


def static_gpus(load: MixedLoad) -> MixedRecord:
    """Services have whole GPUs for their peak; each batch tenant a part of the rest, to itself."""
    taken = COSTS[WHOLE] * sum(one.gpus for one in load.services)
    reserved = COSTS[SLICE] * sum(one.replicas for one in load.services)
    capacity = sum(COSTS[kind] * count for kind, count in load.instances.items())
    rest = shrunk(_left(load), (capacity - taken) / (capacity - reserved))
    owned = divided(rest, demand_s(load.jobs, load.end_s))
    there = {**rest, WHOLE: rest.get(WHOLE, 0) + sum(one.gpus for one in load.services)}
    return MixedRecord(_partitions(load, owned), _always_on(load, on_whole=True), there)


def shrunk(instances: Mapping[str, int], share: float) -> Mapping[str, int]:
    """That share of the instances of each type; what rounding leaves becomes slices."""
    found = {kind: floor(count * share) for kind, count in instances.items()}
    millislices = sum(COSTS[kind] * count for kind, count in instances.items()) * share
    spare = millislices - sum(COSTS[kind] * count for kind, count in found.items())
    return {**found, SLICE: found[SLICE] + int(spare / COSTS[SLICE] + 1e-6)}


def static(load: MixedLoad) -> MixedRecord:
    """Services have the fewest slices that keep their aim; batch tenants own the rest."""
    return MixedRecord(_partitions(load, load.owned), _always_on(load))


def fair_share(load: MixedLoad) -> MixedRecord:
    """Services have their slices; the rest is one pool, by Slurm's Fair Tree."""
    return _pool(load, SlurmPlan(FAIR_SHARE), SHARES_FIRST)


def priority(load: MixedLoad) -> MixedRecord:
    """Services have their slices; the rest is one pool, tenants that own more come first."""
    qos = {name: QosLimits(priority=own) for name, own in load.guarantees.items()}
    by_qos = replace(load, jobs=tuple(replace(job, qos=job.account) for job in load.jobs))
    return _pool(by_qos, SlurmPlan(PRIORITY, qos), QOS_FIRST)


def kueue_hpa(load: MixedLoad) -> MixedRecord:
    """A cohort of Kueue's; services have as many replicas as the HPA wants."""
    cluster = _cluster(load, load.instances)
    nominal = {
        kind: {name: of[kind] for name, of in load.quotas.items() if kind in of}
        for kind in load.instances
    }
    # Who owns none of a type may still borrow it.
    nominal = {kind: {**dict.fromkeys(load.quotas, 0), **of} for kind, of in nominal.items()}
    pods = [HpaPods(one.slices, places(one.slices)) for one in load.services]
    site = KueueSite(cluster, COSTS, nominal, _replays(load, cluster), _times(load), services=pods)
    record = site.run()
    services = tuple(
        recorded(one.service, one.gateway, one.runs(record.stopped_s), one.changes_s)
        for one in pods
    )
    return MixedRecord(record, services)


def slicewise(load: MixedLoad) -> MixedRecord:
    """Slicewise with its default settings: every tenant lends and borrows without a limit.

    Slurm preempts the youngest first and has a longer KillWait, as Slicewise advises.
    """
    cluster = _cluster(load, load.instances, as_advised=True)
    return _by_slicewise(load, cluster, SETTINGS, load.guaranteed_types)


def slicewise_repartition(load: MixedLoad) -> MixedRecord:
    """Slicewise, where GPUs are cut again as jobs ask, by the default settings.

    Whole GPUs are in MIG mode, too: as one instance.
    """
    jobs = tuple(replace(job, gpus=_renamed(job.gpus, _ON_MIG)) for job in load.jobs)
    types = {name: _renamed(of, _ON_MIG) for name, of in load.guaranteed_types.items()}
    cluster = _cluster(load, _renamed(load.instances, _ON_MIG), as_advised=True)
    cluster = replace(cluster, nodes=tuple(map(_cut_again, cluster.nodes)))
    found = _by_slicewise(replace(load, jobs=jobs), cluster, _REPARTITION, types)
    back = {new: old for old, new in _ON_MIG.items()}
    ran = tuple(replace(job, gpus=_renamed(job.gpus, back)) for job in found.site.jobs)
    return replace(found, site=replace(found.site, jobs=ran))


def _renamed(instances: Mapping[str, int], names: Mapping[str, str]) -> Mapping[str, int]:
    return {names.get(kind, kind): count for kind, count in instances.items()}


def _cut_again(node: SimulatedNode) -> SimulatedNode:
    """The node with boards that are each cut into instances of one type."""
    boards = boards_of(node.gpus, _REPARTITION)
    if boards is None:
        raise ValueError(f"{node.name}: its instances fit on no boards")
    alike = sorted(geometry(board(boards.model)).layouts, key=sorted)
    layouts = []
    for kind, count in node.gpus.items():
        profiles = (one for one in alike if {place.profile for place in one} == {kind})
        full = max(profiles, key=len)
        layouts += [tuple(sorted(full, key=lambda place: place.start))] * (count // len(full))
    boards = replace(boards, layouts=tuple(layouts))
    return replace(node, gpus=with_pads(node.gpus, boards), boards=boards)


def _by_slicewise(
    load: MixedLoad, cluster: SimulatedCluster, settings: Settings, types: Shares
) -> MixedRecord:
    services = tuple(one.slices for one in load.services)
    policy = tenants(load.guarantees, types)
    # A turn each second, as the launcher makes it.
    plan = SlicewisePlan(SLICEWISE, settings, policy, services=services, calm_s=0.0)
    costs = settings.costs
    record = Site(cluster, plan, costs, _replays(load, cluster, costs), _times(load)).run()
    return MixedRecord(record, record.services)


def tenants(guarantees: Mapping[str, int], types: Shares) -> Policy:
    """Each tenant is guaranteed what it owns, by type, and lends and borrows without a limit."""
    no_limit = MAX_NOMINAL_MILLISLICES
    return {
        name: Tenant(
            name,
            "",
            Quota(
                Millislices(own),
                no_limit,
                no_limit,
                max(1, own // 1000),
                type_nominals=types[name],
            ),
        )
        for name, own in guarantees.items()
    }


MIXED_SETS: Mapping[str, Callable[[MixedLoad], MixedRecord]] = {
    STATIC_GPUS: static_gpus,
    STATIC: static,
    FAIR_SHARE: fair_share,
    PRIORITY: priority,
    KUEUE_HPA: kueue_hpa,
    SLICEWISE: slicewise,
    SLICEWISE_REPARTITION: slicewise_repartition,
}


def sets_on(layout: str) -> Mapping[str, Callable[[MixedLoad], MixedRecord]]:
    """The systems that are compared on a layout: where all ask for one type, nothing is cut."""
    if len(LAYOUTS[layout]) > 1:
        return MIXED_SETS
    return {name: run for name, run in MIXED_SETS.items() if name != SLICEWISE_REPARTITION}


def _times(load: MixedLoad) -> SiteTimes:
    return SiteTimes(load.begin_s, load.end_s, load.end_s)


def _left(load: MixedLoad) -> Mapping[str, int]:
    """What services leave where each has its fewest slices."""
    reserved = sum(one.replicas for one in load.services)
    return {**load.instances, SLICE: load.instances[SLICE] - reserved}


def _always_on(load: MixedLoad, *, on_whole: bool = False) -> tuple[ServiceRecord, ...]:
    return tuple(
        always_on(one.whole, one.gpus, load.end_s)
        if on_whole
        else always_on(one.slices, one.replicas, load.end_s)
        for one in load.services
    )


def _pool(load: MixedLoad, plan: SitePlan, weights: PriorityWeights) -> MixedRecord:
    cluster = _cluster(load, _left(load), weights)
    record = Site(cluster, plan, COSTS, _replays(load, cluster), _times(load)).run()
    return MixedRecord(record, _always_on(load))


def _partitions(load: MixedLoad, owned: Mapping[str, Mapping[str, int]]) -> SiteRecord:
    """Each batch tenant has its own instances, and is simulated by itself."""
    records = []
    for name, instances in sorted(owned.items()):
        cluster = _cluster(load, instances)
        own = tuple(one for one in _replays(load, cluster) if one.request.account == name)
        records.append(Site(cluster, SlurmPlan(STATIC), COSTS, own, _times(load)).run())
    return SiteRecord(
        begin_s=load.begin_s,
        stopped_s=max(one.stopped_s for one in records),
        jobs=tuple(job for one in records for job in one.jobs),
    )


def _replays(
    load: MixedLoad, cluster: SimulatedCluster, costs: Mapping[str, Millislices] = COSTS
) -> tuple[Replay, ...]:
    can = Replayable(cluster, costs)
    numbered = ((number, job) for number, job in enumerate(load.jobs))
    return replays(numbered, can, begin_s=load.begin_s, end_s=load.end_s)


def _cluster(
    load: MixedLoad,
    instances: Mapping[str, int],
    weights: PriorityWeights | None = None,
    *,
    as_advised: bool = False,
) -> SimulatedCluster:
    """So many instances, spread over the nodes evenly; Slurm by default, or as is advised."""
    nodes = tuple(
        SimulatedNode(
            f"n{nth}",
            frozenset({PARTITION}),
            {
                kind: (count + NODES - 1 - nth) // NODES
                for kind, count in instances.items()
                if (count + NODES - 1 - nth) // NODES
            },
        )
        for nth in range(NODES)
    )
    own = load.guarantees
    return SimulatedCluster(
        name="headline",
        nodes=nodes,
        scheduling=Scheduling(
            weights=weights or PriorityWeights(),
            preempts_youngest_first=as_advised,
            kill_wait_s=_LONG_KILL_WAIT_S if as_advised else Scheduling.kill_wait_s,
        ),
        accounts=dict.fromkeys(own, "root"),
        shares={name: max(1, millislices // 1000) for name, millislices in own.items()},
    )
