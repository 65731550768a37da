"""Makes the overview of a cluster out of what the daemon knows, for one reader."""

from slicewise.cluster.rpc.overview_messages import OverviewAnswer
from slicewise.slurm_plugin.rules.overview.attention import attention
from slicewise.slurm_plugin.rules.overview.gpus import gpus_now
from slicewise.slurm_plugin.rules.overview.loans import loans_now
from slicewise.slurm_plugin.rules.overview.month import month_now
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader
from slicewise.slurm_plugin.rules.overview.services import seen_services, service_now
from slicewise.slurm_plugin.rules.overview.slices import (
    other_tenants,
    power_now,
    slices_by_state,
    tenants_now,
    waiting_now,
)


def overview(facts: OverviewFacts, reader: Reader) -> OverviewAnswer:
    """Return the whole of it: the reader's own tenants in full, the others as sums."""
    tenants = tenants_now(facts, reader)
    services = [(living, service_now(living, facts)) for living in seen_services(facts, reader)]
    every = {(service.tenant, service.name) for service in facts.services}
    return OverviewAnswer(
        cluster=facts.cluster,
        observed_s=facts.observed_s,
        complete=facts.complete,
        mode=facts.mode,
        slices=slices_by_state(facts),
        power=power_now(facts) if reader.tenants is None else None,
        tenants=tenants,
        others=other_tenants(facts, reader),
        services=tuple(now for _, now in services),
        other_services=len(every) - len(services),
        gpus=gpus_now(facts, reader),
        waiting=tuple(waiting_now(facts, reader)),
        loans=loans_now(facts, reader),
        attention=attention(facts, reader, services, tenants),
        month=month_now(facts, reader),
    )
