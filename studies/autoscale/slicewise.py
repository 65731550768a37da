"""The launcher's own decision as a policy of the replay, unchanged."""

from dataclasses import replace

from slicewise.launcher.rules.autoscale.policy import Memory, autoscale, initial
from slicewise.launcher.rules.autoscale.rest import is_at_rest, rested
from slicewise.launcher.rules.autoscale.types import Scaling, ServiceLook, Supply
from slicewise.launcher.rules.gateway.types import Load
from studies.autoscale.policy import Seen
from studies.autoscale.workload import MAX_REPLICAS, SLO_S


class Slicewise:
    """The launcher's decision; ``target``: the share of requests to get a place within the SLO.

    ``least`` and ``most`` bound the replicas.

    Attributes:
        refill_s: seconds of loads that replicas of a pool have behind them.
        in_time: how many requests may wait before the gateway serves the newest first; None:
            first come, first served.
    """

    def __init__(
        self, concurrency: int, target: float, least: int = 0, most: int = MAX_REPLICAS
    ) -> None:
        self._scaling = Scaling(least, most, concurrency, max_queue_s=SLO_S, aim=target)
        self._memory: Memory | None = None
        self.in_time: int | None = None
        self.refill_s = 0.0

    def wanted(self, seen: Seen) -> int:
        """Decide each second, at first as a launcher for a service that is new to it."""
        look = _look(seen)
        if self._memory is None:
            self._memory = initial(look.supply, look.at_s)
        scaling = replace(self._scaling, refill_s=self.refill_s)
        self._memory, decision = autoscale(scaling, self._memory, look)
        self.in_time = decision.in_time
        return decision.wanted

    @property
    def is_at_rest(self) -> bool:
        """Whether all further looks without a request and a replica teach the same."""
        return self._memory is not None and is_at_rest(self._memory)

    def rest(self, at_s: float, looks: int) -> None:
        """Learn of so many more looks at rest, the last of them at ``at_s``."""
        self._memory = rested(self._memory, at_s, looks)


def _look(seen: Seen) -> ServiceLook:
    queued, held = (seen.waiting, 0) if seen.ready else (0, seen.waiting)
    return ServiceLook(
        at_s=seen.at_s,
        load=Load(seen.in_flight, queued, held, seen.arrived, seen.answered),
        supply=Supply(seen.pending, seen.starting, seen.ready, seen.draining),
        starts=tuple(seen.started),
    )
