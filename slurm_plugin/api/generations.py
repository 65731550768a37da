"""Records generations of services as they appear, and shows them to their tenants' users."""

import asyncio
from functools import partial

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.read_messages import (
    GenerationRecord,
    GenerationsAnswer,
    GenerationsRequest,
)
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.reads import Reads, hiding_places, require_own, tenants_asked
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.state.cluster_state import ClusterState


class ServiceGenerations:
    """The generations of all services.

    They are recorded in every mode in which runs are charged: statements name services by them.
    """

    def __init__(self, ledger: Ledger, cluster_state: ClusterState, reads: Reads) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._reads = reads
        self._known: frozenset[int] = frozenset()

    async def turn(self) -> None:
        """Record generations that are new to this daemon; raises what the ledger raises.

        To be called while this daemon leads.
        """
        services = self._cluster_state.view.services
        found = {service.array_job_id: service for service in services}
        if new := found.keys() - self._known:
            records = [_record(found[array]) for array in sorted(new)]
            await asyncio.to_thread(self._ledger.generations.record, records)
        self._known = frozenset(found)

    def handlers(self) -> ReaderHandlers:
        """What answers requests for them; raises what ``Reads.handlers`` says."""
        return hiding_places({GenerationsRequest: self._generations})

    async def _generations(
        self, request: GenerationsRequest, principal: Principal
    ) -> GenerationsAnswer:
        require_own(request.tenant, principal)
        tenants = tenants_asked(request.tenant, principal)
        read = partial(self._ledger.generations.named, request.name, tenants)
        generation_records = await self._reads.from_ledger(principal.uid, read)
        return GenerationsAnswer(generations=generation_records)


def _record(view: ServiceView) -> GenerationRecord:
    return GenerationRecord(
        array_job_id=view.array_job_id,
        submitted_s=view.submit_s,
        tenant=view.tenant,
        name=view.name,
        author=view.user,
        directives=view.directives,
    )
