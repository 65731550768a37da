"""The figures of a system under the mixed load.

Work is what was done: a request counts by what it takes of a full replica of one slice, whatever
replica answered it; a job by what its last run held.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any

from slicewise.simulation.rules.runs.measure import Guarantee, Yardstick, measured
from slicewise.simulation.rules.runs.run_figures import Figures
from slicewise.simulation.rules.runs.summary import figures, mean
from slicewise.simulation.rules.services.request_figures import ServiceRecord, outcome
from studies.headline.figures import work
from studies.headline.mixed_bound import bound
from studies.headline.mixed_load import CAPACITY_MILLISLICES, SETTINGS, MixedLoad
from studies.headline.mixed_shares import idle, loading_s
from studies.headline.mixed_systems import MixedRecord

_HOUR_S, _SLICE, _MILLION = 3600.0, 1_000, 1_000_000


@dataclass(frozen=True)
class MixedFigures:
    """One system under one load. Shares are of the capacity, waits are to the first start.

    Attributes:
        utilisation: work done for requests and jobs; ``utilisation_services`` and
            ``utilisation_batch`` are its parts.
        bound, bound_any_cut: the most that any first-come rule could do beside the same replicas,
            see ``mixed_bound.Bound``; ``of_bound`` is the work done as a share of the former.
        allocated: what replicas and jobs held. Beside work it is ``loading`` of models, ``lost``
            runs that a preemption threw away, and ``headroom`` of replicas that had less to do, or
            went.
        idle_wanted, idle_other_type, idle_unwanted: the rest, see ``mixed_shares.Idle``.
        attainment: share of the requests of the worst service that kept its aim;
            ``attainment_mean`` is that of the mean of all services.
        lost_requests: whose replica ended while it worked on them.
        service_slice_hours: what replicas held; ``per_million``: by a million requests.
        lost_slice_hours: of runs that a preemption threw away.
        late_jobs: jobs within the guarantee that waited beyond the grace. Limits on types count
            as none, as do those on models; the load has neither.
        unstarted: jobs that had not started when the simulation stopped.
    """

    system: str
    utilisation: float
    utilisation_services: float
    utilisation_batch: float
    bound: float
    bound_any_cut: float
    of_bound: float
    allocated: float
    loading: float
    headroom: float
    lost: float
    idle_wanted: float
    idle_other_type: float
    idle_unwanted: float
    attainment: float
    worst_service: str
    attainment_mean: float
    requests: int
    lost_requests: int
    service_slice_hours: float
    per_million: float
    jobs: int
    wait_mean_s: float
    wait_p99_s: float
    wait_worst_mean_s: float
    worst_tenant: str
    jain: float
    late_jobs: int
    lost_slice_hours: float
    preempted_runs: int
    unstarted: int


def mixed_figures(system: str, record: MixedRecord, load: MixedLoad) -> MixedFigures:
    """Measure one system's run, from when figures count to the load's end."""
    capacity_s = CAPACITY_MILLISLICES / _SLICE * load.seconds
    done_s = served_slice_s(record.services, load)
    kept_s, lost_s, preempted = work(record.site.jobs, load.warm_s, load.end_s, _SLICE)
    outcomes = [outcome(one, since_s=load.warm_s, until_s=load.end_s) for one in record.services]
    shown = _shown(system, record, load)
    worst = min(outcomes, key=lambda one: one.attainment)
    waiting = max(shown.tenants, key=lambda one: one.wait_mean_s)
    requests = sum(one.requests for one in outcomes)
    hours = sum(one.slice_s for one in outcomes) / _HOUR_S
    loads_s, rest = loading_s(record.services, load), idle(record, load)
    most = bound(record, load)
    return MixedFigures(
        system=system,
        utilisation=(done_s + kept_s) / capacity_s,
        utilisation_services=done_s / capacity_s,
        utilisation_batch=kept_s / capacity_s,
        bound=(done_s + most.as_cut_s) / capacity_s,
        bound_any_cut=(done_s + most.any_cut_s) / capacity_s,
        of_bound=(done_s + kept_s) / (done_s + most.as_cut_s),
        allocated=(hours * _HOUR_S + kept_s + lost_s) / capacity_s,
        loading=loads_s / capacity_s,
        headroom=(hours * _HOUR_S - done_s - loads_s) / capacity_s,
        lost=lost_s / capacity_s,
        idle_wanted=rest.wanted_s / capacity_s,
        idle_other_type=rest.other_type_s / capacity_s,
        idle_unwanted=rest.unwanted_s / capacity_s,
        attainment=worst.attainment,
        worst_service=worst.service,
        attainment_mean=mean([one.attainment for one in outcomes]),
        requests=requests,
        lost_requests=sum(one.lost for one in outcomes),
        service_slice_hours=hours,
        per_million=hours * _MILLION / max(1, requests),
        jobs=shown.jobs,
        wait_mean_s=shown.wait_mean_s,
        wait_p99_s=shown.wait_p99_s,
        wait_worst_mean_s=waiting.wait_mean_s,
        worst_tenant=waiting.tenant,
        jain=shown.jain,
        late_jobs=shown.late_jobs,
        lost_slice_hours=lost_s / _HOUR_S,
        preempted_runs=preempted,
        unstarted=shown.jobs - shown.started,
    )


def served_slice_s(records: Iterable[ServiceRecord], load: MixedLoad) -> float:
    """Slice-seconds of full replicas that the requests took that were answered in that time."""
    each = {one.slices.key: one.work_millislice_s / _SLICE for one in load.services}
    return sum(
        each[one.service.key]
        * sum(load.warm_s <= at_s < load.end_s for at_s in one.answers_s if at_s < inf)
        for one in records
    )


def _shown(system: str, record: MixedRecord, load: MixedLoad) -> Figures:
    """What `slicewise simulate` would say of the jobs, by the same guarantees for all systems."""
    by = Yardstick(
        start_s=load.warm_s,
        end_s=load.end_s,
        capacity_millislices=CAPACITY_MILLISLICES,
        guarantees=(Guarantee(load.begin_s, load.guarantees, load.guaranteed_types),),
        grace_s=SETTINGS.lending.grace_s,
    )
    own = load.guarantees
    return figures(system, measured(record.site, by), CAPACITY_MILLISLICES, own)


def over_seeds(rows: Sequence[MixedFigures]) -> Mapping[str, Any]:
    """One system's means over several loads; names are those of the first load where all agree."""
    found: dict[str, Any] = {"system": rows[0].system}
    for one in fields(MixedFigures):
        values = [getattr(row, one.name) for row in rows]
        if isinstance(values[0], str):
            found[one.name] = values[0] if len({*values}) == 1 else "several"
        else:
            found[one.name] = mean(values)
    return found


def saving(of: Mapping[str, Any], beside: Mapping[str, Any]) -> float:
    """The share of slice-hours for a million requests that a system saves beside another one."""
    return float(1 - of["per_million"] / beside["per_million"])


def rows_of(found: Mapping[str, Sequence[MixedFigures]]) -> Mapping[str, Any]:
    """Each system's figures: means, and those of each load."""
    return {
        name: {**over_seeds(rows), "seeds": [asdict(row) for row in rows]}
        for name, rows in found.items()
    }
