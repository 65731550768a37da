"""Keeps the queues of shared services fair: tells HAProxy each second what requests count there."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from slicewise.cluster.language.token_weights import SCALE, weights_of
from slicewise.launcher.rules.gateway.fair_orders import entries_of
from slicewise.launcher.rules.gateway.fair_queue import (
    FairQueue,
    Position,
    SubjectUse,
    with_pace,
    with_uses,
)
from slicewise.launcher.rules.gateway.usage_lines import UsageByAsker
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.service import ServicePlan

ORDER_EVERY_S = 1.0


class Priorities(Protocol):
    """The gateway's calls for fair queues."""

    async def fair_positions(self) -> Mapping[str, Position]: ...  # noqa: D102
    async def set_priorities(self, entries: Mapping[str, str]) -> None: ...  # noqa: D102


class FairQueues:
    """Learns what requests use while this launcher leads; one that starts learns it anew."""

    def __init__(self, output_weights: Mapping[str, float] = MappingProxyType({})) -> None:
        self._output_weights = output_weights
        self._services: Mapping[str, ServicePlan] = {}
        self._queues: Mapping[str, FairQueue] = {}
        self._are_told = False

    def turned(self, plan: TurnPlan) -> None:
        """Take over which services have a fair queue, and where requests wait."""
        self._services = {
            service.service: service for service in plan.services if service.spec.fair_among
        }

    async def order(self, gateway: Priorities, used: UsageByAsker, now_ms: float) -> None:
        """Tell the gateway what requests count. Raises what the gateway's calls raise."""
        if not self._services and not self._are_told:
            return
        waits = any(service.load.waiting for service in self._services.values())
        positions = await gateway.fair_positions() if waits else {}
        queues: dict[str, FairQueue] = {}
        entries: dict[str, str] = {}
        for name, service in self._services.items():
            queue = with_uses(
                self._queues.get(name, FairQueue()),
                now_ms,
                _uses(service, used, self._output_weights),
            )
            position = positions.get(name) if service.load.queued else None
            queues[name] = with_pace(queue, now_ms, position)
            entries |= entries_of(
                name, queues[name], dict(service.spec.weights), service.spec.fair_among or "tenants"
            )
        self._queues = queues
        await gateway.set_priorities(entries)
        self._are_told = bool(entries)


def _uses(
    service: ServicePlan, used: UsageByAsker, output_weights: Mapping[str, float]
) -> Mapping[str, SubjectUse]:
    """What requests of the service have used, by tenant or by person."""
    weights = weights_of(service.service, output_weights)
    requests: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for (name, payer, person), sums in used.items():
        if name == service.service:
            subject = person if service.spec.fair_among == "persons" else payer
            requests[subject] += sums.requests
            amounts = sums.prompt_tokens, sums.cached_tokens, sums.output_tokens
            tokens[subject] += weights.weigh(*amounts)
    return {name: SubjectUse(requests[name], tokens[name] / SCALE) for name in requests}
