"""What the launcher tells of services: kept in memory, for whoever looks at them."""

import time
from collections.abc import Iterable

from cluster.leadership import Leader
from cluster.wire import DoneAnswer, NewsRequest, ServiceNews, ServiceView
from slurm_plugin.decide.orders import Key

OLD_S = 30.0
"""The launcher tells of each service every few seconds: what is older says nothing of now."""


class News:
    """The last news of each service, and when they came."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._found: dict[Key, tuple[float, ServiceNews]] = {}

    def take(self, request: NewsRequest) -> DoneAnswer:
        """Raises UnreachableError (SW-DAEMON-STANDBY): people ask the daemon that leads."""
        self._leader.require()
        now_s = time.monotonic()
        new = {(one.tenant, one.name): (now_s, one) for one in request.services}
        known = {key: had for key, had in self._found.items() if now_s - had[0] < OLD_S}
        self._found = known | new
        return DoneAnswer()

    def of(self, services: Iterable[ServiceView]) -> tuple[ServiceNews, ...]:
        """What was told of these services lately."""
        since_s = time.monotonic() - OLD_S
        keys = dict.fromkeys((one.tenant, one.name) for one in services)
        found = (self._found.get(key) for key in keys)
        return tuple(told[1] for told in found if told is not None and told[0] > since_s)
