"""Takes services' owners' orders, keeps them in the ledger's database, shows them in the view."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.service import whole_number
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.rpc.order_messages import NO_ORDER, OrderRequest
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.api.reads import Reads, without_places
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.uninstalled import require_installed
from slicewise.slurm_plugin.rules.services.orders import (
    Ordered,
    ReplicaBounds,
    ServiceKey,
    arrays_of,
    ordered,
    over,
    rolled_over,
)
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_AUTHOR = "slicewise"
_READ_AGAIN_S = 60.0
"""Seconds after which the orders are read even if nothing seems new: of two rows written at the
same time the one with the higher id may have become visible first."""


class ServiceOrders:
    """The orders that hold now. Only the daemon that leads changes them; others read them again."""

    def __init__(
        self,
        ledger: Ledger,
        cluster_state: ClusterState,
        reads: Reads,
        leader: Leader,
        *,
        rates: RateLimiter,
    ) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._reads = reads
        self._leader = leader
        self._rates = rates
        self._lock = asyncio.Lock()
        self._orders: Mapping[ServiceKey, Ordered] = {}
        self._read_id = 0
        self._read_again_s = 0.0

    async def start(self) -> None:
        """Read the orders, if any is new; raises what the ledger raises."""
        async with self._lock:
            newest = await asyncio.to_thread(self._ledger.orders.newest_id)
            now_s = time.monotonic()
            if newest == self._read_id and now_s < self._read_again_s:
                return
            self._show(await asyncio.to_thread(self._ledger.orders.standing))
            self._read_id, self._read_again_s = newest, now_s + _READ_AGAIN_S

    async def turn(self) -> None:
        """Read the orders again, end those that are over, and let the others roll over to a newer
        generation of their service.
        """
        await self.start()
        if not self._cluster_state.runs_services:
            return
        async with self._lock:
            arrays = arrays_of(self._cluster_state.view.services)
            for key, order in rolled_over(self._orders, arrays).items():
                await asyncio.to_thread(self._ledger.orders.write, key, "scale", order, _AUTHOR)
                self._show({**self._orders, key: order})
            for key in sorted(over(self._orders, arrays)):
                nothing = Ordered(NO_ORDER, self._orders[key].array_job_id)
                await asyncio.to_thread(self._ledger.orders.write, key, "over", nothing, _AUTHOR)
                self._show(
                    {
                        service_key: o
                        for service_key, o in self._orders.items()
                        if service_key != key
                    }
                )
                report("order_over", service="/".join(key), tenant=key[0])

    async def order(
        self, request: OrderRequest, service: ServiceView, principal: Principal
    ) -> DoneAnswer:
        """Take an order from a user who may give it.

        The order holds once it is on disk; an order that changes nothing is not written. Raises
        InvalidInputError (SW-VALUE, SW-UNINSTALLED, SW-RATE), and UnreachableError:
        SW-DAEMON-STANDBY, SW-SLURM-DOWN, and what the ledger raises.
        """
        self._leader.require()
        require_installed(self._cluster_state.are_services_out)
        key = (service.tenant, service.name)
        async with self._lock:
            self._reads.require_complete_view()
            newest = max(
                arrays_of(self._cluster_state.view.services).get(key, {service.array_job_id})
            )
            known = self._orders.get(key)
            before = known.order if known else NO_ORDER
            script = _bounds(self._cluster_state.service(newest))
            after = Ordered(ordered(before, request, script, wall_s()), newest)
            if after.order == before:
                return DoneAnswer()
            self._rates.take(principal, service.tenant)
            write = partial(self._ledger.orders.write, key, request.what, after, principal.user)
            with without_places(principal):
                await self._reads.from_ledger(principal.uid, write)
            self._show({**self._orders, key: after})
        fields = {"service": "/".join(key), "what": request.what, "user": principal.user}
        report("ordered", **fields, tenant=service.tenant)
        return DoneAnswer()

    def _show(self, orders: Mapping[ServiceKey, Ordered]) -> None:
        self._orders = orders
        self._cluster_state.set_orders({key: order.order for key, order in orders.items()})


def _bounds(service: ServiceView) -> ReplicaBounds:
    least = whole_number(service.directives, "min_replicas", 0)
    return ReplicaBounds(least, len(service.slots))
