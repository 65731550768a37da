"""Remembers what the gateway tells of requests that wait for a start."""

from slicewise.launcher.rules.gateway.start_lines import StartLine
from slicewise.launcher.rules.turn.start_traces import HEARD_S, HeardOfStarts

_MOST_ANSWERED = 1000
"""Replicas whose first answer is remembered: a turn takes it over within a second."""


class StartWatch:
    """When each backend began to hold, and when each replica first answered who had waited."""

    def __init__(self) -> None:
        self._held_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}

    def hear(self, line: StartLine) -> None:
        """Take a line. A backend says again that it holds for each request that comes meanwhile."""
        if line.what == "held":
            if abs(line.at_s - self._held_s.get(line.name, 0.0)) > HEARD_S:
                self._held_s[line.name] = line.at_s
            return
        self._answered_s.setdefault(line.name, line.at_s)
        while len(self._answered_s) > _MOST_ANSWERED:
            del self._answered_s[next(iter(self._answered_s))]

    @property
    def heard(self) -> HeardOfStarts:
        """All of it, as it is now."""
        return HeardOfStarts(dict(self._held_s), dict(self._answered_s))
