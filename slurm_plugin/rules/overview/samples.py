"""Makes the figures that history keeps out of what the daemon knows at one moment."""

from collections import Counter

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.overview_messages import ServiceNow, TenantNow
from slicewise.slurm_plugin.rules.accounting.overview import with_those_below
from slicewise.slurm_plugin.rules.common.history import (
    ClusterFigures,
    HistorySample,
    ServiceFigures,
    TenantFigures,
)
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader
from slicewise.slurm_plugin.rules.overview.services import seen_services, service_now
from slicewise.slurm_plugin.rules.overview.slices import slices_by_state, tenants_now
from slicewise.slurm_plugin.rules.quota.demand import late_before_s, late_tasks
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder


def history_sample(
    facts: OverviewFacts, reader: Reader, at_s: int, most_services: int
) -> HistorySample:
    """Return the figures of all tenants and services; ``reader`` may read them all.

    Users may submit any number of services: of more than ``most_services`` those are left out that
    the launcher does not carry, then the newest.
    """
    slices, late = slices_by_state(facts), Counter[str]()
    before_s = late_before_s(facts.now_s, facts.grace_s)
    by_holder = jobs_by_holder(facts.jobs, facts.partitions, facts.costs, facts.models)
    for job in late_tasks(by_holder, facts.policy, before_s):
        late[job.tenant] += job.cost_millislices
    late_below = with_those_below(facts.policy, late)
    return HistorySample(
        at_s=at_s,
        cluster=ClusterFigures(
            used=slices.used_millislices,
            lent=slices.lent_millislices,
            idle=slices.idle_millislices,
            draining=slices.draining_millislices,
            down=slices.down_millislices,
            waiting=sum(map(facts.cost, facts.waiting)),
            late=late.total(),
        ),
        tenants=tuple(
            _tenant(tenant_now, late_below[tenant_now.name])
            for tenant_now in tenants_now(facts, reader)
        ),
        services=tuple(
            _service(service_now(living, facts))
            for living in _in_order(facts, reader)[:most_services]
        ),
    )


def _in_order(facts: OverviewFacts, reader: Reader) -> list[tuple[ServiceView, ...]]:
    """The services: first those of which the launcher has told something lately, then the older."""

    def place(living: tuple[ServiceView, ...]) -> tuple[bool, int]:
        is_told = (living[0].tenant, living[0].name) in facts.reports
        return not is_told, living[-1].array_job_id

    return sorted(seen_services(facts, reader), key=place)


def _tenant(now: TenantNow, late: int) -> TenantFigures:
    return TenantFigures(
        tenant=now.name,
        nominal=now.nominal_millislices,
        in_use=now.in_use_millislices,
        borrowed=now.borrowed_millislices,
        lent=now.lent_millislices,
        waiting=now.waiting_millislices,
        late=late,
        budget_left=now.left_millislice_s,
    )


def _service(now: ServiceNow) -> ServiceFigures:
    return ServiceFigures(
        tenant=now.tenant,
        service=now.name,
        ready=now.ready,
        desired=now.desired_replicas,
        backlog=now.backlog,
        requests=now.rate_per_s,
        p95=now.p95_ms,
    )
