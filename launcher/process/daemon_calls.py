"""What the launcher asks the daemon, each call in a thread beside the turns."""

from collections.abc import Mapping

from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.key_messages import (
    MOST_USES,
    GrantsAnswer,
    GrantsRequest,
    KeyUsesRequest,
)
from slicewise.cluster.rpc.messages import (
    DesiredSlotsAnswer,
    DesiredSlotsRequest,
    RetireRequest,
    ServiceReport,
    ServiceReportRequest,
    ViewAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.usage_messages import (
    AllowancesAnswer,
    AllowancesRequest,
    EngineCountersRequest,
    PoolUsesRequest,
    UsagePostAnswer,
    UsagePostRequest,
)
from slicewise.cluster.settings.file import DaemonSettings


class DaemonCalls:
    """The calls of ``turn.Daemon``; each raises what ``DaemonClient.call`` raises."""

    def __init__(self, settings: DaemonSettings) -> None:
        self._daemon = DaemonClient(settings)

    async def view(self) -> ViewAnswer:
        """Services and tenants as they are now."""
        return await self._daemon.ask(ViewRequest())

    async def set_desired_slots(
        self,
        array_job_id: int,
        run: frozenset[int],
        note: str,
        urgency: float,
        avoid: tuple[str, ...],
        *,
        after: int,
    ) -> DesiredSlotsAnswer:
        """Let these slots of a service run and hold every other one; show the note to its users.

        ``after`` is the number of the last request for these slots that the daemon had taken when
        the launcher looked: the array's in ``asked`` of the view.
        """
        return await self._daemon.ask(
            DesiredSlotsRequest(
                array_job_id=array_job_id,
                slots=tuple(sorted(run)),
                note=note,
                urgency=urgency,
                avoid_nodes=avoid,
                replaces_version=after,
            )
        )

    async def retire(self, array_job_id: int) -> None:
        """Cancel an array that has no slot under way."""
        await self._daemon.ask(RetireRequest(array_job_id=array_job_id))

    async def grants(self) -> GrantsAnswer:
        """Which keys admit requests to which services."""
        return await self._daemon.ask(GrantsRequest())

    async def note_uses(self, used_s: Mapping[str, float]) -> None:
        """Say when keys last let a request in: Unix seconds by hash."""
        uses = sorted(used_s.items())
        for first in range(0, len(uses), MOST_USES):
            part = dict(uses[first : first + MOST_USES])
            await self._daemon.ask(KeyUsesRequest(used_s=part))

    async def post_usage(self, request: UsagePostRequest) -> UsagePostAnswer:
        """Book what requests used."""
        return await self._daemon.ask(request)

    async def allowances(self, request: AllowancesRequest) -> AllowancesAnswer:
        """Tokens that the gateway may hold."""
        return await self._daemon.ask(request)

    async def note_engine_counters(self, request: EngineCountersRequest) -> None:
        """Keep what engines have counted."""
        await self._daemon.ask(request)

    async def note_pool_uses(self, request: PoolUsesRequest) -> None:
        """Keep which services have used a pool's replicas."""
        await self._daemon.ask(request)

    async def report_services(self, services: tuple[ServiceReport, ...]) -> None:
        """Report what the launcher sees of services, for their users."""
        await self._daemon.ask(ServiceReportRequest(services=services))
